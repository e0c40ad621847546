//! Chooses the peer for a client's connection, decides when the flow is opened there, and how the
//! connection continues without it.
//!
//! Most flows are opened when the client connects. Where the accelerator's settings let its near
//! half decide ([`accelerate::FlowOpening::ByNearHalf`]), the flow begins at this node alone and is
//! opened when its near half requests it. The checks of an open are done at that time. An
//! unreachable peer refuses the open and not the flow, which may still be answered here.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use accelerate::{FlowOpening, WanEnd, passthrough, registry};
use tunnel::{OpenError, OpenRequest, ResetReason};
use vocab::{FlowId, NodeId, Time};

use super::Engine;
use super::connections::PendingClient;
use crate::direct::DirectReason;
use crate::flow::{ClientState, Flow, FlowParameters, FlowRegistration, UnansweredBytes};
use crate::io::{ArrivalMethod, EngineEvent};
use crate::peer::{PeerReachability, PeerState};
use crate::shares::ConnectionKind;
use crate::why;

impl Engine {
    /// The peer with the longest prefix around the address, if a flow may go to it now.
    pub(super) fn choose_peer(
        &self,
        client: IpAddr,
        server: IpAddr,
        via: ArrivalMethod,
    ) -> Result<NodeId, DirectReason> {
        let peer = self.serving_peer(server)?;
        self.takes_open(peer, via)?;
        self.takes_one_more(client)?;
        self.has_share(peer)?;
        Ok(peer.config.node)
    }

    fn serving_peer(&self, server: IpAddr) -> Result<&PeerState, DirectReason> {
        let serving = self.config.peer_for(server);
        let peer = serving.and_then(|node| self.peers.get(&node));
        peer.ok_or(DirectReason::NoPeerServes)
    }

    /// Checks that a flow can be opened at the peer now.
    fn takes_open(&self, peer: &PeerState, via: ArrivalMethod) -> Result<(), DirectReason> {
        if self.stop_at.is_some() {
            return Err(DirectReason::Stopping);
        }
        if !peer.takes_flows() {
            return Err(DirectReason::PeerNotUp);
        }
        // Who comes by a proxy is not spoken for with its own address.
        if via == ArrivalMethod::Transparent && !peer.takes_intercepted() {
            return Err(DirectReason::PeerFiltered);
        }
        Ok(())
    }

    /// Checks that this node may have one more flow of this client.
    fn takes_one_more(&self, client: IpAddr) -> Result<(), DirectReason> {
        let (limits, open) = (&self.config.limits, self.open_in_all());
        if open >= limits.flows {
            return Err(DirectReason::FlowLimit);
        }
        if self.memory_limit_reached {
            return Err(DirectReason::MemoryLimit);
        }
        if self
            .sources
            .is_at_share(limits, open, client, ConnectionKind::Flow)
        {
            return Err(DirectReason::SourceShare);
        }
        Ok(())
    }

    fn has_share(&self, peer: &PeerState) -> Result<(), DirectReason> {
        match peer.is_at_share || peer.open() >= self.share_of(peer) {
            true => Err(DirectReason::PeerShare),
            false => Ok(()),
        }
    }

    /// The peer of a flow that begins although nothing can be opened there now, because its near half may
    /// answer the client without.
    pub(super) fn peer_of_unopened(
        &self,
        caller: PendingClient,
        reason: DirectReason,
    ) -> Option<NodeId> {
        match reason {
            DirectReason::PeerNotUp | DirectReason::PeerFiltered | DirectReason::PeerShare => {}
            DirectReason::NoPeerServes
            | DirectReason::PeerSilent
            | DirectReason::FlowLimit
            | DirectReason::MemoryLimit
            | DirectReason::SourceShare
            | DirectReason::Stopping => return None,
        }
        let is_late = self.opening_of(caller, self.accelerator_of_port(caller.server));
        let may_begin =
            is_late == FlowOpening::ByNearHalf && self.takes_one_more(caller.client.ip()).is_ok();
        let peer = self.serving_peer(caller.server.ip()).ok();
        peer.filter(|_| may_begin).map(|peer| peer.config.node)
    }

