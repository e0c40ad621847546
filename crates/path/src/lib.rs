//! Path properties that an end can measure from the fate of its own packets.
//!
//! ```text
//!  acknowledged ── sample ──► RttEstimator ── smoothed, variance, min, probe timeout
//!               ── spans ───► DurationQuantiles ── "all but one in 500 came within …"
//!  acked, lost, timers ─────► PathMtu ─────── how large a packet may be; the next probe
//! ```
//!
//! Each is a small state machine that is handed the time, for transports and for circuit testers.
//! It sends nothing and knows no packet format. Its user numbers the packets and reports losses.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
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
