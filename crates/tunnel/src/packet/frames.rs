//! Frames of the transport, and a packet's payload as a series of frames.
//!
//! ```text
//! payload = frame, frame, …    each: length varint · kind u8 · body (length − 1 bytes)
//! ```
//!
//! Kinds from 0x40 belong to the transport and are defined here. Lower kinds belong to the session
//! ([`crate::wire`]) and have the same framing, so that a frame can move between a packet and a
//! link. A length of zero is one byte of padding. `parse` reads back every value that `emit`
//! writes. docs/formats/wan-packets.md has every field.
//!
//! A payload recovered by a repair was not sealed itself. Like all bytes here, it is treated as
//! untrusted input from a peer.

use bytes::{Buf, Bytes, BytesMut};
use vocab::{ByteReader, ByteWriter, varint_length};

use super::acknowledgement::PacketAck;
use crate::SessionError;
use crate::fec::RepairSymbol;
use crate::wire::{NUMBER_LIMIT, SessionFrame, next_frame};

/// Bytes of text that a [`CloseFrame`] takes along, at most: a sentence for the log of the other side.
pub const REASON_LIMIT: usize = 256;

/// Frame kinds as written on the wire; numbers are never given out again.
mod kind {
    pub(super) const PADDING: u8 = 0x40;
    pub(super) const PROBE: u8 = 0x41;
    pub(super) const ACKNOWLEDGEMENT: u8 = 0x42;
    pub(super) const SOURCE: u8 = 0x43;
    pub(super) const REPAIR: u8 = 0x44;
    pub(super) const PATH_CHALLENGE: u8 = 0x45;
    pub(super) const PATH_RESPONSE: u8 = 0x46;
    pub(super) const CLOSE: u8 = 0x47;
}

/// The first kind that is the transport's and not the session's.
const FIRST_TRANSPORT_KIND: u8 = 0x40;

/// One frame of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketFrame {
    /// Padding without meaning.
    Padding(PaddingFrame),
    /// A packet that is to be acknowledged, though it carries nothing else.
    Probe(ProbeFrame),
    /// Acknowledges received packets.
    Acknowledgement(PacketAck),
    /// The rest of this payload is a source symbol.
    Source(SourceSymbol),
    /// A repair symbol.
    Repair(RepairSymbol),
    /// A question whether the peer is where its packets come from.
    PathChallenge(PathChallenge),
    /// The answer to it.
    PathResponse(PathResponse),
    /// The datagram path ends.
    Close(CloseFrame),
    /// A frame of the session.
    Session(SessionFrame),
}

/// Padding without meaning, for probes of the path's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaddingFrame {
    /// All bytes that it takes in the payload, its own framing included; at least one.
    pub bytes: u16,
}

/// Asks for an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeFrame;

/// Says that everything behind it in the payload is this source symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSymbol {
    /// Counts the source symbols of one direction of a path from 0.
    pub symbol: u64,
}

/// Unpredictable data that proves by its return that the peer receives at an address (RFC 9000
/// §8.2.1, Initiating Path Validation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChallenge {
    /// Value to return.
    pub value: u64,
}

/// Copy of the data of a challenge (RFC 9000 §8.2.2, Path Validation Responses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathResponse {
    /// Value of the challenge.
    pub value: u64,
}

/// Reason for the end of a datagram path. The session continues over its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// The path is no longer needed.
    Finished,
    /// The peer broke the rules of packets.
    Misbehaved,
    /// Too many packets had no valid tag (RFC 9001 §6.6, Limits on AEAD Usage).
    ForgeryLimit,
    /// The keys could not be renewed in time.
    KeyExhausted,
    /// A reason that this version does not know.
    Other(u16),
}

/// The datagram path ends; nothing is sent on it after this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// Reason.
    pub code: CloseCode,
    /// For a log; at most [`REASON_LIMIT`] bytes.
    pub reason: String,
}

