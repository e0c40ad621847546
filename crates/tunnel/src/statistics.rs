//! Counters of a session and of a flow, for `status` and `why`.

use std::time::Duration;

/// Counters of a session since it was made. Bytes are those handed to and taken from links, without
/// TLS and TCP overhead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStatistics {
    /// Bytes given to links.
    pub sent_bytes: u64,
    /// Bytes taken from links.
    pub received_bytes: u64,
    /// Bytes of packets sent on all datagram paths so far, with the headers of IP and UDP.
    pub sent_packet_bytes: u64,
    /// Bytes of authenticated packets received on all datagram paths so far, with the headers of IP
    /// and UDP.
    pub received_packet_bytes: u64,
    /// Frames given to links.
    pub sent_frames: u64,
    /// Frames taken from links.
    pub received_frames: u64,
    /// Flow data given to links, first time and again.
    pub sent_data_bytes: u64,
    /// Flow data taken from links.
    pub received_data_bytes: u64,
    /// Flow data sent more than once because a link was lost.
    pub retransmitted_bytes: u64,
    /// Flow data that arrived although it was there already.
    pub duplicate_bytes: u64,
    /// Acknowledgements sent.
    pub sent_acknowledgements: u64,
    /// The newest round-trip time, queues of the link included.
    pub round_trip_latest: Option<Duration>,
    /// The least round-trip time of the current link.
    pub round_trip_minimum: Option<Duration>,
    /// The round-trip time smoothed as RFC 6298 §2 does.
    pub round_trip_smoothed: Option<Duration>,
    /// Links that were established after the first.
    pub link_changes: u64,
    /// Flows opened by this node.
    pub opened_flows: u64,
    /// Flows opened by the peer.
    pub accepted_flows: u64,
    /// Flows that ended by reset, from either side.
    pub reset_flows: u64,
    /// Flows open now.
    pub flows: usize,
    /// Bytes written and not yet sent.
    pub unsent_bytes: u64,
    /// Bytes sent and not yet consumed by the peer.
    pub outstanding_bytes: u64,
    /// Bytes received and not yet consumed here.
    pub unconsumed_bytes: u64,
    /// Bytes of engine messages that the peer has not acknowledged.
    pub message_backlog_bytes: u64,
}

/// Counters of a flow. Offsets count encoded bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowStatistics {
    /// Bytes written by the engine.
    pub written_bytes: u64,
    /// Bytes sent, each counted once.
    pub sent_bytes: u64,
    /// Bytes that the peer has received.
    pub acknowledged_bytes: u64,
    /// Bytes that the peer's decoder has consumed.
    pub peer_consumed_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes received and consumed here.
    pub consumed_bytes: u64,
    /// Bytes sent more than once because a link was lost.
    pub retransmitted_bytes: u64,
    /// Bytes waiting to be sent.
    pub unsent_bytes: u64,
    /// The window that the flow has grown to in our receiving direction.
    pub receive_window_bytes: u64,
    /// Time in which bytes waited and the peer's credit did not allow them.
    pub credit_blocked: Duration,
}
