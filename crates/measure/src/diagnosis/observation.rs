//! Data of a two-ended measurement of one direction.
//!
//! The stages are of a stateless stream: an idle path, then packets at one offered rate. Diagnosis
//! is best with three: one below the bottleneck's rate, one at 1.5 times it or more for long enough
//! to drain a bucket and fill a queue, and another at a different overload. Each begins on an idle
//! path whose buckets are full. Values that were not measured are left empty; the answer is then
//! less certain.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use crate::tcp_info::TcpInfo;

/// One packet of a stateless stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPacket {
    /// Time of sending, on the sender's clock.
    pub sent: Time,
    /// Time of arrival, on the receiver's clock, which may differ from the sender's; `None` if it
    /// did not arrive.
    pub received: Option<Time>,
}

/// Packets of one size at one offered rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadStage {
    /// The requested rate; the actual one follows from the packets.
    pub offered: Bitrate,
    /// The length of each packet, from its first IP header byte.
    pub packet: ByteCount,
    /// Packets in the order in which they were sent.
    pub packets: Vec<StreamPacket>,
}

/// The kernel's counters of a connection at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSample {
    /// Time of reading, on the sender's clock.
    pub at: Time,
    /// The counters.
    pub info: TcpInfo,
}

/// A TCP transfer, seen by both ends without a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpRun {
    /// Samples of each connection in order of time.
    pub connections: Vec<Vec<TcpSample>>,
    /// Time of the last write, on the sender's clock; in later samples some connections wait for
    /// data in flight longer than others. `None` if all samples are earlier.
    pub written_until: Option<Time>,
    /// Bytes that all connections had handed to the receiving application, over time on its clock.
    pub received: Vec<(Time, ByteCount)>,
}

impl TcpRun {
    /// Samples of each connection for as long as it had data to write.
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
    /// Number of probes sent.
    pub sent: u32,
    /// Number of probes that got through.
    pub answered: u32,
    /// Set if the network reported that it was too big (ICMP).
    pub was_refused: bool,
}

/// All measurements of two ends for one direction.
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
    /// Probes of the path MTU search.
    pub size_probes: Vec<SizeProbe>,
}
