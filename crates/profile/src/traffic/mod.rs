//! Traffic of one run as a state machine: it says which packet to send when, takes what arrives,
//! and accounts for every packet.
//!
//! ```text
//!             ┌─ UDP pattern ─┐                          handle_sent, handle_unsent
//!  RunPlan ──►│  UDP pattern  ├─► poll_output ─► port ─►        │
//!             └─ TCP flows ◄──┘        │                        ▼
//!                   ▲                  └──────────────────► ledger ─► poll_record
//!                   └────────── handle_received ────────────►
//! ```
//!
//! A packet is outstanding from its transmission until the plan's `loss_after` has passed, so that
//! further copies are recognised. Records come out in the order of transmission.

mod addresses;
mod ledger;
mod tcp_flows;
mod udp_pattern;

use bytes::Bytes;
use tcp::{FlowAddresses, SegmentFlags, TcpSegment, parse_packet};
use vocab::{SeededRandom, Time};

use crate::plan::{RunPlan, TrafficPattern};
use crate::record::{PacketRecord, TrafficSummary};
use ledger::PacketLedger;
use tcp_flows::TcpFlows;
use udp_pattern::UdpPattern;

pub(crate) use addresses::RUN_FLOWS_MAX;
pub use addresses::{FlowEndpoints, device_address, emulated_endpoints, is_emulated, subnet_port};
pub use ledger::OUTSTANDING_MAX;

/// A packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingPacket {
    /// Number of the packet in its run.
    pub sequence: u64,
    /// Number of its flow in its run.
    pub flow: u32,
    /// Length of the IP packet in bytes.
    pub size: u32,
    /// Port of the device that it enters.
    pub input: u16,
    /// Port of the device that it leaves.
    pub output: u16,
    /// Time at which it is due; not later than the time of the poll.
    pub due: Time,
    /// Content of the packet.
    pub content: PacketContent,
}

/// Content of a packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketContent {
    /// UDP between the endpoints of [`emulated_endpoints`]; the shell writes the headers, the number
    /// and the stamp.
    Datagram,
    /// The IP packet of a TCP segment with valid check sums.
    Tcp(Bytes),
}

/// A packet that arrived.
#[derive(Clone, Debug)]
pub struct ReceivedPacket {
    /// Its number.
    pub sequence: u64,
    /// Time of reception.
    pub at: Time,
    /// Length of the IP packet in bytes.
    pub size: u32,
    /// Port of the device that it left.
    pub output: u16,
    /// Result of the comparison of its content.
    pub integrity: PacketIntegrity,
    /// The IP packet, for a TCP segment.
    pub content: Option<Bytes>,
}

/// Result of comparing a packet with the one that was sent. A changed TTL, ECN field and header check
/// sum are no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketIntegrity {
    /// The content is that of the packet that was sent.
    Intact,
    /// The content differs, or a check sum is wrong.
    Corrupted,
}

/// Origin of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalOrigin {
    /// It is a packet of this traffic.
    Own,
    /// It is one with other addresses or ports, which counts as corrupted.
    Rewritten,
    /// It is a TCP segment of somebody else, such as a reset by a firewall. It counts for no packet.
    Foreign,
}

/// The traffic of one run.
#[derive(Debug)]
pub struct TrafficMachine {
    sources: Vec<TrafficSource>,
    ledger: PacketLedger,
    now: Time,
}

#[derive(Debug)]
enum TrafficSource {
    Udp(UdpPattern),
    Tcp(Box<TcpFlows>),
}

/// A packet as a source gives it, without a number.
#[derive(Debug)]
struct SourcePacket {
    flow: u32,
    size: u32,
    input: u16,
    output: u16,
    due: Time,
    content: PacketContent,
}

impl TrafficMachine {
    /// Makes the traffic of `run`, which starts at `now`. The plan of the run must have been checked.
    #[must_use]
    pub fn new(now: Time, run: &RunPlan) -> Self {
        let mut first_flow = 0;
        let mut sources = Vec::new();
        for (index, traffic) in run.traffic.iter().enumerate() {
            let random = SeededRandom::for_stream(run.seed, index as u64);
            let source = match traffic.pattern {
                TrafficPattern::Tcp { segment, bytes } => {
                    let number = u16::try_from(index).unwrap_or(u16::MAX);
                    let place = (number, first_flow);
                    let flows =
                        TcpFlows::new(now, (run.family, traffic), (segment, bytes), place, random);
                    // A flow and its acknowledgements.
                    first_flow = first_flow.saturating_add(traffic.flows.saturating_mul(2));
                    TrafficSource::Tcp(Box::new(flows))
                }
                TrafficPattern::Constant { .. }
                | TrafficPattern::Poisson { .. }
                | TrafficPattern::Bursts { .. } => {
                    let pattern = UdpPattern::new(now, traffic, first_flow, random);
                    first_flow = first_flow.saturating_add(traffic.flows);
                    TrafficSource::Udp(pattern)
                }
            };
            sources.push(source);
        }
        Self {
            sources,
            ledger: PacketLedger::new(run.loss_after),
            now,
        }
    }

