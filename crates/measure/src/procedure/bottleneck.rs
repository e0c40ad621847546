//! The bottleneck rate of one direction, from streams that do not react (RFC 6349 §3.2.2).
//!
//! ```text
//!  Climb: short streams, each four times as fast ── until less arrives than was sent ──► Measure
//!  Measure: one stream at 1.5 times what arrived, long enough to empty any bucket ──► Done
//!           nothing was held back after all ──► Climb on, from twice that rate
//!           the tester's own socket held it back ──► once more
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

use super::climb::{
    CLIMB_FROM, ClimbDecision, HELD_BACK, NOT_HELD_BACK, RateClimb, UncongestedLoss, is_kept,
    is_less, is_of_receiver, scaled,
};
use super::stream::{StreamPlan, StreamRecord};

/// Load of the measuring stream, in percent of the presumed rate. To recognise a policer's bucket,
/// it exceeds the rate by half.
pub const OVERLOAD_PERCENT: u64 = 150;

/// Least duration of a stream of a climb.
const CLIMB_FOR: Duration = Duration::from_millis(100);
/// Factor of the duration where a host may have stopped: a second error would cost a whole
/// measuring stream.
const DOUBT_TIMES: u32 = 4;
/// Share of arrivals above which a slower stream may have met a host that stopped.
const FEW_LOST: f64 = 0.98;
/// Measuring streams at most, should the climb have misjudged.
const MEASUREMENTS_MAX: u32 = 4;
/// Number of streams without arrivals after which the path counts as dead.
const SILENT_MAX: u32 = 3;

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Send this stream and report its arrivals.
    Stream(StreamPlan),
    /// The search is over.
    Done,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchConfig {
    /// No stream is faster.
    pub max: Bitrate,
    /// Duration of the measuring stream.
    pub measure_for: Duration,
    /// Bytes of each IP packet: the path MTU.
    pub ip_bytes: u16,
}

/// Limit that kept more from arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// The path.
    Path,
    /// The rate that streams may have at most; the path may carry more.
    MaxRate,
    /// The sender, which could not send as fast; the path may carry more.
    Sender,
    /// The receiver, which had no room for packets; the path may carry more.
    Receiver,
}

impl LimitedBy {
    /// Tells whether a host of the tester was too slow, either the sender or the receiver.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, LimitedBy::Sender | LimitedBy::Receiver)
    }
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct BottleneckResult {
    /// Rate of IP packets.
    pub rate: Bitrate,
    /// True if the rate was steady to 0.1 % in two consecutive seconds.
    pub is_steady: bool,
    /// The limit.
    pub limited_by: LimitedBy,
    /// The share of packets lost at rates that the path carries.
    pub loss_below: f64,
}

/// The search.
#[derive(Debug)]
pub struct BottleneckSearch {
    config: SearchConfig,
    state: BottleneckState,
    below: UncongestedLoss,
    outcome: Option<BottleneckResult>,
}

#[derive(Clone, Copy, Debug)]
enum BottleneckState {
    Climb {
        climb: RateClimb,
        /// Set if a stream of this rate arrived slower than it was sent, with little loss.
        is_doubtful: bool,
    },
    Measure {
        rate: Bitrate,
        /// Measuring streams before this.
        measured: u32,
        /// Set if a stream of this rate was held back by the tester's own socket.
        is_doubtful: bool,
    },
    Done,
}

impl BottleneckState {
    fn climb(climb: RateClimb) -> Self {
        BottleneckState::Climb {
            climb,
            is_doubtful: false,
        }
    }
}

impl BottleneckSearch {
    /// A search that has not begun.
    #[must_use]
    pub fn new(config: SearchConfig) -> Self {
        Self {
            config,
            state: BottleneckState::climb(RateClimb::begin(CLIMB_FROM, config.max)),
            below: UncongestedLoss::default(),
            outcome: None,
        }
    }

    /// Next step; it stays the same until [`BottleneckSearch::handle`] has the record.
    #[must_use]
    pub fn next_step(&self) -> SearchStep {
        let (rate, duration) = match self.state {
            BottleneckState::Climb { climb, is_doubtful } => {
                let once = climb.least_duration(self.config.ip_bytes).max(CLIMB_FOR);
                let times = if is_doubtful { DOUBT_TIMES } else { 1 };
                (climb.rate, once * times)
            }
            BottleneckState::Measure { rate, .. } => (rate, self.config.measure_for),
            BottleneckState::Done => return SearchStep::Done,
        };
        SearchStep::Stream(StreamPlan {
            rate,
            duration,
            ip_bytes: self.config.ip_bytes,
        })
    }

