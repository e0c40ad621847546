//! A ROP buffer: its list of ROPs and the table of server objects ([MS-OXCROPS] §2.2.1).
//!
//! ```text
//!  RopSize u16 (with itself) │ ROPs … │ handles u32 …
//! ```
//! A ROP names objects by their index in the table.

use bytes::{BufMut, Bytes, BytesMut};

use super::RopError;

/// The handle of no object: an output's place in a request, and a failed output in a response.
pub const NO_HANDLE: u32 = 0xffff_ffff;
/// Length of the size in front of the ROPs.
pub const SIZE_FIELD: usize = 2;

/// A ROP buffer in its two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopBuffer {
    /// The ROPs behind one another.
    pub rops: Bytes,
    /// The table of handles.
    pub handles: Vec<u32>,
}

impl RopBuffer {
    /// Splits a buffer.
    ///
    /// # Errors
    /// [`RopError`] when the size contradicts the bytes.
    pub fn read(bytes: &Bytes) -> Result<Self, RopError> {
        let size = bytes.first_chunk().ok_or(RopError::Truncated)?;
        let size = usize::from(u16::from_le_bytes(*size));
        if size < SIZE_FIELD || size > bytes.len() || !(bytes.len() - size).is_multiple_of(4) {
            return Err(RopError::Size);
        }
        let handles = bytes[size..].chunks_exact(4);
        Ok(Self {
            rops: bytes.slice(SIZE_FIELD..size),
            handles: handles
                .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
                .collect(),
        })
    }

    /// Joins the parts.
    ///
    /// # Panics
    /// When the ROPs are longer than 65,533 bytes.
    #[must_use]
    pub fn write(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.length());
        let size = u16::try_from(self.rops.len() + SIZE_FIELD).expect("a ROP list has 16 bits");
        bytes.put_u16_le(size);
        bytes.put_slice(&self.rops);
        for handle in &self.handles {
            bytes.put_u32_le(*handle);
        }
        bytes.freeze()
    }

    /// Its length when it is written.
    #[must_use]
    pub fn length(&self) -> usize {
        SIZE_FIELD + self.rops.len() + 4 * self.handles.len()
    }

    /// The handle at an index of the table.
    #[must_use]
    pub fn handle(&self, index: u8) -> Option<u32> {
        let handle = *self.handles.get(usize::from(index))?;
        (handle != NO_HANDLE).then_some(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_reads_back_equal() {
        let buffer = RopBuffer {
            rops: Bytes::from_static(&[1, 0, 0]),
            handles: vec![7, NO_HANDLE],
        };
        let bytes = buffer.write();
        assert_eq!(&bytes[..], [5, 0, 1, 0, 0, 7, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(RopBuffer::read(&bytes).unwrap(), buffer);
        assert_eq!((buffer.handle(0), buffer.handle(1)), (Some(7), None));
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        for bad in [&[][..], &[2], &[1, 0], &[9, 0, 0], &[2, 0, 1]] {
            assert!(
                RopBuffer::read(&Bytes::copy_from_slice(bad)).is_err(),
                "{bad:?}"
            );
        }
    }
}
