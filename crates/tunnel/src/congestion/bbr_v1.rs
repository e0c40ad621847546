//! BBR version 1 as Linux has it (net/ipv4/tcp_bbr.c): the rival that a flow meets on today's
//! Internet. Nodes do not offer it; it is here so that the lab can put one beside a session in
//! virtual time.
//!
//! ```text
//!  Startup ─► Drain ─► ProbeBw (1.25, 0.75, six times 1) ◄─┐
//!                         └── no lower round-trip time ────┴─ ProbeRtt
//!                             for ten seconds
//! ```
//!
//! What matters beside others: no loss and no queue ever lowers its rate, the highest of ten
//! rounds, and only the window of two BDP ends its queue. In a queue of up to one BDP it hence never
//! waits for its window, and who answers losses or delay gives way to it.
//!
//! Left out: the long-term rate for policers (`lt_bw`), which takes a fifth of loss.

use std::time::Duration;

use vocab::{Bitrate, Probability, SeededRandom, Time};

use super::bbr::aggregation::AckAggregation;
use super::event::{DeliveryEvent, SendState};
use super::sample::{RateBase, RateSample, RateSampler};
use super::{CongestionController, ControllerConfig, ControllerTelemetry, RememberedPath};

/// `bbr_high_gain`: 2/ln 2.
const HIGH_GAIN: f64 = 2.885;

/// `bbr_cwnd_gain`.
const WINDOW_GAIN: f64 = 2.0;

/// `bbr_pacing_gain`.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

/// `bbr_bw_rtts`: rounds over which the rate is a maximum.
const RATE_ROUNDS: u64 = 10;

/// `bbr_min_rtt_win_sec`.
const MINIMUM_LASTS: Duration = Duration::from_secs(10);

/// `bbr_probe_rtt_mode_ms`.
const PROBE_RTT: Duration = Duration::from_millis(200);

/// `bbr_full_bw_thresh`, `bbr_full_bw_cnt`.
const GROWTH: f64 = 1.25;
const PLATEAU_ROUNDS: u32 = 3;

/// `bbr_pacing_margin_percent`: 1 %.
const PACING_MARGIN: f64 = 0.99;

/// `bbr_cwnd_min_target`.
const WINDOW_MIN_PACKETS: u64 = 4;

/// The initial window in packets (RFC 6928 §2).
const INITIAL_WINDOW_PACKETS: u64 = 10;

/// Bytes that `bbr_quantization_budget` adds for segments inside the host, in packets: three runs
/// of two packets, the least that Linux makes.
const BUDGET_PACKETS: u64 = 6;

/// `bbr_extra_acked_max_us`.
const EXTRA_SPAN: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BbrV1State {
    Startup,
    Drain,
    ProbeBw {
        /// Place in the cycle.
        phase: usize,
    },
    ProbeRtt {
        /// Not set until little enough is in flight.
        done_at: Option<Time>,
        is_round_done: bool,
    },
}

/// Linux's `TCP_CA_Recovery`.
#[derive(Clone, Copy, Debug)]
struct LossRecovery {
    /// Packets sent after this moment end it when they are acknowledged.
    since: Time,
    /// True during the first round, in which only as much is sent as was acknowledged (packet
    /// conservation).
    conserves: bool,
}

/// The controller.
#[derive(Clone, Debug)]
pub(super) struct BbrV1 {
    config: ControllerConfig,
    random: SeededRandom,
    sampler: RateSampler,
    aggregation: AckAggregation,
    state: BbrV1State,
    phase_at: Time,
    round: u64,
    round_ends_at: u64,
    is_round_start: bool,
    /// Rates in bytes per second and their rounds, falling.
    rates: Vec<(u64, f64)>,
    minimum: Option<Duration>,
    minimum_at: Time,
    full_rate: f64,
    rounds_without_growth: u32,
    is_full: bool,
    recovery: Option<LossRecovery>,
    lost_in_phase: bool,
    window: u64,
    window_before: u64,
    pacing_rate: f64,
}