    /// Tells whether the next stream is a measuring one, whose record should be kept.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        matches!(self.state, BottleneckState::Measure { .. })
    }

    /// Result; [`None`] before the search is over, and where no packet got through.
    #[must_use]
    pub fn outcome(&self) -> Option<&BottleneckResult> {
        self.outcome.as_ref()
    }

    /// Takes in the record of the stream that was to be sent.
    pub fn handle(&mut self, record: &StreamRecord) {
        self.state = match self.state {
            BottleneckState::Climb { climb, is_doubtful } => {
                self.climbed(record, climb, is_doubtful)
            }
            BottleneckState::Measure {
                rate,
                measured,
                is_doubtful,
            } => self.measured(record, rate, measured, is_doubtful),
            BottleneckState::Done => BottleneckState::Done,
        };
    }

    fn climbed(
        &mut self,
        record: &StreamRecord,
        climb: RateClimb,
        is_doubtful: bool,
    ) -> BottleneckState {
        let (Some(delivered), Some(offered)) = (record.delivered_late(), record.offered()) else {
            let again = climb.after_silence(SILENT_MAX);
            return again.map_or(BottleneckState::Done, |climb| BottleneckState::Climb {
                climb,
                is_doubtful,
            });
        };
        let measure = |from: Bitrate| BottleneckState::Measure {
            rate: scaled(from, OVERLOAD_PERCENT).min(self.config.max),
            measured: climb.measured,
            is_doubtful: false,
        };
        let kept = 1.0 - record.loss();
        let is_held_back = is_less(delivered, HELD_BACK, offered) || kept < HELD_BACK;
        if is_held_back && kept > FEW_LOST && !is_doubtful {
            // A receiver that stood still for a moment looks the same: it is tried once more.
            return BottleneckState::Climb {
                climb,
                is_doubtful: true,
            };
        }
        if is_held_back {
            return measure(delivered);
        }
        self.below.add(record.sent, record.lost());
        match climb.passed(offered, self.config.max) {
            ClimbDecision::Climb(faster) => BottleneckState::climb(faster),
            ClimbDecision::Measure(from) => measure(from),
        }
    }

    fn measured(
        &mut self,
        record: &StreamRecord,
        rate: Bitrate,
        measured: u32,
        is_doubtful: bool,
    ) -> BottleneckState {
        let steady = record.steady();
        let (Some(delivered), Some(offered)) =
            (steady.or_else(|| record.delivered_late()), record.offered())
        else {
            return BottleneckState::Done;
        };
        let passes = (1.0 - self.below.loss()) * NOT_HELD_BACK;
        let is_slower = |rate: Bitrate| is_less(rate, passes, offered);
        // A host that stood still for a moment makes a few seconds slow, but not all of them together.
        let is_held_back = is_slower(delivered) && record.delivered().is_none_or(is_slower);
        let (arrived, came) = (record.arrivals.len() as u64, record.came());
        let with_the_rest =
            delivered.bits_per_second() as f64 * came as f64 / arrived.max(1) as f64;
        let would_pass = || !is_slower(Bitrate::from_bits_per_second(with_the_rest as u64));
        let is_of_receiver = is_held_back && is_of_receiver(came, record.no_room, would_pass);
        // Nor is a stream read for causes of which the host lost much of what is missing.
        let is_spoilt = is_of_receiver || (is_held_back && record.is_overrun());
        if is_spoilt && !is_doubtful {
            // A host that others keep busy has more time a moment later, perhaps.
            return BottleneckState::Measure {
                rate,
                measured,
                is_doubtful: true,
            };
        }
        let max = self.config.max;
        let further = RateClimb::further(rate, offered, max, measured + 1, MEASUREMENTS_MAX);
        if let (false, Some(climb)) = (is_held_back, further) {
            return BottleneckState::climb(climb);
        }
        self.outcome = Some(BottleneckResult {
            rate: delivered,
            is_steady: steady.is_some(),
            limited_by: match (is_held_back, is_kept(offered, rate)) {
                (true, _) if is_of_receiver => LimitedBy::Receiver,
                (true, _) => LimitedBy::Path,
                (false, true) => LimitedBy::MaxRate,
                (false, false) => LimitedBy::Sender,
            },
            loss_below: self.below.loss(),
        });
        BottleneckState::Done
    }
}
