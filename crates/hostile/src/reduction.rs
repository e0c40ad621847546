//! Entries of `reduce`: encoded streams, repairs, content handles, and a dictionary's files.

use bytes::Bytes;
use reduce::testing::{MemoryDisk, write_handle_check};
use reduce::{
    AnswerScope, ContentHandle, ContentRead, ContentReader, ContentWriter, DecoderConfig,
    DecoderOutput, Dictionary, DictionaryConfig, DictionaryKey, EncoderConfig, FlowDecoder,
    FlowEncoder, PeerSlot, RepairAnswer, RepairRequest, RepairScope,
};
use vocab::{ByteCount, FlowSegment, NodeId, SeededRandom, SegmentKind, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// Answers of a decoder after one step past which it is taken to be in a circle: a record has no
/// more operations than this.
const MOST_ANSWERS: usize = 100_000;

/// Decoder entry: any bytes, in pieces, and any answers to its requests.
pub(crate) fn decoder(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut dictionary = Dictionary::new(dictionary_config(), SeededRandom::from_seed(1));
    let peer = dictionary.peer(NodeId([2; 32]));
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), peer);
    let mut disk = MemoryDisk::new();
    while let Some(step) = script.step() {
        let rest = script.bytes();
        if step % 4 == 3 {
            // Its errors end the flow at the engine; here the next step may try on.
            let _ = decoder.handle_repair(rest);
        } else {
            decoder.push(Bytes::copy_from_slice(rest));
        }
        for count in 0.. {
            assert!(count < MOST_ANSWERS, "a decoder goes round in a circle");
            disk.serve(&mut dictionary);
            match decoder.poll(&mut dictionary) {
                Ok(DecoderOutput::Segment(_)) => {}
                Ok(DecoderOutput::NeedRepair(request)) => {
                    RepairRequest::parse(&request).expect("what it asks can be read");
                }
                Ok(
                    DecoderOutput::NeedMore
                    | DecoderOutput::WaitForDisk
                    | DecoderOutput::WaitForRepair,
                )
                | Err(_) => {
                    break;
                }
            }
        }
        assert!(decoder.consumed() <= bytes.len() as u64);
    }
}

/// Requests and answers of repairs: read, written and read again equal; and an encoder is asked
/// for anything.
pub(crate) fn repair(bytes: &[u8]) {
    if let Ok(request) = RepairRequest::parse(bytes) {
        assert_eq!(RepairRequest::parse(&request.emit()).as_ref(), Ok(&request));
    }
    if let Ok(answer) = RepairAnswer::parse(bytes) {
        assert_eq!(RepairAnswer::parse(&answer.emit(3)).as_ref(), Ok(&answer));
    }
    let mut dictionary = Dictionary::new(dictionary_config(), SeededRandom::from_seed(1));
    let peer = dictionary.peer(NodeId([2; 32]));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), peer);
    let pushed = text(20_000, 1);
    encoder.push(Time::ZERO, FlowSegment::payload(pushed.clone()));
    encoder.finish();
    while encoder
        .poll_encoded(Time::ZERO, &mut dictionary, 4_096)
        .is_some()
    {}
    if let Ok(answer) = encoder.repair(bytes) {
        let answer = RepairAnswer::parse(&answer).expect("what it answers can be read");
        let given: usize = answer.pieces.iter().map(Bytes::len).sum();
        // Repeating a number may repeat its bytes, but only so often.
        assert!(given <= reduce::MAX_REPAIR_RANGES * reduce::MAX_RECORD_RAW);
    }
}

/// Content handle entry: a damaged handle as it is, and with a matching check. Its content reads
/// back right, or is gone.
pub(crate) fn content_handle(bytes: &[u8]) {
    let mut dictionary = Dictionary::new(dictionary_config(), SeededRandom::from_seed(1));
    let stored = text(30_000, 1);
    let sound = store(&mut dictionary, &stored);
    let mut checked = bytes.to_vec();
    write_handle_check(&mut checked);
    for bytes in [bytes, &checked] {
        let Ok(handle) = ContentHandle::parse(Bytes::copy_from_slice(bytes)) else {
            continue;
        };
        assert_eq!(handle.to_bytes(), bytes);
        let mut reader = ContentReader::new(handle.clone(), 0..u64::MAX);
        let mut read = 0;
        // A reference may repeat its chunk 65,536 times; some of that is enough.
        while read < 4 * stored.len() {
            match reader.poll(&mut dictionary) {
                ContentRead::Piece(piece) => {
                    if handle == sound {
                        assert_eq!(stored[read..][..piece.len()], piece);
                    }
                    read += piece.len();
                }
                ContentRead::Done => {
                    assert_eq!(read as u64, handle.length());
                    break;
                }
                ContentRead::Gone(_) => break,
                ContentRead::WaitForDisk => panic!("there is no disk"),
            }
        }
    }
}

