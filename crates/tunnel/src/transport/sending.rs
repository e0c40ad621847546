//! Packets that are sent: one after the other, each with the most urgent frames.
//!
//! An acknowledgement that is due is sent whatever the window says and is not paced. All other
//! packets wait for room in the window and for the pacer, except probes of a path that does not
//! answer. Repair symbols that are due are sent before new frames: they are few, and late ones are
//! useless. To an address that is not validated, packets are as long as its allowance permits.

use std::net::SocketAddr;

use bytes::BytesMut;
use vocab::{ByteWriter, Time, varint_length};

use super::{
    DatagramTransport, FilledPacket, HeldDatagram, PacketContent, PathCondition, RepairProtection,
    SuspendReason, TransmitBatch, headers,
};
use crate::fec::{LENGTH_PREFIX, PAYLOAD_LIMIT, PauseReason, RepairMode};
use crate::packet::{
    AddressTrust, OVERHEAD, PacketFrame, PacketSealer, PaddingFrame, ProbeFrame, RANGE_LIMIT,
    SealError, SourceSymbol, emit_acknowledgement,
};
use crate::recovery::{OutgoingPacket, PacketKind, PendingAck};

/// Largest overhead of a Repair frame over its symbol, in bytes: two of length, the kind, eight of
/// the first number, the count, two of the key.
const REPAIR_ROOM: usize = 2 + 1 + 8 + 1 + 2 + LENGTH_PREFIX;

/// Bytes that a data packet keeps free for an acknowledgement that is not due yet.
const RIDE_ALONG_ROOM: usize = 80;

/// Bytes of a Source frame, at most.
const SOURCE_ROOM: usize = 1 + 1 + 8;

/// Room for frames in the least packet that every path carries, whatever goes beside them of
/// [`RIDE_ALONG_ROOM`].
pub(crate) const LEAST_FRAMES_ROOM: usize =
    path::BASE_SIZE as usize - OVERHEAD - SOURCE_ROOM - RIDE_ALONG_ROOM;

/// Largest size of an acknowledgement without its ranges, and the typical size of each range: a gap
/// and a length of one byte or two. Less room means fewer ranges.
const ACKNOWLEDGEMENT_ROOM: usize = 48;
const RANGE_ROOM: usize = 3;

/// An acknowledgement with one range of each kind, and all its numbers as long as can be.
const LEAST_ACKNOWLEDGEMENT: usize = 2 + 1 + 1 + 8 + (8 + 1 + 8) + 3 * 8 + (8 + 1 + 8);

/// A packet is not begun where less may go: it would not hold an acknowledgement.
pub(super) const LEAST_ROOM: usize = OVERHEAD + LEAST_ACKNOWLEDGEMENT;

/// A packet in the making.
pub(super) struct PacketDraft<T> {
    kind: PacketKind,
    above: Option<T>,
    symbol: Option<u64>,
    telling: Option<PendingAck>,
}

impl<T> PacketDraft<T> {
    pub(super) fn of(kind: PacketKind) -> Self {
        Self {
            kind,
            above: None,
            symbol: None,
            telling: None,
        }
    }
}

