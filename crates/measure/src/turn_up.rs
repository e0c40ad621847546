//! The order of a whole test (RFC 6349 §3): what is measured next, from what is known.
//!
//! ```text
//!  path MTU up, down ─► baseline RTT ─► rate up ─► rate down ─► loss up, down
//!      ─► for each direction: window walk, listed windows, many connections ─► both directions
//! ```
//! A step that cannot be measured is left out with what depends on it, the reason is kept, and the rest
//! goes on. Each direction is measured alone before both are together (RFC 6349 §3.3). Nothing is
//! passed or failed but by a threshold that somebody stated: the RFC has none.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use crate::metrics::{self, LossBudget, LossVerdict};
use crate::procedure::{
    Bottleneck, BottleneckSearch, MtuOutcome, RttOutcome, SearchConfig, Step, StreamPlan,
    StreamRecord,
};
use crate::run::{Figures, Ideal};
use crate::wire::Direction;

/// The share of the bottleneck's rate at which losses are counted, in percent: nearly full, and no
/// queue grows.
const LOSS_STREAM_PERCENT: u64 = 90;
/// How long that stream lasts at most.
const LOSS_STREAM_FOR: Duration = Duration::from_secs(2);
/// The least window of a connection among many: ten segments, what a connection starts with
/// (RFC 6928).
const MANY_WINDOW_MIN: u64 = 14_600;
/// What is assumed where the path MTU could not be found.
const MTU_ASSUMED: u16 = 1_500;

/// What a test is to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Which directions.
    pub directions: Vec<Direction>,
    /// The shares of the BDP to walk through, in percent.
    pub walk_percent: Vec<u64>,
    /// Further windows.
    pub windows: Vec<ByteCount>,
    /// Connections of the run with many; below two there is none.
    pub connections: u16,
    /// The window of each of these connections; none is its share of the BDP.
    pub connection_window: Option<ByteCount>,
    /// How long each run and each measuring stream lasts.
    pub duration: Duration,
    /// No stream is faster.
    pub max_rate: Bitrate,
    /// Bytes of an IP and a TCP header.
    pub tcp_headers: u64,
    /// The rate to be reached, for the loss budget and for the verdict; none is the bottleneck's own.
    pub target: Option<Bitrate>,
    /// What must be kept to pass.
    pub thresholds: Thresholds,
}

/// What a user demands. What is not stated is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
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
pub enum Purpose {
    /// A step of the walk: this share of the BDP, in percent.
    Walk(u64),
    /// A window that was asked for.
    Listed,
    /// Many connections.
    Many,
    /// Both directions at once.
    Together,
}

/// A run of TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlan {
    /// Why.
    pub purpose: Purpose,
    /// Connections up and down.
    pub connections: [u16; 2],
    /// The window of each connection, up and down.
    pub windows: [ByteCount; 2],
    /// How long.
    pub duration: Duration,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    /// Find the path MTU of a direction, then [`TurnUp::path_mtu`].
    PathMtu(Direction),
    /// Find the baseline RTT, then [`TurnUp::baseline_rtt`].
    BaselineRtt,
    /// Send a stream, then [`TurnUp::stream`].
    Stream(Direction, StreamPlan),
    /// Run connections, then [`TurnUp::run`].
    Run(RunPlan),
    /// All is done.
    Done,
}

/// What is known of a direction.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// From the search.
    pub path_mtu: Option<MtuOutcome>,
    /// From the streams.
    pub bottleneck: Option<Bottleneck>,
    /// The streams that measured, for plots and for diagnosis.
    pub streams: Vec<StreamRecord>,
    /// What the stream below the rate lost, against the budget for the target.
    pub loss: Option<LossCheck>,
    /// The runs.
    pub runs: Vec<RunDone>,
}

/// A loss budget and what it was held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossCheck {
    /// RFC 8337.
    pub budget: LossBudget,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// What follows.
    pub verdict: LossVerdict,
}

/// A run that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDone {
    /// As planned.
    pub plan: RunPlan,
    /// Its figures in this direction, all connections together; none where it failed.
    pub figures: Option<Figures>,
}

/// A threshold that was not kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Missed {
    /// What was demanded and what was found.
    pub text: String,
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Every threshold was kept; their number, which may be none.
    Passed(usize),
    /// These were not.
    Failed(Vec<Missed>),
    /// What was to be judged, or all, could not be measured.
    NotMeasured(String),
}

/// A test under way.
#[derive(Debug)]
pub struct TurnUp {
    profile: Profile,
    stage: Stage,
    baseline: Option<RttOutcome>,
    known: [Known; 2],
    runs: VecDeque<RunPlan>,
    remarks: Vec<String>,
    given_up: Option<String>,
}

#[derive(Debug)]
enum Stage {
    PathMtu(usize),
    BaselineRtt,
    Rate(usize, Box<BottleneckSearch>),
    Loss(usize),
    Runs,
}

