//! TCP reassembly: the bytes that the hosts sent, each direction by itself (RFC 9293 §3.4).
//!
//! ```text
//!  packet ─handle─► connection ─► half: in order? ─► StreamEvent::Data
//!                                   │ ahead: waits for what is missing ─► given up: a gap
//!                                   └ seen before: counted
//! ```
//! It processes packets as they arrive, so that a capture of any length takes bounded memory. Bytes
//! come out once, in order, as they were captured: a gap's bytes are left out and counted, never
//! invented. A capture may begin and end in the middle of connections.
//!
//! Checksums are not verified, because captures are taken before the network card fills them in.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use super::pcap::{ACK, CapturedPacket, SYN, TransportHeader};

const FIN: u8 = 0x01;
const RST: u8 = 0x04;

/// Limit for the bytes of one direction that wait for missing ones: the data that a fast connection
/// sends in the second in which a retransmission would arrive.
const MOST_WAITING: usize = 4 << 20;
/// Limit for all connections together.
const MOST_WAITING_IN_ALL: usize = 256 << 20;
/// Segments of one direction that may wait, against thousands of empty ones.
const MOST_SEGMENTS_WAITING: usize = 16_384;
/// Connections that are open at once; beyond it the longest silent ones end.
const MOST_CONNECTIONS: usize = 4_096;

/// Direction of a connection's bytes: the host that sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamDirection {
    /// The one that opened it.
    FromClient,
    /// The other.
    FromServer,
}

/// A connection in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedConnection {
    /// Counts the capture's connections from 0.
    pub number: u64,
    /// Host that opened it; if the capture does not show that, the host with the higher port.
    pub client: SocketAddr,
    /// The other.
    pub server: SocketAddr,
}

/// Event of the reassembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The next bytes of a direction.
    Data {
        /// Connection of the data.
        connection: CapturedConnection,
        /// Sending host.
        direction: StreamDirection,
        /// Capture time of the packet that completed them.
        at: Duration,
        /// Never empty.
        bytes: Bytes,
    },
    /// The connection has ended.
    Ended {
        /// Its number.
        number: u64,
    },
}

/// Counters of a capture, beside the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Frames that hold an IP packet which is no TCP segment, and frames that hold none.
    pub other_packets: u64,
    /// Pieces of IP packets that were cut on the way; they are not put together.
    pub fragments: u64,
    /// TCP segments.
    pub segments: u64,
    /// Connections, a port used again counted again.
    pub connections: u64,
    /// ... whose beginning was not captured.
    pub begun_before: u64,
    /// Bytes that came out.
    pub bytes: u64,
    /// Payload bytes that had been there before.
    pub retransmitted_bytes: u64,
    /// Segments that came before what belongs in front of them.
    pub reordered_segments: u64,
    /// Places where bytes are missing that the hosts sent.
    pub gaps: u64,
    /// Bytes missing there because no packet of the capture has them.
    pub missing_bytes: u64,
    /// Bytes missing because the capture kept only the first part of packets (snapshot length).
    pub cut_bytes: u64,
}

/// The connections of a capture.
#[derive(Debug, Default)]
pub struct StreamReassembler {
    connections: HashMap<(SocketAddr, SocketAddr), ConnectionState>,
    events: VecDeque<StreamEvent>,
    waiting_bytes: usize,
    next_number: u64,
    clock: u64,
    counts: StreamCounts,
}

#[derive(Debug)]
struct ConnectionState {
    connection: CapturedConnection,
    halves: [HalfStream; 2],
    ended: bool,
    used_at: u64,
}

/// One direction.
#[derive(Debug, Default)]
struct HalfStream {
    /// The sequence number at offset 0.
    base: Option<u32>,
    /// The offset of the next byte.
    next: u64,
    /// Early payload by offset.
    waiting: BTreeMap<u64, WaitingPayload>,
    waiting_bytes: usize,
    /// End of the direction.
    end: Option<u64>,
}

/// Payload of a segment, as far as it was kept.
#[derive(Clone, Debug)]
struct WaitingPayload {
    bytes: Bytes,
    wire_bytes: u64,
}

