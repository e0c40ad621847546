//! One bulk flow on one path, in virtual time: its steady part, and whole transfers of 16 MiB.

use std::time::Duration;

use serde::Serialize;
use tunnel::SessionConfig;
use tunnel::congestion::RememberedPath;
use tunnel::fec::RepairMode;
use tunnel::transport::{PathSettings, TransportStatus};
use vocab::{ByteCount, Time};

use super::cells::{PLAIN, PathCell};
use super::pair::DatagramSupport;
use super::pair::HEADERS;
use super::work::FlowScript;
use super::world::{SessionSimulation, SimulationPlan};
use super::{FAR, NEAR, mode_name, quantile};
use host::median::median;

/// Results on one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathCellResult {
    /// The path.
    #[serde(flatten)]
    pub cell: PathCell,
    /// Forward error correction: `"off"`, `"on"` or `"auto"`.
    pub fec: &'static str,
    /// Application bytes in the steady part.
    pub goodput_mbit_s: f64,
    /// Application bytes of a transfer of 16 MiB over the time from its open to its last byte.
    pub whole_transfer_mbit_s: f64,
    /// Idle share of the processors; `None` in virtual time.
    pub cpu_idle_percent: Option<f64>,
    /// True in virtual time.
    pub r#virtual: bool,
    /// The whole transfer on a path whose rate and round-trip time an earlier one has found.
    pub whole_transfer_remembered_mbit_s: Option<f64>,
    /// Path of the frames, in the words of `trunkline node status`: `"udp"` or `"tls"`.
    pub path: String,
    /// Begin and end of the steady part.
    pub steady_from_s: f64,
    /// See above.
    pub steady_to_s: f64,
    /// Data that the line carries in the steady part.
    pub rate_integral_mbit: f64,
    /// Rate that the policer lets through.
    pub policed_mbit_s: Option<f64>,
    /// 95th percentile of the queueing delay in the steady part.
    pub queueing_p95_ms: Option<f64>,
    /// Share of sent packets that were lost on the path, in the steady part.
    pub lost_share: f64,
    /// Share of sent packets that were repairs.
    pub repair_share: f64,
    /// Share of sent packets that were wrongly taken for lost.
    pub spurious_share: Option<f64>,
    /// Ratio of a median with `"auto"` or `"on"` to the goodput without correction: the median of
    /// the ratios of runs with the same seed.
    pub goodput_over_off: Option<f64>,
    /// The same of the whole transfer.
    pub whole_transfer_over_off: Option<f64>,
    /// The seeds of the path: one, or those that this is the median of.
    pub seeds: Vec<u64>,
}

impl PathCellResult {
    /// The median of each figure of runs that differ in their seeds, beside those without
    /// correction.
    pub(super) fn median_of(runs: &[&Self], off: &[&Self]) -> Option<Self> {
        let first = *runs.first()?;
        let of = |figure: fn(&Self) -> f64| {
            median(runs.iter().map(|run| figure(run))).unwrap_or_default()
        };
        // What one run has not measured, none has.
        let of_some = |figure: fn(&Self) -> Option<f64>| {
            figure(first)?;
            median(runs.iter().filter_map(|run| figure(run)))
        };
        let over_off = |figure: fn(&Self) -> f64| {
            let ratios = runs.iter().filter_map(|run| {
                let pair = off.iter().find(|off| off.seeds == run.seeds)?;
                Some(figure(run) / figure(pair).max(1e-9))
            });
            median(ratios).filter(|_| first.fec != mode_name(RepairMode::Off))
        };
        Some(Self {
            goodput_mbit_s: of(|run| run.goodput_mbit_s),
            whole_transfer_mbit_s: of(|run| run.whole_transfer_mbit_s),
            cpu_idle_percent: of_some(|run| run.cpu_idle_percent),
            whole_transfer_remembered_mbit_s: of_some(|run| run.whole_transfer_remembered_mbit_s),
            queueing_p95_ms: of_some(|run| run.queueing_p95_ms),
            lost_share: of(|run| run.lost_share),
            repair_share: of(|run| run.repair_share),
            spurious_share: of_some(|run| run.spurious_share),
            goodput_over_off: over_off(|run| run.goodput_mbit_s),
            whole_transfer_over_off: over_off(|run| run.whole_transfer_mbit_s),
            seeds: runs.iter().flat_map(|run| run.seeds.clone()).collect(),
            ..first.clone()
        })
    }
}

/// The bytes of a whole transfer.
pub(super) const WHOLE: u64 = 16 << 20;

/// Time limit of a transfer; one that takes longer gets a figure near zero.
const WHOLE_LIMIT: Duration = Duration::from_secs(600);

/// Bytes of all packets in both directions, IP headers included, of a session in virtual time while
/// it carries one flow of so many encoded bytes over [`PLAIN`], from the open to the end; `None`
/// when the flow does not finish.
#[must_use]
pub fn captured_bytes(encoded: u64) -> Option<u64> {
    let mut world = SessionSimulation::new(PLAIN.plan(1, RepairMode::Auto, None));
    let captured = |world: &SessionSimulation| {
        let packets = world.packets();
        let [forward, back] = [&packets.forward, &packets.back].map(|way| way.counters().offered);
        forward.bytes + back.bytes + (forward.packets + back.packets) * HEADERS.bytes()
    };
    let before = captured(&world);
    let flow = world.start(FlowScript::Upload(Some(encoded)));
    let end = world.now() + WHOLE_LIMIT;
    let is_through = world.run_until(end, |world| world.transfer(flow).is_complete());
    is_through.then(|| captured(&world) - before)
}

