//! What goes into an engine and what comes out of it: the whole of a node's outside world.

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
    /// One to a server, numbered by the engine that asked for it.
    Opened(u64),
}

/// How a client's connection came to the node.
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

/// What happened outside.
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
        /// How it came.
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
        /// How it came.
        via: ArrivalMethod,
    },
    /// Bytes were read; never more than the read credit that was given.
    Received {
        /// Where from.
        connection: ConnectionId,
        /// The bytes.
        bytes: Bytes,
    },
    /// The host sends no more (a FIN was read).
    Finished {
        /// Whose stream ended.
        connection: ConnectionId,
    },
    /// The host has reset the connection, or it failed, and not all that had arrived is read: nothing can
    /// be written any more, the rest is read as credit allows, and [`EngineInput::Aborted`] follows.
    Failed {
        /// Which.
        connection: ConnectionId,
    },
    /// The connection is gone: reset by the host or failed, with nothing left to read, or reset after
    /// [`EngineOutput::ResetWhenDelivered`].
    Aborted {
        /// Which.
        connection: ConnectionId,
    },
    /// So many bytes of earlier [`EngineOutput::Write`]s were taken by the operating system. None after
    /// [`EngineOutput::ResetWhenDelivered`], when the host has acknowledged more and not yet all.
    Written {
        /// Where to.
        connection: ConnectionId,
        /// How many more bytes.
        bytes: usize,
    },
    /// An [`EngineOutput::Connect`] ended.
    Connected {
        /// Which.
        connection: ConnectionId,
        /// Open, or why not.
        result: Result<(), ConnectFailure>,
    },
    /// An authenticated link to a peer is up.
    LinkUp {
        /// The new link, numbered by the shell; a number is used once.
        link: LinkId,
        /// Whose identity was verified at its other end.
        peer: NodeId,
        /// Whether this node dialled it.
        dialed_by_us: bool,
        /// Where this node takes packets beside the link; `None` when it takes none.
        offer: Option<DatagramOffer>,
    },
    /// Keys for the datagram path beside a link, after [`EngineOutput::StartDatagrams`].
    DatagramsReady {
        /// Which.
        link: LinkId,
        /// Made from the link's TLS connection.
        keys: Box<PathKeys>,
        /// Where the peer takes packets; `None` for the side that waits to see where they come from.
        peer: Option<SocketAddr>,
        /// The largest UDP payload that the interface takes.
        datagram_max: u16,
    },
    /// Packets came by UDP for the datagram path beside a link: all of one length, but the last,
    /// which may be shorter.
    Datagrams {
        /// Which.
        link: LinkId,
        /// Where from, as far as the network says.
        from: SocketAddr,
        /// How the network marked them.
        codepoint: EcnMarking,
        /// The length of each.
        segment: usize,
        /// The packets.
        bytes: BytesMut,
    },
    /// Bytes arrived on a link.
    LinkReceived {
        /// Which.
        link: LinkId,
        /// The bytes.
        bytes: Bytes,
    },
    /// A link is gone.
    LinkDown {
        /// Which.
        link: LinkId,
        /// How it ended.
        end: LinkEnd,
    },
    /// The peer refused this node's identity in an authenticated handshake: it has removed this node, and holds
    /// none of its flows any more.
    RefusedByPeer {
        /// Who.
        peer: NodeId,
    },
    /// A disk request of the dictionary's ended.
    Disk(reduce::DiskCompletion),
    /// An [`EngineOutput::Avoid`] holds from here on, or cannot be made to hold.
    Avoided {
        /// Which destination.
        server: SocketAddr,
    },
    /// A server accepted a connection that went directly while the server was bypassed.
    BypassedServerAnswered {
        /// Which server.
        server: SocketAddr,
    },
    /// Empty the dictionary, in memory and on disk.
    ClearDictionary {
        /// What seals it from now on; the same key as before if there is none.
        key: Option<reduce::DictionaryKey>,
    },
    /// A request of an accelerator's for a file ended.
    AcceleratorFile {
        /// Whose.
        accelerator: &'static accelerate::registry::AcceleratorEntry,
        /// How it ended.
        completion: accelerate::shared::FileCompletion,
    },
    /// An operator removes what an accelerator keeps; answered by [`EngineOutput::AcceleratorPurged`].
    PurgeAccelerator {
        /// The shell's number of the request.
        id: u64,
        /// The accelerator's name.
        name: String,
        /// What is to go: everything if empty, else what is kept under names that begin so.
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
        /// How long flows may take to end by themselves before they are reset.
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

/// What the engine wants done.
#[derive(Debug)]
pub enum EngineOutput {
    /// Write to a host, in the order given.
    Write {
        /// Where to.
        connection: ConnectionId,
        /// The bytes; their number comes back in [`EngineInput::Written`].
        bytes: Bytes,
    },
    /// Send a FIN after all that was to be written; reading goes on.
    FinishWrite {
        /// Which.
        connection: ConnectionId,
    },
    /// Complete the connection of a client that has [asked](EngineInput::Asked) for it. What follows for this
    /// connection is for after that; if the client does not complete it, that is [`EngineInput::Aborted`].
    Admit {
        /// Which.
        connection: ConnectionId,
    },
    /// Tell a client that has [asked](EngineInput::Asked) for a connection what became of it. The engine has
    /// forgotten it.
    Decline {
        /// Which.
        connection: ConnectionId,
        /// Why the server's connection could not be opened.
        failure: ConnectFailure,
    },
    /// Reset the connection at once. The engine has forgotten it.
    Reset {
        /// Which.
        connection: ConnectionId,
    },
    /// Reset the connection once the host has acknowledged all that was written, because a reset makes the
    /// operating system drop what it still holds for the host. Answered by [`EngineInput::Aborted`].
    ResetWhenDelivered {
        /// Which.
        connection: ConnectionId,
    },
    /// Close after all that was to be written. The engine has forgotten it.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// The shell may read this many bytes more; credit starts at zero.
    ReadCredit {
        /// Where from.
        connection: ConnectionId,
        /// How many bytes more.
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
        /// Which.
        link: LinkId,
    },
    /// Make keys for the datagram path beside this link and answer by [`EngineInput::DatagramsReady`].
    StartDatagrams {
        /// Which.
        link: LinkId,
        /// What the two nodes have agreed on.
        agreement: Box<DatagramAgreement>,
    },
    /// The datagram path beside the link may have packets: call
    /// [`crate::Engine::transmit_datagrams`] until it has none.
    TransmitDatagrams {
        /// Which.
        link: LinkId,
    },
    /// Hand these bytes to the link, whatever room it has: they are its last, and [`EngineOutput::CloseLink`] follows.
    SendLast {
        /// Which.
        link: LinkId,
        /// Whole frames.
        bytes: Bytes,
    },
    /// Close this link.
    CloseLink {
        /// Which.
        link: LinkId,
        /// Why, for the log.
        reason: String,
    },
    /// A disk request of the dictionary's; answered by [`EngineInput::Disk`].
    Disk(reduce::DiskRequest),
    /// A request of an accelerator's for a file in its own directory; answered by
    /// [`EngineInput::AcceleratorFile`]. Requests of one accelerator are carried out in their order.
    AcceleratorFile {
        /// Whose.
        accelerator: &'static accelerate::registry::AcceleratorEntry,
        /// What to do.
        request: accelerate::shared::FileRequest,
    },
    /// An operator's request has ended.
    AcceleratorPurged {
        /// The number of the request.
        id: u64,
        /// What was removed, or why nothing was.
        result: Result<accelerate::shared::PurgeCount, String>,
    },
    /// Bypass this destination for so long from now, whatever was said of it before; answered by
    /// [`EngineInput::Avoided`].
    Avoid {
        /// Which.
        server: SocketAddr,
        /// How long.
        lasting: Duration,
    },
    /// End the bypass of this destination, if it is still running.
    Readmit {
        /// Which.
        server: SocketAddr,
    },
    /// Accept intercepted clients of this server before it is asked, for so long from now, where the
    /// policy leaves that to what was learned.
    AcceptAtOnce {
        /// Which.
        server: SocketAddr,
        /// How long.
        lasting: Duration,
    },
    /// Accept intercepted clients of this server only after it was asked, from now on.
    AcceptAfterServer {
        /// Which.
        server: SocketAddr,
    },
    /// Bypass connections from these clients to these servers, and no other pairs of networks.
    BypassRoutes {
        /// The whole set: the clients' network and the servers'.
        routes: Vec<(IpPrefix, IpPrefix)>,
    },
    /// Intercept nothing that comes from these clients for so long.
    PassBy {
        /// Whose connections go past this node.
        clients: IpPrefix,
        /// How long.
        lasting: Duration,
    },
    /// Intercept what lies behind these peers, and nothing else.
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
        /// Who.
        peer: NodeId,
        /// By which link.
        link: LinkId,
    },
    /// The link to the peer is gone; its prefixes are not intercepted until there is another.
    PeerDown {
        /// Who.
        peer: NodeId,
    },
    /// Nothing was heard from the peer for some seconds; its prefixes are no longer intercepted.
    /// A shell that can dial it should do so now.
    PeerSilent {
        /// Who.
        peer: NodeId,
    },
    /// Connections to servers behind a silent peer that the peer never confirmed were not left to wait.
    UnansweredFlowsEnded {
        /// Who.
        peer: NodeId,
        /// Those that went on directly, with all that their clients had sent.
        direct: usize,
        /// Those that were reset, because the peer may have connected to the server already.
        reset: usize,
    },
    /// The peer is given up, because its process died or nothing was heard for too long. Its flows are reset.
    PeerLost {
        /// Who.
        peer: NodeId,
        /// How many flows there were.
        flows: usize,
    },
    /// The peer has removed this node. Its flows are reset.
    RefusedByPeer {
        /// Who.
        peer: NodeId,
        /// How many flows there were.
        flows: usize,
    },
    /// The peer is heard again.
    PeerHeard {
        /// Who.
        peer: NodeId,
    },
    /// The peer's node was started anew and has forgotten its flows.
    PeerRestarted {
        /// Who.
        peer: NodeId,
    },
    /// The packet filter of the peer's machine drops connections with a client's address; they pass
    /// by for a while.
    PeerFiltered {
        /// Whose.
        peer: NodeId,
    },
    /// The link to the peer broke, and its flows go on in packets if those are answered.
    LinkBroken {
        /// Which.
        peer: NodeId,
    },
    /// Flows to the peer travel in packets by UDP from here on.
    DatagramsUp {
        /// Who.
        peer: NodeId,
    },
    /// They travel by TLS again.
    DatagramsDown {
        /// Who.
        peer: NodeId,
        /// Why.
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
    /// Disk requests of the dictionary have failed; it goes on in memory. Told at the first and
    /// whenever their number has doubled.
    DictionaryFault {
        /// Failed requests since the start.
        faults_total: u64,
    },
    /// The dictionary has recovered what it could from disk, and what it could not use was deleted.
    DictionaryRejected {
        /// Segments deleted.
        segments: u64,
        /// Of these, in an older version of the format.
        outdated: u64,
        /// Of these, sealed with another key, or damaged at their front.
        sealed: u64,
    },
    /// The peer broke the rules of the protocol. Told at most once a minute for each peer.
    PeerMisbehaved {
        /// Who.
        peer: NodeId,
        /// What it did.
        what: String,
        /// Violations of this peer that were not told since the last one that was.
        unlogged: u64,
    },
    /// A limit was reached; new connections are passed by.
    LimitReached {
        /// Which, as it is called in the configuration.
        limit: &'static str,
    },
    /// There is room again below the limit.
    LimitCleared {
        /// Which.
        limit: &'static str,
    },
    /// A client's address has its share of the flows: its new connections pass by for some seconds.
    SourceAtShare {
        /// Whose.
        clients: IpPrefix,
        /// What it has open.
        open: usize,
    },
    /// A peer has its share of the flows: new connections to it pass by, and those that it opens
    /// are refused.
    PeerAtShare {
        /// Which.
        peer: NodeId,
        /// Flows to and from it.
        flows: usize,
    },
    /// A peer is well below its share again.
    PeerBelowShare {
        /// Which.
        peer: NodeId,
    },
    /// Flows that a peer opened were refused by the policy. Told at the first of them, and then
    /// once a minute at most.
    OpensRefused {
        /// Whose.
        peer: NodeId,
        /// How many since this was last told.
        opens: u64,
        /// Why the last of them was.
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
        /// What happened.
        reason: String,
    },
}
