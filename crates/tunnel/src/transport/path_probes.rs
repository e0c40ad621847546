//! Probes of the path: whether it carries packets, and whether the peer is at the source of its
//! packets.
//!
//! ```text
//!  carries nothing ── probe, waits 1, 2, 4 … probe timeouts, at most 30 s ──► an answer: it carries
//!        a packet of the peer's: probe now ▲
//!
//!  challenge ═► to an address that is doubted, and the one before it    response ◄═ to where it came from
//! ```
//!
//! An idle path is also probed occasionally, so that NATs on the path keep their mappings.
//!
//! Challenges and responses travel alone, as each may go to another address. They are padded to the
//! smallest packet that every path carries where the address's allowance permits it (RFC 9000
//! §8.2.1, §8.2.2), because the peer's answer is limited by the same measure. Otherwise they are as
//! short as possible, so that a peer that only acknowledges can be validated too.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use vocab::Time;

use super::sending::PacketDraft;
use super::{DatagramTransport, TransmitBatch};
use crate::packet::{OVERHEAD, PacketFrame, PacketSealer, PathChallenge, PathResponse, allowance};
use crate::recovery::PacketKind;

/// A path that carries nothing is asked again after this long at the latest, so that one that is
/// blocked for good costs 80 bytes/s, and an outage is over half a minute after its end at most.
pub(super) const ASK_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// Growth of the interval with each probe.
const ASK_BACKOFF: u32 = 2;

/// A side that has sent nothing for this long asks whether the peer is there, and so the address
/// translators between them keep the path in mind: they may forget it after two minutes (RFC 4787
/// §4.3, REQ-5), many do after 30 seconds, and RFC 8085 §3.5 asks for 15 seconds at least.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The shortest datagram with a challenge: its frame is a length, a kind, and the value.
pub(super) const LEAST_CHALLENGE: u64 = (OVERHEAD + 1 + 1 + 8) as u64;

/// Challenges that wait to be answered, at most. An honest peer has two under way, by two addresses.
const RESPONSES_MAX: usize = 8;

/// Timer for the next probe of a path that carries nothing.
#[derive(Debug)]
pub(super) struct IdleProbeTimer {
    at: Option<Time>,
    asked_at: Option<Time>,
    wait: Duration,
}

impl IdleProbeTimer {
    /// First at `at`, and then after `wait` and longer.
    pub(super) fn new(at: Option<Time>, wait: Duration) -> Self {
        let asked_at = None;
        Self { at, asked_at, wait }
    }

    pub(super) fn stop(&mut self) {
        self.at = None;
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.at
    }

    /// Returns `true` if a probe is due, and notes that it is sent.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let is_due = self.at.is_some_and(|at| at <= now);
        if is_due {
            self.asked_at = Some(now);
            self.at = Some(now + self.wait);
            self.wait = (self.wait * ASK_BACKOFF).min(ASK_INTERVAL_MAX.max(self.wait));
        }
        is_due
    }

    /// The peer was heard, so the path may be back: asks now, unless it was asked within a probe
    /// timeout, and soon again.
    pub(super) fn probe_soon(&mut self, now: Time, probe_timeout: Duration) {
        if (self.asked_at).is_none_or(|asked| now.since(asked) >= probe_timeout) {
            self.at = Some(now);
            self.wait = probe_timeout;
        }
    }
}

/// A challenge that waits to be answered.
#[derive(Debug)]
pub(super) struct PendingResponse {
    to: SocketAddr,
    frame: PathResponse,
    /// Bytes that may be sent there because of the datagram that brought the challenge.
    allowance: u64,
}

impl<T: Clone> DatagramTransport<T> {
    /// Returns the time at which an idle path needs a keep-alive.
    pub(super) fn keep_alive_at(&self) -> Option<Time> {
        self.carries().then(|| self.quiet_since + KEEP_ALIVE)
    }

    /// Asks a path that has been quiet for long.
    pub(super) fn keep_alive(&mut self, now: Time) {
        if self.keep_alive_at().is_some_and(|at| at <= now) {
            self.quiet_since = now;
            self.probes_due = self.probes_due.max(1);
        }
    }

    /// Handles a challenge from a datagram of `bytes` bytes.
    pub(super) fn challenged(&mut self, from: SocketAddr, bytes: u64, challenge: PathChallenge) {
        if self.responses.len() < RESPONSES_MAX {
            let value = challenge.value;
            self.responses.push_back(PendingResponse {
                to: from,
                frame: PathResponse { value },
                allowance: allowance(bytes),
            });
        }
    }

    pub(super) fn send_challenge(
        &mut self,
        now: Time,
        out: &mut BytesMut,
    ) -> Option<TransmitBatch> {
        if !self.sent.has_room() || self.sealer.is_far_ahead() {
            return None;
        }
        let (to, challenge) = self.addresses.poll_challenge(now, LEAST_CHALLENGE)?;
        let is_current = self.addresses.current() == Some(to);
        let (allowed, kind) = if !is_current {
            // It was validated.
            (u64::MAX, PacketKind::Silent)
        } else if self.addresses.is_elsewhere() {
            // How long the answer takes from there says nothing of the path that was left.
            (self.addresses.allowance(), PacketKind::Silent)
        } else {
            (self.addresses.allowance(), PacketKind::PathProbe)
        };
        let frame = PacketFrame::PathChallenge(challenge);
        self.send_alone(now, to, &frame, allowed, kind, out)
    }

    /// A response goes to where the challenge came from (RFC 9000 §8.2.2), wherever the rest goes.
    pub(super) fn send_response(&mut self, now: Time, out: &mut BytesMut) -> Option<TransmitBatch> {
        if !self.sent.has_room() || self.sealer.is_far_ahead() {
            return None;
        }
        let PendingResponse { to, allowance, .. } = *self.responses.front()?;
        let allowed = if self.addresses.current() == Some(to) {
            self.addresses.allowance()
        } else {
            allowance
        };
        if allowed < LEAST_CHALLENGE {
            return None;
        }
        let frame = PacketFrame::PathResponse(self.responses.pop_front()?.frame);
        self.send_alone(now, to, &frame, allowed, PacketKind::Silent, out)
    }

    /// A packet with one frame, as long as the least packet where that is allowed.
    pub(super) fn send_alone(
        &mut self,
        now: Time,
        to: SocketAddr,
        frame: &PacketFrame,
        allowed: u64,
        kind: PacketKind,
        out: &mut BytesMut,
    ) -> Option<TransmitBatch> {
        let start = PacketSealer::begin(out);
        self.append(frame, out);
        self.expand(allowed, start, out);
        let is_marked = self.seal(now, to, out, start, PacketDraft::of(kind))?;
        Some(TransmitBatch {
            to,
            is_marked,
            segment: out.len() - start,
            bytes: out.len() - start,
        })
    }

    /// Fills the packet that starts at `start` up to the least that every path carries, if so much
    /// may go.
    pub(super) fn expand(&mut self, allowed: u64, start: usize, out: &mut BytesMut) {
        let base = path::BASE_SIZE;
        if allowed >= u64::from(base) {
            self.pad(usize::from(base), start, out);
        }
    }
}
