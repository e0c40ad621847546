//! `trunkline measure service` and `trunkline measure throughput`: stream tests against the same
//! server as a turn-up test.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use measure::diagnosis::without_room;
use measure::procedure::BaselineRtt;
use measure::steps::{
    FRAME_OVERHEAD, ServicePlan, ServiceProcedure, StreamTest, ThroughputPlan, ThroughputProcedure,
};
use measure::turn_up::{TestProfile, TestThresholds};
use measure::wire::{ControlMessage, TestDirection};
use vocab::Bitrate;

use super::client::TwoEndedTest;
use super::failure::MeasurementFailure;
use super::options::RunOptions;
use host::progress::ProgressReporter;

/// Pause before each stream, in which queues become empty.
const REST: Duration = Duration::from_millis(200);

/// A test of streams that is over, or as far as it came.
#[derive(Debug)]
pub struct SteppedTest<T> {
    /// Results.
    pub found: T,
    /// The server's address.
    pub server: SocketAddr,
    /// Our own.
    pub local: SocketAddr,
    /// Remarks about the two hosts that a person should read.
    pub hosts: Vec<String>,
    /// Duration of the test.
    pub took: Duration,
}

/// Tests a service by ITU-T Y.1564.
///
/// # Errors
/// Fails when the test could not begin. Later failures are in the result.
pub fn service(
    options: &RunOptions,
    mut plan: ServicePlan,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
) -> Result<SteppedTest<ServiceProcedure>, MeasurementFailure> {
    let most = plan
        .committed
        .bits_per_second()
        .saturating_add(plan.excess.bits_per_second());
    // The overshoot is a quarter above.
    let most = Bitrate::from_bits_per_second(most.saturating_add(most / 4));
    stepped(options, is_over, progress, |test, baseline| {
        ensure!(
            most <= test.limits.rate,
            "the server limits streams to {}, but the test needs {most} (a quarter above CIR + EIR); start \
             the server with --max-rate {most} or more",
            test.limits.rate
        );
        check_frames(&plan.frames, test.interface_mtu)?;
        plan.stream_max = test.limits.order;
        test.note(test.limits.shortens("--step", plan.step));
        Ok(ServiceProcedure::new(plan, baseline))
    })
}

/// Measures throughput, loss and bursts by RFC 2544.
///
/// # Errors
/// As [`service`].
pub fn throughput(
    options: &RunOptions,
    mut plan: ThroughputPlan,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
) -> Result<SteppedTest<ThroughputProcedure>, MeasurementFailure> {
    stepped(options, is_over, progress, |test, baseline| {
        check_frames(&plan.frames, test.interface_mtu)?;
        plan.max_rate = plan.max_rate.min(test.limits.rate);
        plan.stream_max = test.limits.order;
        test.note(test.limits.shortens("--trial", plan.goal.trial));
        Ok(ThroughputProcedure::new(plan, baseline))
    })
}

fn check_frames(frames: &[u16], interface_mtu: u16) -> Result<()> {
    let most = interface_mtu.saturating_add(FRAME_OVERHEAD);
    match frames.iter().find(|frame| **frame > most) {
        Some(frame) => bail!(
            "this interface cannot send frames of {frame} bytes, because its MTU is {interface_mtu}; use at \
             most {most}"
        ),
        None => Ok(()),
    }
}

fn stepped<T: StreamTest>(
    options: &RunOptions,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
    begin: impl FnOnce(&mut TwoEndedTest<'_>, Option<Duration>) -> Result<T>,
) -> Result<SteppedTest<T>, MeasurementFailure> {
    let began = Instant::now();
    let mut test = TwoEndedTest::begin(options, no_profile(), is_over, progress)
        .map_err(MeasurementFailure)?;
    let mut found = measure_baseline(&test)
        .and_then(|baseline| begin(&mut test, baseline))
        .map_err(MeasurementFailure)?;
    let mut no_room = [0_u64; 2];
    while let Some((direction, plan)) = found.next_stream() {
        progress.step(found.progress(), &found.describe());
        let record = test
            .pause(REST + options.rest)
            .and_then(|()| test.stream(direction, plan));
        match record {
            Ok(record) => {
                no_room[direction as usize] += record.no_room;
                found.handle(&record);
            }
            Err(error) => found.give_up(format!("the test ended early: {error:#}")),
        }
    }
    for (direction, packets) in TestDirection::BOTH.into_iter().zip(no_room) {
        test.note((packets > 0).then(|| {
            format!(
                "{}: {}. These frames do not count as lost by the path; a burst with such frames does not count",
                direction.name(),
                without_room(direction, packets)
            )
        }));
    }
    let _ = test.writer.send(&ControlMessage::Bye);
    test.line.is_over.store(true, Ordering::Relaxed);
    Ok(SteppedTest {
        found,
        server: test.server,
        local: test.local,
        hosts: std::mem::take(&mut test.hosts),
        took: began.elapsed(),
    })
}

fn measure_baseline(test: &TwoEndedTest<'_>) -> Result<Option<Duration>> {
    ensure!(
        !test.turn_up.is_tcp_alone(),
        "{}",
        test.turn_up.remarks().join("; ")
    );
    test.progress.step(0.0, "baseline RTT");
    let now = test.clock.now();
    let mut probing = BaselineRtt::new(now, test.session, now.as_nanos());
    test.exchange(&mut probing)?;
    let found = probing
        .outcome(test.clock.now())
        .context("the probing of the round-trip time is over")?;
    Ok(found.baseline())
}

/// Profile of a turn-up test, of which nothing is used here.
fn no_profile() -> TestProfile {
    TestProfile {
        directions: TestDirection::BOTH.to_vec(),
        walk_percent: Vec::new(),
        windows: Vec::new(),
        connections: 1,
        connection_window: None,
        duration: Duration::ZERO,
        max_rate: Bitrate::from_bits_per_second(u64::MAX),
        tcp_headers: 0,
        target: None,
        thresholds: TestThresholds::default(),
    }
}
