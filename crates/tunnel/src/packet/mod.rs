//! Packets of the datagram path: their wire form, their keys, and who may send where.
//!
//! ```text
//!  TLS exporter ─► PathSecret ─┬─► PacketSealer ── seal ─► datagram ─┐
//!                              └─► PacketOpener ◄─ open ── datagram ◄┘   OpenedPacket ─► PathAddresses, frames
//! ```
//!
//! A datagram is one packet: a header that names the path, and a payload of frames under an AEAD
//! (`header.rs`, `frames.rs`; docs/formats/wan-packets.md). Each path and direction has one
//! [`PacketSealer`], which counts its packets and never gives a number twice, and one [`PacketOpener`], which
//! believes nothing before the tag has been checked, and then takes each number once. Keys come
//! from the TLS session of the link that the path belongs to and are renewed on the way
//! (`keys.rs`). The construction and its sources are in
//! docs/decisions/0015-packets-sealed-as-in-quic.md.
//!
//! Nothing here sends or receives, acknowledges or repairs, or chooses connection ids, nonces and
//! seeds: those are random and handed in by a shell.

mod acknowledgement;
mod address;
mod frames;
mod header;
mod keys;
mod opener;
mod protection;
mod replay;
mod sealer;

pub use acknowledgement::{EcnCounts, PacketAck, RANGE_LIMIT};
pub use address::{
    AddressChange, AddressTrust, ChallengeResult, ChallengeSeed, PathAddresses, ValidationFailure,
    allowance,
};
pub(crate) use frames::emit_acknowledgement;
pub use frames::{
    CloseCode, CloseFrame, PacketFrame, PaddingFrame, PathChallenge, PathResponse, ProbeFrame,
    REASON_LIMIT, SourceSymbol, append, frames,
};
pub use header::{ConnectionId, HEADER_LENGTH};
pub use keys::{
    CipherSuite, ConnectionIds, EXPORTER_LABEL, KeyContext, KeyLimits, PathIdUsed, PathSecret,
    TlsRole,
};
pub use opener::{OpenedPacket, OpenerStatistics, PacketOpener, PacketRefusal, PhaseChange};
pub use protection::TAG_LENGTH;
pub use replay::WindowWidth;
pub use sealer::{ASKING_RESERVE, PacketSealer, SealError, UNACKNOWLEDGED_LIMIT};

/// Bytes that sealing adds to a payload.
pub const OVERHEAD: usize = HEADER_LENGTH + TAG_LENGTH;

#[cfg(test)]
mod tests;