fn store(dictionary: &mut Dictionary, body: &[u8]) -> ContentHandle {
    let mut writer = ContentWriter::new();
    writer.append(dictionary, body).expect("it is short");
    writer.finish(dictionary).expect("it is short")
}

/// Damage entry: one direction of a flow over two dictionaries on disks that are altered, truncated
/// and filled up.
///
/// The decoder always delivers a prefix of the pushed bytes.
pub(crate) fn damage(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut pair = DictionaryPair::new();
    while let Some(step) = script.step() {
        pair.take_step(step, &mut script);
    }
    pair.transfer(usize::MAX);
    pair.transfer(usize::MAX);
}

struct DictionaryPair {
    now: Time,
    near: Dictionary,
    far: Dictionary,
    near_disk: MemoryDisk,
    far_disk: MemoryDisk,
    restarts: u64,
    /// Number of the far dictionary's key.
    key: u8,
    flow: ReducedFlow,
}

struct ReducedFlow {
    encoder: FlowEncoder,
    decoder: FlowDecoder,
    pushed: Vec<u8>,
    delivered: usize,
    /// The decoder has refused the stream: the engine would have reset the flow.
    is_refused: bool,
}

impl ReducedFlow {
    fn new(near_slot: PeerSlot, far_slot: PeerSlot) -> Self {
        Self {
            encoder: FlowEncoder::new(EncoderConfig::default(), near_slot),
            decoder: FlowDecoder::new(DecoderConfig::default(), far_slot),
            pushed: Vec::new(),
            delivered: 0,
            is_refused: false,
        }
    }
}

impl DictionaryPair {
    fn new() -> Self {
        let mut near = dictionary(1, 1);
        let mut far = dictionary(1, 2);
        let mut near_disk = MemoryDisk::new();
        let mut far_disk = MemoryDisk::new();
        near.open();
        near_disk.serve(&mut near);
        far.open();
        far_disk.serve(&mut far);
        let flow = ReducedFlow::new(near.peer(NodeId([2; 32])), far.peer(NodeId([1; 32])));
        Self {
            now: Time::from_nanos(1_000_000_000),
            near,
            far,
            near_disk,
            far_disk,
            restarts: 0,
            key: 1,
            flow,
        }
    }

    fn take_step(&mut self, step: u8, script: &mut ByteScript<'_>) {
        match step % 16 {
            0 => self.push(text(usize::from(script.short()), u64::from(script.byte()))),
            1 => self.push(Bytes::copy_from_slice(script.bytes())),
            2 => self.push(noise(usize::from(script.short()), u64::from(script.byte()))),
            3 | 4 => self.transfer(usize::MAX),
            5 => self.transfer(usize::from(script.short())),
            6 => self.new_flow(),
            7 => {
                // The far node forgets all; the near one still believes what it knew.
                // A purge, under another key as in a node.
                self.key += 1;
                self.far.clear(Some(DictionaryKey::new([self.key; 32])));
            }
            8 => self.restart_far(),
            9 => {
                let at = usize::from(script.short());
                let flipped = script.byte();
                let numbers = self.far_disk.numbers();
                if let Some(number) = numbers.get(usize::from(script.byte()) % numbers.len().max(1))
                    && let Some(byte) = self.far_disk.segment(*number).get_mut(at)
                {
                    *byte ^= flipped;
                }
            }
            10 => {
                let length = usize::from(script.short());
                if let Some(number) = self.far_disk.numbers().last() {
                    self.far_disk.segment(*number).truncate(length);
                }
            }
            11 => {
                let garbage = script.bytes().to_vec();
                *self.far_disk.segment(u32::from(script.byte())) = garbage;
            }
            12 => self.far_disk.capacity = Some(u64::from(script.short())),
            13 => {
                self.far_disk.broken = !self.far_disk.broken;
                self.far_disk.capacity = None;
            }
            14 => {
                self.now += std::time::Duration::from_millis(u64::from(script.short()));
                self.near.handle_timeout(self.now);
                self.far.handle_timeout(self.now);
            }
            _ => self.flow.encoder.finish(),
        }
        self.near_disk.serve(&mut self.near);
        self.far_disk.serve(&mut self.far);
    }

    fn push(&mut self, bytes: Bytes) {
        // What waits is the engine's to limit.
        if bytes.is_empty() || self.flow.encoder.pending() > 1 << 20 {
            return;
        }
        self.flow.pushed.extend_from_slice(&bytes);
        self.flow
            .encoder
            .push(self.now, FlowSegment::payload(bytes));
    }

