//! An open's two positions: the one that SEEK returns and changes ([MS-CIFS] §2.2.4.19), and
//! FilePositionInformation ([MS-FSCC] §2.4.40), which pass-through levels of TRANSACTION2 query and
//! set ([MS-SMB] §2.2.2.3.5, Pass-through Information Level Codes).
//!
//! A READ changes both, a WRITE and a SEEK only the first (Samba 4.17, and smbtorture's
//! `raw.seek`).

use super::header::{Smb1Header, command};
use super::{WORDS_AT, WireError, expect_words, u16_at, u32_at, u64_at};

/// FilePositionInformation among the levels.
const LEVEL: u16 = 1_000 + 14;
/// FileAllInformation, which holds it too.
const LEVEL_OF_ALL: u16 = 1_000 + 18;
/// TRANS2_SET_FILE_INFORMATION ([MS-CIFS] §2.2.6.9).
const SET_FILE: u16 = 0x08;

/// Returns true if an answer of this level contains the position.
pub(crate) fn is_reported_by(level: u16) -> bool {
    matches!(level, LEVEL | LEVEL_OF_ALL)
}

/// The origin of a SEEK ([MS-CIFS] §2.2.4.19.1, Mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeekOrigin {
    Start,
    Current,
    End,
}

/// A SEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeekRequest {
    pub(crate) file: u16,
    pub(crate) from: SeekOrigin,
    pub(crate) by: i32,
}

impl SeekRequest {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not one, or cut short.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[4])?;
        let from = match u16_at(message, WORDS_AT + 2)? {
            0 => SeekOrigin::Start,
            1 => SeekOrigin::Current,
            2 => SeekOrigin::End,
            _ => return Err(WireError::Invalid("Mode")),
        };
        Ok(Self {
            file: u16_at(message, WORDS_AT)?,
            from,
            by: u32_at(message, WORDS_AT + 4)?.cast_signed(),
        })
    }

    /// Builds a whole message with this request.
    pub(crate) fn emit(&self, header: &Smb1Header) -> Vec<u8> {
        let mut message = header.like(command::SEEK).emit().to_vec();
        message.push(4);
        message.extend(self.file.to_le_bytes());
        message.extend((self.from as u16).to_le_bytes());
        message.extend(self.by.to_le_bytes());
        message.extend([0; 2]);
        message
    }

    /// Returns the position after it, from the position before and the 32 bits that the answer
    /// contains.
    pub(crate) fn leads_to(&self, before: u64, told: u32) -> u64 {
        let is_told = |to: &u64| *to as u32 == told;
        let relative = before.checked_add_signed(self.by.into());
        match self.from {
            SeekOrigin::Start | SeekOrigin::End => u64::from(told),
            SeekOrigin::Current => relative.filter(is_told).unwrap_or(u64::from(told)),
        }
    }
}

/// Returns the position in the answer to a SEEK.
///
/// # Errors
/// When it is none.
pub(crate) fn sought(message: &[u8]) -> Result<u32, WireError> {
    expect_words(message, &[2])?;
    u32_at(message, WORDS_AT)
}

/// The position that a TRANSACTION2 sets; none where it sets something else.
pub(crate) fn position_set(message: &[u8]) -> Option<u64> {
    let parameters = usize::from(u16_at(message, WORDS_AT + 20).ok()?);
    let is_position = u16_at(message, WORDS_AT + 28) == Ok(SET_FILE)
        && u16_at(message, parameters + 2) == Ok(LEVEL)
        && u16_at(message, WORDS_AT + 22).is_ok_and(|count| count >= 8);
    let at = usize::from(u16_at(message, WORDS_AT + 24).ok()?);
    is_position.then(|| u64_at(message, at).ok()).flatten()
}

/// A whole message that sets it.
pub(crate) fn set_position(header: &Smb1Header, file: u16, position: u64) -> Vec<u8> {
    const PARAMETERS: u16 = 6;
    const DATA: u16 = 8;
    // Both stand at multiples of four, the parameters behind 15 words and the count of bytes.
    const PARAMETERS_AT: u16 = (WORDS_AT as u16 + 30 + 2).next_multiple_of(4);
    const DATA_AT: u16 = (PARAMETERS_AT + PARAMETERS).next_multiple_of(4);
    let mut message = header.like(command::TRANSACTION_2).emit().to_vec();
    message.push(15);
    // In all, and the most of the answer.
    for count in [PARAMETERS, DATA, 2, 0] {
        message.extend(count.to_le_bytes());
    }
    message.extend([0; 1 + 1 + 2 + 4 + 2]);
    for value in [PARAMETERS, PARAMETERS_AT, DATA, DATA_AT] {
        message.extend(value.to_le_bytes());
    }
    message.extend([1, 0]);
    message.extend(SET_FILE.to_le_bytes());
    let bytes = DATA_AT + DATA - (WORDS_AT as u16 + 30 + 2);
    message.extend(bytes.to_le_bytes());
    message.resize(usize::from(PARAMETERS_AT), 0);
    message.extend(file.to_le_bytes());
    message.extend(LEVEL.to_le_bytes());
    message.resize(usize::from(DATA_AT), 0);
    message.extend(position.to_le_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{header, set_size};
    use crate::smb::nt1::wire::target::{Smb1RequestEffect, touch};

    #[test]
    fn seek_round_trips_and_truncated_one_fails() {
        for from in [SeekOrigin::Start, SeekOrigin::Current, SeekOrigin::End] {
            let seek = SeekRequest {
                file: 0x4002,
                from,
                by: -5,
            };
            let message = seek.emit(&header(command::SEEK));
            assert_eq!(SeekRequest::parse(&message), Ok(seek));
            for cut in 0..message.len() {
                assert!(SeekRequest::parse(&message[..cut]).is_err());
            }
        }
    }

    #[test]
    fn relative_seek_can_exceed_its_answer() {
        let seek = |from, by| SeekRequest { file: 1, from, by };
        let far = 5 << 32;
        assert_eq!(seek(SeekOrigin::Current, 7).leads_to(far, 7), far + 7);
        assert_eq!(seek(SeekOrigin::Current, 7).leads_to(far, 9), 9);
        assert_eq!(seek(SeekOrigin::Start, 7).leads_to(far, 7), 7);
    }

    #[test]
    fn position_round_trips_and_others_fail() {
        let message = set_position(&header(0), 9, 0x1_0000_0003);
        let header = Smb1Header::parse(&message).unwrap();
        assert_eq!(position_set(&message), Some(0x1_0000_0003));
        assert_eq!(touch(&header, &message), Smb1RequestEffect::Changes(9));
        for cut in 0..message.len() {
            assert_eq!(position_set(&message[..cut]), None);
        }
        assert_eq!(position_set(&set_size(9, 100)), None);
    }
}
