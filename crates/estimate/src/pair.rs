//! Two connected ends of reduction: one encodes, the other decodes at once, and the result is
//! compared.
//!
//! ```text
//!  send ─► encoder ─► Data frames ─► decoder ─► compared with what was sent
//!             ▲ ◄──── Ack frames ◄──── │        (each 64 KiB of the encoded stream, or when the
//!             └─ Message frames (repair) ┘       encoder waits for one)
//! ```
//! Bytes on the wire are counted as a session over a link writes them: every frame with its length,
//! type and numbers, in both directions. The overhead around frames (TLS records, packets, their
//! seals and headers, sessions' pings) is not included.
//!
//! Time is virtual and advances with the bytes, so that the same data in the same order gives the
//! same bytes on every machine. Processor time is the calling thread's, for each end by itself:
//! encoding or decoding together with that end's disk work. A dictionary's disk work is executed as
//! soon as it is requested; a pair never waits for a slow disk.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use reduce::{
    DecoderConfig, DecoderOutput, Dictionary, DictionaryConfig, DictionaryKey,
    DictionaryStatistics, DiskCompletion, DiskRequest, EncoderConfig, FlowDecoder, FlowEncoder,
    PeerSlot,
};
use tunnel::wire::{
    AnswerFrame, DataFrame, FinishFrame, FlowAck, MessageAck, MessageContinuation, MessageFrame,
    OpenFrame, ReceiptState, SessionFrame,
};
use tunnel::{OpenAnswer, OpenRequest};
use vocab::{ByteCount, ByteWriter, FlowId, FlowSegment, NodeId, SeededRandom, Time};

use host::kernel;

/// Disk of a dictionary.
pub struct DictionaryDisk {
    /// Executes its disk requests, in order.
    pub execute: Box<dyn FnMut(DiskRequest) -> DiskCompletion>,
    /// Key that seals the dictionary.
    pub key: DictionaryKey,
    /// Seed of the salts: a different one each time the same disk is opened.
    pub seed: u64,
}

/// Description of the bytes counted as wire bytes, for readers of the figures.
pub const FRAMING: &str = "frames of the session with their lengths, types and numbers, in both \
    directions: opens, data, acknowledgements, repairs, ends; without TLS, packets and their headers";

/// Bytes that an engine queues for the encoder before it stops reading from the host.
pub const READ_AHEAD: usize = 128 * 1024;
/// Virtual time that a byte takes to arrive, as at 5 Gbit/s.
pub const BYTE_TIME: Duration = Duration::from_nanos(2);
/// Virtual time between two flows, longer than an encoder holds anything back.
const FLOW_GAP: Duration = Duration::from_millis(10);
/// The progress that a session tells of at once while flows have their first window.
pub const ACKNOWLEDGED_AT_ONCE: u64 = 64 * 1024;
/// Virtual time in which a dictionary syncs and writes down all it knows when nothing more comes.
const SETTLING: Duration = Duration::from_secs(5);

/// Appends, or syncs between them, after which what a dictionary gathers is written down: it is less than
/// one append holds.
const WRITES_DOWN: usize = 4;

/// One end of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairSide {
    /// The end of the client, or of the sender of a file.
    Near,
    /// The end of the server.
    Far,
}

impl PairSide {
    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Settings of both ends.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// Each end's dictionary.
    pub dictionary: DictionaryConfig,
    /// Each flow's encoder.
    pub encoder: EncoderConfig,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl PairConfig {
    /// As nodes are: so much memory and disk for each dictionary, the rest as it comes.
    #[must_use]
    pub fn shipped(memory: ByteCount, disk: ByteCount, seed: u64) -> Self {
        Self {
            dictionary: DictionaryConfig {
                memory,
                disk,
                ..DictionaryConfig::default()
            },
            encoder: EncoderConfig::default(),
            seed,
        }
    }
}

/// Traffic so far and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficTally {
    /// Bytes that hosts sent.
    pub bytes: u64,
    /// Bytes that the encoder gave, without frames and repairs.
    pub encoded_bytes: u64,
    /// Bytes of frames in the direction of the data.
    pub forward_wire_bytes: u64,
    /// Bytes of frames against it.
    pub backward_wire_bytes: u64,
    /// Repairs asked for.
    pub repairs: u64,
    /// Processor time of the sending end.
    pub encoding: Duration,
    /// Processor time of the receiving end.
    pub decoding: Duration,
}

