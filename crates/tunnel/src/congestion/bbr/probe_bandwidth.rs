//! Bandwidth probing cycle: drain, cruise, refill, probe (draft-ietf-ccwg-bbr, "ProbeBW").
//!
//! One departure from the draft (docs/decisions/0017): a probe adds no more than about a fifth of
//! the BDP, unless the path turns out to carry it. It ends as soon as its own queue shows in
//! round-trip times, a fifth of the path's own above those at the start of the probe. The draft's
//! three rounds without growth fill a queue of one BDP, which takes ten rounds to drain. In a deep
//! queue that others keep, that growth of the round-trip time alone bounds the probe. It is the
//! same for small and large shares, and so makes shares converge (docs/decisions/0044).

use std::time::Duration;

use vocab::Time;

use super::super::sample::RateSample;
use super::loss_floor::LossCounts;
use super::round_trips::FLOOR_QUEUE;
use super::{BbrController, BbrState};

/// Share of the long-term bound that is left to others while cruising (BBR.Headroom), but for what
/// the path itself carries: the headroom is in the queue.
const HEADROOM: f64 = 0.15;

/// Rounds after which a probe is due, so that CUBIC and Reno at short round-trip times have time
/// to grow (draft, "A Dual-Time-Scale Approach for Coexistence").
const RENO_ROUNDS_MAX: u64 = 63;

/// Limit for doublings of the probe interval. Each probe that meets losses, on a path without a
/// queue and without other losses, doubles the wait for the next: a policer's rate is known, and
/// each further probe loses its excess.
const PATIENCE_DOUBLINGS: u32 = 2;

/// Rounds after a probe before an empty queue is taken for a wider path.
const WIDER_ROUNDS: u64 = 3;

/// Time after which a probe is due: this, and up to a second more.
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// A queue this long, as a share of the round-trip time, ends the probe that built it.
const UP_QUEUE: f64 = 0.2;

/// Extra data that a probe puts in flight, as a share of the BDP. It is what the probe's gain adds
/// in one round, and small enough to keep the queue below a quarter of the round-trip time.
const UP_IN_FLIGHT: f64 = 0.22;

/// A round of probing that delivers no more than this times as much has found the path full.
const UP_GROWTH: f64 = 1.05;

/// The step of growth doubles each round, at most so often: by then any bound has been passed.
const GROWTH_DOUBLINGS: u32 = 30;

/// Phase of the probe that the present acknowledgements belong to (BBR.ack_phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    /// No probe is in progress.
    None,
    /// They are of packets that fill the path.
    Refilling,
    /// The probe has begun; they are still of packets before it.
    Starting,
    /// They are of the probe's packets.
    Probing,
    /// The probe has ended; they are still of its packets.
    Stopping,
}

/// A probing cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeCycle {
    /// Rounds since the last probe (BBR.rounds_since_probe_up).
    pub(super) rounds_since_up: u64,
    /// True if acknowledgements are for probing packets and the controller has not yet reacted to
    /// losses (BBR.is_bw_probe_sample).
    pub(super) is_probe_sample: bool,
    /// True if the last probe met too much loss (BBR.prev_probe_too_high).
    pub(super) was_too_high: bool,
    was_precautionary: bool,
    feedback: AckPhase,
    began_at: Time,
    wait: Duration,
    up_rounds: u32,
    up_acked: u64,
    /// Bytes to be acknowledged for each packet that the long-term bound grows by.
    acked_per_packet: u64,
    /// The round-trip time, and the bytes in flight, when the probe began.
    pub(super) rtt_at_up: Duration,
    /// True if the last probe or start-up ended with a queue that it had built.
    pub(super) built_queue: bool,
    /// Probes in a row that met losses and built no queue.
    pub(super) lossy_probes: u32,
    /// True if any queue was seen since the last probe began, no matter who caused it.
    pub(super) saw_queue: bool,
    in_flight_at_up: u64,
    /// True if a deep queue existed when the probe began.
    is_in_deep_queue: bool,
    /// Rounds of feedback without more delivered.
    up_rounds_without_growth: u32,
    up_rate: f64,
}

impl ProbeCycle {
    pub(super) fn new(now: Time) -> Self {
        Self {
            rounds_since_up: 0,
            is_probe_sample: false,
            was_too_high: false,
            was_precautionary: false,
            feedback: AckPhase::None,
            began_at: now,
            wait: PROBE_WAIT,
            up_rounds: 0,
            up_acked: 0,
            acked_per_packet: u64::MAX,
            rtt_at_up: Duration::ZERO,
            built_queue: false,
            lossy_probes: 0,
            saw_queue: false,
            in_flight_at_up: 0,
            is_in_deep_queue: false,
            up_rounds_without_growth: 0,
            up_rate: 0.0,
        }
    }
}

