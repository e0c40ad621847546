//! Order of a whole test (RFC 6349 §3): the next measurement follows from the results so far.
//!
//! ```text
//!  path MTU up, down ─► baseline RTT ─► rate up ─► rate down ─► loss up, down
//!      ─► for each direction: window walk, listed windows, many connections ─► both directions
//! ```
//! Where no streams can be sent (a firewall eats UDP, the far end is somebody else's) TCP alone is measured:
//!
//! ```text
//!  least RTT of TCP ─► TCP with the hosts' own windows up, down ─► window walk over what that reached
//! ```
//! Then there is no bottleneck rate and no verdict; whatever TCP shows is reported as TCP's.
//!
//! Where the far end only counts the packets of a stream (an iperf3 server) the rates are known,
//! too:
//!
//! ```text
//!  least RTT of TCP ─► rate up ─► rate down ─► loss up, down ─► window walk, listed windows, many connections
//!                       ├─ packets as large as TCP's vanish ─► the same with packets that every path carries
//!                       └─ no stream gets through ─► TCP with the hosts' own windows, as above
//! ```
//!
//! A step that cannot be measured is left out with the steps that depend on it, the reason is kept,
//! and the rest continues. Each direction is measured alone before both are together (RFC 6349
//! §3.3). The verdict depends only on thresholds that the user stated: the RFC has none.

mod finished;
mod judgement;
mod known;
mod one_ended;

use std::collections::VecDeque;
use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use crate::metrics::{self, LossBudget};
use crate::procedure::{
    BottleneckResult, BottleneckSearch, CountedSearch, MtuOutcome, RttOutcome, SearchConfig,
    SearchStep, StreamPlan, StreamRecord,
};
use crate::run::{IdealPath, PathMaximum, RunFigures};
use crate::wire::{ServerLimits, TestDirection};

pub use self::finished::{FinishedTest, RawRun};
pub use self::known::{DirectionResults, LossCheck, RunResult};

/// The share of the bottleneck's rate at which losses are counted, in percent: nearly full, and no
/// queue grows.
const LOSS_STREAM_PERCENT: u64 = 90;
/// Duration of that stream, unless so many packets take longer: they show a loss of half a percent,
/// where three losses are the least that is significant (Poisson: 98 % of the time). It has an
/// upper limit.
const LOSS_STREAM_FOR: Duration = Duration::from_secs(2);
const LOSS_STREAM_PACKETS: u64 = 1_500;
const LOSS_STREAM_MAX: Duration = Duration::from_secs(10);
/// Least window of a connection of the parallel run: ten segments, the initial window (RFC 6928).
const MANY_WINDOW_MIN: u64 = 14_600;
/// No window is made smaller than two segments: a receiver may wait for a second one before it acknowledges
/// the first (RFC 9293 §3.8.6.3), and no kernel offers much less.
const WINDOW_MIN: u64 = 2 * 1_460;
/// Time for which TCP looks for the least RTT: more than a hundred round trips of a path around the
/// world.
const ROUND_TRIP_FOR: Duration = Duration::from_secs(2);
/// MTU to assume where the path MTU could not be found.
const MTU_ASSUMED: u16 = 1_500;

/// Profile of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestProfile {
    /// Directions to test.
    pub directions: Vec<TestDirection>,
    /// The shares of the BDP to walk through, in percent.
    pub walk_percent: Vec<u64>,
    /// Further windows.
    pub windows: Vec<ByteCount>,
    /// Connections of the parallel run; below two there is none.
    pub connections: u16,
    /// Window of each of these connections; `None` is its share of the BDP.
    pub connection_window: Option<ByteCount>,
    /// Duration of each run and each measuring stream.
    pub duration: Duration,
    /// No stream is faster.
    pub max_rate: Bitrate,
    /// Bytes of an IP and a TCP header.
    pub tcp_headers: u64,
    /// Target rate, for the loss budget and for the verdict; `None` is the bottleneck's own.
    pub target: Option<Bitrate>,
    /// Thresholds that the test must meet to pass.
    pub thresholds: TestThresholds,
}

