//! The site: hosts, nodes and link in one loop of virtual time.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use emulate::{Link, LinkConfig, LinkDirection};
use engine::EngineInput;
use tcp::{ConnectionConfig, ConnectionNumber, FlowAddresses, TcpSegment, emit_packet};
use testkit::{VirtualClock, earliest};
use thiserror::Error;
use vocab::{SeededRandom, Time};

use crate::host::{HostSockets, SocketEvent};
use crate::node::{CALENDAR_START, FAR, NEAR, SimulatedNode};
use crate::packet::{self, LinkPacket};
use crate::recording::{SiteRecording, TappedHeader, TappedPacket};
use crate::scripts::{self, ClientScript, ServerScript, SimulatedWorkload};

/// Addresses of the hosts, those of the lab.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 2);
/// The discard port (RFC 863), where markers go.
const MARKER_PORT: u16 = 9;
/// Virtual time that one transfer may take, as the lab's clients may.
const TRANSFER_MOST: Duration = Duration::from_secs(3600);
/// Virtual time that the nodes' session may take to start: 20 round trips of the longest delay.
const SESSION_MOST: Duration = Duration::from_secs(200);
/// Virtual time in which an echo may be answered.
const ECHO_MOST: Duration = Duration::from_secs(30);
/// Virtual time for connections to close behind a transfer.
const CLOSE_MOST: Duration = Duration::from_secs(30);

/// Settings of a site.
#[derive(Clone, Debug)]
pub struct SiteSettings {
    /// The link; forward is from the client to the server.
    pub link: LinkConfig,
    /// The nodes; `None` for client and server alone.
    pub nodes: Option<NodeSettings>,
    /// Response times of the hosts' programs.
    pub hosts: HostLatency,
    /// Seed of sequence numbers and of the nodes' chances.
    pub seed: u64,
}

/// Time from an event of a connection to the program's reaction. TCP itself reacts at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLatency {
    /// Time of the client program.
    pub client: Duration,
    /// Time of the server program.
    pub server: Duration,
}

/// Events that a program has not reacted to.
type WaitingEvents = VecDeque<(Time, ConnectionNumber, SocketEvent)>;

/// Settings of both nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// True if the accelerators of SMB, HTTP and MAPI are on.
    pub is_accelerated: bool,
    /// Forward error correction.
    pub correction: NodeCorrection,
}

/// Forward error correction of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCorrection {
    /// Never.
    Off,
    /// As the nodes decide.
    Auto,
}

/// Failure of a site.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimulationFailure {
    /// The models cannot use the link.
    #[error("the link cannot be simulated: {0}")]
    Link(String),
    /// The nodes have no session.
    #[error("the nodes have no session after {} s of virtual time", .0.as_secs())]
    NoSession(Duration),
}

/// Outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOutcome {
    /// Content of each file at its receiver, in order; `None` for a file that did not arrive whole.
    pub arrivals: Vec<Option<Bytes>>,
    /// Text of the failure, if there was one.
    pub failure: Option<String>,
}

/// Client, server, link, and nodes between them.
pub struct SimulatedSite {
    clock: VirtualClock,
    client: HostSockets,
    server: HostSockets,
    nodes: Option<[SimulatedNode; 2]>,
    link: Link,
    latency: HostLatency,
    client_events: WaitingEvents,
    server_events: WaitingEvents,
    recording: Option<SiteRecording>,
    /// Time of the last answer to an ICMP echo.
    echo_answered: Option<Time>,
}

