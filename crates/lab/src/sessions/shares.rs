//! What sessions leave each other on one path, in virtual time.
//!
//! Every session has a transport of its own and one bulk flow; all share the line, its queue and
//! the way back. The first starts at once, each other 100 ms after the one before; bytes count for
//! 60 s after 20 s.

use std::time::Duration;

use serde::Serialize;
use tunnel::congestion::Algorithm;
use tunnel::fec::Mode;
use tunnel::transport::Settings;

use super::NEAR;
use super::cells::PLAIN;
use super::work::Work;
use super::world::World;
use crate::median::median;

/// Between the starts of two flows.
const STAGGER: Duration = Duration::from_millis(100);
const FROM: Duration = Duration::from_secs(20);
const SPAN: Duration = Duration::from_secs(60);

/// The queues that are shared with rivals, in BDP.
pub(super) const QUEUES: [f64; 2] = [1.0, 4.0];

/// Sessions that share a path among themselves.
const SESSIONS: usize = 16;

/// Whom a session of ours shares a queue with. In virtual time a rival is a session as well, without
/// correction: what is other is the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rival {
    /// CUBIC by RFC 9438, of this project.
    Cubic,
    /// The project's own BBR.
    Bbr,
}

impl Rival {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    fn algorithm(self) -> Algorithm {
        match self {
            Rival::Cubic => Algorithm::Cubic,
            Rival::Bbr => Algorithm::Bbr,
        }
    }
}

/// What each of two got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Who the other is.
    pub rival: &'static str,
    /// The queue.
    pub queue_bdp: f64,
    /// Our share of what both got, median over seeds.
    pub share: f64,
    /// The least and the greatest of them.
    pub least: f64,
    /// See above.
    pub greatest: f64,
    /// What both got of the line.
    pub used: f64,
    /// By seed.
    pub shares: Vec<f64>,
}

/// The bytes that each session got.
fn bytes(transports: &[Settings], queue_bdp: f64, seed: u64) -> Vec<u64> {
    let mut plan = PLAIN.plan(seed, Mode::Auto, None);
    plan.packets = PLAIN.link_with_queue(queue_bdp, seed);
    let mut world = World::shared(plan, transports);
    let start = world.now();
    let flows: Vec<_> = (0..transports.len())
        .map(|pair| {
            let flow = world.start_in(pair, Work::Download(None));
            world.run(STAGGER);
            flow
        })
        .collect();
    let received = |world: &World| -> Vec<u64> {
        (0..)
            .zip(&flows)
            .map(|(pair, flow)| world.pair(pair).transfer(*flow).received(NEAR))
            .collect()
    };
    world.run_until(start + FROM, |_| false);
    let before = received(&world);
    world.run_until(start + FROM + SPAN, |_| false);
    let after = received(&world);
    after.iter().zip(before).map(|(a, b)| a - b).collect()
}

/// What a session of ours and its rival got.
pub(super) fn beside(rival: Rival, queue_bdp: f64, seed: u64) -> [u64; 2] {
    let ours = Settings {
        datagram_max: 1_472,
        ..Settings::default()
    };
    let theirs = Settings {
        fec: Mode::Off,
        algorithm: rival.algorithm(),
        ..ours
    };
    let bytes = bytes(&[ours, theirs], queue_bdp, seed);
    [bytes[0], bytes[1]]
}

impl Shares {
    pub(super) fn of(rival: &'static str, queue_bdp: f64, runs: &[[u64; 2]]) -> Self {
        let shares: Vec<f64> = runs
            .iter()
            .map(|[ours, theirs]| *ours as f64 / (ours + theirs).max(1) as f64)
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
                    .map(|[ours, theirs]| (ours + theirs) as f64 / line),
            )
            .unwrap_or_default(),
            shares,
        }
    }
}

/// Jain's index of sixteen sessions: 1 when all get the same, 1/16 when one gets all.
pub(super) fn jain(seed: u64) -> f64 {
    let transport = Settings {
        datagram_max: 1_472,
        ..Settings::default()
    };
    let bytes = bytes(&[transport; SESSIONS], 1.0, seed);
    let sum: f64 = bytes.iter().map(|bytes| *bytes as f64).sum();
    let squares: f64 = bytes.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
    sum * sum / (SESSIONS as f64 * squares.max(1.0))
}
