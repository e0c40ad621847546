//! Addresses of a path: where its packets go, and how many bytes before the peer has proved that it
//! receives there (RFC 9000 §8, Address Validation; §9, Connection Migration).
//!
//! ```text
//!   nowhere ──a packet──► unvalidated ──response──► validated ◄──────────────┐
//!      ▲                   │ ▲    │ no response in time: back to where it    │ from the old
//!      └──── no older one ─┘ │    └──── was validated before ────────────────┤ address again
//!                            └──── newest packet comes from elsewhere ───────┘
//! ```
//!
//! A peer behind an address translator (NAT) changes its address without noticing. Packets follow
//! the newest opened packet at once. But an address that is not validated gets at most three times
//! the bytes that came from it, and an unpredictable challenge of 64 bits. The older address is
//! challenged as well: when a third party has merely forwarded the peer's packets from its own
//! address, the peer's answer is newer and brings the path back (§9.3.3, Off-Path Packet
//! Forwarding). The path's measurements belong to the address that was validated last, until
//! another one is ([`ChallengeResult`]).
//!
//! Only an [`OpenedPacket`] counts here, so a third party cannot move the path.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use vocab::Time;

use super::frames::{PathChallenge, PathResponse};
use super::keys::HkdfSecret;
use super::opener::OpenedPacket;

/// Bytes that go to an address that is not validated for each that came from it (RFC 9000 §8.1,
/// Address Validation during Connection Establishment).
const AMPLIFICATION: u64 = 3;

/// Limit for the challenges to an address, each with its own value (§8.2.1). A packet and two more
/// cover losses, and only that many values have to be remembered.
const CHALLENGES: usize = 3;

/// The least time between challenges, since a new address may be farther than the old one: the
/// initial probe timeout of RFC 9002 §6.2.2, rounded up. An address has [`CHALLENGES`] times the
/// larger of this and the path's own probe timeout to answer (§8.2.4, Failed Path Validation).
const CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);

/// Validation state of an address: whether the peer has proved that it receives there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressTrust {
    /// The peer has proved it, or the operator of this node has configured the address.
    Validated,
    /// Not yet.
    Unvalidated,
}

/// Change of the peer's address that an opened packet shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressChange {
    /// No change, or a change that a newer packet has superseded.
    Same,
    /// Packets go elsewhere from now on.
    Moved,
}

/// Result of a response to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeResult {
    /// The current address is the peer's. It is the first one, or another port of the host that was
    /// validated last. The path's measurements probably still hold (RFC 9000 §9.4, Loss Detection
    /// and Congestion Control).
    SameHost,
    /// The current address is the peer's, and is at another host than the one that was validated
    /// last: nothing is known of the path there.
    OtherHost,
    /// The response answers no valid challenge.
    Unknown,
}

/// Consequence for an address that did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationFailure {
    /// Packets go to the last validated address again.
    Reverted,
    /// No address is left: nothing can be sent until the peer is heard again.
    Lost,
}

/// Seed of the challenges' values. It is random and known only to this node: the peer must not be
/// able to answer for an address at which it does not receive.
pub struct ChallengeSeed(HkdfSecret);

impl ChallengeSeed {
    /// Has `random` fill it, from the system's generator.
    #[must_use]
    pub fn new(random: impl FnOnce(&mut [u8])) -> Self {
        let Ok(secret) = HkdfSecret::filled(|room| {
            random(room);
            Ok::<(), Infallible>(())
        });
        Self(secret)
    }

    fn value(&self, counter: u64) -> u64 {
        let mut value = [0; 8];
        self.0
            .expand(b"wan challenge", &counter.to_be_bytes(), &mut value);
        u64::from_be_bytes(value)
    }
}

/// Addresses of one path's packets.
pub struct PathAddresses {
    seed: ChallengeSeed,
    /// Challenges made so far; each is made once.
    challenges_made: u64,
    current: Option<CurrentAddress>,
    /// The last validated address, while the current one is not.
    fallback: Option<SocketAddr>,
    /// The fallback is to be challenged, once.
    challenge_fallback: bool,
    /// Number of the newest packet. Only newer packets may change the address.
    newest: Option<u64>,
    probe_timeout: Duration,
}

