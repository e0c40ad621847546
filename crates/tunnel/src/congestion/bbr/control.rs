//! Rate, window and quantum from the model (draft-ietf-ccwg-bbr, "Updating Control Parameters",
//! whose table gives each state's gains and bounds).

use super::super::CongestionController;
use super::startup::STARTUP_GAIN;
use super::{BbrController, BbrState, INITIAL_WINDOW_PACKETS};

/// Share of the estimated rate that is left unused, so that queues shrink (BBR.PacingMarginPercent).
const MARGIN: f64 = 0.01;

/// Queue above which cruising is a little slower than the model, as a share of the round-trip time.
/// The sum of several senders' models exceeds the path. Slowing down takes more from the larger
/// senders, and the next probe recovers the loss beside a sender that reacts only to losses.
const CRUISE_QUEUE: f64 = 0.05;
const CRUISE_GAIN_IN_QUEUE: f64 = 0.85;

/// Limit of the cruise queue on a path that reorders, where the queue is measured by the fastest
/// packets.
const CRUISE_QUEUE_REORDERING: f64 = 0.1;

/// Window over BDP in most states (BBR.DefaultCwndGain) and while probing.
const WINDOW_GAIN: f64 = 2.0;
const WINDOW_GAIN_UP: f64 = 2.25;

impl BbrController {
    /// The state's pacing gain.
    pub(super) fn pacing_gain(&self) -> f64 {
        match self.state {
            BbrState::Startup => STARTUP_GAIN,
            BbrState::Drain { .. } => 0.5,
            // What is not sent there goes to those who keep the queue, and the queue stays.
            BbrState::Down | BbrState::Cruise if self.round_trips.has_deep_queue() => 1.0,
            BbrState::Down => 0.9,
            BbrState::Cruise if self.has_cruise_queue() => CRUISE_GAIN_IN_QUEUE,
            BbrState::Cruise | BbrState::Refill | BbrState::ProbeRtt { .. } => 1.0,
            BbrState::Up => 1.25,
        }
    }

    fn has_cruise_queue(&self) -> bool {
        let most = if self.round_trips.is_reordering() {
            CRUISE_QUEUE_REORDERING
        } else {
            CRUISE_QUEUE
        };
        self.round_trips.queue() > most
    }

    /// "SetPacingRateWithGain".
    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        if self.resume.is_some() {
            return;
        }
        let rate = gain * self.rate_to_send(self.rate()) * (1.0 - MARGIN);
        let rate = rate.max(self.startup_rate());
        if self.full_pipe.is_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// "SetCwnd".
    pub(super) fn set_window(&mut self, newly_acked: u64) {
        if let Some(window) = self.resume_window() {
            self.window = window.max(self.window_min());
            return;
        }
        let most = self.in_flight_max();
        let initial = INITIAL_WINDOW_PACKETS * self.config.packet_bytes;
        if self.full_pipe.is_reached {
            self.window = (self.window + newly_acked).min(most);
        } else if self.window < most || self.sampler.delivered() < initial {
            self.window += newly_acked;
        }
        if let BbrState::ProbeRtt { .. } = self.state {
            self.window = self.window.min(self.probe_rtt_window());
        }
        self.window = self.window.min(self.window_bound()).max(self.window_min());
    }

    /// Bytes in flight for a share of the path, including the batches of both hosts ("Inflight").
    pub(super) fn in_flight_for(&self, gain: f64, rate: f64) -> u64 {
        self.quantized(self.bdp(gain, rate))
    }

    /// "UpdateMaxInflight".
    fn in_flight_max(&self) -> u64 {
        let gain = match self.state {
            BbrState::Up => WINDOW_GAIN_UP,
            BbrState::Startup
            | BbrState::Drain { .. }
            | BbrState::Down
            | BbrState::Cruise
            | BbrState::Refill
            | BbrState::ProbeRtt { .. } => WINDOW_GAIN,
        };
        self.quantized(self.bdp(gain, self.rate()) + self.aggregation.extra())
    }

    /// "BoundCwndForModel".
    fn window_bound(&self) -> u64 {
        let bound = match self.state {
            BbrState::Startup => return u64::MAX,
            BbrState::Drain { .. } | BbrState::Down | BbrState::Refill => self.long_term_bound(),
            BbrState::Up => self.long_term_bound().min(self.in_flight_while_probing()),
            BbrState::Cruise | BbrState::ProbeRtt { .. } => self.in_flight_with_headroom(),
        };
        bound.min(self.in_flight_short_term)
    }

    /// The bound that losses while probing have set. Where packets overtake each other slow ones pass for
    /// lost ones, and the bound is no less than the path may hold.
    pub(super) fn long_term_bound(&self) -> u64 {
        if self.round_trips.is_reordering() {
            self.in_flight_long_term.max(self.in_flight_carried())
        } else {
            self.in_flight_long_term
        }
    }

    /// "QuantizationBudget".
    fn quantized(&self, in_flight: u64) -> u64 {
        let quantum = self.send_quantum();
        let more = if self.state == BbrState::Up {
            2 * self.config.packet_bytes
        } else {
            0
        };
        in_flight.max(quantum).max(self.window_min()) + more
    }
}
