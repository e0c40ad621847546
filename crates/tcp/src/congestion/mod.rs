//! The congestion window: slow start, congestion avoidance, and the reductions that loss recovery
//! asks for.
//!
//! ```text
//!   acknowledged segments ──► increase ──► slow start ─► NewReno or CUBIC
//!   RTT samples ────────────► hystart.rs ─► the end of slow start before a loss
//!   a loss episode ─────────► reduced_threshold ─► send/recovery.rs sets the window (PRR)
//! ```
//!
//! The window is counted in segments, as Linux counts it.

mod cubic;
mod hystart;

use std::time::Duration;

use vocab::Time;

use crate::config::{CongestionAlgorithm, ConnectionConfig};
use cubic::CubicState;

/// Least window after a reduction, in segments: RFC 5681 §3.1 equation (4).
pub(crate) const THRESHOLD_LEAST: u32 = 2;

/// Congestion window of one connection.
#[derive(Clone, Debug)]
pub(crate) struct CongestionWindow {
    /// Window in segments.
    pub(crate) segments: u32,
    /// Slow-start threshold in segments; the greatest number while unknown.
    pub(crate) threshold: u32,
    /// Acknowledged segments that did not yet increase the window.
    credit: u32,
    /// CUBIC's state; `None` for NewReno.
    cubic: Option<CubicState>,
}

impl CongestionWindow {
    pub(crate) fn new(config: &ConnectionConfig) -> Self {
        Self {
            segments: config.initial_window.max(1),
            threshold: u32::MAX,
            credit: 0,
            cubic: match config.congestion {
                CongestionAlgorithm::NewReno => None,
                CongestionAlgorithm::Cubic => Some(CubicState::new(config.hystart)),
            },
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.segments < self.threshold
    }

    /// Increases the window for `acknowledged` segments that left the network.
    pub(crate) fn increase(&mut self, now: Time, mut acknowledged: u32) {
        if self.in_slow_start() {
            let grown = acknowledged.min(self.threshold - self.segments);
            self.segments += grown;
            acknowledged -= grown;
            if acknowledged == 0 {
                return;
            }
        }
        let needed = match &mut self.cubic {
            None => self.segments,
            Some(cubic) => cubic.segments_for_increase(now, self.segments, acknowledged),
        };
        self.increase_after(needed, acknowledged);
    }

    /// One segment more for every `needed` acknowledged ones.
    fn increase_after(&mut self, needed: u32, acknowledged: u32) {
        let needed = needed.max(1);
        // Credit from a time when more was needed counts once.
        if self.credit >= needed {
            self.credit = 0;
            self.segments += 1;
        }
        self.credit += acknowledged;
        self.segments += self.credit / needed;
        self.credit %= needed;
    }

    /// Threshold for a new loss episode: RFC 5681 §3.1 equation (4), RFC 9438 §4.6. Credit for a larger window
    /// ends (tcp_init_cwnd_reduction).
    pub(crate) fn reduced_threshold(&mut self) -> u32 {
        self.credit = 0;
        let reduced = match &mut self.cubic {
            None => self.segments / 2,
            Some(cubic) => cubic.reduce(self.segments),
        };
        reduced.max(THRESHOLD_LEAST)
    }

    /// A retransmission time-out: the window is one segment beside those in flight.
    pub(crate) fn on_timeout(&mut self, in_flight: u32) {
        self.segments = in_flight + 1;
        self.credit = 0;
        if let Some(cubic) = &mut self.cubic {
            cubic.reset();
        }
    }

    /// Takes back a reduction that was caused by reordering or delay alone.
    pub(crate) fn undo(&mut self, prior_window: u32, prior_threshold: u32) {
        self.segments = self.segments.max(prior_window);
        self.threshold = self.threshold.max(prior_threshold);
    }

    /// Takes the RTT of the newest acknowledged segment that was sent once.
    pub(crate) fn on_rtt(&mut self, now: Time, rtt: Duration, acknowledged: u64, next: u64) {
        let in_slow_start = self.in_slow_start();
        if let Some(cubic) = &mut self.cubic
            && cubic.on_rtt(now, rtt, in_slow_start, self.segments, (acknowledged, next))
        {
            self.threshold = self.segments;
        }
    }

    /// Data are sent again after a pause since `idle_since`: CUBIC's time does not count it
    /// (RFC 9438 §5.8).
    pub(crate) fn on_restart(&mut self, now: Time, idle_since: Time) {
        if let Some(cubic) = &mut self.cubic {
            cubic.on_restart(now, idle_since);
        }
    }

    /// Decay of an unused window: RFC 5681 §4.1 (Restarting Idle Connections) in the form of RFC 2861,
    /// halved for every time-out of the pause.
    pub(crate) fn restart_after_idle(&mut self, timeouts: u32, initial: u32) {
        let restart = initial.min(self.segments);
        self.threshold = self.current_threshold();
        self.segments = (self.segments.checked_shr(timeouts).unwrap_or(0)).max(restart);
    }

    /// Shrinks a window that the application never filled, RFC 2861 §3.1.
    pub(crate) fn limit_to_used(&mut self, used: u32, initial: u32) {
        let used = used.max(initial);
        if used < self.segments {
            self.threshold = self.current_threshold();
            self.segments = u32::midpoint(self.segments, used);
        }
    }

    /// Threshold to remember: at least three quarters of the window in use.
    pub(crate) fn current_threshold(&self) -> u32 {
        self.threshold.max(self.segments / 2 + self.segments / 4)
    }
}

#[cfg(test)]
mod tests;