impl PacketFrame {
    /// Takes the next frame off the front of a payload; `None` at its end. Byte strings are
    /// slices of the payload, not copies.
    ///
    /// # Errors
    /// [`SessionError::InvalidMessage`] when it is no frame of this version; the payload is of no use
    /// then.
    pub fn take(payload: &mut Bytes) -> Result<Option<Self>, SessionError> {
        if payload.is_empty() {
            return Ok(None);
        }
        let cut_short = SessionError::InvalidMessage("a frame ends behind its packet");
        let (prefix, length) = next_frame(payload).ok_or(cut_short.clone())?;
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= payload.len() - prefix)
            .ok_or(cut_short)?;
        payload.advance(prefix);
        if length > 0 && payload[0] == kind::SOURCE {
            // Every packet of a flow has one, and it is not worth counting another holder of the bytes.
            let source = SourceSymbol::parse(&payload[1..length])?;
            payload.advance(length);
            return Ok(Some(Self::Source(source)));
        }
        let frame = payload.split_to(length);
        let Some(kind) = frame.first() else {
            // A length of zero may be written in more bytes than one; all of them are padding.
            let bytes = prefix as u16;
            return Ok(Some(Self::Padding(PaddingFrame { bytes })));
        };
        if *kind == kind::PADDING {
            let bytes = u16::try_from(prefix + length)
                .map_err(|_| SessionError::InvalidMessage("padding is longer than a packet"))?;
            return Ok(Some(Self::Padding(PaddingFrame { bytes })));
        }
        if *kind < FIRST_TRANSPORT_KIND {
            return SessionFrame::parse(&frame).map(|frame| Some(Self::Session(frame)));
        }
        Self::parse_transport(*kind, &frame).map(Some)
    }

    fn parse_transport(kind: u8, frame: &Bytes) -> Result<Self, SessionError> {
        let mut reader = ByteReader::new(&frame[1..]);
        let parsed = match kind {
            kind::PROBE => Self::Probe(ProbeFrame),
            kind::ACKNOWLEDGEMENT => Self::Acknowledgement(PacketAck::parse(&mut reader)?),
            kind::REPAIR => Self::Repair(parse_repair(frame, &mut reader)?),
            kind::PATH_CHALLENGE => Self::PathChallenge(PathChallenge {
                value: reader.u64()?,
            }),
            kind::PATH_RESPONSE => Self::PathResponse(PathResponse {
                value: reader.u64()?,
            }),
            kind::CLOSE => Self::Close(CloseFrame::parse(&mut reader)?),
            _ => {
                return Err(SessionError::InvalidMessage(
                    "unknown frame kind in a packet",
                ));
            }
        };
        if !reader.is_empty() {
            return Err(SessionError::InvalidMessage(
                "bytes after the end of a frame",
            ));
        }
        Ok(parsed)
    }

    /// Appends the frame with its length.
    ///
    /// # Panics
    /// When a field breaks the rule that its description gives.
    pub fn emit(&self, out: &mut ByteWriter) {
        let mut body = ByteWriter::new();
        match self {
            Self::Padding(padding) => return padding.emit(out),
            Self::Session(frame) => return frame.emit(out),
            Self::Probe(ProbeFrame) => {
                body.u8(kind::PROBE);
            }
            Self::Acknowledgement(ack) => return emit_acknowledgement(ack, out),
            Self::Source(source) => return source.emit(out),
            Self::Repair(repair) => emit_repair(repair, body.u8(kind::REPAIR)),
            Self::PathChallenge(challenge) => {
                body.u8(kind::PATH_CHALLENGE).u64(challenge.value);
            }
            Self::PathResponse(response) => {
                body.u8(kind::PATH_RESPONSE).u64(response.value);
            }
            Self::Close(close) => close.emit(body.u8(kind::CLOSE)),
        }
        out.prefixed(&body.finish());
    }

    /// Returns `true` if a packet with this frame has to be acknowledged (RFC 9002 §2, Conventions
    /// and Definitions: ack-eliciting).
    #[must_use]
    pub fn elicits_acknowledgement(&self) -> bool {
        match self {
            Self::Padding(_) | Self::Acknowledgement(_) | Self::Source(_) | Self::Close(_) => false,
            Self::Probe(_)
            | Self::Repair(_)
            | Self::PathChallenge(_)
            | Self::PathResponse(_)
            | Self::Session(_) => true,
        }
    }
}

impl SourceSymbol {
    fn parse(body: &[u8]) -> Result<Self, SessionError> {
        let mut reader = ByteReader::new(body);
        let symbol = reader.varint()?;
        if !reader.is_empty() {
            return Err(SessionError::InvalidMessage(
                "bytes after the end of a frame",
            ));
        }
        Ok(Self { symbol })
    }

    /// Every packet has one, so it is written where it stays.
    fn emit(self, out: &mut ByteWriter) {
        let length = 1 + varint_length(self.symbol);
        out.varint(length as u64);
        out.u8(kind::SOURCE).varint(self.symbol);
    }
}

