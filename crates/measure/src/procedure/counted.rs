//! The bottleneck rate of one direction where the far end only counts: an iperf3 server says how many of a
//! stream's packets came, and not when (RFC 6349 §3.2.2, from one end).
//!
//! ```text
//!  Climb: short streams, each four times as fast ── until less arrives than was sent ──┐
//!                                     ▲                                                ▼
//!          nothing was held back after all ◄── Long: the whole time ◄── Short: half the time
//! ```
//! Of a stream that overloads the path there arrives what the bucket held, what the bottleneck let through
//! while the stream lasted, and what still stood in its queue. The first and the last are the same for a
//! short stream and for a long one, and so is everything that the server's clock and the way to it add:
//!
//! ```text
//!  rate = (arrived of the long one − arrived of the short one) / (how much longer it was sent)
//! ```
//! to a packet or two. Two such pairs that agree to 0.1 % call a rate steady. Where the receiver is ours
//! (down) each arrival has its moment, and one long stream tells the rate as between two ends.
//!
//! The rate is that of IP packets of the planned size, headers included.

use std::time::Duration;

use vocab::Bitrate;

use super::bottleneck::{BottleneckResult, LimitedBy, OVERLOAD_PERCENT, SearchConfig, SearchStep};
use super::climb::{
    CLIMB_FROM, ClimbDecision, HELD_BACK, NOT_HELD_BACK, RateClimb, UncongestedLoss, is_kept,
    is_less, is_of_receiver, scaled,
};
use super::stream::{STEADY_PERMILLE, StreamPlan, StreamRecord};
use crate::wire::DatagramArrival;

/// Greatest duration of a stream of a climb: without arrival times a queue must overflow before it
/// is noticed.
const CLIMB_FOR: Duration = Duration::from_millis(500);
/// Share of its rate below which a sender has paused, so that a queue may have become empty.
const SENDER_STEADY: f64 = 0.98;
/// Measuring streams at most, should the climb have misjudged.
const MEASUREMENTS_MAX: u32 = 3;
/// Number of streams without arrivals after which the path counts as dead.
const SILENT_MAX: u32 = 2;
/// Greatest difference of two equal counts, in packets: at the beginning and at the end.
const PACKETS_APART: f64 = 2.0;

/// A stream with its counts.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedStream {
    /// Plan of the stream.
    pub plan: StreamPlan,
    /// Packets that left.
    pub sent: u64,
    /// Time from the first departure to the last; zero where the sender does not report it.
    pub span: Duration,
    /// Packets that arrived.
    pub received: u64,
    /// Jitter of arrivals, as a receiver that is not ours smoothed it (RFC 3550 §6.4.1).
    pub jitter: Option<Duration>,
    /// Each arrival, where the receiver is ours.
    pub arrivals: Vec<DatagramArrival>,
    /// Packets that came to the receiving host and found no room in the tester's socket, where that is ours.
    pub no_room: Option<u64>,
}

impl CountedStream {
    /// Packets that the path lost; where the receiver is not ours, those that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.came())
    }

    /// Packets that came to the receiving host, as far as that is known.
    fn came(&self) -> u64 {
        self.received + self.no_room.unwrap_or(0)
    }

    /// The stream with each arrival, where that is known.
    #[must_use]
    pub fn record(&self) -> Option<StreamRecord> {
        (!self.arrivals.is_empty()).then(|| StreamRecord {
            plan: self.plan,
            sent: self.sent,
            arrivals: self.arrivals.clone(),
            left_ns: Vec::new(),
            no_room: self.no_room.unwrap_or(0),
        })
    }

    fn kept(&self) -> f64 {
        self.received as f64 / self.sent.max(1) as f64
    }

    /// Bits of IP packets a second.
    fn rate_of(&self, packets: f64, span: Duration) -> Option<Bitrate> {
        let bits = packets * f64::from(self.plan.ip_bytes) * 8.0;
        let rate = bits / span.as_secs_f64();
        (rate.is_finite() && rate > 0.0).then(|| Bitrate::from_bits_per_second(rate.round() as u64))
    }

    fn offered(&self) -> Option<Bitrate> {
        let stamped = self.record().and_then(|record| record.offered());
        stamped.or_else(|| self.rate_of(self.sent.saturating_sub(1) as f64, self.span))
    }

    /// Rate that arrived over the sending time. It exceeds the line's rate where a bucket or a
    /// queue took in a part.
    fn arrived(&self) -> Option<Bitrate> {
        let late = self.record().and_then(|record| record.delivered_late());
        late.or_else(|| self.rate_of(self.received as f64, self.span))
    }
}

