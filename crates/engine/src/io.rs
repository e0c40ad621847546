//! The engine's inputs, outputs and events: everything that a node exchanges with the outside.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use vocab::NodeId;

use tunnel::DatagramAgreement;
use tunnel::transport::{EcnMarking, PathKeys, SuspendReason};
use tunnel::wire::DatagramOffer;
pub use tunnel::{ConnectFailure, LinkEnd, LinkId};

use crate::{EngineConfig, IpPrefix, NetworkSurroundings};

/// A TCP connection on the LAN side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionId {
    /// A client's, numbered by the shell that accepted it; a number is used once.
    Accepted(u64),
    /// A connection to a server, numbered by the engine that requested it.
    Opened(u64),
}

/// The way in which a client's connection reached the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalMethod {
    /// Intercepted on its way; the client's address is kept on the far leg.
    Transparent,
    /// By SOCKS5 (RFC 1928); the far node connects with its own address.
    Socks5,
    /// By HTTP CONNECT (RFC 9110 §9.3.6); the far node connects with its own address.
    HttpConnect,
}

impl fmt::Display for ArrivalMethod {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Transparent => "transparent",
            Self::Socks5 => "socks5",
            Self::HttpConnect => "http-connect",
        })
    }
}

/// An event outside the engine.
#[derive(Debug)]
pub enum EngineInput {
    /// A client's connection was accepted.
    Accepted {
        /// The new connection.
        connection: ConnectionId,
        /// The client's address.
        client: SocketAddr,
        /// The address the client wanted to reach.
        server: SocketAddr,
        /// The way in which it arrived.
        via: ArrivalMethod,
    },
    /// A client asks for a connection and waits for the outcome: its SYN is held, or its request to a proxy is
    /// not answered yet. Answered by [`EngineOutput::Admit`], [`EngineOutput::Decline`] or [`EngineOutput::Reset`].
    Asked {
        /// The new connection.
        connection: ConnectionId,
        /// The client's address.
        client: SocketAddr,
        /// The address the client wants to reach.
        server: SocketAddr,
        /// The way in which it arrived.
        via: ArrivalMethod,
    },
    /// Bytes were read; never more than the read credit that was given.
    Received {
        /// The connection that the bytes come from.
        connection: ConnectionId,
        /// The bytes.
        bytes: Bytes,
    },
    /// The host sends no more (a FIN was read).
    Finished {
        /// The connection whose stream ended.
        connection: ConnectionId,
    },
    /// The host has reset the connection, or it failed, and not all that had arrived is read: nothing can
    /// be written any more, the rest is read as credit allows, and [`EngineInput::Aborted`] follows.
    Failed {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection is gone: reset by the host or failed, with nothing left to read, or reset after
    /// [`EngineOutput::ResetWhenDelivered`].
    Aborted {
        /// The connection.
        connection: ConnectionId,
    },
    /// So many bytes of earlier [`EngineOutput::Write`]s were taken by the operating system. None after
    /// [`EngineOutput::ResetWhenDelivered`], when the host has acknowledged more and not yet all.
    Written {
        /// The connection that the bytes go to.
        connection: ConnectionId,
        /// The number of additional bytes.
        bytes: usize,
    },
    /// An [`EngineOutput::Connect`] ended.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Open, or why not.
        result: Result<(), ConnectFailure>,
    },
    /// An authenticated link to a peer is up.
    LinkUp {
        /// The new link, numbered by the shell; a number is used once.
        link: LinkId,
        /// The peer whose identity was verified at the other end.
        peer: NodeId,
        /// True if this node dialled the link.
        dialed_by_us: bool,
        /// The address where this node receives packets beside the link; `None` when it receives
        /// none.
        offer: Option<DatagramOffer>,
    },
    /// The keys for the datagram path beside a link, after [`EngineOutput::StartDatagrams`].
    DatagramsReady {
        /// The link.
        link: LinkId,
        /// Made from the link's TLS connection.
        keys: Box<PathKeys>,
        /// The address where the peer receives packets; `None` for the side that learns it from the
        /// packets.
        peer: Option<SocketAddr>,
        /// The largest UDP payload that the interface takes.
        datagram_max: u16,
    },
    /// Packets arrived by UDP for the datagram path beside a link: all of one length, except the
    /// last, which may be shorter.
    Datagrams {
        /// The link.
        link: LinkId,
        /// The source address that the network reports.
        from: SocketAddr,
        /// The ECN codepoint of the packets.
        codepoint: EcnMarking,
        /// The length of each.
        segment: usize,
        /// The packets.
        bytes: BytesMut,
    },
    /// Bytes arrived on a link.
    LinkReceived {
        /// The link.
        link: LinkId,
        /// The bytes.
        bytes: Bytes,
    },
    /// A link is gone.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The reason for the end.
        end: LinkEnd,
    },
    /// The peer refused this node's identity in an authenticated handshake: it has removed this node, and holds
    /// none of its flows any more.
    RefusedByPeer {
        /// The peer.
        peer: NodeId,
    },
    /// A disk request of the dictionary's ended.
    Disk(reduce::DiskCompletion),
    /// An [`EngineOutput::Avoid`] holds from here on, or cannot be made to hold.
    Avoided {
        /// The destination.
        server: SocketAddr,
    },
    /// A server accepted a connection that went directly while the server was bypassed.
    BypassedServerAnswered {
        /// The server.
        server: SocketAddr,
    },
    /// Empty the dictionary, in memory and on disk.
    ClearDictionary {
        /// The key that seals the dictionary from now on; `None` keeps the present key.
        key: Option<reduce::DictionaryKey>,
    },
    /// A request of an accelerator's for a file ended.
    AcceleratorFile {
        /// The accelerator that the request belongs to.
        accelerator: &'static accelerate::registry::AcceleratorEntry,
        /// The result.
        completion: accelerate::shared::FileCompletion,
    },
    /// An operator removes the content of an accelerator; answered by
    /// [`EngineOutput::AcceleratorPurged`].
    PurgeAccelerator {
        /// The shell's number of the request.
        id: u64,
        /// The accelerator's name.
        name: String,
        /// The prefix of the names to remove. An empty prefix removes everything.
        prefix: String,
    },
    /// The machine's routes or addresses, at the start and whenever they have changed.
    Surroundings(NetworkSurroundings),
    /// The time on the calendar, at the start and then every second or so: it can be set while the engine's own
    /// clock runs on.
    Calendar {
        /// Since 1970-01-01 00:00 UTC.
        since_1970: Duration,
    },
    /// The configuration was read again. Flows of peers that are no longer in it are reset.
    Configure(Box<EngineConfig>),
    /// No new flows; [`EngineOutput::Stopped`] when the last has ended, or after `grace`.
    Stop {
        /// The time that flows may take to end by themselves before they are reset.
        grace: Duration,
    },
}