impl TrafficTally {
    /// Bytes of frames in both directions.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.forward_wire_bytes + self.backward_wire_bytes
    }

    /// Bytes on the wire for each byte that hosts sent; zero of nothing.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.bytes {
            0 => 0.0,
            bytes => self.wire_bytes() as f64 / bytes as f64,
        }
    }

    /// Bits that hosts sent for each second of the sending end's processor time.
    #[must_use]
    pub fn encode_gbit_s(&self) -> f64 {
        gbit_s(self.bytes, self.encoding)
    }

    /// Bits that hosts sent for each second of the receiving end's processor time.
    #[must_use]
    pub fn decode_gbit_s(&self) -> f64 {
        gbit_s(self.bytes, self.decoding)
    }

    /// Adds what another stream took.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.encoded_bytes += other.encoded_bytes;
        self.forward_wire_bytes += other.forward_wire_bytes;
        self.backward_wire_bytes += other.backward_wire_bytes;
        self.repairs += other.repairs;
        self.encoding += other.encoding;
        self.decoding += other.decoding;
    }
}

fn gbit_s(bytes: u64, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => bytes as f64 * 8.0 / seconds / 1e9,
    }
}

/// Both ends.
pub struct NodePair {
    ends: [NodeEnd; 2],
    encoder: EncoderConfig,
    now: Time,
    next_flow: u64,
}

/// One end: a dictionary and its disk.
pub struct NodeEnd {
    /// The dictionary that its encoders and decoders share.
    pub dictionary: Dictionary,
    disk: Option<DictionaryDisk>,
    /// The other end, as this dictionary knows it.
    pub peer: PeerSlot,
}

impl NodeEnd {
    /// A dictionary that has read what its disk holds.
    pub fn open(config: &PairConfig, side: PairSide, disk: Option<DictionaryDisk>) -> Result<Self> {
        let nodes = [NodeId([1; 32]), NodeId([2; 32])];
        let random = |seed| SeededRandom::for_stream(seed, side as u64);
        let mut dictionary = match &disk {
            Some(disk) => {
                Dictionary::with_key(config.dictionary, disk.key.clone(), random(disk.seed))
            }
            None => Dictionary::new(config.dictionary, random(config.seed)),
        };
        let peer = dictionary.peer(nodes[side.other() as usize]);
        dictionary.open();
        let mut end = Self {
            dictionary,
            disk,
            peer,
        };
        end.serve();
        ensure!(
            end.dictionary.is_ready(),
            "a dictionary has asked its disk for nothing more and is not ready"
        );
        Ok(end)
    }

    /// Returns the data that an encoder sends now, after its disk work.
    pub fn encode(&mut self, now: Time, encoder: &mut FlowEncoder) -> Option<Bytes> {
        let unsent = tunnel::SessionConfig::default().unsent_limit.as_usize();
        loop {
            let encoded = encoder.poll_encoded(now, &mut self.dictionary, unsent);
            let requests = self.serve();
            // What it waited for has been read by now, unless nothing was asked for.
            if encoded.is_some() || requests == 0 || !encoder.waits_for_disk() {
                return encoded;
            }
        }
    }

    /// Lets the dictionary write its remaining data, as it does when time passes.
    pub fn settle(&mut self, now: &mut Time) {
        // A sync may be what writes the rest down, and that has to be synced in turn.
        for _ in 0..3 {
            *now += SETTLING;
            self.dictionary.handle_timeout(*now);
            self.serve();
        }
    }

    /// Lets the dictionary write down the chunks that it gathers, as it does within some milliseconds.
    pub fn write_down(&mut self, now: &mut Time) {
        // A disk that is broken keeps it waiting for ever.
        for _ in 0..WRITES_DOWN {
            let waits = self.dictionary.statistics().waiting_bytes > 0;
            let Some(due) = self.dictionary.poll_timeout().filter(|_| waits) else {
                return;
            };
            *now = due.max(*now);
            self.dictionary.handle_timeout(*now);
            self.serve();
        }
    }

