//! Memory limits of one direction.
//!
//! ```text
//!   handle ──► held: in the queue, on the line, under way ──► untaken: due, not yet polled
//!              full: the packet that comes is refused         full: the packet that falls due
//!                                                                   is thrown away
//! ```
//! What is held follows from the arrivals and their times alone, so a replay refuses the same
//! packets. A packet that is due is no longer held, whether or not the caller has taken it out:
//! when that happens is the caller's affair, and must change nobody's fate. How many of those wait
//! has a limit of its own, at whose end no other packet is touched; a caller who drains
//! `poll_output` never meets it, and one who does not finds the packets counted and recorded.

use vocab::ByteCount;

use crate::counters::TrafficCount;

/// Greatest number of packets that one direction holds, queued and in flight, including the copies
/// that duplication will make: the packets that 1 Gbit/s of 250-byte packets has in flight in 2 s.
/// Their book-keeping then takes about 100 MiB.
pub const HELD_PACKETS_MAX: u64 = 1 << 20;

/// Greatest number of packet bytes that one direction holds: the bytes that 2 Gbit/s has in flight
/// in 2 s.
pub const HELD_BYTES_MAX: ByteCount = ByteCount::mebibytes(512);

/// Greatest number of packets that are due and wait to be taken out: as many as can be held,
/// because all of them may fall due at one moment (behind one that jitter has held back).
pub const UNTAKEN_PACKETS_MAX: u64 = HELD_PACKETS_MAX;

/// The most packet bytes that are due and wait to be taken out, for the same reason.
pub const UNTAKEN_BYTES_MAX: ByteCount = HELD_BYTES_MAX;

/// Memory limits of one direction; other limits than the usual ones are for tests, and for many
/// links in little memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Packets in the queue, on the line and under way, the copies to be made of them included.
    pub held_packets: u64,
    /// Their bytes.
    pub held_bytes: ByteCount,
    /// Packets that are due and not yet taken out.
    pub untaken_packets: u64,
    /// Their bytes.
    pub untaken_bytes: ByteCount,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            held_packets: HELD_PACKETS_MAX,
            held_bytes: HELD_BYTES_MAX,
            untaken_packets: UNTAKEN_PACKETS_MAX,
            untaken_bytes: UNTAKEN_BYTES_MAX,
        }
    }
}

impl MemoryLimits {
    /// Tells whether this much may be in the queue, on the line and in flight.
    pub(crate) fn hold(&self, held: TrafficCount) -> bool {
        held.packets <= self.held_packets && held.bytes <= self.held_bytes.bytes()
    }

    /// Tells whether this much may wait to be taken out.
    pub(crate) fn keep_untaken(&self, untaken: TrafficCount) -> bool {
        untaken.packets <= self.untaken_packets && untaken.bytes <= self.untaken_bytes.bytes()
    }
}