impl TestProfile {
    /// Limits the profile to the server's limits; returns a text for each reduction.
    #[must_use]
    pub fn cut_to(&mut self, limits: &ServerLimits) -> Vec<String> {
        let mut cut: Vec<String> = limits
            .shortens("--duration", self.duration)
            .into_iter()
            .collect();
        let (asked, given) = (self.connections, limits.connections);
        if given < asked {
            cut.push(format!(
                "--connections {asked} was asked for, and the server gives {given} at most"
            ));
        }
        // Without --max-rate as much is asked for as anybody may give; where it was not enough the rate says so.
        self.max_rate = self.max_rate.min(limits.rate);
        self.duration = self.duration.min(limits.order);
        self.connections = asked.min(given);
        cut
    }
}

/// Thresholds that a user states. A threshold that is not stated is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TestThresholds {
    /// The least bottleneck rate in every direction.
    pub rate_min: Option<Bitrate>,
    /// The greatest transfer time ratio of the best run in every direction.
    pub transfer_time_ratio_max: Option<f64>,
    /// The least TCP efficiency of any run.
    pub efficiency_percent_min: Option<f64>,
    /// The greatest buffer delay of any run with a window up to the BDP.
    pub buffer_delay_percent_max: Option<f64>,
    /// The greatest baseline RTT.
    pub baseline_rtt_max: Option<Duration>,
    /// The least path MTU.
    pub path_mtu_min: Option<u16>,
}

/// Why a run is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPurpose {
    /// A step of the walk: this share of the BDP, in percent.
    Walk(u64),
    /// A window that was asked for.
    Listed,
    /// Many connections.
    Many,
    /// Both directions at once.
    Together,
    /// A small window on an idle path: the least RTT that TCP sees, where no probe gets through.
    RoundTrip,
    /// Windows of the hosts' own choice: the throughput of TCP, where no stream can be sent.
    Open,
}

/// A run of TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlan {
    /// Why.
    pub purpose: RunPurpose,
    /// Connections up and down.
    pub connections: [u16; 2],
    /// The window of each connection, up and down.
    pub windows: [ByteCount; 2],
    /// Duration.
    pub duration: Duration,
}

/// Next task of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TurnUpTask {
    /// Find the path MTU of a direction, then [`TurnUp::path_mtu`].
    PathMtu(TestDirection),
    /// Find the baseline RTT, then [`TurnUp::baseline_rtt`].
    BaselineRtt,
    /// Send a stream, then [`TurnUp::stream`]; where the far end only counts, [`TurnUp::counted`].
    Stream(TestDirection, StreamPlan),
    /// Run connections, then [`TurnUp::run`].
    Run(RunPlan),
    /// All is done.
    Done,
}

/// A threshold that was not kept.
#[derive(Clone, Debug, PartialEq)]
pub struct MissedThreshold {
    /// Text with the threshold and the measured value.
    pub text: String,
}

/// Verdict of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnUpVerdict {
    /// Every threshold was met; their number, which may be zero.
    Passed(usize),
    /// These were not.
    Failed(Vec<MissedThreshold>),
    /// Text about the values that could not be measured, although they were to be judged.
    NotMeasured(String),
}

/// A test under way.
#[derive(Debug)]
pub struct TurnUp {
    profile: TestProfile,
    stage: TurnUpStage,
    baseline: Option<RttOutcome>,
    known: [DirectionResults; 2],
    runs: VecDeque<RunPlan>,
    remarks: Vec<String>,
    given_up: Option<String>,
    /// Reason why a rate is not known, if one was given.
    no_rate: Option<String>,
    means: TestCapabilities,
    /// The least RTT that TCP saw, where that is all there is.
    tcp_round_trip: Option<Duration>,
    /// Rate that it carried up meanwhile.
    tcp_carried: Option<Bitrate>,
    /// Throughput that TCP reached with the hosts' own windows.
    reached: [Option<Bitrate>; 2],
    is_both_at_once: bool,
    mtu_assumed: u16,
}