    /// The accelerator for flows to this server: that of its port, or one that has learnt the
    /// address.
    fn accelerator_for(
        &mut self,
        now: Time,
        server: SocketAddr,
    ) -> &'static registry::AcceleratorEntry {
        let by_port = self.accelerator_of_port(server);
        let is_free =
            by_port.number == registry::PASSTHROUGH && !self.config.policy.carry_only(server);
        let learnt = is_free.then(|| self.accelerator_states.serving(now, server));
        learnt.flatten().unwrap_or(by_port)
    }

    fn accelerator_of_port(&self, server: SocketAddr) -> &'static registry::AcceleratorEntry {
        match self.config.policy.carry_only(server) {
            true => &passthrough::ENTRY,
            false => self.config.policy.accelerators.for_port(server.port()),
        }
    }

    /// Returns which side opens the flow, and when. A client that is not accepted yet waits for its
    /// server.
    fn opening_of(
        &self,
        caller: PendingClient,
        accelerator: &registry::AcceleratorEntry,
    ) -> FlowOpening {
        match caller.state {
            ClientState::Accepted => self.config.policy.accelerators.opening_of(accelerator),
            ClientState::Asks => FlowOpening::AtOnce,
        }
    }

    pub(super) fn open_flow(&mut self, now: Time, node: NodeId, caller: PendingClient) {
        let PendingClient {
            connection,
            client,
            server,
            via,
            state,
        } = caller;
        let carry_only = self.config.policy.carry_only(server);
        let accelerator = self.accelerator_for(now, server);
        let open = OpenRequest {
            client,
            server,
            accelerator: accelerator.number,
            keep_client_address: via == ArrivalMethod::Transparent,
            // What is only carried is not reduced by the peer either.
            may_store: self.config.policy.may_store(server) && !carry_only,
            dscp: 0,
        };
        let registration = match self.opening_of(caller, accelerator) {
            FlowOpening::ByNearHalf => FlowRegistration::Unopened(Box::new(open.clone())),
            FlowOpening::AtOnce => {
                let peer = self
                    .peers
                    .get_mut(&node)
                    .expect("choose_peer returns known peers");
                match peer.session.open(now, open.clone()) {
                    Ok(id) => FlowRegistration::Opened(id),
                    Err(_) => return self.open_direct(now, caller, 0, DirectReason::FlowLimit),
                }
            }
        };
        let registered = (node, registration);
        let birth = self.birth(
            now,
            registered,
            WanEnd::Near,
            connection,
            accelerator,
            &open,
        );
        let birth = FlowParameters {
            via: Some(via),
            client_state: state,
            ..birth
        };
        let number = birth.number;
        self.start_flow(now, birth);
        if self
            .peers
            .get(&node)
            .is_some_and(|peer| peer.reach != PeerReachability::Up)
        {
            self.turn(now, number, |flow, turn| {
                flow.wan_silent(turn, Duration::ZERO)
            });
        }
    }

    /// Opens a flow whose near half requests it, or lets the flow continue without the peer.
    pub(super) fn open_late(&mut self, now: Time, number: u64) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let (node, via) = (flow.peer, flow.via.unwrap_or(ArrivalMethod::Transparent));
        let Some(open) = flow.unopened().cloned() else {
            return;
        };
        match self.register(now, node, via, open) {
            Ok(id) => {
                if let Some(flow) = self.flows.get_mut(&number) {
                    flow.opened(id);
                }
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.flows.insert(id, number);
                }
                self.turn(now, number, Flow::pump);
            }
            Err(reason) => {
                if self.go_on_directly(now, number, reason) == DirectTransition::Not {
                    self.fail_flow(now, number, reason.text());
                }
            }
        }
    }

    /// Opens a flow that this node has already.
    fn register(
        &mut self,
        now: Time,
        node: NodeId,
        via: ArrivalMethod,
        open: OpenRequest,
    ) -> Result<FlowId, DirectReason> {
        let peer = self.peers.get(&node).ok_or(DirectReason::PeerNotUp)?;
        self.takes_open(peer, via)?;
        self.has_share(peer)?;
        if self.memory_limit_reached {
            return Err(DirectReason::MemoryLimit);
        }
        let peer = self.peers.get_mut(&node).ok_or(DirectReason::PeerNotUp)?;
        self.touched.insert(node);
        peer.session.open(now, open).map_err(|error| match error {
            OpenError::NotConnected | OpenError::PeerLeaving => DirectReason::PeerNotUp,
            OpenError::Leaving => DirectReason::Stopping,
            OpenError::TooManyFlows => DirectReason::FlowLimit,
        })
    }

    /// Ends the flows that a silent peer has not answered: their clients would wait for a peer that
    /// may never come back. A flow whose open never left this node continues directly, with all
    /// bytes of its client.
    ///
    /// An open that was handed to a link or put in a packet may have been executed, and the
    /// client's bytes may have reached the server: a stopped process, or a broken path, may have
    /// taken them a moment before, and may still deliver them. Sending them again by another way
    /// could place an order twice. Such a flow is reset, and its client decides whether to try
    /// again; by then its connections go directly.
    pub(super) fn end_unanswered_flows(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        let is_unanswered = |number: &u64| {
            let flow = self.flows.get(number);
            flow.is_some_and(|flow| flow.half == WanEnd::Near && !flow.is_answered())
        };
        let unanswered: Vec<u64> = peer.flows.values().copied().filter(is_unanswered).collect();
        let (mut direct, mut reset) = (0, 0);
        for number in unanswered {
            match self.go_on_directly(now, number, DirectReason::PeerSilent) {
                DirectTransition::Directly => direct += 1,
                DirectTransition::Reset => reset += 1,
                DirectTransition::Not => {
                    reset += 1;
                    self.fail_flow(now, number, why::UNANSWERED);
                }
            }
        }
        if direct + reset > 0 {
            self.event(EngineEvent::UnansweredFlowsEnded {
                peer: node,
                direct,
                reset,
            });
        }
    }

    /// Ends a flow at the peer and moves its client to a direct connection with its unanswered
    /// bytes, if no other host may have received them. Otherwise the flow stays, and must be
    /// failed.
    fn go_on_directly(&mut self, now: Time, number: u64, reason: DirectReason) -> DirectTransition {
        let Some(flow) = self.flows.get_mut(&number) else {
            return DirectTransition::Not;
        };
        let Some(peer) = self.peers.get_mut(&flow.peer) else {
            return DirectTransition::Not;
        };
        let unanswered = flow.take_unanswered(&peer.session);
        if let Some(id) = flow.id() {
            peer.session.reset(id, ResetReason::PeerLost);
        }
        self.touched.insert(flow.peer);
        let (Some(unanswered), Some(via)) = (unanswered, flow.via) else {
            return DirectTransition::Not;
        };
        let caller = PendingClient {
            connection: flow.connection(),
            client: flow.client,
            server: flow.server,
            via,
            state: match flow.asks() {
                true => ClientState::Asks,
                false => ClientState::Accepted,
            },
        };
        let queued = flow.queued();
        let state = format!("continues as a direct connection: {}", reason.text());
        self.forget_flow(now, number, &state);
        self.open_direct(now, caller, queued, reason);
        let gone_on = match self.connections.contains_key(&caller.connection) {
            true => DirectTransition::Directly,
            // At a limit of direct connections.
            false => DirectTransition::Reset,
        };
        let UnansweredBytes { bytes, is_finished } = unanswered;
        for bytes in bytes {
            self.received(now, caller.connection, bytes);
        }
        if is_finished {
            self.finished(now, caller.connection);
        }
        gone_on
    }
}

/// The result of moving a flow to a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectTransition {
    Directly,
    /// It was reset instead.
    Reset,
    /// It is still there.
    Not,
}