/// For whom a connection is opened: it decides which destinations are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOwner {
    /// A peer's flow; the engine has checked where it may go.
    Peer,
    /// A client of this node's own that goes directly.
    Client {
        /// The client's connection.
        accepted: ConnectionId,
    },
}

/// An action that the engine requests.
#[derive(Debug)]
pub enum EngineOutput {
    /// Write to a host, in the order given.
    Write {
        /// The connection that the bytes go to.
        connection: ConnectionId,
        /// The bytes; their number returns in [`EngineInput::Written`].
        bytes: Bytes,
    },
    /// Send a FIN after all written data; reading continues.
    FinishWrite {
        /// The connection.
        connection: ConnectionId,
    },
    /// Complete the connection of a client that has [asked](EngineInput::Asked) for it. Later
    /// outputs for this connection apply after that; if the client does not complete it, the shell
    /// reports [`EngineInput::Aborted`].
    Admit {
        /// The connection.
        connection: ConnectionId,
    },
    /// Report the outcome to a client that has [asked](EngineInput::Asked) for a connection. The
    /// engine has forgotten it.
    Decline {
        /// The connection.
        connection: ConnectionId,
        /// The reason why the server's connection could not be opened.
        failure: ConnectFailure,
    },
    /// Reset the connection at once. The engine has forgotten it.
    Reset {
        /// The connection.
        connection: ConnectionId,
    },
    /// Reset the connection once the host has acknowledged all written data, because a reset makes
    /// the operating system drop the data that it still holds for the host. Answered by
    /// [`EngineInput::Aborted`].
    ResetWhenDelivered {
        /// The connection.
        connection: ConnectionId,
    },
    /// Close after all that was to be written. The engine has forgotten it.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
    /// The shell may read this many bytes more; credit starts at zero.
    ReadCredit {
        /// The connection that the bytes come from.
        connection: ConnectionId,
        /// The number of additional bytes.
        bytes: usize,
    },
    /// Open a connection to a server; answered by [`EngineInput::Connected`].
    Connect {
        /// The new connection.
        connection: ConnectionId,
        /// The address to bind to, so that the server sees its client; `None` for the node's own.
        client: Option<SocketAddr>,
        /// The address to connect to.
        server: SocketAddr,
        /// For whom.
        on_behalf: ConnectionOwner,
    },
    /// The link may have frames: call [`crate::Engine::transmit`] while it is writable.
    Transmit {
        /// The link.
        link: LinkId,
    },
    /// Make keys for the datagram path beside this link and answer by [`EngineInput::DatagramsReady`].
    StartDatagrams {
        /// The link.
        link: LinkId,
        /// The parameters that the two nodes have agreed on.
        agreement: Box<DatagramAgreement>,
    },
    /// The datagram path beside the link may have packets: call
    /// [`crate::Engine::transmit_datagrams`] until it has none.
    TransmitDatagrams {
        /// The link.
        link: LinkId,
    },
    /// Hand these bytes to the link, whatever room it has: they are its last, and
    /// [`EngineOutput::CloseLink`] follows.
    SendLast {
        /// The link.
        link: LinkId,
        /// Whole frames.
        bytes: Bytes,
    },
    /// Close this link.
    CloseLink {
        /// The link.
        link: LinkId,
        /// The reason, for the log.
        reason: String,
    },
    /// A disk request of the dictionary's; answered by [`EngineInput::Disk`].
    Disk(reduce::DiskRequest),
    /// A request of an accelerator for a file in its own directory; answered by
    /// [`EngineInput::AcceleratorFile`]. Requests of one accelerator are executed in order.
    AcceleratorFile {
        /// The accelerator that sends the request.
        accelerator: &'static accelerate::registry::AcceleratorEntry,
        /// The requested operation.
        request: accelerate::shared::FileRequest,
    },
    /// An operator's request has ended.
    AcceleratorPurged {
        /// The number of the request.
        id: u64,
        /// The entries removed, or the error.
        result: Result<accelerate::shared::PurgeCount, String>,
    },
    /// Bypass this destination for so long from now, replacing any earlier time; answered by
    /// [`EngineInput::Avoided`].
    Avoid {
        /// The server.
        server: SocketAddr,
        /// The duration.
        lasting: Duration,
    },
    /// End the bypass of this destination, if it is still running.
    Readmit {
        /// The server.
        server: SocketAddr,
    },
    /// Accept intercepted clients of this server before it answers, for so long from now, where the
    /// policy allows learning.
    AcceptAtOnce {
        /// The server.
        server: SocketAddr,
        /// The duration.
        lasting: Duration,
    },
    /// Accept intercepted clients of this server only after it has answered, from now on.
    AcceptAfterServer {
        /// The server.
        server: SocketAddr,
    },
    /// Bypass connections from these clients to these servers, and no other pairs of networks.
    BypassRoutes {
        /// The whole set: the clients' network and the servers'.
        routes: Vec<(IpPrefix, IpPrefix)>,
    },
    /// Intercept nothing from these clients for so long.
    PassBy {
        /// The clients whose connections bypass this node.
        clients: IpPrefix,
        /// The duration.
        lasting: Duration,
    },
    /// Intercept the prefixes of these peers, and no others.
    Intercept {
        /// The whole set.
        peers: Vec<NodeId>,
    },
    /// For the log.
    Event(EngineEvent),
    /// All flows have ended after [`EngineInput::Stop`].
    Stopped,
}

