//! CUBIC, by RFC 9438, started by HyStart++ (RFC 9406), paced.
//!
//! ```text
//!  slow start ─► conservative slow start ─► congestion avoidance ◄─┐
//!      │  ▲          (RFC 9406 §4.2)          │                    │ acknowledged beyond
//!      │  └──── path was gone ◄───────────────┤                    │ what was in flight
//!      └────────── loss or mark ─────────► recovery ───────────────┘
//! ```
//!
//! The window grows only by data sent because of it: a sender without enough data, or held back by
//! credits, keeps the window that it has used (RFC 9438 §5.8; in spirit RFC 7661 §4.4). Losses of
//! one flight count once. When the transport finds that all of them were spurious, window and curve
//! return to their previous state (RFC 9438 §4.9).
//!
//! It treats every loss as congestion, as its RFC requires, so it is slow on a path with random
//! loss.

mod curve;
mod slow_start;

use std::time::Duration;

use vocab::{Bitrate, Probability, Time};

use self::curve::CubicCurve;
use self::slow_start::{HyStart, SlowStartDecision};
use super::event::{DeliveryEvent, SendState};
use super::sample::{RateBase, RateSampler};
use super::{CongestionController, ControllerConfig, ControllerTelemetry, RememberedPath};

/// The initial window in packets (RFC 6928 §2).
const INITIAL_WINDOW_PACKETS: u64 = 10;

/// The least window in packets (RFC 9002 §7.2 (Initial and Minimum Congestion Window)).
const WINDOW_MIN_PACKETS: u64 = 2;

/// Share of the window that remains after a congestion event (RFC 9438 §4.6).
const BETA: f64 = 0.7;

/// Packets leave this much faster than window over round-trip time, in slow start and later, so
/// that pacing never is what limits the window's growth (the ratios that Linux paces TCP by).
const SLOW_START_PACING: f64 = 2.0;
const AVOIDANCE_PACING: f64 = 1.2;

/// Losses over a longer span, in round-trip times, without an acknowledgement between: the path
/// was gone (RFC 9002 §7.6 (Persistent Congestion)).
const OUTAGE_ROUND_TRIPS: u32 = 3;

/// The share of a remembered rate × RTT with which a session resumes: half, so that slow start has
/// still to find the rest.
const RESUME_SHARE: f64 = 0.5;

/// Rates are for telemetry and memory only, averaged.
const ANY_FLIGHT: RateBase = RateBase::Flight {
    least: Duration::ZERO,
};

/// State of the window.
#[derive(Clone, Copy, Debug)]
enum CubicState {
    /// The window grows by the acknowledged bytes.
    SlowStart,
    /// The window grows along the curve.
    Avoidance,
    /// The window is constant until the packets in flight at the loss are acknowledged or lost.
    Recovery {
        /// Packets sent after this moment end it.
        since: Time,
    },
}

/// Window and curve before a congestion event.
#[derive(Clone, Copy, Debug)]
struct SavedWindow {
    window: f64,
    threshold: f64,
    curve: CubicCurve,
    in_slow_start: bool,
    /// Packets of the event that still count as lost.
    lost: u64,
}

/// The CUBIC controller.
#[derive(Clone, Debug)]
pub(super) struct CubicController {
    config: ControllerConfig,
    state: CubicState,
    /// Bytes.
    window: f64,
    /// Slow start ends here.
    threshold: f64,
    curve: CubicCurve,
    hystart: HyStart,
    saved: Option<SavedWindow>,
    sampler: RateSampler,
    /// The rate that the path last delivered, bytes per second.
    rate: f64,
    smoothed: Option<Duration>,
    minimum: Option<Duration>,
    /// The most in flight since the last acknowledgement.
    in_flight_used: u64,
    last_acked_at: Time,
}

impl CubicController {
    pub(super) fn new(
        config: ControllerConfig,
        remembered: Option<RememberedPath>,
        now: Time,
    ) -> Self {
        let initial = (INITIAL_WINDOW_PACKETS * config.packet_bytes) as f64;
        let resumed = remembered.map_or(0.0, |memory| {
            let rate = memory.rate.bits_per_second() as f64 / 8.0;
            RESUME_SHARE * rate * memory.rtt.as_secs_f64()
        });
        Self {
            config,
            state: CubicState::SlowStart,
            window: initial.max(resumed),
            threshold: f64::INFINITY,
            curve: CubicCurve::default(),
            hystart: HyStart::default(),
            saved: None,
            sampler: RateSampler::new(now),
            rate: 0.0,
            // Until the first sample the memory's round-trip time spreads the resumed window.
            smoothed: remembered.map(|memory| memory.rtt),
            minimum: None,
            in_flight_used: 0,
            last_acked_at: now,
        }
    }

