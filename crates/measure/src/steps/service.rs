//! Service activation test by ITU-T Y.1564: whether the service is configured as purchased, and
//! stays so.
//!
//! ```text
//!  for each direction and frame size
//!    CIR at 25, 50, 75, 100 %  loss, delay and its variation within what was stated
//!    CIR + EIR                 at least CIR arrives
//!    a quarter above that      at least CIR arrives, and where policing was demanded no more than CIR + EIR
//!  then, if nothing failed, for each direction
//!    performance: CIR for a stated time
//! ```
//! Nothing is passed or failed but by what was stated: a loss ratio, delays, that the circuit polices. FTD is
//! judged as a round trip, for a one-way delay takes two clocks that agree.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Bitrate;

use super::{StreamResult, StreamTest, scale, stream};
use crate::procedure::{StreamPlan, StreamRecord};
use crate::wire::TestDirection;

/// The shares of CIR that are offered first, in percent.
const SHARES_PERCENT: [u64; 4] = [25, 50, 75, 100];
/// Load offered to a policer, in percent of CIR + EIR.
const OVERSHOOT_PERCENT: u64 = 125;
/// Tolerance above CIR + EIR for traffic through a policer with an empty bucket, in percent: one
/// packet more or less per second, and devices that round their rates.
pub const TOLERANCE_PERCENT: u64 = 1;
/// Greatest relative difference of the offered rate from the requested one, up to CIR + EIR: a rate
/// that was not offered was not confirmed.
const OFF: f64 = 0.01;
/// Greatest share of the offered load that arrives where it is limited.
const LIMITED: f64 = 0.99;
/// Remainder of a performance test that is too short for a stream of its own.
const REST_MIN: Duration = Duration::from_millis(100);
/// Frames without which no loss ratio is judged.
const FRAMES_MIN: u64 = 10;

/// Criteria of the purchased service. A criterion that is not stated is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceCriteria {
    /// FLR: the greatest frame loss ratio.
    pub loss_ratio_max: Option<f64>,
    /// FTD, as a round trip: the greatest of the mean frame.
    pub round_trip_max: Option<Duration>,
    /// FDV: the greatest variation.
    pub variation_max: Option<Duration>,
    /// Set if no more than CIR + EIR may get through.
    pub is_policed: bool,
}

/// Plan of a service test.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePlan {
    /// Directions to test, each by itself.
    pub directions: Vec<TestDirection>,
    /// The committed information rate.
    pub committed: Bitrate,
    /// Excess information rate; zero for none.
    pub excess: Bitrate,
    /// Sizes of frames; the performance test uses the first.
    pub frames: Vec<u16>,
    /// Duration of each step.
    pub step: Duration,
    /// Duration of the performance test; zero for none.
    pub performance: Duration,
    /// Greatest duration of a stream: the server's limit.
    pub stream_max: Duration,
    /// Criteria that must be met.
    pub criteria: ServiceCriteria,
}

/// A part of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePart {
    /// This share of CIR, in percent.
    Committed(u64),
    /// CIR + EIR.
    Excess,
    /// A quarter above CIR + EIR.
    Policing,
    /// CIR, for a long time.
    Performance,
}

/// Verdict on one part of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum StepVerdict {
    /// Measured, but no criterion was stated.
    Measured,
    /// All stated criteria were met.
    Passed,
    /// Text for each criterion that was missed.
    Failed(Vec<String>),
    /// The sender did not keep its rate, the receiver had no room, or too few frames were sent.
    NotMeasured(String),
}

/// A part that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// The direction.
    pub direction: TestDirection,
    /// Bytes of its frames.
    pub frame: u16,
    /// The part of the test.
    pub part: ServicePart,
    /// Rate that was to be offered, in whole frames.
    pub asked: Bitrate,
    /// Time that frames were sent.
    pub duration: Duration,
    /// Results of the stream.
    pub seen: StreamResult,
    /// The verdict.
    pub verdict: StepVerdict,
}

/// Verdict on the whole test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceVerdict {
    /// Number of parts that were judged and met everything; zero where no criterion was stated.
    Passed(usize),
    /// Text for each criterion that was missed.
    Failed(Vec<String>),
    /// Text about the results that could not be measured.
    NotMeasured(String),
}

