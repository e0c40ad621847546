//! The engine's reports: the values behind `status`, `flows` and `why`.
//!
//! Every numeric field ends in its unit, because these structures are written as JSON.

use std::collections::BTreeMap;

use accelerate::shared::{AcceleratorReport, ServerReport};
use serde::Serialize;

use crate::io::ArrivalMethod;

/// The state of a node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeStatus {
    /// The node's own id.
    pub node: String,
    /// Flows through sessions now.
    pub flows: usize,
    /// Connections that go directly now.
    pub direct: usize,
    /// Flows through sessions since the start.
    pub flows_total: u64,
    /// Direct connections since the start.
    pub direct_total: u64,
    /// Flows that ended by a failure.
    pub flows_failed_total: u64,
    /// Bytes buffered in all flows.
    pub buffered_bytes: u64,
    /// The limits that are reached now.
    pub limits_reached: Vec<String>,
    /// The clients and peers that have reached their share of the flows, with the numbers of their
    /// open flows.
    pub shares_reached: Vec<String>,
    /// Connections of clients that had their share of the flows, since the start.
    pub at_share_total: u64,
    /// Bytes that hosts sent or were sent, in flows through sessions.
    pub lan_bytes: u64,
    /// Bytes that crossed the WAN for them, before TLS and TCP.
    pub wan_bytes: u64,
    /// The networks where peers may open connections: those in `serve`, or the networks on the LAN
    /// side.
    pub serves: Vec<String>,
    /// The peers, in the order of their names.
    pub peers: Vec<PeerStatus>,
    /// The dictionary.
    pub dictionary: DictionaryStatus,
    /// The accelerators that keep an account.
    pub accelerators: Vec<AcceleratorStatus>,
}

/// The state of one peer's session.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerStatus {
    /// The operator's name for the peer.
    pub name: String,
    /// Its id.
    pub node: String,
    /// `up`, `silent` or `down`.
    pub state: String,
    /// True if the peer's prefixes are intercepted.
    pub intercepted: bool,
    /// True if the prefixes are not intercepted because the packet filter of the peer's machine
    /// drops the connections.
    pub filtered: bool,
    /// The prefixes behind it.
    pub prefixes: Vec<String>,
    /// Flows to and from it now.
    pub flows: usize,
    /// Flows it opened and was refused because it had its share of the flows, since the start.
    pub refused_at_share_total: u64,
    /// Flows it opened and was refused because of `serve` or its `prefixes`, since the start.
    pub refused_by_policy_total: u64,
    /// The last round trip measured, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The least round trip measured, in milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// Bytes sent to the peer since the start, by links and UDP together: on links before TLS and
    /// TCP, by UDP with the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Bytes received from the peer since the start, counted in the same way.
    pub received_bytes: u64,
    /// The part of `sent_bytes` that was sent on links.
    pub link_sent_bytes: u64,
    /// The part of `received_bytes` that was received on links.
    pub link_received_bytes: u64,
    /// Times that the peer broke the rules of the protocol since the start.
    pub violations_total: u64,
    /// Bytes sent again after a change of links.
    pub retransmitted_bytes: u64,
    /// The number of times that the session moved to another link.
    pub link_changes: u64,
    /// The transport of the flows to the peer.
    pub path: PathStatus,
}

/// The path that a peer's flows take. The measurements of UDP are absent until there was a UDP
/// path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathStatus {
    /// `udp` or `tls`; `none` without a link.
    pub carries: &'static str,
    /// The reason why flows do not use UDP; absent while they do.
    pub fallback: Option<&'static str>,
    /// Times that UDP stopped carrying.
    pub fallbacks_total: u64,
    /// The measurements of the UDP path.
    pub udp: Option<UdpStatus>,
}

/// The measurements of a UDP path. Counts are of this node's packets since the link came up; shares
/// are of the packets that it sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UdpStatus {
    /// The rate that the controller takes the path for.
    pub rate_bit_s: u64,
    /// The rate at which packets leave at most.
    pub pacing_bit_s: u64,
    /// Packets sent that are not lost.
    pub delivered_packets: u64,
    /// Packets sent, repairs and acknowledgements included.
    pub sent_packets: u64,
    /// Bytes of these, with the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Bytes of the peer's packets.
    pub received_bytes: u64,
    /// The share that the network lost.
    pub loss_percent: f64,
    /// The share that was still missing after all repairs.
    pub loss_after_repair_percent: f64,
    /// The share that was repairs.
    pub repair_percent: f64,
    /// The least round trip of late, in milliseconds.
    pub rtt_min_ms: Option<f64>,
    /// The last one.
    pub rtt_ms: Option<f64>,
    /// The smoothed queueing delay above the least round trip.
    pub queueing_ms: Option<f64>,
    /// The state of congestion control.
    pub congestion: &'static str,
    /// The bytes that may be in flight.
    pub window_bytes: u64,
    /// Bytes that are.
    pub in_flight_bytes: u64,
    /// The largest packet that is known to get through, with the headers of IP and UDP.
    pub mtu_bytes: u64,
    /// Datagrams refused: forged, replayed, too old, or none of ours.
    pub refused_packets: u64,
}

