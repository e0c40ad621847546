//! Frames between the halves about prefetches (docs/formats/http-frames.md).
//!
//! ```text
//!  near ──► far   Allows · Wanted · Declined · Stop
//!  far ──► near   Context · Promises · Head · Part + payload · Done · Cancelled · Stopped
//! ```
//! A frame is the content of one frame segment. Numbers are never used again.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowSegment, TruncatedInput};

use super::URL_MAX;
use super::document::NamedSubresource;
use super::subresource::SubresourceKind;

/// The version of these frames, said in [`PrefetchFrame::Allows`].
pub(super) const VERSION: u8 = 1;

const ALLOWS: u8 = 1;
const WANTED: u8 = 2;
const DECLINED: u8 = 3;
const STOP: u8 = 4;
const CONTEXT: u8 = 16;
const PROMISES: u8 = 17;
const HEAD: u8 = 18;
const PART: u8 = 19;
const DONE: u8 = 20;
const CANCELLED: u8 = 21;
const STOPPED: u8 = 22;

/// The number of a prefetch in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PrefetchId(pub(super) u32);

/// The number of a page whose subresources are fetched, in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PageId(pub(super) u32);

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrefetchFrame {
    /// The near half takes what is fetched ahead: so many responses for each page that is asked for from here on.
    Allows {
        /// The run of the near node: what an earlier one had stored is forgotten.
        site: u64,
        /// Responses for one page.
        objects: u16,
    },
    /// A client waits for this one.
    Wanted(PrefetchId),
    /// This one is of no use: it is stored already, or nobody waits for it any more.
    Declined(PrefetchId),
    /// Send nothing ahead any more, and say when nothing more follows.
    Stop,
    /// The request that all for a page's subresources are made of.
    Context {
        /// The page.
        page: PageId,
        /// See [`PageContext`](super::request::PageContext).
        head: Bytes,
    },
    /// These responses follow, or are cancelled. Their numbers count up from the first.
    Promises {
        /// The page that they are for.
        page: PageId,
        /// The number of the first.
        first: PrefetchId,
        /// Target of the fetch.
        named: Vec<NamedSubresource>,
    },
    /// The head of a response.
    Head {
        /// The prefetch.
        id: PrefetchId,
        /// The head as the server sent it.
        head: Bytes,
    },
    /// So many bytes of payload follow and belong to a response's content.
    Part {
        /// The prefetch.
        id: PrefetchId,
        /// Bytes.
        length: u32,
    },
    /// The response is whole.
    Done(PrefetchId),
    /// The response does not come.
    Cancelled(PrefetchId),
    /// Nothing more is sent ahead: the answer to [`Self::Stop`].
    Stopped,
}

/// A frame that no half of this release sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct MalformedFrame;

impl From<TruncatedInput> for MalformedFrame {
    fn from(_: TruncatedInput) -> Self {
        Self
    }
}

impl PrefetchFrame {
    /// The segment that carries it.
    pub(super) fn to_segment(&self) -> FlowSegment {
        let mut out = ByteWriter::new();
        match self {
            Self::Allows { site, objects } => {
                out.u8(ALLOWS).u8(VERSION).u64(*site).u16(*objects);
            }
            Self::Wanted(id) => drop(out.u8(WANTED).u32(id.0)),
            Self::Declined(id) => drop(out.u8(DECLINED).u32(id.0)),
            Self::Stop => drop(out.u8(STOP)),
            Self::Context { page, head } => {
                out.u8(CONTEXT).u32(page.0).bytes(head);
            }
            Self::Promises { page, first, named } => {
                out.u8(PROMISES).u32(page.0).u32(first.0);
                for NamedSubresource { kind, target } in named {
                    out.u8(kind.to_byte()).prefixed(target);
                }
            }
            Self::Head { id, head } => {
                out.u8(HEAD).u32(id.0).bytes(head);
            }
            Self::Part { id, length } => {
                out.u8(PART).u32(id.0).u32(*length);
            }
            Self::Done(id) => drop(out.u8(DONE).u32(id.0)),
            Self::Cancelled(id) => drop(out.u8(CANCELLED).u32(id.0)),
            Self::Stopped => drop(out.u8(STOPPED)),
        }
        FlowSegment::frame(out.finish())
    }

