//! Path MTU of one direction, to the byte (RFC 6349 §3.1; RFC 4821, RFC 8899).
//!
//! The search itself is `path`'s. A small echo follows every probe: when the echo is answered and
//! the probe is not, the probe is lost, a round trip after it was sent. When neither is answered,
//! the sizes say nothing and both are sent again. So ICMP is not needed, and a path that silently
//! drops large packets is measured in seconds. A path that does not carry [`path::BASE_SIZE`] is
//! searched again below it.

use std::collections::VecDeque;
use std::time::Duration;

use path::{BASE_SIZE, MtuConfig, MtuState, PathMtu};
use vocab::Time;

use super::{OutgoingDatagram, UdpExchange};
use crate::wire::{DATAGRAM_HEADER, DatagramHeader, DatagramKind, TestDirection};

/// The smallest MTU that a host on IPv4 must take in (RFC 791 §3.1), where the second search begins.
const SMALLEST_IP: u16 = 576;
/// Greatest delay of the probe's answer after the echo's: reordering, not loss.
const GRACE_MIN: Duration = Duration::from_millis(20);
/// Time limit for both answers beyond twice the round-trip time.
const SILENCE: Duration = Duration::from_secs(1);
/// Number of consecutive unanswered pairs after which the path counts as dead.
const SILENCES_MAX: u32 = 8;
/// Time beyond any wait of ours: the verdicts are ours, not those of the search's timer.
const NO_TIMER: Duration = Duration::from_secs(86_400);

/// Result of the path MTU search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuOutcome {
    /// IP packets of up to `mtu` bytes pass; `tried` is the largest that was tried.
    Found {
        /// The path MTU.
        mtu: u16,
        /// The interface's own.
        tried: u16,
    },
    /// Not even the smallest size passes, although small packets do.
    TooSmall {
        /// The least that was tried.
        tried: u16,
    },
    /// Packets of `passes` bytes get through and those of `vanishes` bytes do not; sizes in between
    /// were not tried.
    Between {
        /// The path MTU is at least this.
        passes: u16,
        /// The path MTU is less than this.
        vanishes: u16,
    },
    /// No packet was answered.
    NoAnswer,
}

/// The search in one direction.
#[derive(Debug)]
pub struct PathMtuTest {
    direction: TestDirection,
    session: u64,
    headers: u16,
    max: u16,
    round_trip: Duration,
    search: PathMtu,
    is_below_base: bool,
    under_way: Option<PendingProbe>,
    next_number: u64,
    silences: u32,
    outgoing: VecDeque<OutgoingDatagram>,
    outcome: Option<MtuOutcome>,
}

#[derive(Clone, Copy, Debug)]
struct PendingProbe {
    number: u64,
    size: u16,
    /// Time at which it counts as lost, once the echo was answered.
    lost_at: Option<Time>,
    /// Time from which no answer is expected any more.
    silent_at: Time,
}

impl PathMtuTest {
    /// A search up to the interface's MTU, with the headers that IP and UDP add
    /// ([`super::UDP_HEADERS_IPV4`]), over a path of about this round-trip time.
    #[must_use]
    pub fn new(
        now: Time,
        direction: TestDirection,
        session: u64,
        interface_mtu: u16,
        headers: u16,
        round_trip: Duration,
    ) -> Self {
        let max = interface_mtu.saturating_sub(headers).max(smallest(headers));
        let base = BASE_SIZE.min(max);
        Self {
            direction,
            session,
            headers,
            max,
            round_trip,
            search: search(now, base, max),
            is_below_base: false,
            under_way: None,
            next_number: 1,
            silences: 0,
            outgoing: VecDeque::new(),
            outcome: None,
        }
    }

    /// Result, once the search is over.
    #[must_use]
    pub fn outcome(&self) -> Option<MtuOutcome> {
        self.outcome
    }

    fn next_probe(&mut self, now: Time) {
        let Some(size) = self.search.poll_probe(now) else {
            return;
        };
        let number = self.next_number;
        self.next_number += 1;
        self.search.probe_sent(now, number, size, NO_TIMER);
        self.send(now, number, size);
    }

