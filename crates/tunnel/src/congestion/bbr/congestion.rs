//! Changes of the model after losses and ECN marks (draft-ietf-ccwg-bbr, "Updating the Model Upon
//! Packet Loss", "Updating the Model Upon Detecting a Spurious Loss Recovery").
//!
//! While the controller probes the path, losses above the threshold set the long-term bound on the
//! data in flight. At other times they mean that the path has become narrower. Rate and volume then
//! follow the delivery rate (the short-term bounds) until the next probe.
//!
//! One departure (docs/decisions/0017): the threshold lies above the path's own loss
//! (`loss_floor.rs`), and below it nothing is reduced unless a queue exists.

use std::time::Duration;

use vocab::Time;

use super::super::event::{AckedPacket, DeliveryEvent, LostPacket, SendState};
use super::super::sample::RateSample;
use super::loss_floor::LossCounts;
use super::round_trips::FLOOR_QUEUE;
use super::startup::FullPipe;
use super::{BbrController, BbrState, QUEUE_SHARE};

/// Least share that stays at a reaction (BBR.Beta, as CUBIC's).
const BETA: f64 = 0.7;

/// Rounds after which persistent loss without a queue counts as the path's own, although each round
/// cut the rate by up to 30 %, to the delivery rate. A policer's losses would have ended.
const PERSISTENT_ROUNDS: u32 = 8;

/// Rounds after a reaction to losses until the lost packets are ones sent after it.
const CUT_ROUNDS: u64 = 2;

/// A queue of five round-trip times and a quarter of the rate: a shorter queue than that overflows
/// or is a rival's, and the model's own window makes one of little more than one.
const NARROWER_QUEUE: f64 = 5.0;
const NARROWER_RATE: f64 = 0.25;

/// Below this floor any loss counts where a queue stands, as in the draft.
const FLOOR_SMALL: f64 = 0.005;

/// Marks above this share of packets are a full queue, as losses are (BBR.LossThresh).
const MARK_THRESHOLD: f64 = 0.02;

/// Round-trip times without an acknowledgement, while packets are declared lost, after which the
/// path counts as gone (RFC 9002 §7.6 (Persistent Congestion)).
const OUTAGE_ROUND_TRIPS: u32 = 3;

/// Delivered and lost packets of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossRound {
    /// Greatest rate and volume delivered in the round (BBR.bw_latest, BBR.inflight_latest).
    pub(super) rate_latest: f64,
    pub(super) in_flight_latest: u64,
    ends_at_delivered: u64,
    is_start: bool,
    has_loss: bool,
    began_at: Time,
    now: LossCounts,
    last: LossCounts,
    marked: f64,
    was_excessive: bool,
    /// Consecutive lossy rounds without a queue, although each slowed the sender down.
    pub(super) excessive_rounds: u32,
}

/// The model before the losses of an episode, should they turn out to be none ("Saving State Upon
/// Loss Recovery").
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavedModel {
    /// The state that the losses ended.
    pub(super) state: Option<BbrState>,
    rate_short_term: f64,
    in_flight_short_term: u64,
    in_flight_long_term: u64,
    window: u64,
    /// Packets of the episode that still count as lost.
    lost: u64,
    /// Bytes delivered until then.
    delivered: u64,
}

impl LossRound {
    pub(super) fn new(now: Time) -> Self {
        Self {
            rate_latest: 0.0,
            in_flight_latest: 0,
            ends_at_delivered: 0,
            is_start: false,
            has_loss: false,
            began_at: now,
            now: LossCounts::default(),
            last: LossCounts::default(),
            marked: 0.0,
            was_excessive: false,
            excessive_rounds: 0,
        }
    }

    /// Packets of the last whole round.
    pub(super) fn losses(&self) -> LossCounts {
        self.last
    }

    /// Losses, including those of the present round.
    pub(super) fn losses_so_far(&self) -> LossCounts {
        let mut sum = self.last;
        sum.add(self.now.packets, self.now.lost, self.now.runs);
        sum
    }

