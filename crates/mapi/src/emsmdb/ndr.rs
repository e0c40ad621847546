//! Integers and arrays of a stub in NDR, little-endian (C706 chapter 14, Transfer Syntax NDR).
//!
//! A value of n bytes is aligned to n bytes from the start of the stub. Padding is read without a
//! look at it, and written as zeros.

use bytes::Bytes;

use super::{ContextHandle, EmsmdbError};

/// Reads values from a stub.
pub(super) struct NdrReader<'a> {
    stub: &'a Bytes,
    at: usize,
}

impl<'a> NdrReader<'a> {
    pub(super) fn new(stub: &'a Bytes) -> Self {
        Self { stub, at: 0 }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EmsmdbError> {
        let rest = self.stub.get(self.at..).ok_or(EmsmdbError::Truncated)?;
        let value = rest.first_chunk().ok_or(EmsmdbError::Truncated)?;
        self.at += N;
        Ok(*value)
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    pub(super) fn context(&mut self) -> Result<ContextHandle, EmsmdbError> {
        self.align(4);
        self.array().map(ContextHandle)
    }

    pub(super) fn u16(&mut self) -> Result<u16, EmsmdbError> {
        self.align(2);
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, EmsmdbError> {
        self.align(4);
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn version(&mut self) -> Result<[u16; 3], EmsmdbError> {
        Ok([self.u16()?, self.u16()?, self.u16()?])
    }

    pub(super) fn bytes(&mut self, length: u32) -> Result<Bytes, EmsmdbError> {
        let length = usize::try_from(length).map_err(|_| EmsmdbError::Truncated)?;
        let end = self.at.checked_add(length).ok_or(EmsmdbError::Truncated)?;
        if end > self.stub.len() {
            return Err(EmsmdbError::Truncated);
        }
        let bytes = self.stub.slice(self.at..end);
        self.at = end;
        Ok(bytes)
    }

    /// A conformant array of bytes.
    pub(super) fn conformant(&mut self) -> Result<Bytes, EmsmdbError> {
        let length = self.u32()?;
        self.bytes(length)
    }

    /// A conformant varying array of bytes, with its maximum count.
    pub(super) fn varying(&mut self) -> Result<(u32, Bytes), EmsmdbError> {
        let most = self.u32()?;
        let offset = self.u32()?;
        let length = self.u32()?;
        if offset != 0 || length > most {
            return Err(EmsmdbError::Contradiction("actual count"));
        }
        Ok((most, self.bytes(length)?))
    }

    /// A unique pointer to a conformant varying string.
    pub(super) fn unique_string(&mut self) -> Result<Option<Bytes>, EmsmdbError> {
        if self.u32()? == 0 {
            return Ok(None);
        }
        self.varying().map(|(_, text)| Some(text))
    }

    /// Checks that nothing follows.
    pub(super) fn finish(self) -> Result<(), EmsmdbError> {
        match self.stub.len() - self.at {
            0 => Ok(()),
            more => Err(EmsmdbError::Trailing(more)),
        }
    }
}

/// Writes values of a stub.
#[derive(Default)]
pub(super) struct NdrWriter {
    stub: Vec<u8>,
}

impl NdrWriter {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            stub: Vec::with_capacity(bytes),
        }
    }

    fn align(&mut self, to: usize) {
        self.stub.resize(self.stub.len().next_multiple_of(to), 0);
    }

    pub(super) fn context(&mut self, context: ContextHandle) -> &mut Self {
        self.align(4);
        self.bytes(&context.0)
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.align(2);
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.align(4);
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn version(&mut self, version: [u16; 3]) -> &mut Self {
        for part in version {
            self.u16(part);
        }
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.stub.extend_from_slice(bytes);
        self
    }

    pub(super) fn conformant(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).bytes(bytes)
    }

    pub(super) fn varying(&mut self, most: u32, bytes: &[u8]) -> &mut Self {
        let length = bytes.len() as u32;
        self.u32(most.max(length)).u32(0).u32(length).bytes(bytes)
    }

    pub(super) fn unique_string(&mut self, referent: u32, text: Option<&Bytes>) -> &mut Self {
        match text {
            None => self.u32(0),
            Some(text) => self.u32(referent).varying(text.len() as u32, text),
        }
    }

    pub(super) fn finish(self) -> Bytes {
        self.stub.into()
    }
}
