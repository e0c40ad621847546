//! What a two-ended measurement of one direction hands in.
//!
//! The stages are of a stateless stream: an idle path, then packets at one offered rate. Diagnosis is
//! best with three: one below the bottleneck's rate, one at 1.5 times it or more for long enough to
//! drain a bucket and fill a queue, and another at a different overload. Each begins on an idle path
//! whose buckets are full. What was not measured is left empty; the answer is then less certain.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use crate::tcp_info::TcpInfo;

/// One packet of a stateless stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPacket {
    /// When it was sent, on the sender's clock.
    pub sent: Time,
    /// When it came, on the receiver's clock, which may differ from the sender's; `None` if it did not.
    pub received: Option<Time>,
}

/// Packets of one size at one offered rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadStage {
    /// The rate that was asked for; what was sent is seen from the packets.
    pub offered: Bitrate,
    /// The length of each packet, from its first IP header byte.
    pub packet: ByteCount,
    /// In the order in which they were sent.
    pub packets: Vec<StreamPacket>,
}

/// The kernel's counters of a connection at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSample {
    /// When they were read, on the sender's clock.
    pub at: Time,
    /// The counters.
    pub info: TcpInfo,
}

/// A TCP transfer, seen by both ends without a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpRun {
    /// Of each connection, samples in order of time.
    pub connections: Vec<Vec<TcpSample>>,
    /// When the last was written, on the sender's clock; later samples are of what was still under way, which
    /// some connections wait for longer than others. `None` if all are from before.
    pub written_until: Option<Time>,
    /// What all connections had handed to the receiving application, over time on its clock.
    pub received: Vec<(Time, ByteCount)>,
}

impl TcpRun {
    /// Of each connection, the samples for as long as there was something to write.
    pub(super) fn while_written(&self) -> impl Iterator<Item = &[TcpSample]> {
        self.connections.iter().map(|samples| {
            let is_before =
                |sample: &TcpSample| self.written_until.is_none_or(|end| sample.at < end);
            // The first behind it still counts: it was read as the writing ended.
            let count = samples.partition_point(is_before) + 1;
            &samples[..count.min(samples.len())]
        })
    }
}

/// The fate of packets of one size, of a search for the path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeProbe {
    /// The IP packet's length.
    pub size: ByteCount,
    /// How many were sent.
    pub sent: u32,
    /// How many got through.
    pub answered: u32,
    /// Whether the network said that it was too big (ICMP).
    pub was_refused: bool,
}

/// All that two ends measured of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwoEnded {
    /// RFC 6349 §3.2.1's baseline: the least RTT of small probes on the idle path.
    pub baseline_rtt: Option<Duration>,
    /// The stages, in any order.
    pub stages: Vec<LoadStage>,
    /// TCP transfers whose window was not made small on purpose.
    pub runs: Vec<TcpRun>,
    /// The bottleneck rate of the other direction.
    pub reverse_rate: Option<Bitrate>,
    /// What the search for the path MTU saw.
    pub size_probes: Vec<SizeProbe>,
}
