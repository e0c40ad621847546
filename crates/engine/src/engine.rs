//! One node without its input and output.
//!
//! [`Engine::handle`] takes what happened, [`Engine::poll_output`] gives what is to be done
//! (drain it to `None` after every call), [`Engine::transmit`] gives the bytes for a link that
//! can take some, and [`Engine::poll_timeout`] the moment by which [`Engine::handle_timeout`]
//! must be called. It holds the flows, joins their stages (`flow.rs`), knows the peers and what
//! lies behind them, and keeps the limits; protocols are the accelerators' business, bytes on
//! the WAN the session's, and what is worth remembering the dictionary's.
//!
//! Every turn ends in `settle`, which carries what the sessions and the dictionary have to say
//! to the flows until nothing is left to say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use accelerate::{Half, registry};
use bytes::Bytes;
use reduce::{Decoder, DecoderConfig, Dictionary, Encoder, EncoderConfig, Storing};
use tunnel::{Answer, LinkId, Open, ResetReason, Session};
use vocab::{FlowId, NodeId, Random, Time};

use crate::config::{AVOID_FOR, Config, PeerConfig};
use crate::direct::{Direct, DirectReason, Life};
use crate::flow::{Birth, Broken, Flow, Turn};
use crate::io::{ConnectFailure, ConnectionId, Event, Input, Output, Via};
use crate::peer::{Peer, Reach};
use crate::report::{FlowReport, Status, Why};
use crate::why;

/// Closed flows that `flows` and `why` still know: an hour of a busy branch, about 1 MB.
const CLOSED_KEPT: usize = 1_000;
/// A reached limit counts as cleared below this share of it, so that it does not flap.
const CLEARED_BELOW_PERCENT: usize = 90;
/// Connections beyond the limit of flows that may still go directly while interception is being
/// taken away; past it they are reset.
const DIRECT_BEYOND_LIMIT: usize = 1_000;

/// One node without its input and output.
pub struct Engine {
    config: Config,
    random: Random,
    dictionary: Dictionary,
    peers: BTreeMap<NodeId, Peer>,
    links: BTreeMap<LinkId, NodeId>,
    flows: BTreeMap<u64, Flow>,
    directs: BTreeMap<u64, Direct>,
    /// Whose connection it is: the number of a flow or a direct connection.
    connections: BTreeMap<ConnectionId, u64>,
    timers: BTreeSet<(Time, u64)>,
    outputs: VecDeque<Output>,
    /// Peers whose sessions may have something to say or to send.
    touched: BTreeSet<NodeId>,
    closed: VecDeque<Why>,
    intercepted: Option<Vec<NodeId>>,
    next_number: u64,
    next_opened: u64,
    buffered: usize,
    totals: Totals,
    flow_limit_reached: bool,
    memory_limit_reached: bool,
    stop_at: Option<Time>,
    stopped: bool,
}

/// Counts since the start, of what is gone as well as of what goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    flows: u64,
    directs: u64,
    failed: u64,
    lan_bytes: u64,
    wan_bytes: u64,
}

impl Engine {
    /// An engine with no links; the dictionary begins to recover what the disk holds.
    #[must_use]
    pub fn new(config: Config, now: Time, mut random: Random) -> Self {
        let mut dictionary =
            Dictionary::new(config.dictionary.clone(), Random::from_seed(random.next_u64()));
        dictionary.open();
        let mut engine = Self {
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            flows: BTreeMap::new(),
            directs: BTreeMap::new(),
            connections: BTreeMap::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            touched: BTreeSet::new(),
            closed: VecDeque::new(),
            intercepted: None,
            next_number: 1,
            next_opened: 1,
            buffered: 0,
            totals: Totals::default(),
            flow_limit_reached: false,
            memory_limit_reached: false,
            stop_at: None,
            stopped: false,
            dictionary,
            random,
            config,
        };
        for peer in engine.config.peers.clone() {
            engine.add_peer(now, peer);
        }
        engine.settle(now);
        engine
    }

