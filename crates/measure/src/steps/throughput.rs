//! Throughput, frame loss and back-to-back bursts by RFC 2544, as later documents mend it.
//!
//! ```text
//!  for each direction and frame size
//!    climb      the bottleneck's rate, roughly, by streams that never flood for long
//!    search     loads around it, tried until each is a lower or an upper bound by the goal; halved between
//!    loss       from half above the throughput down in tenths, until two in a row lose nothing (§26.3)
//!    bursts     far above the throughput: frames until the first is lost (§26.4, RFC 9004)
//! ```
//! RFC 2544 §26.1 wants the highest rate at which nothing is lost, found by single trials, and so differs from run
//! to run. The search is that of MLRsearch (draft-ietf-bmwg-mlrsearch): a [`SearchGoal`] says which loss ratio a trial
//! may have, for how long a load is tried, and which share of that time may go wrong; a load is a lower bound
//! once no further trials could make it fail, an upper bound once none could save it; the result is both
//! bounds, no further apart than the goal's width.
//!
//! Latency is of the trials at the lower bound, as a round trip (see [`StreamResult`]).

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Bitrate;

use super::{StreamResult, StreamTest, of_frames, of_packets, scale, stream};
use crate::procedure::{
    BottleneckSearch, LimitedBy, SearchConfig, SearchStep, StreamPlan, StreamRecord,
};
use crate::wire::TestDirection;

/// First load of the frame loss test, in percent of the throughput's upper bound, and its steps.
const LOSS_FROM_PERCENT: u64 = 150;
const LOSS_STEP_PERCENT: u64 = 10;
/// RFC 2544 §26.3: "until there are two successive trials in which no frames are lost".
const LOSSLESS_IN_A_ROW: usize = 2;
/// Ratio of the burst rate to the throughput, and the number and length of bursts: RFC 2544 §26.4
/// has at least 2 s fifty times, on links that nobody else uses.
const BURST_TIMES: u64 = 4;
const BURSTS: usize = 3;
const BURST_FOR: Duration = Duration::from_secs(2);
/// A burst that is no faster than this, in percent of the throughput, says nothing of a buffer.
const BURST_MIN_PERCENT: u64 = 120;
/// Trials of a load at which the sender did not keep its rate, or the receiver had no room, after
/// which the load counts as more than that host can handle.
const UNKEPT_MAX: u32 = 4;
/// Loads that are tried at most for one frame size, should nothing ever be a lower bound.
const LOADS_MAX: usize = 40;
/// The slowest load that is tried.
const SLOWEST: Bitrate = Bitrate::from_bits_per_second(16_000);

/// Goal of a search: the conditions under which a load counts as carried (MLRsearch).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchGoal {
    /// The greatest loss ratio of a good trial; RFC 2544's is 0.
    pub loss_ratio: f64,
    /// Duration of a trial.
    pub trial: Duration,
    /// Total duration of the trials of a load.
    pub duration_sum: Duration,
    /// The share of that time that bad trials may take.
    pub exceed_ratio: f64,
    /// Greatest distance of the bounds, as a share of the upper one.
    pub width: f64,
}

/// Classification of a load by its trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadClass {
    /// The load is carried, whatever further trials show.
    Lower,
    /// The load is not carried, whatever further trials show.
    Upper,
    /// Further trials decide.
    Undecided,
}

/// The trials of one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTrials {
    /// Duration of the trials within the goal's loss ratio.
    pub good: Duration,
    /// Duration of the other trials.
    pub bad: Duration,
}

impl LoadTrials {
    /// Classifies the load by a goal. The load is a lower bound if the share of bad time is small
    /// enough even if all missing time were bad, and an upper bound if it is too large even if all
    /// missing time were good.
    #[must_use]
    pub fn class(&self, goal: &SearchGoal) -> LoadClass {
        let (good, bad) = (self.good.as_secs_f64(), self.bad.as_secs_f64());
        let all = goal.duration_sum.as_secs_f64().max(good + bad);
        let missing = all - good - bad;
        let allowed = goal.exceed_ratio * all;
        // Sums of seconds are not exact.
        const GRAIN: f64 = 1e-9;
        if bad > allowed + GRAIN {
            LoadClass::Upper
        } else if bad + missing <= allowed + GRAIN {
            LoadClass::Lower
        } else {
            LoadClass::Undecided
        }
    }
}

