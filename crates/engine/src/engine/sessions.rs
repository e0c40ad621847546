//! The WAN side: links that open and close, and the events of the peers' sessions.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use tunnel::transport::{DatagramTransport, EcnMarking, PathKeys, PathSettings, SuspendReason};
use tunnel::wire::DatagramOffer;
use tunnel::{LinkEnd, LinkId, OpenAnswer, ResetReason};
use vocab::{FlowId, NodeId, Time};

use super::{Engine, PEER_FULL_FOR};
use crate::flow::{Flow, message};
use crate::io::{ArrivalMethod, ConnectFailure, EngineEvent, EngineOutput};
use crate::peer::PeerReachability;
use crate::why;

impl Engine {
    pub(super) fn link_up(
        &mut self,
        now: Time,
        link: LinkId,
        node: NodeId,
        dialed_by_us: bool,
        offer: Option<DatagramOffer>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            self.outputs.push_back(EngineOutput::CloseLink {
                link,
                reason: "the peer is no longer in the configuration".to_owned(),
            });
            return;
        };
        self.links.insert(link, node);
        if let Some(offer) = offer {
            self.offers.insert(link, offer);
        }
        peer.session.link_up(now, link, dialed_by_us);
        self.touched.insert(node);
    }

    pub(super) fn link_received(&mut self, now: Time, link: LinkId, bytes: &[u8]) {
        let Some(node) = self.links.get(&link).copied() else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        self.touched.insert(node);
        if let Err(error) = peer.session.handle(now, link, bytes) {
            self.misbehaved(now, node, error.to_string());
            self.outputs.push_back(EngineOutput::CloseLink {
                link,
                reason: error.to_string(),
            });
            self.link_down(now, link, LinkEnd::Lost);
        }
    }

    /// Counts a violation of the protocol's rules by this peer, and logs it unless the log has just
    /// had one of this peer's.
    pub(super) fn misbehaved(&mut self, now: Time, peer: NodeId, what: String) {
        let state = self.peers.get_mut(&peer);
        if let Some(untold) = state.and_then(|state| state.violations.add(now)) {
            self.event(EngineEvent::PeerMisbehaved {
                peer,
                what,
                unlogged: untold,
            });
        }
    }

    pub(super) fn link_down(&mut self, now: Time, link: LinkId, end: LinkEnd) {
        self.offers.remove(&link);
        let Some(node) = self.links.get(&link).copied() else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.remember_path();
        peer.session.link_down(now, link, end);
        self.touched.insert(node);
        // Perhaps because its process died, and with it what its accelerators held for ours.
        self.tell_silent(now, node, Duration::ZERO);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let outlives =
            peer.session.is_path_without_link() && peer.session.datagram_link() == Some(link);
        if !outlives {
            return self.link_lost(node, link);
        }
        // It is known in a round trip whether the peer lives; new flows pass by until then.
        if self.set_reach(node, PeerReachability::Silent) {
            self.event(EngineEvent::LinkBroken { peer: node });
        }
    }

    /// Reports that this peer's flows cannot rely on it until it is heard again.
    fn tell_silent(&mut self, now: Time, node: NodeId, since: Duration) {
        let of_peer = self.flows.iter().filter(|(_, flow)| flow.peer == node);
        for number in of_peer.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.turn(now, number, |flow, turn| flow.wan_silent(turn, since));
        }
    }

    /// Handles the removal of this node by the peer, which has forgotten this node's flows and
    /// closed its connections to servers. The peer reports this for each flow, or refuses this
    /// node's next link.
    pub(super) fn removed_by_peer(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let numbers: Vec<u64> = peer.flows.values().copied().collect();
        // It answers no packet any more: the end of the link is that of the session.
        peer.session.close_datagrams(now);
        peer.session.reset_all(now, ResetReason::PeerRemoved);
        self.touched.insert(node);
        for number in &numbers {
            self.fail_flow(now, *number, why::reset_text(ResetReason::PeerRemoved));
        }
        if !numbers.is_empty() {
            let flows = numbers.len();
            self.event(EngineEvent::RefusedByPeer { peer: node, flows });
        }
    }

    /// Handles the loss of the link, and of the packets beside it.
    fn link_lost(&mut self, node: NodeId, link: LinkId) {
        self.links.remove(&link);
        if let Some(peer) = self.peers.get_mut(&node)
            && peer.link == Some(link)
        {
            peer.link = None;
            peer.reach = PeerReachability::Down;
            self.event(EngineEvent::PeerDown { peer: node });
        }
    }

    pub(super) fn session_event(&mut self, now: Time, node: NodeId, event: tunnel::SessionEvent) {
        use tunnel::SessionEvent as Said;
        match event {
            Said::LinkAttached { link } => self.link_attached(now, node, link),
            Said::LinkReplaced { link } => {
                self.links.remove(&link);
                self.offers.remove(&link);
                self.outputs.push_back(EngineOutput::CloseLink {
                    link,
                    reason: "a newer link replaced this link".to_owned(),
                });
            }
            Said::LinkLost { link } => self.link_lost(node, link),
            Said::Hello { blob } => self.hello(node, &blob),
            Said::Opened { flow, open } => self.opened(now, node, flow, open),
            Said::Answered { flow, answer } => self.answered(now, node, flow, answer),
            Said::Readable { flow } | Said::Writable { flow } => {
                self.turn_of(now, node, flow, Flow::pump);
            }
            Said::Finished { flow } => self.turn_of(now, node, flow, Flow::wan_finished),
            Said::Consumed { flow, offset } => {
                self.turn_of(now, node, flow, |flow, turn| flow.consumed(turn, offset));
            }
            Said::Message {
                kind: message::NODE_IS_FULL,
                ..
            } => self.peer_is_full(now, node),
            Said::Message { flow, kind, bytes } => {
                self.turn_of(now, node, flow, |flow, turn| {
                    flow.message(turn, kind, bytes)
                });
            }
            // What the host sent before is delivered first. All other reasons end the flow at once.
            Said::Reset {
                flow,
                reason: ResetReason::HostReset,
            } => {
                if let Some(number) = self.flow_number(node, flow) {
                    self.admit(now, number);
                    self.turn(now, number, Flow::wan_reset);
                }
            }
            Said::Reset {
                reason: ResetReason::PeerRemoved,
                ..
            } => self.removed_by_peer(now, node),
            Said::Reset { flow, reason } => {
                if let Some(number) = self.flow_number(node, flow) {
                    self.fail_flow(now, number, why::reset_text(reason));
                }
            }
            Said::Closed { flow } => self.turn_of(now, node, flow, |flow, _| {
                flow.session_closed();
                Ok(())
            }),
            Said::Silent => {
                let since = self.config.tunnel.silent_after;
                self.tell_silent(now, node, since);
                // Without a link its loss was told already.
                if self.set_reach(node, PeerReachability::Silent) {
                    self.event(EngineEvent::PeerSilent { peer: node });
                }
                self.end_unanswered_flows(now, node);
            }
            Said::PeerLost { flows } => {
                if flows > 0 {
                    self.event(EngineEvent::PeerLost { peer: node, flows });
                }
            }
            Said::Heard => {
                self.set_reach(node, PeerReachability::Up);
                self.event(EngineEvent::PeerHeard { peer: node });
            }
            Said::PeerRestarted => self.peer_restarted(node),
            // A peer that is going away takes no new flows; its open ones may end.
            Said::GoAway => {
                self.set_reach(node, PeerReachability::Silent);
            }
            Said::Drained => {}
            Said::DatagramsAgreed { link, agreement } => {
                let agreement = Box::new(agreement);
                self.outputs
                    .push_back(EngineOutput::StartDatagrams { link, agreement });
            }
            Said::DatagramsUp => self.event(EngineEvent::DatagramsUp { peer: node }),
            // This node stops: that is no fallback.
            Said::DatagramsDown {
                reason: SuspendReason::ClosedHere,
            } => {}
            Said::DatagramsDown { reason } => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.remember_path();
                    peer.fallbacks += 1;
                }
                self.event(EngineEvent::DatagramsDown { peer: node, reason });
            }
        }
    }

    pub(super) fn link_attached(&mut self, now: Time, node: NodeId, link: LinkId) {
        let offer = self.offers.remove(&link);
        if let Some(peer) = self.peers.get_mut(&node) {
            // The session leaves the old link's path behind without another word.
            peer.link = Some(link);
            peer.reach = PeerReachability::Up;
            peer.is_offered = offer.is_some();
            if let Some(offer) = offer {
                peer.session.offer_datagrams(now, link, offer);
            }
        }
        self.event(EngineEvent::PeerUp { peer: node, link });
    }

    pub(super) fn datagrams_ready(
        &mut self,
        now: Time,
        link: LinkId,
        keys: PathKeys,
        to: Option<SocketAddr>,
        datagram_max: u16,
    ) {
        let Some(peer) = self
            .links
            .get(&link)
            .and_then(|node| self.peers.get_mut(node))
        else {
            return;
        };
        let remembered = peer.remembered;
        let settings = self.config.datagrams;
        peer.session.start_datagrams(now, link, |now, random| {
            let settings = PathSettings {
                remembered,
                datagram_max,
                seed: random.next_u64(),
                ..settings
            };
            DatagramTransport::new(now, keys, to, settings)
        });
        self.touched.insert(peer.config.node);
    }

    /// Packets of one length, but the last, which may be shorter.
    pub(super) fn datagrams(
        &mut self,
        now: Time,
        link: LinkId,
        from: SocketAddr,
        codepoint: EcnMarking,
        segment: usize,
        mut bytes: BytesMut,
    ) {
        let owner = self.owner(link);
        let Some(peer) = owner.and_then(|node| self.peers.get_mut(&node)) else {
            return;
        };
        let paths = [peer.session.ending_link(), peer.session.datagram_link()];
        if !paths.contains(&Some(link)) {
            return;
        }
        self.touched.insert(peer.config.node);
        while !bytes.is_empty() {
            let datagram = bytes.split_to(segment.clamp(1, bytes.len()));
            let handled = peer.session.handle_datagram(now, from, codepoint, datagram);
            if let Err(error) = handled {
                let node = peer.config.node;
                self.misbehaved(now, node, error.to_string());
                self.outputs.push_back(EngineOutput::CloseLink {
                    link,
                    reason: error.to_string(),
                });
                return self.link_down(now, link, LinkEnd::Lost);
            }
        }
    }

    /// Records the generation of the peer's dictionary. Knowledge of another generation is void.
    pub(super) fn hello(&mut self, node: NodeId, blob: &[u8]) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        let Ok(generation) = <[u8; 16]>::try_from(blob) else {
            return;
        };
        self.dictionary.peer_generation(peer.slot, generation);
    }

    pub(super) fn answered(&mut self, now: Time, node: NodeId, id: FlowId, answer: OpenAnswer) {
        let Some(number) = self.flow_number(node, id) else {
            return;
        };
        match answer {
            OpenAnswer::Connected => {
                let Some(flow) = self.flows.get_mut(&number) else {
                    return;
                };
                flow.answered();
                let server = flow.server;
                let hosts = (flow.client.ip(), server.ip());
                if flow.keep_client_address && self.asymmetric_routes.succeeded(hosts.0, hosts.1) {
                    self.put_out_bypassed_routes();
                }
                self.server_reached(now, server);
                self.admit(now, number);
                // A reset of the host beside this node may have waited for that.
                self.turn(now, number, Flow::pump);
                let flow = self.flows.get(&number);
                if flow.is_some_and(|flow| flow.via == Some(ArrivalMethod::Transparent))
                    && let Some(peer) = self.peers.get_mut(&node)
                {
                    peer.filter.passed();
                }
            }
            // No server is to blame, and all others would fail alike.
            OpenAnswer::Failed(ConnectFailure::Filtered) => {
                if let Some(peer) = self.peers.get_mut(&node)
                    && peer.filter.dropped(now)
                {
                    self.event(EngineEvent::PeerFiltered { peer: node });
                }
                self.server_failed(now, number, ConnectFailure::Filtered);
            }
            // The server is not to blame: the peer is full or stopping, and what would go to it
            // passes by until it has had time to empty.
            OpenAnswer::Failed(ConnectFailure::Exhausted) => {
                self.peer_is_full(now, node);
                self.end_failed(now, number, ConnectFailure::Exhausted);
            }
            OpenAnswer::Failed(failure @ ConnectFailure::AnswersElsewhere) => {
                self.route_is_asymmetric(now, node, number);
                self.server_failed(now, number, failure);
            }
            OpenAnswer::Failed(failure) => self.server_failed(now, number, failure),
        }
    }

    /// The peer gets no new flows for a while.
    fn peer_is_full(&mut self, now: Time, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.full_until = Some(now + PEER_FULL_FOR);
        }
    }

    /// Reports the established server connection to a waiting client.
    fn admit(&mut self, now: Time, number: u64) {
        let flow = self.flows.get(&number).filter(|flow| flow.asks());
        if let Some(connection) = flow.map(|flow| flow.connection()) {
            self.outputs.push_back(EngineOutput::Admit { connection });
            self.turn(now, number, Flow::connected);
        }
    }

    pub(super) fn disk(&mut self, now: Time, completion: reduce::DiskCompletion) {
        self.dictionary.handle_disk(completion);
        let statistics = self.dictionary.statistics();
        if self.dictionary.is_ready() && !self.rejected_told {
            self.rejected_told = true;
            if statistics.rejected_segments > 0 {
                self.event(EngineEvent::DictionaryRejected {
                    segments: statistics.rejected_segments,
                    outdated: statistics.outdated_segments,
                    sealed: statistics.sealed_segments,
                });
            }
        }
        let faults_total = statistics.disk_faults;
        if faults_total >= self.next_fault_told {
            self.next_fault_told = 2 * faults_total;
            self.event(EngineEvent::DictionaryFault { faults_total });
        }
        let waiting: Vec<u64> = self
            .flows
            .values()
            .filter(|flow| flow.waits_for_disk)
            .map(|flow| flow.number)
            .collect();
        for number in waiting {
            self.turn(now, number, Flow::pump);
        }
    }
}