    /// Executes disk work until the dictionary asks for none; says how many requests that were.
    pub fn serve(&mut self) -> usize {
        let mut requests = 0;
        if let Some(disk) = &mut self.disk {
            while let Some(request) = self.dictionary.poll_disk() {
                self.dictionary.handle_disk((disk.execute)(request));
                requests += 1;
            }
        }
        requests
    }
}

/// One direction of a flow between the ends.
pub struct PairStream {
    id: FlowId,
    from: PairSide,
    encoder: FlowEncoder,
    decoder: FlowDecoder,
    /// Data that was sent and has not come out at the other end.
    expected: VecDeque<Bytes>,
    encoded: u64,
    acknowledged: u64,
    messages: u64,
    ends: OverheadAccounting,
    tally: TrafficTally,
}

/// Accounting of a flow's open and ends in a stream's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverheadAccounting {
    Counted,
    ByTheOtherDirection,
}

impl PairStream {
    /// Returns the sending end.
    #[must_use]
    pub fn from(&self) -> PairSide {
        self.from
    }

    /// Bytes that were handed over and wait to be encoded.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.encoder.pending()
    }

    fn count_forward(&mut self, frame: &SessionFrame) {
        self.tally.forward_wire_bytes += length_of(frame);
    }

    fn count_backward(&mut self, frame: &SessionFrame) {
        self.tally.backward_wire_bytes += length_of(frame);
    }
}

impl NodePair {
    /// Both ends with their dictionaries, opened; `disks` are the near end's and the far end's.
    ///
    /// # Errors
    /// When a dictionary does not come to be ready.
    pub fn open(config: &PairConfig, disks: Option<[DictionaryDisk; 2]>) -> Result<Self> {
        let [near, far] = disks.map_or([None, None], |disks| disks.map(Some));
        Ok(Self {
            ends: [
                NodeEnd::open(config, PairSide::Near, near)?,
                NodeEnd::open(config, PairSide::Far, far)?,
            ],
            encoder: config.encoder,
            now: Time::ZERO,
            next_flow: 1,
        })
    }

    /// A new flow's first direction; the flow's open, answer and ends are counted with it.
    pub fn start(&mut self, from: PairSide) -> PairStream {
        self.now += FLOW_GAP;
        let id = FlowId(self.next_flow);
        self.next_flow += 1;
        let mut stream = self.direction(id, from, OverheadAccounting::Counted);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
        stream.count_forward(&SessionFrame::Open(OpenFrame {
            flow: id,
            open: OpenRequest {
                client: address,
                server: address,
                accelerator: 0,
                keep_client_address: true,
                may_store: true,
                dscp: 0,
            },
        }));
        stream.count_backward(&SessionFrame::Answer(AnswerFrame {
            flow: id,
            answer: OpenAnswer::Connected,
        }));
        stream
    }

    /// The other direction of a flow.
    pub fn start_against(&mut self, stream: &PairStream) -> PairStream {
        self.direction(
            stream.id,
            stream.from.other(),
            OverheadAccounting::ByTheOtherDirection,
        )
    }

    fn direction(&mut self, id: FlowId, from: PairSide, ends: OverheadAccounting) -> PairStream {
        let decoder = FlowDecoder::new(DecoderConfig::default(), self.end(from.other()).peer);
        PairStream {
            id,
            from,
            encoder: FlowEncoder::new(self.encoder, self.end(from).peer),
            decoder,
            expected: VecDeque::new(),
            encoded: 0,
            acknowledged: 0,
            messages: 0,
            ends,
            tally: TrafficTally::default(),
        }
    }

    /// Takes data from a host, and sends as much as an engine would while more arrives.
    ///
    /// # Errors
    /// When the output at the other end differs.
    pub fn send(&mut self, stream: &mut PairStream, bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.now += BYTE_TIME * u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        stream.tally.bytes += bytes.len() as u64;
        stream.expected.push_back(bytes.clone());
        let began = kernel::thread_time();
        stream.encoder.push(self.now, FlowSegment::payload(bytes));
        stream.tally.encoding += kernel::thread_time() - began;
        if stream.pending() >= READ_AHEAD {
            self.pump(stream)?;
        }
        Ok(())
    }