    /// Returns `true` if the last complete round lost more than the path's own share.
    pub(super) fn was_excessive(&self) -> bool {
        self.was_excessive
    }

    /// Returns `true` if losses continue although each lossy round slowed the sender down.
    fn is_persistent(&self) -> bool {
        self.excessive_rounds >= PERSISTENT_ROUNDS
    }

    /// "ResetCongestionSignals".
    pub(super) fn reset(&mut self) {
        self.has_loss = false;
        self.rate_latest = 0.0;
        self.in_flight_latest = 0;
    }
}

impl BbrController {
    pub(super) fn count_acked(&mut self, packet: &AckedPacket) {
        if !packet.recovered {
            let counts = self.is_floor_sample();
            self.floor.acked(packet.state.epoch, counts);
            self.loss_round.now.add(1.0, 0.0, 0.0);
        }
    }

    /// Returns `true` if present losses are caused by the path itself and not by this sender.
    fn is_floor_sample(&self) -> bool {
        (self.cycle.built_queue || self.loss_round.is_persistent() || self.is_below_path())
            && self.round_trips.queue() <= FLOOR_QUEUE
    }

    /// Returns `true` if the packets lost now were sent after the sender had slowed down to the
    /// delivery rate.
    fn is_below_path(&self) -> bool {
        self.rate_short_term.is_finite() && self.rounds.count >= self.cut_in_round + CUT_ROUNDS
    }

    pub(super) fn note_marks(&mut self, marked: u64) {
        self.loss_round.marked += marked as f64;
    }

    /// "Per-Loss Steps", HandleLostPacket.
    pub(super) fn count_lost(&mut self, now: Time, number: u64, bytes: u64, state: &SendState) {
        self.sampler.lost_packet(bytes);
        let counts = self.is_floor_sample();
        let begins_run = self.floor.lost(state.epoch, number, counts);
        self.loss_runs += u64::from(begins_run);
        let runs = if begins_run { 1.0 } else { 0.0 };
        self.loss_round.now.add(1.0, 1.0, runs);
        if !self.loss_round.has_loss {
            self.loss_round.has_loss = true;
            self.save();
        }
        self.saved.lost += 1;
        if !self.cycle.is_probe_sample {
            return;
        }
        let lost = self.sampler.lost().saturating_sub(state.lost);
        // On a path that reorders a loss is found late, after more than one flight.
        let delivered = self.sampler.delivered().saturating_sub(state.delivered);
        if self.floor.is_exceeded_by(LossCounts {
            packets: self.packets(state.in_flight.max(delivered + lost)),
            lost: self.packets(lost),
            runs: (self.loss_runs - state.loss_runs) as f64,
        }) {
            let threshold = self.floor.threshold();
            // "InflightAtLoss": where, within this packet, the threshold was crossed.
            let before = state.in_flight.saturating_sub(bytes) as f64;
            let lost_before = lost.saturating_sub(bytes) as f64;
            let prefix = (threshold * before - lost_before) / (1.0 - threshold);
            let at_loss = (before + prefix).max(0.0) as u64;
            self.in_flight_too_high(now, at_loss, state.is_application_limited);
        }
    }

    /// "UpdateLatestDeliverySignals".
    pub(super) fn update_latest_signals(&mut self, now: Time, sample: &RateSample) {
        let delivered = self.delivered_in_flight(sample);
        let round = &mut self.loss_round;
        round.is_start = sample.prior_delivered >= round.ends_at_delivered
            && now.since(round.began_at) >= self.round_trips.round_least();
        round.rate_latest = round.rate_latest.max(sample.rate.unwrap_or(0.0));
        round.in_flight_latest = round.in_flight_latest.max(delivered);
        if round.is_start {
            round.ends_at_delivered = self.sampler.delivered();
            round.last = std::mem::take(&mut round.now);
            let marked = std::mem::take(&mut round.marked);
            round.was_excessive = self.floor.is_exceeded_by(round.last)
                || marked > round.last.packets * MARK_THRESHOLD;
            round.began_at = now;
        }
    }