/// Plan of a throughput test.
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputPlan {
    /// Directions to test, each by itself.
    pub directions: Vec<TestDirection>,
    /// Sizes of frames.
    pub frames: Vec<u16>,
    /// No stream is faster, in whole frames.
    pub max_rate: Bitrate,
    /// Greatest duration of a stream: the server's limit.
    pub stream_max: Duration,
    /// Goal of the search.
    pub goal: SearchGoal,
    /// Set if frame loss and bursts are measured, too.
    pub is_whole: bool,
}

/// Loss at an offered rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossStep {
    /// Load in percent of the throughput's upper bound.
    pub percent: u64,
    /// Results of the stream.
    pub seen: StreamResult,
}

/// Results of the burst test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackToBack {
    /// Bursts with a lost frame.
    pub bursts: usize,
    /// The mean of the frames that came through from a burst's beginning to its first loss; where nothing was
    /// lost, of all of the burst.
    pub frames: f64,
    /// Set if every burst came through whole, so that buffers hold at least that.
    pub is_at_least: bool,
    /// Rate of the bursts, in whole frames.
    pub rate: Bitrate,
    /// Buffer time (RFC 9004 §5.4): frames over the burst's rate, less the part that drained
    /// meanwhile.
    pub buffer_time: Duration,
    /// The same in bytes of frames.
    pub buffer_bytes: f64,
}

/// A host of the tester's that was too slow for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowEnd {
    /// The sender could not send it.
    Sender,
    /// The receiver's socket had no room for it.
    Receiver,
}

/// Results for one frame size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizeResult {
    /// Bytes of a frame.
    pub frame: u16,
    /// Highest load that meets the goal, in whole frames; [`None`] where none does.
    pub lower: Option<Bitrate>,
    /// Lowest load that does not; [`None`] where even the highest possible load is carried.
    pub upper: Option<Bitrate>,
    /// Host that was too slow for `upper`; [`None`] where `upper` is the path's.
    pub slow_end: Option<SlowEnd>,
    /// Loads tried, and trials.
    pub loads: usize,
    /// Trials of all loads.
    pub trials: usize,
    /// Results of the trials at the lower bound.
    pub at_lower: Option<StreamResult>,
    /// Frame loss, from the fastest down.
    pub losses: Vec<LossStep>,
    /// Bursts.
    pub back_to_back: Option<BackToBack>,
}

impl SizeResult {
    /// Lowest load that the path did not carry; [`None`] where one of the tester's hosts was too
    /// slow for more.
    #[must_use]
    pub fn not_carried(&self) -> Option<Bitrate> {
        self.upper.filter(|_| self.slow_end.is_none())
    }
}

/// A test under way.
#[derive(Debug)]
pub struct ThroughputProcedure {
    plan: ThroughputPlan,
    baseline_rtt: Option<Duration>,
    left: VecDeque<(TestDirection, u16)>,
    all: usize,
    stage: ThroughputStage,
    found: SizeResult,
    done: Vec<(TestDirection, SizeResult)>,
    given_up: Option<String>,
}

#[derive(Debug)]
enum ThroughputStage {
    Climb(Box<BottleneckSearch>),
    Search(ThroughputSearch),
    Loss { percent: u64, lossless: usize },
    Bursts(Vec<(u64, bool, Bitrate)>),
    Done,
}

/// Loads between which the throughput is.
#[derive(Clone, Copy, Debug)]
struct ThroughputSearch {
    lower: Option<Bitrate>,
    upper: Option<Bitrate>,
    load: Bitrate,
    trials: LoadTrials,
    seen: Option<StreamResult>,
    unkept: u32,
    /// The host that was too slow for the upper bound.
    slow_end: Option<SlowEnd>,
    /// Distance of the next load outside of the bounds from the last one.
    stride: f64,
}

impl ThroughputProcedure {
    /// A test that has not begun, on a path of this baseline RTT.
    ///
    /// # Panics
    /// When the plan names no direction or no frame size, or frames that are too small.
    #[must_use]
    pub fn new(plan: ThroughputPlan, baseline_rtt: Option<Duration>) -> Self {
        assert!(!plan.directions.is_empty(), "a test has a direction");
        assert!(!plan.frames.is_empty(), "a test has a frame size");
        assert!(plan.frames.iter().all(|frame| *frame >= super::FRAME_MIN));
        let left: VecDeque<(TestDirection, u16)> = plan
            .directions
            .iter()
            .flat_map(|direction| plan.frames.iter().map(|frame| (*direction, *frame)))
            .collect();
        let mut test = Self {
            plan,
            baseline_rtt,
            all: left.len(),
            left,
            stage: ThroughputStage::Done,
            found: SizeResult::default(),
            done: Vec::new(),
            given_up: None,
        };
        test.begin_size();
        test
    }

