//! Looking at the path's own delay, when nothing else has shown it for a while
//! (draft-ietf-ccwg-bbr, "ProbeRTT Logic", "Exiting ProbeRTT").

use std::time::Duration;

use vocab::Time;

use super::{BbrController, BbrState};

/// Minimum time with little in flight (BBR.ProbeRTTDuration).
const DURATION: Duration = Duration::from_millis(200);

/// Data in flight during ProbeRTT, as a share of the BDP (BBR.ProbeRTTCwndGain).
const WINDOW_GAIN: f64 = 0.5;

impl BbrController {
    /// "CheckProbeRTT".
    pub(super) fn check_probe_rtt(&mut self, now: Time, in_flight: u64) {
        if let BbrState::ProbeRtt { .. } = self.state {
            self.handle_probe_rtt(now, in_flight);
        } else if self.round_trips.is_probe_due() && !self.has_idled && self.resume.is_none() {
            self.window_before = self.window;
            self.enter(BbrState::ProbeRtt {
                done_at: None,
                is_round_done: false,
            });
            self.stop_feedback();
            self.handle_probe_rtt(now, in_flight);
        }
    }

    /// "CheckProbeRTTDone".
    pub(super) fn end_probe_rtt_if_done(&mut self, now: Time) {
        let BbrState::ProbeRtt {
            done_at: Some(done_at),
            ..
        } = self.state
        else {
            return;
        };
        if now <= done_at {
            return;
        }
        self.round_trips.probed(now);
        self.window = self.window.max(self.window_before);
        self.reset_short_term();
        if self.full_pipe.is_reached {
            self.start_down(now);
            self.start_cruise();
        } else {
            self.enter(BbrState::Startup);
        }
    }

    /// "ProbeRTTCwnd".
    pub(super) fn probe_rtt_window(&self) -> u64 {
        self.bdp(WINDOW_GAIN, self.rate()).max(self.window_min())
    }

    fn handle_probe_rtt(&mut self, now: Time, in_flight: u64) {
        // What is measured now says little of the path's rate.
        self.sampler.limited_by_application(in_flight);
        let BbrState::ProbeRtt {
            done_at,
            is_round_done,
        } = self.state
        else {
            return;
        };
        match done_at {
            None if in_flight <= self.probe_rtt_window() => {
                self.start_round();
                self.state = BbrState::ProbeRtt {
                    done_at: Some(now + DURATION),
                    is_round_done: false,
                };
            }
            None => {}
            Some(_) => {
                let is_round_done = is_round_done || self.rounds.is_start;
                self.state = BbrState::ProbeRtt {
                    done_at,
                    is_round_done,
                };
                if is_round_done {
                    self.end_probe_rtt_if_done(now);
                }
            }
        }
    }
}
