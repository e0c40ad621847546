//! Climb to a bottleneck's rate, with which both searches begin, and the loss below that rate.
//!
//! ```text
//!  a stream ── it passed ──► one four times as fast
//!   ▲ │ └───── nothing came ──► the same again, a few times at most
//!   │ └─ it was held back, or nothing faster can be sent ──► what measures it
//!   └─────────────── nothing was held back after all ─────────────┘
//! ```
//! How long a stream lasts, and by what it is seen to be held back, is each search's own: between two ends each
//! arrival has its moment, and where the far end only counts a queue must overflow.

use std::time::Duration;

use vocab::Bitrate;

/// The slowest stream of a climb.
pub(super) const CLIMB_FROM: Bitrate = Bitrate::from_bits_per_second(256_000);
/// Share of the sent packets, or of the rate, below which a stream was held back.
pub(super) const HELD_BACK: f64 = 0.75;
/// Share of arrivals above which a measuring stream was not held back.
pub(super) const NOT_HELD_BACK: f64 = 0.95;
/// Rate of each stream of a climb relative to the one before, in percent.
const FASTER_PERCENT: u64 = 400;
/// The packets that a stream of a climb has at least.
const PACKETS_MIN: u64 = 16;
/// Greatest share of received packets without room in the tester's socket at which the other
/// packets still show the path's rate.
const WITHOUT_ROOM_MAX: f64 = 0.01;
/// A sender that keeps less of its rate is the limit itself.
const SENDER_KEEPS: f64 = 0.8;

/// State of a climb.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateClimb {
    /// Rate of the next stream.
    pub(super) rate: Bitrate,
    /// Streams of this rate without any arrival.
    silent: u32,
    /// Measuring streams before this.
    pub(super) measured: u32,
}

/// Decision after a stream of a climb that was not held back.
pub(super) enum ClimbDecision {
    /// A faster one.
    Climb(RateClimb),
    /// Measure: the path carries at least this rate, and the sender cannot send faster.
    Measure(Bitrate),
}

impl RateClimb {
    /// A climb that begins at a rate.
    pub(super) fn begin(rate: Bitrate, max: Bitrate) -> Self {
        Self {
            rate: rate.min(max),
            silent: 0,
            measured: 0,
        }
    }

    /// Repeats the stream of which nothing arrived; [`None`] when there were `most` of them.
    pub(super) fn after_silence(self, most: u32) -> Option<Self> {
        let silent = self.silent + 1;
        (silent < most).then_some(Self { silent, ..self })
    }

    /// Decides the next step, given the rate that the sender offered.
    pub(super) fn passed(self, offered: Bitrate, max: Bitrate) -> ClimbDecision {
        if !is_kept(offered, self.rate) {
            return ClimbDecision::Measure(offered);
        }
        if self.rate >= max {
            return ClimbDecision::Measure(self.rate);
        }
        ClimbDecision::Climb(Self {
            rate: scaled(self.rate, FASTER_PERCENT).min(max),
            silent: 0,
            measured: self.measured,
        })
    }

    /// Continues the climb from twice a rate at which nothing was held back, now that so many
    /// streams have `measured`; [`None`] when the sender cannot send faster, or there were `most`
    /// of them.
    pub(super) fn further(
        rate: Bitrate,
        offered: Bitrate,
        max: Bitrate,
        measured: u32,
        most: u32,
    ) -> Option<Self> {
        // A sender that stood still for a moment gets a second try, one that is too slow no third.
        let is_of_use = rate < max && (is_kept(offered, rate) || measured == 1);
        (is_of_use && measured < most).then(|| Self {
            measured,
            ..Self::begin(scaled(rate, 200), max)
        })
    }

    /// Least duration of its stream, so that it has enough packets.
    pub(super) fn least_duration(self, ip_bytes: u16) -> Duration {
        let bits = u64::from(ip_bytes) * 8 * PACKETS_MIN;
        Duration::from_secs_f64(bits as f64 / self.rate.bits_per_second().max(1) as f64)
    }
}

/// Packets sent, and lost, at rates that were not held back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UncongestedLoss {
    sent: u64,
    lost: u64,
}

impl UncongestedLoss {
    /// Adds a stream that was not held back.
    pub(super) fn add(&mut self, sent: u64, lost: u64) {
        self.sent += sent;
        self.lost += lost;
    }

    /// The share that was lost.
    pub(super) fn loss(self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// Tells whether a sender kept a rate.
pub(super) fn is_kept(offered: Bitrate, rate: Bitrate) -> bool {
    !is_less(offered, SENDER_KEEPS, rate)
}

/// Tells whether the receiving host, and not the path, held back a stream. `came` packets reached
/// the host and `no_room` of them found no room in the tester's socket. The host held the stream
/// back if these are too many for the others to show the path's rate, or if nothing was held back
/// without them.
pub(super) fn is_of_receiver(came: u64, no_room: u64, would_pass: impl FnOnce() -> bool) -> bool {
    no_room > 0 && (no_room as f64 > WITHOUT_ROOM_MAX * came as f64 || would_pass())
}

/// Tells whether one rate is less than that share of another.
pub(super) fn is_less(one: Bitrate, share: f64, other: Bitrate) -> bool {
    (one.bits_per_second() as f64) < share * other.bits_per_second() as f64
}

/// A percentage of a rate.
pub(super) fn scaled(rate: Bitrate, percent: u64) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(percent) / 100;
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiver_is_the_limit_where_its_drops_matter() {
        assert!(is_of_receiver(1_000, 5, || true) && is_of_receiver(1_000, 11, || false));
        assert!(!is_of_receiver(1_000, 10, || false) && !is_of_receiver(1_000, 0, || true));
    }
}