impl WaitingPayload {
    /// Leaves out the first `length` bytes.
    fn skip(&mut self, length: u64) {
        let kept = (self.bytes.len() as u64).min(length);
        self.bytes = self.bytes.slice(kept as usize..);
        self.wire_bytes -= length;
    }
}

impl StreamReassembler {
    /// Takes the next packet of the capture; `None` is a frame without one.
    pub fn handle(&mut self, packet: Option<CapturedPacket>) {
        let Some(packet) = packet else {
            self.counts.other_packets += 1;
            return;
        };
        let TransportHeader::Tcp {
            sequence,
            flags,
            payload_bytes,
            ..
        } = packet.transport
        else {
            match packet.is_fragment {
                true => self.counts.fragments += 1,
                false => self.counts.other_packets += 1,
            }
            return;
        };
        self.counts.segments += 1;
        self.clock += 1;
        let key = key_of(&packet);
        self.begin(key, &packet, sequence, flags);
        let Some(state) = self.connections.get_mut(&key) else {
            return;
        };
        state.used_at = self.clock;
        if state.ended {
            return;
        }
        let direction = match packet.source == state.connection.client {
            true => StreamDirection::FromClient,
            false => StreamDirection::FromServer,
        };
        // The byte that the SYN stands for comes before the data.
        let sequence = sequence.wrapping_add(u32::from(flags & SYN != 0));
        let half = &mut state.halves[direction as usize];
        let offset = half.offset_of(sequence);
        if flags & FIN != 0 {
            half.end = Some(offset.saturating_add_unsigned(payload_bytes.into()).max(0) as u64);
        }
        let mut out = DirectionOutput {
            connection: state.connection,
            direction,
            at: packet.at,
            events: &mut self.events,
            counts: &mut self.counts,
        };
        let piece = WaitingPayload {
            bytes: packet.payload.into(),
            wire_bytes: payload_bytes.into(),
        };
        let before = half.waiting_bytes;
        half.take(offset, piece, &mut out);
        let too_much = self.waiting_bytes + half.waiting_bytes - before > MOST_WAITING_IN_ALL;
        if too_much || half.is_too_far_ahead() {
            half.give_up(&mut out);
        }
        self.waiting_bytes = self.waiting_bytes + half.waiting_bytes - before;
        if flags & RST != 0 || state.halves.iter().all(HalfStream::is_over) {
            self.end(key);
        }
    }

    /// Ends the capture: waiting bytes come out with gaps, and all connections end.
    pub fn finish(&mut self) {
        let mut open: Vec<_> = self.connections.iter().collect();
        open.sort_by_key(|(_, state)| state.connection.number);
        let keys: Vec<_> = open.into_iter().map(|(key, _)| *key).collect();
        for key in keys {
            self.end(key);
        }
    }

    /// Takes the next event. Call until it returns `None`, after each packet and at the end.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// Makes the packet's connection where it is not there, or there as an earlier one.
    fn begin(
        &mut self,
        key: (SocketAddr, SocketAddr),
        packet: &CapturedPacket,
        sequence: u32,
        flags: u8,
    ) {
        let opens = flags & (SYN | ACK) == SYN;
        if let Some(state) = self.connections.get(&key) {
            let base = state.halves[StreamDirection::FromClient as usize].base;
            let is_again =
                packet.source == state.connection.client && base == Some(sequence.wrapping_add(1));
            if !opens || is_again {
                return;
            }
            self.end(key);
        } else if self.connections.len() >= MOST_CONNECTIONS {
            self.make_room();
        }
        let from_client = match (flags & SYN != 0, flags & ACK != 0) {
            (true, false) => true,
            (true, true) => false,
            (false, _) => packet.source.port() >= packet.destination.port(),
        };
        let (client, server) = match from_client {
            true => (packet.source, packet.destination),
            false => (packet.destination, packet.source),
        };
        let connection = CapturedConnection {
            number: self.next_number,
            client,
            server,
        };
        self.next_number += 1;
        self.counts.connections += 1;
        self.counts.begun_before += u64::from(flags & SYN == 0);
        let state = ConnectionState {
            connection,
            halves: [HalfStream::default(), HalfStream::default()],
            ended: false,
            used_at: self.clock,
        };
        self.connections.insert(key, state);
    }

