//! QUERY_DIRECTORY ([MS-SMB2] §2.2.33 and §2.2.34).

use super::header::LENGTH;
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at};

/// The offset of the flags in a request's body.
pub(crate) const FLAGS_AT: usize = 3;
/// The request's fixed part, and the answer's.
const REQUEST_FIXED: usize = 32;
const ANSWER_FIXED: usize = 8;

/// Flags ([MS-SMB2] §2.2.33).
pub(crate) mod flag {
    /// SMB2_RESTART_SCANS.
    pub(crate) const RESTART: u8 = 0x01;
    /// SMB2_REOPEN.
    pub(crate) const REOPEN: u8 = 0x10;
}

/// A request for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryDirectoryRequest {
    /// FileInformationClass ([MS-FSCC] §2.4).
    pub(crate) class: u8,
    pub(crate) flags: u8,
    pub(crate) file: FileId,
    /// The requested names, in UTF-16 as received.
    pub(crate) pattern: Vec<u8>,
    /// Bytes that the answer may hold.
    pub(crate) length: u32,
}

impl QueryDirectoryRequest {
    /// Reads a body, or its beginning as far as the pattern reaches.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 33)?;
        let (at, length) = (
            usize::from(u16_at(body, 24)?),
            usize::from(u16_at(body, 26)?),
        );
        let pattern = match length {
            0 => Vec::new(),
            _ => body
                .get(at.checked_sub(LENGTH).ok_or(WireError::Truncated)?..)
                .and_then(|rest| rest.get(..length))
                .ok_or(WireError::Truncated)?
                .to_vec(),
        };
        Ok(Self {
            class: u8_at(body, 2)?,
            flags: u8_at(body, FLAGS_AT)?,
            file: FileId(array(body, 8)?),
            pattern,
            length: u32_at(body, 28)?,
        })
    }

    /// The body.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut body = vec![0; REQUEST_FIXED];
        body[0] = 33;
        body[2] = self.class;
        body[FLAGS_AT] = self.flags;
        body[8..24].copy_from_slice(&self.file.0);
        body[24..26].copy_from_slice(&((LENGTH + REQUEST_FIXED) as u16).to_le_bytes());
        body[26..28].copy_from_slice(&(self.pattern.len() as u16).to_le_bytes());
        body[28..32].copy_from_slice(&self.length.to_le_bytes());
        body.extend(&self.pattern);
        body
    }
}

/// The entries that a whole answer's body holds.
pub(crate) fn entries(body: &[u8]) -> Result<&[u8], WireError> {
    expect_structure(body, 9)?;
    let at = usize::from(u16_at(body, 2)?);
    body.get(at.checked_sub(LENGTH).ok_or(WireError::Truncated)?..)
        .and_then(|rest| rest.get(..u32_at(body, 4).ok()? as usize))
        .ok_or(WireError::Truncated)
}

/// The fixed part of an answer with `length` bytes of entries behind it.
pub(crate) fn answer_body(length: u32) -> [u8; ANSWER_FIXED] {
    let mut body = [0; ANSWER_FIXED];
    body[0] = 9;
    body[2] = (LENGTH + ANSWER_FIXED) as u8;
    body[4..8].copy_from_slice(&length.to_le_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_round_trips_and_truncated_ones_fail() {
        let request = QueryDirectoryRequest {
            class: 37,
            flags: flag::RESTART,
            file: FileId([7; 16]),
            pattern: b"*\0".to_vec(),
            length: 65_536,
        };
        let body = request.emit();
        assert_eq!(QueryDirectoryRequest::parse(&body), Ok(request));
        for cut in 0..body.len() {
            assert!(QueryDirectoryRequest::parse(&body[..cut]).is_err());
        }
    }

    #[test]
    fn entries_lie_within_the_answer() {
        let mut body = answer_body(3).to_vec();
        assert_eq!(entries(&body), Err(WireError::Truncated));
        body.extend(b"abc");
        assert_eq!(entries(&body), Ok(&b"abc"[..]));
        body[2] = 3;
        assert_eq!(entries(&body), Err(WireError::Truncated));
    }
}
