//! One node without its input and output.
//!
//! [`Engine::handle`] takes an event. [`Engine::poll_output`] returns the next action (drain it to
//! `None` after every call). [`Engine::transmit`] returns the bytes for a link that can take some.
//! [`Engine::poll_timeout`] returns the time at which [`Engine::handle_timeout`] must be called.
//! The engine holds the flows, joins their stages (`flow/`), knows the peers and their prefixes,
//! and enforces the limits. It leaves protocols to the accelerators, WAN bytes to the session, and
//! stored content to the dictionary.
//!
//! Every turn ends in `settle`, which passes the events of the sessions and the dictionary to the
//! flows until none is left.

pub(crate) mod connections;
mod membership;
mod opening;
mod server_connections;
mod sessions;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use accelerate::claims::ClaimTable;
use bytes::{Bytes, BytesMut};
use reduce::Dictionary;
use tunnel::transport::TransmitBatch;
use tunnel::wire::DatagramOffer;
use tunnel::{LinkId, ResetReason};
use vocab::{NodeId, SeededRandom, Time};

use crate::accelerator_states::{AcceleratorStates, StateOutput};
use crate::asymmetric_routes::AsymmetricRoutes;
use crate::bounds::AddressBounds;
use crate::config::{EngineConfig, EngineLimits, IpPrefix};
use crate::connecting::ConnectionAttempts;
use crate::direct::DirectConnection;
use crate::flow::{Flow, FlowFailure};
use crate::io::{
    ArrivalMethod, ConnectFailure, ConnectionId, EngineEvent, EngineInput, EngineOutput,
};
use crate::kept_contents::KeptContents;
use crate::memory::MemoryBudget;
use crate::passthrough_pairs::PassthroughPairs;
use crate::peer::{PeerReachability, PeerState};
use crate::reached_servers::ReachedServers;
use crate::report::{FlowExplanation, FlowReport, NodeStatus};
use crate::shares::SourceShares;
use crate::unreachable_servers::UnreachableServers;
use crate::why;

/// Closed flows that `flows` and `why` still know: an hour of a busy branch, about 1 MB.
const CLOSED_KEPT: usize = 1_000;
/// A reached limit counts as cleared below this share of it, so that it does not flap.
const CLEARED_BELOW_PERCENT: usize = 90;
/// The time for which a peer at a limit gets no new flows: as long as a silent one.
const PEER_FULL_FOR: Duration = Duration::from_secs(5);
/// The least time after an open before the peer learns that a server is unreachable. The kernel
/// takes 3 s to give up on a host that answers no ARP (three probes, one a second), and a server
/// that the policy forbids must look the same.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(3_200);
/// The limit of clients that are bypassed at a time: at its own limit a node has at most some
/// thousand.
const PASSING_MAX: usize = 1_000;
/// The number of served networks that `status` shows; the others are counted.
const SERVES_SHOWN: usize = 32;
/// The least time between two log lines about a peer's refused opens.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(60);