    /// Forgets connections that have ended, and ends an eighth of the others, the longest silent.
    fn make_room(&mut self) {
        self.connections.retain(|_, state| !state.ended);
        if self.connections.len() < MOST_CONNECTIONS {
            return;
        }
        let mut by_age: Vec<_> = self
            .connections
            .iter()
            .map(|(key, state)| (state.used_at, *key))
            .collect();
        by_age.sort_unstable();
        for (_, key) in by_age.into_iter().take(MOST_CONNECTIONS / 8) {
            self.end(key);
            self.connections.remove(&key);
        }
    }

    fn end(&mut self, key: (SocketAddr, SocketAddr)) {
        let Some(state) = self.connections.get_mut(&key).filter(|state| !state.ended) else {
            return;
        };
        state.ended = true;
        for direction in [StreamDirection::FromClient, StreamDirection::FromServer] {
            let half = &mut state.halves[direction as usize];
            self.waiting_bytes -= half.waiting_bytes;
            half.give_up(&mut DirectionOutput {
                connection: state.connection,
                direction,
                at: Duration::ZERO,
                events: &mut self.events,
                counts: &mut self.counts,
            });
        }
        self.events.push_back(StreamEvent::Ended {
            number: state.connection.number,
        });
    }
}

/// Output of a direction's bytes.
struct DirectionOutput<'a> {
    connection: CapturedConnection,
    direction: StreamDirection,
    at: Duration,
    events: &'a mut VecDeque<StreamEvent>,
    counts: &'a mut StreamCounts,
}

impl HalfStream {
    /// The offset of a sequence number: of those that are alike, the one nearest to what comes next.
    fn offset_of(&mut self, sequence: u32) -> i64 {
        let base = *self.base.get_or_insert(sequence);
        let next = base.wrapping_add(self.next as u32);
        self.next as i64 + i64::from(sequence.wrapping_sub(next) as i32)
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    fn is_too_far_ahead(&self) -> bool {
        self.waiting_bytes > MOST_WAITING || self.waiting.len() > MOST_SEGMENTS_WAITING
    }

    fn take(&mut self, offset: i64, mut piece: WaitingPayload, out: &mut DirectionOutput<'_>) {
        let end = offset.saturating_add_unsigned(piece.wire_bytes);
        let seen = (self.next as i64 - offset).clamp(0, end - offset) as u64;
        out.counts.retransmitted_bytes += seen;
        piece.skip(seen);
        if piece.wire_bytes == 0 {
            return;
        }
        // What is left begins at the next byte or behind it.
        let offset = offset.max(self.next as i64) as u64;
        if offset > self.next {
            out.counts.reordered_segments += 1;
            self.wait(offset, piece, out);
            return;
        }
        self.deliver(piece, out);
        self.deliver_waiting(out);
    }

    fn wait(&mut self, offset: u64, piece: WaitingPayload, out: &mut DirectionOutput<'_>) {
        let other = self.waiting.remove(&offset);
        self.waiting_bytes -= other.as_ref().map_or(0, |other| other.bytes.len());
        let (shorter, longer) = match other {
            Some(other) if other.wire_bytes >= piece.wire_bytes => (Some(piece), other),
            Some(other) => (Some(other), piece),
            None => (None, piece),
        };
        if let Some(shorter) = shorter {
            out.counts.retransmitted_bytes += shorter.wire_bytes;
        }
        self.waiting_bytes += longer.bytes.len();
        self.waiting.insert(offset, longer);
    }

    fn deliver(&mut self, piece: WaitingPayload, out: &mut DirectionOutput<'_>) {
        self.next += piece.wire_bytes;
        let cut = piece.wire_bytes - piece.bytes.len() as u64;
        out.counts.cut_bytes += cut;
        out.counts.gaps += u64::from(cut > 0);
        out.counts.bytes += piece.bytes.len() as u64;
        if !piece.bytes.is_empty() {
            out.events.push_back(StreamEvent::Data {
                connection: out.connection,
                direction: out.direction,
                at: out.at,
                bytes: piece.bytes,
            });
        }
    }

    fn deliver_waiting(&mut self, out: &mut DirectionOutput<'_>) {
        while let Some(entry) = self.waiting.first_entry() {
            if *entry.key() > self.next {
                return;
            }
            let (offset, mut piece) = entry.remove_entry();
            self.waiting_bytes -= piece.bytes.len();
            let seen = (self.next - offset).min(piece.wire_bytes);
            out.counts.retransmitted_bytes += seen;
            piece.skip(seen);
            if piece.wire_bytes > 0 {
                self.deliver(piece, out);
            }
        }
    }

    /// Gives up waiting for missing bytes.
    fn give_up(&mut self, out: &mut DirectionOutput<'_>) {
        while let Some((offset, _)) = self.waiting.first_key_value() {
            out.counts.gaps += 1;
            out.counts.missing_bytes += offset - self.next;
            self.next = *offset;
            self.deliver_waiting(out);
        }
    }
}

/// Returns a key that is the same for both directions.
fn key_of(packet: &CapturedPacket) -> (SocketAddr, SocketAddr) {
    let (one, other) = (packet.source, packet.destination);
    (one.min(other), one.max(other))
}

#[cfg(test)]
mod tests {
    use super::super::pcap::test_address;
    use super::*;