/// Kinds of traffic that a test can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestCapabilities {
    /// Probes and streams, and a far end that answers and reports.
    Whole,
    /// Streams whose packets the far end counts, and TCP.
    Counted,
    /// Only TCP.
    TcpAlone,
}

#[derive(Debug)]
enum TurnUpStage {
    PathMtu(usize),
    BaselineRtt,
    Rate(usize, Box<BottleneckSearch>),
    CountedRate(usize, Box<CountedSearch>),
    Loss(usize),
    /// Without streams: the least RTT, then TCP's throughput in each direction.
    RoundTripOfTcp,
    Reach(usize),
    Runs,
}

impl TurnUp {
    /// A test that has not begun.
    ///
    /// # Panics
    /// When the profile names no direction.
    #[must_use]
    pub fn new(profile: TestProfile) -> Self {
        assert!(!profile.directions.is_empty(), "a test has a direction");
        Self {
            profile,
            stage: TurnUpStage::PathMtu(0),
            baseline: None,
            known: [DirectionResults::default(), DirectionResults::default()],
            runs: VecDeque::new(),
            remarks: Vec::new(),
            given_up: None,
            no_rate: None,
            means: TestCapabilities::Whole,
            tcp_round_trip: None,
            tcp_carried: None,
            reached: [None; 2],
            is_both_at_once: true,
            mtu_assumed: MTU_ASSUMED,
        }
    }

    /// Sets the size of full packets where the path MTU cannot be searched for.
    pub fn assume_mtu(&mut self, bytes: u16) {
        self.mtu_assumed = bytes;
    }

    /// Profile of the test.
    #[must_use]
    pub fn profile(&self) -> &TestProfile {
        &self.profile
    }

    /// Results for a direction so far.
    #[must_use]
    pub fn known(&self, direction: TestDirection) -> &DirectionResults {
        &self.known[direction as usize]
    }

    /// The probes of the baseline RTT.
    #[must_use]
    pub fn baseline(&self) -> Option<&RttOutcome> {
        self.baseline.as_ref()
    }