/// The search.
#[derive(Debug)]
pub struct CountedSearch {
    config: SearchConfig,
    state: CountedState,
    /// Last point of the climb, and the point of the short stream.
    climbed: Option<CountedPoint>,
    short: Option<CountedPoint>,
    below: UncongestedLoss,
    outcome: Option<BottleneckResult>,
}

/// Arrivals of a stream of some length.
#[derive(Clone, Copy, Debug)]
struct CountedPoint {
    span: Duration,
    received: u64,
}

#[derive(Clone, Copy, Debug)]
enum CountedState {
    Climb(RateClimb),
    Short {
        rate: Bitrate,
        measured: u32,
    },
    Long {
        rate: Bitrate,
        measured: u32,
        /// Set if a stream of this rate was held back by the tester's own socket.
        is_doubtful: bool,
    },
    Done,
}

impl CountedSearch {
    /// A search that has not begun.
    #[must_use]
    pub fn new(config: SearchConfig) -> Self {
        Self {
            config,
            state: CountedState::Climb(RateClimb::begin(CLIMB_FROM, config.max)),
            climbed: None,
            short: None,
            below: UncongestedLoss::default(),
            outcome: None,
        }
    }

    /// The same, with a climb that begins no slower than this, which the path is known to carry.
    #[must_use]
    pub fn from_at_least(mut self, carried: Bitrate) -> Self {
        self.state =
            CountedState::Climb(RateClimb::begin(carried.max(CLIMB_FROM), self.config.max));
        self
    }

    /// Next step; it stays the same until [`CountedSearch::handle`] has the counts.
    #[must_use]
    pub fn next_step(&self) -> SearchStep {
        let (rate, duration) = match self.state {
            CountedState::Climb(climb) => (climb.rate, self.climb_duration(climb)),
            CountedState::Short { rate, .. } => (rate, self.config.measure_for / 2),
            CountedState::Long { rate, .. } => (rate, self.config.measure_for),
            CountedState::Done => return SearchStep::Done,
        };
        SearchStep::Stream(StreamPlan {
            rate,
            duration,
            ip_bytes: self.config.ip_bytes,
        })
    }

