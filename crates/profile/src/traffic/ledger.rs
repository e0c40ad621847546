//! Ledger: what became of every packet of a run.
//!
//! Packets have consecutive numbers, so the outstanding ones are a queue. The packet at its front
//! leaves as a record when its time to arrive is over.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use vocab::Time;

use super::{PacketIntegrity, ReceivedPacket, SourcePacket};
use crate::record::{PacketFate, PacketRecord, TrafficSummary};

/// Greatest number of outstanding packets: those of four seconds at a million packets/s.
pub const OUTSTANDING_MAX: usize = 1 << 22;
/// Greatest number of further copies of outstanding packets that get a record; a device in a loop makes
/// more, which are counted only.
const COPIES_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct PacketLedger {
    loss_after: Duration,
    outstanding: VecDeque<OutstandingPacket>,
    /// Number of the packet at the front.
    first: u64,
    /// Arrival times of further copies, by the packet's number.
    copies: BTreeMap<(u64, u32), Time>,
    copies_made: u32,
    /// One past the highest number that arrived, by flow.
    highest: Vec<u64>,
    /// Copies of the packet that left last, which become records next.
    leaving: Option<(PacketRecord, u64)>,
    is_closed: bool,
    summary: TrafficSummary,
    strays: u64,
}

#[derive(Debug)]
struct OutstandingPacket {
    flow: u32,
    size: u32,
    input: u16,
    output: u16,
    sent: Time,
    received: Option<Time>,
    fate: PacketFate,
}

impl PacketLedger {
    pub(super) fn new(loss_after: Duration) -> Self {
        Self {
            loss_after,
            outstanding: VecDeque::new(),
            first: 0,
            copies: BTreeMap::new(),
            copies_made: 0,
            highest: Vec::new(),
            leaving: None,
            is_closed: false,
            summary: TrafficSummary::default(),
            strays: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.outstanding.len() >= OUTSTANDING_MAX
    }

    /// Enters a packet; returns its number.
    pub(super) fn begin(&mut self, packet: &SourcePacket) -> u64 {
        let sequence = self.first + self.outstanding.len() as u64;
        self.outstanding.push_back(OutstandingPacket {
            flow: packet.flow,
            size: packet.size,
            input: packet.input,
            output: packet.output,
            sent: packet.due,
            received: None,
            fate: PacketFate::Lost,
        });
        sequence
    }

    /// Number of the flow and length of an outstanding packet.
    pub(super) fn flow_and_size(&self, sequence: u64) -> Option<(u32, u32)> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        let packet = self.outstanding.get(index)?;
        Some((packet.flow, packet.size))
    }

    pub(super) fn sent(&mut self, sequence: u64, at: Time) {
        if let Some(packet) = self.packet(sequence) {
            packet.sent = at;
        }
    }

    pub(super) fn lost_at_port(&mut self, sequence: u64) {
        if let Some(packet) = self.packet(sequence)
            && packet.received.is_none()
        {
            packet.fate = PacketFate::LostAtPort;
        }
    }

    /// Enters an arrival; tells whether it is the first of its packet.
    pub(super) fn received(&mut self, arrival: &ReceivedPacket) -> bool {
        let Some(packet) = self.packet(arrival.sequence) else {
            self.strays += 1;
            return false;
        };
        if packet.received.is_some() {
            if self.copies.len() < COPIES_MAX {
                self.copies_made = self.copies_made.wrapping_add(1);
                let key = (arrival.sequence, self.copies_made);
                self.copies.insert(key, arrival.at);
            } else {
                self.summary.duplicated += 1;
            }
            return false;
        }
        packet.received = Some(arrival.at);
        let is_intact = arrival.integrity == PacketIntegrity::Intact
            && arrival.size == packet.size
            && arrival.output == packet.output;
        let flow = packet.flow as usize;
        if !is_intact {
            packet.fate = PacketFate::Corrupted;
            return true;
        }
        packet.fate = PacketFate::Delivered;
        if flow >= self.highest.len() {
            self.highest.resize(flow + 1, 0);
        }
        if arrival.sequence < self.highest[flow] {
            if let Some(packet) = self.packet(arrival.sequence) {
                packet.fate = PacketFate::Reordered;
            }
        } else {
            self.highest[flow] = arrival.sequence + 1;
        }
        true
    }

    pub(super) fn poll_record(&mut self, now: Time) -> Option<PacketRecord> {
        let record = match self.next_copy() {
            Some(copy) => copy,
            None => self.next_complete(now)?,
        };
        self.summary.add(&record);
        Some(record)
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.leaving.is_some() {
            return Some(Time::ZERO);
        }
        let front = self.outstanding.front()?;
        if self.is_closed {
            return Some(Time::ZERO);
        }
        Some(front.sent + self.loss_after)
    }

    pub(super) fn summary(&self) -> TrafficSummary {
        self.summary
    }

    pub(super) fn strays(&self) -> u64 {
        self.strays
    }

    fn packet(&mut self, sequence: u64) -> Option<&mut OutstandingPacket> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.outstanding.get_mut(index)
    }

    fn next_copy(&mut self) -> Option<PacketRecord> {
        let (record, sequence) = self.leaving.take()?;
        let key = *self
            .copies
            .range((sequence, 0)..=(sequence, u32::MAX))
            .next()?
            .0;
        let at = self.copies.remove(&key);
        self.leaving = Some((record, sequence));
        Some(PacketRecord {
            received: at,
            fate: PacketFate::Duplicated,
            ..record
        })
    }

    fn next_complete(&mut self, now: Time) -> Option<PacketRecord> {
        let front = self.outstanding.front()?;
        if !self.is_closed && front.sent + self.loss_after > now {
            return None;
        }
        let packet = self.outstanding.pop_front()?;
        let sequence = self.first;
        self.first += 1;
        let record = PacketRecord {
            sequence,
            flow: packet.flow,
            size: packet.size,
            input: packet.input,
            output: packet.output,
            sent: packet.sent,
            received: packet.received,
            fate: packet.fate,
        };
        let has_copies = self
            .copies
            .range((sequence, 0)..=(sequence, u32::MAX))
            .next()
            .is_some();
        self.leaving = has_copies.then_some((record, sequence));
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PacketContent;
    use super::*;

    #[test]
    fn copies_beyond_those_with_a_record_count_as_duplicated() {
        let mut ledger = PacketLedger::new(Duration::from_secs(1));
        ledger.begin(&SourcePacket {
            flow: 0,
            size: 100,
            input: 0,
            output: 1,
            due: Time::ZERO,
            content: PacketContent::Datagram,
        });
        let arrival = ReceivedPacket {
            sequence: 0,
            at: Time::from_nanos(1_000),
            size: 100,
            output: 1,
            integrity: PacketIntegrity::Intact,
            content: None,
        };
        let copies = COPIES_MAX + 10;
        for _ in 0..=copies {
            ledger.received(&arrival);
        }
        ledger.close();
        let records = std::iter::from_fn(|| ledger.poll_record(Time::NEVER)).count();
        assert_eq!(records, 1 + COPIES_MAX);
        let summary = ledger.summary();
        assert_eq!((summary.sent, summary.delivered), (1, 1));
        assert_eq!(summary.duplicated, copies as u64);
        assert_eq!(ledger.strays(), 0);
    }
}
