//! A controller that keeps a model of the path: its rate, its round-trip time, and how much it
//! takes in flight without loss (draft-ietf-ccwg-bbr, "BBRv3").
//!
//! ```text
//!             ┌──────────── ProbeRtt ◄──── any state, when no sample near the minimum came
//!             ▼                            for five seconds
//! Startup ─► Drain ─► Down ─► Cruise ─► Refill ─► Up ─┐       (draft, "State Transition Diagram")
//!                      ▲ └───────────────▲            │
//!                      └──────────────────────────────┘
//! ```
//!
//! Each file holds one concern: `startup.rs` finds the rate, `probe_bandwidth.rs` cycles about it,
//! `round_trips.rs` and `probe_rtt.rs` know the delay, `congestion.rs` reacts to losses and marks,
//! `loss_floor.rs` tells those from bad luck, `control.rs` makes rate and window from the model.
//! Sections of the draft are cited by title, as its numbers move from one version to the next.
//!
//! Departures from the draft are listed, with reasons, in docs/decisions/0017.

pub(super) mod aggregation;
mod congestion;
mod control;
mod loss_floor;
mod probe_bandwidth;
mod probe_rtt;
mod round_trips;
mod startup;
#[cfg(test)]
mod tests;

use vocab::{Bitrate, Probability, SeededRandom, Time};

use self::aggregation::AckAggregation;
use self::congestion::{LossRound, SavedModel};
use self::loss_floor::{LossFloor, SendingPace};
use self::probe_bandwidth::ProbeCycle;
use self::round_trips::RoundTrips;
use self::startup::{CarefulResume, FullPipe};
use super::event::{DeliveryEvent, SendState};
use super::sample::{RateSample, RateSampler};
use super::{CongestionController, ControllerConfig, ControllerTelemetry, RememberedPath};

/// Initial window before a round-trip time is known, in packets (RFC 6928 §2).
const INITIAL_WINDOW_PACKETS: u64 = 10;

/// The least window in packets (BBR.MinPipeCwnd).
const WINDOW_MIN_PACKETS: u64 = 4;

/// Above this share of the minimum round-trip time a queue is called one, in telemetry and where a
/// loss is judged: the steady state aims to stay below.
const QUEUE_SHARE: f64 = 0.25;

/// Limit for a cruising sender's own packets in the queue, in packets.
///
/// It is the minimum window, and as much again that is sent before the queue is noticed. On a slow
/// path that is more than a quarter of the round-trip time.
const OWN_QUEUE_PACKETS: f64 = 8.0;

/// The share of the floor that is sent on top. Were it all, senders that share a policer and take
/// its losses for the path's own would keep each other at it; so their losses shrink by themselves.
const FLOOR_SHARE: f64 = 0.9;

/// Tolerance of a rate sample: a rate above this multiple of what the sending rate can deliver is
/// rejected.
///
/// The rate is a maximum over many samples of about a hundred packets each, and random loss varies
/// between them. An estimate that is too high by that variation builds a queue. The tolerance
/// covers the pacing margin, so the rate never shrinks by itself.
const SAMPLE_TOLERANCE: f64 = 1.01;

/// State of the controller's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BbrState {
    /// Doubles the rate each round until the path is full.
    Startup,
    /// Lets the queue drain that start-up built.
    Drain {
        /// The round in which it began.
        since_round: u64,
    },
    /// Sends less than the path carries, until nothing waits.
    Down,
    /// Sends what the path carries.
    Cruise,
    /// Fills the path for a round before it is probed.
    Refill,
    /// Sends more than the path carried so far.
    Up,
    /// Sends little, to see the path's own delay.
    ProbeRtt {
        /// Time at which it may end; not set until little enough is in flight.
        done_at: Option<Time>,
        /// True after a round has passed since then.
        is_round_done: bool,
    },
}

/// Packet-timed round trips ("BBR.round_count: Tracking Packet-Timed Round Trips").
#[derive(Clone, Copy, Debug, Default)]
struct RoundCounter {
    count: u64,
    next_delivered: u64,
    began_at: Time,
    /// True if the present acknowledgement began a round.
    is_start: bool,
}