    fn packet(&self) -> f64 {
        self.config.packet_bytes as f64
    }

    fn window_min(&self) -> f64 {
        (WINDOW_MIN_PACKETS * self.config.packet_bytes) as f64
    }

    fn note_rtt(&mut self, rtt: Duration) {
        let first = self.minimum.is_none();
        self.minimum = Some(self.minimum.map_or(rtt, |minimum| minimum.min(rtt)));
        self.smoothed = match self.smoothed {
            Some(smoothed) if !first => Some((smoothed * 7 + rtt) / 8),
            _ => Some(rtt),
        };
    }

    /// "Multiplicative Decrease", once for a flight (RFC 9438 §4.6, §4.7).
    fn congested(&mut self, now: Time) {
        self.saved = Some(SavedWindow {
            window: self.window,
            threshold: self.threshold,
            curve: self.curve,
            in_slow_start: matches!(self.state, CubicState::SlowStart),
            lost: 0,
        });
        self.curve.congested(self.window);
        self.window = (self.window * BETA).max(self.window_min());
        self.threshold = self.window;
        self.state = CubicState::Recovery { since: now };
    }

    /// Returns `true` if a packet sent at `sent_at` signals congestion that the controller has not
    /// reacted to.
    fn is_new_congestion(&self, sent_at: Time) -> bool {
        match self.state {
            CubicState::SlowStart | CubicState::Avoidance => true,
            CubicState::Recovery { since } => sent_at > since,
        }
    }

    fn lose(&mut self, event: &DeliveryEvent<'_>) {
        let mut lost: u64 = 0;
        let mut news = None;
        let recovered = event.acked.iter().filter(|packet| packet.recovered);
        let fates = event
            .lost
            .iter()
            .map(|packet| (packet.sent_at, packet.bytes));
        for (sent_at, bytes) in fates.chain(recovered.map(|p| (p.sent_at, p.bytes))) {
            self.sampler.lost_packet(bytes);
            lost += 1;
            if self.is_new_congestion(sent_at) {
                news = Some(sent_at);
            }
        }
        if news.is_some() {
            self.congested(event.now);
        }
        if let Some(saved) = &mut self.saved {
            saved.lost += lost;
        }
        let silent = event.now.since(self.last_acked_at);
        let round_trip = self.smoothed.unwrap_or_default();
        if lost > 0 && event.acked.is_empty() && silent > round_trip * OUTAGE_ROUND_TRIPS {
            self.window = self.window_min();
            self.state = CubicState::SlowStart;
            self.hystart = HyStart::default();
        }
    }

    fn marked(&mut self, event: &DeliveryEvent<'_>) {
        // RFC 3168 §6.1.2: a mark is to be taken as a loss, once for a round trip.
        let newest = event.acked.iter().map(|packet| packet.sent_at).max();
        if event.ce_marked > 0 && newest.is_some_and(|sent_at| self.is_new_congestion(sent_at)) {
            self.congested(event.now);
            self.saved = None;
        }
    }

    /// RFC 9438 §4.9 (Spurious Congestion Events).
    fn take_back(&mut self, event: &DeliveryEvent<'_>) {
        for packet in event.spurious {
            self.sampler.spurious_loss(event.now, packet);
            let Some(saved) = &mut self.saved else {
                continue;
            };
            saved.lost = saved.lost.saturating_sub(1);
            if saved.lost > 0 {
                continue;
            }
            self.window = self.window.max(saved.window);
            self.threshold = saved.threshold;
            self.curve = saved.curve;
            self.state = if saved.in_slow_start {
                CubicState::SlowStart
            } else {
                CubicState::Avoidance
            };
            self.saved = None;
        }
    }

    fn grow(&mut self, event: &DeliveryEvent<'_>, acked: u64, was_used: bool) {
        let newest = event.acked.iter().map(|packet| packet.sent_at).max();
        if let CubicState::Recovery { since } = self.state
            && newest.is_some_and(|sent_at| sent_at > since)
        {
            self.state = CubicState::Avoidance;
        }
        if !was_used {
            self.curve.pause(event.now);
            return;
        }
        match self.state {
            CubicState::Recovery { .. } => {}
            CubicState::SlowStart => {
                self.window += acked as f64 / self.hystart.divisor();
                if self.window >= self.threshold {
                    self.state = CubicState::Avoidance;
                }
            }
            CubicState::Avoidance => {
                let rtt = self.smoothed.unwrap_or_default();
                self.window = self
                    .curve
                    .grow(event.now, self.window, acked, rtt, self.packet());
            }
        }
    }

