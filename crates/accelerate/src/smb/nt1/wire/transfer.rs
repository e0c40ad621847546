//! READ_ANDX and WRITE_ANDX ([MS-CIFS] §2.2.4.42, §2.2.4.43; [MS-SMB] §2.2.4.2, §2.2.4.3).

use super::header::{END_OF_CHAIN, LENGTH, Smb1Header, command};
use super::{WORDS_AT, WireError, expect_unchained, expect_words, u16_at, u32_at};

/// The offset of the data in a READ's answer as servers place it: behind 12 words, their count, the
/// count of bytes and one of padding.
pub(crate) const READ_DATA_AT: usize = WORDS_AT + 24 + 2 + 1;
/// The longest READ and WRITE that are looked at: the field's 16 bits and one more of its upper half.
pub(crate) const LONGEST: u32 = 0x1_ffff;

/// The longest READ that is answered in full: servers give a whole answer the 17 bits that a frame's length has
/// where NetBIOS is spoken (RFC 1002 §4.3.1; measured on Samba 4.17).
pub(crate) const LONGEST_ANSWERED: u32 = LONGEST - READ_DATA_AT as u32;

/// A READ alone in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadAndxRequest {
    pub(crate) file: u16,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl ReadAndxRequest {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not one, cut short, the first of a chain, or asks for what files do not have.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        let words = expect_words(message, &[10, 12])?;
        expect_unchained(message)?;
        let high = match words {
            12 => u64::from(u32_at(message, WORDS_AT + 20)?),
            _ => 0,
        };
        // The upper half of the length, or a time to wait on a pipe.
        let more = u32_at(message, WORDS_AT + 14)?;
        let length = u32::from(u16_at(message, WORDS_AT + 10)?) | (more & 0xffff) << 16;
        if more > 1 || length > LONGEST || high >> 31 != 0 {
            return Err(WireError::Invalid("MaxCountHigh"));
        }
        Ok(Self {
            file: u16_at(message, WORDS_AT + 4)?,
            offset: u64::from(u32_at(message, WORDS_AT + 6)?) | high << 32,
            length,
        })
    }

    /// Builds a whole message with this request.
    pub(crate) fn emit(&self, header: &Smb1Header) -> Vec<u8> {
        let mut message = header.like(command::READ).emit().to_vec();
        message.push(12);
        message.extend(END_OF_CHAIN);
        message.extend(self.file.to_le_bytes());
        message.extend((self.offset as u32).to_le_bytes());
        message.extend((self.length as u16).to_le_bytes());
        message.extend((self.length as u16).to_le_bytes());
        message.extend((self.length >> 16).to_le_bytes());
        message.extend([0; 2]);
        message.extend(((self.offset >> 32) as u32).to_le_bytes());
        message.extend([0; 2]);
        message
    }
}

/// Returns true if a READ alone in its message sets a timeout for data, as READs of pipes do
/// ([MS-CIFS] §2.2.4.42.1, Timeout). The field shares its place with the upper half of the length.
pub(crate) fn waits(message: &[u8]) -> bool {
    expect_words(message, &[10, 12]).is_ok()
        && expect_unchained(message).is_ok()
        && u32_at(message, WORDS_AT + 14).is_ok_and(|more| more > 1)
}

/// Returns the offset and the length of an answer's data.
///
/// # Errors
/// When it is no answer of one READ, or its data lies outside.
pub(crate) fn read_data(message: &[u8]) -> Result<(usize, usize), WireError> {
    expect_words(message, &[12])?;
    expect_unchained(message)?;
    let low = usize::from(u16_at(message, WORDS_AT + 10)?);
    let high = usize::from(u16_at(message, WORDS_AT + 14)?);
    let length = low | high << 16;
    let at = usize::from(u16_at(message, WORDS_AT + 12)?);
    let is_inside = at >= WORDS_AT + 26 && at + length <= message.len();
    match is_inside || length == 0 {
        true => Ok((at.min(message.len()), length)),
        false => Err(WireError::Truncated),
    }
}

/// The bytes before the data of an answer of this length, as servers write them.
pub(crate) fn read_answer_front(request: &Smb1Header, length: u32) -> Vec<u8> {
    let mut message = request.answer().emit().to_vec();
    message.push(12);
    message.extend(END_OF_CHAIN);
    message.extend([0xff, 0xff]); // Available: "not a pipe"
    message.extend([0; 4]);
    message.extend((length as u16).to_le_bytes());
    message.extend((READ_DATA_AT as u16).to_le_bytes());
    message.extend((length >> 16).to_le_bytes());
    message.extend([0; 6]);
    message.extend((length as u16).wrapping_add(1).to_le_bytes());
    message.push(0);
    debug_assert_eq!(message.len(), READ_DATA_AT);
    message
}