/// Sampling interval of the queue.
const QUEUE_LOOK: Duration = Duration::from_millis(20);

impl PathCell {
    /// Two nodes with their defaults on this path.
    pub(super) fn plan(
        &self,
        seed: u64,
        fec: RepairMode,
        remembered: Option<RememberedPath>,
    ) -> SimulationPlan {
        let packets = self.link(seed);
        SimulationPlan {
            link: (self.rate(), packets.forward.delay),
            packets,
            datagrams: DatagramSupport::Offered,
            transport: PathSettings {
                fec,
                remembered,
                datagram_max: 1_472,
                ..PathSettings::default()
            },
            session: SessionConfig {
                // Links here have a line of their own, so that there is always more to be had.
                compare_paths: false,
                ..SessionConfig::default()
            },
        }
    }
}

/// Measures one path in virtual time.
#[must_use]
pub fn run_cell(cell: PathCell, fec: RepairMode, seed: u64) -> PathCellResult {
    let (whole, remembered) = whole_transfer(cell, fec, seed, None);
    let (again, _) = whole_transfer(cell, fec, seed, remembered);
    let steady = steady(cell, fec, seed);
    let (from, to) = cell.steady();
    PathCellResult {
        cell,
        fec: mode_name(fec),
        goodput_mbit_s: steady.goodput_mbit_s,
        whole_transfer_mbit_s: whole,
        cpu_idle_percent: None,
        r#virtual: true,
        whole_transfer_remembered_mbit_s: Some(again),
        path: steady.path.to_owned(),
        steady_from_s: from.as_secs_f64(),
        steady_to_s: to.as_secs_f64(),
        rate_integral_mbit: cell.rate_integral_mbit(),
        policed_mbit_s: cell.policed_mbit_s(),
        queueing_p95_ms: Some(steady.queueing_p95.as_secs_f64() * 1e3),
        lost_share: steady.lost_share,
        repair_share: steady.repair_share,
        spurious_share: Some(steady.spurious_share),
        goodput_over_off: None,
        whole_transfer_over_off: None,
        seeds: vec![seed],
    }
}

struct SteadyFigures {
    goodput_mbit_s: f64,
    path: &'static str,
    queueing_p95: Duration,
    lost_share: f64,
    repair_share: f64,
    spurious_share: f64,
}

fn steady(cell: PathCell, fec: RepairMode, seed: u64) -> SteadyFigures {
    let mut world = SessionSimulation::new(cell.plan(seed, fec, None));
    let start = world.now();
    let flow = world.start(FlowScript::Download(None));
    let (from, to) = cell.steady();
    world.run_until(start + from, |_| false);
    let received_before = world.transfer(flow).received(NEAR);
    let (status_before, line_before) = (world.status(FAR), world.packets().back.counters());
    let mut queueing = Vec::new();
    let mut at = start + from;
    while at < start + to {
        at += QUEUE_LOOK;
        world.run_until(at, |_| false);
        queueing.push(queueing_delay(&world));
    }
    let received = world.transfer(flow).received(NEAR) - received_before;
    let (status, line) = (world.status(FAR), world.packets().back.counters());
    let sent = line.offered - line_before.offered;
    let dropped = [line, line_before].map(|counters| {
        counters.dropped_by_policer + counters.dropped_by_queue + counters.dropped_by_loss
    });
    let dropped = dropped[0] - dropped[1];
    let share = |count| share_of_sent(status_before.as_ref(), status.as_ref(), count);
    SteadyFigures {
        goodput_mbit_s: mbit(received) / (to - from).as_secs_f64(),
        path: match world.session(FAR).is_in_packets() {
            true => "udp",
            false => "tls",
        },
        queueing_p95: quantile(&mut queueing, 0.95),
        lost_share: dropped.packets as f64 / sent.packets.max(1) as f64,
        repair_share: share(|status| status.sent_repairs),
        spurious_share: share(|status| status.spurious_packets),
    }
}

/// Increase of a count between two readings, as a share of the packets that were sent.
pub(super) fn share_of_sent(
    before: Option<&TransportStatus>,
    after: Option<&TransportStatus>,
    count: fn(&TransportStatus) -> u64,
) -> f64 {
    let (Some(before), Some(after)) = (before, after) else {
        return 0.0;
    };
    let sent = after.sent_packets - before.sent_packets;
    (count(after) - count(before)) as f64 / sent.max(1) as f64
}

/// Time that the line needs for its backlog, towards the near side.
fn queueing_delay(world: &SessionSimulation) -> Duration {
    let direction = &world.packets().back;
    let queued = ByteCount::new(direction.counters().queued.bytes);
    direction
        .config()
        .line
        .rate()
        .map_or(Duration::ZERO, |rate| rate.time_for(queued))
}

/// Rate of a transfer in Mbit/s, and its estimates of the path.
fn whole_transfer(
    cell: PathCell,
    fec: RepairMode,
    seed: u64,
    remembered: Option<RememberedPath>,
) -> (f64, Option<RememberedPath>) {
    let mut world = SessionSimulation::new(cell.plan(seed, fec, remembered));
    let start = world.now();
    let flow = world.start(FlowScript::Download(Some(WHOLE)));
    world.run_until(start + WHOLE_LIMIT, |world| {
        world.transfer(flow).received(NEAR) == WHOLE
    });
    let took: Duration = Time::since(world.now(), start);
    let received = world.transfer(flow).received(NEAR);
    let found = world.session(FAR).datagrams_remembered();
    (mbit(received) / took.as_secs_f64().max(1e-9), found)
}

pub(super) fn mbit(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e6
}
