//! TCP connections over a path in virtual time, with the counters of the kernel, and with captures
//! at either end or in between.
//!
//! Segments go over the path as values: the models look at nothing but the length of a packet.

use std::time::Duration;

use measure::diagnosis::{TcpRun, TcpSample};
use tcp::{
    CongestionAlgorithm, ConnectionConfig, FlowAddresses, TcpConnection, TcpSegment, packet_length,
};
use vocab::{ByteCount, SeededRandom, Time};

use crate::kernel_counters::kernel_counters;
use crate::world::HopChain;

/// IPv4 and TCP headers with the time stamp option.
pub(crate) const HEADERS: u64 = 52;
/// Headers without options, by which a full packet is longer than the MSS.
const BARE_HEADERS: u64 = 40;
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
    /// The ends, its sender as the local one.
    pub(crate) addresses: FlowAddresses,
    pub(crate) segment: TcpSegment,
}

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) control: CongestionAlgorithm,
    /// The IP packet of a full segment; 52 bytes of it are headers with time stamps.
    pub(crate) packet: u64,
    pub(crate) window: ByteCount,
    pub(crate) buffer: ByteCount,
    pub(crate) total: ByteCount,
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
    addresses: FlowAddresses,
    start: Time,
    /// Its first segment comes when it starts; the receiver exists from the first SYN on.
    sender: Option<TcpConnection>,
    receiver: Option<TcpConnection>,
    has_written: bool,
    samples: Vec<TcpSample>,
}

struct SimulatedTransfer<'a> {
    forward: &'a mut HopChain,
    reverse: &'a mut HopChain,
    plan: TransferPlan,
    config: ConnectionConfig,
    random: SeededRandom,
    connections: Vec<SimulatedConnection>,
    /// Segments by the name that a packet has on the path.
    segments: Vec<(usize, TcpSegment)>,
    acks: Vec<(usize, TcpSegment)>,
    seen: Vec<CapturedPacket>,
}

