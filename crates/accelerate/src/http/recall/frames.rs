//! Frames between the halves about short revalidations (docs/formats/http-frames.md).

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowSegment, TruncatedInput};

const RECALL: u8 = 5;
const TAGGED: u8 = 23;
const CONFIRMED: u8 = 24;
const UNKNOWN: u8 = 25;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RecallFrame {
    /// From the near half: the tagged request again, with the conditions of its response.
    Recall(u64),
    /// From the far half: the response that follows, and its request, have this tag.
    Tagged(u64),
    /// From the far half: the response to a recalled request is a 304 with this Date, in seconds since 1970, and else nothing
    /// that the tagged response has not.
    Confirmed(u64),
    /// From the far half: it does not know the tag, and has asked nothing.
    Unknown(u64),
}

impl RecallFrame {
    /// The segment that carries it.
    pub(in crate::http) fn to_segment(self) -> FlowSegment {
        let (kind, number) = match self {
            Self::Recall(tag) => (RECALL, tag),
            Self::Tagged(tag) => (TAGGED, tag),
            Self::Confirmed(seconds) => (CONFIRMED, seconds),
            Self::Unknown(tag) => (UNKNOWN, tag),
        };
        let mut out = ByteWriter::new();
        out.u8(kind).u64(number);
        FlowSegment::frame(out.finish())
    }

    /// Reads one; `None` if the frame is another one of HTTP's.
    pub(in crate::http) fn parse(bytes: &Bytes) -> Option<Result<Self, TruncatedInput>> {
        let mut reader = ByteReader::new(bytes);
        let make = match reader.u8().ok()? {
            RECALL => Self::Recall,
            TAGGED => Self::Tagged,
            CONFIRMED => Self::Confirmed,
            UNKNOWN => Self::Unknown,
            _ => return None,
        };
        Some(reader.u64().map(make))
    }
}
