//! The reader of a run: it takes frames out of all rings, tells the traffic machine, answers address
//! resolution, and takes complete records out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use host::packets::packet_system::FrameSender;
use profile::{
    AddressFamily, ArrivalOrigin, PacketIntegrity, PacketRecord, ReceivedPacket, RunPlan,
    emulated_endpoints, subnet_port,
};
use serde::Serialize;
use vocab::Time;

use super::RunShared;
use crate::figures::DelaySamples;
use crate::port::{PortRings, answer_neighbour};
use crate::probe::{MacAddress, MeasuredFrame, ProbePacket, SegmentPacket, parse};
use crate::records::{RecordRow, RecordWriter};

/// Frames that are read from a ring before the machine is told, so that the lock is taken seldom.
const READ_MAX: usize = 256;
/// Reads of all rings when a run is stopped: more than a full ring takes.
const LAST_READS_MAX: u32 = 4_096;
/// Kinds of ICMP messages that are told apart; there are fewer in practice.
const ICMP_KINDS_MAX: usize = 16;

/// Number of ICMP messages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IcmpCount {
    /// Type of the message.
    pub kind: u8,
    /// Code of the message.
    pub code: u8,
    /// Number of messages.
    pub messages: u64,
}

/// Arrivals beside forwarded packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArrivalCounts {
    /// Packets with addresses or ports that differ from those that were sent.
    pub rewritten: u64,
    /// Packets that came back to the port that they were sent from.
    pub returned: u64,
    /// Packets that left the device through another port than their destination's.
    pub misrouted: u64,
    /// Packets of earlier runs.
    pub of_earlier_runs: u64,
    /// Fragments of IP packets.
    pub fragments: u64,
    /// ICMP messages by type and code.
    pub icmp: Vec<IcmpCount>,
    /// Packets that arrived after they counted as lost, and copies that arrived as late.
    pub late: u64,
    /// Other frames.
    pub foreign: u64,
}

/// Event of the traffic machine that waits for its lock.
#[derive(Debug)]
enum RingEvent {
    Sent { sequence: u64, at: Time },
    Received(ReceivedPacket),
}

/// First and last stamp of a kind of packets, and their number.
#[derive(Clone, Copy, Debug, Default)]
struct StampSpan {
    first: u64,
    last: u64,
    count: u64,
}

impl StampSpan {
    fn add(&mut self, stamp: u64) {
        if self.count == 0 {
            self.first = stamp;
        }
        self.count += 1;
        self.last = self.last.max(stamp);
    }

    /// Packets per second between the first and the last.
    fn rate(&self) -> f64 {
        let span = self.last.saturating_sub(self.first);
        if self.count < 2 || span == 0 {
            return 0.0;
        }
        (self.count - 1) as f64 * 1e9 / span as f64
    }
}

/// Results of a reader.
#[derive(Debug)]
pub(super) struct FinishedReading {
    pub(super) arrivals: ArrivalCounts,
    pub(super) delays: DelaySamples,
    pub(super) sent_pps: f64,
    pub(super) received_pps: f64,
    pub(super) stamp_lag_max: Duration,
}

/// Reader of all rings.
#[derive(Debug)]
pub(super) struct RingReader<'a> {
    shared: &'a RunShared,
    run: u32,
    family: AddressFamily,
    macs: &'a [MacAddress],
    senders: &'a [&'a FrameSender],
    rings: Vec<&'a mut PortRings>,
    records: Option<&'a mut RecordWriter>,
    events: Vec<RingEvent>,
    rows: Vec<PacketRecord>,
    arrivals: ArrivalCounts,
    delays: DelaySamples,
    sent: StampSpan,
    received: StampSpan,
    stamp_lag_max: Duration,
    /// Time up to which all arrivals have been read. A packet is lost only by this time: a reader
    /// that is behind must not take unread arrivals for losses.
    settled: Time,
}