    fn send(&mut self, now: Time, number: u64, size: u16) {
        self.under_way = Some(PendingProbe {
            number,
            size,
            lost_at: None,
            silent_at: now + self.round_trip * 2 + SILENCE,
        });
        let head = |kind| DatagramHeader {
            kind,
            session: self.session,
            order: 0,
            number,
            stamp: now.as_nanos(),
            extra: u64::from(size),
        };
        let small = |kind| OutgoingDatagram {
            datagram: head(kind),
            length: DATAGRAM_HEADER,
        };
        match self.direction {
            TestDirection::Up => {
                self.outgoing.push_back(OutgoingDatagram {
                    datagram: head(DatagramKind::Probe),
                    length: usize::from(size),
                });
                self.outgoing.push_back(small(DatagramKind::Echo));
            }
            // The server sends the echo's answer behind the probe.
            TestDirection::Down => self.outgoing.push_back(small(DatagramKind::ProbeWanted)),
        }
    }

    fn judge(&mut self, now: Time) {
        match self.search.state() {
            MtuState::Base | MtuState::Searching | MtuState::Confirming => {}
            MtuState::Complete => {
                self.outcome = Some(MtuOutcome::Found {
                    mtu: self.search.size() + self.headers,
                    tried: self.max + self.headers,
                });
            }
            MtuState::Error => {
                let least = smallest(self.headers);
                if self.is_below_base || least >= BASE_SIZE.min(self.max) {
                    let tried = least + self.headers;
                    self.outcome = Some(MtuOutcome::TooSmall { tried });
                    return;
                }
                self.is_below_base = true;
                self.search = search(now, least, BASE_SIZE.min(self.max));
            }
        }
    }
}

impl UdpExchange for PathMtuTest {
    fn poll_transmit(&mut self, now: Time) -> Option<OutgoingDatagram> {
        if self.outgoing.is_empty() && self.under_way.is_none() && self.outcome.is_none() {
            self.next_probe(now);
        }
        self.outgoing.pop_front()
    }

    fn handle(&mut self, now: Time, datagram: &DatagramHeader, length: usize) {
        let Some(under_way) = self
            .under_way
            .filter(|probe| probe.number == datagram.number)
        else {
            return;
        };
        let passed = match datagram.kind {
            DatagramKind::Probed => datagram.extra >= u64::from(under_way.size),
            DatagramKind::ProbeBack => length >= usize::from(under_way.size),
            DatagramKind::Echoed => {
                let grace = (self.round_trip / 4).max(GRACE_MIN);
                self.silences = 0;
                if let Some(probe) = &mut self.under_way {
                    probe.lost_at.get_or_insert(now + grace);
                }
                return;
            }
            DatagramKind::Open
            | DatagramKind::Cookie
            | DatagramKind::Confirm
            | DatagramKind::Confirmed
            | DatagramKind::Echo
            | DatagramKind::Probe
            | DatagramKind::ProbeWanted
            | DatagramKind::Data => return,
        };
        if passed {
            self.silences = 0;
            self.under_way = None;
            self.search.probe_acked(now, under_way.size);
            self.judge(now);
        }
    }

    fn refused(&mut self, now: Time, length: usize) {
        self.under_way = None;
        self.outgoing.clear();
        self.search
            .refused(now, u16::try_from(length).unwrap_or(u16::MAX));
        self.judge(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.outgoing.is_empty() {
            return Some(Time::ZERO);
        }
        match self.under_way {
            Some(probe) => Some(probe.lost_at.unwrap_or(probe.silent_at)),
            None if self.outcome.is_none() => self.search.poll_timeout(),
            None => None,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        let Some(probe) = self.under_way else {
            return;
        };
        if probe.lost_at.is_some_and(|at| at <= now) {
            self.under_way = None;
            self.search.probe_lost(now, probe.number);
            self.judge(now);
        } else if probe.lost_at.is_none() && probe.silent_at <= now {
            self.silences += 1;
            if self.silences >= SILENCES_MAX {
                self.under_way = None;
                self.outcome = Some(MtuOutcome::NoAnswer);
            } else {
                self.send(now, probe.number, probe.size);
            }
        }
    }

    fn is_over(&mut self, _now: Time) -> bool {
        self.outcome.is_some()
    }
}

fn search(now: Time, base: u16, max: u16) -> PathMtu {
    let config = MtuConfig {
        base,
        max,
        grain: 1,
    };
    PathMtu::new(now, config)
}

/// The least payload that is searched for.
fn smallest(headers: u16) -> u16 {
    SMALLEST_IP.saturating_sub(headers)
}