    fn watch_slow_start(&mut self, event: &DeliveryEvent<'_>, prior_delivered: u64) {
        if !matches!(self.state, CubicState::SlowStart) {
            return;
        }
        let round = prior_delivered;
        let delivered = self.sampler.delivered();
        match self.hystart.acknowledged(round, delivered, event.rtt) {
            SlowStartDecision::GoOn => {}
            SlowStartDecision::Leave => {
                self.threshold = self.window;
                self.state = CubicState::Avoidance;
            }
        }
    }
}

impl CongestionController for CubicController {
    fn sent(&mut self, now: Time, _number: u64, bytes: u64, in_flight_before: u64) -> SendState {
        let state = self.sampler.sent(now, bytes, in_flight_before);
        self.in_flight_used = self.in_flight_used.max(state.in_flight);
        state
    }

    fn event(&mut self, event: &DeliveryEvent<'_>) {
        if let Some(rtt) = event.rtt {
            self.note_rtt(rtt);
        }
        self.take_back(event);
        self.lose(event);
        self.marked(event);
        let Some(sample) = self.sampler.acked(event.now, event.acked, ANY_FLIGHT, 1.0) else {
            return;
        };
        if let Some(rate) = sample.rate
            && !sample.is_application_limited
        {
            self.rate = if self.rate > 0.0 {
                self.rate * 0.875 + rate * 0.125
            } else {
                rate
            };
        }
        self.last_acked_at = event.now;
        self.watch_slow_start(event, sample.prior_delivered);
        // In slow start a window half used may double and still be filled by a paced sender.
        let share = match self.state {
            CubicState::SlowStart => 0.5,
            CubicState::Avoidance | CubicState::Recovery { .. } => 1.0,
        };
        let used = (self.in_flight_used + 2 * self.config.packet_bytes) as f64;
        self.grow(event, sample.newly_acked, used >= self.window * share);
        self.in_flight_used = event.in_flight;
    }

    fn limited_by_application(&mut self, _now: Time, in_flight: u64) {
        if (in_flight as f64) < self.window {
            self.sampler.limited_by_application(in_flight);
        }
    }

    fn set_packet_bytes(&mut self, bytes: u64) {
        self.config.packet_bytes = bytes;
        self.window = self.window.max(self.window_min());
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn pacing_rate(&self) -> Bitrate {
        let gain = match self.state {
            CubicState::SlowStart => SLOW_START_PACING,
            CubicState::Avoidance | CubicState::Recovery { .. } => AVOIDANCE_PACING,
        };
        let rtt = self.smoothed.unwrap_or(Duration::from_millis(1));
        let rate = gain * self.window / rtt.as_secs_f64().max(1e-6);
        let rate = Bitrate::from_bits_per_second((rate * 8.0) as u64);
        self.config.rate_max.map_or(rate, |most| rate.min(most))
    }

    fn send_quantum(&self) -> u64 {
        super::quantum(self.pacing_rate(), self.config.packet_bytes)
    }

    fn remembered(&self) -> Option<RememberedPath> {
        let rtt = self.minimum?;
        match self.state {
            CubicState::SlowStart => None,
            CubicState::Avoidance | CubicState::Recovery { .. } => Some(RememberedPath {
                rate: Bitrate::from_bits_per_second((self.rate * 8.0) as u64),
                rtt,
            }),
        }
    }

    fn telemetry(&self) -> ControllerTelemetry {
        ControllerTelemetry {
            state: match self.state {
                CubicState::SlowStart => "slow start",
                CubicState::Avoidance => "avoidance",
                CubicState::Recovery { .. } => "recovery",
            },
            bandwidth: Bitrate::from_bits_per_second((self.rate * 8.0) as u64),
            rtt_min: self.minimum,
            window: self.window as u64,
            in_flight_bound: self.threshold.is_finite().then_some(self.threshold as u64),
            loss_floor: Probability::ZERO,
            is_congested: matches!(self.state, CubicState::Recovery { .. }),
            is_shared: None,
        }
    }
}
