//! QUERY_INFO of a file system ([MS-SMB2] §2.2.37 and §2.2.38; classes in [MS-FSCC] §2.5).

use super::header::LENGTH;
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at};

/// SMB2_0_INFO_FILESYSTEM.
const INFO_FILE_SYSTEM: u8 = 2;
/// The request's fixed part, and the answer's.
const REQUEST_FIXED: usize = 40;
const ANSWER_FIXED: usize = 8;

/// A question about the file system that an open lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSystemQuestion {
    /// FileInfoClass.
    pub(crate) class: u8,
    /// Bytes that the answer may hold.
    pub(crate) length: u32,
    pub(crate) file: FileId,
}

impl FileSystemQuestion {
    /// Reads the body of such a query; `None` where it queries something else, or contains more.
    pub(crate) fn parse(body: &[u8]) -> Result<Option<Self>, WireError> {
        expect_structure(body, 41)?;
        let (kind, class, length) = (u8_at(body, 2)?, u8_at(body, 3)?, u32_at(body, 4)?);
        let input = u32_at(body, 12)?;
        let (additional, flags) = (u32_at(body, 16)?, u32_at(body, 20)?);
        let file = FileId(array(body, 24)?);
        let is_plain = kind == INFO_FILE_SYSTEM && (input, additional, flags) == (0, 0, 0);
        Ok(is_plain.then_some(Self {
            class,
            length,
            file,
        }))
    }

    /// The body.
    pub(crate) fn emit(&self) -> [u8; REQUEST_FIXED] {
        let mut body = [0; REQUEST_FIXED];
        body[0] = 41;
        body[2] = INFO_FILE_SYSTEM;
        body[3] = self.class;
        body[4..8].copy_from_slice(&self.length.to_le_bytes());
        body[24..40].copy_from_slice(&self.file.0);
        body
    }
}

/// Returns the information in an answer's body.
pub(crate) fn information(body: &[u8]) -> Result<&[u8], WireError> {
    expect_structure(body, 9)?;
    let at = usize::from(u16_at(body, 2)?);
    body.get(at.checked_sub(LENGTH).ok_or(WireError::Truncated)?..)
        .and_then(|rest| rest.get(..u32_at(body, 4).ok()? as usize))
        .ok_or(WireError::Truncated)
}

/// The body of an answer that holds this.
pub(crate) fn answer_body(information: &[u8]) -> Vec<u8> {
    let mut body = vec![0; ANSWER_FIXED];
    body[0] = 9;
    body[2] = (LENGTH + ANSWER_FIXED) as u8;
    body[4..8].copy_from_slice(&(information.len() as u32).to_le_bytes());
    body.extend(information);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_round_trips_and_truncated_ones_fail() {
        let question = FileSystemQuestion {
            class: 3,
            length: 65_535,
            file: FileId([7; 16]),
        };
        let body = question.emit();
        assert_eq!(FileSystemQuestion::parse(&body), Ok(Some(question)));
        for cut in 0..body.len() {
            assert!(FileSystemQuestion::parse(&body[..cut]).is_err());
        }
    }

    #[test]
    fn file_and_longer_queries_are_ignored() {
        let question = FileSystemQuestion {
            class: 3,
            length: 24,
            file: FileId([7; 16]),
        };
        for at in [2, 12, 16, 20] {
            let mut body = question.emit();
            body[at] ^= 1;
            assert_eq!(FileSystemQuestion::parse(&body), Ok(None), "{at}");
        }
    }

    #[test]
    fn information_lies_within_the_answer() {
        let mut body = answer_body(b"abc");
        assert_eq!(information(&body), Ok(&b"abc"[..]));
        body[2] = 3;
        assert_eq!(information(&body), Err(WireError::Truncated));
        assert_eq!(
            information(&answer_body(b"abc")[..10]),
            Err(WireError::Truncated)
        );
    }
}
