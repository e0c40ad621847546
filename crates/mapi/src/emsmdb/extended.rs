//! The header of Outlook 2003's buffers and their chains ([MS-OXCRPC] §2.2.2.1, RPC_HEADER_EXT).
//!
//! ```text
//!  Version u16 = 0 │ Flags u16 │ Size u16 (as sent) │ SizeActual u16 (decompressed) │ data … the next header
//! ```
//! A buffer is compressed first, then obfuscated. The last one of a chain has [`ExtendedFlags::LAST`].

use bytes::{Bytes, BytesMut};

use super::{EmsmdbError, lz77, obfuscate};

/// Buffers in one chain: as many as servers pack into one answer of 256 KiB at most when they
/// compress well.
pub const MAX_BUFFERS: usize = 96;

/// Length of the header.
pub(super) const HEADER: usize = 8;

/// The flags of an extended buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedFlags(pub u16);

impl ExtendedFlags {
    /// The data is compressed.
    pub const COMPRESSED: u16 = 1;
    /// The data is obfuscated.
    pub const XOR_MAGIC: u16 = 2;
    /// No other buffer follows.
    pub const LAST: u16 = 4;

    /// True if all bits of `flag` are set.
    #[must_use]
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag == flag
    }
}

/// A buffer without its compression and obfuscation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainBuffer {
    /// The encoding that it had and gets again. [`ExtendedFlags::LAST`] follows from its place.
    pub flags: ExtendedFlags,
    /// The contents: a ROP buffer.
    pub bytes: Bytes,
}

/// Reads a chain of extended buffers, which fills `chain`.
///
/// # Errors
/// [`EmsmdbError`] for headers that contradict the bytes, a chain without an end or longer than
/// [`MAX_BUFFERS`], and data that does not decompress to what its header says.
pub fn read_chain(chain: &Bytes) -> Result<Vec<PlainBuffer>, EmsmdbError> {
    let mut buffers = Vec::new();
    let mut at = 0;
    loop {
        let header: &[u8; HEADER] = chain
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .ok_or(EmsmdbError::Truncated)?;
        let field = |index: usize| u16::from_le_bytes([header[index], header[index + 1]]);
        let (version, flags) = (field(0), ExtendedFlags(field(2)));
        let (size, actual) = (usize::from(field(4)), usize::from(field(6)));
        if version != 0 || flags.0 > 7 {
            return Err(EmsmdbError::Contradiction("Flags"));
        }
        at += HEADER;
        if chain.len() - at < size {
            return Err(EmsmdbError::Truncated);
        }
        let mut bytes = chain.slice(at..at + size);
        at += size;
        if flags.has(ExtendedFlags::XOR_MAGIC) {
            let mut plain = BytesMut::from(&bytes[..]);
            obfuscate(&mut plain);
            bytes = plain.freeze();
        }
        if flags.has(ExtendedFlags::COMPRESSED) {
            let plain = lz77::decompress(&bytes, actual).map_err(EmsmdbError::Compression)?;
            bytes = plain.into();
        } else if size != actual {
            return Err(EmsmdbError::Contradiction("SizeActual"));
        }
        buffers.push(PlainBuffer { flags, bytes });
        if flags.has(ExtendedFlags::LAST) {
            break;
        }
        if buffers.len() == MAX_BUFFERS {
            return Err(EmsmdbError::Contradiction("number of buffers"));
        }
    }
    match chain.len() - at {
        0 => Ok(buffers),
        more => Err(EmsmdbError::Trailing(more)),
    }
}

/// Writes a chain. A buffer that does not become shorter is sent without compression.
///
/// # Panics
/// When a buffer is longer than 65,535 bytes.
#[must_use]
pub fn write_chain(buffers: &[PlainBuffer]) -> Bytes {
    let total: usize = buffers.iter().map(|one| one.bytes.len() + HEADER).sum();
    let mut chain = BytesMut::with_capacity(total);
    for (index, buffer) in buffers.iter().enumerate() {
        let actual = u16::try_from(buffer.bytes.len()).expect("a ROP buffer has a 16-bit size");
        let compressed = buffer
            .flags
            .has(ExtendedFlags::COMPRESSED)
            .then(|| lz77::compress(&buffer.bytes))
            .filter(|compressed| compressed.len() < buffer.bytes.len());
        let mut flags = buffer.flags.0 & ExtendedFlags::XOR_MAGIC;
        if compressed.is_some() {
            flags |= ExtendedFlags::COMPRESSED;
        }
        if index + 1 == buffers.len() {
            flags |= ExtendedFlags::LAST;
        }
        let data: &[u8] = compressed.as_deref().unwrap_or(&buffer.bytes);
        for field in [0, flags, data.len() as u16, actual] {
            chain.extend_from_slice(&field.to_le_bytes());
        }
        let start = chain.len();
        chain.extend_from_slice(data);
        if buffer.flags.has(ExtendedFlags::XOR_MAGIC) {
            obfuscate(&mut chain[start..]);
        }
    }
    chain.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(flags: u16, bytes: Vec<u8>) -> PlainBuffer {
        PlainBuffer {
            flags: ExtendedFlags(flags),
            bytes: bytes.into(),
        }
    }

    #[test]
    fn chain_reads_back_in_every_encoding() {
        let text = b"the same words, the same words, the same words".to_vec();
        let buffers = vec![
            buffer(0, text.clone()),
            buffer(2, text.clone()),
            buffer(3, text.clone()),
            buffer(5, text),
        ];
        let chain = write_chain(&buffers);
        assert_eq!(read_chain(&chain).unwrap(), buffers);
        assert_eq!(write_chain(&read_chain(&chain).unwrap()), chain);
    }

    #[test]
    fn chains_that_lie_are_refused() {
        let good = write_chain(&[buffer(4, vec![1; 40])]);
        for (at, value) in [(0, 1), (2, 0), (2, 12), (4, 41), (4, 39), (6, 41)] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert!(read_chain(&bad.into()).is_err(), "byte {at} = {value}");
        }
        assert!(read_chain(&good.slice(..good.len() - 1)).is_err());
    }

    #[test]
    fn endless_chain_is_refused() {
        let chain = write_chain(&vec![buffer(0, vec![0; 4]); MAX_BUFFERS + 1]);
        assert_eq!(
            read_chain(&chain),
            Err(EmsmdbError::Contradiction("number of buffers"))
        );
    }
}
