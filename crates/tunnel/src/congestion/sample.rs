//! Delivery-rate samples: the path's rate over the flight of one packet (draft-ietf-ccwg-bbr,
//! "Delivery Rate Samples").
//!
//! ```text
//!  first_sent_at ────── sent_at            send interval    rate = bytes delivered since the
//!          delivered_at ───────── now      ack interval            packet went out, over the
//!                                                                  longer of the two
//! ```
//!
//! A sample never exceeds the sending rate or the acknowledgement rate, so neither a burst of
//! packets nor a burst of acknowledgements makes the path look faster than it is.
//!
//! Where packets are reordered, a single flight is unsuitable: the fastest packet, with a short
//! flight in which many slower ones arrive, would set the rate. The rate is then taken over a
//! window of time, and bounded by the data sent in a window of the same length one flight before.
//!
//! The module knows nothing of rounds, phases or windows.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Time;

use super::event::{AckedPacket, LostPacket, SendState};

/// Marks of the account in one window: so fine that a window's length is kept within 6 %.
const MARKS_PER_WINDOW: u32 = 16;

/// The most marks that are kept: two windows and a flight.
const MARKS_MAX: usize = 4 * MARKS_PER_WINDOW as usize;

/// Over what a delivery rate is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateBase {
    /// The flight of one packet, unless it is shorter than this.
    Flight {
        /// The path's shortest round-trip time.
        least: Duration,
    },
    /// A window of time.
    Window {
        /// Its length.
        span: Duration,
        /// Typical flight time of a packet.
        flight: Duration,
    },
}

/// The account at some moment.
#[derive(Clone, Copy, Debug)]
struct DeliverySnapshot {
    at: Time,
    delivered: u64,
    sent: u64,
}

/// Keeps the account of one path's deliveries.
#[derive(Clone, Debug)]
pub(super) struct RateSampler {
    delivered: u64,
    delivered_at: Time,
    lost: u64,
    sent: u64,
    marks: VecDeque<DeliverySnapshot>,
    /// Sending time of the newest packet that is known to be delivered, or of the first packet
    /// after nothing was in flight.
    first_sent_at: Time,
    newest_acked: u64,
    /// Bytes sent when that packet had gone out.
    sent_of_newest_acked: u64,
    /// The count of delivered bytes up to which samples are limited by the application.
    application_limited_until: Option<u64>,
}

/// Delivery rate sample of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSample {
    /// Bytes per second, if the interval was long enough to tell.
    pub(super) rate: Option<f64>,
    /// Bytes delivered between the newest packet's departure and now.
    pub(super) delivered: u64,
    /// Bytes delivered when the newest packet was sent.
    pub(super) prior_delivered: u64,
    /// Bytes in flight when the newest packet had gone out.
    pub(super) in_flight_at_departure: u64,
    /// Bytes lost between the newest packet's departure and now.
    pub(super) lost: u64,
    /// Bursts of loss begun when the newest packet went out.
    pub(super) loss_runs_at_departure: u64,
    /// True if the sender lacked data when the newest packet was sent.
    pub(super) is_application_limited: bool,
    /// Bytes that this acknowledgement newly acknowledged.
    pub(super) newly_acked: u64,
}

impl RateSampler {
    pub(super) fn new(now: Time) -> Self {
        Self {
            delivered: 0,
            delivered_at: now,
            lost: 0,
            sent: 0,
            marks: VecDeque::new(),
            first_sent_at: now,
            newest_acked: 0,
            sent_of_newest_acked: 0,
            application_limited_until: None,
        }
    }

    /// Bytes delivered so far.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns `true` if samples are limited by the application now.
    pub(super) fn is_application_limited(&self) -> bool {
        self.application_limited_until.is_some()
    }