/// The BBR controller.
#[derive(Clone, Debug)]
pub(super) struct BbrController {
    config: ControllerConfig,
    random: SeededRandom,
    sampler: RateSampler,
    state: BbrState,
    rounds: RoundCounter,
    round_trips: RoundTrips,
    floor: LossFloor,
    aggregation: AckAggregation,
    full_pipe: FullPipe,
    resume: Option<CarefulResume>,
    /// The round in which losses ended start-up.
    startup_lost_in_round: Option<u64>,
    /// True after start-up was resumed because packets turned out to be reordered.
    is_startup_doubted: bool,
    cycle: ProbeCycle,
    loss_round: LossRound,
    saved: SavedModel,
    /// Highest delivery rate of this probing cycle and of the one before (BBR.max_bw_filter).
    rate_filter: [f64; 2],
    /// Bounds from losses outside of probing (BBR.bw_shortterm, BBR.inflight_shortterm).
    rate_short_term: f64,
    in_flight_short_term: u64,
    /// The round in which they were last lowered.
    cut_in_round: u64,
    /// True if the short-term rate comes from loss without a queue, as a policer causes it.
    is_policed: bool,
    /// Bound from losses while probing (BBR.inflight_longterm).
    in_flight_long_term: u64,
    window: u64,
    /// The window before ProbeRTT or an outage took it down (BBR.prior_cwnd).
    window_before: u64,
    /// Bytes per second.
    pacing_rate: f64,
    /// Bursts of loss so far.
    loss_runs: u64,
    has_idled: bool,
    /// True if the window was full at some time in the present round and in the last round.
    filled_window: [bool; 2],
    /// Time of the latest acknowledgement of a new packet.
    last_acked_at: Time,
}

impl BbrController {
    pub(super) fn new(
        config: ControllerConfig,
        remembered: Option<RememberedPath>,
        now: Time,
    ) -> Self {
        let window = INITIAL_WINDOW_PACKETS * config.packet_bytes;
        let mut bbr = Self {
            config,
            random: SeededRandom::from_seed(config.seed),
            sampler: RateSampler::new(now),
            state: BbrState::Startup,
            rounds: RoundCounter::default(),
            round_trips: RoundTrips::new(now),
            floor: LossFloor::new(),
            aggregation: AckAggregation::new(now),
            full_pipe: FullPipe::default(),
            resume: None,
            startup_lost_in_round: None,
            is_startup_doubted: false,
            cycle: ProbeCycle::new(now),
            loss_round: LossRound::new(now),
            saved: SavedModel::default(),
            rate_filter: [0.0; 2],
            rate_short_term: f64::INFINITY,
            in_flight_short_term: u64::MAX,
            cut_in_round: 0,
            is_policed: false,
            in_flight_long_term: u64::MAX,
            window,
            window_before: 0,
            pacing_rate: 0.0,
            loss_runs: 0,
            has_idled: false,
            filled_window: [false; 2],
            last_acked_at: now,
        };
        // "Pacing Rate", InitPacingRate.
        bbr.pacing_rate = window as f64 / 1e-3;
        if let Some(remembered) = remembered {
            bbr.resume_from(now, remembered);
        }
        bbr
    }

    /// Delivery rate without the effect of recent losses (BBR.max_bw), in bytes per second.
    fn rate_max(&self) -> f64 {
        self.rate_filter[0].max(self.rate_filter[1])
    }

    /// The delivered rate that suits the path now (BBR.bw, "BoundBWForModel").
    fn rate(&self) -> f64 {
        self.rate_max().min(self.rate_short_term)
    }

    /// The rate at which to send for `delivered` to arrive: what the path loses anyway has passed
    /// its bottleneck before it was lost, and its place there would else stay empty.
    fn rate_to_send(&self, delivered: f64) -> f64 {
        delivered / (1.0 - FLOOR_SHARE * self.floor.floor())
    }

    /// Bytes in flight that fill the path, times `gain` ("BDPMultiple").
    fn bdp(&self, gain: f64, delivered_rate: f64) -> u64 {
        match self.round_trips.base() {
            Some(base) => (gain * self.rate_to_send(delivered_rate) * base.as_secs_f64()) as u64,
            None => INITIAL_WINDOW_PACKETS * self.config.packet_bytes,
        }
    }

