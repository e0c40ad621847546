//! Shares of sessions on one path, in virtual time.
//!
//! Every session has a transport of its own and one bulk flow; all share the line, its queue and
//! the way back. The first starts at once, each other 100 ms after the one before; bytes count for
//! 60 s after 20 s. Of two flows there is a series (`series.rs`), and a verdict (`verdict.rs`).

use std::time::Duration;

use serde::Serialize;
use tunnel::congestion::CongestionAlgorithm;
use tunnel::fec::RepairMode;
use tunnel::transport::PathSettings;

use super::cells::PLAIN;
use super::series::{FlowPair, FlowStep, STEP};
use super::work::FlowScript;
use super::world::SessionSimulation;
use super::{FAR, NEAR};
use host::median::median;

/// Time between the starts of two flows.
const STAGGER: Duration = Duration::from_millis(100);
pub(super) const FROM: Duration = Duration::from_secs(20);
pub(super) const SPAN: Duration = Duration::from_secs(60);

/// The queues that are shared with rivals, in BDP.
pub(super) const QUEUES: [f64; 2] = [1.0, 4.0];

/// Sessions that share a path among themselves.
const SESSIONS: usize = 16;

/// Rival that shares a queue with a session of ours. In virtual time a rival is a session as well,
/// without correction and with another congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RivalController {
    /// CUBIC by RFC 9438, of this project or of this kernel.
    Cubic,
    /// The project's own BBR, or the kernel's.
    Bbr,
    /// BBR version 1 as Linux has it, of this project and hence in virtual time alone.
    BbrV1,
}

impl RivalController {
    /// Name in results, which is the kernel's name where it has one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::BbrV1 => "bbr-v1",
        }
    }

    fn algorithm(self) -> CongestionAlgorithm {
        match self {
            RivalController::Cubic => CongestionAlgorithm::Cubic,
            RivalController::Bbr => CongestionAlgorithm::Bbr,
            RivalController::BbrV1 => CongestionAlgorithm::BbrV1,
        }
    }
}

/// Shares of two flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueShares {
    /// The rival.
    pub rival: &'static str,
    /// The queue.
    pub queue_bdp: f64,
    /// First flow's share of the total, median over seeds: ours, except where rivals are compared
    /// with each other.
    pub share: f64,
    /// The least and the greatest of them.
    pub least: f64,
    /// See above.
    pub greatest: f64,
    /// Share of the line that both flows used.
    pub used: f64,
    /// Shares by seed.
    pub shares: Vec<f64>,
    /// Series of both flows, by seed.
    pub runs: Vec<FlowPair>,
}

/// Bytes of each session, and the series of the first two.
fn together(transports: &[PathSettings], queue_bdp: f64, seed: u64) -> (Vec<u64>, FlowPair) {
    let mut plan = PLAIN.plan(seed, RepairMode::Auto, None);
    plan.packets = PLAIN.link_with_queue(queue_bdp, seed);
    let mut world = SessionSimulation::shared(plan, transports);
    let start = world.now();
    let flows: Vec<_> = (0..transports.len())
        .map(|pair| {
            let flow = world.start_in(pair, FlowScript::Download(None));
            world.run(STAGGER);
            flow
        })
        .collect();
    let received = |world: &SessionSimulation| -> Vec<u64> {
        (0..)
            .zip(&flows)
            .map(|(pair, flow)| world.pair(pair).transfer(*flow).received(NEAR))
            .collect()
    };
    let mut run = FlowPair::default();
    let mut at_from = Vec::new();
    let mut at = Duration::ZERO;
    while at < FROM + SPAN {
        at += STEP;
        world.run_until(start + at, |_| false);
        let now = received(&world);
        let dropped = world.packets().back.counters().dropped_by_queue.packets;
        let states = [0, 1].map(|pair| {
            let status = world.pair(pair).status(FAR);
            status.map_or_else(FlowStep::default, |status| FlowStep::of_session(&status))
        });
        run.add(at, [now[0], now[1]], dropped, states);
        if at == FROM {
            at_from = now;
        }
    }
    let after = received(&world);
    let bytes: Vec<u64> = after.iter().zip(at_from).map(|(a, b)| a - b).collect();
    run.bytes = [bytes[0], bytes[1]];
    (bytes, run)
}

/// A session of this project's.
fn ours() -> PathSettings {
    PathSettings {
        datagram_max: 1_472,
        ..PathSettings::default()
    }
}

/// A session that behaves as this rival.
fn theirs(rival: RivalController) -> PathSettings {
    PathSettings {
        fec: RepairMode::Off,
        algorithm: rival.algorithm(),
        ..ours()
    }
}

/// Result of a session of ours and its rival.
pub(super) fn run_beside_rival(rival: RivalController, queue_bdp: f64, seed: u64) -> FlowPair {
    together(&[ours(), theirs(rival)], queue_bdp, seed).1
}

/// Shares of CUBIC and BBR version 1 between themselves, without a flow of ours.
pub(super) fn rivals_alone(queue_bdp: f64, seed: u64) -> FlowPair {
    let both = [
        theirs(RivalController::Cubic),
        theirs(RivalController::BbrV1),
    ];
    together(&both, queue_bdp, seed).1
}

impl QueueShares {
    pub(super) fn of(rival: &'static str, queue_bdp: f64, runs: Vec<FlowPair>) -> Self {
        let shares: Vec<f64> = runs
            .iter()
            .map(|run| {
                let [ours, theirs] = run.bytes;
                ours as f64 / (ours + theirs).max(1) as f64
            })
            .collect();
        let line = PLAIN.rate().bytes_in(SPAN).bytes() as f64;
        Self {
            rival,
            queue_bdp,
            share: median(shares.iter().copied()).unwrap_or_default(),
            least: shares.iter().copied().fold(1.0, f64::min),
            greatest: shares.iter().copied().fold(0.0, f64::max),
            used: median(
                runs.iter()
                    .map(|run| run.bytes.iter().sum::<u64>() as f64 / line),
            )
            .unwrap_or_default(),
            shares,
            runs,
        }
    }
}

/// Jain's index of sixteen sessions: 1 when all get the same, 1/16 when one gets all.
pub(super) fn jain(seed: u64) -> f64 {
    let (bytes, _) = together(&[ours(); SESSIONS], 1.0, seed);
    let sum: f64 = bytes.iter().map(|bytes| *bytes as f64).sum();
    let squares: f64 = bytes.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
    sum * sum / (SESSIONS as f64 * squares.max(1.0))
}