impl<T: Clone> DatagramTransport<T> {
    /// Appends packets for one destination to `out`, at most `packets_max` of one length, the last
    /// of which may be shorter; `None` when nothing is to be sent now.
    ///
    /// `fill` puts complete frames into a packet, at most as many bytes as it has room for, and
    /// returns the record of them; `None` when it has none.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        packets_max: usize,
        out: &mut BytesMut,
        mut fill: impl FnMut(usize, &mut ByteWriter) -> Option<FilledPacket<T>>,
    ) -> Option<TransmitBatch> {
        if self.has_ended() {
            return self.send_close(now, out);
        }
        let alone = self
            .send_challenge(now, out)
            .or_else(|| self.send_response(now, out));
        if alone.is_some() {
            return alone;
        }
        if self.condition == PathCondition::Carrying && self.sealer.is_far_ahead() {
            // What is acknowledged brings it back.
            self.suspend(now, SuspendReason::NoAnswer);
        }
        let to = self.addresses.current()?;
        if let Some(held) = self.held.take_if(|held| held.to != to) {
            out.extend_from_slice(&held.bytes);
            return Some(held.transmit());
        }
        let start = out.len();
        self.paced_until = None;
        let mut segment = 0;
        let mut batch_marked = false;
        for index in 0..packets_max {
            let from = out.len();
            let is_marked = match self.held.take() {
                Some(held) => {
                    out.extend_from_slice(&held.bytes);
                    held.is_marked
                }
                None => match self.put_packet(now, to, out, &mut fill) {
                    Some(is_marked) => is_marked,
                    None => break,
                },
            };
            let length = out.len() - from;
            if index == 0 {
                segment = length;
                batch_marked = is_marked;
            } else if length > segment || is_marked != batch_marked {
                let bytes = out.split_off(from);
                self.held = Some(HeldDatagram {
                    to,
                    bytes,
                    is_marked,
                });
                break;
            }
            if length < segment {
                break;
            }
        }
        let bytes = out.len() - start;
        (bytes > 0).then_some(TransmitBatch {
            to,
            is_marked: batch_marked,
            segment,
            bytes,
        })
    }

    /// Appends one packet, if there is something to say now; gives whether it is marked.
    fn put_packet(
        &mut self,
        now: Time,
        to: SocketAddr,
        out: &mut BytesMut,
        fill: &mut impl FnMut(usize, &mut ByteWriter) -> Option<FilledPacket<T>>,
    ) -> Option<bool> {
        let size = self.packet_room()?;
        let start = PacketSealer::begin(out);
        let mut draft = PacketDraft::of(PacketKind::Silent);
        let free = self.may_send_more(now, size as u64 + headers(Some(to)));
        if free && self.carries() && self.put_repair(now, size, out) {
            draft.kind = PacketKind::Eliciting;
            return self.seal(now, to, out, start, draft);
        }
        if self.received.poll_timeout().is_some_and(|at| at <= now) {
            // Data may follow; what is told late costs the peer a packet sent twice.
            let most = size - OVERHEAD;
            let room = if free { most / 2 } else { most };
            let room = room.max(LEAST_ACKNOWLEDGEMENT);
            self.put_acknowledgement(now, room, out, &mut draft);
        }
        if free {
            self.put_content(now, size, start, out, &mut draft, fill);
        }
        if out.len() == start + crate::packet::HEADER_LENGTH {
            out.truncate(start);
            return None;
        }
        let untimed = self.sent.untimed();
        if draft.kind == PacketKind::Silent && self.received.wants_confirmation(now, untimed) {
            self.append(&PacketFrame::Probe(ProbeFrame), out);
            self.received.on_confirmation_requested(now);
            draft.kind = self.asking_kind();
        }
        self.seal(now, to, out, start, draft)
    }

    /// Returns the kind of a packet that only asks for an answer.
    fn asking_kind(&self) -> PacketKind {
        if self.carries() {
            PacketKind::Eliciting
        } else if self.addresses.is_elsewhere() {
            PacketKind::Silent
        } else {
            PacketKind::PathProbe
        }
    }

    /// Returns `true` if a packet that counts as in flight may be sent now. If only the pacer
    /// forbids it, notes when it will be allowed.
    fn may_send_more(&mut self, now: Time, bytes: u64) -> bool {
        if self.probes_due > 0 {
            return true;
        }
        if !self.carries() || self.sent.bytes_in_flight() + bytes > self.controller.window() {
            return false;
        }
        self.paced_until = self.pacer.delay(now);
        self.paced_until.is_none()
    }

    /// Appends an acknowledgement in at most `room` bytes, or with one range.
    fn put_acknowledgement(
        &mut self,
        now: Time,
        room: usize,
        out: &mut BytesMut,
        draft: &mut PacketDraft<T>,
    ) {
        let from = out.len();
        let mut ranges = room.saturating_sub(ACKNOWLEDGEMENT_ROOM) / RANGE_ROOM;
        loop {
            ranges = ranges.clamp(1, RANGE_LIMIT);
            let Some(telling) = self.received.pending_ack(now, ranges) else {
                return;
            };
            self.scratch.clear();
            emit_acknowledgement(&telling.acknowledgement, &mut self.scratch);
            out.extend_from_slice(self.scratch.as_slice());
            if out.len() - from <= room || ranges == 1 {
                draft.telling = Some(telling);
                return;
            }
            // Ranges far apart take more than they usually do.
            out.truncate(from);
            ranges /= 2;
        }
    }

    /// A probe of the path's size, or frames; or a bare probe where one is due.
    fn put_content(
        &mut self,
        now: Time,
        size: usize,
        start: usize,
        out: &mut BytesMut,
        draft: &mut PacketDraft<T>,
        fill: &mut impl FnMut(usize, &mut ByteWriter) -> Option<FilledPacket<T>>,
    ) {
        let carries = self.carries();
        let is_trusted = self.addresses.trust() == AddressTrust::Validated;
        if carries && is_trusted && self.put_mtu_probe(now, start, out, draft) {
            return;
        }
        let is_probe = self.probes_due > 0;
        if is_probe {
            // Each is answered at once and by itself: what is missing may be the answers alone.
            self.append(&PacketFrame::Probe(ProbeFrame), out);
        }
        if carries && self.put_frames(now, size, start, out, draft, fill) {
            if let Some(symbol) = draft.symbol {
                self.policy.sent(now, symbol);
            }
            self.probes_due = self.probes_due.saturating_sub(1);
            return;
        }
        if is_probe {
            self.probes_due -= 1;
            if !carries || !is_trusted {
                // So long that the peer may answer with more than a word (RFC 9000 §8.1), and that
                // the path is known to carry the least packet.
                self.expand(size as u64, start, out);
            }
            draft.kind = self.asking_kind();
        } else if carries && is_trusted && draft.telling.is_none() {
            let in_flight = self.sent.bytes_in_flight();
            self.controller.limited_by_application(now, in_flight);
            self.policy
                .paused(now, PauseReason::Dry, self.encoder.outstanding());
        }
    }

    fn put_mtu_probe(
        &mut self,
        now: Time,
        start: usize,
        out: &mut BytesMut,
        draft: &mut PacketDraft<T>,
    ) -> bool {
        // It says nothing else, since it may well not arrive.
        let fits = draft.kind == PacketKind::Silent && draft.telling.is_none();
        let Some(size) = self.mtu.poll_probe(now).filter(|_| fits) else {
            return false;
        };
        self.append(&PacketFrame::Probe(ProbeFrame), out);
        self.pad(usize::from(size), start, out);
        draft.kind = PacketKind::MtuProbe;
        true
    }

    /// A repair symbol fills a packet by itself.
    fn put_repair(&mut self, now: Time, size: usize, out: &mut BytesMut) -> bool {
        let room = size.saturating_sub(OVERHEAD + REPAIR_ROOM - LENGTH_PREFIX);
        while let Some(run) = self.policy.poll_repair(now, self.encoder.outstanding()) {
            // Of some runs nothing is missing any more, and the path may have become narrower since
            // others were sent.
            if let Some(symbol) = self.encoder.repair(run)
                && symbol.bytes.len() <= room
            {
                self.append(&PacketFrame::Repair(symbol), out);
                self.counters.sent_repairs += 1;
                return true;
            }
        }
        false
    }

    fn put_frames(
        &mut self,
        now: Time,
        size: usize,
        start: usize,
        out: &mut BytesMut,
        draft: &mut PacketDraft<T>,
        fill: &mut impl FnMut(usize, &mut ByteWriter) -> Option<FilledPacket<T>>,
    ) -> bool {
        let symbol =
            (self.policy.mode() != RepairMode::Off).then(|| self.encoder.outstanding().end);
        let source = symbol.map_or(0, |symbol| 1 + 1 + varint_length(symbol));
        let used = out.len() - start - crate::packet::HEADER_LENGTH;
        let rides_along = draft.telling.is_none() && self.received.poll_timeout().is_some();
        let reserve = if rides_along { RIDE_ALONG_ROOM } else { 0 };
        let left = size.saturating_sub(OVERHEAD + used + source + reserve);
        // A repair that covers this packet has to fit one of the same size.
        let coverable = size.saturating_sub(OVERHEAD + REPAIR_ROOM);
        let room = if symbol.is_some() {
            left.min(coverable).min(PAYLOAD_LIMIT)
        } else {
            left
        };
        let mut filled = std::mem::take(&mut self.filled);
        filled.clear();
        let content = fill(room, &mut filled);
        debug_assert!(filled.len() <= room, "a packet has a length");
        let symbol = symbol.filter(|_| {
            let worth = content.as_ref().map(|content| content.protection);
            worth == Some(RepairProtection::Repair)
        });
        if content.is_some() {
            if rides_along {
                self.put_acknowledgement(now, RIDE_ALONG_ROOM, out, draft);
            }
            if let Some(symbol) = symbol {
                self.append(&PacketFrame::Source(SourceSymbol { symbol }), out);
                let numbered = self.encoder.source(filled.as_slice());
                debug_assert_eq!(numbered, symbol);
            }
            out.extend_from_slice(filled.as_slice());
        }
        self.filled = filled;
        let Some(FilledPacket { content, .. }) = content else {
            return false;
        };
        draft.kind = PacketKind::Eliciting;
        draft.above = Some(content);
        draft.symbol = symbol;
        true
    }

    /// Seals the packet that starts at `start` and records it.
    pub(super) fn seal(
        &mut self,
        now: Time,
        to: SocketAddr,
        out: &mut BytesMut,
        start: usize,
        draft: PacketDraft<T>,
    ) -> Option<bool> {
        let number = match self.sealer.seal(now, out, start) {
            Ok(number) => number,
            Err(error) => {
                out.truncate(start);
                if let Some(above) = draft.above {
                    self.fates.push_back((super::DeliveryOutcome::Lost, above));
                }
                self.suspend(
                    now,
                    match error {
                        SealError::TooFarAhead => SuspendReason::NoAnswer,
                        SealError::KeyExhausted => SuspendReason::KeysUsedUp,
                    },
                );
                return None;
            }
        };
        self.quiet_since = now;
        if let Some(telling) = &draft.telling {
            self.received.on_ack_sent(now, telling);
        }
        let datagram = (out.len() - start) as u16;
        let bytes = u64::from(datagram) + headers(Some(to));
        if self.addresses.current() == Some(to) {
            self.addresses.on_sent(u64::from(datagram));
        }
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += bytes;
        let in_flight = draft.kind.is_in_flight();
        let state = if in_flight {
            let before = self.sent.bytes_in_flight();
            self.pacer.sent(now, bytes);
            self.unanswered_since.get_or_insert(now);
            self.controller.sent(now, number, bytes, before)
        } else {
            Default::default()
        };
        if draft.kind == PacketKind::MtuProbe {
            let wait = self.sent.probe_timeout();
            self.mtu.probe_sent(now, number, datagram, wait);
        }
        let is_marked = in_flight && self.sent.wants_mark();
        self.sent.sent(
            now,
            OutgoingPacket {
                number,
                bytes,
                kind: draft.kind,
                is_marked,
                symbol: draft.symbol,
                content: PacketContent {
                    above: draft.above,
                    state,
                    symbol: draft.symbol,
                    acknowledgement: draft
                        .telling
                        .map(|telling| Box::new(telling.acknowledgement)),
                    datagram,
                },
            },
        );
        Some(is_marked)
    }

    pub(super) fn append(&mut self, frame: &PacketFrame, out: &mut BytesMut) {
        self.scratch.clear();
        frame.emit(&mut self.scratch);
        out.extend_from_slice(self.scratch.as_slice());
    }

    /// Fills the packet that starts at `start` up to `size` bytes, seal included.
    pub(super) fn pad(&mut self, size: usize, start: usize, out: &mut BytesMut) {
        let length = out.len() - start + crate::packet::TAG_LENGTH;
        if let Some(bytes) = size.checked_sub(length).filter(|left| *left > 0) {
            let bytes = bytes as u16;
            self.append(&PacketFrame::Padding(PaddingFrame { bytes }), out);
        }
    }
}
