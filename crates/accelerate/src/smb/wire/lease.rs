//! Leases: requested in a CREATE, granted, and broken ([MS-SMB2] §2.2.13.2.8,
//! SMB2_CREATE_REQUEST_LEASE; §2.2.13.2.10, SMB2_CREATE_REQUEST_LEASE_V2; §2.2.14.2.10 and
//! §2.2.14.2.11, the same in answers; §2.2.23.2, Lease Break Notification). Acknowledgements pass,
//! and are not read.

use super::{WireError, array, expect_structure, u32_at};

/// The name of the create context.
pub(crate) const CONTEXT: &[u8] = b"RqLs";

/// The lengths of its first and second version, which is all that tells them apart.
const LENGTHS: [usize; 2] = [32, 52];

/// The caching that a lease allows its holder ([MS-SMB2] §2.2.13.2.8, LeaseState).
pub(crate) mod state {
    pub(crate) const READ: u32 = 0x1;
    pub(crate) const HANDLE: u32 = 0x2;
    pub(crate) const WRITE: u32 = 0x4;
}

/// READ, HANDLE and WRITE caching.
pub(crate) const WHOLE: u32 = state::READ | state::HANDLE | state::WRITE;

/// SMB2_LEASE_FLAG_BREAK_IN_PROGRESS ([MS-SMB2] §2.2.14.2.10, LeaseFlags).
const IS_BREAKING: u32 = 0x2;

/// The key that a client names a lease by. All its opens of the file under the key share the lease,
/// and do not break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseKey(pub(crate) [u8; 16]);

/// A lease that is requested, or granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseContext {
    pub(crate) key: LeaseKey,
    state: u32,
    flags: u32,
}

impl LeaseContext {
    /// Parses the content of the create context.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, WireError> {
        if !LENGTHS.contains(&data.len()) {
            return Err(WireError::Invalid("DataLength"));
        }
        Ok(Self {
            key: LeaseKey(array(data, 0)?),
            state: u32_at(data, 16)?,
            flags: u32_at(data, 20)?,
        })
    }

    /// Returns true if no other client reads or writes the file before the lease is given back.
    pub(crate) fn is_exclusive(&self) -> bool {
        is_exclusive(self.state) && self.flags & IS_BREAKING == 0
    }

    /// Returns true if it allows no caching.
    pub(crate) fn is_empty(&self) -> bool {
        self.state == 0
    }

    /// Returns true if its holder is also asked before an open that its own excludes is refused.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_exclusive() && self.state & state::HANDLE != 0
    }
}

/// A server takes a lease back, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseBreak {
    pub(crate) key: LeaseKey,
}

impl LeaseBreak {
    /// Reads a notification.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 44)?;
        Ok(Self {
            key: LeaseKey(array(body, 8)?),
        })
    }
}

fn is_exclusive(state: u32) -> bool {
    const ALL: u32 = state::READ | state::WRITE;
    state & ALL == ALL
}

/// Returns true if a server waits for the acknowledgement of a break ([MS-SMB2] §2.2.23.2,
/// SMB2_NOTIFY_BREAK_LEASE_FLAG_ACK_REQUIRED).
pub(crate) fn awaits_acknowledgement(body: &[u8]) -> bool {
    u32_at(body, 4).is_ok_and(|flags| flags & 0x1 != 0)
}

/// The acknowledgement of a break that gives back all caching ([MS-SMB2] §2.2.24.2, Lease Break Acknowledgment).
pub(crate) fn acknowledgement(key: LeaseKey) -> [u8; 36] {
    let mut body = [0; 36];
    body[0] = 36;
    body[8..24].copy_from_slice(&key.0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    /// READ, WRITE and HANDLE caching, in the second version.
    fn given() -> Vec<u8> {
        let mut data = vec![7; 16];
        data.extend([7, 0, 0, 0]);
        data.extend([0; 12]);
        data.extend([0; 16]);
        data.extend([1, 0, 0, 0]);
        data
    }

    #[test]
    fn read_write_lease_is_exclusive_until_broken() {
        for (state, is_exclusive) in [(0, false), (1, false), (3, false), (5, true), (7, true)] {
            let mut data = given();
            data[16] = state;
            let lease = LeaseContext::parse(&data).unwrap();
            assert_eq!(lease.key, LeaseKey([7; 16]));
            assert_eq!(lease.is_exclusive(), is_exclusive, "{state}");
            assert_eq!(lease.is_whole(), state == 7, "{state}");
            data[20] = 2;
            assert!(!LeaseContext::parse(&data).unwrap().is_exclusive());
        }
    }

    #[test]
    fn both_versions_are_read_and_nothing_else() {
        let data = given();
        for length in 0..60 {
            let mut data = data.clone();
            data.resize(length, 0);
            assert_eq!(
                LeaseContext::parse(&data).is_ok(),
                LENGTHS.contains(&length)
            );
        }
    }

    #[test]
    fn a_break_says_which_lease() {
        let mut body = [0; 44];
        body[0] = 44;
        body[8..24].fill(9);
        let notice = LeaseBreak::parse(&body).unwrap();
        assert_eq!(notice.key, LeaseKey([9; 16]));
        body[0] = 24;
        assert!(LeaseBreak::parse(&body).is_err());
        body[0] = 44;
        for length in 0..24 {
            assert!(LeaseBreak::parse(&body[..length]).is_err());
        }
    }
}
