//! READ and WRITE ([MS-SMB2] §2.2.19 to §2.2.22).

use super::header::LENGTH;
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at, u64_at};

/// Bytes before the data of a READ answer, header included.
pub(crate) const READ_DATA_AT: usize = LENGTH + 16;

/// A request to read ([MS-SMB2] §2.2.19, READ Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub(crate) flags: u8,
    pub(crate) length: u32,
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    pub(crate) minimum: u32,
    pub(crate) channel: u32,
}

impl ReadRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 49)?;
        Ok(Self {
            flags: u8_at(body, 3)?,
            length: u32_at(body, 4)?,
            offset: u64_at(body, 8)?,
            file: FileId(array(body, 16)?),
            minimum: u32_at(body, 32)?,
            channel: u32_at(body, 36)?,
        })
    }

    /// The body: its fixed part, no channel information, and the one byte that must follow.
    pub(crate) fn emit(&self) -> [u8; 49] {
        let mut body = [0; 49];
        body[0] = 49;
        body[2] = READ_DATA_AT as u8;
        body[3] = self.flags;
        body[4..8].copy_from_slice(&self.length.to_le_bytes());
        body[8..16].copy_from_slice(&self.offset.to_le_bytes());
        body[16..32].copy_from_slice(&self.file.0);
        body[32..36].copy_from_slice(&self.minimum.to_le_bytes());
        body[36..40].copy_from_slice(&self.channel.to_le_bytes());
        body
    }

    /// Returns true if the request uses no special option: no unbuffered or compressed read, no
    /// RDMA, an offset that does not overflow, and some bytes.
    pub(crate) fn is_plain(&self) -> bool {
        self.flags == 0 && self.channel == 0 && self.length > 0 && self.offset < 1 << 62
    }
}

/// The fixed part of a READ answer with `length` bytes of data behind it ([MS-SMB2] §2.2.20).
pub(crate) fn read_answer_body(length: u32) -> [u8; 16] {
    let mut body = [0; 16];
    body[0] = 17;
    body[2] = READ_DATA_AT as u8;
    body[4..8].copy_from_slice(&length.to_le_bytes());
    body
}

/// A request to write ([MS-SMB2] §2.2.21, WRITE Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteRequest {
    pub(crate) data_at: u16,
    pub(crate) length: u32,
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    pub(crate) channel: u32,
    pub(crate) flags: u32,
}

impl WriteRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 49)?;
        Ok(Self {
            data_at: u16_at(body, 2)?,
            length: u32_at(body, 4)?,
            offset: u64_at(body, 8)?,
            file: FileId(array(body, 16)?),
            channel: u32_at(body, 32)?,
            flags: u32_at(body, 44)?,
        })
    }

    /// Returns true if the request uses no special option: no write-through, no RDMA, an offset
    /// that does not overflow, and some bytes within a message of `length` bytes.
    pub(crate) fn is_plain(&self, length: usize) -> bool {
        let end = usize::from(self.data_at) + self.length as usize;
        self.flags == 0
            && self.channel == 0
            && self.length > 0
            && self.offset < 1 << 62
            && usize::from(self.data_at) >= LENGTH + 48
            && end <= length
    }
}

/// The answer to a WRITE of `count` bytes ([MS-SMB2] §2.2.22, WRITE Response).
pub(crate) fn write_answer_body(count: u32) -> [u8; 16] {
    let mut body = [0; 16];
    body[0] = 17;
    body[4..8].copy_from_slice(&count.to_le_bytes());
    body
}

/// Returns the number of bytes that a server reports as written.
pub(crate) fn written(body: &[u8]) -> Result<u32, WireError> {
    expect_structure(body, 17)?;
    u32_at(body, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_reads_back_as_written() {
        let request = ReadRequest {
            flags: 0,
            length: 65_536,
            offset: 1 << 40,
            file: FileId([7; 16]),
            minimum: 1,
            channel: 0,
        };
        assert_eq!(ReadRequest::parse(&request.emit()), Ok(request));
        assert!(request.is_plain());
        for cut in 0..40 {
            assert!(ReadRequest::parse(&request.emit()[..cut]).is_err());
        }
    }

    #[test]
    fn answers_say_their_length() {
        assert_eq!(written(&write_answer_body(1_234)), Ok(1_234));
        assert_eq!(u32_at(&read_answer_body(99), 4), Ok(99));
        assert_eq!(written(&[17, 0, 0]), Err(WireError::Truncated));
    }
}
