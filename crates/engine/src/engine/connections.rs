//! The LAN side: accepts and opens connections, and chooses the peer or the direct way for each.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use accelerate::shared::HalfContext;
use accelerate::{WanEnd, registry};
use bytes::Bytes;
use reduce::{DecoderConfig, EncoderConfig, FlowDecoder, FlowEncoder, StoragePolicy};
use tunnel::{OpenAnswer, OpenRequest};
use vocab::{FlowId, NodeId, SeededRandom, Time};

use super::{Engine, PASSING_MAX, REFUSALS_TOLD_EVERY, UNREACHABLE_AFTER};
use crate::bounds::{AddressBounds, OpenRefusal, SourceAddress};
use crate::config::AcceptMode;
use crate::direct::{DirectConnection, DirectReason};
use crate::flow::{
    ClientState, ConnectionEvent, Flow, FlowParameters, FlowRegistration, FlowTurn, message,
};
use crate::io::{ArrivalMethod, ConnectFailure, ConnectionId, EngineEvent, EngineOutput};
use crate::peer::PeerState;
use crate::shares::{self, ConnectionKind, DIRECT_BEYOND_LIMIT, SOURCE_PASSES_FOR, source_of};
use crate::why;

/// A client's connection, before it is known which way it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingClient {
    pub(crate) connection: ConnectionId,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: ArrivalMethod,
    pub(crate) state: ClientState,
}