    /// Reads one; `None` for a frame of a later release, which is passed over.
    pub(super) fn parse(bytes: &Bytes) -> Result<Option<Self>, MalformedFrame> {
        let mut reader = ByteReader::new(bytes);
        let kind = reader.u8()?;
        let rest = |reader: &ByteReader<'_>| bytes.slice(bytes.len() - reader.remaining()..);
        let frame = match kind {
            ALLOWS => {
                // A later version says more, and this much as well.
                let version = reader.u8()?;
                let (site, objects) = (reader.u64()?, reader.u16()?);
                match version {
                    VERSION => {}
                    0 => return Err(MalformedFrame),
                    _ => return Ok(Some(Self::Allows { site, objects })),
                }
                Self::Allows { site, objects }
            }
            WANTED => Self::Wanted(PrefetchId(reader.u32()?)),
            DECLINED => Self::Declined(PrefetchId(reader.u32()?)),
            STOP => Self::Stop,
            CONTEXT => {
                let page = PageId(reader.u32()?);
                let head = rest(&reader);
                return Ok(Some(Self::Context { page, head }));
            }
            PROMISES => {
                let (page, first) = (PageId(reader.u32()?), PrefetchId(reader.u32()?));
                let mut named = Vec::new();
                while !reader.is_empty() {
                    let kind = SubresourceKind::from_byte(reader.u8()?).ok_or(MalformedFrame)?;
                    let target = reader.prefixed()?.to_vec();
                    let fits = named.len() < super::QUEUED_MAX && target.len() <= URL_MAX;
                    if !fits {
                        return Err(MalformedFrame);
                    }
                    named.push(NamedSubresource { kind, target });
                }
                first
                    .0
                    .checked_add(named.len() as u32)
                    .ok_or(MalformedFrame)?;
                Self::Promises { page, first, named }
            }
            HEAD => {
                let id = PrefetchId(reader.u32()?);
                let head = rest(&reader);
                return Ok(Some(Self::Head { id, head }));
            }
            PART => Self::Part {
                id: PrefetchId(reader.u32()?),
                length: reader.u32()?,
            },
            DONE => Self::Done(PrefetchId(reader.u32()?)),
            CANCELLED => Self::Cancelled(PrefetchId(reader.u32()?)),
            STOPPED => Self::Stopped,
            _ => return Ok(None),
        };
        match reader.is_empty() {
            true => Ok(Some(frame)),
            false => Err(MalformedFrame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let id = PrefetchId(7);
        let named = vec![NamedSubresource {
            kind: SubresourceKind::Font,
            target: b"/a.woff2".to_vec(),
        }];
        let page = PageId(3);
        let head = Bytes::from_static(b"head");
        for frame in [
            PrefetchFrame::Allows {
                site: u64::MAX,
                objects: 128,
            },
            PrefetchFrame::Wanted(id),
            PrefetchFrame::Declined(id),
            PrefetchFrame::Stop,
            PrefetchFrame::Context {
                page,
                head: head.clone(),
            },
            PrefetchFrame::Promises {
                page,
                first: id,
                named,
            },
            PrefetchFrame::Head { id, head },
            PrefetchFrame::Part { id, length: 9 },
            PrefetchFrame::Done(id),
            PrefetchFrame::Cancelled(id),
            PrefetchFrame::Stopped,
        ] {
            let bytes = frame.to_segment().bytes;
            assert_eq!(PrefetchFrame::parse(&bytes), Ok(Some(frame.clone())));
            let is_open_ended = matches!(
                frame,
                PrefetchFrame::Context { .. } | PrefetchFrame::Head { .. }
            );
            if !is_open_ended {
                let longer = Bytes::from([&bytes[..], b"x"].concat());
                assert_eq!(PrefetchFrame::parse(&longer), Err(MalformedFrame));
            }
            // Context and Head may be cut within what they carry.
            let least = if is_open_ended { 5 } else { bytes.len() };
            for length in 0..least {
                let cut = PrefetchFrame::parse(&bytes.slice(..length));
                let is_shorter_list = matches!(cut, Ok(Some(PrefetchFrame::Promises { .. })));
                assert!(cut == Err(MalformedFrame) || is_shorter_list, "{frame:?}");
            }
        }
        assert_eq!(
            PrefetchFrame::parse(&Bytes::from_static(&[99, 1])),
            Ok(None)
        );
    }
}