    /// Plan of the test.
    #[must_use]
    pub fn plan(&self) -> &ThroughputPlan {
        &self.plan
    }

    /// The least RTT of small probes.
    #[must_use]
    pub fn baseline_rtt(&self) -> Option<Duration> {
        self.baseline_rtt
    }

    /// Results so far.
    #[must_use]
    pub fn done(&self) -> &[(TestDirection, SizeResult)] {
        &self.done
    }

    /// Why the test ended before its time.
    #[must_use]
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    fn begin_size(&mut self) {
        let Some((_, frame)) = self.left.front().copied() else {
            self.stage = ThroughputStage::Done;
            return;
        };
        self.found = SizeResult {
            frame,
            ..SizeResult::default()
        };
        let trial = self.plan.goal.trial.min(self.plan.stream_max);
        self.stage = ThroughputStage::Climb(Box::new(BottleneckSearch::new(SearchConfig {
            max: of_packets(self.plan.max_rate, frame),
            measure_for: trial,
            ip_bytes: frame - super::FRAME_OVERHEAD,
        })));
    }

    fn end_size(&mut self) {
        if let Some((direction, _)) = self.left.pop_front() {
            self.done.push((direction, std::mem::take(&mut self.found)));
        }
        self.begin_size();
    }

    fn climbed(&mut self, mut search: Box<BottleneckSearch>, record: &StreamRecord, frame: u16) {
        search.handle(record);
        if search.next_step() != SearchStep::Done {
            self.stage = ThroughputStage::Climb(search);
            return;
        }
        let Some(found) = search.outcome() else {
            return self.end_size();
        };
        // A search that was not held back tries the fastest it may.
        let load = match found.limited_by {
            LimitedBy::MaxRate => self.plan.max_rate,
            LimitedBy::Path | LimitedBy::Sender | LimitedBy::Receiver => {
                let below =
                    found.rate.bits_per_second() as f64 * (1.0 - self.plan.goal.width / 2.0);
                of_frames(Bitrate::from_bits_per_second(below as u64), frame)
            }
        };
        self.stage = ThroughputStage::Search(ThroughputSearch {
            lower: None,
            upper: None,
            load: load.min(self.plan.max_rate).max(SLOWEST),
            trials: LoadTrials::default(),
            seen: None,
            unkept: 0,
            slow_end: None,
            stride: self.plan.goal.width.max(1e-4),
        });
        self.found.loads = 1;
    }

    fn searched(&mut self, mut search: ThroughputSearch, seen: StreamResult, span: Duration) {
        self.found.trials += 1;
        let slow_end = match (self.is_offered(search.load, &seen), seen.is_overrun()) {
            (_, true) => Some(SlowEnd::Receiver),
            (false, false) => Some(SlowEnd::Sender),
            (true, false) => None,
        };
        // What the path lost it lost, however slow a host is.
        if slow_end.is_some() && seen.loss_ratio() <= self.plan.goal.loss_ratio {
            search.unkept += 1;
            if search.unkept < UNKEPT_MAX {
                self.stage = ThroughputStage::Search(search);
                return;
            }
            // It is more than that host can do, and says nothing of the path; what is below may.
            search.slow_end = slow_end;
            return self.bounded(search, LoadClass::Upper);
        }
        match seen.loss_ratio() <= self.plan.goal.loss_ratio {
            true => search.trials.good += span,
            false => search.trials.bad += span,
        }
        match &mut search.seen {
            Some(all) => all.join(&seen),
            none => *none = Some(seen),
        }
        match search.trials.class(&self.plan.goal) {
            LoadClass::Undecided => self.stage = ThroughputStage::Search(search),
            LoadClass::Upper => {
                search.slow_end = None;
                self.bounded(search, LoadClass::Upper);
            }
            LoadClass::Lower => self.bounded(search, LoadClass::Lower),
        }
    }