    /// Returns `true` if the queue is longer than the one this sender keeps while it cruises.
    fn has_others_queue(&self) -> bool {
        let share = self.round_trips.queue();
        let base = self.round_trips.base().unwrap_or_default();
        let bytes = share * base.as_secs_f64() * self.rate();
        share > QUEUE_SHARE && self.packets(bytes as u64) > OWN_QUEUE_PACKETS
    }

    fn window_min(&self) -> u64 {
        WINDOW_MIN_PACKETS * self.config.packet_bytes
    }

    fn packets(&self, bytes: u64) -> f64 {
        bytes as f64 / self.config.packet_bytes as f64
    }

    fn is_probing_bandwidth_state(&self) -> bool {
        match self.state {
            BbrState::Down | BbrState::Cruise | BbrState::Refill | BbrState::Up => true,
            BbrState::Startup | BbrState::Drain { .. } | BbrState::ProbeRtt { .. } => false,
        }
    }

    fn is_window_limited(&self) -> bool {
        self.filled_window[0] || self.filled_window[1]
    }

    fn enter(&mut self, state: BbrState) {
        self.state = state;
        self.floor.begin(match state {
            BbrState::Drain { .. } | BbrState::Down | BbrState::ProbeRtt { .. } => {
                SendingPace::Slow
            }
            BbrState::Cruise => SendingPace::Level,
            BbrState::Startup | BbrState::Refill | BbrState::Up => SendingPace::Fast,
        });
    }

    fn start_round(&mut self) {
        self.rounds.next_delivered = self.sampler.delivered();
    }

    fn update_round(&mut self, now: Time, sample: &RateSample) {
        // Where packets overtake each other the fastest would end the round for all.
        let least = self.round_trips.round_least();
        self.rounds.is_start = sample.prior_delivered >= self.rounds.next_delivered
            && now.since(self.rounds.began_at) >= least;
        if self.rounds.is_start {
            self.start_round();
            self.rounds.count += 1;
            self.floor.begin_round(self.rounds.count);
            self.cycle.rounds_since_up += 1;
            self.rounds.began_at = now;
            self.filled_window = [false, self.filled_window[0]];
        }
    }

    /// "Updating the BBR.max_bw Max Filter".
    fn update_rate(&mut self, sample: &RateSample) {
        if let Some(rate) = sample.rate
            && (rate >= self.rate_max() || !sample.is_application_limited)
        {
            self.rate_filter[0] = self.rate_filter[0].max(rate);
        }
    }

    /// "Tracking Time for the BBR.max_bw Max Filter".
    fn advance_rate_filter(&mut self) {
        if self.rate_filter[0] > 0.0 {
            self.rate_filter = [0.0, self.rate_filter[0]];
        }
    }

    /// "Actions when Restarting from Idle".
    fn restart_from_idle(&mut self, now: Time) {
        self.has_idled = true;
        self.aggregation.restart(now);
        if self.is_probing_bandwidth_state() {
            self.set_pacing_rate(1.0);
        } else {
            self.end_probe_rtt_if_done(now);
        }
    }

    /// "Per-ACK Steps".
    fn acknowledged(&mut self, event: &DeliveryEvent<'_>, sample: &RateSample) {
        let now = event.now;
        self.update_round(now, sample);
        self.update_latest_signals(now, sample);
        self.update_rate(sample);
        self.finish_loss_round(now);
        let rate = self.rate();
        self.aggregation.update(
            now,
            rate,
            sample.newly_acked,
            self.window,
            self.rounds.count,
            self.full_pipe.is_reached,
        );
        self.check_full_pipe(sample);
        self.check_startup(now, event);
        self.check_drain(now, event.in_flight);
        self.update_cycle(now, event.in_flight, sample);
        self.check_probe_rtt(now, event.in_flight);
        self.advance_latest_signals(sample);
        if sample.delivered > 0 {
            self.has_idled = false;
        }
        self.set_pacing_rate(self.pacing_gain());
        self.set_window(sample.newly_acked);
    }
}