    /// Tells whether the next stream measures by overload and must find full buckets.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        matches!(
            self.state,
            CountedState::Short { .. } | CountedState::Long { .. }
        )
    }

    /// Result; [`None`] before the search is over, and where no packet got through.
    #[must_use]
    pub fn outcome(&self) -> Option<&BottleneckResult> {
        self.outcome.as_ref()
    }

    fn climb_duration(&self, climb: RateClimb) -> Duration {
        climb
            .least_duration(self.config.ip_bytes)
            .max(CLIMB_FOR.min(self.config.measure_for / 4))
            .min(self.config.measure_for)
    }

    /// Takes in the counts of the stream that was to be sent.
    pub fn handle(&mut self, stream: &CountedStream) {
        self.state = match self.state {
            CountedState::Climb(climb) => self.climbed(stream, climb),
            CountedState::Short { rate, measured } => self.was_short(stream, rate, measured),
            CountedState::Long {
                rate,
                measured,
                is_doubtful,
            } => self.was_long(stream, rate, measured, is_doubtful),
            CountedState::Done => CountedState::Done,
        };
    }

    fn climbed(&mut self, stream: &CountedStream, climb: RateClimb) -> CountedState {
        let (Some(arrived), Some(offered)) = (stream.arrived(), stream.offered()) else {
            return climb
                .after_silence(SILENT_MAX)
                .map_or(CountedState::Done, CountedState::Climb);
        };
        let measure = |from: Bitrate| {
            // Stamps that make no sense must not ask for nothing, which iperf3 takes for no limit.
            let rate = scaled(from, OVERLOAD_PERCENT).max(CLIMB_FROM);
            let (rate, measured) = (rate.min(self.config.max), climb.measured);
            match stream.arrivals.is_empty() {
                true => CountedState::Short { rate, measured },
                false => CountedState::Long {
                    rate,
                    measured,
                    is_doubtful: false,
                },
            }
        };
        let is_slower = !stream.arrivals.is_empty() && is_less(arrived, HELD_BACK, offered);
        if stream.kept() < HELD_BACK || is_slower {
            self.climbed = Some(point(stream));
            return measure(arrived);
        }
        self.climbed = None;
        self.below.add(stream.sent, stream.lost());
        match climb.passed(offered, self.config.max) {
            ClimbDecision::Climb(faster) => CountedState::Climb(faster),
            ClimbDecision::Measure(from) => measure(from),
        }
    }

    fn was_short(&mut self, stream: &CountedStream, rate: Bitrate, measured: u32) -> CountedState {
        let Some(arrived) = stream.arrived() else {
            return CountedState::Done;
        };
        if !self.is_held_back(stream) {
            return self.rise_or_end(stream, rate, measured);
        }
        self.short = Some(point(stream));
        // A deep queue made the climb's last stream look faster than the path is.
        let rate = scaled(arrived, OVERLOAD_PERCENT).min(rate);
        CountedState::Long {
            rate,
            measured,
            is_doubtful: false,
        }
    }

    fn was_long(
        &mut self,
        stream: &CountedStream,
        rate: Bitrate,
        measured: u32,
        is_doubtful: bool,
    ) -> CountedState {
        if !self.is_held_back(stream) {
            return self.rise_or_end(stream, rate, measured);
        }
        let (came, no_room) = (stream.came(), stream.no_room.unwrap_or(0));
        let share = came as f64 / stream.sent.max(1) as f64;
        let is_of_receiver = is_of_receiver(came, no_room, || share >= self.passes());
        if is_of_receiver && !is_doubtful {
            return CountedState::Long {
                rate,
                measured,
                is_doubtful: true,
            };
        }
        let stamped = stream.record();
        let (rate_found, is_steady) = match (&stamped, self.short) {
            (Some(record), _) => {
                let steady = record.steady();
                (steady.or_else(|| record.delivered_late()), steady.is_some())
            }
            (None, Some(short)) => {
                let earlier = self.climbed.and_then(|first| between(stream, first, short));
                let late = between(stream, short, point(stream));
                let is_steady = late
                    .zip(earlier)
                    .is_some_and(|(late, earlier)| are_alike(late, earlier))
                    && is_even(stream);
                (late.map(|late| late.rate), is_steady)
            }
            (None, None) => (stream.arrived(), false),
        };
        if let Some(rate) = rate_found {
            let limit = match is_of_receiver {
                true => LimitedBy::Receiver,
                false => LimitedBy::Path,
            };
            self.end(rate, is_steady, limit);
        }
        CountedState::Done
    }

    /// Continues after a stream that was not held back: the path carries more, unless the sender
    /// cannot send faster.
    fn rise_or_end(
        &mut self,
        stream: &CountedStream,
        rate: Bitrate,
        measured: u32,
    ) -> CountedState {
        let (Some(arrived), Some(offered)) = (stream.arrived(), stream.offered()) else {
            return CountedState::Done;
        };
        let max = self.config.max;
        if let Some(climb) = RateClimb::further(rate, offered, max, measured + 1, MEASUREMENTS_MAX)
        {
            return CountedState::Climb(climb);
        }
        let limit = match is_kept(offered, rate) {
            true => LimitedBy::MaxRate,
            false => LimitedBy::Sender,
        };
        self.end(arrived.min(offered), false, limit);
        CountedState::Done
    }

    fn is_held_back(&self, stream: &CountedStream) -> bool {
        stream.kept() < self.passes()
    }

    /// Share of a stream that arrives when it is not held back.
    fn passes(&self) -> f64 {
        (1.0 - self.below.loss()) * NOT_HELD_BACK
    }

    fn end(&mut self, rate: Bitrate, is_steady: bool, limited_by: LimitedBy) {
        self.outcome = Some(BottleneckResult {
            rate,
            is_steady,
            limited_by,
            loss_below: self.below.loss(),
        });
    }
}