impl SimulatedSite {
    /// A site whose nodes, if any, have a session.
    ///
    /// # Errors
    /// Fails when the models cannot use the link, or the session does not start over it.
    pub fn new(settings: SiteSettings) -> Result<Self, SimulationFailure> {
        let SiteSettings {
            link,
            nodes,
            hosts: latency,
            seed,
        } = settings;
        for way in [&link.forward, &link.back] {
            let checked = way.check();
            checked.map_err(|error| SimulationFailure::Link(error.to_string()))?;
        }
        let host = |address: Ipv4Addr, stream| {
            let random = SeededRandom::for_stream(seed, stream);
            HostSockets::new(address.into(), ConnectionConfig::default(), random)
        };
        let mut site = Self {
            clock: VirtualClock::new(),
            client: host(CLIENT, 101),
            server: host(SERVER, 102),
            nodes: nodes.map(|nodes| [NEAR, FAR].map(|own| SimulatedNode::new(own, nodes, seed))),
            link: Link::new(link),
            latency,
            client_events: VecDeque::new(),
            server_events: VecDeque::new(),
            recording: None,
            echo_answered: None,
        };
        for port in scripts::SERVER_PORTS {
            site.server.listen(port);
            if let Some([near, _]) = &mut site.nodes {
                near.intercept(port);
            }
        }
        if site.nodes.is_some() {
            let is_up = |site: &Self| {
                let mut nodes = site.nodes.iter().flatten();
                nodes.all(SimulatedNode::is_ready)
            };
            let mut server = ServerScript::default();
            if !site.run(SESSION_MOST, None, &mut server, is_up) {
                return Err(SimulationFailure::NoSession(SESSION_MOST));
            }
        }
        Ok(site)
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Starts a recording.
    pub fn start_recording(&mut self) {
        self.recording = Some(SiteRecording::default());
    }

    /// Ends the recording and returns it.
    pub fn take_recording(&mut self) -> SiteRecording {
        self.recording.take().unwrap_or_default()
    }

    /// Adds a UDP packet with this payload to both captures, as a marker of what follows. The link does
    /// not carry it.
    pub fn mark(&mut self, payload: &str) {
        let now = self.clock.now();
        let packet = TappedPacket {
            at: now,
            source: (CLIENT, MARKER_PORT).into(),
            destination: (SERVER, MARKER_PORT).into(),
            ip_bytes: (packet::UDP_HEADERS + payload.len()) as u64,
            header: TappedHeader::Udp,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        };
        if let Some(recording) = &mut self.recording {
            recording.client.push(packet.clone());
            recording.link.push(packet);
        }
    }

    /// Sends an ICMP echo from the client's end of the link to the server's, past all nodes, and returns
    /// its round trip; `None` if it is lost. It is in no recording.
    pub fn ping(&mut self) -> Option<Duration> {
        let began = self.clock.now();
        self.echo_answered = None;
        let _ = self.link.forward.handle(began, packet::echo());
        let mut server = ServerScript::default();
        let is_answered = |site: &Self| site.echo_answered.is_some();
        let _ = self.run(ECHO_MOST, None, &mut server, is_answered);
        Some(self.echo_answered?.since(began))
    }

    /// Empties the nodes' dictionaries and caches.
    pub fn empty_caches(&mut self) {
        let now = self.clock.now();
        for node in self.nodes.iter_mut().flatten() {
            node.empty_caches(now);
        }
    }

    /// Transfers files with fresh clients and servers, one after the other, and lets the connections
    /// close.
    pub fn transfer(
        &mut self,
        workload: SimulatedWorkload,
        files: &[(String, Bytes)],
    ) -> TransferOutcome {
        let now = self.clock.now();
        for node in self.nodes.iter_mut().flatten() {
            let since_1970 = CALENDAR_START + now.since(Time::ZERO);
            node.input(now, EngineInput::Calendar { since_1970 });
        }
        let mut client = scripts::client(workload, files);
        let mut server = ServerScript::new(workload, files, CALENDAR_START);
        client.start(&mut self.client, SERVER.into());
        let is_in_time = self.run(TRANSFER_MOST, Some(&mut *client), &mut server, |_| false);
        // The server's failure is the cause of the client's.
        let failure = match (server.failure().or(client.failure()), is_in_time) {
            (Some(failure), _) => Some(failure.to_owned()),
            (None, true) => None,
            (None, false) => Some(format!(
                "the transfer did not end within {} s of virtual time",
                TRANSFER_MOST.as_secs()
            )),
        };
        if failure.is_none() {
            let is_quiet = |site: &Self| site.client.is_quiet() && site.server.is_quiet();
            let _ = self.run(CLOSE_MOST, Some(&mut *client), &mut server, is_quiet);
        }
        TransferOutcome {
            arrivals: match workload.is_upload() {
                false => client.arrivals(),
                true => server.arrivals(files),
            },
            failure,
        }
    }

    /// Runs until the client's script has ended for the first time, or `reached` says so. Returns false
    /// if that has not happened when `at_most` has passed, or when nothing is due any more.
    fn run(
        &mut self,
        at_most: Duration,
        mut client: Option<&mut (dyn ClientScript + 'static)>,
        server: &mut ServerScript,
        reached: impl Fn(&Self) -> bool,
    ) -> bool {
        let end = self.clock.now() + at_most;
        let was_done = client.as_ref().is_some_and(|client| client.is_done());
        loop {
            self.settle(client.as_deref_mut(), server);
            let is_done = client.as_ref().is_some_and(|client| client.is_done());
            if (is_done && !was_done) || reached(self) {
                return true;
            }
            let nodes = self.nodes.iter().flatten().map(SimulatedNode::poll_timeout);
            let own = [
                self.client.poll_timeout(),
                self.server.poll_timeout(),
                self.link.poll_timeout(),
                self.client_events.front().map(|event| event.0),
                self.server_events.front().map(|event| event.0),
            ];
            match earliest(nodes.chain(own)) {
                Some(next) if next <= end => self.clock.jump_to(next),
                Some(_) | None => {
                    self.clock.jump_to(end);
                    return false;
                }
            };
        }
    }

    /// Does all that can be done at this moment.
    fn settle(
        &mut self,
        mut client: Option<&mut (dyn ClientScript + 'static)>,
        server: &mut ServerScript,
    ) {
        let now = self.clock.now();
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
        for node in self.nodes.iter_mut().flatten() {
            node.handle_timeout(now);
        }
        loop {
            let mut moved = self.exchange(now);
            while let Some((socket, event)) = self.client.poll_event() {
                moved = true;
                let due = now + self.latency.client;
                self.client_events.push_back((due, socket, event));
            }
            while let Some((socket, event)) = self.server.poll_event() {
                moved = true;
                let due = now + self.latency.server;
                self.server_events.push_back((due, socket, event));
            }
            while let Some((socket, event)) = next_due(now, &mut self.client_events) {
                moved = true;
                if let Some(client) = client.as_deref_mut() {
                    client.handle(&mut self.client, socket, event);
                }
            }
            while let Some((socket, event)) = next_due(now, &mut self.server_events) {
                moved = true;
                server.handle(now, &mut self.server, socket, event);
            }
            moved |= self.client.flush(now);
            moved |= self.server.flush(now);
            for node in self.nodes.iter_mut().flatten() {
                moved |= node.act(now);
            }
            if !moved {
                return;
            }
        }
    }

    /// Moves packets between hosts, nodes and link. Returns true if there was one.
    fn exchange(&mut self, now: Time) -> bool {
        let Self {
            client,
            server,
            nodes,
            link,
            recording,
            echo_answered,
            ..
        } = self;
        let mut moved = false;
        let Some([near, far]) = nodes else {
            while let Some((addresses, segment)) = client.poll_segment(now) {
                tap_client(recording, now, &addresses, &segment);
                tap_link(recording, || {
                    TappedPacket::segment(now, &addresses, &segment)
                });
                let _ = link.forward.handle(now, emit_packet(&addresses, &segment));
                moved = true;
            }
            while let Some((addresses, segment)) = server.poll_segment(now) {
                let _ = link.back.handle(now, emit_packet(&addresses, &segment));
                moved = true;
            }
            while let Some(packet) = arrived(now, &mut link.forward, &mut moved) {
                match packet {
                    LinkPacket::Segment(addresses, segment) => {
                        server.handle(now, addresses, &segment);
                    }
                    LinkPacket::Echo => {
                        let _ = link.back.handle(now, packet::echo());
                    }
                    LinkPacket::Datagram { .. } => {}
                }
            }
            while let Some(packet) = arrived(now, &mut link.back, &mut moved) {
                match packet {
                    LinkPacket::Segment(addresses, segment) => {
                        let sender = addresses.reversed();
                        tap_link(recording, || TappedPacket::segment(now, &sender, &segment));
                        tap_client(recording, now, &sender, &segment);
                        client.handle(now, addresses, &segment);
                    }
                    LinkPacket::Echo => *echo_answered = Some(now),
                    LinkPacket::Datagram { .. } => {}
                }
            }
            return moved;
        };
        while let Some((addresses, segment)) = client.poll_segment(now) {
            tap_client(recording, now, &addresses, &segment);
            near.lan.handle(now, addresses.reversed(), &segment);
            moved = true;
        }
        while let Some((addresses, segment)) = near.lan.poll_segment(now) {
            tap_client(recording, now, &addresses, &segment);
            client.handle(now, addresses.reversed(), &segment);
            moved = true;
        }
        while let Some((addresses, segment)) = far.lan.poll_segment(now) {
            server.handle(now, addresses.reversed(), &segment);
            moved = true;
        }
        while let Some((addresses, segment)) = server.poll_segment(now) {
            far.lan.handle(now, addresses.reversed(), &segment);
            moved = true;
        }
        while let Some(packet) = next_packet(now, near) {
            tap_link(recording, || tapped(now, &packet));
            let _ = link.forward.handle(now, packet);
            moved = true;
        }
        while let Some(packet) = next_packet(now, far) {
            let _ = link.back.handle(now, packet);
            moved = true;
        }
        while let Some(packet) = arrived(now, &mut link.forward, &mut moved) {
            if let LinkPacket::Echo = packet {
                let _ = link.back.handle(now, packet::echo());
            }
            deliver(now, far, packet);
        }
        while let Some(delivery) = link.back.poll_output(now) {
            moved = true;
            let packet = packet::parse(&delivery.packet);
            if let Some(LinkPacket::Echo) = packet {
                *echo_answered = Some(now);
                continue;
            }
            tap_link(recording, || tapped(now, &delivery.packet));
            if let Some(packet) = packet {
                deliver(now, near, packet);
            }
        }
        moved
    }
}

/// The next event that its program reacts to now.
fn next_due(now: Time, events: &mut WaitingEvents) -> Option<(ConnectionNumber, SocketEvent)> {
    let (_, socket, event) = events.pop_front_if(|(due, ..)| *due <= now)?;
    Some((socket, event))
}

/// The next packet of a node for the link.
fn next_packet(now: Time, node: &mut SimulatedNode) -> Option<Bytes> {
    if let Some(packet) = node.poll_packet() {
        return Some(packet);
    }
    let (addresses, segment) = node.stream_host.poll_segment(now)?;
    Some(emit_packet(&addresses, &segment))
}

/// The next packet that has crossed a direction undamaged.
fn arrived(now: Time, direction: &mut LinkDirection, moved: &mut bool) -> Option<LinkPacket> {
    loop {
        let delivery = direction.poll_output(now)?;
        *moved = true;
        // A damaged packet is lost.
        if let Some(packet) = packet::parse(&delivery.packet) {
            return Some(packet);
        }
    }
}

fn deliver(now: Time, node: &mut SimulatedNode, packet: LinkPacket) {
    match packet {
        LinkPacket::Segment(addresses, segment) => {
            node.stream_host.handle(now, addresses, &segment);
        }
        LinkPacket::Datagram {
            source, payload, ..
        } => node.take_datagram(now, source, &payload),
        LinkPacket::Echo => {}
    }
}

fn tap_client(
    recording: &mut Option<SiteRecording>,
    now: Time,
    addresses: &FlowAddresses,
    segment: &TcpSegment,
) {
    if let Some(recording) = recording {
        let packet = TappedPacket::segment(now, addresses, segment);
        recording.client.push(packet);
    }
}

fn tap_link(recording: &mut Option<SiteRecording>, packet: impl FnOnce() -> TappedPacket) {
    if let Some(recording) = recording {
        recording.link.push(packet());
    }
}

/// A packet of the nodes as the capture at the link shows it.
fn tapped(now: Time, bytes: &Bytes) -> TappedPacket {
    match packet::parse(bytes) {
        Some(LinkPacket::Segment(addresses, segment)) => {
            TappedPacket::segment(now, &addresses.reversed(), &segment)
        }
        Some(LinkPacket::Datagram {
            source,
            destination,
            ..
        }) => TappedPacket::datagram(now, source, destination, bytes.len()),
        Some(LinkPacket::Echo) | None => {
            let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            TappedPacket::datagram(now, nowhere, nowhere, bytes.len())
        }
    }
}

#[cfg(test)]
mod tests;