/// One node without its input and output.
pub struct Engine {
    config: EngineConfig,
    random: SeededRandom,
    /// The generator that seeds each flow's own generator.
    flow_random: SeededRandom,
    dictionary: Dictionary,
    peers: BTreeMap<NodeId, PeerState>,
    links: BTreeMap<LinkId, NodeId>,
    /// The addresses where this node receives packets beside a link, as offered and not yet agreed
    /// on.
    offers: BTreeMap<LinkId, DatagramOffer>,
    /// Boxed: a tree that grows at its end leaves almost half of the room in its nodes empty.
    flows: BTreeMap<u64, Box<Flow>>,
    accelerator_states: AcceleratorStates,
    claims: ClaimTable,
    /// The bodies that accelerators want kept.
    kept_contents: KeptContents,
    directs: BTreeMap<u64, DirectConnection>,
    /// The number of flows' further connections to servers.
    further_connections: usize,
    /// The owner of each connection: the number of a flow or of a direct connection.
    connections: BTreeMap<ConnectionId, u64>,
    timers: BTreeSet<(Time, u64)>,
    unreachable_servers: UnreachableServers,
    reached_servers: ReachedServers,
    asymmetric_routes: AsymmetricRoutes,
    /// Flows and direct connections whose server failed them, until its bypass is in place.
    waiting_for_bypass: BTreeMap<SocketAddr, Vec<(u64, ConnectFailure)>>,
    passthrough_pairs: PassthroughPairs,
    /// The servers that peers may reach, and the source addresses.
    bounds: AddressBounds,
    /// The connections that are being opened for peers.
    connecting: ConnectionAttempts,
    /// The times at which unopened connections for peers fail: their servers are unreachable, or
    /// must look so, or they wait for their turn to connect.
    unreachable: BTreeSet<(Time, ConnectionId)>,
    /// The connections that each client has open.
    sources: SourceShares,
    /// Clients at their share, whose connections are to pass by until then.
    passing: BTreeMap<IpPrefix, Time>,
    outputs: VecDeque<EngineOutput>,
    /// The peers whose sessions may have events or data to send.
    touched: BTreeSet<NodeId>,
    closed: VecDeque<FlowExplanation>,
    intercepted: Option<Vec<NodeId>>,
    /// The next number of failed disk requests that is worth telling.
    next_fault_told: u64,
    /// True if the operator knows how much of the dictionary on disk is unusable.
    rejected_told: bool,
    /// The dictionary generation that was last sent to the peers.
    generation_told: Option<[u8; 16]>,
    next_number: u64,
    next_opened: u64,
    /// Bytes that the flows hold.
    buffered: usize,
    /// Bytes that the sessions hold.
    session_memory: usize,
    totals: EngineTotals,
    flow_limit_reached: bool,
    memory_limit_reached: bool,
    stop_at: Option<Time>,
    stopped: bool,
}

/// The counts since the start, of ended and present flows.
#[derive(Clone, Copy, Debug, Default)]
struct EngineTotals {
    flows: u64,
    directs: u64,
    failed: u64,
    lan_bytes: u64,
    wan_bytes: u64,
}

/// The stream of chance that flows draw from; any number that no other use has.
const FLOW_CHANCE: u64 = 1;