    /// Encodes, delivers and repairs until nothing more moves.
    fn transfer(&mut self, max: usize) {
        if max == 0 {
            return;
        }
        let hold = std::time::Duration::from_millis(10);
        self.now += hold;
        while let Some(encoded) = self
            .flow
            .encoder
            .poll_encoded(self.now, &mut self.near, max)
        {
            assert!(!encoded.is_empty());
            self.flow.decoder.push(encoded);
            self.deliver();
            let consumed = self.flow.decoder.consumed();
            self.flow.encoder.acknowledged(consumed, &mut self.near);
            self.near_disk.serve(&mut self.near);
        }
    }

    fn deliver(&mut self) {
        if self.flow.is_refused {
            return;
        }
        for count in 0.. {
            assert!(count < MOST_ANSWERS, "a decoder goes round in a circle");
            self.far_disk.serve(&mut self.far);
            match self.flow.decoder.poll(&mut self.far) {
                Ok(DecoderOutput::Segment(segment)) => self.check(&segment),
                Ok(DecoderOutput::NeedMore) => return,
                Ok(DecoderOutput::NeedRepair(request)) => {
                    let answer = self
                        .flow
                        .encoder
                        .repair(&request)
                        .expect("an honest request is answered");
                    self.flow
                        .decoder
                        .handle_repair(&answer)
                        .expect("an honest answer is taken");
                }
                Ok(DecoderOutput::WaitForDisk) => {
                    assert!(
                        count < MOST_ANSWERS / 2,
                        "waits for a disk that has answered"
                    );
                }
                Ok(DecoderOutput::WaitForRepair) => panic!("waits for a repair that was answered"),
                Err(error) => panic!("an honest stream was refused: {error}"),
            }
        }
    }

    fn check(&mut self, segment: &FlowSegment) {
        assert_eq!(segment.kind, SegmentKind::Payload);
        let end = self.flow.delivered + segment.bytes.len();
        assert_eq!(
            self.flow.pushed.get(self.flow.delivered..end),
            Some(&segment.bytes[..]),
            "other bytes were delivered than were pushed"
        );
        self.flow.delivered = end;
    }

    /// Ends the flow, with all that was pushed delivered, and begins another.
    fn new_flow(&mut self) {
        self.flow.encoder.finish();
        self.transfer(usize::MAX);
        assert_eq!(
            self.flow.delivered,
            self.flow.pushed.len(),
            "bytes are missing"
        );
        let (near, far) = (
            self.near.peer(NodeId([2; 32])),
            self.far.peer(NodeId([1; 32])),
        );
        self.flow = ReducedFlow::new(near, far);
    }

    /// Restarts the far node over the same disk; its flows are gone.
    fn restart_far(&mut self) {
        let before = self.far.generation();
        self.restarts += 1;
        self.far = dictionary(self.key, 100 + self.restarts);
        self.far.open();
        self.far_disk.serve(&mut self.far);
        let near_slot = self.near.peer(NodeId([2; 32]));
        if self.far.generation() != before {
            self.near.forget_peer(near_slot);
        }
        self.flow = ReducedFlow::new(near_slot, self.far.peer(NodeId([1; 32])));
    }
}

/// As small as one can be, so that scripts reach eviction: one MiB of memory, and one on disk in
/// segments of 64 KiB.
fn dictionary_config() -> DictionaryConfig {
    DictionaryConfig {
        memory: ByteCount::mebibytes(1),
        disk: ByteCount::mebibytes(1),
        segment: ByteCount::kibibytes(64),
    }
}

/// One that is kept on disk.
fn dictionary(key: u8, seed: u64) -> Dictionary {
    let key = DictionaryKey::new([key; 32]);
    Dictionary::with_key(dictionary_config(), key, SeededRandom::from_seed(seed))
}

/// Bytes that repeat themselves, and the same for the same seed.
fn text(length: usize, seed: u64) -> Bytes {
    let mut random = SeededRandom::from_seed(seed);
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        let word = random.below(200);
        text.extend_from_slice(format!("word {word} ").as_bytes());
    }
    text.truncate(length);
    text.into()
}

/// Bytes that nothing shortens, and the same for the same seed.
fn noise(length: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// Encodes segments with an empty dictionary.
fn encoded(segments: Vec<FlowSegment>) -> Vec<u8> {
    let mut dictionary = Dictionary::new(dictionary_config(), SeededRandom::from_seed(1));
    let peer = dictionary.peer(NodeId([2; 32]));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), peer);
    let mut stream = Vec::new();
    let mut take = |encoder: &mut FlowEncoder| {
        while let Some(bytes) = encoder.poll_encoded(Time::ZERO, &mut dictionary, 65_536) {
            stream.extend_from_slice(&bytes);
        }
    };
    for segment in segments {
        encoder.push(Time::ZERO, segment);
        take(&mut encoder);
    }
    encoder.finish();
    take(&mut encoder);
    stream
}