impl BbrController {
    /// "StartProbeBW_DOWN".
    pub(super) fn start_down(&mut self, now: Time) {
        self.loss_round.reset();
        self.cycle.acked_per_packet = u64::MAX;
        // "PickProbeWait".
        self.cycle.rounds_since_up = self.random.below(2);
        self.cycle.wait = PROBE_WAIT + Duration::from_secs_f64(self.random.next_f64());
        self.cycle.began_at = now;
        self.cycle.feedback = AckPhase::Stopping;
        self.start_round();
        self.enter(BbrState::Down);
    }

    /// "StartProbeBW_CRUISE".
    pub(super) fn start_cruise(&mut self) {
        self.enter(BbrState::Cruise);
    }

    /// "StartProbeBW_REFILL".
    pub(super) fn start_refill(&mut self) {
        self.reset_short_term();
        // The window that losses have closed would keep the probe from being one; what it lets out
        // at once is paced.
        let filled = self.in_flight_for(1.0, self.rate_max());
        self.window = self.window.max(filled.min(self.long_term_bound()));
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.was_precautionary = false;
        self.cycle.feedback = AckPhase::Refilling;
        self.start_round();
        self.enter(BbrState::Refill);
    }

    /// "StartProbeBW_UP".
    fn start_up(&mut self, in_flight: u64, sample: &RateSample) {
        self.cycle.feedback = AckPhase::Starting;
        self.cycle.rtt_at_up = self.round_trips.recent().unwrap_or_default();
        self.cycle.in_flight_at_up = in_flight;
        self.cycle.is_in_deep_queue = self.round_trips.has_deep_queue();
        self.cycle.saw_queue = false;
        self.cycle.up_rounds_without_growth = 0;
        self.cycle.up_rate = self.rate_max();
        self.start_round();
        self.full_pipe.restart(sample.rate.unwrap_or(0.0));
        self.enter(BbrState::Up);
        self.raise_slope();
    }

    /// Begins another probe's feedback from ProbeRTT, which has nothing in flight from a probe.
    pub(super) fn stop_feedback(&mut self) {
        self.cycle.feedback = AckPhase::Stopping;
        self.start_round();
    }

    /// "UpdateProbeBWCyclePhase".
    pub(super) fn update_cycle(&mut self, now: Time, in_flight: u64, sample: &RateSample) {
        if self.round_trips.queue() > 0.0 {
            self.cycle.saw_queue = true;
            self.loss_round.excessive_rounds = 0;
        }
        if !self.full_pipe.is_reached || self.adapt_long_term(sample) {
            return;
        }
        match self.state {
            BbrState::Down => {
                if self.is_time_to_probe(now) {
                    self.start_refill();
                } else if self.is_time_to_cruise(in_flight) {
                    self.start_cruise();
                }
            }
            BbrState::Cruise => {
                if self.is_time_to_probe(now) {
                    self.start_refill();
                }
            }
            BbrState::Refill => {
                if self.rounds.is_start {
                    self.cycle.is_probe_sample = true;
                    self.start_up(in_flight, sample);
                }
            }
            BbrState::Up => {
                if self.is_time_to_go_down(in_flight, sample) {
                    self.cycle.was_too_high = false;
                    self.start_down(now);
                }
            }
            BbrState::Startup | BbrState::Drain { .. } | BbrState::ProbeRtt { .. } => {}
        }
    }

    /// "TargetInflight".
    pub(super) fn target_in_flight(&self) -> u64 {
        self.bdp(1.0, self.rate()).min(self.window)
    }

    /// "InflightWithHeadroom".
    pub(super) fn in_flight_with_headroom(&self) -> u64 {
        let bound = self.long_term_bound();
        if bound == u64::MAX {
            return bound;
        }
        let headroom = ((bound as f64 * HEADROOM) as u64).max(self.config.packet_bytes);
        let carried = self.in_flight_carried().min(bound);
        bound
            .saturating_sub(headroom)
            .max(carried)
            .max(self.window_min())
    }

    /// Bytes that the path holds without a queue.
    pub(super) fn in_flight_carried(&self) -> u64 {
        self.in_flight_for(self.round_trips.doubt(), self.rate())
    }

    /// The most in flight while probing: as much more than at its beginning as the gain puts on
    /// the path in one round. When the path turns out to carry it, its BDP grows and this too. In a deep
    /// queue no more than in other states: a share of our own part would keep a small part small.
    pub(super) fn in_flight_while_probing(&self) -> u64 {
        if self.cycle.is_in_deep_queue {
            return u64::MAX;
        }
        let bdp = self.bdp(1.0, self.rate());
        let before = self.cycle.in_flight_at_up.max(bdp);
        before + (UP_IN_FLIGHT * bdp as f64) as u64 + 2 * self.config.packet_bytes
    }