/// A WRITE alone in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteAndxRequest {
    pub(crate) file: u16,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// The offset of the data in the message.
    pub(crate) data_at: usize,
    mode: u16,
}

impl WriteAndxRequest {
    /// Bytes from a message's beginning that [`Self::parse`] needs.
    pub(crate) const LOOK: usize = LENGTH + 1 + 28 + 2;

    /// Reads one; its data need not be there.
    ///
    /// # Errors
    /// When it is not one, cut short, or the first of a chain.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        let words = expect_words(message, &[12, 14])?;
        expect_unchained(message)?;
        let high = match words {
            14 => u64::from(u32_at(message, WORDS_AT + 24)?),
            _ => 0,
        };
        let length = u32::from(u16_at(message, WORDS_AT + 20)?)
            | u32::from(u16_at(message, WORDS_AT + 18)?) << 16;
        Ok(Self {
            file: u16_at(message, WORDS_AT + 4)?,
            offset: u64::from(u32_at(message, WORDS_AT + 6)?) | high << 32,
            length,
            data_at: usize::from(u16_at(message, WORDS_AT + 22)?),
            mode: u16_at(message, WORDS_AT + 14)?,
        })
    }

    /// Returns true if a server executes the request whenever it can: its data lies within the
    /// message of this length, and its offset is valid. It asks for no more durability than a cache
    /// gives ([MS-CIFS] §2.2.4.43.1, WriteMode).
    pub(crate) fn is_plain(&self, message_length: usize) -> bool {
        let first = LENGTH + 1 + 24 + 2;
        self.mode == 0
            && self.length > 0
            && self.length <= LONGEST
            && self.data_at >= first
            && self.data_at + self.length as usize <= message_length
            && self.end().is_some_and(|end| end <= i64::MAX as u64)
    }

    /// Returns its end.
    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.length))
    }
}

/// The whole answer to a WRITE of so many bytes.
pub(crate) fn write_answer(request: &Smb1Header, length: u32) -> Vec<u8> {
    let mut message = request.answer().emit().to_vec();
    message.push(6);
    message.extend(END_OF_CHAIN);
    message.extend((length as u16).to_le_bytes());
    message.extend([0xff, 0xff]); // Available: "not a pipe"
    message.extend((length >> 16).to_le_bytes());
    message.extend([0; 2]);
    message
}

/// Returns the number of bytes that an answer reports as written.
///
/// # Errors
/// When it is no answer of one WRITE.
pub(crate) fn written(message: &[u8]) -> Result<u32, WireError> {
    expect_words(message, &[6])?;
    expect_unchained(message)?;
    let low = u32::from(u16_at(message, WORDS_AT + 4)?);
    let high = u32::from(u16_at(message, WORDS_AT + 8)?);
    Ok(low | high << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{header, write};

    #[test]
    fn own_read_round_trips_and_truncated_one_fails() {
        for (offset, length) in [(0, 0), (5, 65_535), ((7 << 32) + 9, 0x1_f000)] {
            let request = ReadAndxRequest {
                file: 0x4002,
                offset,
                length,
            };
            let message = request.emit(&header(command::READ));
            assert_eq!(ReadAndxRequest::parse(&message), Ok(request));
            for cut in 0..message.len() {
                assert!(ReadAndxRequest::parse(&message[..cut]).is_err());
            }
        }
    }

    #[test]
    fn answers_of_ours_read_back() {
        for length in [0, 1, 65_535, 65_536, LONGEST] {
            let mut message = read_answer_front(&header(command::READ), length);
            message.resize(message.len() + length as usize, 7);
            assert_eq!(read_data(&message), Ok((READ_DATA_AT, length as usize)));
            message.pop();
            assert!(length == 0 || read_data(&message).is_err());
            let message = write_answer(&header(command::WRITE), length);
            assert_eq!(written(&message), Ok(length));
        }
    }

    #[test]
    fn write_with_outside_data_is_not_plain() {
        let message = write(3, 1 << 33, b"data").0;
        let request = WriteAndxRequest::parse(&message).unwrap();
        assert_eq!((request.offset, request.length), (1 << 33, 4));
        assert!(request.is_plain(message.len()));
        assert!(!request.is_plain(message.len() - 1));
        let wild = WriteAndxRequest {
            data_at: 10,
            ..request
        };
        assert!(!wild.is_plain(message.len()));
    }
}
