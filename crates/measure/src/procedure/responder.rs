//! The server's side over UDP: it answers its one client and nobody else.
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

use super::{Outgoing, PROBED_MTU_MAX};
use crate::wire::{DATAGRAM_HEADER, Datagram, Kind, Role, SessionKey};

/// Answers in a second at most, several times what a test asks for.
pub const ANSWERS_PER_SECOND: u32 = 1_000;
/// The largest probe back.
const PROBE_MAX: u64 = PROBED_MTU_MAX as u64;

/// What is to be done with a datagram that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing, and nobody is told.
    Silence,
    /// These are sent back to where it came from, in this order.
    Send(Vec<Outgoing>),
    /// The address is now the client's; this is sent there.
    Confirmed(Outgoing),
    /// It belongs to a stream of this order.
    Data(Datagram),
}

/// One session's answers.
#[derive(Debug)]
pub struct Responder {
    session: u64,
    key: SessionKey,
    /// Random, and different for each session.
    secret: u64,
    client: Option<SocketAddr>,
    second_began: Time,
    answered: u32,
}

impl Responder {
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

    /// Where the client is, once it has shown that it receives there.
    #[must_use]
    pub fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    /// Takes in a datagram that arrived at `arrived`.
    pub fn handle(&mut self, now: Time, arrived: Time, from: SocketAddr, bytes: &[u8]) -> Answer {
        let Ok(datagram) = Datagram::parse(bytes, &self.key, Role::Client) else {
            return Answer::Silence;
        };
        if datagram.session != self.session {
            return Answer::Silence;
        }
        if datagram.kind == Kind::Data {
            return match self.client == Some(from) {
                true => Answer::Data(datagram),
                false => Answer::Silence,
            };
        }
        if !self.may_answer(now) {
            return Answer::Silence;
        }
        let reply = |kind, extra| Outgoing {
            datagram: Datagram {
                kind,
                extra,
                ..datagram
            },
            length: DATAGRAM_HEADER,
        };
        let echoed = || reply(Kind::Echoed, kept(now, arrived));
        match datagram.kind {
            Kind::Open => Answer::Send(vec![reply(Kind::Cookie, self.cookie(from))]),
            Kind::Confirm if datagram.extra == self.cookie(from) => {
                self.client = Some(from);
                Answer::Confirmed(reply(Kind::Confirmed, 0))
            }
            _ if self.client != Some(from) => Answer::Silence,
            Kind::Echo => Answer::Send(vec![echoed()]),
            Kind::Probe => Answer::Send(vec![reply(Kind::Probed, bytes.len() as u64)]),
            Kind::ProbeWanted => {
                let length = datagram.extra.min(PROBE_MAX);
                let probe = Outgoing {
                    length: length as usize,
                    ..reply(Kind::ProbeBack, length)
                };
                Answer::Send(vec![probe, echoed()])
            }
            Kind::Cookie
            | Kind::Confirm
            | Kind::Confirmed
            | Kind::Echoed
            | Kind::Probed
            | Kind::ProbeBack
            | Kind::Data => Answer::Silence,
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

    /// What the client at an address must send back to be believed.
    fn cookie(&self, address: SocketAddr) -> u64 {
        self.key.cookie(self.secret, address)
    }
}

fn kept(now: Time, arrived: Time) -> u64 {
    u64::try_from(now.since(arrived).as_nanos()).unwrap_or(u64::MAX)
}