#[derive(Clone, Copy, Debug)]
struct PlannedStep {
    direction: TestDirection,
    frame: u16,
    part: ServicePart,
    duration: Duration,
}

/// A test under way.
#[derive(Debug)]
pub struct ServiceProcedure {
    plan: ServicePlan,
    baseline_rtt: Option<Duration>,
    queue: VecDeque<PlannedStep>,
    done: Vec<StepResult>,
    /// Results of the performance test so far, and the time that they cover.
    watched: Option<(StreamResult, Duration)>,
    is_performance_planned: bool,
    given_up: Option<String>,
}

impl ServiceProcedure {
    /// Makes a test on a path with this baseline RTT.
    ///
    /// # Panics
    /// Panics when the plan names no direction or no frame size, or frames not longer than their
    /// overhead.
    #[must_use]
    pub fn new(plan: ServicePlan, baseline_rtt: Option<Duration>) -> Self {
        assert!(!plan.directions.is_empty(), "a test has a direction");
        assert!(!plan.frames.is_empty(), "a test has a frame size");
        assert!(plan.frames.iter().all(|frame| *frame >= super::FRAME_MIN));
        let mut queue = VecDeque::new();
        for direction in &plan.directions {
            for frame in &plan.frames {
                let shares = SHARES_PERCENT.map(ServicePart::Committed);
                let excess = (plan.excess.bits_per_second() > 0).then_some(ServicePart::Excess);
                for part in shares
                    .into_iter()
                    .chain(excess)
                    .chain([ServicePart::Policing])
                {
                    queue.push_back(PlannedStep {
                        direction: *direction,
                        frame: *frame,
                        part,
                        duration: plan.step.min(plan.stream_max),
                    });
                }
            }
        }
        Self {
            plan,
            baseline_rtt,
            queue,
            done: Vec::new(),
            watched: None,
            is_performance_planned: false,
            given_up: None,
        }
    }

    /// Plan of the test.
    #[must_use]
    pub fn plan(&self) -> &ServicePlan {
        &self.plan
    }

    /// Steps that are over.
    #[must_use]
    pub fn done(&self) -> &[StepResult] {
        &self.done
    }

    /// The least RTT of small probes, which round trips are reckoned from.
    #[must_use]
    pub fn baseline_rtt(&self) -> Option<Duration> {
        self.baseline_rtt
    }

    fn rate(&self, part: ServicePart) -> Bitrate {
        let committed = self.plan.committed;
        let all = committed
            .bits_per_second()
            .saturating_add(self.plan.excess.bits_per_second());
        let all = Bitrate::from_bits_per_second(all);
        match part {
            ServicePart::Committed(percent) => scale(committed, percent, 100),
            ServicePart::Excess => all,
            ServicePart::Policing => scale(all, OVERSHOOT_PERCENT, 100),
            ServicePart::Performance => committed,
        }
    }

    /// Takes in one of the streams of a performance test.
    fn watch(&mut self, next: PlannedStep, seen: StreamResult, span: Duration) {
        let (mut all, mut watched) = (seen, span);
        if let Some((before, earlier)) = self.watched.take() {
            all = before;
            all.join(&seen);
            watched += earlier;
        }
        let left = next.duration.saturating_sub(span);
        if left < REST_MIN {
            return self.conclude(next, all, watched);
        }
        self.watched = Some((all, watched));
        self.queue.push_front(PlannedStep {
            duration: left,
            ..next
        });
    }

    fn conclude(&mut self, next: PlannedStep, mut seen: StreamResult, duration: Duration) {
        seen.is_kept &= self.is_offered(next.part, &seen);
        self.done.push(StepResult {
            direction: next.direction,
            frame: next.frame,
            part: next.part,
            asked: self.rate(next.part),
            duration,
            seen,
            verdict: self.judge(next.part, &seen),
        });
    }

    /// Tells whether the sender came close enough to a rate to confirm it. The exact overshoot
    /// above CIR + EIR does not matter.
    fn is_offered(&self, part: ServicePart, seen: &StreamResult) -> bool {
        let asked = self.rate(part).bits_per_second() as f64;
        match (part, seen.offered) {
            (ServicePart::Policing, _) | (_, None) => true,
            (
                ServicePart::Committed(_) | ServicePart::Excess | ServicePart::Performance,
                Some(offered),
            ) => (offered.bits_per_second() as f64 - asked).abs() <= OFF * asked,
        }
    }