impl Engine {
    /// Creates an engine without links; the dictionary begins to recover its content from disk.
    #[must_use]
    pub fn new(config: EngineConfig, now: Time, mut random: SeededRandom) -> Self {
        let seed = random.clone().next_u64();
        let flow_chance = SeededRandom::for_stream(seed, FLOW_CHANCE);
        let chance = SeededRandom::from_seed(random.next_u64());
        let mut dictionary = match config.dictionary_key.clone() {
            Some(key) => Dictionary::with_key(config.dictionary, key, chance),
            None => Dictionary::new(config.dictionary, chance),
        };
        dictionary.open();
        let mut engine = Self {
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            offers: BTreeMap::new(),
            flows: BTreeMap::new(),
            accelerator_states: AcceleratorStates::new(
                now,
                &config.policy.accelerators,
                config.limits.memory.as_usize(),
                seed,
                config.dictionary_key.clone(),
            ),
            claims: ClaimTable::default(),
            kept_contents: KeptContents::default(),
            directs: BTreeMap::new(),
            further_connections: 0,
            connections: BTreeMap::new(),
            timers: BTreeSet::new(),
            unreachable_servers: UnreachableServers::default(),
            reached_servers: ReachedServers::default(),
            asymmetric_routes: AsymmetricRoutes::default(),
            waiting_for_bypass: BTreeMap::new(),
            passthrough_pairs: PassthroughPairs::default(),
            bounds: AddressBounds::default(),
            connecting: ConnectionAttempts::default(),
            unreachable: BTreeSet::new(),
            sources: SourceShares::default(),
            passing: BTreeMap::new(),
            outputs: VecDeque::new(),
            touched: BTreeSet::new(),
            closed: VecDeque::new(),
            intercepted: None,
            next_fault_told: 1,
            rejected_told: false,
            generation_told: None,
            next_number: 1,
            next_opened: 1,
            buffered: 0,
            session_memory: 0,
            totals: EngineTotals::default(),
            flow_limit_reached: false,
            memory_limit_reached: false,
            stop_at: None,
            stopped: false,
            dictionary,
            flow_random: flow_chance,
            random,
            config,
        };
        for peer in engine.config.peers.clone() {
            engine.add_peer(now, peer);
        }
        engine.settle(now);
        engine
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, input: EngineInput) {
        match input {
            EngineInput::Accepted {
                connection,
                client,
                server,
                via,
            } => self.accepted(now, connection, client, server, via),
            EngineInput::Asked {
                connection,
                client,
                server,
                via,
            } => self.asked(now, connection, client, server, via),
            EngineInput::Received { connection, bytes } => self.received(now, connection, bytes),
            EngineInput::Finished { connection } => self.finished(now, connection),
            EngineInput::Failed { connection } => self.connection_failed(now, connection),
            EngineInput::Aborted { connection } => self.aborted(now, connection),
            EngineInput::Written { connection, bytes } => self.written(now, connection, bytes),
            EngineInput::Connected { connection, result } => {
                self.connected(now, connection, result)
            }
            EngineInput::LinkUp {
                link,
                peer,
                dialed_by_us,
                offer,
            } => self.link_up(now, link, peer, dialed_by_us, offer),
            EngineInput::DatagramsReady {
                link,
                keys,
                peer,
                datagram_max,
            } => self.datagrams_ready(now, link, *keys, peer, datagram_max),
            EngineInput::Datagrams {
                link,
                from,
                codepoint,
                segment,
                bytes,
            } => self.datagrams(now, link, from, codepoint, segment, bytes),
            EngineInput::LinkReceived { link, bytes } => self.link_received(now, link, &bytes),
            EngineInput::LinkDown { link, end } => self.link_down(now, link, end),
            EngineInput::RefusedByPeer { peer } => self.removed_by_peer(now, peer),
            EngineInput::Disk(completion) => self.disk(now, completion),
            EngineInput::Avoided { server } => self.avoided(now, server),
            EngineInput::BypassedServerAnswered { server } => self.server_answered_directly(server),
            EngineInput::ClearDictionary { key } => {
                self.kept_contents.clear();
                self.accelerator_states.content_cleared(now, key.clone());
                self.dictionary.clear(key);
            }
            EngineInput::AcceleratorFile {
                accelerator,
                completion,
            } => (self.accelerator_states).file_completed(now, accelerator, completion),
            EngineInput::PurgeAccelerator { id, name, prefix } => {
                self.purge_accelerator(now, id, &name, prefix);
            }
            EngineInput::Surroundings(surroundings) => {
                self.bounds = AddressBounds::new(&surroundings)
            }
            EngineInput::Calendar { since_1970 } => {
                self.accelerator_states.set_calendar(now, since_1970)
            }
            EngineInput::Configure(config) => self.configure(now, *config),
            EngineInput::Stop { grace } => self.stop(now, grace),
        }
        self.settle(now);
    }

    /// The next thing to do, or `None` until the next call of another method.
    pub fn poll_output(&mut self) -> Option<EngineOutput> {
        self.outputs.pop_front()
    }

    /// Returns about `max` bytes for a link that can take them now, or `None` when there is nothing
    /// to send. Outputs may follow, because sent bytes make room for more.
    pub fn transmit(&mut self, now: Time, link: LinkId, max: usize) -> Option<Bytes> {
        let peer = self.peers.get_mut(self.links.get(&link)?)?;
        let bytes = peer.session.poll_transmit(now, link, max);
        if bytes.is_some() {
            self.touched.insert(peer.config.node);
            self.settle(now);
        }
        bytes
    }