    /// "Transmitting a data packet".
    pub(super) fn sent(&mut self, now: Time, bytes: u64, in_flight_before: u64) -> SendState {
        if in_flight_before == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
            self.sent_of_newest_acked = self.sent;
        }
        self.sent += bytes;
        SendState {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            sent: self.sent,
            sent_of_newest_acked: self.sent_of_newest_acked,
            lost: self.lost,
            loss_runs: 0,
            in_flight: in_flight_before + bytes,
            epoch: 0,
            is_application_limited: self.is_application_limited(),
        }
    }

    /// Marks all data in flight as application limited, and all data sent until it is acknowledged:
    /// it does not measure the path ("Detecting application-limited phases").
    pub(super) fn limited_by_application(&mut self, in_flight: u64) {
        self.application_limited_until = Some((self.delivered + in_flight).max(1));
    }

    /// Takes note of a loss.
    pub(super) fn lost_packet(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Takes back a loss that was none.
    pub(super) fn spurious_loss(&mut self, now: Time, packet: &LostPacket) {
        self.lost = self.lost.saturating_sub(packet.bytes);
        self.delivered += packet.bytes;
        self.delivered_at = now;
    }

    /// Counts delivered packets and makes a sample of the packet that was sent last ("Upon
    /// receiving an ACK"). The rate of one flight is at most `passes` of the data sent for it.
    pub(super) fn acked(
        &mut self,
        now: Time,
        packets: &[AckedPacket],
        base: RateBase,
        passes: f64,
    ) -> Option<RateSample> {
        for packet in packets {
            self.delivered += packet.bytes;
            self.delivered_at = now;
        }
        if let Some(until) = self.application_limited_until
            && self.delivered > until
        {
            self.application_limited_until = None;
        }
        let newest = packets
            .iter()
            .max_by_key(|packet| (packet.sent_at, packet.number))?;
        let state = newest.state;
        let send_interval = newest.sent_at.since(state.first_sent_at);
        let ack_interval = now.since(state.delivered_at);
        let interval = send_interval.max(ack_interval);
        if (newest.sent_at, newest.number) > (self.first_sent_at, self.newest_acked) {
            self.first_sent_at = newest.sent_at;
            self.newest_acked = newest.number;
            self.sent_of_newest_acked = state.sent;
        }
        let delivered = self.delivered - state.delivered;
        let sent = (state.sent - state.sent_of_newest_acked) as f64;
        let usual = (delivered as f64).min(sent * passes);
        let rate = match base {
            RateBase::Flight { least } => {
                (interval >= least && !interval.is_zero()).then(|| usual / interval.as_secs_f64())
            }
            RateBase::Window { span, flight } => self.rate_over(now, span, flight).or_else(|| {
                (interval >= flight).then(|| delivered as f64 / interval.as_secs_f64())
            }),
        };
        Some(RateSample {
            rate,
            delivered,
            prior_delivered: state.delivered,
            in_flight_at_departure: state.in_flight,
            lost: self.lost.saturating_sub(state.lost),
            loss_runs_at_departure: state.loss_runs,
            is_application_limited: state.is_application_limited,
            newly_acked: packets.iter().map(|packet| packet.bytes).sum(),
        })
    }
}