    /// Tells whether a sender came as close to a load as the search's bounds require; a load that
    /// was not fully offered must not count as carried.
    fn is_offered(&self, load: Bitrate, seen: &StreamResult) -> bool {
        let least = load.bits_per_second() as f64 * (1.0 - self.plan.goal.width);
        let offered = seen.offered.map_or(0, Bitrate::bits_per_second) as f64;
        offered >= least
    }

    /// Continues after a load is decided: with the next one, or with the step after the search.
    fn bounded(&mut self, mut search: ThroughputSearch, class: LoadClass) {
        match class {
            LoadClass::Lower => {
                search.lower = Some(search.load);
                self.found.at_lower = search.seen;
            }
            LoadClass::Upper | LoadClass::Undecided => search.upper = Some(search.load),
        }
        let bits = |rate: Bitrate| rate.bits_per_second() as f64;
        let next = match (search.lower, search.upper) {
            (Some(lower), Some(upper)) => {
                let is_close = bits(upper) - bits(lower) <= self.plan.goal.width * bits(upper);
                (!is_close).then(|| (bits(lower) * bits(upper)).sqrt())
            }
            (Some(lower), None) => {
                let is_fastest = lower >= self.plan.max_rate;
                (!is_fastest).then(|| bits(lower) * (1.0 + search.stride))
            }
            (None, Some(upper)) => {
                let is_slowest = upper <= SLOWEST;
                (!is_slowest).then(|| bits(upper) * (1.0 - search.stride))
            }
            (None, None) => None,
        };
        search.stride = (2.0 * search.stride).min(0.5);
        let next = next.filter(|_| self.found.loads < LOADS_MAX);
        let Some(next) = next else {
            (self.found.lower, self.found.upper) = (search.lower, search.upper);
            self.found.slow_end = search.slow_end;
            return self.begin_loss();
        };
        self.found.loads += 1;
        self.stage = ThroughputStage::Search(ThroughputSearch {
            load: Bitrate::from_bits_per_second(next as u64)
                .min(self.plan.max_rate)
                .max(SLOWEST),
            trials: LoadTrials::default(),
            seen: None,
            unkept: 0,
            ..search
        });
    }

    fn begin_loss(&mut self) {
        match (self.plan.is_whole, self.found.not_carried()) {
            (true, Some(_)) => {
                self.stage = ThroughputStage::Loss {
                    percent: LOSS_FROM_PERCENT,
                    lossless: 0,
                };
            }
            // Nothing above the throughput can be offered, or taken in.
            _ => self.end_size(),
        }
    }

    fn loss_rate(&self, percent: u64) -> Bitrate {
        let upper = self.found.upper.unwrap_or(self.plan.max_rate);
        scale(upper, percent, 100).min(self.plan.max_rate)
    }

    fn lost(&mut self, percent: u64, lossless: usize, seen: StreamResult) {
        self.found.losses.push(LossStep { percent, seen });
        // Where frames found no room it is not known whether the path loses any at more.
        let is_lossless = seen.lost == 0 && !seen.is_overrun();
        let lossless = if is_lossless { lossless + 1 } else { 0 };
        if lossless >= LOSSLESS_IN_A_ROW || percent <= LOSS_STEP_PERCENT {
            self.stage = ThroughputStage::Bursts(Vec::new());
            return;
        }
        self.stage = ThroughputStage::Loss {
            percent: percent - LOSS_STEP_PERCENT,
            lossless,
        };
    }

    fn burst_rate(&self) -> Bitrate {
        let upper = self.found.upper.unwrap_or(self.plan.max_rate);
        scale(upper, 100 * BURST_TIMES, 100).min(self.plan.max_rate)
    }

    fn burst(&mut self, mut bursts: Vec<(u64, bool, Bitrate)>, record: &StreamRecord, frame: u16) {
        if record.no_room > 0 {
            // Which frame the path lost first nobody knows.
            return self.end_size();
        }
        let rate = record.offered().unwrap_or_default();
        bursts.push((
            until_first_loss(record),
            record.lost() > 0,
            of_frames(rate, frame),
        ));
        if bursts.len() < BURSTS {
            self.stage = ThroughputStage::Bursts(bursts);
            return;
        }
        self.found.back_to_back = self.back_to_back(&bursts, frame);
        self.end_size();
    }