    const CLIENT: (u8, u16) = (1, 40_000);
    const SERVER: (u8, u16) = (2, 80);

    struct StreamScript {
        streams: StreamReassembler,
        now: u64,
        sent: BTreeMap<(u64, StreamDirection), Vec<u8>>,
        ended: Vec<u64>,
    }

    impl StreamScript {
        fn new() -> Self {
            Self {
                streams: StreamReassembler::default(),
                now: 0,
                sent: BTreeMap::new(),
                ended: Vec::new(),
            }
        }

        fn push(&mut self, from: (u8, u16), sequence: u32, flags: u8, payload: &[u8]) {
            self.push_cut(from, sequence, flags, payload, payload.len());
        }

        fn push_cut(
            &mut self,
            from: (u8, u16),
            sequence: u32,
            flags: u8,
            payload: &[u8],
            wire: usize,
        ) {
            let to = if from == CLIENT { SERVER } else { CLIENT };
            self.now += 1;
            self.streams.handle(Some(CapturedPacket {
                at: Duration::from_millis(self.now),
                source: test_address(from.0, from.1),
                destination: test_address(to.0, to.1),
                ip_bytes: 40 + wire as u64,
                transport: TransportHeader::Tcp {
                    sequence,
                    acknowledgement: 0,
                    flags,
                    payload_bytes: wire as u32,
                },
                is_fragment: false,
                payload: payload.to_vec(),
            }));
            self.drain();
        }

        fn drain(&mut self) {
            while let Some(event) = self.streams.poll_event() {
                match event {
                    StreamEvent::Data {
                        connection,
                        direction,
                        bytes,
                        ..
                    } => self
                        .sent
                        .entry((connection.number, direction))
                        .or_default()
                        .extend_from_slice(&bytes),
                    StreamEvent::Ended { number } => self.ended.push(number),
                }
            }
        }

        fn finish(&mut self) {
            self.streams.finish();
            self.drain();
        }

        fn client(&self) -> &[u8] {
            &self.sent[&(0, StreamDirection::FromClient)]
        }
    }

    #[test]
    fn segments_are_ordered_across_sequence_wrap() {
        let mut script = StreamScript::new();
        let base = u32::MAX - 3;
        script.push(CLIENT, base.wrapping_sub(1), SYN, b"");
        script.push(SERVER, 900, SYN | ACK, b"");
        script.push(CLIENT, base.wrapping_add(4), ACK, b"efgh");
        script.push(CLIENT, base, ACK, b"abcd");
        script.push(CLIENT, base.wrapping_add(2), ACK, b"cdef");
        script.push(CLIENT, base.wrapping_add(6), ACK, b"ghij");
        script.push(SERVER, 901, ACK | FIN, b"answer");
        script.push(CLIENT, base.wrapping_add(10), ACK | FIN, b"");
        assert_eq!(script.client(), b"abcdefghij");
        assert_eq!(script.sent[&(0, StreamDirection::FromServer)], b"answer");
        assert_eq!(script.ended, [0]);
        let counts = script.streams.counts();
        assert_eq!(counts.reordered_segments, 1);
        assert_eq!(counts.retransmitted_bytes, 6);
        assert_eq!((counts.gaps, counts.missing_bytes), (0, 0));
        assert_eq!(counts.bytes, 16);
        assert_eq!(counts.begun_before, 0);
    }