fn point(stream: &CountedStream) -> CountedPoint {
    CountedPoint {
        span: stream.span,
        received: stream.received,
    }
}

/// Difference between the arrivals of a stream and those of a shorter one.
#[derive(Clone, Copy)]
struct StreamDifference {
    rate: Bitrate,
    packets: f64,
}

fn between(
    of: &CountedStream,
    short: CountedPoint,
    long: CountedPoint,
) -> Option<StreamDifference> {
    let packets = long.received.checked_sub(short.received)? as f64;
    let rate = of.rate_of(packets, long.span.checked_sub(short.span)?)?;
    Some(StreamDifference { rate, packets })
}

/// Compares two rates to 0.1 %, or as closely as whole packets allow.
fn are_alike(one: StreamDifference, other: StreamDifference) -> bool {
    let (a, b) = (
        one.rate.bits_per_second() as f64,
        other.rate.bits_per_second() as f64,
    );
    let whole = PACKETS_APART / one.packets.min(other.packets).max(1.0);
    (a - b).abs() <= (STEADY_PERMILLE / 1_000.0).max(whole) * a.max(b)
}

/// Tells whether the sender never paused for long.
fn is_even(stream: &CountedStream) -> bool {
    let asked = stream.plan.rate.bits_per_second() as f64;
    let offered = stream.offered().map_or(0, Bitrate::bits_per_second) as f64;
    offered >= SENDER_STEADY * asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procedure::slow_host::taken_in;

    /// A path as packets are counted behind it: a bucket of some bytes, then a rate, with a queue of some
    /// bytes that drains after the stream.
    struct CountedPath {
        bit_s: f64,
        bucket: f64,
        queue: f64,
        /// The share that is lost before it.
        loss: f64,
    }

    impl CountedPath {
        fn send(&self, plan: StreamPlan) -> CountedStream {
            let size = f64::from(plan.ip_bytes);
            let gap = size * 8.0 / plan.rate.bits_per_second() as f64;
            let sent = (plan.duration.as_secs_f64() / gap).floor() + 1.0;
            let span = (sent - 1.0) * gap;
            let room = self.bit_s * span / 8.0 + self.bucket + self.queue;
            let received = (sent * (1.0 - self.loss))
                .floor()
                .min((room / size).floor());
            CountedStream {
                plan,
                sent: sent as u64,
                span: Duration::from_secs_f64(span),
                received: received as u64,
                jitter: None,
                arrivals: Vec::new(),
                no_room: None,
            }
        }
    }

    fn search(path: &CountedPath, max: u64) -> (BottleneckResult, Vec<StreamPlan>) {
        let mut search = CountedSearch::new(SearchConfig {
            max: Bitrate::from_bits_per_second(max),
            measure_for: Duration::from_secs(10),
            ip_bytes: 1_500,
        });
        let mut plans = Vec::new();
        while let SearchStep::Stream(plan) = search.next_step() {
            plans.push(plan);
            assert!(plans.len() < 30, "{plans:?}");
            search.handle(&path.send(plan));
        }
        (search.outcome().expect("packets arrive").clone(), plans)
    }

    #[test]
    fn bucket_and_queue_content_is_not_counted() {
        for (bit_s, bucket, queue) in [
            (512e3, 0.0, 64e3),
            (10e6, 0.0, 125e3),
            // A second and a half of its rate waits.
            (10e6, 0.0, 1_875e3),
            (10e6, 500e3, 0.0),
            (155e6, 2e6, 1e6),
        ] {
            let path = CountedPath {
                bit_s,
                bucket,
                queue,
                loss: 0.0,
            };
            let (found, plans) = search(&path, 1_000_000_000);
            let error = found.rate.bits_per_second() as f64 / bit_s - 1.0;
            // A packet at each end of five seconds.
            let bar = (2.0 * 12_000.0 / (bit_s * 5.0)).max(0.000_1);
            assert!(error.abs() <= bar, "{bit_s} {bucket} {queue}: {error}");
            assert_eq!(found.limited_by, LimitedBy::Path);
            assert!(found.is_steady, "{bit_s} {bucket} {queue}");
            let last = plans.last().expect("a long one").rate.bits_per_second() as f64;
            assert!(
                (1.3..2.0).contains(&(last / bit_s)),
                "the path is overloaded by half: {last} of {bit_s}"
            );
        }
    }

    /// A bucket of a second and more that empties only while it is measured.
    #[test]
    fn late_emptying_bucket_is_not_called_steady() {
        let path = CountedPath {
            bit_s: 10e6,
            bucket: 3_000e3,
            queue: 0.0,
            loss: 0.0,
        };
        let (found, _) = search(&path, 1_000_000_000);
        let rate = found.rate.bits_per_second() as f64;
        assert!(
            !found.is_steady || (rate / 10e6 - 1.0).abs() < 0.001,
            "{rate}"
        );
    }

    #[test]
    fn random_loss_is_no_bottleneck() {
        let path = CountedPath {
            bit_s: 20e6,
            bucket: 0.0,
            queue: 50e3,
            loss: 0.05,
        };
        let (found, _) = search(&path, 1_000_000_000);
        let error = found.rate.bits_per_second() as f64 / 20e6 - 1.0;
        assert!(error.abs() < 0.002, "{error}");
        assert!((0.04..0.06).contains(&found.loss_below), "{found:?}");
    }

    #[test]
    fn path_that_carries_the_whole_offer_is_named() {
        let path = CountedPath {
            bit_s: 1e9,
            bucket: 0.0,
            queue: 1e6,
            loss: 0.0,
        };
        let (found, plans) = search(&path, 8_000_000);
        assert_eq!(found.limited_by, LimitedBy::MaxRate);
        let rate = found.rate.bits_per_second() as f64;
        assert!((rate / 8e6 - 1.0).abs() < 0.001, "{rate}");
        assert!(
            plans
                .iter()
                .all(|plan| plan.rate.bits_per_second() <= 8_000_000)
        );
    }

    /// A climb begins at the rate that TCP has already reached.
    #[test]
    fn climb_begins_at_the_known_rate() {
        let config = SearchConfig {
            max: Bitrate::from_bits_per_second(1_000_000_000),
            measure_for: Duration::from_secs(10),
            ip_bytes: 1_500,
        };
        for (carried, expected) in [(5_000_000, 5_000_000), (0, 256_000)] {
            let carried = Bitrate::from_bits_per_second(carried);
            let SearchStep::Stream(first) = CountedSearch::new(config)
                .from_at_least(carried)
                .next_step()
            else {
                panic!("a search begins with a stream");
            };
            assert_eq!(first.rate.bits_per_second(), expected);
        }
    }

    #[test]
    fn silent_path_gives_no_rate_and_little_traffic() {
        let mut search = CountedSearch::new(SearchConfig {
            max: Bitrate::from_bits_per_second(1_000_000_000),
            measure_for: Duration::from_secs(10),
            ip_bytes: 1_500,
        });
        let mut streams = 0;
        while let SearchStep::Stream(plan) = search.next_step() {
            assert!(plan.rate <= CLIMB_FROM);
            streams += 1;
            search.handle(&CountedStream {
                plan,
                sent: 0,
                span: Duration::ZERO,
                received: 0,
                jitter: None,
                arrivals: Vec::new(),
                no_room: None,
            });
        }
        assert_eq!((streams, search.outcome()), (SILENT_MAX, None));
    }

    /// Down, where the receiver is ours: a host that takes in 20 Mbit/s behind a path that carries more, always and once.
    #[test]
    fn receiver_limit_is_distinguished_from_the_paths() {
        let find = |host_at: fn(u32) -> bool| {
            let mut search = CountedSearch::new(SearchConfig {
                max: Bitrate::from_bits_per_second(30_000_000),
                measure_for: Duration::from_secs(5),
                ip_bytes: 1_500,
            });
            let mut measuring = 0;
            while let SearchStep::Stream(plan) = search.next_step() {
                measuring += u32::from(search.is_measuring());
                let gap = 12_000 * 1_000_000_000 / plan.rate.bits_per_second();
                let sent = plan.duration.as_nanos() as u64 / gap;
                let line = gap.max(12_000 * 1_000_000_000 / 26_000_000);
                let all = (0..sent * gap / line).map(|place| DatagramArrival {
                    number: place * line / gap,
                    sent_ns: place * line,
                    arrived_ns: place * line,
                });
                let mut record = StreamRecord {
                    plan,
                    sent,
                    arrivals: all.collect(),
                    left_ns: Vec::new(),
                    no_room: 0,
                };
                if host_at(measuring) {
                    record = taken_in(record, Bitrate::from_bits_per_second(20_000_000), 500);
                }
                let stream = CountedStream {
                    plan,
                    sent,
                    span: Duration::ZERO,
                    received: record.arrivals.len() as u64,
                    jitter: None,
                    no_room: Some(record.no_room),
                    arrivals: record.arrivals,
                };
                assert_eq!(stream.lost(), sent - sent * gap / line);
                search.handle(&stream);
            }
            let found = search.outcome().expect("packets arrive").clone();
            (measuring, found.limited_by, found.rate)
        };
        let near = |rate: Bitrate, expected: f64| {
            (rate.bits_per_second() as f64 / expected - 1.0).abs() < 0.002
        };
        let (measuring, limit, rate) = find(|_| true);
        assert_eq!((measuring, limit), (2, LimitedBy::Receiver));
        assert!(near(rate, 20e6), "{rate}");
        let (measuring, limit, rate) = find(|measuring| measuring == 1);
        assert_eq!((measuring, limit), (2, LimitedBy::Path));
        assert!(near(rate, 26e6), "{rate}");
    }

    /// Down, where each arrival has its moment: one long stream, no short one.
    #[test]
    fn arrivals_with_their_moments_need_one_stream_only() {
        let arriving = |plan: StreamPlan| {
            let gap = |rate: f64| (12_000.0 * 1e9 / rate) as u64;
            let offered = plan.rate.bits_per_second() as f64;
            let sent = plan.duration.as_nanos() as u64 / gap(offered);
            let received = plan.duration.as_nanos() as u64 / gap(offered.min(10e6));
            let arrivals = (0..received).map(|place| DatagramArrival {
                number: place * sent / received,
                sent_ns: place * sent / received * gap(offered),
                arrived_ns: place * gap(offered.min(10e6)),
            });
            CountedStream {
                plan,
                sent,
                span: Duration::ZERO,
                received,
                jitter: None,
                arrivals: arrivals.collect(),
                no_room: Some(0),
            }
        };
        let mut search = CountedSearch::new(SearchConfig {
            max: Bitrate::from_bits_per_second(1_000_000_000),
            measure_for: Duration::from_secs(10),
            ip_bytes: 1_500,
        });
        let mut measuring = 0;
        while let SearchStep::Stream(plan) = search.next_step() {
            measuring += u32::from(search.is_measuring());
            search.handle(&arriving(plan));
        }
        let found = search.outcome().expect("packets arrive");
        assert_eq!(measuring, 1);
        assert!(found.is_steady);
        let error = found.rate.bits_per_second() as f64 / 10e6 - 1.0;
        assert!(error.abs() < 0.000_1, "{error}");
    }
}