/// A change that an operator would want in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A session with the peer is up on this link.
    PeerUp {
        /// The peer.
        peer: NodeId,
        /// The link.
        link: LinkId,
    },
    /// The link to the peer is gone; its prefixes are not intercepted until there is another.
    PeerDown {
        /// The peer.
        peer: NodeId,
    },
    /// The peer has been silent for some seconds; its prefixes are no longer intercepted. A shell
    /// that can dial it should do so now.
    PeerSilent {
        /// The peer.
        peer: NodeId,
    },
    /// Connections to servers behind a silent peer that the peer never confirmed were not left to wait.
    UnansweredFlowsEnded {
        /// The peer.
        peer: NodeId,
        /// The flows that continued directly, with all bytes of their clients.
        direct: usize,
        /// The flows that were reset, because the peer may have connected to the server already.
        reset: usize,
    },
    /// The peer is given up, because its process died or was silent for too long. Its flows are
    /// reset.
    PeerLost {
        /// The peer.
        peer: NodeId,
        /// The number of flows.
        flows: usize,
    },
    /// The peer has removed this node. Its flows are reset.
    RefusedByPeer {
        /// The peer.
        peer: NodeId,
        /// The number of flows.
        flows: usize,
    },
    /// The peer has ended its silence.
    PeerHeard {
        /// The peer.
        peer: NodeId,
    },
    /// The peer's node was restarted and has forgotten its flows.
    PeerRestarted {
        /// The peer.
        peer: NodeId,
    },
    /// The packet filter of the peer's machine drops connections with a client's address; they pass
    /// by for a while.
    PeerFiltered {
        /// The peer.
        peer: NodeId,
    },
    /// The link to the peer broke, and its flows continue in packets if those are answered.
    LinkBroken {
        /// The peer.
        peer: NodeId,
    },
    /// Flows to the peer travel in packets by UDP from here on.
    DatagramsUp {
        /// The peer.
        peer: NodeId,
    },
    /// They travel by TLS again.
    DatagramsDown {
        /// The peer.
        peer: NodeId,
        /// The reason.
        reason: SuspendReason,
    },
    /// The servers' answers to these clients do not come back through the peer; their connections are
    /// bypassed.
    AsymmetricRoute {
        /// The peer behind which the servers are.
        peer: NodeId,
        /// The clients' network.
        clients: IpPrefix,
        /// The servers' network.
        servers: IpPrefix,
        /// For how long.
        lasting: Duration,
    },
    /// Disk requests of the dictionary have failed; it continues in memory. Reported at the first
    /// and whenever their number has doubled.
    DictionaryFault {
        /// Failed requests since the start.
        faults_total: u64,
    },
    /// An accelerator has trouble with the disk.
    AcceleratorDisk {
        /// The accelerator's name.
        accelerator: &'static str,
        /// The trouble.
        trouble: accelerate::shared::DiskTrouble,
    },
    /// The dictionary has recovered its content from disk, and has deleted the unusable part.
    DictionaryRejected {
        /// Segments deleted.
        segments: u64,
        /// The entries among these in an older version of the format.
        outdated: u64,
        /// The entries among these sealed with another key, or damaged at their front.
        sealed: u64,
    },
    /// The peer broke the rules of the protocol. Reported at most once a minute for each peer.
    PeerMisbehaved {
        /// The peer.
        peer: NodeId,
        /// The violation.
        what: String,
        /// The violations of this peer since the last reported one.
        unlogged: u64,
    },
    /// A limit was reached; new connections are passed by.
    LimitReached {
        /// The limit, by its name in the configuration.
        limit: &'static str,
    },
    /// The count has fallen below the limit again.
    LimitCleared {
        /// The limit, by its name in the configuration.
        limit: &'static str,
    },
    /// A client's address has its share of the flows: its new connections pass by for some seconds.
    SourceAtShare {
        /// The clients that reached their share.
        clients: IpPrefix,
        /// The number of connections that they have open.
        open: usize,
    },
    /// A peer has its share of the flows: new connections to it bypass the node, and those that it
    /// opens are refused.
    PeerAtShare {
        /// The peer.
        peer: NodeId,
        /// Flows to and from it.
        flows: usize,
    },
    /// A peer is well below its share again.
    PeerBelowShare {
        /// The peer.
        peer: NodeId,
    },
    /// The policy refused flows that a peer opened. Reported at the first of them, and then at most
    /// once a minute.
    OpensRefused {
        /// The peer.
        peer: NodeId,
        /// The number of opens since the last event.
        opens: u64,
        /// The reason for the last of them.
        reason: &'static str,
        /// The client that the last of them named.
        client: SocketAddr,
        /// The server that the last of them named.
        server: SocketAddr,
    },
    /// A flow ended by a failure.
    FlowFailed {
        /// Its number in `flows`.
        flow: u64,
        /// The cause.
        reason: String,
    },
}