impl Engine {
    pub(super) fn accepted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
    ) {
        let caller = PendingClient {
            connection,
            client,
            server,
            via,
            state: ClientState::Accepted,
        };
        self.connect_caller(now, caller);
    }

    /// Starts a client that is not accepted yet: it gets the outcome, unless it may be accepted at
    /// once.
    pub(super) fn asked(
        &mut self,
        now: Time,
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
    ) {
        let at_once = match self.config.policy.accept_mode(client.ip(), server) {
            AcceptMode::AtOnce => true,
            AcceptMode::AfterServer => false,
            AcceptMode::Learned => self.reached_servers.contains(now, server),
        };
        let state = match at_once {
            true => ClientState::Accepted,
            false => ClientState::Asks,
        };
        if at_once {
            self.outputs.push_back(EngineOutput::Admit { connection });
        }
        let caller = PendingClient {
            connection,
            client,
            server,
            via,
            state,
        };
        self.connect_caller(now, caller);
    }

    fn connect_caller(&mut self, now: Time, caller: PendingClient) {
        let client = caller.client.ip();
        match self.choose_peer(client, caller.server.ip(), caller.via) {
            Ok(node) => self.open_flow(now, node, caller),
            Err(reason) => {
                if let Some(node) = self.peer_of_unopened(caller, reason) {
                    return self.open_flow(now, node, caller);
                }
                if reason == DirectReason::SourceShare {
                    self.source_is_at_share(now, client, caller.via);
                }
                self.open_direct(now, caller, 0, reason);
            }
        }
    }

    /// Has the next connections of a client pass by.
    fn source_is_at_share(&mut self, now: Time, client: IpAddr, via: ArrivalMethod) {
        self.sources.at_share_total += 1;
        let clients = shares::network_of(source_of(client));
        self.passing.retain(|_, until| now < *until);
        if self.passing.len() >= PASSING_MAX || self.passing.contains_key(&clients) {
            return;
        }
        let lasting = SOURCE_PASSES_FOR;
        // A little longer than the kernel keeps it, so that it is never asked for twice.
        self.passing
            .insert(clients, now + lasting + Duration::from_secs(1));
        let open = self.sources.open_of(client);
        self.event(EngineEvent::SourceAtShare { clients, open });
        if via == ArrivalMethod::Transparent {
            self.outputs
                .push_back(EngineOutput::PassBy { clients, lasting });
        }
    }

    /// Flows, direct connections, and the further connections of flows to their servers.
    pub(super) fn open_in_all(&self) -> usize {
        self.flows.len() + self.directs.len() + self.further_connections
    }

    /// The number of flows that the peer may have now. A single peer may have as many as the node.
    pub(super) fn share_of(&self, peer: &PeerState) -> usize {
        let limits = &self.config.limits;
        let percent = match self.peers.len() {
            0 | 1 => 100,
            _ => usize::from(limits.peer_flows_percent),
        };
        let others = self.open_in_all().saturating_sub(peer.open());
        shares::share(percent, limits.flows, others)
    }

    /// Handles a flow that a peer opened towards a server beside this node.
    pub(super) fn opened(&mut self, now: Time, node: NodeId, id: FlowId, open: OpenRequest) {
        let accelerators = &self.config.policy.accelerators;
        let failure = match accelerators.by_number(open.accelerator) {
            _ if self.is_full() || self.is_peer_full(node) => ConnectFailure::Exhausted,
            Some(accelerator) => {
                self.open_far(now, (node, id), accelerator, &open);
                return self.tell_if_full(node, id);
            }
            None => ConnectFailure::Other,
        };
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.session.answer(id, OpenAnswer::Failed(failure));
        }
    }

    /// Tells the peer that opened this flow to open no more for a while, if there are many already.
    fn tell_if_full(&mut self, node: NodeId, id: FlowId) {
        if self.open_in_all() < self.config.limits.comfortable_flows {
            return;
        }
        if let Some(peer) = self.peers.get_mut(&node)
            && peer.session.has_message_room(id)
        {
            peer.session
                .send_message(id, message::NODE_IS_FULL, Bytes::new());
            self.touched.insert(node);
        }
    }

    /// Returns true if the node accepts no more flows from its peers now.
    fn is_full(&self) -> bool {
        self.stop_at.is_some()
            || self.open_in_all() >= self.config.limits.flows
            || self.memory_limit_reached
    }

    /// Returns true if the peer has its share of the flows. The engine then refuses and counts
    /// further opens.
    fn is_peer_full(&mut self, node: NodeId) -> bool {
        let is_full = self
            .peers
            .get(&node)
            .is_some_and(|peer| peer.open() >= self.share_of(peer));
        if is_full && let Some(peer) = self.peers.get_mut(&node) {
            peer.refused_at_share += 1;
        }
        is_full
    }

    /// Begins a peer's flow. One that the policy forbids is begun as well and fails later, as if its
    /// server were out of reach.
    fn open_far(
        &mut self,
        now: Time,
        (node, id): (NodeId, FlowId),
        accelerator: &'static registry::AcceleratorEntry,
        open: &OpenRequest,
    ) {
        let connection = self.next_opened();
        let registered = (node, FlowRegistration::Opened(id));
        let birth = self.birth(now, registered, WanEnd::Far, connection, accelerator, open);
        let birth = match self.check_open(node, open) {
            Ok(source) => FlowParameters {
                keep_client_address: source == SourceAddress::Client,
                ..birth
            },
            Err(refusal) => {
                self.count_refusal(now, node, open, refusal);
                FlowParameters {
                    refusal: Some(refusal),
                    ..birth
                }
            }
        };
        if birth.refusal.is_some() {
            self.unreachable
                .insert((now + UNREACHABLE_AFTER, connection));
        }
        self.start_flow(now, birth);
    }

    fn check_open(&self, node: NodeId, open: &OpenRequest) -> Result<SourceAddress, OpenRefusal> {
        let OpenRequest { client, server, .. } = open;
        self.bounds.check_server(&self.config, server.ip())?;
        let peer = &self.peers[&node].config;
        let keep = open.keep_client_address;
        let source = self
            .bounds
            .check_client(&self.config, peer, client.ip(), keep)?;
        AddressBounds::check_rules(&self.config, client.ip(), source, *server)?;
        Ok(source)
    }

    fn count_refusal(&mut self, now: Time, node: NodeId, open: &OpenRequest, refusal: OpenRefusal) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.refused_by_policy += 1;
        if peer.refusals_tellable_at.is_some_and(|at| now < at) {
            return;
        }
        let opens = peer.refused_by_policy - peer.refusals_told;
        peer.refusals_told = peer.refused_by_policy;
        peer.refusals_tellable_at = Some(now + REFUSALS_TOLD_EVERY);
        self.event(EngineEvent::OpensRefused {
            peer: node,
            opens,
            reason: refusal.text(),
            client: open.client,
            server: open.server,
        });
    }

    /// Tells the peer that its flow's server cannot be connected to, and forgets the flow.
    pub(super) fn fail_connect(
        &mut self,
        now: Time,
        number: u64,
        failure: ConnectFailure,
        reason: &str,
    ) {
        if let Some(flow) = self.flows.get(&number)
            && let Some(peer) = self.peers.get_mut(&flow.peer)
        {
            if let Some(id) = flow.id() {
                peer.session.answer(id, OpenAnswer::Failed(failure));
            }
            self.touched.insert(flow.peer);
        }
        self.fail_flow(now, number, reason);
    }

    pub(super) fn birth(
        &mut self,
        now: Time,
        (node, registration): (NodeId, FlowRegistration),
        half: WanEnd,
        connection: ConnectionId,
        accelerator: &'static registry::AcceleratorEntry,
        open: &OpenRequest,
    ) -> FlowParameters {
        let slot = self.peers[&node].slot;
        let carry_only = self.config.policy.carry_only(open.server);
        // What either node's policy keeps out of the dictionary stays out of both.
        let may_store = open.may_store && self.config.policy.may_store(open.server);
        let encoder = EncoderConfig {
            storing: match may_store && !carry_only {
                true => StoragePolicy::Remember,
                false => StoragePolicy::Never,
            },
            ..EncoderConfig::default()
        };
        let accelerators = &self.config.policy.accelerators;
        let unserved = accelerators.reason_unserved(open.server.port());
        let number = self.next_number();
        let context = HalfContext {
            flow: number,
            client: open.client,
            server: open.server,
            delegated: self.config.policy.accelerators.delegated.clone(),
            path_bytes: self.peers.get(&node).map_or(0, PeerState::path_bytes),
            random: SeededRandom::from_seed(self.flow_random.next_u64()),
        };
        FlowParameters {
            number,
            peer: node,
            registration,
            half,
            client: open.client,
            server: open.server,
            via: None,
            client_state: ClientState::Accepted,
            keep_client_address: open.keep_client_address,
            refusal: None,
            connection,
            accelerator,
            unserved,
            machine: self.accelerator_states.build(accelerator, half, context),
            encoder: FlowEncoder::new(encoder, slot),
            decoder: FlowDecoder::new(DecoderConfig::default(), slot),
            carry_only,
            may_store,
            passthrough: self
                .passthrough_pairs
                .reason_for(now, open.client.ip(), open.server)
                .filter(|cause| cause.reason.accelerator == accelerator),
        }
    }

    pub(super) fn start_flow(&mut self, now: Time, birth: FlowParameters) {
        let (number, node, connection) = (birth.number, birth.peer, birth.connection);
        let id = birth.registration.id();
        let budget = self.budget();
        let connections_left = self.connections_left(node);
        let peer = self
            .peers
            .get_mut(&node)
            .expect("flows are born of known peers");
        let mut turn = FlowTurn {
            now,
            session: &mut peer.session,
            dictionary: &mut self.dictionary,
            claims: &mut self.claims,
            kept: &mut self.kept_contents,
            outputs: &mut self.outputs,
            budget,
            next_opened: &mut self.next_opened,
            connections_left,
        };
        self.touched.insert(node);
        match Flow::start(birth, &mut turn) {
            Ok(mut flow) => {
                self.totals.flows += 1;
                if flow.via.is_some() {
                    self.sources.opened(flow.client.ip(), ConnectionKind::Flow);
                }
                if let Some(id) = id {
                    peer.flows.insert(id, number);
                }
                self.connections.insert(connection, number);
                let wants_server = flow.take_wish_for_server();
                let wants_opening = flow.take_wish_for_opening();
                self.flows.insert(number, Box::new(flow));
                self.account(number);
                if wants_server {
                    self.open_server(now, number);
                }
                self.follow_further_connections(now, number);
                if wants_opening {
                    self.open_late(now, number);
                }
            }
            Err(broken) => {
                if let Some(id) = id {
                    peer.session.reset(id, broken.reset);
                }
                self.outputs.push_back(EngineOutput::Reset { connection });
                if broken.is_peers_fault() {
                    self.misbehaved(now, node, broken.text);
                }
            }
        }
    }

    /// Begins a direct connection; `queued` bytes are already on their way to its client.
    pub(super) fn open_direct(
        &mut self,
        now: Time,
        caller: PendingClient,
        queued: usize,
        reason: DirectReason,
    ) {
        let (accepted, client) = (caller.connection, caller.client.ip());
        let (limits, open) = (&self.config.limits, self.open_in_all());
        let is_too_many = open >= limits.flows + DIRECT_BEYOND_LIMIT
            || self
                .sources
                .is_at_share(limits, open, client, ConnectionKind::Direct);
        if is_too_many || self.stopped {
            self.outputs.push_back(EngineOutput::Reset {
                connection: accepted,
            });
            return;
        }
        let number = self.next_number();
        let opened = self.next_opened();
        let direct = DirectConnection::open(
            now,
            number,
            caller,
            queued,
            opened,
            reason,
            &mut self.outputs,
        );
        self.totals.directs += 1;
        self.sources.opened(client, ConnectionKind::Direct);
        for connection in direct.connections() {
            self.connections.insert(connection, number);
        }
        self.directs.insert(number, direct);
    }

    pub(super) fn received(&mut self, now: Time, connection: ConnectionId, bytes: Bytes) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if self.directs.contains_key(&number) {
            self.turn_direct(now, number, |direct, outputs| {
                direct.received(now, connection, bytes, outputs);
            });
            return;
        }
        self.turn(now, number, |flow, turn| {
            match flow.connection() == connection {
                true => flow.received(turn, bytes),
                false => flow.further_happened(turn, connection, ConnectionEvent::Received(bytes)),
            }
        });
    }

    pub(super) fn finished(&mut self, now: Time, connection: ConnectionId) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if self.directs.contains_key(&number) {
            self.turn_direct(now, number, |direct, outputs| {
                direct.finished(connection, outputs);
            });
            return;
        }
        self.turn(now, number, |flow, turn| {
            match flow.connection() == connection {
                true => flow.lan_finished(turn),
                false => flow.further_happened(turn, connection, ConnectionEvent::Finished),
            }
        });
    }

    pub(super) fn written(&mut self, now: Time, connection: ConnectionId, bytes: usize) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if self.directs.contains_key(&number) {
            self.turn_direct(now, number, |direct, outputs| {
                direct.written(now, connection, bytes, outputs);
            });
            return;
        }
        self.turn(now, number, |flow, turn| {
            match flow.connection() == connection {
                true => flow.written(turn, bytes),
                false => flow.further_happened(turn, connection, ConnectionEvent::Written(bytes)),
            }
        });
    }

    pub(super) fn connection_failed(&mut self, now: Time, connection: ConnectionId) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if self.directs.contains_key(&number) {
            self.turn_direct(now, number, |direct, outputs| {
                direct.connection_failed(now, connection, outputs);
            });
            return;
        }
        self.turn(now, number, |flow, turn| {
            match flow.connection() == connection {
                true => flow.lan_failed(turn),
                false => flow.further_happened(turn, connection, ConnectionEvent::Failing),
            }
        });
    }

    pub(super) fn aborted(&mut self, now: Time, connection: ConnectionId) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if self.directs.contains_key(&number) {
            self.turn_direct(now, number, |direct, outputs| {
                direct.aborted(now, connection, outputs);
            });
            return;
        }
        self.turn(now, number, |flow, turn| {
            match flow.connection() == connection {
                true => flow.lan_aborted(turn),
                false => flow.further_happened(turn, connection, ConnectionEvent::Gone),
            }
        });
    }

    pub(super) fn connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        result: Result<(), ConnectFailure>,
    ) {
        let Some(number) = self.connections.get(&connection).copied() else {
            // The flow ended while the connection was being opened.
            if result.is_ok() {
                self.outputs.push_back(EngineOutput::Reset { connection });
            }
            return;
        };
        if let Some(direct) = self.directs.get(&number) {
            let server = direct.server;
            match result {
                Ok(()) => {
                    self.turn_direct(now, number, DirectConnection::connected);
                    self.server_answered_directly(server);
                }
                Err(failure) => self.server_failed(now, number, failure),
            }
            return;
        }
        let Some(server) = self.flows.get(&number).map(|flow| flow.server) else {
            return;
        };
        self.attempt_ended(server.ip(), connection);
        if matches!(result, Ok(()) | Err(ConnectFailure::Refused)) {
            self.connecting.answered(server.ip());
        }
        let is_further = |flow: &Flow| flow.connection() != connection;
        if self.flows.get(&number).is_some_and(|flow| is_further(flow)) {
            let happened = ConnectionEvent::Connected(result);
            return self.turn(now, number, |flow, turn| {
                flow.further_happened(turn, connection, happened)
            });
        }
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&flow.peer) else {
            return;
        };
        self.touched.insert(flow.peer);
        match result {
            Ok(()) => {
                if let Some(id) = flow.id() {
                    peer.session.answer(id, OpenAnswer::Connected);
                }
                self.turn(now, number, Flow::connected);
            }
            Err(failure @ (ConnectFailure::Unreachable | ConnectFailure::NotPermitted)) => {
                self.look_out_of_reach(now, connection);
                if failure == ConnectFailure::Unreachable {
                    for other in self.connecting.found_out_of_reach(server.ip()) {
                        self.look_out_of_reach(now, other);
                    }
                }
                self.fail_unreachable(now);
            }
            Err(failure) => self.fail_connect(now, number, failure, why::failure_text(failure)),
        }
    }
}
