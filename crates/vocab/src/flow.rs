//! Names of things that cross crate borders: flows, nodes, and the segments of a flow.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;

/// One intercepted connection, as the two nodes of a session both call it.
///
/// Ids are given out by the node that opens the flow (the dialling side of the session uses even
/// numbers, the other odd ones), count upwards and are never used again within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl fmt::Display for FlowId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Identity of a node: the BLAKE3 hash of its public key (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

impl NodeId {
    /// The first eight hex digits, for tables and logs.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "NodeId({})", self.short())
    }
}

/// A node id that is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a node id is 64 hexadecimal digits, as `trunkline node status` prints it")]
pub struct ParseNodeIdError;

impl FromStr for NodeId {
    type Err = ParseNodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 64 || !text.is_ascii() {
            return Err(ParseNodeIdError);
        }
        let mut id = [0; 32];
        for (index, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16)
                .map_err(|_| ParseNodeIdError)?;
        }
        Ok(Self(id))
    }
}

/// Kind of a segment's bytes. It keeps protocol headers from breaking up repeated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// The user's data: chunked, looked up in the dictionary and remembered there.
    Payload,
    /// The protocol's own bytes around it: compressed, never remembered.
    Control,
    /// A message from one half of an accelerator to its other half; never shown to a host.
    Frame,
}

/// A run of bytes of one kind on its way from one half of an accelerator to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSegment {
    /// Kind of the bytes.
    pub kind: SegmentKind,
    /// The bytes; never empty for payload and control.
    pub bytes: Bytes,
}

impl FlowSegment {
    /// A segment of user data.
    #[must_use]
    pub fn payload(bytes: Bytes) -> Self {
        Self {
            kind: SegmentKind::Payload,
            bytes,
        }
    }

    /// A segment of protocol bytes.
    #[must_use]
    pub fn control(bytes: Bytes) -> Self {
        Self {
            kind: SegmentKind::Control,
            bytes,
        }
    }

    /// A message between the halves.
    #[must_use]
    pub fn frame(bytes: Bytes) -> Self {
        Self {
            kind: SegmentKind::Frame,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_read_back_as_written() {
        let id = NodeId([0xa5; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.short(), "a5a5a5a5");
        assert_eq!("a5".parse::<NodeId>(), Err(ParseNodeIdError));
        assert_eq!("é".repeat(32).parse::<NodeId>(), Err(ParseNodeIdError));
    }
}