    /// Takes the next packet that is due at `now`. It counts as sent at its due time until
    /// [`TrafficMachine::handle_sent`] names another.
    ///
    /// At [`OUTSTANDING_MAX`] outstanding packets none comes until the oldest has been taken out by
    /// [`TrafficMachine::poll_record`].
    pub fn poll_output(&mut self, now: Time) -> Option<OutgoingPacket> {
        self.now = self.now.max(now);
        if self.ledger.is_full() {
            return None;
        }
        let earliest = self
            .sources
            .iter_mut()
            .filter_map(|source| {
                source
                    .due()
                    .filter(|due| *due <= now)
                    .map(|due| (due, source))
            })
            .min_by_key(|(due, _)| *due);
        let (_, source) = earliest?;
        let packet = match source {
            TrafficSource::Udp(pattern) => pattern.take(),
            TrafficSource::Tcp(flows) => flows.poll_output(now),
        }?;
        let sequence = self.ledger.begin(&packet);
        Some(OutgoingPacket {
            sequence,
            flow: packet.flow,
            size: packet.size,
            input: packet.input,
            output: packet.output,
            due: packet.due,
            content: packet.content,
        })
    }

    /// Takes the transmission stamp of a packet. It may come after the packet's arrival.
    pub fn handle_sent(&mut self, sequence: u64, at: Time) {
        self.ledger.sent(sequence, at);
    }

    /// Learns that our own port lost a packet before or behind the device.
    pub fn handle_unsent(&mut self, sequence: u64) {
        self.ledger.lost_at_port(sequence);
    }

    /// Takes a packet that arrived; tells where it came from.
    ///
    /// The number of a TCP segment is a field that other senders fill as they like, so its addresses have
    /// to be those of the packet with this number.
    pub fn handle_received(&mut self, now: Time, packet: &ReceivedPacket) -> ArrivalOrigin {
        self.now = self.now.max(now);
        let content = packet
            .content
            .as_ref()
            .filter(|_| packet.integrity == PacketIntegrity::Intact)
            .and_then(|content| parse_packet(content).ok());
        let Some((addresses, segment)) = content else {
            self.ledger.received(packet);
            return ArrivalOrigin::Own;
        };
        let origin = self.origin_of(packet, addresses, &segment);
        match origin {
            ArrivalOrigin::Foreign => {}
            ArrivalOrigin::Rewritten => {
                self.ledger.received(&ReceivedPacket {
                    integrity: PacketIntegrity::Corrupted,
                    content: None,
                    ..packet.clone()
                });
            }
            ArrivalOrigin::Own => {
                if self.ledger.received(packet) {
                    for source in &mut self.sources {
                        if let TrafficSource::Tcp(flows) = source
                            && flows.handle(now, addresses, &segment)
                        {
                            break;
                        }
                    }
                }
            }
        }
        origin
    }

    /// Compares a segment with the packet of its number.
    fn origin_of(
        &self,
        packet: &ReceivedPacket,
        addresses: FlowAddresses,
        segment: &TcpSegment,
    ) -> ArrivalOrigin {
        // The ledger counts a packet that is not outstanding, and a run that was stopped has no flows.
        let Some((flow, size)) = self.ledger.flow_and_size(packet.sequence) else {
            return ArrivalOrigin::Own;
        };
        if self.sources.is_empty() {
            return ArrivalOrigin::Own;
        }
        let expected = self.sources.iter().find_map(|source| match source {
            TrafficSource::Tcp(flows) => flows.addresses_of(flow),
            TrafficSource::Udp(_) => None,
        });
        let Some(expected) = expected else {
            return ArrivalOrigin::Foreign;
        };
        let is_size_kept = packet.size == size;
        if addresses == expected {
            // Our hosts end no flow by a reset, and a device that makes one does not know the number.
            let is_reset = segment.flags.contain(SegmentFlags::RST);
            return if is_reset && !is_size_kept {
                ArrivalOrigin::Foreign
            } else {
                ArrivalOrigin::Own
            };
        }
        // A device translates one end.
        let is_end_kept = addresses.local == expected.local || addresses.remote == expected.remote;
        if is_size_kept && is_end_kept {
            ArrivalOrigin::Rewritten
        } else {
            ArrivalOrigin::Foreign
        }
    }

    /// Takes out the next record that is complete at `now`.
    pub fn poll_record(&mut self, now: Time) -> Option<PacketRecord> {
        self.ledger.poll_record(now)
    }

    /// Ends the run at `now`: no more packets are sent, and packets that have not arrived count as
    /// lost at the next [`TrafficMachine::poll_record`].
    pub fn stop(&mut self) {
        self.sources.clear();
        self.ledger.close();
    }

    /// Time of the next packet or record; `None` when the run is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let record = self.ledger.next_timeout();
        let packet = if self.ledger.is_full() {
            None
        } else {
            self.sources.iter().filter_map(TrafficSource::due).min()
        };
        match (record, packet) {
            (Some(record), Some(packet)) => Some(record.min(packet)),
            (one, other) => one.or(other),
        }
    }

    /// Time of the next packet to send; `None` when no packet is left to send.
    #[must_use]
    pub fn next_packet(&self) -> Option<Time> {
        self.sources.iter().filter_map(TrafficSource::due).min()
    }

    /// Tells whether all packets are sent and all records taken out.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.poll_timeout().is_none()
    }

    /// Counts of the records that were taken out.
    #[must_use]
    pub fn summary(&self) -> TrafficSummary {
        self.ledger.summary()
    }

    /// Packets that arrived without being outstanding: strays, and copies that came too late.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.ledger.strays()
    }
}

impl TrafficSource {
    fn due(&self) -> Option<Time> {
        match self {
            TrafficSource::Udp(pattern) => pattern.due(),
            TrafficSource::Tcp(flows) => flows.due(),
        }
    }
}

#[cfg(test)]
mod tests;
