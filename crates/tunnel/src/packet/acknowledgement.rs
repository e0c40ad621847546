//! Acknowledgement: which packets have arrived, which were marked by the network, and which lost
//! ones a repair has restored (RFC 9000 §19.3, ACK Frames; the last is ours).
//!
//! Ranges are written newest first, each as the gap to the one before it and its length, in the
//! arithmetic of RFC 9000 §19.3.1 (ACK Ranges):
//!
//! ```text
//!   numbers   …  [first ── last]   gap   [first ── last]      largest = last of the newest
//!                 next range       +2     newest range        gap = newer first − older last − 2
//! ```

use vocab::{ByteReader, ByteWriter};

use crate::SessionError;
use crate::wire::NUMBER_LIMIT;

/// Ranges of each kind in one frame, at most. With numbers that grow up to eight bytes 256 ranges
/// are 4 KiB; those of a path that works fit one packet, since a gap and a length are a byte each.
pub const RANGE_LIMIT: usize = 256;

/// Frame that acknowledges packets to their sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketAck {
    /// Delay between the receipt of the largest number and this acknowledgement, in microseconds.
    pub delay_us: u64,
    /// Packet numbers that have arrived: (first, last) of each range, both included, newest first
    /// and at least one number apart. At least one range, at most [`RANGE_LIMIT`].
    pub ranges: Vec<(u64, u64)>,
    /// ECN marks of the network; `None` when the receiver cannot read the marks.
    pub ecn: Option<EcnCounts>,
    /// Source symbols whose packets have not arrived and that were restored from repairs; ranges
    /// as above, possibly none.
    pub recovered: Vec<(u64, u64)>,
}

/// Packets received so far with each ECN codepoint (RFC 9000 §19.3.2, ECN Counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// ECT(0).
    pub ect0: u64,
    /// ECT(1).
    pub ect1: u64,
    /// Congestion experienced.
    pub ce: u64,
}

/// ECN counts follow.
const FLAG_ECN: u8 = 1;
/// Recovered symbols follow.
const FLAG_RECOVERED: u8 = 2;

impl PacketAck {
    /// The largest packet number that has arrived.
    ///
    /// # Panics
    /// When there are no ranges, which `ranges` does not allow.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.ranges.first().expect("there is at least one range").1
    }

    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let flags = reader.u8()?;
        if flags & !(FLAG_ECN | FLAG_RECOVERED) != 0 {
            return Err(SessionError::InvalidMessage(
                "unknown flags in an acknowledgement",
            ));
        }
        let delay_us = reader.varint()?;
        let ranges = parse_ranges(reader)?;
        let ecn = if flags & FLAG_ECN != 0 {
            Some(EcnCounts {
                ect0: reader.varint()?,
                ect1: reader.varint()?,
                ce: reader.varint()?,
            })
        } else {
            None
        };
        let recovered = if flags & FLAG_RECOVERED != 0 {
            parse_ranges(reader)?
        } else {
            Vec::new()
        };
        Ok(Self {
            delay_us,
            ranges,
            ecn,
            recovered,
        })
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        let mut flags = 0;
        if self.ecn.is_some() {
            flags |= FLAG_ECN;
        }
        if !self.recovered.is_empty() {
            flags |= FLAG_RECOVERED;
        }
        out.u8(flags).varint(self.delay_us);
        emit_ranges(&self.ranges, out);
        if let Some(ecn) = self.ecn {
            out.varint(ecn.ect0).varint(ecn.ect1).varint(ecn.ce);
        }
        if !self.recovered.is_empty() {
            emit_ranges(&self.recovered, out);
        }
    }
}

fn parse_ranges(reader: &mut ByteReader<'_>) -> Result<Vec<(u64, u64)>, SessionError> {
    let below_zero = SessionError::InvalidMessage("an acknowledged range goes below zero");
    let mut last = reader.varint()?;
    let more = reader.varint()?;
    if more >= RANGE_LIMIT as u64 {
        return Err(SessionError::InvalidMessage(
            "too many ranges in an acknowledgement",
        ));
    }
    let mut ranges = Vec::with_capacity(more as usize + 1);
    let first = last.checked_sub(reader.varint()?);
    let mut first = first.ok_or(below_zero.clone())?;
    ranges.push((first, last));
    for _ in 0..more {
        // Both are below 2^62, so the sum does not overflow.
        let gap = reader.varint()? + 2;
        last = first.checked_sub(gap).ok_or(below_zero.clone())?;
        first = last
            .checked_sub(reader.varint()?)
            .ok_or(below_zero.clone())?;
        ranges.push((first, last));
    }
    Ok(ranges)
}

fn emit_ranges(ranges: &[(u64, u64)], out: &mut ByteWriter) {
    let [(first, last), older @ ..] = ranges else {
        panic!("an acknowledgement names at least one range");
    };
    assert!(*last < NUMBER_LIMIT, "numbers are below 2^62");
    assert!(
        ranges.len() <= RANGE_LIMIT,
        "more ranges than one frame has"
    );
    assert!(first <= last, "a range begins where it ends or before");
    out.varint(*last)
        .varint(older.len() as u64)
        .varint(last - first);
    let mut newer = *first;
    for (first, last) in older {
        assert!(first <= last, "a range begins where it ends or before");
        assert!(last + 1 < newer, "ranges go down and do not touch");
        out.varint(newer - last - 2).varint(last - first);
        newer = *first;
    }
}
