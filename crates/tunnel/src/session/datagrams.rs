//! Datagram path beside a link: how two nodes agree on one, and how frames move to it.
//!
//! ```text
//!  offer_datagrams ─► DatagramOffer ═link═► ┐
//!                     DatagramOffer ◄═link═ ┴─► SessionEvent::DatagramsAgreed ─► shell asks TLS for keys
//!  start_datagrams(keys) ─► DatagramTransport: probing ─► carrying ◄─► suspended      (frames on the link)
//! ```
//!
//! The path belongs to the link: its keys come from that link's TLS connection, and it ends with
//! the link, or a while later if frames travel in packets when the link breaks (`linkless.rs`).
//! Frames move to it when the transport has had an answer, and back when it gets none. The peer is
//! told of the end in a packet; an ended path is kept for a moment for that (`closing`).

use std::net::SocketAddr;

use bytes::BytesMut;
use path::INITIAL_RTT;
use vocab::{SeededRandom, Time};

use super::link::LinkPhase;
use super::path_selection::{PathSelection, SelectionAction, TrialPiece};
use super::{CarriedFrame, Session};
use crate::congestion::RememberedPath;
use crate::packet::{CipherSuite, CloseCode, ConnectionIds, KeyContext, TlsRole};
use crate::transport::{
    DatagramTransport, DeliveryOutcome, EcnMarking, FilledPacket, PathChange, PathCondition,
    RepairProtection, SuspendReason, TransmitBatch, TransportStatus,
};
use crate::wire::{DATAGRAM_VERSION, DatagramOffer};
use crate::{DatagramAgreement, LinkId, SessionError, SessionEvent};

/// The first version of the session that knows offers.
const OFFERS_FROM: u16 = 2;

/// The datagram path of one link, as far as it has come.
#[derive(Debug)]
pub(super) struct DatagramPath {
    ours: Option<DatagramOffer>,
    theirs: Option<DatagramOffer>,
    /// Ours has not gone out yet.
    pub(super) offer_waiting: bool,
    transport: Option<Box<DatagramTransport<Vec<CarriedFrame>>>>,
    /// Selection between packets and the link, where packets get through.
    pub(super) selection: PathSelection,
}

impl DatagramPath {
    pub(super) fn new() -> Self {
        Self {
            ours: None,
            theirs: None,
            offer_waiting: false,
            transport: None,
            selection: PathSelection::new(),
        }
    }

    pub(super) fn transport(&self) -> Option<&DatagramTransport<Vec<CarriedFrame>>> {
        self.transport.as_deref()
    }

    pub(super) fn into_transport(self) -> Option<Box<DatagramTransport<Vec<CarriedFrame>>>> {
        self.transport
    }

    pub(super) fn offer(&mut self) -> Option<DatagramOffer> {
        self.offer_waiting = false;
        self.ours
    }
}

impl Session {
    /// Tells the peer, over the present link, where this node takes packets.
    /// [`SessionEvent::DatagramsAgreed`] follows when the peer does the same; nothing, when it speaks a
    /// version that knows none.
    pub fn offer_datagrams(&mut self, now: Time, link: LinkId, offer: DatagramOffer) {
        self.advance(now);
        if let Some(current) = self.link.as_mut().filter(|current| current.id == link)
            && self.peer_version >= OFFERS_FROM
            && current.phase == LinkPhase::Established
            && current.datagrams.ours.is_none()
        {
            current.datagrams.ours = Some(offer);
            current.datagrams.offer_waiting = true;
            self.check_agreement();
        }
    }

