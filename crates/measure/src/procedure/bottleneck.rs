//! The bottleneck rate of one direction, from streams that do not react (RFC 6349 §3.2.2).
//!
//! ```text
//!  Climb: short streams, each four times as fast ── until less arrives than was sent ──► Measure
//!  Measure: one stream at 1.5 times what arrived, long enough to empty any bucket ──► Done
//!           nothing was held back after all ──► Climb on, from twice that rate
//! ```
//! As in RFC 9097 (Maximum IP-Layer Capacity) the rate adapts to what the receiver reports; as in
//! RFC 9946 (its protocol) in trials, though here a trial is a stream. Climbing takes a second or two
//! and never sends more than four times what the path carries, a tenth of a second long. The measuring
//! stream is faster than the path by half: so a queue is never empty, a policer never out of work, and
//! what arrives is the bottleneck's own rate. Losses that were there at the slowest rates already are
//! the path's own and do not count as a limit.
//!
//! The rate is that of IP packets of the path MTU, headers included.

use std::time::Duration;

use vocab::Bitrate;

use super::stream::StreamRecord;

/// Two seconds that differ by less than so many thousandths are of the same rate.
pub const STEADY_PERMILLE: f64 = 1.0;
/// What the measuring stream offers, in percent of what is thought to be the rate. Telling a policer's
/// bucket needs half more than its rate.
pub const OVERLOAD_PERCENT: u64 = 150;

/// The slowest stream of a climb.
pub(super) const CLIMB_FROM: Bitrate = Bitrate::from_bits_per_second(256_000);
/// By how much each stream of a climb is faster.
pub(super) const CLIMB_FACTOR: u64 = 4;
/// How long a stream of a climb lasts, and the packets it has at least.
const CLIMB_FOR: Duration = Duration::from_millis(100);
const CLIMB_PACKETS: u64 = 16;
/// How many times as long it lasts where a host may have stood still: to be misled once more costs a whole
/// measuring stream.
const DOUBT_TIMES: u32 = 4;
/// A stream of which less arrives, or slower, was held back.
pub(super) const HELD_BACK: f64 = 0.75;
/// A stream of which more arrives, though slower, may have met a host that stood still.
const FEW_LOST: f64 = 0.98;
/// A measuring stream of which more arrives was not.
pub(super) const NOT_HELD_BACK: f64 = 0.95;
/// A sender that keeps less of its rate is the limit itself.
pub(super) const SENDER_KEEPS: f64 = 0.8;
/// Measuring streams at most, should the climb have misjudged.
const MEASUREMENTS_MAX: u32 = 4;
/// Streams of which nothing arrives, until nothing is thought to get through.
const SILENT_MAX: u32 = 3;

/// A stream to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// Of IP packets.
    pub rate: Bitrate,
    /// How long.
    pub duration: Duration,
    /// Bytes of each IP packet.
    pub ip_bytes: u16,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this and report what arrived.
    Stream(StreamPlan),
    /// The search is over.
    Done,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchConfig {
    /// No stream is faster.
    pub max: Bitrate,
    /// How long the measuring stream lasts.
    pub measure_for: Duration,
    /// Bytes of each IP packet: the path MTU.
    pub ip_bytes: u16,
}

/// What kept more from arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// The path.
    Path,
    /// The rate that streams may have at most; the path may carry more.
    MaxRate,
    /// The sender, which could not send as fast; the path may carry more.
    Sender,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// Of IP packets.
    pub rate: Bitrate,
    /// Whether it was steady, to 0.1 % in two seconds that follow each other.
    pub is_steady: bool,
    /// What the limit was.
    pub limited_by: LimitedBy,
    /// The share of packets lost at rates that the path carries.
    pub loss_below: f64,
}

/// The search.
#[derive(Debug)]
pub struct BottleneckSearch {
    config: SearchConfig,
    state: State,
    /// Packets sent, and lost, at rates that were not held back.
    below: (u64, u64),
    outcome: Option<Bottleneck>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Climb {
        rate: Bitrate,
        /// Streams of this rate of which nothing arrived.
        silent: u32,
        /// Whether a stream of this rate came slower than it left, though little was lost.
        is_doubtful: bool,
        /// Measuring streams before this.
        measured: u32,
    },
    Measure {
        rate: Bitrate,
        count: u32,
    },
    Done,
}

impl BottleneckSearch {
    /// A search that has not begun.
    #[must_use]
    pub fn new(config: SearchConfig) -> Self {
        Self {
            config,
            state: State::Climb {
                rate: CLIMB_FROM.min(config.max),
                silent: 0,
                is_doubtful: false,
                measured: 0,
            },
            below: (0, 0),
            outcome: None,
        }
    }