/// Runs connections from `start` on.
pub(crate) fn run(
    forward: &mut HopChain,
    reverse: &mut HopChain,
    start: Time,
    plan: TransferPlan,
) -> (TcpRun, Vec<CapturedPacket>, Time) {
    let settings = plan.settings;
    let connections = (0..plan.connections).map(|index| SimulatedConnection {
        addresses: FlowAddresses {
            local: ([10, 1, 0, 1], 40_000 + index as u16).into(),
            remote: ([10, 2, 0, 1], 443).into(),
        },
        start: start + plan.stagger * index as u32,
        sender: None,
        receiver: None,
        has_written: false,
        samples: Vec::new(),
    });
    let mut transfer = SimulatedTransfer {
        forward,
        reverse,
        plan,
        config: ConnectionConfig {
            congestion: settings.control,
            mss: (settings.packet - BARE_HEADERS) as u16,
            receive_buffer: settings.window,
            send_buffer: settings.buffer,
            ..ConnectionConfig::pattern()
        },
        random: SeededRandom::from_seed(0x7cb),
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
            .all(SimulatedConnection::is_done);
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

impl SimulatedConnection {
    fn is_done(&self) -> bool {
        let sender = self.sender.as_ref();
        self.has_written && sender.is_some_and(TcpConnection::is_all_acknowledged)
    }

    /// Starts the sender, lets timers expire, and writes the data once the connection is open.
    fn advance(
        &mut self,
        now: Time,
        config: ConnectionConfig,
        total: ByteCount,
        random: &mut SeededRandom,
    ) {
        if self.start > now {
            return;
        }
        let addresses = self.addresses;
        let sender = self
            .sender
            .get_or_insert_with(|| TcpConnection::connect(addresses, config, random));
        for end in [Some(&mut *sender), self.receiver.as_mut()]
            .into_iter()
            .flatten()
        {
            if end.poll_timeout().is_some_and(|due| due <= now) {
                end.handle_timeout(now);
            }
        }
        if !self.has_written && sender.is_established() {
            self.has_written = true;
            sender.write_pattern(now, total);
        }
    }
}

impl SimulatedTransfer<'_> {
    fn step(&mut self, now: Time) {
        for index in 0..self.connections.len() {
            self.advance(now, index);
        }
        while let Some(name) = {
            let (segments, connections) = (&self.segments, &self.connections);
            let (seen, tap) = (&mut self.seen, self.plan.tap);
            self.forward.poll(now, |hop, name| {
                if tap == Some(TapPoint::Behind(hop))
                    && let Some((index, segment)) = segments.get(name as usize)
                {
                    seen.push(CapturedPacket {
                        at: now,
                        addresses: connections[*index].addresses,
                        segment: segment.clone(),
                    });
                }
            })
        } {
            let Some((index, segment)) = self.segments.get(name as usize).cloned() else {
                continue;
            };
            self.see(TapPoint::Receiver, now, index, Direction::Forward, &segment);
            self.arrive_at_receiver(now, index, &segment);
            self.advance(now, index);
        }
        while let Some(name) = {
            let (acks, connections) = (&self.acks, &self.connections);
            let (seen, tap) = (&mut self.seen, self.plan.tap);
            self.reverse.poll(now, |_hop, name| {
                if matches!(tap, Some(TapPoint::Behind(_)))
                    && let Some((index, segment)) = acks.get(name as usize)
                {
                    seen.push(CapturedPacket {
                        at: now,
                        addresses: connections[*index].addresses.reversed(),
                        segment: segment.clone(),
                    });
                }
            })
        } {
            let Some((index, segment)) = self.acks.get(name as usize).cloned() else {
                continue;
            };
            self.see(TapPoint::Sender, now, index, Direction::Back, &segment);
            if let Some(sender) = &mut self.connections[index].sender {
                sender.handle_segment(now, &segment);
            }
            self.advance(now, index);
        }
    }

    fn arrive_at_receiver(&mut self, now: Time, index: usize, segment: &TcpSegment) {
        let connection = &mut self.connections[index];
        match &mut connection.receiver {
            Some(receiver) => receiver.handle_segment(now, segment),
            None => {
                let addresses = connection.addresses.reversed();
                let (config, random) = (self.config, &mut self.random);
                connection.receiver =
                    TcpConnection::accept(now, addresses, config, segment, random);
            }
        }
    }

    /// Lets a connection do what it can, and sends the segments that this makes.
    fn advance(&mut self, now: Time, index: usize) {
        let (config, total) = (self.config, self.plan.settings.total);
        self.connections[index].advance(now, config, total, &mut self.random);
        while let Some(segment) = self.output(now, index, Direction::Forward) {
            let bytes = packet_length(&self.connections[index].addresses, &segment);
            self.see(TapPoint::Sender, now, index, Direction::Forward, &segment);
            let name = self.segments.len() as u64;
            self.segments.push((index, segment));
            self.forward.send(now, bytes, name);
        }
        while let Some(segment) = self.output(now, index, Direction::Back) {
            let bytes = packet_length(&self.connections[index].addresses, &segment);
            self.see(TapPoint::Receiver, now, index, Direction::Back, &segment);
            let name = self.acks.len() as u64;
            self.acks.push((index, segment));
            self.reverse.send(now, bytes, name);
        }
    }

    fn output(&mut self, now: Time, index: usize, direction: Direction) -> Option<TcpSegment> {
        let connection = &mut self.connections[index];
        let end = match direction {
            Direction::Forward => &mut connection.sender,
            Direction::Back => &mut connection.receiver,
        };
        end.as_mut()?.poll_output(now)
    }

    fn see(
        &mut self,
        at: TapPoint,
        now: Time,
        index: usize,
        direction: Direction,
        segment: &TcpSegment,
    ) {
        if self.plan.tap == Some(at) {
            let addresses = self.connections[index].addresses;
            self.seen.push(CapturedPacket {
                at: now,
                addresses: match direction {
                    Direction::Forward => addresses,
                    Direction::Back => addresses.reversed(),
                },
                segment: segment.clone(),
            });
        }
    }

    fn sample(&mut self, now: Time) -> ByteCount {
        let mut received = 0;
        for connection in &mut self.connections {
            if let Some(receiver) = &connection.receiver {
                received += receiver.bytes_received().bytes();
            }
            if let Some(sender) = connection
                .sender
                .as_ref()
                .filter(|_| connection.has_written)
            {
                let info = kernel_counters(&sender.info(now));
                connection.samples.push(TcpSample { at: now, info });
            }
        }
        ByteCount::new(received)
    }

    fn next(&self, now: Time) -> Option<Time> {
        let ends = self.connections.iter().flat_map(|connection| {
            let start = Some(connection.start).filter(|start| *start > now);
            let timer = |end: &Option<TcpConnection>| end.as_ref()?.poll_timeout();
            [
                start,
                timer(&connection.sender),
                timer(&connection.receiver),
            ]
        });
        let paths = [self.forward.next(), self.reverse.next()];
        ends.chain(paths).flatten().min().map(|next| next.max(now))
    }
}

/// Direction of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}
