//! TCP connections over a path in virtual time, with the counters of the kernel, and with captures
//! at either end or in between.

use std::time::Duration;

use measure::diagnosis::{TcpRun, TcpSample};
use vocab::{ByteCount, Time};

use crate::tcp::{AckSegment, ConnectionSettings, TcpReceiver, TcpSender};
use crate::world::HopChain;

/// The time stamps' IP packet of an acknowledgement without and with its blocks.
const ACK_BYTES: usize = 52;
/// Interval of the TCP_INFO samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);

/// Place of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TapPoint {
    Sender,
    /// Between the bottleneck and the receiver, or before the bottleneck: behind this hop.
    Behind(usize),
    Receiver,
}

/// Packet as a capture shows it.
#[derive(Clone, Debug)]
pub(crate) struct CapturedPacket {
    pub(crate) at: Time,
    pub(crate) connection: usize,
    pub(crate) what: PacketContent,
    /// The sender's time stamp and its echo of the other's, in milliseconds.
    pub(crate) stamps: (u32, u32),
}

#[derive(Clone, Debug)]
pub(crate) enum PacketContent {
    Segment(u64),
    Ack(AckSegment),
}

/// Connections to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferPlan {
    pub(crate) settings: ConnectionSettings,
    pub(crate) connections: usize,
    /// Time between the start of one connection and of the next one.
    pub(crate) stagger: Duration,
    pub(crate) duration: Duration,
    pub(crate) tap: Option<TapPoint>,
}

struct SimulatedConnection {
    sender: TcpSender,
    receiver: TcpReceiver,
    start: Time,
    samples: Vec<TcpSample>,
    /// The latest stamps that each end has had from the other.
    stamp_at_sender: u32,
    stamp_at_receiver: u32,
}

struct SimulatedTransfer<'a> {
    forward: &'a mut HopChain,
    reverse: &'a mut HopChain,
    plan: TransferPlan,
    connections: Vec<SimulatedConnection>,
    /// Segments by the name that a packet has on the path.
    segments: Vec<(usize, u64, (u32, u32))>,
    acks: Vec<(usize, AckSegment, (u32, u32))>,
    seen: Vec<CapturedPacket>,
}

/// Runs connections from `start` on.
pub(crate) fn run(
    forward: &mut HopChain,
    reverse: &mut HopChain,
    start: Time,
    plan: TransferPlan,
) -> (TcpRun, Vec<CapturedPacket>, Time) {
    let connections = (0..plan.connections).map(|index| SimulatedConnection {
        sender: TcpSender::new(plan.settings),
        receiver: TcpReceiver::default(),
        start: start + plan.stagger * index as u32,
        samples: Vec::new(),
        stamp_at_sender: 0,
        stamp_at_receiver: 0,
    });
    let mut transfer = SimulatedTransfer {
        forward,
        reverse,
        plan,
        connections: connections.collect(),
        segments: Vec::new(),
        acks: Vec::new(),
        seen: Vec::new(),
    };
    let mut received = Vec::new();
    let end = start + plan.duration;
    let mut now = start;
    let mut sample_at = start + SAMPLE_EVERY;
    loop {
        transfer.step(now);
        if now >= sample_at {
            sample_at = now + SAMPLE_EVERY;
            received.push((now, transfer.sample(now)));
        }
        let done = transfer
            .connections
            .iter()
            .all(|connection| connection.sender.is_done());
        let next = transfer.next(now).unwrap_or(sample_at).min(sample_at);
        if done || next > end {
            break;
        }
        now = next;
    }
    received.push((now, transfer.sample(now)));
    let run = TcpRun {
        connections: transfer
            .connections
            .into_iter()
            .map(|connection| connection.samples)
            .collect(),
        written_until: None,
        received,
    };
    (run, transfer.seen, now)
}