impl<'a> RingReader<'a> {
    pub(super) fn new(
        shared: &'a RunShared,
        plan: &RunPlan,
        macs: &'a [MacAddress],
        senders: &'a [&'a FrameSender],
        rings: Vec<&'a mut PortRings>,
        records: Option<&'a mut RecordWriter>,
    ) -> Self {
        Self {
            shared,
            run: plan.number,
            family: plan.family,
            macs,
            senders,
            rings,
            records,
            events: Vec::with_capacity(READ_MAX),
            rows: Vec::new(),
            arrivals: ArrivalCounts::default(),
            delays: DelaySamples::default(),
            sent: StampSpan::default(),
            received: StampSpan::default(),
            stamp_lag_max: Duration::ZERO,
            settled: Time::ZERO,
        }
    }

    /// Reads what waits in each ring, up to a limit; tells whether there was anything.
    pub(super) fn read(&mut self) -> Result<bool> {
        let began = self.shared.clock.now();
        let (mut read_max, mut read_any) = (0, false);
        for port in 0..self.rings.len() {
            // Stamps first: they belong to packets that may have arrived.
            for read in [self.read_sent(port), self.read_received(port)?] {
                read_max = read_max.max(read);
                read_any |= read > 0;
            }
        }
        if read_max < READ_MAX {
            self.settled = began;
        }
        self.take_records();
        Ok(read_any)
    }

    /// Tells whether all records have been taken out.
    pub(super) fn is_finished(&self) -> bool {
        self.shared.machine().is_finished()
    }

    /// Number of packets that have arrived, with further copies and those that came back.
    pub(super) fn arrived(&self) -> u64 {
        self.received.count + self.arrivals.returned + self.arrivals.misrouted
    }

    /// Ends the traffic: reads what has arrived, and then lets all packets have a record at once.
    pub(super) fn stop_traffic(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for _ in 0..LAST_READS_MAX {
            if !matches!(self.read(), Ok(true)) {
                break;
            }
        }
        self.shared.machine().stop();
    }

    /// Takes the last records out.
    pub(super) fn finish(mut self) -> FinishedReading {
        self.shared.machine().stop();
        self.take_records();
        self.arrivals.late = self.shared.machine().strays();
        if let Some(records) = &mut self.records {
            records.hand_over();
        }
        FinishedReading {
            arrivals: self.arrivals,
            delays: self.delays,
            sent_pps: self.sent.rate(),
            received_pps: self.received.rate(),
            stamp_lag_max: self.stamp_lag_max,
        }
    }

    fn read_sent(&mut self, port: usize) -> usize {
        let numbers = SequenceNumbers(&self.shared.made);
        let (ring, events) = (&mut self.rings[port].sent, &mut self.events);
        let (span, run) = (&mut self.sent, self.run as u16);
        let lag_max = &mut self.stamp_lag_max;
        let mut read = 0;
        while read < READ_MAX
            && ring.take(|frame| {
                let at = Time::from_epoch(frame.stamp);
                let sequence = match parse(frame.bytes) {
                    MeasuredFrame::Probe(probe) if probe.run == run => {
                        let lag = at.since(Time::from_nanos(probe.stamp_ns));
                        *lag_max = lag.max(*lag_max);
                        u64::from(probe.sequence)
                    }
                    MeasuredFrame::Segment(segment) => numbers.full(segment.number),
                    _ => return,
                };
                span.add(at.as_nanos());
                events.push(RingEvent::Sent { sequence, at });
            })
        {
            read += 1;
        }
        self.enter_events();
        read
    }

    fn read_received(&mut self, port: usize) -> Result<usize> {
        let numbers = SequenceNumbers(&self.shared.made);
        let ring = &mut self.rings[port].received;
        let (events, counts) = (&mut self.events, &mut self.arrivals);
        let (span, run) = (&mut self.received, (self.run as u16, self.family));
        let (sender, mac) = (self.senders[port], self.macs[port]);
        let number = port as u16;
        let mut read = 0;
        let mut failure = None;
        while read < READ_MAX
            && ring.take(|frame| {
                let at = Time::from_epoch(frame.stamp);
                let packet = match parse(frame.bytes) {
                    MeasuredFrame::Probe(probe) => counts.probe(&probe, number, run, at),
                    MeasuredFrame::Segment(segment) => {
                        let sequence = numbers.full(segment.number);
                        counts.segment(&segment, number, sequence, at)
                    }
                    MeasuredFrame::Neighbour => {
                        let port = (number, mac);
                        failure = answer_neighbour(frame.bytes, port, sender).err();
                        None
                    }
                    MeasuredFrame::Icmp(kind, code) => {
                        counts.icmp(kind, code);
                        None
                    }
                    MeasuredFrame::Fragment => {
                        counts.fragments += 1;
                        None
                    }
                    MeasuredFrame::Foreign => {
                        counts.foreign += 1;
                        None
                    }
                };
                if let Some(packet) = packet {
                    span.add(at.as_nanos());
                    events.push(RingEvent::Received(packet));
                }
            })
        {
            read += 1;
        }
        self.enter_events();
        match failure {
            Some(error) => Err(error)
                .with_context(|| format!("port {port} does not answer ARP or neighbour discovery")),
            None => Ok(read),
        }
    }

    fn enter_events(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        let mut machine = self.shared.machine();
        for event in self.events.drain(..) {
            match event {
                RingEvent::Sent { sequence, at } => machine.handle_sent(sequence, at),
                RingEvent::Received(packet) => match machine.handle_received(now, &packet) {
                    ArrivalOrigin::Own => {}
                    ArrivalOrigin::Rewritten => self.arrivals.rewritten += 1,
                    ArrivalOrigin::Foreign => self.arrivals.foreign += 1,
                },
            }
        }
    }

    fn take_records(&mut self) {
        let now = self.settled;
        loop {
            let mut machine = self.shared.machine();
            while self.rows.len() < READ_MAX
                && let Some(record) = machine.poll_record(now)
            {
                self.rows.push(record);
            }
            drop(machine);
            if self.rows.is_empty() {
                return;
            }
            for packet in self.rows.drain(..) {
                if let Some(delay) = packet.delay() {
                    self.delays.add(delay);
                }
                if let Some(records) = &mut self.records {
                    records.add(RecordRow {
                        run: self.run,
                        packet,
                    });
                }
            }
        }
    }
}

