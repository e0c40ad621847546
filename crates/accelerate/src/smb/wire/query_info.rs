//! QUERY_INFO of a file system, and of the names and rights of a file ([MS-SMB2] §2.2.37 and §2.2.38; classes in [MS-FSCC] §2.5).

use super::header::LENGTH;
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at, u64_at};

/// SMB2_0_INFO_FILE, SMB2_0_INFO_FILESYSTEM and SMB2_0_INFO_SECURITY.
const INFO_FILE: u8 = 1;
const INFO_FILE_SYSTEM: u8 = 2;
const INFO_SECURITY: u8 = 3;
/// FileInternalInformation, FileEaInformation, FileStreamInformation and FileNormalizedNameInformation.
const INTERNAL: u8 = 6;
const EA: u8 = 7;
const STREAM: u8 = 22;
const NORMALIZED_NAME: u8 = 48;
/// FileFsVolumeInformation and FileFsAttributeInformation.
const VOLUME: u8 = 1;
const ATTRIBUTE: u8 = 5;
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

/// The question of a QUERY_INFO without input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InformationQuestion {
    /// InfoType.
    pub(crate) kind: u8,
    /// FileInfoClass.
    pub(crate) class: u8,
    /// AdditionalInformation.
    pub(crate) additional: u32,
}

impl InformationQuestion {
    /// Reads the body of a query: the question, and the bytes that the answer may hold. `None` where it has
    /// input or flags.
    pub(crate) fn parse(body: &[u8]) -> Result<Option<(Self, u32)>, WireError> {
        expect_structure(body, 41)?;
        let question = Self {
            kind: u8_at(body, 2)?,
            class: u8_at(body, 3)?,
            additional: u32_at(body, 16)?,
        };
        let (input, flags) = (u32_at(body, 12)?, u32_at(body, 20)?);
        let length = u32_at(body, 4)?;
        body.get(24..REQUEST_FIXED).ok_or(WireError::Truncated)?;
        Ok(((input, flags) == (0, 0)).then_some((question, length)))
    }

    /// The body of a query about an open, whose answer may hold so many bytes.
    pub(crate) fn emit(&self, file: FileId, length: u32) -> [u8; REQUEST_FIXED] {
        let mut body = [0; REQUEST_FIXED];
        body[0] = 41;
        body[2] = self.kind;
        body[3] = self.class;
        body[4..8].copy_from_slice(&length.to_le_bytes());
        body[16..20].copy_from_slice(&self.additional.to_le_bytes());
        body[24..40].copy_from_slice(&file.0);
        body
    }

    /// Returns true if the answer has neither lengths nor times: the length of extended attributes, the
    /// file's number, its path, its rights, or properties of the file system ([MS-FSCC] §2.4 and §2.5).
    pub(crate) fn is_stable(&self) -> bool {
        match self.kind {
            INFO_FILE => matches!(self.class, EA | INTERNAL | NORMALIZED_NAME),
            INFO_FILE_SYSTEM => matches!(self.class, VOLUME | ATTRIBUTE),
            INFO_SECURITY => true,
            _ => false,
        }
    }

    /// Returns true if the answer has the lengths of a file's streams.
    pub(crate) fn is_of_streams(&self) -> bool {
        (self.kind, self.class) == (INFO_FILE, STREAM)
    }
}

/// FileFsFullSizeInformation ([MS-FSCC] §2.5.4).
pub(crate) const FULL_SIZE: u8 = 7;
/// The length of its answer.
pub(crate) const FULL_SIZE_LENGTH: u32 = 32;

/// Returns the bytes that FileFsFullSizeInformation has left for its caller: no more than the caller's quota, and
/// no more than the file system has.
pub(crate) fn room_left(information: &[u8]) -> Result<u64, WireError> {
    let units = u64_at(information, 8)?.min(u64_at(information, 16)?);
    let sectors = u64::from(u32_at(information, 24)?);
    let bytes = u64::from(u32_at(information, 28)?);
    Ok(units.saturating_mul(sectors).saturating_mul(bytes))
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
    fn question_round_trips_and_truncated_ones_fail() {
        let question = InformationQuestion {
            kind: INFO_SECURITY,
            class: 0,
            additional: 7,
        };
        let body = question.emit(FileId([7; 16]), 4_096);
        assert_eq!(
            InformationQuestion::parse(&body),
            Ok(Some((question, 4_096)))
        );
        for cut in 0..body.len() {
            assert!(InformationQuestion::parse(&body[..cut]).is_err());
        }
        for at in [12, 20] {
            let mut body = body;
            body[at] = 1;
            assert_eq!(InformationQuestion::parse(&body), Ok(None));
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
