//! Packets that arrive: they are opened, their frames are handled, lost ones are computed from
//! repair symbols, and the peer's acknowledgements are applied.

use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use vocab::Time;

use super::{
    DatagramTransport, DeliveryOutcome, EcnMarking, PacketContent, PathCondition, SuspendReason,
    headers, new_search,
};
use crate::SessionError;
use crate::congestion::{AckedPacket, DeliveryEvent, LostPacket};
use crate::fec::{LossCause, PathState, QueueTrend};
use crate::packet::{
    AddressTrust, ChallengeResult, CloseCode, PacketAck, PacketFrame, PacketRefusal, PathResponse,
};
use crate::recovery::{AckRequest, PacketKind, ReceivedPacket, SentPacket};

impl<T: Clone> DatagramTransport<T> {
    /// Takes in a datagram from the socket. What no peer sealed changes nothing.
    ///
    /// # Errors
    /// When the peer sealed what breaks the rules; the link must end then.
    pub fn handle(
        &mut self,
        now: Time,
        from: SocketAddr,
        codepoint: EcnMarking,
        mut datagram: BytesMut,
    ) -> Result<(), SessionError> {
        if self.has_ended() {
            self.handle_closed(now, from, &mut datagram);
            return Ok(());
        }
        let opened = match self.opener.open(now, &mut datagram) {
            Ok(opened) => opened,
            Err(PacketRefusal::ForgeryLimit) => {
                self.suspend(now, SuspendReason::KeysUsedUp);
                self.start_close(now, CloseCode::ForgeryLimit, "too many packets were forged");
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let bytes = datagram.len() as u64;
        self.counters.received_packets += 1;
        self.counters.received_bytes += bytes + headers(Some(from));
        self.addresses.on_packet(now, from, &opened, bytes);
        let payload = opened.payload();
        datagram.truncate(payload.end);
        datagram.advance(payload.start);
        let asks = self.handle_payload(now, from, bytes, datagram.freeze())?;
        self.received.on_packet(
            now,
            ReceivedPacket {
                number: opened.number(),
                asks,
                codepoint,
            },
        );
        if self.condition != PathCondition::Carrying
            && self.addresses.trust() == AddressTrust::Validated
        {
            self.idle_probe_timer
                .probe_soon(now, self.sent.probe_timeout());
        }
        self.take_recovered(now)
    }

    /// Handles the frames of a payload from a datagram of `bytes` bytes. Returns the
    /// acknowledgement it asks for.
    fn handle_payload(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: u64,
        mut payload: Bytes,
    ) -> Result<AckRequest, SessionError> {
        let mut asks = AckRequest::Nothing;
        let mut is_challenged = false;
        let mut ask = |more: AckRequest| {
            if more == AckRequest::AtOnce || asks == AckRequest::Nothing {
                asks = more;
            }
        };
        while let Some(frame) = PacketFrame::take(&mut payload)? {
            if frame.elicits_acknowledgement() {
                ask(AckRequest::Acknowledgement);
            }
            match frame {
                PacketFrame::Padding(_) => {}
                PacketFrame::Probe(_) => ask(AckRequest::AtOnce),
                PacketFrame::Acknowledgement(ack) => self.on_acknowledgement(now, &ack)?,
                PacketFrame::Source(source) => {
                    // What is too old or was there before is of no use for repairs, no more.
                    self.decoder.source(source.symbol, &payload);
                }
                PacketFrame::Repair(repair) => {
                    self.counters.received_repairs += 1;
                    self.decoder.repair(&repair);
                }
                PacketFrame::PathChallenge(challenge) => {
                    ask(AckRequest::AtOnce);
                    // One for each datagram, which bounds what may go back to where it came from.
                    if !std::mem::replace(&mut is_challenged, true) {
                        self.challenged(from, bytes, challenge);
                    }
                }
                PacketFrame::PathResponse(response) => self.on_response(now, response),
                PacketFrame::Close(_) => {
                    self.suspend(now, SuspendReason::ClosedByPeer);
                    return Ok(AckRequest::Nothing);
                }
                PacketFrame::Session(frame) => self.frames.push_back(frame),
            }
        }
        Ok(asks)
    }

    fn on_response(&mut self, now: Time, response: PathResponse) {
        match self.addresses.on_challenge_response(response) {
            ChallengeResult::Unknown => return,
            ChallengeResult::SameHost => {}
            ChallengeResult::OtherHost => self.start_over(now),
        }
        self.answered(now);
    }

    /// Takes the payloads that repairs have made whole.
    fn take_recovered(&mut self, now: Time) -> Result<(), SessionError> {
        while let Some((symbol, mut payload)) = self.decoder.poll_recovered() {
            self.counters.recovered_packets += 1;
            self.received.on_recovered(now, symbol);
            // Authenticated symbols do not make an authenticated sum, so this is anyone's word.
            while let Some(frame) = PacketFrame::take(&mut payload)? {
                let PacketFrame::Session(frame) = frame else {
                    return Err(SessionError::InvalidMessage(
                        "a source symbol holds what is no frame of the session",
                    ));
                };
                self.frames.push_back(frame);
            }
        }
        Ok(())
    }

    fn on_acknowledgement(&mut self, now: Time, ack: &PacketAck) -> Result<(), SessionError> {
        let outcome = self.sent.on_acknowledgement(now, ack)?;
        self.sealer.acknowledged(now, ack.largest());
        let congested = self.cause();
        let mut acked = Vec::with_capacity(outcome.acked.len());
        let mut is_answer = false;
        for packet in outcome.acked {
            is_answer |= self.is_answer(&packet);
            if packet.kind != PacketKind::PathProbe {
                self.policy.losses().delivered(1);
            }
            match packet.kind {
                PacketKind::Eliciting | PacketKind::PathProbe => {
                    self.size_acked(now, packet.content.datagram)
                }
                PacketKind::MtuProbe => {
                    self.black_hole_detector
                        .acknowledged(packet.content.datagram);
                    self.mtu.probe_acked(now, packet.content.datagram);
                    self.note_size();
                }
                PacketKind::Silent => {}
            }
            if packet.kind.is_in_flight() {
                acked.push(acked_packet(&packet, false));
            }
            self.arrived(now, packet.content);
        }
        for packet in outcome.recovered {
            self.policy.losses().lost(packet.number, congested);
            acked.push(acked_packet(&packet, true));
            self.arrived(now, packet.content);
        }
        let mut spurious = Vec::new();
        for packet in outcome.spurious {
            is_answer |= self.is_answer(&packet);
            match packet.kind {
                PacketKind::Eliciting => {
                    self.policy.losses().spurious();
                    self.size_acked(now, packet.content.datagram);
                    spurious.push(lost_packet(&packet));
                }
                PacketKind::PathProbe => self.size_acked(now, packet.content.datagram),
                PacketKind::MtuProbe => self.mtu.probe_acked(now, packet.content.datagram),
                PacketKind::Silent => {}
            }
            self.arrived(now, packet.content);
        }
        for packet in outcome.recovered_late {
            self.arrived(now, packet.content);
        }
        let lost = self.lose(now, outcome.lost);
        let is_news = !acked.is_empty() || !spurious.is_empty() || outcome.rtt.is_some();
        if is_news || !lost.is_empty() || outcome.ce_marked > 0 {
            self.controller.event(&DeliveryEvent {
                now,
                acked: &acked,
                lost: &lost,
                spurious: &spurious,
                rtt: outcome.rtt,
                ce_marked: outcome.ce_marked,
                in_flight: self.sent.bytes_in_flight(),
                reordering: self.sent.reordering(),
            });
        }
        self.note_path(now);
        if self.suspend_black_hole(now) {
            return Ok(());
        }
        if is_answer {
            self.answered(now);
        }
        Ok(())
    }

    /// Returns `true` if this acknowledgement shows that the path carries packets.
    fn is_answer(&self, packet: &SentPacket<PacketContent<T>>) -> bool {
        let is_narrow = self.condition == PathCondition::Suspended(SuspendReason::TooNarrow);
        packet.kind.asks() && (!is_narrow || packet.content.datagram >= path::BASE_SIZE)
    }

    fn size_acked(&mut self, now: Time, size: u16) {
        self.mtu.acked(now, size);
        self.black_hole_detector.acknowledged(size);
    }

    /// Suspends a path that carries only short packets. Returns `true` if it did.
    fn suspend_black_hole(&mut self, now: Time) -> bool {
        let is_left = self.condition == PathCondition::Carrying
            && self
                .black_hole_detector
                .is_certain(now, self.suspicion_wait());
        if is_left {
            self.suspend(now, SuspendReason::TooNarrow);
            self.mtu = new_search(now, &self.settings);
        }
        is_left
    }

    /// Packets that a timer declared lost.
    pub(super) fn on_lost(&mut self, now: Time, lost: Vec<SentPacket<PacketContent<T>>>) {
        let lost = self.lose(now, lost);
        if !lost.is_empty() {
            self.controller.event(&DeliveryEvent {
                now,
                acked: &[],
                lost: &lost,
                spurious: &[],
                rtt: None,
                ce_marked: 0,
                in_flight: self.sent.bytes_in_flight(),
                reordering: self.sent.reordering(),
            });
            self.note_path(now);
        }
        self.suspend_black_hole(now);
    }

    /// Hands back the contents of lost packets; gives those that count for congestion.
    fn lose(
        &mut self,
        now: Time,
        mut packets: Vec<SentPacket<PacketContent<T>>>,
    ) -> Vec<LostPacket> {
        let cause = self.cause();
        let round_trip = self.sent.typical_rtt();
        let mut lost = Vec::with_capacity(packets.len());
        // Who looks for runs of losses does so in the order of numbers.
        packets.sort_unstable_by_key(|packet| packet.number);
        for packet in packets {
            match packet.kind {
                PacketKind::Eliciting => {
                    let (sent_at, size) = (packet.sent_at, packet.content.datagram);
                    self.mtu.lost(now, sent_at, size, round_trip);
                    self.black_hole_detector.lost(sent_at, size);
                    self.policy.losses().lost(packet.number, cause);
                    lost.push(lost_packet(&packet));
                }
                PacketKind::MtuProbe => self.mtu.probe_lost(now, packet.number),
                PacketKind::Silent | PacketKind::PathProbe => {}
            }
            if let Some(symbol) = packet.content.symbol {
                // Its data goes out again in another symbol.
                self.encoder.acknowledged(symbol..symbol + 1);
            }
            if let Some(above) = packet.content.above {
                self.fates.push_back((DeliveryOutcome::Lost, above));
            }
        }
        if self.sent.bytes_in_flight() == 0 {
            // Nothing is waited for any longer.
            self.unanswered_since = None;
        }
        self.note_size();
        lost
    }

    fn arrived(&mut self, now: Time, content: PacketContent<T>) {
        if let Some(symbol) = content.symbol {
            self.encoder.acknowledged(symbol..symbol + 1);
        }
        if let Some(acknowledgement) = content.acknowledgement {
            self.received.confirmed(now, &acknowledgement);
        }
        if let Some(above) = content.above {
            self.fates.push_back((DeliveryOutcome::Arrived, above));
        }
    }

    /// Returns the probable cause of a loss now.
    fn cause(&self) -> LossCause {
        if self.controller.telemetry().is_congested {
            LossCause::Queue
        } else {
            LossCause::Unknown
        }
    }

    /// Tells every part what the path is like by now.
    fn note_path(&mut self, now: Time) {
        let smoothed = self.sent.rtt().smoothed();
        let probe_timeout = self.sent.probe_timeout();
        // Samples of packets that overtook others would make acknowledgements too many.
        self.received.set_rtt(self.sent.typical_rtt());
        self.sealer.set_probe_timeout(probe_timeout);
        self.opener.set_probe_timeout(probe_timeout);
        self.addresses.set_probe_timeout(probe_timeout);
        let rate = self.controller.pacing_rate();
        self.pacer.set(now, rate, self.controller.send_quantum());
        let packet = vocab::ByteCount::new(u64::from(self.mtu.size()));
        self.policy.set_path(PathState {
            round_trip: smoothed,
            packet_interval: rate.time_for(packet),
            queue: if self.controller.telemetry().is_congested {
                QueueTrend::Building
            } else {
                QueueTrend::Short
            },
        });
    }

    fn note_size(&mut self) {
        let bytes = u64::from(self.mtu.size()) + headers(self.addresses.current());
        self.controller.set_packet_bytes(bytes);
    }
}

fn acked_packet<T>(packet: &SentPacket<PacketContent<T>>, recovered: bool) -> AckedPacket {
    AckedPacket {
        number: packet.number,
        bytes: packet.bytes,
        sent_at: packet.sent_at,
        state: packet.content.state,
        recovered,
    }
}

fn lost_packet<T>(packet: &SentPacket<PacketContent<T>>) -> LostPacket {
    LostPacket {
        number: packet.number,
        bytes: packet.bytes,
        sent_at: packet.sent_at,
        state: packet.content.state,
    }
}