impl TurnUp {
    /// A test that has not begun.
    ///
    /// # Panics
    /// When the profile names no direction.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        assert!(!profile.directions.is_empty(), "a test has a direction");
        Self {
            profile,
            stage: Stage::PathMtu(0),
            baseline: None,
            known: [Known::default(), Known::default()],
            runs: VecDeque::new(),
            remarks: Vec::new(),
            given_up: None,
        }
    }

    /// What it measures.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What is known of a direction.
    #[must_use]
    pub fn known(&self, direction: Direction) -> &Known {
        &self.known[direction as usize]
    }

    /// The probes of the baseline RTT.
    #[must_use]
    pub fn baseline(&self) -> Option<&RttOutcome> {
        self.baseline.as_ref()
    }

    /// The baseline RTT.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.baseline.as_ref()?.baseline()
    }

    /// What could not be measured, and why.
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
    pub fn mtu(&self, direction: Direction) -> u16 {
        match self.known(direction).path_mtu {
            Some(MtuOutcome::Found { mtu, .. }) => mtu,
            Some(MtuOutcome::TooSmall { tried }) => tried,
            Some(MtuOutcome::NoAnswer) | None => MTU_ASSUMED,
        }
    }

    /// The bandwidth-delay product of a direction.
    #[must_use]
    pub fn bdp(&self, direction: Direction) -> Option<ByteCount> {
        let rate = self.known(direction).bottleneck.as_ref()?.rate;
        Some(metrics::minimum_window(rate, self.round_trip()?))
    }

    /// What runs in a direction are held against.
    #[must_use]
    pub fn ideal(&self, direction: Direction) -> Option<Ideal> {
        let rate = self.known(direction).bottleneck.as_ref()?.rate;
        let mtu = u64::from(self.mtu(direction));
        Some(Ideal {
            baseline_rtt: self.round_trip()?,
            maximum: metrics::maximum_throughput(rate, mtu, self.profile.tcp_headers, 0),
        })
    }

    /// What is to be done next; the same until its result is handed in.
    #[must_use]
    pub fn next_task(&self) -> Task {
        match &self.stage {
            Stage::PathMtu(at) => Task::PathMtu(self.profile.directions[*at]),
            Stage::BaselineRtt => Task::BaselineRtt,
            Stage::Rate(at, search) => match search.next_step() {
                Step::Stream(plan) => Task::Stream(self.profile.directions[*at], plan),
                Step::Done => unreachable!("a search that is done is left at once"),
            },
            Stage::Loss(at) => {
                let direction = self.profile.directions[*at];
                Task::Stream(direction, self.loss_stream(direction))
            }
            Stage::Runs => self
                .runs
                .front()
                .map_or(Task::Done, |plan| Task::Run(*plan)),
        }
    }

    /// Whether the stream to be sent next measures by overload, and must find full buckets.
    #[must_use]
    pub fn is_overloading(&self) -> bool {
        matches!(&self.stage, Stage::Rate(_, search) if search.is_measuring())
    }

    /// How much of the test is done, from 0 to 1, by what each step is expected to take.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let directions = self.profile.directions.len() as f64;
        let all = f64::from(self.runs_planned()) + directions + 1.0;
        let done = match &self.stage {
            Stage::PathMtu(_) => 0.0,
            Stage::BaselineRtt => 0.4,
            Stage::Rate(at, search) => {
                1.0 + *at as f64 + if search.is_measuring() { 0.3 } else { 0.0 }
            }
            Stage::Loss(_) => directions + 0.7,
            Stage::Runs => all - self.runs.len() as f64,
        };
        (done / all).clamp(0.0, 1.0)
    }

    fn runs_planned(&self) -> u32 {
        let each = self.profile.walk_percent.len()
            + self.profile.windows.len()
            + usize::from(self.profile.connections > 1);
        let directions = self.profile.directions.len();
        (each * directions + usize::from(directions > 1)) as u32
    }

    /// Hands in what a search for the path MTU found.
    pub fn path_mtu(&mut self, outcome: MtuOutcome) {
        let Stage::PathMtu(at) = self.stage else {
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
            true => Stage::PathMtu(at + 1),
            false => Stage::BaselineRtt,
        };
    }

    /// Hands in the probes of the baseline RTT.
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
        let config = SearchConfig {
            max: self.profile.max_rate,
            measure_for: self.profile.duration,
            ip_bytes: self.mtu(self.profile.directions[at]),
        };
        self.stage = Stage::Rate(at, Box::new(BottleneckSearch::new(config)));
    }

    /// Hands in what became of a stream.
    pub fn stream(&mut self, record: StreamRecord) {
        match &mut self.stage {
            Stage::Rate(at, search) => {
                let at = *at;
                let is_measuring = search.is_measuring();
                search.handle(&record);
                let is_done = search.next_step() == Step::Done;
                let outcome = search.outcome().cloned();
                let direction = self.profile.directions[at];
                if is_measuring {
                    self.known[direction as usize].streams.push(record);
                }
                if is_done {
                    self.rate_found(at, direction, outcome);
                }
            }
            Stage::Loss(at) => {
                let at = *at;
                self.loss_found(at, record);
            }
            Stage::PathMtu(_) | Stage::BaselineRtt | Stage::Runs => {}
        }
    }

    fn rate_found(&mut self, at: usize, direction: Direction, outcome: Option<Bottleneck>) {
        if outcome.is_none() {
            let name = direction.name();
            self.remark(format!(
                "the bottleneck rate {name} could not be measured: no stream got through"
            ));
        }
        self.known[direction as usize].bottleneck = outcome;
        match at + 1 < self.profile.directions.len() {
            true => self.begin_rate(at + 1),
            false => self.begin_loss(0),
        }
    }

    /// Goes to the first direction from `at` on that has a rate.
    fn begin_loss(&mut self, at: usize) {
        let next = (at..self.profile.directions.len())
            .find(|at| self.bdp(self.profile.directions[*at]).is_some());
        match next {
            Some(at) => self.stage = Stage::Loss(at),
            None => self.plan_runs(),
        }
    }

    fn loss_stream(&self, direction: Direction) -> StreamPlan {
        let found = self.known(direction).bottleneck.as_ref();
        let rate = found.map_or(0, |found| found.rate.bits_per_second());
        let rate = rate.saturating_mul(LOSS_STREAM_PERCENT) / 100;
        StreamPlan {
            rate: Bitrate::from_bits_per_second(rate).min(self.profile.max_rate),
            duration: LOSS_STREAM_FOR.min(self.profile.duration),
            ip_bytes: self.mtu(direction),
        }
    }

    fn loss_found(&mut self, at: usize, record: StreamRecord) {
        let direction = self.profile.directions[at];
        let target = self.profile.target.unwrap_or(record.plan.rate);
        if let Some(rtt) = self.round_trip() {
            let mtu = u64::from(self.mtu(direction));
            let budget = LossBudget::new(target, rtt, mtu, self.profile.tcp_headers);
            let (sent, lost) = (record.sent, record.lost());
            self.known[direction as usize].loss = Some(LossCheck {
                budget,
                sent,
                lost,
                verdict: budget.judge(sent, lost),
            });
        }
        self.known[direction as usize].streams.push(record);
        self.begin_loss(at + 1);
    }

    fn plan_runs(&mut self) {
        let directions = self.profile.directions.clone();
        for direction in &directions {
            if let Some(bdp) = self.bdp(*direction) {
                self.plan_direction(*direction, bdp);
            }
        }
        let both = Direction::BOTH.map(|direction| self.bdp(direction));
        if let ([Some(up), Some(down)], true) = (both, directions.len() > 1) {
            self.runs.push_back(RunPlan {
                purpose: Purpose::Together,
                connections: [1, 1],
                windows: [up, down],
                duration: self.profile.duration,
            });
        }
        self.stage = Stage::Runs;
    }

    fn plan_direction(&mut self, direction: Direction, bdp: ByteCount) {
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
        for percent in &self.profile.walk_percent {
            if let Some(window) = metrics::walk(bdp, &[*percent], &[]).first() {
                plan(Purpose::Walk(*percent), 1, *window);
            }
        }
        for window in &self.profile.windows {
            plan(Purpose::Listed, 1, *window);
        }
        if self.profile.connections > 1 {
            let (connections, window) = match self.profile.connection_window {
                Some(window) => (self.profile.connections, window),
                None => share(bdp, self.profile.connections),
            };
            plan(Purpose::Many, connections, window);
        }
    }

    /// Hands in the figures of a run, for each direction that it had.
    pub fn run(&mut self, figures: [Option<Figures>; 2]) {
        let Some(plan) = self.runs.pop_front() else {
            return;
        };
        for (place, figures) in figures.into_iter().enumerate() {
            if plan.connections[place] > 0 {
                self.known[place].runs.push(RunDone { plan, figures });
            }
        }
    }

    /// Ends the test here: what is left is not measured.
    pub fn give_up(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.remark(why.clone());
        self.given_up = Some(why);
        self.runs.clear();
        self.stage = Stage::Runs;
    }

    /// How the test ended, by the thresholds that were stated.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let directions = &self.profile.directions;
        let measured = directions
            .iter()
            .filter(|direction| self.known(**direction).bottleneck.is_some())
            .count();
        if self.round_trip().is_none() || measured < directions.len() {
            let why = self
                .given_up
                .clone()
                .or_else(|| self.remarks.first().cloned());
            return Verdict::NotMeasured(why.unwrap_or_else(|| "nothing was measured".to_owned()));
        }
        let mut judge = Judge::default();
        let limits = &self.profile.thresholds;
        if let (Some(limit), Some(rtt)) = (limits.baseline_rtt_max, self.round_trip()) {
            judge.at_most("baseline RTT in ms", ms(limit), Some(ms(rtt)));
        }
        for direction in directions {
            self.judge_direction(*direction, &mut judge);
        }
        let missing = self
            .given_up
            .clone()
            .or_else(|| judge.missing.into_iter().next());
        match (missing, judge.missed.is_empty()) {
            (_, false) => Verdict::Failed(judge.missed),
            (Some(missing), true) => Verdict::NotMeasured(missing),
            (None, true) => Verdict::Passed(judge.count),
        }
    }

    fn judge_direction(&self, direction: Direction, judge: &mut Judge) {
        let limits = &self.profile.thresholds;
        let known = self.known(direction);
        let name = direction.name();
        if let Some(limit) = limits.path_mtu_min {
            let found = match known.path_mtu {
                Some(MtuOutcome::Found { mtu, .. }) => Some(f64::from(mtu)),
                Some(MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer) | None => None,
            };
            judge.at_least(
                &format!("path MTU {name} in bytes"),
                f64::from(limit),
                found,
            );
        }
        if let Some(limit) = limits.rate_min {
            let found = known.bottleneck.as_ref().map(|found| mbit(found.rate));
            judge.at_least(
                &format!("bottleneck rate {name} in Mbit/s"),
                mbit(limit),
                found,
            );
        }
        let alone: Vec<&RunDone> = known
            .runs
            .iter()
            .filter(|run| run.plan.purpose != Purpose::Together)
            .collect();
        if let Some(limit) = limits.transfer_time_ratio_max {
            let full = alone.iter().filter(|run| self.fills(direction, run));
            let best = full
                .filter_map(|run| run.figures.as_ref()?.transfer_time_ratio)
                .reduce(f64::min);
            judge.at_most(
                &format!("best transfer time ratio {name} with a full window"),
                limit,
                best,
            );
        }
        if let Some(limit) = limits.efficiency_percent_min {
            let worst = alone
                .iter()
                .filter_map(|run| run.figures.as_ref()?.efficiency_percent)
                .reduce(f64::min);
            judge.at_least(
                &format!("least TCP efficiency {name} in percent"),
                limit,
                worst,
            );
        }
        if let Some(limit) = limits.buffer_delay_percent_max {
            let bdp = self.bdp(direction).unwrap_or_default();
            let worst = alone
                .iter()
                .filter(|run| run.plan.windows[direction as usize] <= bdp)
                .filter_map(|run| run.figures.as_ref()?.buffer_delay_percent)
                .reduce(f64::max);
            judge.at_most(
                &format!("greatest buffer delay {name} in percent"),
                limit,
                worst,
            );
        }
    }

    /// Whether a run's windows together fill the path.
    fn fills(&self, direction: Direction, run: &RunDone) -> bool {
        let place = direction as usize;
        let all = run.plan.windows[place].bytes() * u64::from(run.plan.connections[place]);
        self.bdp(direction).is_some_and(|bdp| all >= bdp.bytes())
    }
}

