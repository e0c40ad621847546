//! Baseline RTT: the least round trip of many small probes on an idle path (RFC 6349 §3.2.1).
//!
//! It is never taken from a handshake, which firewalls delay. The server's processing time is in
//! each answer, and is subtracted. The gaps between probes vary by half, so that no periodic event
//! on the path meets all of them.

use std::time::Duration;

use vocab::{SeededRandom, Time};

use super::{OutgoingDatagram, UdpExchange};
use crate::wire::{DATAGRAM_HEADER, DatagramHeader, DatagramKind};

/// Answers that are wanted: the least of a hundred is that of an idle moment.
pub const PROBES_WANTED: usize = 120;
/// Probes that are sent at most for them: a path that loses half of them is still measured.
const PROBES_MAX: usize = 300;
/// The mean gap between probes. A probe takes 10 ms on a line of 64 kbit/s.
const GAP: Duration = Duration::from_millis(12);
/// Time limit for the last answers.
const WAIT: Duration = Duration::from_secs(2);

/// Result of the measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RttOutcome {
    /// Every round trip, in the order in which the answers came.
    pub samples: Vec<Duration>,
    /// Probes that were sent.
    pub sent: usize,
}

impl RttOutcome {
    /// Baseline: the least round trip. [`None`] where no probe was answered.
    #[must_use]
    pub fn baseline(&self) -> Option<Duration> {
        self.samples.iter().min().copied()
    }

    /// Median round trip of the probes.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// The probing.
#[derive(Debug)]
pub struct BaselineRtt {
    session: u64,
    random: SeededRandom,
    /// Sending times by number; [`None`] once answered.
    sent: Vec<Option<Time>>,
    next_at: Time,
    last_sent: Time,
    samples: Vec<Duration>,
}

impl BaselineRtt {
    /// Probes from `now` on; `seed` varies their gaps.
    #[must_use]
    pub fn new(now: Time, session: u64, seed: u64) -> Self {
        Self {
            session,
            random: SeededRandom::from_seed(seed),
            sent: Vec::new(),
            next_at: now,
            last_sent: now,
            samples: Vec::new(),
        }
    }

    fn wants_more(&self) -> bool {
        // Those that are under way count: with a long round trip all are sent before the first answer.
        let under_way = self.sent.iter().flatten().count();
        self.samples.len() + under_way < PROBES_WANTED && self.sent.len() < PROBES_MAX
    }

    fn forget_lost(&mut self, now: Time) {
        for sent in &mut self.sent {
            if sent.is_some_and(|at| now.since(at) > WAIT) {
                *sent = None;
            }
        }
    }

    /// Result, once every probe was answered or is too late.
    pub fn outcome(&mut self, now: Time) -> Option<RttOutcome> {
        self.forget_lost(now);
        let is_over = !self.wants_more() && self.sent.iter().flatten().next().is_none();
        is_over.then(|| RttOutcome {
            samples: self.samples.clone(),
            sent: self.sent.len(),
        })
    }
}

impl UdpExchange for BaselineRtt {
    fn poll_transmit(&mut self, now: Time) -> Option<OutgoingDatagram> {
        self.forget_lost(now);
        if !self.wants_more() || self.next_at > now {
            return None;
        }
        let number = self.sent.len() as u64;
        self.sent.push(Some(now));
        self.last_sent = now;
        let gap = GAP.mul_f64(0.75 + 0.5 * self.random.next_f64());
        self.next_at = now + gap;
        Some(OutgoingDatagram {
            datagram: DatagramHeader {
                kind: DatagramKind::Echo,
                session: self.session,
                order: 0,
                number,
                stamp: now.as_nanos(),
                extra: 0,
            },
            length: DATAGRAM_HEADER,
        })
    }

    fn handle(&mut self, now: Time, datagram: &DatagramHeader, _length: usize) {
        if datagram.kind != DatagramKind::Echoed {
            return;
        }
        let place = usize::try_from(datagram.number).ok();
        let Some(sent) = place.and_then(|number| self.sent.get_mut(number)?.take()) else {
            return;
        };
        let kept = Duration::from_nanos(datagram.extra);
        // A server that claims to have kept it longer than it was away is not believed.
        if let Some(sample) = now.since(sent).checked_sub(kept) {
            self.samples.push(sample);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.wants_more() {
            return Some(self.next_at);
        }
        let oldest = self.sent.iter().flatten().min()?;
        Some(*oldest + WAIT + Duration::from_nanos(1))
    }

    fn refused(&mut self, _now: Time, _length: usize) {}

    fn handle_timeout(&mut self, now: Time) {
        self.forget_lost(now);
    }

    fn is_over(&mut self, now: Time) -> bool {
        self.outcome(now).is_some()
    }
}
