//! Steps of a turn-up test: [`TurnUp`] says what is measured next, and takes the results.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use vocab::Bitrate;

use super::client::{ClientStep, CompletedRun, StepOutcome};
use super::procedure::{ClientProcedure, describe_run, describe_stream};
use super::udp_blocked;
use crate::diagnosis::{found_no_room, interrupted};
use crate::procedure::{OVERLOAD_PERCENT, StreamRecord};
use crate::run;
use crate::turn_up::{FinishedTest, RawRun, RunPlan, TestProfile, TurnUp, TurnUpTask};
use crate::wire::{ServerLimits, TestDirection};

/// Pause between two streams, and before each run, in which queues become empty.
const REST: Duration = Duration::from_millis(100);

/// Settings of a turn-up test beside its profile.
#[derive(Clone, Debug)]
pub struct TurnUpSettings {
    /// The server's address.
    pub server: SocketAddr,
    /// Our own.
    pub local: SocketAddr,
    /// MTU of the interface that the test goes by.
    pub interface_mtu: u16,
    /// Rest of the path before a stream that measures by overload, so that a bucket is full.
    pub rest: Duration,
    /// Remarks about the two hosts.
    pub hosts: Vec<String>,
}

/// Threshold that no stream within the server's limits can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the server limits streams to {given}, which is too low to test --min-rate {least}; start the \
     server with --max-rate {} or more", overload(*least)
)]
pub struct UnreachableThreshold {
    given: Bitrate,
    least: Bitrate,
}

/// Checks that a server with these limits can show whether a profile's thresholds are met.
///
/// # Errors
/// Fails when it cannot.
pub fn check_thresholds(
    profile: &TestProfile,
    limits: &ServerLimits,
) -> Result<(), UnreachableThreshold> {
    let given = limits.rate;
    match profile.thresholds.rate_min {
        Some(least) if !profile.thresholds.are_within(given) => {
            Err(UnreachableThreshold { given, least })
        }
        _ => Ok(()),
    }
}

/// Load that must be offered to distinguish a rate from higher ones.
fn overload(rate: Bitrate) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(OVERLOAD_PERCENT) / 100;
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// Turn-up test under way.
#[derive(Debug)]
pub struct TurnUpProcedure {
    settings: TurnUpSettings,
    turn_up: TurnUp,
    runs: Vec<RawRun>,
    is_opened: bool,
    remarks: VecDeque<String>,
}

impl TurnUpProcedure {
    /// A test that has not begun.
    ///
    /// # Panics
    /// Panics when the profile names no direction.
    #[must_use]
    pub fn new(profile: TestProfile, settings: TurnUpSettings) -> Self {
        Self {
            settings,
            turn_up: TurnUp::new(profile),
            runs: Vec::new(),
            is_opened: false,
            remarks: VecDeque::new(),
        }
    }

    /// Result of the test, which took this long.
    #[must_use]
    pub fn finish(self, took: Duration) -> FinishedTest {
        FinishedTest {
            turn_up: self.turn_up,
            runs: self.runs,
            server: self.settings.server,
            local: self.settings.local,
            hosts: self.settings.hosts,
            interface_mtu: self.settings.interface_mtu,
            took,
        }
    }

    /// Behind a black hole TCP is measured with the segments that pass, which it would find by
    /// itself in minutes or never.
    fn segments_max(&self) -> [Option<u16>; 2] {
        let headers = u16::try_from(self.turn_up.profile().tcp_headers).unwrap_or(u16::MAX);
        TestDirection::BOTH.map(|direction| {
            let mtu = self.turn_up.mtu(direction);
            (mtu < self.settings.interface_mtu).then(|| mtu.saturating_sub(headers))
        })
    }

    fn take_stream(&mut self, record: StreamRecord) {
        let TurnUpTask::Stream(direction, _) = self.turn_up.next_task() else {
            return;
        };
        let remarks = [
            found_no_room(direction, record.plan.rate, record.no_room),
            interrupted(direction, &record),
        ];
        for remark in remarks.into_iter().flatten() {
            self.remarks.push_back(remark.clone());
            self.turn_up.remark(remark);
        }
        self.turn_up.stream(record);
    }

    fn take_run(&mut self, completed: CompletedRun) {
        let plan: RunPlan = completed.plan;
        let mut figures = [None, None];
        let sides = completed
            .samples
            .into_iter()
            .zip(completed.congestion_control);
        for (direction, (samples, congestion_control)) in TestDirection::BOTH.into_iter().zip(sides)
        {
            if plan.connections[direction as usize] == 0 {
                continue;
            }
            let ideal = self.turn_up.ideal(direction);
            figures[direction as usize] =
                ideal.and_then(|ideal| run::figures(&samples, plan.duration, &ideal));
            self.runs.push(RawRun {
                plan,
                direction,
                seconds: run::seconds(&samples),
                samples,
                reads: Vec::new(),
                congestion_control,
                segments_retransmitted: None,
                busy_permille: completed.busy_permille,
            });
        }
        self.turn_up.run(figures);
    }
}

impl ClientProcedure for TurnUpProcedure {
    fn next_step(&mut self) -> Option<ClientStep> {
        if !self.is_opened {
            return Some(ClientStep::OpenUdp);
        }
        match self.turn_up.next_task() {
            TurnUpTask::Done => None,
            TurnUpTask::PathMtu(direction) => Some(ClientStep::PathMtu(direction)),
            TurnUpTask::BaselineRtt => Some(ClientStep::BaselineRtt),
            TurnUpTask::Stream(direction, plan) => Some(ClientStep::Stream {
                direction,
                plan,
                rest: match self.turn_up.is_overloading() {
                    true => REST + self.settings.rest,
                    false => REST,
                },
            }),
            TurnUpTask::Run(plan) => Some(ClientStep::Run {
                plan,
                segments_max: self.segments_max(),
                rest: REST,
            }),
        }
    }

    fn handle(&mut self, outcome: StepOutcome) {
        match outcome {
            StepOutcome::UdpOpened(is_open) => {
                self.is_opened = true;
                if !is_open {
                    let why = udp_blocked(self.settings.server);
                    self.remarks.push_back(why.clone());
                    let profile = self.turn_up.profile().clone();
                    self.turn_up = TurnUp::of_tcp_alone(profile, why);
                }
            }
            StepOutcome::PathMtu(found) => self.turn_up.path_mtu(found),
            StepOutcome::BaselineRtt(found) => self.turn_up.baseline_rtt(found),
            StepOutcome::Stream(record) => self.take_stream(record),
            StepOutcome::Run(completed) => self.take_run(completed),
        }
    }

    fn give_up(&mut self, why: String) {
        self.turn_up.give_up(why);
    }

    fn progress(&self) -> (f64, String) {
        if !self.is_opened {
            return (0.0, "connecting".to_owned());
        }
        let text = match self.turn_up.next_task() {
            TurnUpTask::Done => "done".to_owned(),
            TurnUpTask::PathMtu(direction) => format!("path MTU {}", direction.name()),
            TurnUpTask::BaselineRtt => "baseline RTT".to_owned(),
            TurnUpTask::Stream(direction, plan) => describe_stream(direction, &plan),
            TurnUpTask::Run(plan) => describe_run(&plan),
        };
        (self.turn_up.progress(), text)
    }

    fn poll_remark(&mut self) -> Option<String> {
        self.remarks.pop_front()
    }
}
