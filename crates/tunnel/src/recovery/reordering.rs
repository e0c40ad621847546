//! Reordering window: the time a packet may be late before it counts as lost.
//!
//! ```text
//!        P sent                    expected                     lost, unless it came
//!   ───────┼──────────────────────────┼────────── window ───────────┼──────►
//!          └─ RTT of Q, sent later ───┘
//!             and acknowledged first
//! ```
//!
//! The reference is that of RFC 8985 §6.2: a packet is expected at the time at which a packet sent
//! later and acknowledged earlier would have arrived, had it been sent at the same time. On a path
//! that keeps the order the window is that of RFC 9002 §6.1.2, an eighth of the round-trip time. On
//! a path that reorders, the window covers all but one in [`BEYOND`] of the packets. Each packet
//! counts with its delay, also when it had been declared lost, so the window grows with the first
//! spurious losses (RFC 8985 §6.2 step 4 grows it with each DSACK, in steps of a quarter RTT, and
//! shrinks it after 16 recoveries; here it follows the measurement both ways).
//!
//! RFC 9002 uses the larger of the smoothed and the latest RTT as reference. That is a property of
//! the path, not of the packet: a growing queue delays all packets and is no reordering.

use std::time::Duration;

use path::{DurationQuantiles, GRANULARITY, RttEstimator};
use vocab::Time;

/// Share of packets that may be later than the window: one in 500. A spurious loss costs a packet
/// sent twice, and 0.2 % is little compared with the cost of losses on such a path.
const BEYOND: f64 = 1.0 / 500.0;

/// Share of packets that the reordering spread reported to the congestion controller leaves out:
/// one in twenty.
const SPREAD_BEYOND: f64 = 1.0 / 20.0;

/// A path's lateness is half forgotten after this long, or after [`HALF_LIFE_RTTS`] round trips if
/// that is longer. With it, some hundred packets a second are enough to tell one in 500.
const HALF_LIFE: Duration = Duration::from_secs(4);

/// Round trips in which a half is forgotten at the earliest.
const HALF_LIFE_RTTS: u32 = 16;

/// The window is never longer than this many round-trip times: the smoothed one or, if it is longer,
/// the median of all packets'. Samples of the round-trip time are of packets that arrived first
/// (RFC 9002 §5.1), which on a path that reorders are the quick ones.
const WINDOW_RTTS_MAX: u32 = 2;

/// The least that an overtaken packet counts as late: the first span that the quantiles can tell
/// from none.
const LATE_MIN: Duration = Duration::from_micros(64);

/// Estimate of packet reordering on the path.
#[derive(Clone, Debug)]
pub(super) struct ReorderingEstimate {
    spans: DurationQuantiles,
    /// Times from sending to acknowledgement, of every packet.
    flights: DurationQuantiles,
    window: Duration,
    typical: Duration,
}

impl ReorderingEstimate {
    pub(super) fn new(now: Time, rtt: &RttEstimator) -> Self {
        let mut lateness = Self {
            spans: DurationQuantiles::new(now),
            flights: DurationQuantiles::new(now),
            window: Duration::ZERO,
            typical: Duration::ZERO,
        };
        lateness.update(now, rtt);
        lateness
    }

    /// Counts a packet that was acknowledged this long after it was sent: in its turn, or after one
    /// that was sent later and took the time that is given.
    pub(super) fn arrived(&mut self, flight: Duration, overtaken_by: Option<Duration>) {
        self.flights.add(flight);
        self.spans.add(match overtaken_by {
            None => Duration::ZERO,
            Some(expected) => flight.saturating_sub(expected).max(LATE_MIN),
        });
    }

    /// Recomputes the window.
    pub(super) fn update(&mut self, now: Time, rtt: &RttEstimator) {
        let smoothed = rtt.smoothed();
        let half_life = HALF_LIFE.max(smoothed * HALF_LIFE_RTTS);
        self.spans.age(now, half_life);
        self.flights.age(now, half_life);
        let latest = rtt.latest().unwrap_or(smoothed);
        // RFC 9002 §6.1.2: kTimeThreshold of 9/8, and not less than the timers' grain.
        let least = (smoothed.max(latest) / 8).max(GRANULARITY);
        self.typical = smoothed;
        self.window = least;
        if self.reorders() {
            let learnt = self.spans.all_but(BEYOND);
            self.typical = smoothed.max(self.flights.all_but(0.5));
            self.window = learnt.min(self.typical * WINDOW_RTTS_MAX).max(least);
        }
    }

    /// The round-trip time of packets that had no luck: the smoothed one, or the median of all
    /// packets' where they overtake each other.
    pub(super) fn typical(&self) -> Duration {
        self.typical
    }

    /// Longest time to an acknowledgement, except for one packet in 500; zero on a path that keeps
    /// the order, where the round-trip time and its variance give it.
    pub(super) fn slowest_flight(&self) -> Duration {
        if self.reorders() {
            self.flights.all_but(BEYOND)
        } else {
            Duration::ZERO
        }
    }

    /// Time after its expected arrival at which a packet counts as lost.
    pub(super) fn window(&self) -> Duration {
        self.window
    }

    /// Returns `true` if packets were reordered recently. Loss is then not detected by packet count
    /// (RFC 8985 §6.2: the reordering window replaces the threshold of three once reordering was
    /// seen).
    pub(super) fn reorders(&self) -> bool {
        self.spans.above_zero() > 0
    }

    /// Spread of round-trip times on a path that reorders; `None` on one that does not. A queue
    /// makes them longer too, and a controller that allowed for it would fill it: so the spread is
    /// at most the delay of packets behind those that overtook them.
    pub(super) fn spread(&self, rtt: &RttEstimator) -> Option<Duration> {
        let late_by = self.spans.all_but(BEYOND);
        if late_by.is_zero() {
            return None;
        }
        let flight = self.flights.all_but(SPREAD_BEYOND);
        Some(flight.saturating_sub(rtt.minimum()?).min(late_by))
    }
}
