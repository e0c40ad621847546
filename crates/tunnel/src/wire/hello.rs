//! Hello: the first frame of each side on every link, and again when the engine's part changes.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, NodeId};

use crate::SessionError;
use crate::limits::HELLO_BLOB_LIMIT;

/// The version this code speaks. Version 2 knows packets beside the link.
pub const VERSION: u16 = 2;

/// The oldest version it accepts.
pub const LEAST_VERSION: u16 = 1;

/// Told apart from anything else that may sit on the port.
const MAGIC: [u8; 4] = *b"TkLn";

/// First frame of a link: the sender, its incarnation, and its initial limits.
///
/// Later versions may append fields; bytes after the known ones are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloFrame {
    /// The newest version the sender speaks.
    pub version: u16,
    /// The oldest version it accepts.
    pub least_version: u16,
    /// The sender.
    pub sender: NodeId,
    /// The node the sender believes to be talking to.
    pub receiver: NodeId,
    /// Random; a new one at each start of the sender.
    pub incarnation: [u8; 16],
    /// The receiver's incarnation that the sender last met; zero for none.
    pub known_incarnation: [u8; 16],
    /// Credit of each new flow, bytes.
    pub flow_window: u64,
    /// Credit of all flows together, bytes.
    pub total_window: u64,
    /// The engine's part, at most [`HELLO_BLOB_LIMIT`] bytes.
    pub blob: Bytes,
}

impl HelloFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        if reader.array()? != MAGIC {
            return Err(SessionError::InvalidMessage(
                "a hello begins with other bytes",
            ));
        }
        let hello = Self {
            version: reader.u16()?,
            least_version: reader.u16()?,
            sender: NodeId(reader.array()?),
            receiver: NodeId(reader.array()?),
            incarnation: reader.array()?,
            known_incarnation: reader.array()?,
            flow_window: reader.varint()?,
            total_window: reader.varint()?,
            blob: Bytes::copy_from_slice(reader.prefixed()?),
        };
        if hello.blob.len() > HELLO_BLOB_LIMIT {
            return Err(SessionError::InvalidMessage(
                "the engine's part of a hello is too long",
            ));
        }
        reader.bytes(reader.remaining())?;
        Ok(hello)
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        out.bytes(&MAGIC)
            .u16(self.version)
            .u16(self.least_version)
            .bytes(&self.sender.0)
            .bytes(&self.receiver.0)
            .bytes(&self.incarnation)
            .bytes(&self.known_incarnation)
            .varint(self.flow_window)
            .varint(self.total_window)
            .prefixed(&self.blob);
    }
}