    /// Appends packets for one destination to `out`, at most `packets_max` of one length; the last
    /// packet may be shorter. Returns `None` when the path beside this link has nothing to send
    /// now. Outputs may follow.
    pub fn transmit_datagrams(
        &mut self,
        now: Time,
        link: LinkId,
        packets_max: usize,
        out: &mut BytesMut,
    ) -> Option<TransmitBatch> {
        let node = self.owner(link)?;
        let peer = self.peers.get_mut(&node)?;
        let path = peer.session.datagram_link();
        let transmit = peer.session.poll_datagrams(now, link, packets_max, out);
        // What has left makes room for more; and the path may have ended over it.
        if transmit.is_some() || peer.session.datagram_link() != path {
            self.touched.insert(node);
            self.settle(now);
        }
        transmit
    }

    /// The peer that owns this link. A closed link keeps its owner until the end of its path is
    /// reported.
    pub(super) fn owner(&self, link: LinkId) -> Option<NodeId> {
        let ends = |peer: &&PeerState| peer.session.ending_link() == Some(link);
        let former = || self.peers.values().find(ends).map(|peer| peer.config.node);
        self.links.get(&link).copied().or_else(former)
    }

    /// Returns true if packets may still be sent beside this link. A closed link may still send the
    /// packets of flows that outlive it, or the notice that its path has ended.
    #[must_use]
    pub fn uses(&self, link: LinkId) -> bool {
        self.owner(link).is_some()
    }