    /// The baseline RTT; where nothing but TCP is measured, the least that TCP saw.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        match &self.baseline {
            Some(probed) => probed.baseline(),
            None => self.tcp_round_trip,
        }
    }

    /// Text for each value that could not be measured, with the reason.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Adds something that a reader of the result must know.
    pub fn remark(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    /// IP bytes of a full packet in a direction.
    #[must_use]
    pub fn mtu(&self, direction: TestDirection) -> u16 {
        match self.known(direction).path_mtu {
            Some(MtuOutcome::Found { mtu, .. }) => mtu,
            Some(MtuOutcome::TooSmall { tried }) => tried,
            Some(MtuOutcome::Between { passes, .. }) => passes,
            Some(MtuOutcome::NoAnswer) | None => self.mtu_assumed,
        }
    }

    /// The bandwidth-delay product of a direction.
    #[must_use]
    pub fn bdp(&self, direction: TestDirection) -> Option<ByteCount> {
        let rate = self.known(direction).bottleneck.as_ref()?.rate;
        Some(metrics::minimum_window(rate, self.round_trip()?))
    }

    /// Window whose shares the walk uses: the BDP, or TCP's throughput × the least RTT.
    fn filling_window(&self, direction: TestDirection) -> Option<ByteCount> {
        let reached = || {
            Some(metrics::minimum_window(
                self.reached(direction)?,
                self.round_trip()?,
            ))
        };
        self.bdp(direction).or_else(reached)
    }

    /// Reference values for the runs of a direction.
    #[must_use]
    pub fn ideal(&self, direction: TestDirection) -> Option<IdealPath> {
        let Some(found) = &self.known(direction).bottleneck else {
            return (self.means != TestCapabilities::Whole).then(|| IdealPath {
                baseline_rtt: self.round_trip().unwrap_or_default(),
                maximum: PathMaximum::AtLeast(self.reached(direction).unwrap_or_default()),
            });
        };
        let rate = found.rate;
        let mtu = u64::from(self.mtu(direction));
        Some(IdealPath {
            baseline_rtt: self.round_trip()?,
            maximum: PathMaximum::Known(metrics::maximum_throughput(
                rate,
                mtu,
                self.profile.tcp_headers,
                0,
            )),
        })
    }

    /// Next task; it stays the same until its result is handed in.
    #[must_use]
    pub fn next_task(&self) -> TurnUpTask {
        match &self.stage {
            TurnUpStage::PathMtu(at) => TurnUpTask::PathMtu(self.profile.directions[*at]),
            TurnUpStage::BaselineRtt => TurnUpTask::BaselineRtt,
            TurnUpStage::Rate(at, search) => match search.next_step() {
                SearchStep::Stream(plan) => TurnUpTask::Stream(self.profile.directions[*at], plan),
                SearchStep::Done => unreachable!("a search that is done is left at once"),
            },
            TurnUpStage::CountedRate(at, search) => match search.next_step() {
                SearchStep::Stream(plan) => TurnUpTask::Stream(self.profile.directions[*at], plan),
                SearchStep::Done => unreachable!("a search that is done is left at once"),
            },
            TurnUpStage::Loss(at) => {
                let direction = self.profile.directions[*at];
                TurnUpTask::Stream(direction, self.loss_stream(direction))
            }
            TurnUpStage::RoundTripOfTcp => TurnUpTask::Run(self.round_trip_run()),
            TurnUpStage::Reach(at) => TurnUpTask::Run(self.open_run(self.profile.directions[*at])),
            TurnUpStage::Runs => self
                .runs
                .front()
                .map_or(TurnUpTask::Done, |plan| TurnUpTask::Run(*plan)),
        }
    }

    /// Tells whether the next stream measures by overload and must find full buckets.
    #[must_use]
    pub fn is_overloading(&self) -> bool {
        match &self.stage {
            TurnUpStage::Rate(_, search) => search.is_measuring(),
            TurnUpStage::CountedRate(_, search) => search.is_measuring(),
            TurnUpStage::PathMtu(_)
            | TurnUpStage::BaselineRtt
            | TurnUpStage::Loss(_)
            | TurnUpStage::RoundTripOfTcp
            | TurnUpStage::Reach(_)
            | TurnUpStage::Runs => false,
        }
    }

    /// Progress of the test, from 0 to 1, by the expected duration of each step.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let directions = self.profile.directions.len() as f64;
        let all = f64::from(self.runs_planned()) + directions + 1.0;
        let done = match &self.stage {
            TurnUpStage::PathMtu(_) => 0.0,
            TurnUpStage::BaselineRtt => 0.4,
            TurnUpStage::Rate(at, search) => {
                1.0 + *at as f64 + if search.is_measuring() { 0.3 } else { 0.0 }
            }
            TurnUpStage::CountedRate(at, search) => {
                1.0 + *at as f64 + if search.is_measuring() { 0.3 } else { 0.0 }
            }
            TurnUpStage::Loss(_) => directions + 0.7,
            TurnUpStage::RoundTripOfTcp => 0.0,
            TurnUpStage::Reach(at) => 1.0 + *at as f64,
            TurnUpStage::Runs => all - self.runs.len() as f64,
        };
        (done / all).clamp(0.0, 1.0)
    }

    fn runs_planned(&self) -> u32 {
        let each = self.profile.walk_percent.len()
            + self.profile.windows.len()
            + usize::from(self.profile.connections > 1);
        let directions = self.profile.directions.len();
        (each * directions + usize::from(self.has_both_at_once())) as u32
    }

    /// Hands in the result of a path MTU search.
    pub fn path_mtu(&mut self, outcome: MtuOutcome) {
        let TurnUpStage::PathMtu(at) = self.stage else {
            return;
        };
        let direction = self.profile.directions[at];
        self.known[direction as usize].path_mtu = Some(outcome);
        if outcome == MtuOutcome::NoAnswer {
            let name = direction.name();
            self.remark(format!(
                "the path MTU {name} could not be found: no probe was answered"
            ));
        }
        self.stage = match at + 1 < self.profile.directions.len() {
            true => TurnUpStage::PathMtu(at + 1),
            false => TurnUpStage::BaselineRtt,
        };
    }

    /// Hands in the result of the baseline RTT measurement.
    pub fn baseline_rtt(&mut self, outcome: RttOutcome) {
        if outcome.samples.len() < BASELINE_SAMPLES_MIN {
            self.remark(format!(
                "the baseline RTT is from {} answers to {} probes only",
                outcome.samples.len(),
                outcome.sent
            ));
        }
        self.baseline = Some(outcome);
        self.begin_rate(0);
    }

    fn begin_rate(&mut self, at: usize) {
        let ip_bytes = self.mtu(self.profile.directions[at]);
        self.begin_rate_with(at, ip_bytes);
    }

    fn begin_rate_with(&mut self, at: usize, ip_bytes: u16) {
        let config = SearchConfig {
            max: self.profile.max_rate,
            measure_for: self.profile.duration,
            ip_bytes,
        };
        self.stage = match self.means {
            TestCapabilities::Whole | TestCapabilities::TcpAlone => {
                TurnUpStage::Rate(at, Box::new(BottleneckSearch::new(config)))
            }
            TestCapabilities::Counted => {
                let carried = match self.profile.directions[at] {
                    TestDirection::Up => self.tcp_carried,
                    TestDirection::Down => None,
                };
                let search = CountedSearch::new(config).from_at_least(carried.unwrap_or_default());
                TurnUpStage::CountedRate(at, Box::new(search))
            }
        };
    }

    /// Hands in the record of a stream.
    pub fn stream(&mut self, record: StreamRecord) {
        match &mut self.stage {
            TurnUpStage::Rate(at, search) => {
                let at = *at;
                let is_measuring = search.is_measuring();
                search.handle(&record);
                let is_done = search.next_step() == SearchStep::Done;
                let outcome = search.outcome().cloned();
                let direction = self.profile.directions[at];
                if is_measuring {
                    self.known[direction as usize].streams.push(record);
                }
                if is_done {
                    self.rate_found(at, direction, outcome);
                }
            }
            TurnUpStage::Loss(at) => {
                let at = *at;
                self.loss_found(at, record.plan, record.sent, record.lost());
                let direction = self.profile.directions[at];
                self.known[direction as usize].streams.push(record);
            }
            TurnUpStage::PathMtu(_)
            | TurnUpStage::BaselineRtt
            | TurnUpStage::CountedRate(..)
            | TurnUpStage::RoundTripOfTcp
            | TurnUpStage::Reach(_)
            | TurnUpStage::Runs => {}
        }
    }

    fn has_both_at_once(&self) -> bool {
        self.is_both_at_once && self.profile.directions.len() > 1
    }

    fn rate_found(
        &mut self,
        at: usize,
        direction: TestDirection,
        outcome: Option<BottleneckResult>,
    ) {
        if let Some(smaller) = self.size_to_try(direction) {
            return self.begin_rate_with(at, smaller);
        }
        self.note_black_hole(direction);
        if outcome.is_none() {
            let name = direction.name();
            let mut counted = self.known(direction).counted.iter();
            let why = match counted.all(|stream| stream.received == 0) {
                true => "no stream got through",
                false => "what came of one stream contradicts what came of another",
            };
            let why = format!("the bottleneck rate {name} could not be measured: {why}");
            self.remark(why.clone());
            self.no_rate.get_or_insert(why);
        }
        self.known[direction as usize].bottleneck = outcome;
        self.next_rate(at);
    }

    fn next_rate(&mut self, at: usize) {
        if at + 1 < self.profile.directions.len() {
            return self.begin_rate(at + 1);
        }
        let mut known = self.profile.directions.iter().map(|way| self.known(*way));
        if self.means == TestCapabilities::Counted && known.all(|known| known.bottleneck.is_none())
        {
            self.means = TestCapabilities::TcpAlone;
        }
        self.begin_loss(0);
    }

    /// Goes to the first direction from `at` on that has a rate.
    fn begin_loss(&mut self, at: usize) {
        let next = (at..self.profile.directions.len())
            .find(|at| self.bdp(self.profile.directions[*at]).is_some());
        match next {
            Some(at) => self.stage = TurnUpStage::Loss(at),
            None if self.means == TestCapabilities::Whole => self.plan_runs(),
            None => self.begin_reach(0),
        }
    }

    fn loss_stream(&self, direction: TestDirection) -> StreamPlan {
        let found = self.known(direction).bottleneck.as_ref();
        let rate = found.map_or(0, |found| found.rate.bits_per_second());
        let rate = rate.saturating_mul(LOSS_STREAM_PERCENT) / 100;
        let rate = Bitrate::from_bits_per_second(rate).min(self.profile.max_rate);
        let ip_bytes = self.mtu(direction);
        let enough = ByteCount::new(LOSS_STREAM_PACKETS * u64::from(ip_bytes));
        let enough = match rate.bits_per_second() {
            0 => Duration::ZERO,
            _ => rate.time_for(enough).min(LOSS_STREAM_MAX),
        };
        StreamPlan {
            rate,
            duration: enough.max(LOSS_STREAM_FOR.min(self.profile.duration)),
            ip_bytes,
        }
    }

    fn loss_found(&mut self, at: usize, plan: StreamPlan, sent: u64, lost: u64) {
        let direction = self.profile.directions[at];
        let target = self.profile.target.unwrap_or(plan.rate);
        if let Some(rtt) = self.round_trip() {
            let mtu = u64::from(self.mtu(direction));
            let budget = LossBudget::new(target, rtt, mtu, self.profile.tcp_headers);
            self.known[direction as usize].loss = Some(LossCheck {
                budget,
                sent,
                lost,
                verdict: budget.judge(sent, lost),
            });
        }
        self.begin_loss(at + 1);
    }

    fn plan_runs(&mut self) {
        let directions = self.profile.directions.clone();
        for direction in &directions {
            if let Some(window) = self.filling_window(*direction) {
                self.plan_direction(*direction, window);
            }
        }
        let both = TestDirection::BOTH.map(|direction| self.filling_window(direction));
        if let ([Some(up), Some(down)], true) = (both, self.has_both_at_once()) {
            self.runs.push_back(RunPlan {
                purpose: RunPurpose::Together,
                connections: [1, 1],
                windows: [up, down].map(|window| window.max(ByteCount::new(WINDOW_MIN))),
                duration: self.profile.duration,
            });
        }
        self.stage = TurnUpStage::Runs;
    }

    fn plan_direction(&mut self, direction: TestDirection, bdp: ByteCount) {
        if bdp.bytes() < WINDOW_MIN {
            let (name, bytes) = (direction.name(), bdp.bytes());
            self.remark(format!(
                "{bytes} bytes fill the path {name}, which are less than two segments: TCP needs no window there, \
                 and none is made smaller than {WINDOW_MIN} bytes"
            ));
        }
        let mut plan = |purpose, connections, window| {
            let place = direction as usize;
            let mut run = RunPlan {
                purpose,
                connections: [0; 2],
                windows: [ByteCount::default(); 2],
                duration: self.profile.duration,
            };
            run.connections[place] = connections;
            run.windows[place] = window;
            self.runs.push_back(run);
        };
        for (percent, window) in walk(bdp, &self.profile.walk_percent) {
            plan(RunPurpose::Walk(percent), 1, window);
        }
        for window in &self.profile.windows {
            plan(RunPurpose::Listed, 1, *window);
        }
        let asked = self.profile.connections;
        if asked > 1 {
            let (connections, window) = match self.profile.connection_window {
                Some(window) => (asked, window),
                None => share(bdp, asked),
            };
            plan(RunPurpose::Many, connections, window);
            if connections < asked {
                let (name, bytes) = (direction.name(), bdp.bytes());
                self.remark(format!(
                    "the run with many connections {name} has {connections}, not {asked}: each has a share of \
                     {bytes} bytes, and none gets less than {MANY_WINDOW_MIN}, what TCP starts with, where two \
                     get it (--connection-window sets another window)"
                ));
            }
        }
    }

    /// Hands in the figures of a run, for each direction that it had.
    pub fn run(&mut self, figures: [Option<RunFigures>; 2]) {
        let Some(plan) = self.run_ended(&figures) else {
            return;
        };
        for (place, figures) in figures.into_iter().enumerate() {
            if plan.connections[place] > 0 {
                self.known[place].runs.push(RunResult { plan, figures });
            }
        }
    }

    /// Plan of the run that ended; continues with the next task.
    fn run_ended(&mut self, figures: &[Option<RunFigures>; 2]) -> Option<RunPlan> {
        match self.stage {
            TurnUpStage::RoundTripOfTcp => {
                let plan = self.round_trip_run();
                self.tcp_round_trip = figures[0].as_ref().and_then(|found| found.rtt_min);
                self.tcp_carried = figures[0].as_ref().map(|found| found.throughput);
                if self.tcp_round_trip.is_none() {
                    self.remark("TCP saw no round-trip time: no window can be walked through");
                }
                self.note_silence(TestDirection::Up, figures[0].as_ref());
                match self.means {
                    TestCapabilities::Counted => self.begin_rate(0),
                    TestCapabilities::Whole | TestCapabilities::TcpAlone => self.begin_reach(0),
                }
                Some(plan)
            }
            TurnUpStage::Reach(at) => {
                let direction = self.profile.directions[at];
                let plan = self.open_run(direction);
                let found = figures[direction as usize].as_ref();
                let reached = found.map(|found| found.throughput);
                self.reached[direction as usize] =
                    reached.filter(|rate| rate.bits_per_second() > 0);
                self.note_silence(direction, found);
                self.begin_reach(at + 1);
                Some(plan)
            }
            TurnUpStage::PathMtu(_)
            | TurnUpStage::BaselineRtt
            | TurnUpStage::Rate(..)
            | TurnUpStage::CountedRate(..)
            | TurnUpStage::Loss(_)
            | TurnUpStage::Runs => self.runs.pop_front(),
        }
    }

    /// Ends the test here: the rest is not measured.
    pub fn give_up(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.remark(why.clone());
        self.given_up = Some(why);
        self.runs.clear();
        self.stage = TurnUpStage::Runs;
    }
}

/// Answers below which a baseline RTT is remarked on.
const BASELINE_SAMPLES_MIN: usize = 100;

/// The windows of a walk with their shares; of those that come to the same, the largest share.
fn walk(bdp: ByteCount, percent: &[u64]) -> Vec<(u64, ByteCount)> {
    let mut windows: Vec<(u64, ByteCount)> = Vec::new();
    let mut percent = percent.to_vec();
    percent.sort_unstable();
    for share in &percent {
        let Some(window) = metrics::walk(bdp, &[*share], &[]).first().copied() else {
            continue;
        };
        let window = window.max(ByteCount::new(WINDOW_MIN));
        windows.retain(|(_, known)| *known != window);
        windows.push((*share, window));
    }
    windows
}

/// The connections that share a product, and the window of each.
fn share(bdp: ByteCount, connections: u16) -> (u16, ByteCount) {
    let most = u16::try_from(bdp.bytes() / MANY_WINDOW_MIN).unwrap_or(u16::MAX);
    let connections = connections.min(most.max(2));
    let window = bdp.bytes().div_ceil(u64::from(connections));
    (connections, ByteCount::new(window.max(WINDOW_MIN)))
}

#[cfg(test)]
mod tests;
