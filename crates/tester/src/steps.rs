//! `trunkline measure service` and `trunkline measure throughput`: stream tests against the same
//! server as a turn-up test.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use host::progress::ProgressReporter;
use measure::session::{StreamProcedure, check_frames};
use measure::steps::{
    ServicePlan, ServiceProcedure, StreamTest, ThroughputPlan, ThroughputProcedure,
};
use vocab::Bitrate;

use super::client::ConnectedClient;
use super::failure::MeasurementFailure;
use super::options::RunOptions;

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
    let prepare = |client: &ConnectedClient<'_>| {
        let limits = &client.greeted.limits;
        ensure!(
            most <= limits.rate,
            "the server limits streams to {}, but the test needs {most} (a quarter above CIR + EIR); start \
             the server with --max-rate {most} or more",
            limits.rate
        );
        check_frames(&plan.frames, client.interface_mtu)?;
        plan.stream_max = limits.order;
        let remark = limits.shortens("--step", plan.step);
        let make = |baseline| ServiceProcedure::new(plan, baseline);
        Ok((remark, make))
    };
    stepped(options, is_over, progress, prepare).map_err(MeasurementFailure)
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
    let prepare = |client: &ConnectedClient<'_>| {
        let limits = &client.greeted.limits;
        check_frames(&plan.frames, client.interface_mtu)?;
        plan.max_rate = plan.max_rate.min(limits.rate);
        plan.stream_max = limits.order;
        let remark = limits.shortens("--trial", plan.goal.trial);
        let make = |baseline| ThroughputProcedure::new(plan, baseline);
        Ok((remark, make))
    };
    stepped(options, is_over, progress, prepare).map_err(MeasurementFailure)
}

/// Runs the test that `prepare` makes for a server, with a remark about it.
fn stepped<T: StreamTest, M: FnOnce(Option<Duration>) -> T + 'static>(
    options: &RunOptions,
    is_over: &(dyn Fn() -> bool + Sync),
    progress: &dyn ProgressReporter,
    prepare: impl FnOnce(&ConnectedClient<'_>) -> Result<(Option<String>, M)>,
) -> Result<SteppedTest<T>> {
    let began = Instant::now();
    let client = ConnectedClient::open(options, progress, |_| Ok(()))?;
    let (server, local, mut hosts) = (client.server, client.local, client.hosts.clone());
    let (remark, make) = prepare(&client)?;
    hosts.extend(remark);
    for remark in &hosts {
        progress.note(remark);
    }
    let procedure = StreamProcedure::new(server, options.rest, make);
    let procedure = client.run(procedure, is_over, progress)?;
    for remark in procedure.remarks() {
        progress.note(&remark);
        hosts.push(remark);
    }
    Ok(SteppedTest {
        found: procedure.finish().map_err(|why| anyhow!(why))?,
        server,
        local,
        hosts,
        took: began.elapsed(),
    })
}