    /// The time at which [`Self::handle_timeout`] is due; `None` while nothing waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let sessions = self
            .peers
            .values()
            .filter_map(|peer| peer.session.poll_timeout());
        let flow = self.timers.first().map(|(at, _)| *at);
        let unreachable = self.unreachable.first().map(|(at, _)| *at);
        let full = self.peers.values().filter_map(|peer| peer.full_until);
        let filtered = self.peers.values();
        let filtered = filtered.filter_map(|peer| peer.filter.blocked_until);
        sessions
            .chain(flow)
            .chain(unreachable)
            .chain(full)
            .chain(filtered)
            .chain(self.dictionary.poll_timeout())
            .chain(self.accelerator_states.poll_timeout())
            .chain(self.asymmetric_routes.poll_timeout())
            .chain(self.stop_at)
            .min()
    }

    /// Performs the actions that are due at `now`.
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
        for peer in self.peers.values_mut() {
            peer.full_until = peer.full_until.filter(|until| *until > now);
            peer.filter.expire(now);
        }
        self.dictionary.handle_timeout(now);
        self.accelerator_states.handle_timeout(now);
        if self.asymmetric_routes.handle_timeout(now) {
            self.put_out_bypassed_routes();
        }
        while let Some((at, number)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            if self.directs.contains_key(&number) {
                let reason = "a host reset its connection, and the receiver did not accept its last data in time";
                self.fail_direct(now, number, reason);
                continue;
            }
            self.turn(now, number, |flow, turn| {
                flow.timer = None;
                flow.timer_fired(turn)
            });
        }
        self.fail_unreachable(now);
        if self.stop_at.is_some_and(|at| at <= now) {
            self.reset_all(now);
        }
        self.settle(now);
    }

    /// The node's state.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
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
        let at_share = self
            .sources
            .at_share(&self.config.limits, self.open_in_all());
        let at_share = at_share.into_iter();
        let mut shares_reached: Vec<String> = at_share
            .map(|(clients, open)| format!("clients {clients} ({open} flows)"))
            .collect();
        for peer in self.peers.values().filter(|peer| peer.is_at_share) {
            let (name, flows) = (&peer.config.name, peer.open());
            shares_reached.push(format!("peer {name} ({flows} flows)"));
        }
        let (lan, wan) = self.flows.values().fold((0, 0), |(lan, wan), flow| {
            (
                lan + flow.sent_lan_bytes + flow.received_lan_bytes,
                wan + flow.sent_wan_bytes + flow.received_wan_bytes,
            )
        });
        NodeStatus {
            node: self.config.local.to_string(),
            flows: self.flows.len(),
            direct: self.directs.len(),
            flows_total: self.totals.flows,
            direct_total: self.totals.directs,
            flows_failed_total: self.totals.failed,
            buffered_bytes: self.budget().held as u64,
            limits_reached,
            shares_reached,
            at_share_total: self.sources.at_share_total,
            lan_bytes: self.totals.lan_bytes + lan,
            wan_bytes: self.totals.wan_bytes + wan,
            serves: self.serves(),
            peers,
            dictionary: why::dictionary_status(&self.dictionary),
            accelerators: self.accelerator_states.reports(),
        }
    }

    fn serves(&self) -> Vec<String> {
        let listed = self.config.serve.clone();
        let networks = listed.unwrap_or_else(|| self.bounds.lan_networks().collect());
        let mut texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
        if texts.len() > SERVES_SHOWN {
            let more = texts.len() - SERVES_SHOWN;
            texts.truncate(SERVES_SHOWN);
            texts.push(format!("and {more} more"));
        }
        match self.config.policy.serve_rules.len() {
            0 => {}
            1 => texts.push("limited by 1 serve_rule".to_owned()),
            rules => texts.push(format!("limited by {rules} serve_rules")),
        }
        texts
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

    /// Explains what each stage did with the flow of this number, while the flow is known.
    #[must_use]
    pub fn why(&self, now: Time, number: u64) -> Option<FlowExplanation> {
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

    /// Passes on the events of sessions and dictionary until none is left, then updates the
    /// requests that depend on all of them (interception, disk, links to write to).
    pub(super) fn settle(&mut self, now: Time) {
        // What the accelerators keep makes room for flows.
        self.accelerator_states
            .shrink(now, self.budget().beyond_limit());
        let mut to_transmit = BTreeSet::new();
        loop {
            while let Some((number, decision)) = self.claims.poll_decision() {
                self.turn(now, number, |flow, turn| flow.claim_decided(turn, decision));
            }
            self.drain_accelerator_states(now);
            let Some(node) = self.touched.pop_first() else {
                break;
            };
            to_transmit.insert(node);
            while let Some(event) = self
                .peers
                .get_mut(&node)
                .and_then(|peer| peer.session.poll_event())
            {
                self.session_event(now, node, event);
            }
        }
        self.tell_generation(&mut to_transmit);
        self.kept_contents.pin_on(&mut self.dictionary);
        while let Some(request) = self.dictionary.poll_disk() {
            self.outputs.push_back(EngineOutput::Disk(request));
        }
        for node in to_transmit {
            let peer = self.peers.get(&node);
            if let Some(link) = peer.and_then(|peer| peer.session.wants_transmit()) {
                self.outputs.push_back(EngineOutput::Transmit { link });
            }
            let ending = peer.filter(|peer| peer.session.is_close_due());
            if let Some(link) = ending.and_then(|peer| peer.session.ending_link()) {
                self.outputs
                    .push_back(EngineOutput::TransmitDatagrams { link });
            }
            if let Some(link) = peer.and_then(|peer| peer.session.datagram_link()) {
                self.outputs
                    .push_back(EngineOutput::TransmitDatagrams { link });
            }
        }
        self.count_session_memory();
        if self.shed(now) {
            // Others may hear of it.
            self.settle(now);
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
            self.accelerator_states.stop(now);
            self.drain_accelerator_states(now);
            self.dictionary.request_flush();
            while let Some(request) = self.dictionary.poll_disk() {
                self.outputs.push_back(EngineOutput::Disk(request));
            }
            self.close_paths(now);
            self.outputs.push_back(EngineOutput::Stopped);
        }
    }

    /// Passes on the requests of the accelerators' shared states.
    fn drain_accelerator_states(&mut self, now: Time) {
        while let Some(output) = self.accelerator_states.poll_output() {
            match output {
                StateOutput::File(accelerator, request) => {
                    self.outputs.push_back(EngineOutput::AcceleratorFile {
                        accelerator,
                        request,
                    });
                }
                StateOutput::DiskTrouble(accelerator, trouble) => {
                    let accelerator = accelerator.name;
                    self.event(EngineEvent::AcceleratorDisk {
                        accelerator,
                        trouble,
                    });
                }
                StateOutput::Wake(flow) => {
                    self.turn(now, flow, |flow, turn| flow.woken(turn));
                }
                StateOutput::Purged { id, result } => {
                    self.outputs
                        .push_back(EngineOutput::AcceleratorPurged { id, result });
                }
            }
        }
    }

    fn purge_accelerator(&mut self, now: Time, id: u64, name: &str, prefix: String) {
        if let Err(error) = self.accelerator_states.purge(now, id, name, prefix) {
            let result = Err(error);
            self.outputs
                .push_back(EngineOutput::AcceleratorPurged { id, result });
        }
    }

    /// Tells the peers which dictionary this is, once that is known and whenever it changes.
    pub(super) fn tell_generation(&mut self, to_transmit: &mut BTreeSet<NodeId>) {
        if !self.dictionary.is_identified() {
            return;
        }
        let generation = self.dictionary.generation();
        if self.generation_told == Some(generation) {
            return;
        }
        self.generation_told = Some(generation);
        for peer in self.peers.values_mut() {
            peer.session
                .set_hello_blob(Bytes::copy_from_slice(&generation));
            to_transmit.insert(peer.config.node);
        }
    }

    pub(super) fn watch_limits(&mut self) {
        let flows = self.open_in_all();
        let EngineLimits {
            flows: limit,
            comfortable_flows,
            ..
        } = self.config.limits;
        let limit = limit.min(comfortable_flows);
        let change = crossed(self.flow_limit_reached, flows, limit);
        if let Some(reached) = change {
            self.flow_limit_reached = reached;
            self.limit_event("flows", reached);
        }
        self.watch_shares();
        let memory = self.config.limits.memory.as_usize();
        if let Some(reached) = crossed(self.memory_limit_reached, self.budget().held, memory) {
            self.memory_limit_reached = reached;
            self.limit_event("memory", reached);
        }
    }

    fn watch_shares(&mut self) {
        let mut crossings = Vec::new();
        for peer in self.peers.values() {
            let (flows, share) = (peer.open(), self.share_of(peer));
            if let Some(reached) = crossed(peer.is_at_share, flows, share) {
                crossings.push((peer.config.node, reached, flows));
            }
        }
        for (node, reached, flows) in crossings {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.is_at_share = reached;
            }
            self.event(match reached {
                true => EngineEvent::PeerAtShare { peer: node, flows },
                false => EngineEvent::PeerBelowShare { peer: node },
            });
        }
    }

    /// The memory that the node holds for its flows, and its limit.
    pub(super) fn budget(&self) -> MemoryBudget {
        MemoryBudget {
            limit: self.config.limits.memory.as_usize(),
            held: self.buffered
                + self.session_memory
                + self.accelerator_states.held()
                + self.kept_contents.held(),
        }
    }

    /// Resets flows above the hard limit of memory until less is held. It chooses the peer with the
    /// most memory, and its largest flows. Returns true if it reset any.
    fn shed(&mut self, now: Time) -> bool {
        if self.budget().excess() == 0 {
            return false;
        }
        let sessions = self.peers.iter();
        let mut peers: BTreeMap<NodeId, usize> = sessions
            .map(|(node, peer)| (*node, peer.session.memory()))
            .collect();
        for flow in self.flows.values() {
            *peers.entry(flow.peer).or_default() += flow.accounted;
        }
        let order = |flow: &Flow| {
            let peer = self.peers.get(&flow.peer);
            let in_session = peer.zip(flow.id());
            let in_session = in_session.map_or(0, |(peer, id)| peer.session.flow_memory(id));
            let own = flow.accounted + in_session;
            (peers.get(&flow.peer).copied(), own, flow.number)
        };
        let mut flows: Vec<_> = self.flows.values().map(|flow| order(flow)).collect();
        flows.sort_unstable();
        let before = flows.len();
        while self.budget().excess() > 0
            && let Some((_, _, number)) = flows.pop()
        {
            let broken = FlowFailure {
                recurs: None,
                reset: ResetReason::Limit,
                text: "the node exceeded its memory limit, and this flow used most of the memory"
                    .to_owned(),
            };
            self.turn(now, number, |_, _| Err(broken));
            self.count_session_memory();
        }
        flows.len() < before
    }

    fn count_session_memory(&mut self) {
        let sessions = self.peers.values().map(|peer| &peer.session);
        self.session_memory = sessions.map(tunnel::Session::memory).sum();
    }

    pub(super) fn limit_event(&mut self, limit: &'static str, reached: bool) {
        self.event(match reached {
            true => EngineEvent::LimitReached { limit },
            false => EngineEvent::LimitCleared { limit },
        });
    }

    pub(super) fn watch_interception(&mut self) {
        let none = self.stop_at.is_some()
            || self.stopped
            || self.flow_limit_reached
            || self.memory_limit_reached;
        let wanted: Vec<NodeId> = self
            .peers
            .values()
            .filter(|peer| !none && peer.takes_intercepted() && !peer.is_at_share)
            .map(|peer| peer.config.node)
            .collect();
        if self.intercepted.as_ref() != Some(&wanted) {
            self.intercepted = Some(wanted.clone());
            self.outputs
                .push_back(EngineOutput::Intercept { peers: wanted });
        }
    }

    /// Records the reachability of a peer that has a link. Returns false for a peer without a link,
    /// which stays down.
    pub(super) fn set_reach(&mut self, node: NodeId, reach: PeerReachability) -> bool {
        let peer = self.peers.get_mut(&node);
        let Some(peer) = peer.filter(|peer| peer.link.is_some()) else {
            return false;
        };
        peer.reach = reach;
        true
    }

    /// Records that the server of this flow or direct connection failed. An intercepted client is
    /// reset once the server is bypassed: its next attempt, which may follow at once, must reach
    /// the server itself. A client that was not accepted yet gets the outcome at once, because it
    /// does not know yet whether the port is open. A proxy's client cannot bypass the node, so its
    /// server is not bypassed.
    pub(super) fn server_failed(&mut self, now: Time, number: u64, failure: ConnectFailure) {
        let flow = self.flows.get(&number);
        let direct = self.directs.get(&number);
        let (client, server, via, asks) = match (flow, direct) {
            (Some(flow), _) => (flow.client, flow.server, flow.via, flow.asks()),
            (None, Some(direct)) => {
                let via = Some(direct.via);
                (direct.client, direct.server, via, direct.asks())
            }
            (None, None) => return,
        };
        if self.reached_servers.failed(server) {
            self.outputs
                .push_back(EngineOutput::AcceptAfterServer { server });
        }
        if via != Some(ArrivalMethod::Transparent) {
            return self.end_failed(now, number, failure);
        }
        let bypass = (self.unreachable_servers).failed(now, client.ip(), server, failure.into());
        if let Some(server) = bypass.displaced {
            self.outputs.push_back(EngineOutput::Readmit { server });
        }
        match bypass.lasting {
            Some(lasting) => self
                .outputs
                .push_back(EngineOutput::Avoid { server, lasting }),
            None if self.waiting_for_bypass.contains_key(&server) => {}
            None => return self.end_failed(now, number, failure),
        }
        if asks {
            return self.end_failed(now, number, failure);
        }
        let waiting = self.waiting_for_bypass.entry(server).or_default();
        waiting.push((number, failure));
    }

    /// A connection that does not go through a peer succeeded.
    pub(super) fn server_answered_directly(&mut self, server: SocketAddr) {
        if self.unreachable_servers.answered_directly(server) {
            self.outputs.push_back(EngineOutput::Readmit { server });
        }
    }

    /// Records that a connection to the server succeeded; its back-off restarts.
    pub(super) fn server_succeeded(&mut self, server: SocketAddr) {
        if self.unreachable_servers.succeeded(server) {
            self.outputs.push_back(EngineOutput::Readmit { server });
        }
    }

    /// The same through a peer: the next client is accepted at once.
    pub(super) fn server_reached(&mut self, now: Time, server: SocketAddr) {
        self.server_succeeded(server);
        let reached = self.reached_servers.succeeded(now, server);
        if let Some(server) = reached.displaced {
            self.outputs
                .push_back(EngineOutput::AcceptAfterServer { server });
        }
        if let Some(lasting) = reached.lasting {
            self.outputs
                .push_back(EngineOutput::AcceptAtOnce { server, lasting });
        }
    }

    /// The far node found that the server's answers to the client of this flow take another route.
    pub(super) fn route_is_asymmetric(&mut self, now: Time, node: NodeId, number: u64) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let (client, server) = (flow.client.ip(), flow.server.ip());
        let peer = self.peers.get(&node);
        let prefixes = peer.map(|peer| peer.config.prefixes.as_slice());
        let configured = prefixes.unwrap_or_default().iter();
        let configured = configured.filter(|prefix| prefix.contains(server)).copied();
        let configured = configured.max_by_key(IpPrefix::length);
        let found = (self.asymmetric_routes).found(now, client, server, configured);
        let Some(((clients, servers), lasting)) = found else {
            return;
        };
        self.put_out_bypassed_routes();
        self.event(EngineEvent::AsymmetricRoute {
            peer: node,
            clients,
            servers,
            lasting,
        });
    }

    pub(super) fn put_out_bypassed_routes(&mut self) {
        let routes = self.asymmetric_routes.bypassed();
        self.outputs
            .push_back(EngineOutput::BypassRoutes { routes });
    }

    fn avoided(&mut self, now: Time, server: SocketAddr) {
        for (number, failure) in self.waiting_for_bypass.remove(&server).unwrap_or_default() {
            self.end_failed(now, number, failure);
        }
    }

    pub(super) fn end_failed(&mut self, now: Time, number: u64, failure: ConnectFailure) {
        if let Some(flow) = self.flows.get_mut(&number) {
            flow.connect_failure = Some(failure);
        }
        if let Some(direct) = self.directs.get_mut(&number) {
            direct.failed(failure, &mut self.outputs);
            self.forget_direct(now, number, why::failure_text(failure));
        } else {
            let reason = why::answer_text(failure);
            let flow = self.flows.get(&number).filter(|flow| flow.asks());
            let Some(connection) = flow.map(|flow| flow.connection()) else {
                return self.fail_flow(now, number, reason);
            };
            self.outputs.push_back(EngineOutput::Decline {
                connection,
                failure,
            });
            self.forget_failed_flow(now, number, reason);
        }
    }

    pub(super) fn event(&mut self, event: EngineEvent) {
        self.outputs.push_back(EngineOutput::Event(event));
    }

    pub(super) fn peer_name(&self, node: NodeId) -> &str {
        self.peers
            .get(&node)
            .map_or("gone", |peer| peer.config.name.as_str())
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    pub(super) fn next_opened(&mut self) -> ConnectionId {
        self.next_opened += 1;
        ConnectionId::Opened(self.next_opened - 1)
    }
}

/// Returns true when usage reaches a limit, false when it falls below it, and `None` when neither
/// changes.
fn crossed(reached: bool, used: usize, limit: usize) -> Option<bool> {
    if !reached && used >= limit {
        return Some(true);
    }
    let cleared = (limit as u128 * CLEARED_BELOW_PERCENT as u128).div_ceil(100) as usize;
    (reached && used < cleared).then_some(false)
}