    /// Bytes delivered during one flight, or during a typical flight on a path that reorders
    /// packets.
    fn delivered_in_flight(&self, sample: &RateSample) -> u64 {
        match (self.round_trips.base(), sample.rate) {
            (Some(base), Some(rate)) if self.round_trips.is_reordering() => {
                sample.delivered.max((rate * base.as_secs_f64()) as u64)
            }
            _ => sample.delivered,
        }
    }

    /// "AdvanceLatestDeliverySignals".
    pub(super) fn advance_latest_signals(&mut self, sample: &RateSample) {
        if self.loss_round.is_start {
            self.loss_round.rate_latest = sample.rate.unwrap_or(0.0);
            self.loss_round.in_flight_latest = self.delivered_in_flight(sample);
        }
    }

    /// "UpdateCongestionSignals", AdaptLowerBoundsFromCongestion: once per round.
    pub(super) fn finish_loss_round(&mut self, now: Time) {
        if !self.loss_round.is_start {
            return;
        }
        let has_queue = self.round_trips.queue() > QUEUE_SHARE;
        let excessive = self.loss_round.was_excessive;
        let passes = if self.floor.floor() < FLOOR_SMALL {
            self.loss_round.has_loss
        } else {
            self.floor.is_exceeded_beyond_chance(self.loss_round.last)
        };
        let reacts = excessive || (has_queue && passes);
        self.loss_round.has_loss = false;
        let is_probing = match self.state {
            BbrState::Startup | BbrState::Refill | BbrState::Up => true,
            BbrState::Drain { .. }
            | BbrState::Down
            | BbrState::Cruise
            | BbrState::ProbeRtt { .. } => false,
        };
        if excessive && self.state == BbrState::Up && self.cycle.is_probe_sample {
            // Marks, of which no single packet tells.
            let in_flight = self.loss_round.in_flight_latest;
            self.in_flight_too_high(now, in_flight, self.sampler.is_application_limited());
        }
        if !excessive {
            if self.loss_round.is_persistent() {
                // By now they are the floor, so what they took is given back.
                self.reset_short_term();
            }
            self.loss_round.excessive_rounds = 0;
        }
        self.adapt_to_narrower_path();
        if is_probing || !reacts {
            return;
        }
        if self.rate_short_term.is_infinite() {
            self.rate_short_term = self.rate_max();
        }
        if self.in_flight_short_term == u64::MAX {
            self.in_flight_short_term = self.window;
        }
        self.cut_in_round = self.rounds.count;
        self.rate_short_term = self.loss_round.rate_latest.max(BETA * self.rate_short_term);
        self.loss_round.excessive_rounds += u32::from(excessive);
        self.is_policed = excessive && self.round_trips.queue() <= FLOOR_QUEUE;
        let reduced = (BETA * self.in_flight_short_term as f64) as u64;
        self.in_flight_short_term = self.loss_round.in_flight_latest.max(reduced);
    }

    /// Adapts to a narrower path after a round with a very long queue that delivered little of the
    /// rate.
    ///
    /// The filter would follow after two cycles. But that queue makes rounds long, ProbeRTT comes
    /// between, and when the minimum round-trip time expires the window grows with the queue.
    fn adapt_to_narrower_path(&mut self) {
        let delivered = self.loss_round.rate_latest;
        if self.full_pipe.is_reached
            && !matches!(self.state, BbrState::ProbeRtt { .. })
            && !self.sampler.is_application_limited()
            && self.round_trips.queue() > NARROWER_QUEUE
            && delivered > 0.0
            && delivered < self.rate_max() * NARROWER_RATE
        {
            self.rate_filter = [delivered, 0.0];
        }
    }