impl SimulatedTransfer<'_> {
    fn step(&mut self, now: Time) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.start > now {
                continue;
            }
            connection.sender.on_timeout(now);
            if connection.receiver.ack_at.is_some_and(|at| at <= now) {
                let ack = connection.receiver.acknowledge();
                self.answer(now, index, ack);
            }
            self.send(now, index);
        }
        while let Some(name) = {
            let (segments, seen, tap) = (&self.segments, &mut self.seen, self.plan.tap);
            self.forward.poll(now, |hop, name| {
                if tap == Some(TapPoint::Behind(hop))
                    && let Some((connection, number, stamps)) = segments.get(name as usize)
                {
                    let what = PacketContent::Segment(*number);
                    seen.push(CapturedPacket {
                        at: now,
                        connection: *connection,
                        what,
                        stamps: *stamps,
                    });
                }
            })
        } {
            let Some((index, number, stamps)) = self.segments.get(name as usize).copied() else {
                continue;
            };
            self.connections[index].stamp_at_receiver = stamps.0;
            self.see(
                TapPoint::Receiver,
                now,
                index,
                PacketContent::Segment(number),
                stamps,
            );
            if let Some(ack) = self.connections[index].receiver.on_segment(now, number) {
                self.answer(now, index, ack);
            }
        }
        while let Some(name) = {
            let (acks, seen, tap) = (&self.acks, &mut self.seen, self.plan.tap);
            self.reverse.poll(now, |_hop, name| {
                if matches!(tap, Some(TapPoint::Behind(_)))
                    && let Some((connection, ack, stamps)) = acks.get(name as usize)
                {
                    let what = PacketContent::Ack(ack.clone());
                    seen.push(CapturedPacket {
                        at: now,
                        connection: *connection,
                        what,
                        stamps: *stamps,
                    });
                }
            })
        } {
            let Some((index, ack, stamps)) = self.acks.get(name as usize).cloned() else {
                continue;
            };
            self.connections[index].sender.on_ack(now, &ack);
            self.connections[index].stamp_at_sender = stamps.0;
            self.see(
                TapPoint::Sender,
                now,
                index,
                PacketContent::Ack(ack),
                stamps,
            );
            self.send(now, index);
        }
    }

    fn send(&mut self, now: Time, index: usize) {
        let bytes = self.plan.settings.packet as usize;
        while let Some((number, _)) = self.connections[index].sender.poll(now) {
            let name = self.segments.len() as u64;
            let stamps = (milliseconds(now), self.connections[index].stamp_at_sender);
            self.segments.push((index, number, stamps));
            self.see(
                TapPoint::Sender,
                now,
                index,
                PacketContent::Segment(number),
                stamps,
            );
            self.forward.send(now, bytes, name);
        }
    }

    fn answer(&mut self, now: Time, index: usize, ack: AckSegment) {
        let bytes = ACK_BYTES
            + if ack.blocks.is_empty() {
                0
            } else {
                4 + 8 * ack.blocks.len()
            };
        let name = self.acks.len() as u64;
        let stamps = (milliseconds(now), self.connections[index].stamp_at_receiver);
        self.see(
            TapPoint::Receiver,
            now,
            index,
            PacketContent::Ack(ack.clone()),
            stamps,
        );
        self.acks.push((index, ack, stamps));
        self.reverse.send(now, bytes, name);
    }

    fn see(
        &mut self,
        at: TapPoint,
        now: Time,
        connection: usize,
        what: PacketContent,
        stamps: (u32, u32),
    ) {
        if self.plan.tap == Some(at) {
            self.seen.push(CapturedPacket {
                at: now,
                connection,
                what,
                stamps,
            });
        }
    }

    fn sample(&mut self, now: Time) -> ByteCount {
        let mut received = 0;
        let payload = self.plan.settings.packet - crate::tcp::HEADERS;
        for connection in &mut self.connections {
            received += connection.receiver.next * payload;
            if connection.start <= now {
                let info = connection.sender.info(now);
                connection.samples.push(TcpSample { at: now, info });
            }
        }
        ByteCount::new(received)
    }

    fn next(&self, now: Time) -> Option<Time> {
        let ends = self.connections.iter().flat_map(|connection| {
            let start = Some(connection.start).filter(|start| *start > now);
            [
                start,
                connection.sender.timeout(),
                connection.receiver.ack_at,
            ]
        });
        let ways = [self.forward.next(), self.reverse.next()];
        ends.chain(ways).flatten().min().map(|next| next.max(now))
    }
}

/// A host's clock of time stamps, near its wrap.
fn milliseconds(now: Time) -> u32 {
    ((now.as_nanos() / 1_000_000) as u32).wrapping_sub(5_000)
}
