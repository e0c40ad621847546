//! Server's side over UDP: it answers only its one client.
//!
//! ```text
//!  stranger ──► no valid tag: silence
//!  Open ──────► Cookie, to where it came from, no larger than the question
//!  Confirm with that cookie ──► this address is the client's ──► Echo, Probe, ProbeWanted are answered
//! ```
//! So it is no reflector: whoever cannot write a tag hears nothing, and whoever records the client's
//! packets and sends them from elsewhere gets no more than a cookie for each. A client whose address
//! changes (NAT) opens anew. What it answers is limited in rate as well.

use std::net::SocketAddr;
use std::time::Duration;

use vocab::Time;

use super::{OutgoingDatagram, PROBED_MTU_MAX};
use crate::wire::{DATAGRAM_HEADER, DatagramHeader, DatagramKind, SessionKey, SessionRole};

/// Greatest number of answers per second, several times as many as a test needs.
pub const ANSWERS_PER_SECOND: u32 = 1_000;
/// The largest probe back.
const PROBE_MAX: u64 = PROBED_MTU_MAX as u64;

/// Action for a received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponderAction {
    /// Send nothing and report nothing.
    Silence,
    /// These are sent back to where it came from, in this order.
    Send(Vec<OutgoingDatagram>),
    /// The address is now the client's; this is sent there.
    Confirmed(OutgoingDatagram),
    /// The datagram belongs to a stream of this order.
    Data(DatagramHeader),
}

/// One session's answers.
#[derive(Debug)]
pub struct UdpResponder {
    session: u64,
    key: SessionKey,
    /// Random, and different for each session.
    secret: u64,
    client: Option<SocketAddr>,
    second_began: Time,
    answered: u32,
}

impl UdpResponder {
    /// Answers for one session; `secret` is 64 fresh random bits.
    #[must_use]
    pub fn new(session: u64, key: SessionKey, secret: u64) -> Self {
        Self {
            session,
            key,
            secret,
            client: None,
            second_began: Time::ZERO,
            answered: 0,
        }
    }

    /// Address of the client, once it has shown that it receives there.
    #[must_use]
    pub fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    /// Takes in a datagram that arrived at `arrived`.
    pub fn handle(
        &mut self,
        now: Time,
        arrived: Time,
        from: SocketAddr,
        bytes: &[u8],
    ) -> ResponderAction {
        let Ok(datagram) = DatagramHeader::parse(bytes, &self.key, SessionRole::Client) else {
            return ResponderAction::Silence;
        };
        if datagram.session != self.session {
            return ResponderAction::Silence;
        }
        if datagram.kind == DatagramKind::Data {
            return match self.client == Some(from) {
                true => ResponderAction::Data(datagram),
                false => ResponderAction::Silence,
            };
        }
        if !self.may_answer(now) {
            return ResponderAction::Silence;
        }
        let reply = |kind, extra| OutgoingDatagram {
            datagram: DatagramHeader {
                kind,
                extra,
                ..datagram
            },
            length: DATAGRAM_HEADER,
        };
        let echoed = || reply(DatagramKind::Echoed, kept(now, arrived));
        match datagram.kind {
            DatagramKind::Open => {
                ResponderAction::Send(vec![reply(DatagramKind::Cookie, self.cookie(from))])
            }
            DatagramKind::Confirm if datagram.extra == self.cookie(from) => {
                self.client = Some(from);
                ResponderAction::Confirmed(reply(DatagramKind::Confirmed, 0))
            }
            _ if self.client != Some(from) => ResponderAction::Silence,
            DatagramKind::Echo => ResponderAction::Send(vec![echoed()]),
            DatagramKind::Probe => {
                ResponderAction::Send(vec![reply(DatagramKind::Probed, bytes.len() as u64)])
            }
            DatagramKind::ProbeWanted => {
                let length = datagram.extra.min(PROBE_MAX);
                let probe = OutgoingDatagram {
                    length: length as usize,
                    ..reply(DatagramKind::ProbeBack, length)
                };
                ResponderAction::Send(vec![probe, echoed()])
            }
            DatagramKind::Cookie
            | DatagramKind::Confirm
            | DatagramKind::Confirmed
            | DatagramKind::Echoed
            | DatagramKind::Probed
            | DatagramKind::ProbeBack
            | DatagramKind::Data => ResponderAction::Silence,
        }
    }

    fn may_answer(&mut self, now: Time) -> bool {
        if now.since(self.second_began) >= Duration::from_secs(1) {
            self.second_began = now;
            self.answered = 0;
        }
        self.answered += 1;
        self.answered <= ANSWERS_PER_SECOND
    }

    /// Cookie that the client at an address must return to be accepted.
    fn cookie(&self, address: SocketAddr) -> u64 {
        self.key.cookie(self.secret, address)
    }
}

fn kept(now: Time, arrived: Time) -> u64 {
    u64::try_from(now.since(arrived).as_nanos()).unwrap_or(u64::MAX)
}
