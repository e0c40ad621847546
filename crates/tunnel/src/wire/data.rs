//! Data: bytes of one flow at their offset.

use bytes::Bytes;
use vocab::{FlowId, Reader, Writer, varint_length};

use super::{kind, number_sum, prefix_length};
use crate::Error;

/// Bytes of one direction of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The flow.
    pub flow: FlowId,
    /// Where in the stream the bytes begin.
    pub offset: u64,
    /// The bytes; never empty.
    pub bytes: Bytes,
}

impl Data {
    pub(super) fn parse(frame: &Bytes, reader: &mut Reader<'_>) -> Result<Self, Error> {
        let flow = FlowId(reader.varint()?);
        let offset = reader.varint()?;
        let payload = reader.bytes(reader.remaining())?;
        if payload.is_empty() {
            return Err(Error::InvalidMessage("data without bytes"));
        }
        number_sum(offset, payload.len() as u64)?;
        Ok(Self {
            flow,
            offset,
            bytes: frame.slice_ref(payload),
        })
    }

    pub(super) fn emit(&self, out: &mut Writer) {
        data_header(out, self.flow, self.offset, self.bytes.len());
        out.bytes(&self.bytes);
    }
}

/// Writes what stands before the bytes of a data frame, so that a flow's buffer can be copied
/// straight to its place behind it.
pub(crate) fn data_header(out: &mut Writer, flow: FlowId, offset: u64, length: usize) -> usize {
    let body = 1 + varint_length(flow.0) + varint_length(offset) + length;
    out.varint(body as u64)
        .u8(kind::DATA)
        .varint(flow.0)
        .varint(offset);
    prefix_length(body) + body - length
}