impl BbrV1 {
    pub(super) fn new(config: ControllerConfig, now: Time) -> Self {
        let window = INITIAL_WINDOW_PACKETS * config.packet_bytes;
        Self {
            config,
            random: SeededRandom::from_seed(config.seed),
            sampler: RateSampler::new(now),
            aggregation: AckAggregation::new(now),
            state: BbrV1State::Startup,
            phase_at: now,
            round: 0,
            round_ends_at: 0,
            is_round_start: false,
            rates: Vec::new(),
            minimum: None,
            minimum_at: now,
            full_rate: 0.0,
            rounds_without_growth: 0,
            is_full: false,
            recovery: None,
            lost_in_phase: false,
            window,
            window_before: 0,
            // bbr_init_pacing_rate_from_rtt: a millisecond until there is a sample.
            pacing_rate: HIGH_GAIN * window as f64 / 1e-3,
        }
    }

    fn rate(&self) -> f64 {
        self.rates.first().map_or(0.0, |(_, rate)| *rate)
    }

    fn window_min(&self) -> u64 {
        WINDOW_MIN_PACKETS * self.config.packet_bytes
    }

    /// `bbr_bdp`.
    fn bdp(&self, gain: f64) -> u64 {
        match self.minimum {
            Some(minimum) => (self.rate() * minimum.as_secs_f64() * gain) as u64,
            None => INITIAL_WINDOW_PACKETS * self.config.packet_bytes,
        }
    }

    /// `bbr_inflight`.
    fn in_flight_for(&self, gain: f64) -> u64 {
        let more = match self.state {
            BbrV1State::ProbeBw { phase: 0 } => 2,
            BbrV1State::Startup
            | BbrV1State::Drain
            | BbrV1State::ProbeBw { .. }
            | BbrV1State::ProbeRtt { .. } => 0,
        };
        self.bdp(gain) + (BUDGET_PACKETS + more) * self.config.packet_bytes
    }

    fn gains(&self) -> (f64, f64) {
        match self.state {
            BbrV1State::Startup => (HIGH_GAIN, HIGH_GAIN),
            BbrV1State::Drain => (1.0 / HIGH_GAIN, HIGH_GAIN),
            BbrV1State::ProbeBw { phase } => (CYCLE[phase], WINDOW_GAIN),
            BbrV1State::ProbeRtt { .. } => (1.0, 1.0),
        }
    }

    /// `bbr_update_bw`.
    fn update_rate(&mut self, sample: &RateSample) {
        self.is_round_start = sample.prior_delivered >= self.round_ends_at;
        if self.is_round_start {
            self.start_round();
            self.round += 1;
            if let Some(recovery) = &mut self.recovery {
                recovery.conserves = false;
            }
        }
        if let Some(rate) = sample.rate
            && (!sample.is_application_limited || rate >= self.rate())
        {
            self.rates.retain(|(_, older)| *older > rate);
            self.rates.push((self.round, rate));
        }
        let round = self.round;
        self.rates.retain(|(of, _)| of + RATE_ROUNDS >= round);
    }

    fn start_round(&mut self) {
        self.round_ends_at = self.sampler.delivered();
    }

    /// `bbr_update_cycle_phase`.
    fn update_phase(&mut self, now: Time, in_flight: u64) {
        let BbrV1State::ProbeBw { phase } = self.state else {
            return;
        };
        let is_long = now.since(self.phase_at) > self.minimum.unwrap_or_default();
        let gain = CYCLE[phase];
        let is_over = if gain > 1.0 {
            is_long && (self.lost_in_phase || in_flight >= self.in_flight_for(gain))
        } else if gain < 1.0 {
            is_long || in_flight <= self.in_flight_for(1.0)
        } else {
            is_long
        };
        if is_over {
            self.enter_phase(now, (phase + 1) % CYCLE.len());
        }
    }