impl RateSampler {
    /// The rate of a window that ends now.
    fn rate_over(&mut self, now: Time, span: Duration, flight: Duration) -> Option<f64> {
        let step = span / MARKS_PER_WINDOW;
        if self
            .marks
            .back()
            .is_none_or(|mark| now.since(mark.at) >= step)
        {
            self.marks.push_back(DeliverySnapshot {
                at: now,
                delivered: self.delivered,
                sent: self.sent,
            });
            if self.marks.len() > MARKS_MAX {
                self.marks.pop_front();
            }
        }
        let before = |earlier: Duration| {
            let newest_first = self.marks.iter().rev();
            newest_first
                .copied()
                .find(|mark| now.since(mark.at) >= earlier)
        };
        let oldest = self.marks.front().copied();
        let begin = before(span).or(oldest.filter(|mark| now.since(mark.at) >= 2 * flight))?;
        let delivered = (self.delivered - begin.delivered) as f64;
        let delivered_rate = delivered / now.since(begin.at).as_secs_f64();
        let (Some(sent_begin), Some(sent_end)) = (before(span + flight), before(flight)) else {
            return Some(delivered_rate);
        };
        let sent = (sent_end.sent - sent_begin.sent) as f64;
        let sent_rate = sent / sent_end.at.since(sent_begin.at).as_secs_f64();
        Some(delivered_rate.min(sent_rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLIGHT: RateBase = RateBase::Flight {
        least: Duration::ZERO,
    };

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn acked(number: u64, sent_at: Time, state: SendState) -> AckedPacket {
        AckedPacket {
            number,
            bytes: 1000,
            sent_at,
            state,
            recovered: false,
        }
    }

    /// Sends a packet each millisecond, acknowledged 100 ms later, and hands back the last sample.
    fn steady(count: u64, passes: f64) -> (RateSampler, Option<RateSample>) {
        let mut sampler = RateSampler::new(at(0));
        let mut states = Vec::new();
        let mut last = None;
        for tick in 0..count + 100 {
            if tick >= 100 {
                let (sent_at, state) = states[tick as usize - 100];
                let packet = acked(tick - 100, sent_at, state);
                last = sampler.acked(at(tick), &[packet], FLIGHT, passes);
            }
            if tick < count {
                let in_flight = 1000 * tick.min(99);
                states.push((at(tick), sampler.sent(at(tick), 1000, in_flight)));
            }
        }
        (sampler, last)
    }

    #[test]
    fn a_steady_flow_is_measured_at_its_rate() {
        let (_, sample) = steady(1000, 1.0);
        let rate = sample.unwrap().rate.unwrap();
        assert!((rate - 1e6).abs() < 2e4, "{rate}");
    }

    #[test]
    fn rate_above_the_sending_rate_is_rejected() {
        let (_, sample) = steady(1000, 0.9);
        let rate = sample.unwrap().rate.unwrap();
        assert!((rate - 0.9e6).abs() < 2e4, "{rate}");
    }

    #[test]
    fn compressed_acknowledgements_do_not_raise_the_rate() {
        let mut sampler = RateSampler::new(at(0));
        let states: Vec<SendState> = (0..100)
            .map(|n| sampler.sent(at(n), 1000, 1000 * n))
            .collect();
        let crowd: Vec<AckedPacket> = (0..100)
            .map(|n| acked(n, at(n), states[n as usize]))
            .collect();
        let sample = sampler.acked(at(200), &crowd, FLIGHT, 1.0).unwrap();
        // 100 kB in the 200 ms since the first departure.
        assert_eq!(sample.rate, Some(500_000.0));
    }

    #[test]
    fn samples_stay_application_limited_until_bubble_passes() {
        let mut sampler = RateSampler::new(at(0));
        let first = sampler.sent(at(0), 1000, 0);
        sampler.limited_by_application(1000);
        let second = sampler.sent(at(1), 1000, 1000);
        assert!(!first.is_application_limited && second.is_application_limited);
        sampler.acked(at(10), &[acked(0, at(0), first)], FLIGHT, 1.0);
        assert!(sampler.is_application_limited());
        sampler.acked(at(11), &[acked(1, at(1), second)], FLIGHT, 1.0);
        assert!(!sampler.is_application_limited());
    }

    #[test]
    fn too_short_interval_gives_no_rate() {
        let mut sampler = RateSampler::new(at(0));
        let state = sampler.sent(at(0), 1000, 0);
        let least = Duration::from_millis(11);
        let packets = [acked(0, at(0), state)];
        let sample = sampler.acked(at(10), &packets, RateBase::Flight { least }, 1.0);
        assert_eq!(sample.unwrap().rate, None);
    }
}