    /// Y.1564 §8.2: only a service whose configuration passed.
    fn plan_performance(&mut self) {
        self.is_performance_planned = true;
        let has_failed = |one: &StepResult| matches!(one.verdict, StepVerdict::Failed(_));
        if self.plan.performance.is_zero() || self.done.iter().any(has_failed) {
            return;
        }
        for direction in &self.plan.directions {
            self.queue.push_back(PlannedStep {
                direction: *direction,
                frame: self.plan.frames[0],
                part: ServicePart::Performance,
                duration: self.plan.performance,
            });
        }
    }

    /// Tells whether a performance test was requested but left out because the configuration test
    /// failed.
    #[must_use]
    pub fn has_left_out_performance(&self) -> bool {
        let is_done = self
            .done
            .iter()
            .any(|one| one.part == ServicePart::Performance);
        self.is_performance_planned
            && self.queue.is_empty()
            && !self.plan.performance.is_zero()
            && !is_done
    }

    fn judge(&self, part: ServicePart, seen: &StreamResult) -> StepVerdict {
        if !seen.is_kept {
            let kept = seen.offered.unwrap_or_default();
            return StepVerdict::NotMeasured(format!(
                "the sending host kept to {kept} of {}",
                self.rate(part)
            ));
        }
        if seen.is_overrun() {
            return StepVerdict::NotMeasured(format!(
                "{} of {} frames came to the receiving host and found no room in the tester's socket",
                seen.no_room, seen.sent
            ));
        }
        if seen.sent < FRAMES_MIN {
            return StepVerdict::NotMeasured(format!("{} frames are too few", seen.sent));
        }
        let criteria = &self.plan.criteria;
        let mut judged = CriteriaJudge::default();
        match part {
            ServicePart::Committed(_) | ServicePart::Performance => {
                if let Some(most) = criteria.loss_ratio_max {
                    let found = seen.loss_ratio();
                    let text = format!(
                        "frame loss ratio {} %, at most {} % was stated",
                        percent(found),
                        percent(most)
                    );
                    judged.take(found <= most, text);
                }
                judged.delay("round trip", criteria.round_trip_max, seen.round_trip);
                judged.delay("delay variation", criteria.variation_max, seen.variation);
            }
            ServicePart::Excess | ServicePart::Policing => self.judge_rate(part, seen, &mut judged),
        }
        judged.verdict()
    }

    /// Judges the rate: at least CIR × (1 - FLR) must arrive, and at most CIR + EIR where that is
    /// required.
    fn judge_rate(&self, part: ServicePart, seen: &StreamResult, judged: &mut CriteriaJudge) {
        let received = seen.received_late.unwrap_or_default();
        if let Some(loss) = self.plan.criteria.loss_ratio_max {
            let committed = self.plan.committed.bits_per_second() as f64;
            // What a packet more or less a second makes of a rate is no loss.
            let least = committed * (1.0 - loss) * (1.0 - TOLERANCE_PERCENT as f64 / 100.0);
            let text = format!(
                "{received} arrived, less than CIR {} × (1 − {} %)",
                self.plan.committed,
                percent(loss)
            );
            judged.take(received.bits_per_second() as f64 >= least, text);
        }
        if part == ServicePart::Policing && self.plan.criteria.is_policed {
            let all = self.rate(ServicePart::Excess);
            let most = scale(all, 100 + TOLERANCE_PERCENT, 100);
            let share = |rate: Bitrate| rate.bits_per_second() as f64;
            let offered = seen.offered.unwrap_or_default();
            let text = match share(received) < LIMITED * share(offered) {
                true => format!(
                    "limited to {:.3} Mbit/s, {:.1} % above CIR + EIR {all}",
                    share(received) / 1e6,
                    (share(received) / share(all) - 1.0) * 100.0
                ),
                false => {
                    format!("{received} arrived, more than CIR + EIR {all}: it is not policed")
                }
            };
            judged.take(received <= most, text);
        }
    }