/// The address that packets go to.
struct CurrentAddress {
    address: SocketAddr,
    /// `None` when it is validated.
    doubt: Option<PendingValidation>,
}

/// State of an address that is not validated yet.
struct PendingValidation {
    received: u64,
    sent: u64,
    challenges: Vec<u64>,
    next_challenge: Time,
    expires: Time,
}

impl PathAddresses {
    /// A path to `known`, or to wherever the peer is heard from first. The node that dials knows
    /// where to, by its operator's word; the node that is dialled does not, whatever address the
    /// link came from.
    #[must_use]
    pub fn new(now: Time, seed: ChallengeSeed, known: Option<(SocketAddr, AddressTrust)>) -> Self {
        let mut addresses = Self {
            seed,
            challenges_made: 0,
            current: None,
            fallback: None,
            challenge_fallback: false,
            newest: None,
            probe_timeout: CHALLENGE_INTERVAL,
        };
        addresses.current = known.map(|(address, trust)| CurrentAddress {
            address,
            doubt: match trust {
                AddressTrust::Validated => None,
                AddressTrust::Unvalidated => Some(addresses.doubt(now)),
            },
        });
        addresses
    }

    /// Returns the address that packets are sent to; `None` when it is unknown.
    #[must_use]
    pub fn current(&self) -> Option<SocketAddr> {
        self.current.as_ref().map(|current| current.address)
    }

    /// Returns whether the current address is validated.
    #[must_use]
    pub fn trust(&self) -> AddressTrust {
        match &self.current {
            Some(CurrentAddress { doubt: None, .. }) => AddressTrust::Validated,
            Some(_) | None => AddressTrust::Unvalidated,
        }
    }

    /// Hears where an opened packet came from, and how many bytes its datagram had.
    pub fn on_packet(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &OpenedPacket,
        bytes: u64,
    ) -> AddressChange {
        let is_newest = self.newest < Some(packet.number());
        if is_newest {
            self.newest = Some(packet.number());
        }
        match &mut self.current {
            Some(current) if current.address == from => {
                if let Some(doubt) = &mut current.doubt {
                    doubt.received = doubt.received.saturating_add(bytes);
                }
                AddressChange::Same
            }
            Some(_) if !is_newest => AddressChange::Same,
            Some(_) | None => {
                self.move_to(now, from, bytes);
                AddressChange::Moved
            }
        }
    }

    fn move_to(&mut self, now: Time, to: SocketAddr, received: u64) {
        if let Some(CurrentAddress {
            address,
            doubt: None,
        }) = self.current
        {
            self.fallback = Some(address);
        }
        let doubt = if self.fallback == Some(to) {
            self.fallback = None;
            None
        } else {
            Some(PendingValidation {
                received,
                ..self.doubt(now)
            })
        };
        self.challenge_fallback = doubt.is_some() && self.fallback.is_some();
        self.current = Some(CurrentAddress { address: to, doubt });
    }

    fn doubt(&self, now: Time) -> PendingValidation {
        PendingValidation {
            received: 0,
            sent: 0,
            challenges: Vec::with_capacity(CHALLENGES),
            next_challenge: now,
            expires: now + self.interval() * CHALLENGES as u32,
        }
    }

    fn interval(&self) -> Duration {
        self.probe_timeout.max(CHALLENGE_INTERVAL)
    }

    /// Returns the bytes that may be sent to the current address now.
    #[must_use]
    pub fn allowance(&self) -> u64 {
        match &self.current {
            None => 0,
            Some(CurrentAddress { doubt: None, .. }) => u64::MAX,
            Some(CurrentAddress {
                doubt: Some(doubt), ..
            }) => allowance(doubt.received).saturating_sub(doubt.sent),
        }
    }

    /// Returns `true` if a datagram of `bytes` bytes may be sent to the current address.
    #[must_use]
    pub fn may_send(&self, bytes: u64) -> bool {
        self.current.is_some() && bytes <= self.allowance()
    }