    /// "HandleInflightTooHigh".
    pub(super) fn in_flight_too_high(&mut self, now: Time, in_flight: u64, is_limited: bool) {
        self.cycle.was_too_high = true;
        self.cycle.is_probe_sample = false;
        if !is_limited {
            let least = (self.target_in_flight() as f64 * BETA) as u64;
            self.in_flight_long_term = in_flight.max(least);
        }
        if self.state == BbrState::Up {
            let queue = self.round_trips.queue_beyond(self.cycle.rtt_at_up);
            if queue < FLOOR_QUEUE && !self.round_trips.is_reordering() {
                self.met_loss_without_queue();
            }
            self.saved.state = Some(BbrState::Up);
            self.start_down(now);
        }
    }

    /// A probe met losses and no queue: bad luck once, a policer when it happens again.
    fn met_loss_without_queue(&mut self) {
        self.cycle.lossy_probes += 1;
        if self.cycle.lossy_probes > 1 {
            self.cycle.built_queue = false;
            self.floor.doubt();
        }
    }

    /// "ResetShortTermModel".
    pub(super) fn reset_short_term(&mut self) {
        self.is_policed = false;
        self.rate_short_term = f64::INFINITY;
        self.in_flight_short_term = u64::MAX;
    }

    /// Handles a packet that was declared lost and then arrived. When an episode has no more real
    /// losses than the path's own, the model returns to its state before the episode ("Handling a
    /// Spurious Loss Recovery").
    pub(super) fn take_back_loss(&mut self, now: Time, packet: &LostPacket) {
        self.sampler.spurious_loss(now, packet);
        self.floor.spurious(packet.state.epoch);
        self.loss_round.now.lost = (self.loss_round.now.lost - 1.0).max(0.0);
        if self.saved.lost == 0 {
            return;
        }
        self.saved.lost -= 1;
        let passed = self.sampler.delivered() - self.saved.delivered;
        let chance = self.floor.floor() * self.packets(passed);
        if self.saved.lost as f64 > chance {
            return;
        }
        let saved = self.saved;
        self.saved.lost = 0;
        self.saved.state = None;
        self.loss_round.has_loss = false;
        self.window = self.window.max(saved.window);
        if saved.lost == 0 || saved.state.is_some() {
            self.full_pipe.restart(0.0);
        }
        self.rate_short_term = self.rate_short_term.max(saved.rate_short_term);
        self.in_flight_short_term = self.in_flight_short_term.max(saved.in_flight_short_term);
        self.in_flight_long_term = self.in_flight_long_term.max(saved.in_flight_long_term);
        let is_elsewhere = saved.state.is_some_and(|state| state != self.state);
        if !is_elsewhere || matches!(self.state, BbrState::ProbeRtt { .. }) {
            return;
        }
        if saved.state == Some(BbrState::Startup) {
            // Else the round that has ended it would end it again.
            self.full_pipe = FullPipe::default();
            self.loss_round.was_excessive = false;
            self.enter(BbrState::Startup);
        } else {
            self.start_refill();
        }
    }

    fn save(&mut self) {
        self.saved = SavedModel {
            state: None,
            rate_short_term: self.rate_short_term,
            in_flight_short_term: self.in_flight_short_term,
            in_flight_long_term: self.in_flight_long_term,
            window: self.window,
            lost: 0,
            delivered: self.sampler.delivered(),
        };
    }

    /// Closes the window while the path is gone; acknowledgements open it again ("Modulating cwnd
    /// in Loss Recovery", upon a retransmission timeout).
    pub(super) fn check_outage(&mut self, event: &DeliveryEvent<'_>) {
        let Some(base) = self.round_trips.base() else {
            return;
        };
        let silent = event.now.since(self.last_acked_at);
        let base = base.max(Duration::from_millis(1));
        if !event.lost.is_empty() && silent > base * OUTAGE_ROUND_TRIPS {
            self.window_before = self.window_before.max(self.window);
            self.window = (event.in_flight + self.config.packet_bytes).max(self.window_min());
        }
    }
}
