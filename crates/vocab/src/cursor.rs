//! Cursors over bytes: the one way wire and disk formats are read and written.
//!
//! Integers are big-endian; variable-length ones are those of RFC 9000 §16 (Variable-Length
//! Integer Encoding): the two top bits of the first byte say whether 1, 2, 4 or 8 bytes follow.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

/// The bytes end before the value does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the message ends in the middle of a value")]
pub struct TruncatedInput;

/// Reads values from the front of a byte slice.
#[derive(Clone, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// A cursor at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet read.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns `true` if all bytes have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`TruncatedInput`] when fewer are left; nothing is consumed then.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], TruncatedInput> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(TruncatedInput)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`TruncatedInput`] when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], TruncatedInput> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(TruncatedInput)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`TruncatedInput`] at the end.
    pub fn u8(&mut self) -> Result<u8, TruncatedInput> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes, big-endian.
    ///
    /// # Errors
    /// [`TruncatedInput`] when fewer are left.
    pub fn u16(&mut self) -> Result<u16, TruncatedInput> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes, big-endian.
    ///
    /// # Errors
    /// [`TruncatedInput`] when fewer are left.
    pub fn u32(&mut self) -> Result<u32, TruncatedInput> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes, big-endian.
    ///
    /// # Errors
    /// [`TruncatedInput`] when fewer are left.
    pub fn u64(&mut self) -> Result<u64, TruncatedInput> {
        self.array().map(u64::from_be_bytes)
    }

    /// A variable-length integer (RFC 9000 §16), below 2^62.
    ///
    /// # Errors
    /// [`TruncatedInput`] when its bytes are not all there; nothing is consumed then.
    pub fn varint(&mut self) -> Result<u64, TruncatedInput> {
        let first = *self.rest.first().ok_or(TruncatedInput)?;
        let length = 1 << (first >> 6);
        let bytes = self.bytes(length)?;
        let value = bytes
            .iter()
            .fold(0, |value: u64, byte| (value << 8) | u64::from(*byte));
        Ok(value & (u64::MAX >> (64 - 8 * length + 2)))
    }

    /// Reads a byte string behind its length as a variable-length integer.
    ///
    /// # Errors
    /// [`TruncatedInput`] when it is longer than the rest.
    pub fn prefixed(&mut self) -> Result<&'a [u8], TruncatedInput> {
        let length = self.varint()?;
        self.bytes(usize::try_from(length).map_err(|_| TruncatedInput)?)
    }
}

/// Appends values to a growing buffer.
#[derive(Clone, Debug, Default)]
pub struct ByteWriter {
    buffer: BytesMut,
}

impl ByteWriter {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            buffer: BytesMut::with_capacity(bytes),
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns `true` if nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// Clears the written bytes and keeps the capacity.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    /// Appends the bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.put_slice(bytes);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.buffer.put_u8(value);
        self
    }

    /// Appends two bytes, big-endian.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.buffer.put_u16(value);
        self
    }

    /// Appends four bytes, big-endian.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.buffer.put_u32(value);
        self
    }

    /// Appends eight bytes, big-endian.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.buffer.put_u64(value);
        self
    }

    /// Appends a variable-length integer in its shortest form (RFC 9000 §16).
    ///
    /// # Panics
    /// When `value` is 2^62 or more, which no field of ours can hold.
    pub fn varint(&mut self, value: u64) -> &mut Self {
        match varint_length(value) {
            1 => self.buffer.put_u8(value as u8),
            2 => self.buffer.put_u16(value as u16 | 0x4000),
            4 => self.buffer.put_u32(value as u32 | 0x8000_0000),
            _ => self.buffer.put_u64(value | 0xc000_0000_0000_0000),
        }
        self
    }

    /// Appends a byte string with its length before it.
    pub fn prefixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.varint(bytes.len() as u64).bytes(bytes)
    }

    /// The finished bytes.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }
}

/// The number of bytes that [`ByteWriter::varint`] uses for `value`.
///
/// # Panics
/// When `value` is 2^62 or more.
#[must_use]
pub fn varint_length(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => {
            assert!(value < 1 << 62, "variable-length integers hold 62 bits");
            8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_match_rfc_9000_appendix_a_1() {
        let samples: [(&[u8], u64); 4] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, value) in samples {
            assert_eq!(ByteReader::new(bytes).varint(), Ok(value));
            let mut writer = ByteWriter::new();
            writer.varint(value);
            assert_eq!(&writer.finish()[..], bytes);
        }
    }

    #[test]
    fn a_cut_value_is_truncated_and_consumes_nothing() {
        let mut reader = ByteReader::new(&[0x7b]);
        assert_eq!(reader.varint(), Err(TruncatedInput));
        assert_eq!(reader.remaining(), 1);
        assert_eq!(ByteReader::new(&[5, 1, 2]).prefixed(), Err(TruncatedInput));
        assert_eq!(ByteReader::new(&[]).u8(), Err(TruncatedInput));
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = ByteWriter::new();
        writer
            .u8(1)
            .u16(2)
            .u32(3)
            .u64(4)
            .varint(1 << 40)
            .prefixed(b"name");
        let bytes = writer.finish();
        let mut reader = ByteReader::new(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.varint(), Ok(1 << 40));
        assert_eq!(reader.prefixed(), Ok(&b"name"[..]));
        assert!(reader.is_empty());
    }
}
