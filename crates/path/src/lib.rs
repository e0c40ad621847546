//! What an end can learn about a path from the fate of its own packets.
//!
//! ```text
//!  acknowledged ── sample ──► RttEstimator ── smoothed, variance, min, probe timeout
//!               ── spans ───► Quantiles ───── "all but one in 500 came within …"
//!  acked, lost, timers ─────► PathMtu ─────── how large a packet may be; the next probe
//! ```
//!
//! Each is a small machine that is handed the time, for a transport as for a tester of circuits:
//! it sends nothing, knows no packet's form, and leaves to its user how packets are numbered and
//! how losses are told.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod mtu;
mod quantiles;
mod rtt;

pub use mtu::{
    BASE_SIZE, CONFIRM_AFTER, MtuConfig, MtuState, PROBE_TIMER_MIN, PROBES_MAX, PathMtu,
    RAISE_AFTER, RETRY_AFTER, SEARCH_GRAIN,
};
pub use quantiles::DurationQuantiles;
pub use rtt::{GRANULARITY, INITIAL_RTT, MIN_RTT_WINDOW, RttEstimator};
