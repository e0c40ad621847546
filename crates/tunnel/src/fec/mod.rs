//! Forward error correction: redundant packets from which lost ones are computed.
//!
//! The sender numbers the payloads of its packets as *source symbols*. When the policy decides so
//! it sends *repair symbols*: sums of the last few source symbols, each times a coefficient of
//! GF(2⁸). A repair symbol is an equation whose unknowns are the symbols that did not arrive. With
//! as many independent equations as unknowns the receiver solves them, without a round trip.
//! Windows slide: every repair symbol names the run of source symbols in it, so there are no blocks
//! to wait for (the scheme of RFC 8681, Sliding Window Random Linear Code, with other
//! coefficients).
//!
//! ```text
//!  source()  ─► encoder ── repair(run) ─► RepairSymbol ═WAN═► repair() ─► decoder ─► poll_recovered()
//!                  ▲                                          source() ─►    │
//!  RepairPolicy: how many, over which run, when                              └ EquationSystem
//!    ▲ LossEstimate (losses that recovery reports)
//! ```
//!
//! A symbol is a payload behind its length in 2 bytes, padded with zeros, so payloads of different
//! sizes can be added. Source symbols are numbered without gaps. The module works on opened and
//! authenticated data; a recovered payload is parsed like a received one. It does not decide when a
//! packet is lost, and knows neither packet numbers nor frames. docs/decisions/0016 explains the
//! choice of code and field.

mod coefficients;
mod decoder;
mod encoder;
mod equations;
mod estimate;
mod margin;
mod policy;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::Bytes;

pub use decoder::{DecoderStatistics, FecDecoder, RepairSymbolResult, SourceSymbolResult};
pub use encoder::FecEncoder;
pub use estimate::{LossCause, LossEstimate};
pub use policy::{PathState, PauseReason, QueueTrend, RepairMode, RepairPolicy};

/// Payload of one source symbol, at most: an Ethernet packet's.
pub const PAYLOAD_LIMIT: usize = 1_500;

/// Bytes of a symbol before its payload: the payload's length, big-endian.
pub const LENGTH_PREFIX: usize = 2;

/// Bytes of a repair symbol, at most.
pub const SYMBOL_LIMIT: usize = LENGTH_PREFIX + PAYLOAD_LIMIT;

/// Source symbols in one repair symbol, at most. Coefficients that keep every square system of one
/// window solvable (a Cauchy matrix) have 256 elements for columns and rows together; 64 are left
/// for the repair symbols. 192 packets are 100 ms at 23 Mbit/s.
pub const WINDOW_LIMIT: u64 = 192;

/// Source symbols that either side keeps, at most: two whole windows, and 128 more that a repair
/// symbol may come late by. 0.8 MB at the largest payload.
pub const SYMBOLS_KEPT: usize = 512;

/// A sum of source symbols, each times its coefficient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairSymbol {
    /// Number of the first source symbol in it.
    pub first: u64,
    /// Number of source symbols in it; 1 to [`WINDOW_LIMIT`].
    pub count: u8,
    /// Key from which, with a symbol's number, its coefficient follows.
    pub key: u16,
    /// The sum, as long as the longest symbol in it; [`LENGTH_PREFIX`] to [`SYMBOL_LIMIT`] bytes.
    pub bytes: Bytes,
}

impl RepairSymbol {
    /// The run of source symbols in it; `None` when its fields are none that an encoder makes.
    #[must_use]
    pub fn window(&self) -> Option<Range<u64>> {
        let end = self.first.checked_add(u64::from(self.count))?;
        let sizes = (1..=WINDOW_LIMIT).contains(&u64::from(self.count))
            && (LENGTH_PREFIX..=SYMBOL_LIMIT).contains(&self.bytes.len());
        sizes.then_some(self.first..end)
    }
}