/// Totals of an accelerator for all of its flows since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AcceleratorStatus {
    /// The accelerator's name.
    pub name: &'static str,
    /// Counts by name; a name ends in `_total`.
    pub counts: BTreeMap<&'static str, u64>,
    /// Servers whose answers take longest, the slowest first.
    pub slowest_servers: Vec<ServerStatus>,
}

/// The answers of one server, as an accelerator has seen them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerStatus {
    /// The address.
    pub server: String,
    /// The name by which clients asked for it.
    pub name: Option<String>,
    /// Answers.
    pub answers: u64,
    /// The mean time from a request to the begin of its answer, in milliseconds.
    pub mean_ms: f64,
    /// The longest such time, in milliseconds.
    pub longest_ms: f64,
}

impl AcceleratorStatus {
    /// The status of the accelerator of this name.
    pub(crate) fn of(name: &'static str, report: AcceleratorReport) -> Self {
        Self {
            name,
            counts: report.counts.into_iter().collect(),
            slowest_servers: report
                .slowest_servers
                .into_iter()
                .map(ServerStatus::of)
                .collect(),
        }
    }
}

impl ServerStatus {
    fn of(report: ServerReport) -> Self {
        Self {
            server: report.server.to_string(),
            name: report.name,
            answers: report.answers,
            mean_ms: report.mean.as_secs_f64() * 1e3,
            longest_ms: report.longest.as_secs_f64() * 1e3,
        }
    }
}

/// The state of the dictionary.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DictionaryStatus {
    /// True if recovery from disk has ended.
    pub ready: bool,
    /// Chunks known.
    pub chunks: u64,
    /// Bytes of chunks in memory.
    pub memory_bytes: u64,
    /// Bytes of the log on disk.
    pub disk_bytes: u64,
    /// Bytes that wait to be written there.
    pub disk_waiting_bytes: u64,
    /// The number of requests to peers, since the start, for content that they believed to be here.
    pub content_requests_total: u64,
    /// Requests to peers, since the start, for no more than how content hangs together.
    pub link_requests_total: u64,
    /// Chunks that were kept in memory only, since the start: the disk was full, failing or too slow.
    pub unwritten_chunks_total: u64,
    /// Stretches of the log that were damaged and skipped, and chunks that did not verify, since the
    /// start. A node that was killed leaves one.
    pub damaged_records_total: u64,
    /// Failed disk requests since the start.
    pub disk_faults_total: u64,
}

/// One flow in a table.
#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    /// The number to ask `why` with.
    pub flow: u64,
    /// `open`, `closed`, or how it failed.
    pub state: String,
    /// The peer's name, or `direct`.
    pub peer: String,
    /// `near` where the client is, `far` where the server is.
    pub half: String,
    /// The way in which the client arrived; absent on the far side.
    pub via: Option<ArrivalMethod>,
    /// The client's address.
    pub client: String,
    /// The server's address.
    pub server: String,
    /// The protocol, as far as it was recognised.
    pub protocol: String,
    /// Seconds since it began (or that it lasted).
    pub age_s: f64,
    /// Bytes of the LAN host beside this node towards the other side.
    pub sent_lan_bytes: u64,
    /// The bytes that they became on the WAN.
    pub sent_wan_bytes: u64,
    /// Bytes handed to the LAN host beside this node.
    pub received_lan_bytes: u64,
    /// The bytes that they were on the WAN.
    pub received_wan_bytes: u64,
    /// Results of its accelerator, in a clause; absent if there are none.
    pub accelerated: Option<String>,
}

impl FlowReport {
    /// The share of LAN bytes that did not have to cross the WAN, in percent; negative when
    /// the flow cost more than it carried.
    #[must_use]
    pub fn saved_percent(&self) -> f64 {
        let lan = self.sent_lan_bytes + self.received_lan_bytes;
        let wan = self.sent_wan_bytes + self.received_wan_bytes;
        if lan == 0 {
            return 0.0;
        }
        100.0 * (lan as f64 - wan as f64) / lan as f64
    }
}

/// The explanation of a flow: the actions of each stage.
#[derive(Clone, Debug, Serialize)]
pub struct FlowExplanation {
    /// The flow.
    pub flow: FlowReport,
    /// The stages in the order of a byte's way.
    pub stages: Vec<StageReport>,
}

/// The actions of one stage on a flow.
#[derive(Clone, Debug, Serialize)]
pub struct StageReport {
    /// `intercept`, `classify`, `accelerate`, `reduce` or `tunnel`.
    pub stage: &'static str,
    /// The stage's action.
    pub did: String,
    /// The bytes that it kept off the WAN; absent where a stage cannot state that.
    pub saved_bytes: Option<i64>,
    /// The reason why the stage did nothing, or stopped.
    pub why_not: Option<String>,
    /// The operator's action that would change that.
    pub remedy: Option<String>,
}
