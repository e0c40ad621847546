//! OPLOCK_BREAK: the server takes an oplock back ([MS-SMB2] §2.2.23.1, Oplock Break Notification;
//! §2.2.24.1, Oplock Break Acknowledgment). Breaks of leases have another length and are passed on.

use super::{FileId, WireError, array, expect_structure, u8_at};

/// A notification or an acknowledgement; they look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OplockBreak {
    /// The highest level that may be kept, or the level that is kept.
    pub(crate) level: u8,
    pub(crate) file: FileId,
}

impl OplockBreak {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 24)?;
        Ok(Self {
            level: u8_at(body, 2)?,
            file: FileId(array(body, 8)?),
        })
    }

    pub(crate) fn emit(&self) -> [u8; 24] {
        let mut body = [0; 24];
        body[0] = 24;
        body[2] = self.level;
        body[8..24].copy_from_slice(&self.file.0);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_round_trips_and_lease_break_differs() {
        let notice = OplockBreak {
            level: 1,
            file: FileId([9; 16]),
        };
        assert_eq!(OplockBreak::parse(&notice.emit()), Ok(notice));
        let mut lease = [0; 44];
        lease[0] = 44;
        assert!(OplockBreak::parse(&lease).is_err());
    }
}