    /// Simulates a pause: sends everything that waits.
    ///
    /// # Errors
    /// When the output at the other end differs.
    pub fn pause(&mut self, stream: &mut PairStream) -> Result<()> {
        self.pump(stream)?;
        if let Some(due) = stream.encoder.poll_timeout() {
            self.now = self.now.max(due);
            self.pump(stream)?;
        }
        Ok(())
    }

    /// Ends a stream: sends the rest, acknowledges all, and returns the totals.
    ///
    /// # Errors
    /// When the output at the other end differs or is incomplete.
    pub fn finish(&mut self, mut stream: PairStream) -> Result<TrafficTally> {
        let began = kernel::thread_time();
        stream.encoder.finish();
        stream.tally.encoding += kernel::thread_time() - began;
        self.pump(&mut stream)?;
        self.acknowledge(&mut stream);
        self.write_down(&mut stream);
        ensure!(
            stream.encoder.pending() == 0
                && stream.expected.is_empty()
                && stream.decoder.is_at_boundary(),
            "not all came out at the other end: {} bytes were kept back",
            stream.encoder.pending()
        );
        if stream.ends == OverheadAccounting::Counted {
            let finish = SessionFrame::Finish(FinishFrame {
                flow: stream.id,
                final_offset: stream.encoded,
            });
            stream.count_forward(&finish);
            stream.count_backward(&finish);
        }
        stream.tally.encoded_bytes = stream.encoded;
        Ok(stream.tally)
    }

    /// Lets both dictionaries write what they gather, which is a part of what the stream takes.
    fn write_down(&mut self, stream: &mut PairStream) {
        for (end, time) in [
            (stream.from, &mut stream.tally.encoding),
            (stream.from.other(), &mut stream.tally.decoding),
        ] {
            let began = kernel::thread_time();
            self.ends[end as usize].write_down(&mut self.now);
            *time += kernel::thread_time() - began;
        }
    }

    /// Lets both dictionaries write down what they have not yet, as they do when time passes.
    pub fn settle(&mut self) {
        for end in &mut self.ends {
            end.settle(&mut self.now);
        }
    }

    /// Returns the counters of an end's dictionary.
    #[must_use]
    pub fn statistics(&self, side: PairSide) -> DictionaryStatistics {
        self.ends[side as usize].dictionary.statistics()
    }

    /// Most raw bytes that an encoder keeps until they are acknowledged.
    fn retained_limit(&self) -> ByteCount {
        self.encoder.retained
    }

    fn end(&mut self, side: PairSide) -> &mut NodeEnd {
        &mut self.ends[side as usize]
    }

    /// Encodes and decodes until the encoder gives nothing more.
    fn pump(&mut self, stream: &mut PairStream) -> Result<()> {
        loop {
            let now = self.now;
            let began = kernel::thread_time();
            let end = &mut self.ends[stream.from as usize];
            let encoded = end.encode(now, &mut stream.encoder);
            stream.tally.encoding += kernel::thread_time() - began;
            match encoded {
                Some(encoded) => self.carry(stream, encoded)?,
                None if stream.encoder.retained() >= self.retained_limit().as_usize()
                    && stream.acknowledged < stream.decoder.consumed() =>
                {
                    self.acknowledge(stream);
                }
                None => return Ok(()),
            }
            if stream.decoder.consumed() - stream.acknowledged >= ACKNOWLEDGED_AT_ONCE {
                self.acknowledge(stream);
            }
        }
    }

    fn carry(&mut self, stream: &mut PairStream, encoded: Bytes) -> Result<()> {
        let offset = stream.encoded;
        stream.encoded += encoded.len() as u64;
        stream.count_forward(&SessionFrame::Data(DataFrame {
            flow: stream.id,
            offset,
            bytes: encoded.clone(),
        }));
        let began = kernel::thread_time();
        stream.decoder.push(encoded);
        stream.tally.decoding += kernel::thread_time() - began;
        self.restore(stream)
    }

