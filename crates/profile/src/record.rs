//! Records: one for each packet that was sent, and one for each further copy that arrived.

use std::time::Duration;

use vocab::Time;

use crate::plan::RunPlan;

/// Greatest share of packets that our own ports may lose; a run with more is void.
pub const OWN_LOSS_MAX: f64 = 0.0001;

/// Fate of a packet. The numbers are a part of the record file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketFate {
    /// It arrived unchanged, in the order of its flow.
    Delivered = 0,
    /// It arrived unchanged, after a later packet of its flow (RFC 4737 §3.3).
    Reordered = 1,
    /// It is a further copy of a packet that had arrived before.
    Duplicated = 2,
    /// It arrived with other content or another length.
    Corrupted = 3,
    /// It did not arrive within the plan's waiting time.
    Lost = 4,
    /// Our own port lost it; the device is not to blame.
    LostAtPort = 5,
}

impl PacketFate {
    /// The fate of this number; `None` if there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(PacketFate::Delivered),
            1 => Some(PacketFate::Reordered),
            2 => Some(PacketFate::Duplicated),
            3 => Some(PacketFate::Corrupted),
            4 => Some(PacketFate::Lost),
            5 => Some(PacketFate::LostAtPort),
            _ => None,
        }
    }

    /// Name of the fate in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PacketFate::Delivered => "delivered",
            PacketFate::Reordered => "reordered",
            PacketFate::Duplicated => "duplicated",
            PacketFate::Corrupted => "corrupted",
            PacketFate::Lost => "lost",
            PacketFate::LostAtPort => "lost-at-port",
        }
    }

    /// Tells whether the device forwarded the packet as it came.
    #[must_use]
    pub const fn is_forwarded(self) -> bool {
        matches!(self, PacketFate::Delivered | PacketFate::Reordered)
    }
}

/// Record of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRecord {
    /// Number of the packet in its run, from 0, in the order of transmission.
    pub sequence: u64,
    /// Number of its flow in its run.
    pub flow: u32,
    /// Length of the IP packet in bytes.
    pub size: u32,
    /// Port of the device that it entered.
    pub input: u16,
    /// Port of the device that it left, or should have left.
    pub output: u16,
    /// Time of transmission.
    pub sent: Time,
    /// Time of reception; `None` for a lost packet.
    pub received: Option<Time>,
    /// Fate of the packet.
    pub fate: PacketFate,
}

impl PacketRecord {
    /// Delay through the device, for a packet that was forwarded as it came.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        if !self.fate.is_forwarded() {
            return None;
        }
        self.received.map(|received| received.since(self.sent))
    }
}

/// Records of one run of a plan.
#[derive(Clone, Debug)]
pub struct MeasuredRun {
    /// The run.
    pub plan: RunPlan,
    /// Its records, by sequence.
    pub records: Vec<PacketRecord>,
}

/// Counts of the packets of a run, by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSummary {
    /// Packets sent, without copies that the device made.
    pub sent: u64,
    /// Arrived in order.
    pub delivered: u64,
    /// Arrived late.
    pub reordered: u64,
    /// Further copies, with those beyond the number that get a record.
    pub duplicated: u64,
    /// Arrived changed.
    pub corrupted: u64,
    /// Did not arrive.
    pub lost: u64,
    /// Lost by our own ports.
    pub lost_at_port: u64,
}

impl TrafficSummary {
    /// Counts one record.
    pub fn add(&mut self, record: &PacketRecord) {
        let counter = match record.fate {
            PacketFate::Delivered => &mut self.delivered,
            PacketFate::Reordered => &mut self.reordered,
            PacketFate::Duplicated => &mut self.duplicated,
            PacketFate::Corrupted => &mut self.corrupted,
            PacketFate::Lost => &mut self.lost,
            PacketFate::LostAtPort => &mut self.lost_at_port,
        };
        *counter += 1;
        if record.fate != PacketFate::Duplicated {
            self.sent += 1;
        }
    }

    /// Share of the packets that our own ports lost.
    #[must_use]
    pub fn own_loss(&self) -> f64 {
        share(self.lost_at_port, self.sent)
    }

    /// Share of the packets that the device lost or changed, of those that reached it.
    #[must_use]
    pub fn loss_ratio(&self) -> f64 {
        share(self.lost + self.corrupted, self.sent - self.lost_at_port)
    }

    /// Tells whether our own ports lost so much that the run says nothing about the device.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.own_loss() > OWN_LOSS_MAX
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
