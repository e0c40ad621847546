//! A circuit in virtual time: packets of TCP and UDP between two hosts, over an emulated link.
//!
//! Packets go over the link as values: the model looks at nothing but their length.

use std::collections::HashMap;
use std::net::SocketAddr;

use bytes::Bytes;
use emulate::{EnqueueOutcome, Link, LinkDirection};
use tcp::{FlowAddresses, TcpHost, TcpSegment, packet_length};
use vocab::Time;

/// Bytes of every packet. No circuit carries longer ones here.
static ZEROS: [u8; 9_216] = [0; 9_216];
/// Bytes of the IPv4 and UDP headers.
const UDP_HEADERS: usize = 28;

/// Packet on the circuit.
#[derive(Clone, Debug)]
pub(crate) enum CircuitPacket {
    Tcp(FlowAddresses, TcpSegment),
    Udp { from: SocketAddr, bytes: Vec<u8> },
}

impl CircuitPacket {
    fn length(&self) -> usize {
        match self {
            CircuitPacket::Tcp(addresses, segment) => packet_length(addresses, segment),
            CircuitPacket::Udp { bytes, .. } => UDP_HEADERS + bytes.len(),
        }
    }
}

/// One direction of the circuit.
#[derive(Debug)]
struct CircuitDirection {
    next: u64,
    /// Packets under way by the number that the link gives them.
    under_way: HashMap<u64, CircuitPacket>,
    /// Larger packets vanish.
    carried_max: usize,
}

impl CircuitDirection {
    fn send(&mut self, now: Time, line: &mut LinkDirection, packet: CircuitPacket) {
        let length = packet.length();
        if length > self.carried_max {
            return;
        }
        let number = self.next;
        self.next += 1;
        let outcome = line.handle(now, Bytes::from_static(&ZEROS[..length]));
        if outcome == EnqueueOutcome::Queued {
            self.under_way.insert(number, packet);
        }
    }

    fn poll(&mut self, now: Time, line: &mut LinkDirection) -> Option<CircuitPacket> {
        loop {
            let delivery = line.poll_output(now)?;
            if let Some(packet) = self.under_way.remove(&delivery.index) {
                return Some(packet);
            }
        }
    }
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketDirection {
    ToServer,
    ToClient,
}

/// Link with the packets on it.
#[derive(Debug)]
pub(crate) struct EmulatedCircuit {
    link: Link,
    directions: [CircuitDirection; 2],
    drops_udp: bool,
}

impl EmulatedCircuit {
    /// An empty circuit that carries packets up to a size to the server, and to the client.
    pub(crate) fn new(link: Link, carried_max: [u16; 2]) -> Self {
        Self {
            link,
            directions: carried_max.map(|most| CircuitDirection {
                next: 0,
                under_way: HashMap::new(),
                carried_max: usize::from(most),
            }),
            drops_udp: false,
        }
    }

    /// Drops all UDP packets from now on.
    pub(crate) fn drop_udp(&mut self) {
        self.drops_udp = true;
    }

    pub(crate) fn send(&mut self, now: Time, direction: PacketDirection, packet: CircuitPacket) {
        if self.drops_udp && matches!(packet, CircuitPacket::Udp { .. }) {
            return;
        }
        let (line, way) = self.way(direction);
        way.send(now, line, packet);
    }

    /// Sends all segments of a host; tells whether there were any.
    pub(crate) fn send_segments(
        &mut self,
        now: Time,
        direction: PacketDirection,
        host: &mut TcpHost,
    ) -> bool {
        let mut has_sent = false;
        while let Some((addresses, segment)) = host.poll_output(now) {
            self.send(now, direction, CircuitPacket::Tcp(addresses, segment));
            has_sent = true;
        }
        has_sent
    }

    pub(crate) fn poll(&mut self, now: Time, direction: PacketDirection) -> Option<CircuitPacket> {
        let (line, way) = self.way(direction);
        way.poll(now, line)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.link.poll_timeout()
    }

    fn way(&mut self, direction: PacketDirection) -> (&mut LinkDirection, &mut CircuitDirection) {
        let [to_server, to_client] = &mut self.directions;
        match direction {
            PacketDirection::ToServer => (&mut self.link.forward, to_server),
            PacketDirection::ToClient => (&mut self.link.back, to_client),
        }
    }
}
