//! Data: bytes of one flow at their offset.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowId, varint_length};

use super::{kind, number_sum, prefix_length};
use crate::SessionError;

/// Bytes of one direction of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFrame {
    /// The flow.
    pub flow: FlowId,
    /// Offset of the bytes in the stream.
    pub offset: u64,
    /// The bytes; never empty.
    pub bytes: Bytes,
}

/// Borrowed form of [`DataFrame`], in the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataView<'a> {
    pub(crate) flow: FlowId,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> DataView<'a> {
    /// Reads a frame without its length; `None` when it carries no data.
    pub(crate) fn of_frame(frame: &'a [u8]) -> Option<Result<Self, SessionError>> {
        let mut reader = ByteReader::new(frame);
        (reader.u8() == Ok(kind::DATA)).then(|| Self::parse(&mut reader))
    }

    fn parse(reader: &mut ByteReader<'a>) -> Result<Self, SessionError> {
        let flow = FlowId(reader.varint()?);
        let offset = reader.varint()?;
        let bytes = reader.bytes(reader.remaining())?;
        if bytes.is_empty() {
            return Err(SessionError::InvalidMessage("data without bytes"));
        }
        number_sum(offset, bytes.len() as u64)?;
        Ok(Self {
            flow,
            offset,
            bytes,
        })
    }
}

impl DataFrame {
    pub(super) fn parse(frame: &Bytes, reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let DataView {
            flow,
            offset,
            bytes,
        } = DataView::parse(reader)?;
        let bytes = frame.slice_ref(bytes);
        Ok(Self {
            flow,
            offset,
            bytes,
        })
    }

    pub(crate) fn view(&self) -> DataView<'_> {
        DataView {
            flow: self.flow,
            offset: self.offset,
            bytes: &self.bytes,
        }
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        data_header(out, self.flow, self.offset, self.bytes.len());
        out.bytes(&self.bytes);
    }
}

/// Writes what stands before the bytes of a data frame, so that a flow's buffer can be copied
/// straight to its place behind it.
pub(crate) fn data_header(out: &mut ByteWriter, flow: FlowId, offset: u64, length: usize) -> usize {
    let body = 1 + varint_length(flow.0) + varint_length(offset) + length;
    out.varint(body as u64)
        .u8(kind::DATA)
        .varint(flow.0)
        .varint(offset);
    prefix_length(body) + body - length
}