    fn restore(&mut self, stream: &mut PairStream) -> Result<()> {
        loop {
            let began = kernel::thread_time();
            let end = self.end(stream.from.other());
            let decoded = stream.decoder.poll(&mut end.dictionary);
            let requests = end.serve();
            stream.tally.decoding += kernel::thread_time() - began;
            match decoded.context("what was encoded cannot be restored")? {
                DecoderOutput::Segment(segment) => compare(&mut stream.expected, &segment.bytes)?,
                DecoderOutput::NeedMore => return Ok(()),
                DecoderOutput::NeedRepair(request) => self.repair(stream, request)?,
                DecoderOutput::WaitForRepair => {
                    bail!("a decoder waits for a repair that it was given")
                }
                DecoderOutput::WaitForDisk => ensure!(
                    requests > 0,
                    "a decoder waits for a disk of which nothing is asked"
                ),
            }
        }
    }

    fn repair(&mut self, stream: &mut PairStream, request: Bytes) -> Result<()> {
        stream.tally.repairs += 1;
        let sequence = stream.messages;
        stream.messages += 1;
        let asked = message(stream.id, sequence, &request);
        let began = kernel::thread_time();
        let answer = stream
            .encoder
            .repair(&request)
            .context("a repair was refused")?;
        stream.tally.encoding += kernel::thread_time() - began;
        let answered = message(stream.id, sequence, &answer);
        let acknowledged = SessionFrame::MessageAck(MessageAck { next: sequence + 1 });
        stream.count_backward(&asked);
        stream.count_backward(&acknowledged);
        stream.count_forward(&answered);
        stream.count_forward(&acknowledged);
        let began = kernel::thread_time();
        let taken = stream.decoder.handle_repair(&answer);
        stream.tally.decoding += kernel::thread_time() - began;
        taken.context("a repair was not taken")
    }

    fn acknowledge(&mut self, stream: &mut PairStream) {
        let consumed = stream.decoder.consumed();
        if consumed == stream.acknowledged {
            return;
        }
        stream.acknowledged = consumed;
        stream.count_backward(&acknowledgement(stream.id, stream.encoded, consumed));
        let began = kernel::thread_time();
        let end = self.end(stream.from);
        stream.encoder.acknowledged(consumed, &mut end.dictionary);
        end.serve();
        stream.tally.encoding += kernel::thread_time() - began;
    }
}

/// Removes `bytes` from the front of the expected data.
fn compare(expected: &mut VecDeque<Bytes>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let front = expected
            .front_mut()
            .context("more came out at the other end than was sent")?;
        let (these, rest) = bytes.split_at(bytes.len().min(front.len()));
        ensure!(
            front.starts_with(these),
            "other bytes came out at the other end than were sent"
        );
        let _ = front.split_to(these.len());
        if front.is_empty() {
            expected.pop_front();
        }
        bytes = rest;
    }
    Ok(())
}

/// Acknowledgement of a receiver's progress.
pub fn acknowledgement(flow: FlowId, received: u64, consumed: u64) -> SessionFrame {
    SessionFrame::Ack(FlowAck {
        flow,
        received,
        consumed,
        limit: received + tunnel::SessionConfig::default().flow_window.bytes(),
        finish: ReceiptState::NotYet,
    })
}

/// Message frame of a repair's request or answer. Its kind takes one byte in both cases.
pub fn message(flow: FlowId, sequence: u64, bytes: &Bytes) -> SessionFrame {
    SessionFrame::Message(MessageFrame {
        flow,
        kind: 1,
        piece: MessageContinuation::Last,
        sequence,
        bytes: bytes.clone(),
    })
}