    fn back_to_back(&self, bursts: &[(u64, bool, Bitrate)], frame: u16) -> Option<BackToBack> {
        let throughput = self.found.lower.or(self.found.upper)?;
        let count = bursts.len() as f64;
        let frames = bursts.iter().map(|burst| burst.0 as f64).sum::<f64>() / count;
        let rates = bursts.iter().map(|burst| burst.2.bits_per_second() as f64);
        let rate = Bitrate::from_bits_per_second((rates.sum::<f64>() / count) as u64);
        // RFC 9004 §5.2: only where the throughput is below the rate of the bursts.
        if rate < scale(throughput, BURST_MIN_PERCENT, 100) {
            return None;
        }
        let lossy = bursts.iter().filter(|burst| burst.1).count();
        let frame_bits = f64::from(frame) * 8.0;
        let rate_bits = rate.bits_per_second() as f64;
        let held = 1.0 - throughput.bits_per_second() as f64 / rate_bits;
        Some(BackToBack {
            bursts: lossy,
            frames,
            is_at_least: lossy == 0,
            rate,
            buffer_time: Duration::from_secs_f64(frames * frame_bits / rate_bits * held),
            buffer_bytes: frames * f64::from(frame) * held,
        })
    }
}

impl StreamTest for ThroughputProcedure {
    fn next_stream(&self) -> Option<(TestDirection, StreamPlan)> {
        let (direction, frame) = *self.left.front()?;
        let trial = self.plan.goal.trial.min(self.plan.stream_max);
        let plan = match &self.stage {
            ThroughputStage::Climb(search) => match search.next_step() {
                SearchStep::Stream(plan) => plan,
                SearchStep::Done => return None,
            },
            ThroughputStage::Search(search) => stream(search.load, frame, trial),
            ThroughputStage::Loss { percent, .. } => stream(self.loss_rate(*percent), frame, trial),
            ThroughputStage::Bursts(_) => stream(
                self.burst_rate(),
                frame,
                BURST_FOR.min(self.plan.stream_max),
            ),
            ThroughputStage::Done => return None,
        };
        Some((direction, plan))
    }

    fn handle(&mut self, record: &StreamRecord) {
        let Some((_, frame)) = self.left.front().copied() else {
            return;
        };
        let seen = StreamResult::of(record, frame, self.baseline_rtt);
        match std::mem::replace(&mut self.stage, ThroughputStage::Done) {
            ThroughputStage::Climb(search) => self.climbed(search, record, frame),
            ThroughputStage::Search(search) => self.searched(search, seen, record.plan.duration),
            ThroughputStage::Loss { percent, lossless } => self.lost(percent, lossless, seen),
            ThroughputStage::Bursts(bursts) => self.burst(bursts, record, frame),
            ThroughputStage::Done => {}
        }
    }

    fn progress(&self) -> f64 {
        let part = match &self.stage {
            ThroughputStage::Climb(_) => 0.0,
            ThroughputStage::Search(_) => 0.1 + 0.04 * (self.found.loads.min(10)) as f64,
            ThroughputStage::Loss { .. } => 0.6,
            ThroughputStage::Bursts(_) => 0.9,
            ThroughputStage::Done => 0.0,
        };
        (self.done.len() as f64 + part) / self.all as f64
    }

    fn describe(&self) -> String {
        let Some((direction, frame)) = self.left.front() else {
            return "done".to_owned();
        };
        let what = match &self.stage {
            ThroughputStage::Climb(_) => "rate".to_owned(),
            ThroughputStage::Search(search) => format!("throughput: {}", search.load),
            ThroughputStage::Loss { percent, .. } => format!("frame loss at {percent} %"),
            ThroughputStage::Bursts(_) => "bursts".to_owned(),
            ThroughputStage::Done => "done".to_owned(),
        };
        format!("{} {frame} B, {what}", direction.name())
    }

    fn give_up(&mut self, why: String) {
        self.given_up = Some(why);
        self.left.clear();
        self.stage = ThroughputStage::Done;
    }
}

/// Frames of a stream before the first that did not arrive.
fn until_first_loss(record: &StreamRecord) -> u64 {
    let mut numbers: Vec<u64> = record
        .arrivals
        .iter()
        .map(|arrival| arrival.number)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let whole = numbers
        .iter()
        .zip(0..)
        .take_while(|(number, place)| *number == place);
    whole.count() as u64
}
