//! Closing of a path: the peer is told, and told again while it continues to send (RFC 9000
//! §10.2.1, Closing Connection State). It is also told after each probe timeout, because a silent
//! peer would otherwise miss a lost first Close.
//!
//! ```text
//!  close() ── Close ═► … a packet comes: Close ═► … two more: Close ═► … 3 probe timeouts: forgotten
//!                └─ a probe timeout: Close ═► ─ another: Close ═► ──────────────────┘
//! ```
//!
//! Packets that arrive are opened, so that a third party cannot trigger answers, and otherwise
//! ignored. A peer that receives Close sends nothing more (§10.2.2, Draining Connection State). A
//! peer that never receives it notices that nothing is answered.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use vocab::Time;

use super::path_probes::LEAST_CHALLENGE;
use super::{DatagramTransport, SuspendReason, TransmitBatch};
use crate::packet::{CloseCode, CloseFrame, PacketFrame, frames};
use crate::recovery::PacketKind;

/// Probe timeouts for which a closed path is remembered (RFC 9000 §10.2: at least three).
const REMEMBERED_PROBE_TIMEOUTS: u32 = 3;

/// Limit for repeated Close frames: the last one follows after 128 packets that arrived in spite of
/// it.
const CLOSES_MAX: u32 = 8;

/// The last word about a path.
#[derive(Debug)]
pub(super) struct ClosingState {
    frame: CloseFrame,
    until: Time,
    /// Time of the next repeat, and the interval after that.
    repeat_at: Time,
    repeat_every: Duration,
    /// Packets that came since it was closed.
    heard: u32,
    said: u32,
    is_due: bool,
}

impl ClosingState {
    pub(super) fn poll_timeout(&self) -> Time {
        self.until.min(self.repeat_at)
    }

    /// Handles an expired timer. Returns `true` if there is still something to wait for.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.repeat_at <= now {
            self.is_due |= self.said < CLOSES_MAX;
            self.repeat_at += self.repeat_every;
        }
        now < self.until
    }

    /// Handles a packet of a peer that has not received the Close: it is repeated after one, two,
    /// four packets and so on.
    fn heard(&mut self) {
        self.heard = self.heard.saturating_add(1);
        self.is_due |= self.heard.is_power_of_two() && self.said < CLOSES_MAX;
    }
}

impl<T: Clone> DatagramTransport<T> {
    /// Closes the path permanently and tells the peer the reason. A path that has ended is
    /// unchanged.
    pub fn close(&mut self, now: Time, code: CloseCode, reason: &str) {
        if self.has_ended() {
            return;
        }
        self.suspend(now, SuspendReason::ClosedHere);
        self.start_close(now, code, reason);
    }

    /// Returns `true` if this node has closed the path and may still have to tell the peer.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns `true` if the close has to be sent now.
    #[must_use]
    pub fn is_close_due(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| closing.is_due)
    }

    /// Returns `true` if a datagram is for this path, by the connection id at its start.
    #[must_use]
    pub fn is_addressed_by(&self, datagram: &[u8]) -> bool {
        self.opener.is_addressed_by(datagram)
    }

    /// Has the peer told that the path has ended here.
    pub(super) fn start_close(&mut self, now: Time, code: CloseCode, reason: &str) {
        // Nobody was heard who could be told.
        if self.addresses.current().is_some() {
            let reason = reason.to_owned();
            let probe_timeout = self.sent.probe_timeout();
            self.closing = Some(ClosingState {
                frame: CloseFrame { code, reason },
                until: now + probe_timeout * REMEMBERED_PROBE_TIMEOUTS,
                repeat_at: now + probe_timeout,
                repeat_every: probe_timeout,
                heard: 0,
                said: 0,
                is_due: true,
            });
        }
    }

    /// Takes in what comes for a path that has ended.
    pub(super) fn handle_closed(&mut self, now: Time, from: SocketAddr, datagram: &mut BytesMut) {
        if self.closing.is_none() {
            return;
        }
        let Ok(opened) = self.opener.open(now, datagram) else {
            return;
        };
        let bytes = datagram.len() as u64;
        self.addresses.on_packet(now, from, &opened, bytes);
        let payload = datagram.split().freeze().slice(opened.payload());
        let is_close = |frame| matches!(frame, Ok(PacketFrame::Close(_)));
        if frames(payload).any(is_close) {
            self.closing = None;
        } else if let Some(closing) = &mut self.closing {
            closing.heard();
        }
    }

    /// Appends the Close packet, if it is due now.
    pub(super) fn send_close(&mut self, now: Time, out: &mut BytesMut) -> Option<TransmitBatch> {
        let to = self.addresses.current()?;
        let closing = self.closing.as_mut().filter(|closing| closing.is_due)?;
        let length = LEAST_CHALLENGE + closing.frame.reason.len() as u64;
        // What may not go now goes when a packet of the peer's gives room for it.
        if !self.addresses.may_send(length) || !self.sent.has_room() {
            return None;
        }
        closing.is_due = false;
        closing.said += 1;
        let frame = PacketFrame::Close(closing.frame.clone());
        // Never expanded: nothing is to come back.
        self.send_alone(now, to, &frame, 0, PacketKind::Silent, out)
    }
}