/// The frame's length on a link. Data are not copied for it.
pub fn length_of(frame: &SessionFrame) -> u64 {
    let mut out = ByteWriter::new();
    match frame {
        SessionFrame::Data(data) => {
            let head = DataFrame {
                bytes: Bytes::new(),
                ..data.clone()
            };
            SessionFrame::Data(head).emit(&mut out);
            // The length before a frame grows with it; that of an empty one takes one byte.
            let body = out.len() - 1 + data.bytes.len();
            (vocab::varint_length(body as u64) + body) as u64
        }
        frame => {
            frame.emit(&mut out);
            out.len() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use reduce::testing::MemoryDisk;

    use super::*;

    fn config(disk: ByteCount) -> PairConfig {
        PairConfig::shipped(ByteCount::mebibytes(16), disk, 1)
    }

    fn noise(length: usize, seed: u64) -> Bytes {
        let mut bytes = vec![0; length];
        SeededRandom::from_seed(seed).fill(&mut bytes);
        bytes.into()
    }

    fn transfer(pair: &mut NodePair, data: &Bytes) -> TrafficTally {
        let mut stream = pair.start(PairSide::Near);
        for start in (0..data.len()).step_by(65_536) {
            let end = data.len().min(start + 65_536);
            pair.send(&mut stream, data.slice(start..end)).unwrap();
        }
        pair.finish(stream).unwrap()
    }

    #[test]
    fn repeated_data_is_cheap_in_both_directions() {
        let mut pair = NodePair::open(&config(ByteCount::new(0)), None).unwrap();
        let data = noise(1 << 20, 1);
        let cold = transfer(&mut pair, &data);
        assert_eq!(cold.bytes, 1 << 20);
        assert!(cold.wire_bytes() >= 1 << 20);
        assert!(cold.backward_wire_bytes > 0);
        let mut back = pair.start(PairSide::Far);
        pair.send(&mut back, data.clone()).unwrap();
        let warm = pair.finish(back).unwrap();
        assert!(warm.wire_bytes() < cold.wire_bytes() / 50, "{warm:?}");
        assert_eq!(warm.repairs, 0);
    }

    #[test]
    fn a_lone_write_is_sent_in_a_pause() {
        let mut pair = NodePair::open(&config(ByteCount::new(0)), None).unwrap();
        let mut stream = pair.start(PairSide::Near);
        pair.send(&mut stream, Bytes::from_static(b"ls\n")).unwrap();
        pair.pause(&mut stream).unwrap();
        assert_eq!(stream.pending(), 0);
        assert!(stream.expected.is_empty());
        pair.finish(stream).unwrap();
    }

    #[test]
    fn lost_dictionary_costs_repairs_not_wrong_bytes() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let disks: [Rc<RefCell<MemoryDisk>>; 2] = Default::default();
        let mut seed = 0;
        let mut executor = |disk: &Rc<RefCell<MemoryDisk>>| -> DictionaryDisk {
            let disk = Rc::clone(disk);
            seed += 1;
            DictionaryDisk {
                execute: Box::new(move |request| disk.borrow_mut().execute(request)),
                key: DictionaryKey::new([1; 32]),
                seed,
            }
        };
        let config = config(ByteCount::mebibytes(64));
        let data = noise(1 << 20, 2);
        let mut pair = NodePair::open(&config, Some(disks.each_ref().map(&mut executor))).unwrap();
        let cold = transfer(&mut pair, &data);
        pair.settle();
        drop(pair);
        let mut pair = NodePair::open(&config, Some(disks.each_ref().map(&mut executor))).unwrap();
        let warm = transfer(&mut pair, &data);
        assert!(warm.wire_bytes() < cold.wire_bytes() / 50, "{warm:?}");
        pair.settle();
        drop(pair);
        *disks[1].borrow_mut() = MemoryDisk::new();
        let mut pair = NodePair::open(&config, Some(disks.each_ref().map(&mut executor))).unwrap();
        let repaired = transfer(&mut pair, &data);
        assert!(repaired.repairs > 0);
        assert!(repaired.wire_bytes() > 1 << 20);
        let again = transfer(&mut pair, &data);
        assert!(again.wire_bytes() < cold.wire_bytes() / 50, "{again:?}");
    }

    #[test]
    fn frames_are_as_long_as_they_are_written() {
        for length in [1, 60, 61, 62, 63, 64, 65, 16_000, 16_380, 16_384, 65_536] {
            let frame = SessionFrame::Data(DataFrame {
                flow: FlowId(7),
                offset: 1 << 33,
                bytes: vec![0; length].into(),
            });
            let mut out = ByteWriter::new();
            frame.emit(&mut out);
            assert_eq!(length_of(&frame), out.len() as u64);
        }
    }

    #[test]
    fn another_byte_is_noticed() {
        let mut expected = VecDeque::from([Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]);
        compare(&mut expected, b"abc").unwrap();
        assert!(compare(&mut expected.clone(), b"x").is_err());
        assert!(compare(&mut expected.clone(), b"de").is_err());
        compare(&mut expected, b"d").unwrap();
        assert!(expected.is_empty());
    }
}