/// Answers below which a baseline RTT is remarked on.
const BASELINE_SAMPLES_MIN: usize = 100;

/// The connections that share a product, and the window of each.
fn share(bdp: ByteCount, connections: u16) -> (u16, ByteCount) {
    let most = u16::try_from(bdp.bytes() / MANY_WINDOW_MIN).unwrap_or(u16::MAX);
    let connections = connections.min(most.max(2));
    let window = bdp.bytes().div_ceil(u64::from(connections));
    (connections, ByteCount::new(window))
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn mbit(rate: Bitrate) -> f64 {
    rate.bits_per_second() as f64 / 1e6
}

/// Collects what thresholds say.
#[derive(Default)]
struct Judge {
    count: usize,
    missed: Vec<Missed>,
    missing: Vec<String>,
}

impl Judge {
    fn at_most(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.judge(what, "at most", limit, found, |found| found <= limit);
    }

    fn at_least(&mut self, what: &str, limit: f64, found: Option<f64>) {
        self.judge(what, "at least", limit, found, |found| found >= limit);
    }

    fn judge(
        &mut self,
        what: &str,
        how: &str,
        limit: f64,
        found: Option<f64>,
        is_kept: impl Fn(f64) -> bool,
    ) {
        self.count += 1;
        match found {
            None => self.missing.push(format!(
                "{what} was to be {how} {limit} and was not measured"
            )),
            Some(found) if is_kept(found) => {}
            Some(found) => self.missed.push(Missed {
                text: format!("{what} was to be {how} {limit} and is {found:.3}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