    /// Takes what happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Accepted {
                connection,
                client,
                server,
                via,
            } => self.accepted(now, connection, client, server, via),
            Input::Received { connection, bytes } => self.received(now, connection, bytes),
            Input::Finished { connection } => self.finished(now, connection),
            Input::Aborted { connection } => self.aborted(now, connection),
            Input::Written { connection, bytes } => self.written(now, connection, bytes),
            Input::Connected { connection, result } => self.connected(now, connection, result),
            Input::LinkUp {
                link,
                peer,
                dialed_by_us,
            } => self.link_up(now, link, peer, dialed_by_us),
            Input::LinkReceived { link, bytes } => self.link_received(now, link, &bytes),
            Input::LinkDown { link } => self.link_down(now, link),
            Input::Disk(completion) => self.disk(now, completion),
            Input::Configure(config) => self.configure(now, *config),
            Input::Stop { grace } => self.stop(now, grace),
        }
        self.settle(now);
    }

    /// The next thing to do, or `None` until the next call of another method.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// About `max` bytes for a link that can take them now, or `None` when there is nothing to
    /// send. Outputs may follow: what has left makes room for more.
    pub fn transmit(&mut self, now: Time, link: LinkId, max: usize) -> Option<Bytes> {
        let peer = self.peers.get_mut(self.links.get(&link)?)?;
        let bytes = peer.session.poll_transmit(now, link, max);
        if bytes.is_some() {
            self.touched.insert(peer.config.node);
            self.settle(now);
        }
        bytes
    }

    /// When [`Self::handle_timeout`] is due; `None` while nothing waits for time to pass.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let sessions = self.peers.values().filter_map(|peer| peer.session.poll_timeout());
        let flow = self.timers.first().map(|(at, _)| *at);
        sessions.chain(flow).chain(self.stop_at).min()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        let peers: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in peers {
            if let Some(peer) = self.peers.get_mut(&node)
                && peer.session.poll_timeout().is_some_and(|at| at <= now)
            {
                peer.session.handle_timeout(now);
                self.touched.insert(node);
            }
        }
        while let Some((at, number)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            self.turn(now, number, |flow, turn| {
                flow.timer = None;
                flow.timer_fired(turn)
            });
        }
        if self.stop_at.is_some_and(|at| at <= now) {
            self.reset_all(now);
        }
        self.settle(now);
    }

    /// The node's state.
    #[must_use]
    pub fn status(&self) -> Status {
        let intercepted = self.intercepted.clone().unwrap_or_default();
        let mut peers: Vec<_> = self
            .peers
            .values()
            .map(|peer| peer.status(&intercepted))
            .collect();
        peers.sort_by(|one, other| one.name.cmp(&other.name));
        let mut limits_reached = Vec::new();
        if self.flow_limit_reached {
            limits_reached.push("flows".to_owned());
        }
        if self.memory_limit_reached {
            limits_reached.push("memory".to_owned());
        }
        let (lan, wan) = self.flows.values().fold((0, 0), |(lan, wan), flow| {
            (
                lan + flow.sent_lan_bytes + flow.received_lan_bytes,
                wan + flow.sent_wan_bytes + flow.received_wan_bytes,
            )
        });
        Status {
            node: self.config.local.to_string(),
            flows: self.flows.len(),
            direct: self.directs.len(),
            flows_total: self.totals.flows,
            direct_total: self.totals.directs,
            flows_failed_total: self.totals.failed,
            buffered_bytes: self.buffered as u64,
            limits_reached,
            lan_bytes: self.totals.lan_bytes + lan,
            wan_bytes: self.totals.wan_bytes + wan,
            peers,
            dictionary: why::dictionary_status(&self.dictionary),
        }
    }

    /// The open flows and the last closed ones, oldest first.
    #[must_use]
    pub fn flows(&self, now: Time) -> Vec<FlowReport> {
        let closed = self.closed.iter().map(|why| why.flow.clone());
        let flows = self
            .flows
            .values()
            .map(|flow| why::flow_report(now, flow, self.peer_name(flow.peer), "open"));
        let directs = self
            .directs
            .values()
            .map(|direct| why::direct_report(now, direct, "open"));
        let mut reports: Vec<_> = closed.chain(flows).chain(directs).collect();
        reports.sort_by_key(|report| report.flow);
        reports
    }

    /// What each stage did with the flow of this number, while it is known.
    #[must_use]
    pub fn why(&self, now: Time, number: u64) -> Option<Why> {
        if let Some(flow) = self.flows.get(&number) {
            let peer = self.peers.get(&flow.peer)?;
            return Some(why::explain(now, flow, peer, "open"));
        }
        if let Some(direct) = self.directs.get(&number) {
            return Some(why::explain_direct(now, direct, "open"));
        }
        self.closed
            .iter()
            .find(|why| why.flow.flow == number)
            .cloned()
    }

    // Connections on the LAN side.

    fn accepted(
        &mut self,
        now: Time,
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
    ) {
        match self.choose_peer(server.ip()) {
            Ok(node) => self.open_flow(now, node, connection, client, server, via),
            Err(reason) => self.open_direct(now, connection, client, server, via, reason),
        }
    }

    /// The peer with the longest prefix around the address, if a flow may go to it now.
    fn choose_peer(&self, server: IpAddr) -> Result<NodeId, DirectReason> {
        let (_, peer) = self
            .peers
            .values()
            .filter_map(|peer| Some((peer.serves(server)?, peer)))
            .max_by_key(|(length, _)| *length)
            .ok_or(DirectReason::NoPeerServes)?;
        if self.stop_at.is_some() {
            return Err(DirectReason::Stopping);
        }
        if peer.reach != Reach::Up {
            return Err(DirectReason::PeerNotUp);
        }
        if self.flows.len() + self.directs.len() >= self.config.limits.flows {
            return Err(DirectReason::FlowLimit);
        }
        if self.memory_limit_reached {
            return Err(DirectReason::MemoryLimit);
        }
        Ok(peer.config.node)
    }

    fn open_flow(
        &mut self,
        now: Time,
        node: NodeId,
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
    ) {
        let carry_only = self.config.policy.carry_only(server);
        let accelerator = match carry_only {
            true => &registry::ENTRIES[0],
            false => registry::for_port(server.port()),
        };
        let keep_client_address = via == Via::Transparent;
        let peer = self.peers.get_mut(&node).expect("choose_peer returns known peers");
        let opened = peer.session.open(
            now,
            Open {
                client,
                server,
                accelerator: accelerator.number,
                keep_client_address,
                dscp: 0,
            },
        );
        let Ok(id) = opened else {
            self.open_direct(now, connection, client, server, via, DirectReason::FlowLimit);
            return;
        };
        let birth = self.birth(node, id, Half::Near, connection, accelerator, (client, server));
        self.start_flow(
            now,
            Birth {
                via: Some(via),
                keep_client_address,
                ..birth
            },
        );
    }

    /// A flow that a peer opened towards a server beside this node.
    fn opened(&mut self, now: Time, node: NodeId, id: FlowId, open: Open) {
        let refusal = if !self.may_connect(open.server.ip()) {
            Some(ConnectFailure::NotPermitted)
        } else if self.stop_at.is_some()
            || self.flows.len() + self.directs.len() >= self.config.limits.flows
        {
            Some(ConnectFailure::Exhausted)
        } else {
            None
        };
        let accelerator = registry::by_number(open.accelerator);
        let (None, Some(accelerator)) = (refusal, accelerator) else {
            let failure = refusal.unwrap_or(ConnectFailure::Other);
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.session.answer(id, Answer::Failed(failure));
            }
            return;
        };
        let connection = self.next_opened();
        let addresses = (open.client, open.server);
        let birth = self.birth(node, id, Half::Far, connection, accelerator, addresses);
        self.start_flow(
            now,
            Birth {
                keep_client_address: open.keep_client_address,
                ..birth
            },
        );
    }

    fn birth(
        &mut self,
        node: NodeId,
        id: FlowId,
        half: Half,
        connection: ConnectionId,
        accelerator: &'static registry::Entry,
        (client, server): (SocketAddr, SocketAddr),
    ) -> Birth {
        let slot = self.peers[&node].slot;
        let carry_only = self.config.policy.carry_only(server);
        let may_store = self.config.policy.may_store(server);
        let encoder = EncoderConfig {
            storing: match may_store && !carry_only {
                true => Storing::Remember,
                false => Storing::Never,
            },
            ..EncoderConfig::default()
        };
        Birth {
            number: self.next_number(),
            peer: node,
            id,
            half,
            client,
            server,
            via: None,
            keep_client_address: false,
            connection,
            accelerator,
            encoder: Encoder::new(encoder, slot),
            decoder: Decoder::new(DecoderConfig::default(), slot),
            carry_only,
            may_store,
        }
    }

    fn start_flow(&mut self, now: Time, birth: Birth) {
        let (number, node, id, connection) =
            (birth.number, birth.peer, birth.id, birth.connection);
        let pressed = self.memory_limit_reached;
        let peer = self.peers.get_mut(&node).expect("flows are born of known peers");
        let mut turn = Turn {
            now,
            session: &mut peer.session,
            dictionary: &mut self.dictionary,
            outputs: &mut self.outputs,
            pressed,
        };
        self.touched.insert(node);
        match Flow::start(birth, &mut turn) {
            Ok(flow) => {
                self.totals.flows += 1;
                peer.flows.insert(id, number);
                self.connections.insert(connection, number);
                self.flows.insert(number, flow);
                self.account(number);
            }
            Err(broken) => {
                peer.session.reset(id, broken.reset);
                self.outputs.push_back(Output::Reset { connection });
            }
        }
    }

    fn open_direct(
        &mut self,
        now: Time,
        accepted: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
        reason: DirectReason,
    ) {
        let most = self.config.limits.flows + DIRECT_BEYOND_LIMIT;
        if self.flows.len() + self.directs.len() >= most || self.stopped {
            self.outputs.push_back(Output::Reset {
                connection: accepted,
            });
            return;
        }
        let number = self.next_number();
        let opened = self.next_opened();
        let direct = Direct::open(
            now,
            number,
            accepted,
            opened,
            client,
            server,
            via,
            reason,
            &mut self.outputs,
        );
        self.totals.directs += 1;
        for connection in direct.connections() {
            self.connections.insert(connection, number);
        }
        self.directs.insert(number, direct);
    }

    fn received(&mut self, now: Time, connection: ConnectionId, bytes: Bytes) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if let Some(direct) = self.directs.get_mut(&number) {
            direct.received(connection, bytes, &mut self.outputs);
            return;
        }
        self.turn(now, number, |flow, turn| flow.received(turn, bytes));
    }

    fn finished(&mut self, now: Time, connection: ConnectionId) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if let Some(direct) = self.directs.get_mut(&number) {
            if direct.finished(connection, &mut self.outputs) == Life::Over {
                self.forget_direct(now, number, "closed");
            }
            return;
        }
        self.turn(now, number, Flow::lan_finished);
    }

    fn written(&mut self, now: Time, connection: ConnectionId, bytes: usize) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if let Some(direct) = self.directs.get_mut(&number) {
            if direct.written(connection, bytes, &mut self.outputs) == Life::Over {
                self.forget_direct(now, number, "closed");
            }
            return;
        }
        self.turn(now, number, |flow, turn| flow.written(turn, bytes));
    }

    fn aborted(&mut self, now: Time, connection: ConnectionId) {
        let Some(number) = self.connections.get(&connection).copied() else {
            return;
        };
        if let Some(direct) = self.directs.get_mut(&number) {
            direct.aborted(connection, &mut self.outputs);
            self.forget_direct(now, number, "reset by a host");
            return;
        }
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&flow.peer) {
            peer.session.reset(flow.id, ResetReason::HostReset);
            self.touched.insert(flow.peer);
        }
        self.forget_flow(now, number, "reset by the host beside this node");
    }

    fn connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        result: Result<(), ConnectFailure>,
    ) {
        let Some(number) = self.connections.get(&connection).copied() else {
            // The flow ended while the connection was being opened.
            if result.is_ok() {
                self.outputs.push_back(Output::Reset { connection });
            }
            return;
        };
        if let Some(direct) = self.directs.get_mut(&number) {
            match result {
                Ok(()) => direct.connected(&mut self.outputs),
                Err(failure) => {
                    let server = direct.server;
                    direct.aborted(connection, &mut self.outputs);
                    self.avoid(server);
                    self.forget_direct(now, number, why::failure_text(failure));
                }
            }
            return;
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
                peer.session.answer(flow.id, Answer::Connected);
                self.turn(now, number, Flow::connected);
            }
            Err(failure) => {
                peer.session.answer(flow.id, Answer::Failed(failure));
                self.fail_flow(now, number, why::failure_text(failure));
            }
        }
    }

    // Links and sessions.

    fn link_up(&mut self, now: Time, link: LinkId, node: NodeId, dialed_by_us: bool) {
        let Some(peer) = self.peers.get_mut(&node) else {
            self.outputs.push_back(Output::CloseLink {
                link,
                reason: "the peer is no longer in the configuration".to_owned(),
            });
            return;
        };
        self.links.insert(link, node);
        peer.session.link_up(now, link, dialed_by_us);
        self.touched.insert(node);
    }

    fn link_received(&mut self, now: Time, link: LinkId, bytes: &[u8]) {
        let Some(node) = self.links.get(&link).copied() else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        self.touched.insert(node);
        if let Err(error) = peer.session.handle(now, link, bytes) {
            self.outputs.push_back(Output::CloseLink {
                link,
                reason: error.to_string(),
            });
            self.link_down(now, link);
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId) {
        let Some(node) = self.links.remove(&link) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.session.link_down(now, link);
        if peer.link == Some(link) {
            peer.link = None;
            peer.reach = Reach::Down;
        }
        self.touched.insert(node);
    }

    fn session_event(&mut self, now: Time, node: NodeId, event: tunnel::Event) {
        use tunnel::Event as Said;
        match event {
            Said::LinkAttached { link } => self.link_attached(node, link),
            Said::LinkReplaced { link } => {
                self.links.remove(&link);
                self.outputs.push_back(Output::CloseLink {
                    link,
                    reason: "a newer link took its place".to_owned(),
                });
            }
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
            Said::Message { flow, kind, bytes } => {
                self.turn_of(now, node, flow, |flow, turn| flow.message(turn, kind, &bytes));
            }
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
                self.set_reach(node, Reach::Silent);
                self.event(Event::PeerSilent { peer: node });
            }
            Said::Heard => {
                self.set_reach(node, Reach::Up);
                self.event(Event::PeerHeard { peer: node });
            }
            Said::PeerRestarted => self.event(Event::PeerRestarted { peer: node }),
            // A peer that is going away takes no new flows; its open ones may end.
            Said::GoAway => self.set_reach(node, Reach::Silent),
            Said::Drained => {}
        }
    }

    fn link_attached(&mut self, node: NodeId, link: LinkId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.link = Some(link);
            peer.reach = Reach::Up;
        }
        self.event(Event::PeerUp { peer: node, link });
    }

    /// The peer told the generation of its dictionary: what was known of another is void.
    fn hello(&mut self, node: NodeId, blob: &[u8]) {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        let slot = peer.slot;
        if let Ok(generation) = <[u8; 16]>::try_from(blob) {
            self.dictionary.peer_generation(slot, generation);
        }
    }

    fn answered(&mut self, now: Time, node: NodeId, id: FlowId, answer: Answer) {
        let Some(number) = self.flow_number(node, id) else {
            return;
        };
        match answer {
            Answer::Connected => {}
            Answer::Failed(failure) => {
                if let Some(flow) = self.flows.get(&number) {
                    self.avoid(flow.server);
                }
                self.fail_flow(now, number, why::failure_text(failure));
            }
        }
    }

    fn disk(&mut self, now: Time, completion: reduce::DiskCompletion) {
        self.dictionary.handle_disk(completion);
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

    // Life and death.

    fn configure(&mut self, now: Time, config: Config) {
        let gone: Vec<NodeId> = self
            .peers
            .keys()
            .filter(|node| !config.peers.iter().any(|peer| peer.node == **node))
            .copied()
            .collect();
        for node in gone {
            self.remove_peer(now, node);
        }
        for peer in config.peers.clone() {
            match self.peers.get_mut(&peer.node) {
                Some(known) => known.config = peer,
                None => self.add_peer(now, peer),
            }
        }
        // The dictionary's sizes are fixed at the start; the rest holds from here on.
        self.config = config;
        // Prefixes may have changed under an unchanged set of peers.
        self.intercepted = None;
    }

    fn add_peer(&mut self, now: Time, config: PeerConfig) {
        let node = config.node;
        let slot = self.dictionary.peer(node);
        let random = Random::from_seed(self.random.next_u64());
        let mut session = Session::new(
            self.config.tunnel.clone(),
            self.config.local,
            node,
            random,
            now,
        );
        session.set_hello_blob(Bytes::copy_from_slice(&self.dictionary.generation()));
        self.peers.insert(
            node,
            Peer {
                config,
                session,
                slot,
                reach: Reach::Down,
                link: None,
                flows: BTreeMap::new(),
            },
        );
    }

    fn remove_peer(&mut self, now: Time, node: NodeId) {
        let numbers: Vec<u64> = match self.peers.get(&node) {
            Some(peer) => peer.flows.values().copied().collect(),
            None => return,
        };
        for number in numbers {
            self.fail_flow(now, number, "the peer was taken out of the configuration");
        }
        self.peers.remove(&node);
        let links: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, owner)| **owner == node)
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.links.remove(&link);
            self.outputs.push_back(Output::CloseLink {
                link,
                reason: "the peer was taken out of the configuration".to_owned(),
            });
        }
    }

    fn stop(&mut self, now: Time, grace: Duration) {
        self.stop_at = Some(now + grace);
        for peer in self.peers.values_mut() {
            peer.session.goaway(now);
            self.touched.insert(peer.config.node);
        }
    }

    fn reset_all(&mut self, now: Time) {
        let flows: Vec<(u64, NodeId, FlowId)> = self
            .flows
            .values()
            .map(|flow| (flow.number, flow.peer, flow.id))
            .collect();
        for (number, node, id) in flows {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.session.reset(id, ResetReason::Stopping);
                self.touched.insert(node);
            }
            self.fail_flow(now, number, "the node stopped");
        }
        let directs: Vec<u64> = self.directs.keys().copied().collect();
        for number in directs {
            if let Some(direct) = self.directs.get(&number) {
                let resets = direct.connections().map(|connection| Output::Reset { connection });
                self.outputs.extend(resets);
            }
            self.forget_direct(now, number, "the node stopped");
        }
    }

    // One turn of one flow, and what follows from it.

    fn flow_number(&self, node: NodeId, id: FlowId) -> Option<u64> {
        self.peers.get(&node)?.flows.get(&id).copied()
    }

    fn turn_of(
        &mut self,
        now: Time,
        node: NodeId,
        id: FlowId,
        work: impl FnOnce(&mut Flow, &mut Turn<'_>) -> Result<(), Broken>,
    ) {
        if let Some(number) = self.flow_number(node, id) {
            self.turn(now, number, work);
        }
    }

    /// Runs `work` on one flow and ends the flow if it is over or broken.
    fn turn(
        &mut self,
        now: Time,
        number: u64,
        work: impl FnOnce(&mut Flow, &mut Turn<'_>) -> Result<(), Broken>,
    ) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&flow.peer) else {
            return;
        };
        let mut turn = Turn {
            now,
            session: &mut peer.session,
            dictionary: &mut self.dictionary,
            outputs: &mut self.outputs,
            pressed: self.memory_limit_reached,
        };
        let result = work(flow, &mut turn);
        self.touched.insert(flow.peer);
        match result {
            Ok(()) if flow.is_over() => {
                let connection = flow.connection();
                self.outputs.push_back(Output::Close { connection });
                self.forget_flow(now, number, "closed");
            }
            Ok(()) => self.account(number),
            Err(broken) => {
                peer.session.reset(flow.id, broken.reset);
                self.fail_flow(now, number, &broken.text);
            }
        }
    }

    /// Brings the totals and timers up to date with a flow that had a turn.
    fn account(&mut self, number: u64) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let buffered = flow.buffered();
        self.buffered = self.buffered + buffered - flow.accounted;
        flow.accounted = buffered;
        let timeout = flow.timeout();
        if flow.timer != timeout {
            if let Some(at) = flow.timer {
                self.timers.remove(&(at, number));
            }
            if let Some(at) = timeout {
                self.timers.insert((at, number));
            }
            flow.timer = timeout;
        }
    }

    /// Resets the host's connection and forgets the flow.
    fn fail_flow(&mut self, now: Time, number: u64, reason: &str) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let connection = flow.connection();
        self.outputs.push_back(Output::Reset { connection });
        self.totals.failed += 1;
        self.event(Event::FlowFailed {
            flow: number,
            reason: reason.to_owned(),
        });
        self.forget_flow(now, number, reason);
    }

    fn forget_flow(&mut self, now: Time, number: u64, state: &str) {
        let Some(flow) = self.flows.remove(&number) else {
            return;
        };
        self.buffered -= flow.accounted;
        if let Some(at) = flow.timer {
            self.timers.remove(&(at, number));
        }
        self.connections.remove(&flow.connection());
        self.totals.lan_bytes += flow.sent_lan_bytes + flow.received_lan_bytes;
        self.totals.wan_bytes += flow.sent_wan_bytes + flow.received_wan_bytes;
        if let Some(peer) = self.peers.get_mut(&flow.peer) {
            peer.flows.remove(&flow.id);
            let why = why::explain(now, &flow, peer, state);
            self.remember_closed(why);
        }
    }

    fn forget_direct(&mut self, now: Time, number: u64, state: &str) {
        let Some(direct) = self.directs.remove(&number) else {
            return;
        };
        for connection in direct.connections() {
            self.connections.remove(&connection);
        }
        let why = why::explain_direct(now, &direct, state);
        self.remember_closed(why);
    }

    fn remember_closed(&mut self, why: Why) {
        if self.closed.len() == CLOSED_KEPT {
            self.closed.pop_front();
        }
        self.closed.push_back(why);
    }

    /// Carries what sessions and dictionary say until nothing is left, then brings the wishes
    /// that follow from the whole (interception, disk, links to write to) up to date.
    fn settle(&mut self, now: Time) {
        let mut to_transmit = BTreeSet::new();
        while let Some(node) = self.touched.pop_first() {
            to_transmit.insert(node);
            while let Some(event) = self
                .peers
                .get_mut(&node)
                .and_then(|peer| peer.session.poll_event())
            {
                self.session_event(now, node, event);
            }
        }
        while let Some(request) = self.dictionary.poll_disk() {
            self.outputs.push_back(Output::Disk(request));
        }
        for node in to_transmit {
            if let Some(peer) = self.peers.get(&node) {
                let links = peer.links_to_write(&self.links);
                self.outputs
                    .extend(links.map(|link| Output::Transmit { link }));
            }
        }
        self.watch_limits();
        self.watch_interception();
        if self.stop_at.is_some()
            && !self.stopped
            && self.flows.is_empty()
            && self.directs.is_empty()
        {
            self.stopped = true;
            self.stop_at = None;
            self.outputs.push_back(Output::Stopped);
        }
    }

    fn watch_limits(&mut self) {
        let flows = self.flows.len() + self.directs.len();
        let change = crossed(self.flow_limit_reached, flows, self.config.limits.flows);
        if let Some(reached) = change {
            self.flow_limit_reached = reached;
            self.limit_event("flows", reached);
        }
        let memory = self.config.limits.memory.as_usize();
        if let Some(reached) = crossed(self.memory_limit_reached, self.buffered, memory) {
            self.memory_limit_reached = reached;
            self.limit_event("memory", reached);
        }
    }

    fn limit_event(&mut self, limit: &'static str, reached: bool) {
        self.event(match reached {
            true => Event::LimitReached { limit },
            false => Event::LimitCleared { limit },
        });
    }

    fn watch_interception(&mut self) {
        let none = self.stop_at.is_some()
            || self.stopped
            || self.flow_limit_reached
            || self.memory_limit_reached;
        let wanted: Vec<NodeId> = self
            .peers
            .values()
            .filter(|peer| !none && peer.reach == Reach::Up)
            .map(|peer| peer.config.node)
            .collect();
        if self.intercepted.as_ref() != Some(&wanted) {
            self.intercepted = Some(wanted.clone());
            self.outputs.push_back(Output::Intercept { peers: wanted });
        }
    }

    fn set_reach(&mut self, node: NodeId, reach: Reach) {
        if let Some(peer) = self.peers.get_mut(&node)
            && peer.link.is_some()
        {
            peer.reach = reach;
        }
    }

    /// Whether this node opens connections to the address for its peers.
    fn may_connect(&self, server: IpAddr) -> bool {
        let server = server.to_canonical();
        if !self.config.serve.is_empty() {
            return self.config.serve.iter().any(|prefix| prefix.contains(server));
        }
        let this_machine_or_link = match server {
            IpAddr::V4(server) => server.is_link_local() || server.is_broadcast(),
            IpAddr::V6(server) => server.is_unicast_link_local(),
        };
        !(server.is_loopback()
            || server.is_unspecified()
            || server.is_multicast()
            || this_machine_or_link)
    }

    fn avoid(&mut self, server: SocketAddr) {
        self.outputs.push_back(Output::Avoid {
            server,
            lasting: AVOID_FOR,
        });
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn peer_name(&self, node: NodeId) -> &str {
        self.peers
            .get(&node)
            .map_or("gone", |peer| peer.config.name.as_str())
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn next_opened(&mut self) -> ConnectionId {
        self.next_opened += 1;
        ConnectionId::Opened(self.next_opened - 1)
    }
}

/// Whether a limit has come to be reached, or to be cleared; `None` when nothing changed.
fn crossed(reached: bool, used: usize, limit: usize) -> Option<bool> {
    if !reached && used >= limit {
        return Some(true);
    }
    let cleared = limit / 100 * CLEARED_BELOW_PERCENT + limit % 100 * CLEARED_BELOW_PERCENT / 100;
    (reached && used < cleared.max(1)).then_some(false)
}