    /// "IsTimeToProbeBW".
    fn is_time_to_probe(&self, now: Time) -> bool {
        let reno_rounds = self.packets(self.target_in_flight()) as u64;
        // A queue was full, and is empty: the path has become wider again, or the others have gone.
        let is_wider = self.rate_short_term.is_finite()
            && !self.is_policed
            && self.cycle.rounds_since_up >= WIDER_ROUNDS
            && self.round_trips.queue() <= FLOOR_QUEUE;
        let patience = if self.cycle.saw_queue || self.loss_round.losses().lost > 0.0 {
            1
        } else {
            1 << self.cycle.lossy_probes.min(PATIENCE_DOUBLINGS)
        };
        is_wider
            || now > self.cycle.began_at + self.cycle.wait * patience
            || self.cycle.rounds_since_up >= u64::from(patience) * reno_rounds.min(RENO_ROUNDS_MAX)
    }

    /// "IsTimeToCruise".
    fn is_time_to_cruise(&self, in_flight: u64) -> bool {
        // A round at least, for the floor to be known by what is sent slowly.
        self.cycle.feedback == AckPhase::None
            && in_flight <= self.in_flight_with_headroom()
            && in_flight <= self.in_flight_for(1.0, self.rate_max())
    }

    /// "IsTimeToGoDown".
    fn is_time_to_go_down(&mut self, in_flight: u64, sample: &RateSample) -> bool {
        if self.cycle.was_too_high && in_flight >= self.long_term_bound() {
            self.cycle.was_precautionary = true;
            return true;
        }
        let queue = self.round_trips.queue_beyond(self.cycle.rtt_at_up);
        if queue > UP_QUEUE && !self.round_trips.is_reordering() {
            self.cycle.built_queue = true;
            self.cycle.lossy_probes = 0;
            return true;
        }
        if self.is_window_limited() && self.window >= self.long_term_bound() {
            self.full_pipe.restart(sample.rate.unwrap_or(0.0));
            return false;
        }
        if self.cycle.feedback == AckPhase::Probing && self.rounds.is_start {
            if self.rate_max() >= self.cycle.up_rate * UP_GROWTH {
                self.cycle.up_rate = self.rate_max();
                self.cycle.up_rounds_without_growth = 0;
            } else {
                self.cycle.up_rounds_without_growth += 1;
            }
        }
        let is_full = self.full_pipe.is_now
            || self.cycle.up_rounds_without_growth > self.round_trips.rounds_of_rate();
        if is_full {
            self.cycle.built_queue = queue > FLOOR_QUEUE || self.round_trips.is_reordering();
            if self.cycle.built_queue {
                self.cycle.lossy_probes = 0;
            }
        }
        is_full
    }

    /// "AdaptLongTermModel"; true when it has decided on a state.
    fn adapt_long_term(&mut self, sample: &RateSample) -> bool {
        if self.cycle.feedback == AckPhase::Starting && self.rounds.is_start {
            self.cycle.feedback = AckPhase::Probing;
        }
        if self.cycle.feedback == AckPhase::Stopping && self.rounds.is_start {
            self.cycle.is_probe_sample = false;
            self.cycle.feedback = AckPhase::None;
            if self.is_probing_bandwidth_state() {
                if !sample.is_application_limited {
                    self.advance_rate_filter();
                }
                if self.cycle.was_precautionary && !self.cycle.was_too_high {
                    self.start_refill();
                    return true;
                }
            }
        }
        let is_too_high = self.floor.is_exceeded_by(LossCounts {
            packets: self.packets(
                sample
                    .in_flight_at_departure
                    .max(sample.delivered + sample.lost),
            ),
            lost: self.packets(sample.lost),
            runs: (self.loss_runs - sample.loss_runs_at_departure) as f64,
        });
        if is_too_high || self.in_flight_long_term == u64::MAX {
            return false;
        }
        self.in_flight_long_term = self.in_flight_long_term.max(sample.in_flight_at_departure);
        if self.state == BbrState::Up {
            self.grow_long_term(sample);
        }
        false
    }

    /// "ProbeInflightLongtermUpward".
    fn grow_long_term(&mut self, sample: &RateSample) {
        if !self.is_window_limited() || self.window < self.in_flight_long_term {
            return;
        }
        self.cycle.up_acked += sample.newly_acked;
        let packets = self.cycle.up_acked / self.cycle.acked_per_packet;
        self.cycle.up_acked -= packets * self.cycle.acked_per_packet;
        self.in_flight_long_term = self
            .in_flight_long_term
            .saturating_add(packets * self.config.packet_bytes);
        if self.rounds.is_start {
            self.raise_slope();
        }
    }

    /// "RaiseInflightLongtermSlope".
    fn raise_slope(&mut self) {
        let packets = 1_u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(GROWTH_DOUBLINGS);
        self.cycle.acked_per_packet = (self.window / packets).max(self.config.packet_bytes);
    }
}