    #[test]
    fn uncaptured_bytes_are_a_gap() {
        let mut script = StreamScript::new();
        script.push(CLIENT, 100, SYN, b"");
        script.push(CLIENT, 101, ACK, b"ab");
        script.push(CLIENT, 113, ACK, b"cd");
        assert_eq!(script.client(), b"ab");
        script.push_cut(CLIENT, 115, ACK, b"ef", 1_000);
        script.finish();
        assert_eq!(script.client(), b"abcdef");
        let counts = script.streams.counts();
        assert_eq!((counts.gaps, counts.missing_bytes), (2, 10));
        assert_eq!(counts.cut_bytes, 998);
    }

    #[test]
    fn gap_is_abandoned_when_too_much_waits() {
        let mut script = StreamScript::new();
        script.push(CLIENT, 0, SYN, b"");
        let payload = [7; 60_000];
        let mut sequence = 11;
        while script.sent.is_empty() {
            script.push(CLIENT, sequence, ACK, &payload);
            sequence += 60_000;
            assert!(sequence < 10_000_000);
        }
        assert!(script.client().len() > MOST_WAITING);
        assert_eq!(script.streams.counts().missing_bytes, 10);
        assert_eq!(script.streams.waiting_bytes, 0);
    }

    #[test]
    fn midstream_captures_and_reused_ports_are_read() {
        let mut script = StreamScript::new();
        script.push(SERVER, 5_000, ACK, b"rest");
        script.push(CLIENT, 100, SYN, b"");
        script.push(CLIENT, 100, SYN, b"");
        script.push(CLIENT, 101, ACK, b"new");
        script.push(CLIENT, 104, RST, b"");
        script.push(CLIENT, 104, ACK, b"late");
        assert_eq!(script.sent[&(0, StreamDirection::FromServer)], b"rest");
        assert_eq!(script.sent[&(1, StreamDirection::FromClient)], b"new");
        assert_eq!(script.ended, [0, 1]);
        let counts = script.streams.counts();
        assert_eq!((counts.connections, counts.begun_before), (2, 1));
    }

    #[test]
    fn shuffled_segments_come_out_in_order() {
        let mut random = vocab::SeededRandom::from_seed(3);
        for _ in 0..200 {
            let mut data = vec![0; 5_000];
            random.fill(&mut data);
            let mut script = StreamScript::new();
            script.push(CLIENT, 9, SYN, b"");
            let mut segments = Vec::new();
            let mut start = 0;
            while start < data.len() {
                let end = data.len().min(start + 1 + random.below(700) as usize);
                segments.push((start, end));
                // Sent again, cut elsewhere.
                let again = start + random.below((end - start) as u64) as usize;
                segments.push((again, data.len().min(end + 100)));
                start = end;
            }
            for last in (1..segments.len()).rev() {
                segments.swap(last, random.below(last as u64 + 1) as usize);
            }
            for (start, end) in segments {
                script.push(CLIENT, 10 + start as u32, ACK, &data[start..end]);
            }
            script.finish();
            assert_eq!(script.client(), data);
            assert_eq!(script.streams.counts().gaps, 0);
            assert_eq!(script.streams.waiting_bytes, 0);
        }
    }

    #[test]
    fn excess_connections_end_the_longest_silent() {
        let mut streams = StreamReassembler::default();
        for number in 0..=MOST_CONNECTIONS {
            let port = 1_024 + number as u16;
            streams.handle(Some(CapturedPacket {
                at: Duration::ZERO,
                source: test_address(1, port),
                destination: test_address(2, 80),
                ip_bytes: 41,
                transport: TransportHeader::Tcp {
                    sequence: 1,
                    acknowledgement: 0,
                    flags: ACK,
                    payload_bytes: 1,
                },
                is_fragment: false,
                payload: vec![1],
            }));
        }
        assert!(streams.connections.len() <= MOST_CONNECTIONS);
        let mut ended = Vec::new();
        while let Some(event) = streams.poll_event() {
            if let StreamEvent::Ended { number } = event {
                ended.push(number);
            }
        }
        assert_eq!(ended.len(), MOST_CONNECTIONS / 8);
        assert_eq!(ended[0], 0);
    }
}
