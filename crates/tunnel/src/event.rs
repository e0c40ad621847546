//! Events from a session to the engine, and the types that both use.

use std::net::SocketAddr;

use bytes::Bytes;
use vocab::FlowId;

use crate::packet::{ConnectionIds, KeyContext, TlsRole};
use crate::transport::SuspendReason;

/// A link, numbered by the shell; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// End of a link, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnd {
    /// The peer's host ended the TCP connection (FIN or RST), as a kernel does when the node's process dies.
    ClosedByPeer,
    /// This node closed it, or it timed out. The peer's process may be alive.
    Lost,
}

/// Parameters that the far node needs to open the connection to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The client's own address.
    pub client: SocketAddr,
    /// The server the client wanted.
    pub server: SocketAddr,
    /// The accelerator's number in the registry.
    pub accelerator: u8,
    /// True if the server is to see the client's address.
    pub keep_client_address: bool,
    /// True if the policy of the node beside the client allows the content to be remembered.
    pub may_store: bool,
    /// The client's class of service (six bits).
    pub dscp: u8,
}

/// Reason why the connection to the server could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectFailure {
    /// The server answered with a reset.
    Refused,
    /// The server did not answer.
    TimedOut,
    /// No route to the server, or an ICMP error said so.
    Unreachable,
    /// The far node may not connect there: its policy or the kernel's says no.
    NotPermitted,
    /// A limit of the far node (descriptors, ports, memory).
    Exhausted,
    /// The server answers the far node's own address and not the client's: its answers to the client take
    /// another route.
    AnswersElsewhere,
    /// The packet filter of the far node's own machine drops the connection.
    Filtered,
    /// Anything else.
    Other,
}

/// Agreement of the two nodes of a link on its datagram path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramAgreement {
    /// This node's end of the TLS connection. The dialler sends first.
    pub role: TlsRole,
    /// Inputs of the key derivation, beside the secret of the TLS connection.
    pub context: KeyContext,
    /// Connection ids at the start of the packets in each direction.
    pub connection_ids: ConnectionIds,
    /// The peer's UDP port, at the address of the link.
    pub port: u16,
}

/// Result of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenAnswer {
    /// The server's connection stands.
    Connected,
    /// It does not; the flow ends with this answer.
    Failed(ConnectFailure),
}

/// Reason for a flow's reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResetReason {
    /// The client or server reset its connection.
    HostReset,
    /// The client or server could not be reached any longer.
    HostLost,
    /// An accelerator closed the flow because neither half could continue safely.
    Accelerator,
    /// Restoring the data failed: a damaged stream or an entry that could not be repaired.
    Reduction,
    /// A node is stopping and its grace has run out.
    Stopping,
    /// A limit of a node.
    Limit,
    /// The operator's or the policy's decision.
    Policy,
    /// The peer was silent for too long, or it closed its link and did not come back.
    PeerLost,
    /// The peer was restarted and knows nothing of the flow.
    PeerRestarted,
    /// The other side had already forgotten the flow.
    Gone,
    /// A node has removed the other from its peers.
    PeerRemoved,
    /// A reason that a later version has and this one does not.
    Unknown(u8),
}

/// Event from a session to the engine. Drain with [`crate::Session::poll_event`] after every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Both sides have agreed on this link and frames flow.
    LinkAttached {
        /// The link.
        link: LinkId,
    },
    /// Another link took its place, lost the tie, or it said no hello in time: close it.
    LinkReplaced {
        /// The link that must be closed.
        link: LinkId,
    },
    /// Packets went on beside this link after it had broken, and no longer do: there is no link now.
    LinkLost {
        /// The link that broke.
        link: LinkId,
    },
    /// Both sides take packets beside this link: ask its TLS connection for keys and call
    /// [`crate::Session::start_datagrams`].
    DatagramsAgreed {
        /// The link.
        link: LinkId,
        /// Inputs of the keys, and the address to send to.
        agreement: DatagramAgreement,
    },
    /// Flow frames travel in packets from here on.
    DatagramsUp,
    /// They travel on the link again.
    DatagramsDown {
        /// Reason.
        reason: SuspendReason,
    },
    /// Data that the peer's engine put into its hello. Sent again whenever it changes.
    Hello {
        /// The bytes of the peer's [`crate::Session::set_hello_blob`].
        blob: Bytes,
    },
    /// The peer opened a flow: connect to the server and answer.
    Opened {
        /// The flow.
        flow: FlowId,
        /// Parameters of the connection to open.
        open: OpenRequest,
    },
    /// Result of a flow that this node opened. After [`OpenAnswer::Failed`] only `Closed` follows.
    Answered {
        /// The flow.
        flow: FlowId,
        /// The answer.
        answer: OpenAnswer,
    },
    /// Bytes can be read. Not said again until [`crate::Session::read`] has returned all.
    Readable {
        /// The flow.
        flow: FlowId,
    },
    /// The peer ended its direction, and all its bytes have been read.
    Finished {
        /// The flow.
        flow: FlowId,
    },
    /// The flow is gone in both directions; bytes not yet read are lost.
    Reset {
        /// The flow.
        flow: FlowId,
        /// Reason.
        reason: ResetReason,
    },
    /// Room to write, or for messages, is available again after there was little.
    Writable {
        /// The flow.
        flow: FlowId,
    },
    /// The peer's decoder has consumed everything below this offset, or the peer has seen the end of our
    /// direction.
    Consumed {
        /// The flow.
        flow: FlowId,
        /// Offset in the encoded stream that we write.
        offset: u64,
    },
    /// A message of the peer's engine.
    Message {
        /// The flow it is about.
        flow: FlowId,
        /// The engine's own number for the kind of message.
        kind: u8,
        /// The message.
        bytes: Bytes,
    },
    /// The peer was silent for [`crate::SessionConfig::silent_after`]: dial a new link and remove
    /// the interception rules.
    Silent,
    /// The peer was heard again after `Silent`.
    Heard,
    /// The peer is given up. Each of its flows gets a `ResetFrame` as well.
    PeerLost {
        /// Number of flows.
        flows: usize,
    },
    /// The peer is another incarnation than before. Each of its flows gets a `ResetFrame` as well.
    PeerRestarted,
    /// The peer takes no new flows.
    GoAway,
    /// After [`crate::Session::goaway`]: no flow is left.
    Drained,
    /// Both directions ended cleanly and everything is acknowledged: forget the flow.
    Closed {
        /// The flow.
        flow: FlowId,
    },
}
