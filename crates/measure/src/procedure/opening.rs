//! Opening exchange, in which a client proves its address to the server: `Open`, the server's
//! cookie, `Confirm` with it.
//!
//! Each message is repeated until it is answered, for a few seconds. A firewall that drops UDP
//! makes it fail.

use std::time::Duration;

use vocab::Time;

use super::{OutgoingDatagram, UdpExchange};
use crate::wire::{DATAGRAM_HEADER, DatagramHeader, DatagramKind};

/// Time after which an unanswered message is repeated.
const AGAIN_AFTER: Duration = Duration::from_millis(400);
/// Questions until nothing is thought to get through: six seconds, with round trips of seconds.
const QUESTIONS_MAX: u32 = 15;

/// The opening.
#[derive(Debug)]
pub struct UdpOpening {
    session: u64,
    cookie: Option<u64>,
    is_open: bool,
    sent: u32,
    next_at: Time,
}

impl UdpOpening {
    /// An opening that begins now.
    #[must_use]
    pub fn new(now: Time, session: u64) -> Self {
        Self {
            session,
            cookie: None,
            is_open: false,
            sent: 0,
            next_at: now,
        }
    }

    /// Tells whether the server answers this address from now on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}

impl UdpExchange for UdpOpening {
    fn poll_transmit(&mut self, now: Time) -> Option<OutgoingDatagram> {
        if self.is_open || self.next_at > now || self.sent >= QUESTIONS_MAX {
            return None;
        }
        self.sent += 1;
        self.next_at = now + AGAIN_AFTER;
        Some(OutgoingDatagram {
            datagram: DatagramHeader {
                kind: self
                    .cookie
                    .map_or(DatagramKind::Open, |_| DatagramKind::Confirm),
                session: self.session,
                order: 0,
                number: u64::from(self.sent),
                stamp: now.as_nanos(),
                extra: self.cookie.unwrap_or(0),
            },
            length: DATAGRAM_HEADER,
        })
    }

    fn handle(&mut self, now: Time, datagram: &DatagramHeader, _length: usize) {
        match datagram.kind {
            DatagramKind::Cookie if self.cookie.is_none() => {
                self.cookie = Some(datagram.extra);
                self.next_at = now;
            }
            DatagramKind::Confirmed => self.is_open = true,
            _ => {}
        }
    }

    fn refused(&mut self, _now: Time, _length: usize) {}

    fn poll_timeout(&self) -> Option<Time> {
        (!self.is_open).then_some(self.next_at)
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn is_over(&mut self, now: Time) -> bool {
        self.is_open || (self.sent >= QUESTIONS_MAX && self.next_at <= now)
    }
}
