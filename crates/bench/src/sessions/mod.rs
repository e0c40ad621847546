//! Benchmark of a WAN session on emulated paths, in virtual time and on this machine.
//!
//! ```text
//!  Work ◄──► Session ══ Pipe (link) ════════════ Session ◄──► Work
//!                    ══ emulate::Link (packets) ═
//! ```
//!
//! In virtual time two sessions are connected by a byte pipe (the link, as TLS over TCP is) and by
//! packets that go through [`emulate`]'s model, with scripted hosts at both ends. They are the same
//! sessions as in a node, without sockets: the protocol's performance is measured, independent of
//! the machine's. A [`SessionSimulation`] is a function of its [`SimulationPlan`] and its seed; it
//! may hold several pairs of sessions on one path.
//!
//! `cells.rs` has the paths, `transfers.rs` one bulk flow on each, `exchanges.rs` the waits of
//! short flows, `shares.rs` the shares between sessions, and `bench.rs` all of it. `real/` does the
//! same with nodes as processes.

mod bench;
mod cells;
mod exchanges;
mod measurement;
mod pair;
mod pipe;
mod real;
mod report;
mod series;
mod shares;
mod transfers;
mod verdict;
mod work;
mod world;

pub use bench::measure;
pub use cells::{PLAIN, PathCell, PathShape, all_cells};
pub use exchanges::{ExchangeTimes, FirstByte, LatencyQuantiles, SmallFlow};
pub use measurement::{SessionMeasurement, SessionSelection};
pub use pair::{DatagramFilter, DatagramSupport, SessionPair};
pub use real::measure as measure_in_real_time;
pub use report::{FailedRun, FlowCost, SessionReport};
pub use series::{FlowPair, FlowStep, SeriesStep};
pub use shares::{QueueShares, RivalController};
pub use transfers::{PathCellResult, captured_bytes, run_cell};
pub use verdict::FairnessVerdict;
pub use work::{FlowScript, FlowTransfer};
pub use world::{SessionSimulation, SimulationPlan};

use tunnel::fec::RepairMode;

/// The side whose hosts open flows.
const NEAR: usize = 0;
/// The side whose hosts send most.
const FAR: usize = 1;

/// Name of a mode of forward error correction.
#[must_use]
pub fn mode_name(fec: RepairMode) -> &'static str {
    match fec {
        RepairMode::Off => "off",
        RepairMode::On => "on",
        RepairMode::Auto => "auto",
    }
}

/// Value at a rank by share (nearest rank); zero without values.
fn quantile<T: Ord + Copy + Default>(values: &mut [T], share: f64) -> T {
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}