impl ArrivalCounts {
    /// Judges a probe that arrived at a port; `None` if it is not an arrival of this run.
    fn probe(
        &mut self,
        probe: &ProbePacket<'_>,
        port: u16,
        (run, family): (u16, AddressFamily),
        at: Time,
    ) -> Option<ReceivedPacket> {
        if probe.run != run {
            self.of_earlier_runs += 1;
            return None;
        }
        let (input, output) = (u16::from(probe.input), u16::from(probe.output));
        if port != output {
            if port == input {
                self.returned += 1;
            } else {
                self.misrouted += 1;
            }
            return None;
        }
        let endpoints = emulated_endpoints(family, probe.flow, input, output);
        let is_unchanged = probe.is_between(endpoints.source, endpoints.destination);
        let is_intact = probe.is_intact();
        self.rewritten += u64::from(is_intact && !is_unchanged);
        Some(ReceivedPacket {
            sequence: u64::from(probe.sequence),
            at,
            size: probe.ip_bytes(),
            output: port,
            integrity: integrity(is_intact && is_unchanged),
            content: None,
        })
    }

    /// Judges a TCP segment that arrived at a port; `None` if it is for a host of another port. The machine
    /// knows the addresses of the packet with its number.
    fn segment(
        &mut self,
        segment: &SegmentPacket<'_>,
        port: u16,
        sequence: u64,
        at: Time,
    ) -> Option<ReceivedPacket> {
        let subnet = subnet_port(segment.destination()?);
        if subnet.is_some_and(|subnet| subnet != port) {
            self.misrouted += 1;
            return None;
        }
        Some(ReceivedPacket {
            sequence,
            at,
            size: segment.packet.len() as u32,
            output: port,
            integrity: integrity(segment.is_intact()),
            content: Some(Bytes::copy_from_slice(segment.packet)),
        })
    }

    fn icmp(&mut self, kind: u8, code: u8) {
        let mut known = self.icmp.iter_mut();
        if let Some(count) = known.find(|count| (count.kind, count.code) == (kind, code)) {
            count.messages += 1;
        } else if self.icmp.len() < ICMP_KINDS_MAX {
            self.icmp.push(IcmpCount {
                kind,
                code,
                messages: 1,
            });
        } else {
            self.foreign += 1;
        }
    }
}

fn integrity(is_intact: bool) -> PacketIntegrity {
    if is_intact {
        PacketIntegrity::Intact
    } else {
        PacketIntegrity::Corrupted
    }
}

/// Sequence numbers of segments, which carry the lowest 16 bits only, by the number of packets that
/// the sender has taken out.
#[derive(Clone, Copy, Debug)]
struct SequenceNumbers<'a>(&'a AtomicU64);

impl SequenceNumbers<'_> {
    /// Returns the latest sequence number with these lowest 16 bits. The count is read for each
    /// frame: the sender goes on while a ring is read, and its newest packets are in that ring.
    fn full(self, low: u16) -> u64 {
        let last = self.0.load(Ordering::Acquire).saturating_sub(1);
        let back = (last as u16).wrapping_sub(low);
        last.saturating_sub(u64::from(back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_name_the_latest_packet_with_them() {
        let full = |low, made| SequenceNumbers(&AtomicU64::new(made)).full(low);
        assert_eq!(full(5, 6), 5);
        assert_eq!(full(5, 65_542), 65_541);
        assert_eq!(full(0xffff, 65_540), 65_535);
        assert_eq!(full(0, 0), 0);
    }

    #[test]
    fn packet_sent_during_a_read_keeps_its_number() {
        let made = AtomicU64::new(6);
        let numbers = SequenceNumbers(&made);
        assert_eq!(numbers.full(5), 5);
        made.fetch_add(1, Ordering::Release);
        assert_eq!(numbers.full(6), 6);
    }

    #[test]
    fn rate_is_that_between_first_and_last() {
        let mut span = StampSpan::default();
        assert!(span.rate().abs() < f64::EPSILON);
        for stamp in [1_000_000_000, 1_500_000_000, 2_000_000_000] {
            span.add(stamp);
        }
        assert!((span.rate() - 2.0).abs() < 1e-9);
    }
}