impl CongestionController for BbrController {
    fn sent(&mut self, now: Time, _number: u64, bytes: u64, in_flight_before: u64) -> SendState {
        if in_flight_before == 0 && self.sampler.is_application_limited() {
            self.restart_from_idle(now);
        }
        let mut state = self.sampler.sent(now, bytes, in_flight_before);
        state.epoch = self.floor.epoch();
        state.loss_runs = self.loss_runs;
        if state.in_flight + self.config.packet_bytes > self.window {
            self.filled_window[0] = true;
        }
        state
    }

    fn event(&mut self, event: &DeliveryEvent<'_>) {
        let now = event.now;
        if self.round_trips.minimum().is_none()
            && let Some(rtt) = event.rtt
        {
            self.begin_startup(rtt);
        }
        let was_reordering = self.round_trips.is_reordering();
        self.round_trips.update(now, event.rtt, event.reordering);
        if !was_reordering && self.round_trips.is_reordering() {
            self.resume_startup();
        }
        let acked = event.acked.iter().map(|packet| packet.sent_at);
        let lost = event.lost.iter().map(|packet| packet.sent_at);
        self.round_trips.left(now, acked.chain(lost));
        for packet in event.spurious {
            self.take_back_loss(now, packet);
        }
        for packet in event.acked {
            self.count_acked(packet);
        }
        let base = self.round_trips.rate_base();
        let passes = (1.0 - FLOOR_SHARE * self.floor.floor()) * SAMPLE_TOLERANCE;
        let sample = self.sampler.acked(now, event.acked, base, passes);
        self.note_marks(event.ce_marked);
        for packet in event.lost {
            self.count_lost(now, packet.number, packet.bytes, &packet.state);
        }
        for packet in event.acked.iter().filter(|packet| packet.recovered) {
            self.count_lost(now, packet.number, packet.bytes, &packet.state);
        }
        match sample {
            Some(sample) => {
                self.last_acked_at = now;
                self.acknowledged(event, &sample);
            }
            None => self.check_outage(event),
        }
    }

    fn limited_by_application(&mut self, _now: Time, in_flight: u64) {
        if in_flight < self.window {
            self.sampler.limited_by_application(in_flight);
        }
    }

    fn set_packet_bytes(&mut self, bytes: u64) {
        self.config.packet_bytes = bytes;
        self.window = self.window.max(self.window_min());
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Bitrate {
        let rate = Bitrate::from_bits_per_second((self.pacing_rate * 8.0) as u64);
        self.config.rate_max.map_or(rate, |most| rate.min(most))
    }

    fn send_quantum(&self) -> u64 {
        super::quantum(self.pacing_rate(), self.config.packet_bytes)
    }

    fn remembered(&self) -> Option<RememberedPath> {
        let rtt = self.round_trips.base()?;
        let rate = self.rate_to_send(self.rate_max());
        self.full_pipe.is_reached.then(|| RememberedPath {
            rate: Bitrate::from_bits_per_second((rate * 8.0) as u64),
            rtt,
        })
    }

    fn telemetry(&self) -> ControllerTelemetry {
        let bound = self.in_flight_long_term.min(self.in_flight_short_term);
        ControllerTelemetry {
            state: match self.state {
                BbrState::Startup if self.resume.is_some() => "resume",
                BbrState::Startup => "startup",
                BbrState::Drain { .. } => "drain",
                BbrState::Down => "down",
                BbrState::Cruise => "cruise",
                BbrState::Refill => "refill",
                BbrState::Up => "up",
                BbrState::ProbeRtt { .. } => "probe rtt",
            },
            bandwidth: Bitrate::from_bits_per_second((self.rate() * 8.0) as u64),
            rtt_min: self.round_trips.minimum(),
            window: self.window,
            in_flight_bound: (bound < u64::MAX).then_some(bound),
            loss_floor: Probability::from_fraction(self.floor.floor()).unwrap_or(Probability::ZERO),
            is_congested: self.round_trips.queue() > QUEUE_SHARE
                || self.rate_short_term.is_finite(),
            is_shared: match self.state {
                BbrState::Cruise | BbrState::ProbeRtt { .. } => Some(self.has_others_queue()),
                BbrState::Startup
                | BbrState::Drain { .. }
                | BbrState::Down
                | BbrState::Refill
                | BbrState::Up => None,
            },
        }
    }
}