    fn enter_phase(&mut self, now: Time, phase: usize) {
        self.state = BbrV1State::ProbeBw { phase };
        self.phase_at = now;
        self.lost_in_phase = false;
    }

    /// `bbr_reset_probe_bw_mode`: any phase but the one that sends less.
    fn enter_probe_bw(&mut self, now: Time) {
        let phase = match self.random.below(7) as usize {
            0 => 0,
            later => later + 1,
        };
        self.enter_phase(now, phase);
    }

    /// `bbr_check_full_bw_reached`.
    fn check_full(&mut self, sample: &RateSample) {
        if self.is_full || !self.is_round_start || sample.is_application_limited {
            return;
        }
        if self.rate() >= self.full_rate * GROWTH {
            self.full_rate = self.rate();
            self.rounds_without_growth = 0;
            return;
        }
        self.rounds_without_growth += 1;
        self.is_full = self.rounds_without_growth >= PLATEAU_ROUNDS;
    }

    /// `bbr_check_drain`.
    fn check_drain(&mut self, now: Time, in_flight: u64) {
        if self.state == BbrV1State::Startup && self.is_full {
            self.state = BbrV1State::Drain;
        }
        if self.state == BbrV1State::Drain && in_flight <= self.in_flight_for(1.0) {
            self.enter_probe_bw(now);
        }
    }

    /// `bbr_update_min_rtt`.
    fn update_minimum(&mut self, now: Time, rtt: Option<Duration>, in_flight: u64) {
        let is_old = now > self.minimum_at + MINIMUM_LASTS;
        if let Some(rtt) = rtt
            && (is_old || self.minimum.is_none_or(|minimum| rtt < minimum))
        {
            self.minimum = Some(rtt);
            self.minimum_at = now;
        }
        if is_old && !matches!(self.state, BbrV1State::ProbeRtt { .. }) {
            self.save_window();
            self.state = BbrV1State::ProbeRtt {
                done_at: None,
                is_round_done: false,
            };
        }
        let BbrV1State::ProbeRtt {
            done_at,
            is_round_done,
        } = self.state
        else {
            return;
        };
        self.sampler.limited_by_application(in_flight);
        let Some(done_at) = done_at else {
            if in_flight <= self.window_min() {
                self.start_round();
                self.state = BbrV1State::ProbeRtt {
                    done_at: Some(now + PROBE_RTT),
                    is_round_done: false,
                };
            }
            return;
        };
        let is_round_done = is_round_done || self.is_round_start;
        self.state = BbrV1State::ProbeRtt {
            done_at: Some(done_at),
            is_round_done,
        };
        if is_round_done && now > done_at {
            self.minimum_at = now;
            self.window = self.window.max(self.window_before);
            match self.is_full {
                true => self.enter_probe_bw(now),
                false => self.state = BbrV1State::Startup,
            }
        }
    }

    /// `bbr_save_cwnd`.
    fn save_window(&mut self) {
        let is_usual =
            self.recovery.is_none() && !matches!(self.state, BbrV1State::ProbeRtt { .. });
        self.window_before = match is_usual {
            true => self.window,
            false => self.window_before.max(self.window),
        };
    }

    /// `bbr_set_cwnd_to_recover_or_restore`; true when that is the window.
    fn recover(&mut self, event: &DeliveryEvent<'_>, acked: u64) -> bool {
        let lost: u64 = event.lost.iter().map(|packet| packet.bytes).sum();
        if lost > 0 {
            self.lost_in_phase = true;
            self.window = self
                .window
                .saturating_sub(lost)
                .max(self.config.packet_bytes);
        }
        let newest = event.acked.iter().map(|packet| packet.sent_at).max();
        match self.recovery {
            None if lost > 0 => {
                self.window += lost;
                self.save_window();
                self.recovery = Some(LossRecovery {
                    since: event.now,
                    conserves: true,
                });
                self.start_round();
                self.window = event.in_flight + acked;
            }
            Some(recovery) if newest.is_some_and(|sent_at| sent_at > recovery.since) => {
                self.recovery = None;
                self.window = self.window.max(self.window_before);
            }
            None | Some(_) => {}
        }
        if self.recovery.is_some_and(|recovery| recovery.conserves) {
            self.window = self.window.max(event.in_flight + acked);
            return true;
        }
        false
    }