    pub(super) fn on_datagram_offer(&mut self, offer: DatagramOffer) -> Result<(), SessionError> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        if link.datagrams.theirs.is_some() {
            return Err(SessionError::PeerMisbehaved(
                "two datagram offers on one link",
            ));
        }
        link.datagrams.theirs = Some(offer);
        self.check_agreement();
        Ok(())
    }

    fn check_agreement(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        let DatagramPath {
            ours: Some(ours),
            theirs: Some(theirs),
            transport: None,
            ..
        } = &link.datagrams
        else {
            return;
        };
        let both_aes = [ours.suite, theirs.suite] == [CipherSuite::Aes256Gcm; 2];
        let (role, dialler, listener) = if link.dialed_by_us() {
            (TlsRole::Dialler, (self.local, ours), (self.peer, theirs))
        } else {
            (TlsRole::Listener, (self.peer, theirs), (self.local, ours))
        };
        let agreement = DatagramAgreement {
            role,
            context: KeyContext {
                version: theirs.version.min(DATAGRAM_VERSION),
                suite: if both_aes {
                    CipherSuite::Aes256Gcm
                } else {
                    CipherSuite::ChaCha20Poly1305
                },
                dialler: dialler.0,
                listener: listener.0,
                dialler_nonce: dialler.1.nonce,
                listener_nonce: listener.1.nonce,
            },
            connection_ids: ConnectionIds {
                ours: ours.connection_id,
                theirs: theirs.connection_id,
            },
            port: theirs.port,
        };
        let link = link.id;
        self.events
            .push_back(SessionEvent::DatagramsAgreed { link, agreement });
    }

    /// Begins to probe the datagram path of this link, with keys from its TLS connection. On a link
    /// that is no longer the present one nothing happens.
    pub fn start_datagrams(
        &mut self,
        now: Time,
        link: LinkId,
        make: impl FnOnce(Time, &mut SeededRandom) -> DatagramTransport<Vec<CarriedFrame>>,
    ) {
        self.advance(now);
        let now = self.now;
        if let Some(current) = self.link.as_mut().filter(|current| current.id == link)
            && current.datagrams.theirs.is_some()
            && current.datagrams.transport.is_none()
        {
            current.datagrams.transport = Some(Box::new(make(now, &mut self.random)));
        }
    }

    /// Handles a UDP datagram for this session, from any sender.
    ///
    /// # Errors
    /// When an authenticated packet violates the protocol. The session has then detached the link,
    /// and the shell must close it.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        codepoint: EcnMarking,
        datagram: BytesMut,
    ) -> Result<(), SessionError> {
        self.advance(now);
        let now = self.now;
        if let Some((_, closing)) = &mut self.closing
            && closing.is_addressed_by(&datagram)
        {
            return closing.handle(now, from, codepoint, datagram);
        }
        let link = self.link.as_ref().map(|link| link.id);
        if let (Some(link), Some(mut transport)) = (link, self.take_transport()) {
            let before = transport.received_bytes();
            let outcome = transport.handle(now, from, codepoint, datagram);
            self.counters.received_packet_bytes += transport.received_bytes() - before;
            let drained = self.drain_transport(&mut transport);
            if let Err(error) = outcome.and(drained) {
                self.leave_path(link, transport, CloseCode::Misbehaved);
                self.detach(CloseCode::Misbehaved);
                return Err(error);
            }
            self.return_transport(transport);
            self.check_broken_link();
            self.compare_ways();
        }
        Ok(())
    }

    /// Closes the datagram path of the present link; frames travel on the link.
    /// [`Self::poll_datagrams`] returns the packet that tells the peer.
    pub fn close_datagrams(&mut self, now: Time) {
        self.advance(now);
        let now = self.now;
        if let Some(mut transport) = self.take_transport() {
            transport.close(now, CloseCode::Finished, "");
            self.settle(transport);
        }
    }

    /// Has the peer told that the path of this link, which is gone, has ended. A path before it is
    /// forgotten: it ended long ago.
    pub(super) fn leave_path(
        &mut self,
        link: LinkId,
        mut transport: Box<DatagramTransport<Vec<CarriedFrame>>>,
        code: CloseCode,
    ) {
        transport.close(self.now, code, "");
        if transport.is_closing() {
            self.closing = Some((link, transport));
        }
    }

    /// A link that is gone, while there may be something to say about its datagram path.
    #[must_use]
    pub fn ending_link(&self) -> Option<LinkId> {
        self.closing.as_ref().map(|(link, _)| *link)
    }

    /// Returns `true` if a close of that path has to be sent now. Check it before the link's socket
    /// is closed.
    #[must_use]
    pub fn is_close_due(&self) -> bool {
        let closing = self.closing.as_ref();
        closing.is_some_and(|(_, closing)| closing.is_close_due())
    }

    /// Appends packets of this link's path for one destination to `out`, at most `packets_max` of one
    /// length (the last may be shorter), so that a system call can send them together. To be called
    /// until there is nothing; then [`Self::poll_timeout`] says when there may be more.
    pub fn poll_datagrams(
        &mut self,
        now: Time,
        link: LinkId,
        packets_max: usize,
        out: &mut BytesMut,
    ) -> Option<TransmitBatch> {
        self.advance(now);
        let now = self.now;
        if let Some((_, closing)) = self.closing.as_mut().filter(|(of, _)| *of == link) {
            let before = closing.sent_bytes();
            let transmit = closing.poll_transmit(now, packets_max, out, |_, _| None);
            self.counters.sent_packet_bytes += closing.sent_bytes() - before;
            return transmit;
        }
        self.link.as_ref().filter(|current| current.id == link)?;
        let mut transport = self.take_transport()?;
        let before = transport.sent_bytes();
        let transmit = transport.poll_transmit(now, packets_max, out, |room, payload| {
            let mut carried = Vec::new();
            self.poll_packet(now, room, payload, &mut carried);
            let worth = worth(&carried);
            (!carried.is_empty()).then_some(FilledPacket {
                content: carried,
                protection: worth,
            })
        });
        self.counters.sent_packet_bytes += transport.sent_bytes() - before;
        self.settle(transport);
        transmit
    }

    pub(super) fn handle_datagram_timeout(&mut self) {
        let now = self.now;
        if let Some((_, closing)) = &mut self.closing {
            closing.handle_timeout(now);
        }
        self.closing = (self.closing.take()).filter(|(_, closing)| closing.is_closing());
        if let Some(mut transport) = self.take_transport() {
            transport.handle_timeout(now);
            self.settle(transport);
        }
    }

    /// Returns the next timeout of the ended path, or of the present link's path.
    pub(super) fn datagram_timeout(&self) -> Option<Time> {
        let present = (self.link.as_ref()).and_then(|link| link.datagrams.transport());
        let closing = self.closing.as_ref().map(|(_, closing)| &**closing);
        let paths = [closing, present];
        let timeouts = paths.into_iter().flatten();
        timeouts.filter_map(DatagramTransport::poll_timeout).min()
    }

    /// Status of the present link's datagram path; `None` when there is none.
    #[must_use]
    pub fn datagram_status(&self) -> Option<TransportStatus> {
        let transport = self.link.as_ref()?.datagrams.transport()?;
        Some(transport.status(self.now))
    }

    /// The link whose datagram path has been started; `None` when there is none.
    #[must_use]
    pub fn datagram_link(&self) -> Option<LinkId> {
        let link = self.link.as_ref()?;
        link.datagrams.transport().map(|_| link.id)
    }

    /// Rate and round-trip time of the present link's datagram path, to be remembered for the next
    /// one.
    #[must_use]
    pub fn datagrams_remembered(&self) -> Option<RememberedPath> {
        self.link.as_ref()?.datagrams.transport()?.remembered()
    }

    /// Returns `true` if packets get through but the link was selected because it is faster.
    #[must_use]
    pub fn prefers_link(&self) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.datagrams.selection.is_on_link())
    }

    /// Checks whether packets or the link deliver more. Call it when the peer has confirmed data.
    pub(super) fn compare_ways(&mut self) {
        let now = self.now;
        if !self.config.compare_paths {
            return;
        }
        let round_trip = self.round_trip().unwrap_or(INITIAL_RTT);
        let Some(link) = self.link.as_mut().filter(|link| link.broken_at.is_none()) else {
            return;
        };
        let carries =
            |transport: &DatagramTransport<_>| transport.condition() == PathCondition::Carrying;
        let Some(transport) = link.datagrams.transport().filter(|one| carries(one)) else {
            return;
        };
        let is_shared = transport.is_shared();
        let is_searching = transport.remembered().is_none();
        let choice = &mut link.datagrams.selection;
        choice.watch_queue(now, is_shared);
        if is_searching {
            choice.searching(now);
        }
        match choice.judge(now, round_trip) {
            None | Some(SelectionAction::Try) => {
                let late = choice.late_pieces(now, round_trip);
                self.send_again(late);
            }
            Some(SelectionAction::Stay) => {
                let left = choice.take_pieces();
                self.send_again(left);
            }
            Some(SelectionAction::Leave) => {
                choice.take_pieces();
                self.packets_down(now);
                let reason = SuspendReason::SlowerThanLink;
                self.events
                    .push_back(SessionEvent::DatagramsDown { reason });
            }
            Some(SelectionAction::Return) => {
                self.packets_up(now);
                self.events.push_back(SessionEvent::DatagramsUp);
            }
        }
    }

    /// Sends data of a trial in packets that the link has not delivered.
    fn send_again(&mut self, pieces: Vec<TrialPiece>) {
        for piece in pieces {
            if let Some(flow) = self.flows.get_mut(&piece.flow) {
                flow.send.lost(piece.offset..piece.offset + piece.length);
            }
            self.activate(piece.flow);
        }
    }

    /// Handles the answer to a marker ping: all data sent on the link before it has arrived.
    pub(super) fn mark_answered(&mut self, stamp_us: u32) {
        let link = self.link.as_mut();
        let there = link.map(|link| link.datagrams.selection.answered(stamp_us));
        for TrialPiece {
            flow,
            offset,
            length,
        } in there.unwrap_or_default()
        {
            self.note_delivered(flow, offset..offset + length);
        }
    }

    /// Follows the state of a transport that handled no input of the peer, so that no protocol
    /// violation is possible.
    fn settle(&mut self, mut transport: Box<DatagramTransport<Vec<CarriedFrame>>>) {
        if self.drain_transport(&mut transport).is_ok() {
            self.return_transport(transport);
            self.check_broken_link();
        }
    }

    fn take_transport(&mut self) -> Option<Box<DatagramTransport<Vec<CarriedFrame>>>> {
        self.link.as_mut()?.datagrams.transport.take()
    }

    fn return_transport(&mut self, transport: Box<DatagramTransport<Vec<CarriedFrame>>>) {
        if let Some(link) = &mut self.link {
            link.datagrams.transport = Some(transport);
        }
    }

    fn drain_transport(
        &mut self,
        transport: &mut DatagramTransport<Vec<CarriedFrame>>,
    ) -> Result<(), SessionError> {
        let now = self.now;
        while let Some(frame) = transport.poll_frame() {
            self.handle_packet_frame(now, frame)?;
        }
        while let Some((fate, carried)) = transport.poll_fate() {
            for carried in &carried {
                match fate {
                    DeliveryOutcome::Arrived => self.packet_arrived(carried),
                    DeliveryOutcome::Lost => self.packet_lost(now, carried),
                }
            }
        }
        while let Some(change) = transport.poll_change() {
            match change {
                PathChange::Carrying => {
                    if let Some(link) = &mut self.link {
                        link.datagrams.selection.restart();
                    }
                    self.packets_up(now);
                    self.events.push_back(SessionEvent::DatagramsUp);
                }
                PathChange::Suspended(reason) => {
                    self.packets_down(now);
                    self.events
                        .push_back(SessionEvent::DatagramsDown { reason });
                }
            }
        }
        Ok(())
    }
}

/// Signs of life come again by themselves; of a quiet session they would be all that is repaired.
fn worth(carried: &[CarriedFrame]) -> RepairProtection {
    let is_sign =
        |carried: &CarriedFrame| matches!(carried, CarriedFrame::Ping | CarriedFrame::Pong);
    if carried.iter().all(is_sign) {
        RepairProtection::Nothing
    } else {
        RepairProtection::Repair
    }
}