    /// Verdict of the test, by the stated criteria.
    #[must_use]
    pub fn verdict(&self) -> ServiceVerdict {
        let (mut passed, mut failed, mut unmeasured) = (0, Vec::new(), self.given_up.clone());
        for one in &self.done {
            let head = format!(
                "{} {} B, {}",
                one.direction.name(),
                one.frame,
                one.part.name()
            );
            match &one.verdict {
                StepVerdict::Measured => {}
                StepVerdict::Passed => passed += 1,
                StepVerdict::Failed(texts) => {
                    failed.extend(texts.iter().map(|text| format!("{head}: {text}")));
                }
                StepVerdict::NotMeasured(why) => {
                    unmeasured.get_or_insert_with(|| format!("{head}: {why}"));
                }
            }
        }
        match (failed.is_empty(), unmeasured) {
            (false, _) => ServiceVerdict::Failed(failed),
            (true, Some(why)) => ServiceVerdict::NotMeasured(why),
            (true, None) if self.done.is_empty() => {
                ServiceVerdict::NotMeasured("nothing was measured".to_owned())
            }
            (true, None) => ServiceVerdict::Passed(passed),
        }
    }
}

/// A share as people write it, to a lost frame of a hundred million, with no digits that say nothing.
fn percent(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}

impl StreamTest for ServiceProcedure {
    fn next_stream(&self) -> Option<(TestDirection, StreamPlan)> {
        let next = self.queue.front()?;
        let duration = next.duration.min(self.plan.stream_max);
        let plan = stream(self.rate(next.part), next.frame, duration);
        Some((next.direction, plan))
    }

    fn handle(&mut self, record: &StreamRecord) {
        let Some(next) = self.queue.pop_front() else {
            return;
        };
        let seen = StreamResult::of(record, next.frame, self.baseline_rtt);
        let span = record.plan.duration;
        match next.part {
            ServicePart::Performance => self.watch(next, seen, span),
            ServicePart::Committed(_) | ServicePart::Excess | ServicePart::Policing => {
                self.conclude(next, seen, span)
            }
        }
        if self.queue.is_empty() && !self.is_performance_planned {
            self.plan_performance();
        }
    }

    fn progress(&self) -> f64 {
        let left: f64 = self
            .queue
            .iter()
            .map(|next| next.duration.as_secs_f64())
            .sum();
        let watches = match self.is_performance_planned {
            true => Duration::ZERO,
            false => self.plan.performance * self.plan.directions.len() as u32,
        };
        let left = left + watches.as_secs_f64();
        let behind: f64 = self.done.iter().map(|one| one.duration.as_secs_f64()).sum();
        let behind = behind + self.watched.map_or(0.0, |(_, span)| span.as_secs_f64());
        behind / (behind + left).max(1e-9)
    }

    fn describe(&self) -> String {
        match self.queue.front() {
            Some(next) => format!(
                "{} {} B, {}",
                next.direction.name(),
                next.frame,
                next.part.name()
            ),
            None => "done".to_owned(),
        }
    }

    fn give_up(&mut self, why: String) {
        self.given_up = Some(why);
        self.queue.clear();
    }
}

impl ServicePart {
    /// Short name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            ServicePart::Committed(percent) => format!("{percent} % CIR"),
            ServicePart::Excess => "CIR + EIR".to_owned(),
            ServicePart::Policing => "overshoot".to_owned(),
            ServicePart::Performance => "performance".to_owned(),
        }
    }
}

/// Collector of the criteria's results.
#[derive(Default)]
struct CriteriaJudge {
    count: usize,
    missed: Vec<String>,
}

impl CriteriaJudge {
    fn take(&mut self, is_kept: bool, text: String) {
        self.count += 1;
        if !is_kept {
            self.missed.push(text);
        }
    }

    fn delay(&mut self, what: &str, most: Option<Duration>, found: Option<Duration>) {
        let Some(most) = most else {
            return;
        };
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        match found {
            Some(found) => {
                let text = format!(
                    "{what} {:.3} ms, at most {:.3} ms was stated",
                    ms(found),
                    ms(most)
                );
                self.take(found <= most, text);
            }
            None => self.take(false, format!("no {what}: nothing arrived")),
        }
    }

    fn verdict(self) -> StepVerdict {
        match (self.count, self.missed.is_empty()) {
            (0, _) => StepVerdict::Measured,
            (_, true) => StepVerdict::Passed,
            (_, false) => StepVerdict::Failed(self.missed),
        }
    }
}