    /// `bbr_set_cwnd`.
    fn set_window(&mut self, event: &DeliveryEvent<'_>, acked: u64) {
        if !self.recover(event, acked) && acked > 0 {
            let (_, gain) = self.gains();
            let extra = match self.is_full {
                true => self
                    .aggregation
                    .extra()
                    .min((self.rate() * EXTRA_SPAN) as u64),
                false => 0,
            };
            let target = self.in_flight_for(gain) + extra;
            if self.is_full {
                self.window = (self.window + acked).min(target);
            } else if self.window < target
                || self.sampler.delivered() < INITIAL_WINDOW_PACKETS * self.config.packet_bytes
            {
                self.window += acked;
            }
            self.window = self.window.max(self.window_min());
        }
        if let BbrV1State::ProbeRtt { .. } = self.state {
            self.window = self.window.min(self.window_min());
        }
    }

    /// `bbr_set_pacing_rate`.
    fn set_pacing_rate(&mut self) {
        let rate = self.rate() * self.gains().0 * PACING_MARGIN;
        if self.is_full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }
}

impl CongestionController for BbrV1 {
    fn sent(&mut self, now: Time, _number: u64, bytes: u64, in_flight_before: u64) -> SendState {
        self.sampler.sent(now, bytes, in_flight_before)
    }

    fn event(&mut self, event: &DeliveryEvent<'_>) {
        let now = event.now;
        if self.minimum.is_none()
            && let Some(rtt) = event.rtt
        {
            // bbr_init_pacing_rate_from_rtt.
            self.pacing_rate = HIGH_GAIN * self.window as f64 / rtt.as_secs_f64().max(1e-6);
        }
        for packet in event.lost {
            self.sampler.lost_packet(packet.bytes);
        }
        for packet in event.spurious {
            self.sampler.spurious_loss(now, packet);
        }
        let base = RateBase::Flight {
            least: self.minimum.unwrap_or_default(),
        };
        // A sample of Linux's is bounded by the rate of sending, and by nothing else.
        let sample = self.sampler.acked(now, event.acked, base, f64::MAX);
        let Some(sample) = sample else {
            self.set_window(event, 0);
            return;
        };
        self.update_rate(&sample);
        let (acked, rate) = (sample.newly_acked, self.rate());
        self.aggregation
            .update(now, rate, acked, self.window, self.round, self.is_full);
        self.update_phase(now, event.in_flight);
        self.check_full(&sample);
        self.check_drain(now, event.in_flight);
        self.update_minimum(now, event.rtt, event.in_flight);
        self.set_pacing_rate();
        self.set_window(event, acked);
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
        // bbr_tso_segs_goal: two packets at least.
        super::quantum(self.pacing_rate(), self.config.packet_bytes)
            .max(2 * self.config.packet_bytes)
    }

    /// A kernel's connection remembers nothing of the one before.
    fn remembered(&self) -> Option<RememberedPath> {
        None
    }

    fn telemetry(&self) -> ControllerTelemetry {
        ControllerTelemetry {
            state: match self.state {
                BbrV1State::Startup => "startup",
                BbrV1State::Drain => "drain",
                BbrV1State::ProbeBw { phase: 0 } => "up",
                BbrV1State::ProbeBw { phase: 1 } => "down",
                BbrV1State::ProbeBw { .. } => "cruise",
                BbrV1State::ProbeRtt { .. } => "probe rtt",
            },
            bandwidth: Bitrate::from_bits_per_second((self.rate() * 8.0) as u64),
            rtt_min: self.minimum,
            window: self.window,
            in_flight_bound: None,
            loss_floor: Probability::ZERO,
            is_congested: false,
            is_shared: None,
        }
    }
}