    /// Returns `true` if packets go to a host that is not validated although another host was. Its
    /// path is unknown, and it may be a third party that forwards the peer's packets.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        let is_doubted = self.trust() == AddressTrust::Unvalidated;
        is_doubted && self.fallback.is_some_and(|known| !self.is_at_host(known))
    }

    fn is_at_host(&self, known: SocketAddr) -> bool {
        self.current()
            .is_some_and(|address| address.ip() == known.ip())
    }

    /// Hears that a datagram of that many bytes went to the current address.
    pub fn on_sent(&mut self, bytes: u64) {
        if let Some(CurrentAddress {
            doubt: Some(doubt), ..
        }) = &mut self.current
        {
            doubt.sent = doubt.sent.saturating_add(bytes);
        }
    }

    /// The next challenge that is due, and where it goes. One for the current address counts as
    /// any datagram does: it is handed out when one of `bytes` may be sent.
    pub fn poll_challenge(&mut self, now: Time, bytes: u64) -> Option<(SocketAddr, PathChallenge)> {
        if std::mem::take(&mut self.challenge_fallback)
            && let Some(fallback) = self.fallback
        {
            // Its response proves nothing that is not known; that it comes is what counts.
            let value = self.next_value();
            return Some((fallback, PathChallenge { value }));
        }
        let may_send = self.may_send(bytes);
        let interval = self.interval();
        let address = self.current()?;
        let doubt = self.doubted()?;
        if !may_send || doubt.challenges.len() == CHALLENGES || now < doubt.next_challenge {
            return None;
        }
        doubt.next_challenge = now + interval;
        let value = self.next_value();
        self.doubted()?.challenges.push(value);
        Some((address, PathChallenge { value }))
    }

    fn next_value(&mut self) -> u64 {
        self.challenges_made += 1;
        self.seed.value(self.challenges_made)
    }

    fn doubted(&mut self) -> Option<&mut PendingValidation> {
        self.current.as_mut()?.doubt.as_mut()
    }

    /// Hears a response from an opened packet, wherever that came from (RFC 9000 §8.2.3,
    /// Successful Path Validation).
    pub fn on_challenge_response(&mut self, response: PathResponse) -> ChallengeResult {
        let is_elsewhere = self.is_elsewhere();
        let Some(current) = &mut self.current else {
            return ChallengeResult::Unknown;
        };
        match &current.doubt {
            Some(doubt) if doubt.challenges.contains(&response.value) => {
                current.doubt = None;
                self.fallback = None;
                self.challenge_fallback = false;
                if is_elsewhere {
                    ChallengeResult::OtherHost
                } else {
                    ChallengeResult::SameHost
                }
            }
            Some(_) | None => ChallengeResult::Unknown,
        }
    }

    /// Hears the probe timeout of the path (RFC 9002 §6.2.1).
    pub fn set_probe_timeout(&mut self, probe_timeout: Duration) {
        self.probe_timeout = probe_timeout;
    }

    /// Returns the time for the next call of [`PathAddresses::handle_timeout`] or
    /// [`PathAddresses::poll_challenge`] without a further packet; [`Time::NEVER`] when there is
    /// none. `bytes` as for the latter.
    #[must_use]
    pub fn poll_timeout(&self, bytes: u64) -> Time {
        if self.challenge_fallback {
            return Time::ZERO;
        }
        let Some(CurrentAddress {
            doubt: Some(doubt), ..
        }) = &self.current
        else {
            return Time::NEVER;
        };
        if doubt.challenges.len() < CHALLENGES && self.may_send(bytes) {
            doubt.next_challenge.min(doubt.expires)
        } else {
            doubt.expires
        }
    }

    /// Abandons an address that has not answered in time, and returns the consequence.
    pub fn handle_timeout(&mut self, now: Time) -> Option<ValidationFailure> {
        if self.doubted()?.expires > now {
            return None;
        }
        self.challenge_fallback = false;
        self.current = self.fallback.take().map(|address| CurrentAddress {
            address,
            doubt: None,
        });
        Some(match self.current {
            Some(_) => ValidationFailure::Reverted,
            None => ValidationFailure::Lost,
        })
    }
}

/// Bytes that may be sent to an unvalidated address, for `received` bytes that came from there.
#[must_use]
pub fn allowance(received: u64) -> u64 {
    received.saturating_mul(AMPLIFICATION)
}

impl std::fmt::Debug for PathAddresses {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Addresses")
            .field("current", &self.current())
            .field("trust", &self.trust())
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}