impl PaddingFrame {
    fn emit(self, out: &mut ByteWriter) {
        /// Largest length that one byte can express.
        const SHORT: u16 = 0x3f;
        assert!(self.bytes > 0, "padding of no bytes is no frame");
        if self.bytes == 1 {
            out.u8(0);
            return;
        }
        // The form of the length is chosen by the space to fill, so that every space can be
        // filled: 65 bytes are a length in two bytes, though the length itself would fit in one.
        let length = if self.bytes <= SHORT + 1 {
            let length = self.bytes - 1;
            out.u8(length as u8);
            length
        } else if self.bytes - 2 < 1 << 14 {
            out.u16(0x4000 | (self.bytes - 2));
            self.bytes - 2
        } else {
            out.u32(0x8000_0000 | u32::from(self.bytes - 4));
            self.bytes - 4
        };
        out.u8(kind::PADDING);
        for _ in 1..length {
            out.u8(0);
        }
    }
}

/// Appends an acknowledgement as a frame.
pub(crate) fn emit_acknowledgement(acknowledgement: &PacketAck, out: &mut ByteWriter) {
    let mut body = ByteWriter::with_capacity(64);
    acknowledgement.emit(body.u8(kind::ACKNOWLEDGEMENT));
    out.prefixed(&body.finish());
}

/// Checks only that its numbers are numbers; whether it is a repair that a decoder can use, the
/// decoder says.
fn parse_repair(frame: &Bytes, reader: &mut ByteReader<'_>) -> Result<RepairSymbol, SessionError> {
    let first = reader.varint()?;
    let count = reader.u8()?;
    if count == 0 || first + u64::from(count) > NUMBER_LIMIT {
        return Err(SessionError::InvalidMessage(
            "a repair of no or impossible symbols",
        ));
    }
    Ok(RepairSymbol {
        first,
        count,
        key: reader.u16()?,
        bytes: frame.slice_ref(reader.bytes(reader.remaining())?),
    })
}

fn emit_repair(repair: &RepairSymbol, out: &mut ByteWriter) {
    assert!(repair.count > 0, "a repair is of at least one symbol");
    assert!(
        repair.first + u64::from(repair.count) <= NUMBER_LIMIT,
        "symbols are counted below 2^62"
    );
    out.varint(repair.first)
        .u8(repair.count)
        .u16(repair.key)
        .bytes(&repair.bytes);
}

impl CloseCode {
    fn from_number(number: u16) -> Self {
        match number {
            0 => Self::Finished,
            1 => Self::Misbehaved,
            2 => Self::ForgeryLimit,
            3 => Self::KeyExhausted,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u16 {
        match self {
            Self::Finished => 0,
            Self::Misbehaved => 1,
            Self::ForgeryLimit => 2,
            Self::KeyExhausted => 3,
            Self::Other(number) => number,
        }
    }
}

impl CloseFrame {
    fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let code = CloseCode::from_number(reader.u16()?);
        let reason = reader.bytes(reader.remaining())?;
        if reason.len() > REASON_LIMIT {
            return Err(SessionError::InvalidMessage("a reason is too long"));
        }
        let reason = std::str::from_utf8(reason)
            .map_err(|_| SessionError::InvalidMessage("a reason is no text"))?
            .to_owned();
        Ok(Self { code, reason })
    }

    fn emit(&self, out: &mut ByteWriter) {
        assert!(self.reason.len() <= REASON_LIMIT, "a reason is a sentence");
        // Otherwise the code would be read back as one that this version knows.
        let code = CloseCode::from_number(self.code.number());
        assert_eq!(code, self.code, "a known code is not written as another");
        out.u16(self.code.number()).bytes(self.reason.as_bytes());
    }
}

/// A payload's frames, each as [`PacketFrame::take`] gives it; ends at the first fault.
///
/// # Errors
/// Of [`PacketFrame::take`].
pub fn frames(mut payload: Bytes) -> impl Iterator<Item = Result<PacketFrame, SessionError>> {
    std::iter::from_fn(move || {
        let next = PacketFrame::take(&mut payload);
        if next.is_err() {
            payload.clear();
        }
        next.transpose()
    })
}

/// Appends a frame to a payload that is being filled.
pub fn append(frame: &PacketFrame, payload: &mut BytesMut) {
    let mut writer = ByteWriter::with_capacity(64);
    frame.emit(&mut writer);
    payload.extend_from_slice(&writer.finish());
}