/// Good inputs for [`decoder`].
pub(crate) fn decoder_seeds() -> Vec<CorpusSeed> {
    // The second time as a run of chunks, the third time edited.
    let edited = [
        noise(20_000, 1).slice(..9_000),
        noise(20_000, 1).slice(8_990..),
    ]
    .concat();
    let thrice = vec![
        FlowSegment::payload(noise(20_000, 1)),
        FlowSegment::payload(noise(20_000, 1)),
        FlowSegment::payload(edited.into()),
    ];
    let mixed = vec![
        FlowSegment::control(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")),
        FlowSegment::frame(Bytes::from_static(&[1, 2, 3])),
        FlowSegment::payload(text(3_000, 1)),
    ];
    let streams = [
        ("text", encoded(vec![FlowSegment::payload(text(2_000, 1))])),
        ("noise", encoded(vec![FlowSegment::payload(noise(500, 1))])),
        ("repeated", encoded(thrice)),
        ("mixed", encoded(mixed)),
    ];
    let mut seeds: Vec<CorpusSeed> = streams
        .into_iter()
        .map(|(name, stream)| seed(name, [vec![0], sized(&stream)].concat()))
        .collect();
    let pieces = encoded(vec![FlowSegment::payload(text(600, 2))]);
    let halves = pieces.split_at(pieces.len() / 2);
    let halves = [vec![0], sized(halves.0), vec![0], sized(halves.1)].concat();
    seeds.push(seed("in-pieces", halves));
    let windowed = encoded(vec![FlowSegment::payload(text(150_000, 3))]);
    let pieces = windowed
        .chunks(30_000)
        .flat_map(|piece| [vec![0], sized(piece)].concat());
    seeds.push(seed("windowed", pieces.collect::<Vec<u8>>()));
    seeds
}

/// Good inputs for [`repair`].
pub(crate) fn repair_seeds() -> Vec<CorpusSeed> {
    let all = RepairRequest {
        record_start: 0,
        scope: RepairScope::All,
    };
    let some = RepairRequest {
        record_start: 0,
        scope: RepairScope::Some {
            references: vec![0, 1, 7],
            runs: vec![0],
        },
    };
    let answer = |scope, pieces: Vec<Bytes>| RepairAnswer {
        record_start: 0,
        scope,
        pieces,
        keys: vec![1; 3],
    };
    let short = answer(AnswerScope::All, vec![text(100, 1)]);
    let long = answer(AnswerScope::Some, vec![text(900, 1), noise(50, 1)]);
    vec![
        seed("request-all", all.emit()),
        seed("request-some", some.emit()),
        seed("answer-all", short.emit(3)),
        seed("answer-some", long.emit(3)),
    ]
}

/// Good inputs for [`content_handle`].
pub(crate) fn content_handle_seeds() -> Vec<CorpusSeed> {
    let mut dictionary = Dictionary::new(dictionary_config(), SeededRandom::from_seed(1));
    let mut handle = |body: &[u8]| store(&mut dictionary, body).to_bytes();
    let repeated = [&text(30_000, 1)[..], &[0; 200_000], &text(9_000, 2)].concat();
    vec![
        seed("empty", handle(&[])),
        seed("text", handle(&text(30_000, 1))),
        seed("repeated", handle(&repeated)),
    ]
}

/// Good inputs for [`damage`].
pub(crate) fn damage_seeds() -> Vec<CorpusSeed> {
    // push 20,000 bytes of noise 1, transfer; and again, so that it is known.
    let once: &[u8] = &[2, 78, 32, 1, 3];
    let again: &[u8] = &[6, 2, 78, 32, 1, 3, 15, 3, 6];
    let wait: &[u8] = &[14, 16, 0];
    let with = |middle: &[u8]| [once, wait, middle, again].concat();
    vec![
        seed("warm", with(&[])),
        seed("text", [&[0, 78, 32, 1, 3, 15, 3][..], again].concat()),
        seed("forgotten", with(&[7])),
        seed("restarted", with(&[8])),
        seed("bent", with(&[9, 3, 0, 255, 0, 8])),
        seed("cut", with(&[10, 20, 0, 8])),
        seed("garbage", with(&[11, 0, 4, 1, 2, 3, 4, 0, 8])),
        seed("full", with(&[12, 0, 200])),
        seed("broken", with(&[13])),
        seed("evicting", [once, &once.repeat(12), again].concat()),
    ]
}
