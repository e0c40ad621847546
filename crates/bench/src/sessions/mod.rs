//! What a WAN session makes of a path, in virtual time and on this machine.
//!
//! ```text
//!  Work ◄──► Session ══ Pipe (link) ════════════ Session ◄──► Work
//!                    ══ emulate::Link (packets) ═
//! ```
//!
//! In virtual time two sessions meet over a byte pipe (the link, as TLS over TCP is) and over
//! packets that go through [`emulate`]'s model, with scripted hosts at both ends. They are the same
//! sessions as in a node, without sockets: what is measured is what the protocol can do, however
//! little the machine can. A [`World`] is a function of its [`Plan`] and its seed; it may hold
//! several pairs of sessions on one path.
//!
//! `cells.rs` has the paths, `transfers.rs` one bulk flow on each, `exchanges.rs` what short flows
//! wait, `shares.rs` what sessions leave each other, and `bench.rs` all of it. `real/` does the same
//! with nodes as processes.

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
pub use cells::{Cell, PLAIN, Shape, all_cells};
pub use exchanges::{Exchanges, FirstByte, Latencies, SmallFlow};
pub use measurement::{Choice, Measurement};
pub use pair::{Datagrams, Pair, Passage};
pub use real::measure as measure_in_real_time;
pub use report::{Cost, NotMeasured, Report};
pub use series::{FlowStep, Step, Together};
pub use shares::{Rival, Shares};
pub use transfers::{CellResult, captured_bytes, run_cell};
pub use verdict::Verdict;
pub use work::{Transfer, Work};
pub use world::{Plan, World};

use tunnel::fec::Mode;

/// The side whose hosts open flows.
const NEAR: usize = 0;
/// The side whose hosts send most.
const FAR: usize = 1;

/// The word for a mode of forward error correction.
#[must_use]
pub fn mode_name(fec: Mode) -> &'static str {
    match fec {
        Mode::Off => "off",
        Mode::On => "on",
        Mode::Auto => "auto",
    }
}

/// The least value that a share of all are not above (the nearest rank); zero of none.
fn quantile<T: Ord + Copy + Default>(values: &mut [T], share: f64) -> T {
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}