    /// What to do next; the same until [`BottleneckSearch::handle`] has the record.
    #[must_use]
    pub fn next_step(&self) -> Step {
        let (rate, duration) = match self.state {
            State::Climb {
                rate,
                is_doubtful: true,
                ..
            } => (rate, self.climb_duration(rate) * DOUBT_TIMES),
            State::Climb { rate, .. } => (rate, self.climb_duration(rate)),
            State::Measure { rate, .. } => (rate, self.config.measure_for),
            State::Done => return Step::Done,
        };
        Step::Stream(StreamPlan {
            rate,
            duration,
            ip_bytes: self.config.ip_bytes,
        })
    }

    /// Whether the next stream is one that measures: its record is worth keeping.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        matches!(self.state, State::Measure { .. })
    }

    /// What was found; [`None`] before the search is over, and where nothing got through.
    #[must_use]
    pub fn outcome(&self) -> Option<&Bottleneck> {
        self.outcome.as_ref()
    }

    fn climb_duration(&self, rate: Bitrate) -> Duration {
        climb_takes(self.config.ip_bytes, rate).max(CLIMB_FOR)
    }

    /// Takes in what became of the stream that was to be sent.
    pub fn handle(&mut self, record: &StreamRecord) {
        self.state = match self.state {
            State::Climb { .. } => self.climbed(record),
            State::Measure { rate, count } => self.measured(rate, count, record),
            State::Done => State::Done,
        };
    }

    fn climbed(&mut self, record: &StreamRecord) -> State {
        let State::Climb {
            rate,
            silent,
            is_doubtful,
            measured,
        } = self.state
        else {
            return self.state;
        };
        let (Some(delivered), Some(offered)) = (record.delivered_late(), record.offered()) else {
            return match silent + 1 < SILENT_MAX {
                true => State::Climb {
                    rate,
                    silent: silent + 1,
                    is_doubtful,
                    measured,
                },
                false => State::Done,
            };
        };
        let measure = |rate: Bitrate| State::Measure {
            rate: rate.min(self.config.max),
            count: measured,
        };
        let kept = 1.0 - record.loss();
        let is_slower =
            (delivered.bits_per_second() as f64) < HELD_BACK * offered.bits_per_second() as f64;
        let is_held_back = is_slower || kept < HELD_BACK;
        if is_held_back && kept > FEW_LOST && !is_doubtful {
            // A receiver that stood still for a moment looks the same: it is tried once more.
            return State::Climb {
                rate,
                silent,
                is_doubtful: true,
                measured,
            };
        }
        if is_held_back {
            return measure(scaled(delivered, OVERLOAD_PERCENT));
        }
        self.below.0 += record.sent;
        self.below.1 += record.lost();
        if (offered.bits_per_second() as f64) < SENDER_KEEPS * rate.bits_per_second() as f64 {
            return measure(scaled(offered, OVERLOAD_PERCENT));
        }
        if rate >= self.config.max {
            return measure(rate);
        }
        State::Climb {
            rate: scaled(rate, CLIMB_FACTOR * 100).min(self.config.max),
            silent: 0,
            is_doubtful: false,
            measured,
        }
    }

    fn measured(&mut self, rate: Bitrate, count: u32, record: &StreamRecord) -> State {
        let steady = record.steady();
        let (Some(delivered), Some(offered)) =
            (steady.or_else(|| record.delivered_late()), record.offered())
        else {
            return State::Done;
        };
        let passes = (1.0 - self.loss_below()) * NOT_HELD_BACK;
        let offered = offered.bits_per_second() as f64;
        let is_less = |rate: Bitrate| (rate.bits_per_second() as f64) < passes * offered;
        // A host that stood still for a moment makes a few seconds slow, but not all of them together.
        let is_held_back = is_less(delivered) && record.delivered().is_none_or(is_less);
        let sender_keeps = offered >= SENDER_KEEPS * rate.bits_per_second() as f64;
        // A sender that stood still for a moment gets a second try, one that is too slow no third.
        let may_rise =
            rate < self.config.max && (sender_keeps || count == 0) && count + 1 < MEASUREMENTS_MAX;
        if !is_held_back && may_rise {
            return State::Climb {
                rate: scaled(rate, 200).min(self.config.max),
                silent: 0,
                is_doubtful: false,
                measured: count + 1,
            };
        }
        self.outcome = Some(Bottleneck {
            rate: delivered,
            is_steady: steady.is_some(),
            limited_by: match (is_held_back, sender_keeps) {
                (true, _) => LimitedBy::Path,
                (false, true) => LimitedBy::MaxRate,
                (false, false) => LimitedBy::Sender,
            },
            loss_below: self.loss_below(),
        });
        State::Done
    }

    fn loss_below(&self) -> f64 {
        self.below.1 as f64 / self.below.0.max(1) as f64
    }
}

/// So many percent of a rate.
pub(super) fn scaled(rate: Bitrate, percent: u64) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(percent) / 100;
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// How long a stream of a climb must last to have its packets.
pub(super) fn climb_takes(ip_bytes: u16, rate: Bitrate) -> Duration {
    let bits = u64::from(ip_bytes) * 8 * CLIMB_PACKETS;
    Duration::from_secs_f64(bits as f64 / rate.bits_per_second().max(1) as f64)
}
