//! Tests of bodies in a dictionary with a disk: a body reads back right, or is gone.

use bytes::Bytes;
use vocab::{ByteCount, FlowSegment, NodeId, SeededRandom, SegmentKind, Time};

use super::{ContentHandle, ContentRead, ContentReader, ContentUnavailable, ContentWriter};
use crate::config::{
    DecoderConfig, DictionaryConfig, EncoderConfig, PINNED_MEMORY_PART, SYNC_INTERVAL,
    StoragePolicy,
};
use crate::decoder::{DecoderOutput, FlowDecoder};
use crate::dictionary::{Dictionary, DictionaryKey, PinState};
use crate::encoder::FlowEncoder;
use crate::testing::MemoryDisk;

/// A dictionary and its disk.
struct TestStore {
    dictionary: Dictionary,
    disk: MemoryDisk,
    config: DictionaryConfig,
    starts: u64,
    now: Time,
}

/// Result of a read, and its bytes.
#[derive(Debug, PartialEq, Eq)]
struct ReadOutcome {
    bytes: Vec<u8>,
    end: ContentRead,
}

impl TestStore {
    fn new(memory: ByteCount, disk: ByteCount) -> Self {
        let config = DictionaryConfig {
            memory,
            disk,
            segment: ByteCount::kibibytes(256),
        };
        let mut store = Self {
            dictionary: Dictionary::new(config, SeededRandom::from_seed(0)),
            disk: MemoryDisk::new(),
            config,
            starts: 0,
            now: Time::ZERO,
        };
        store.start();
        store.disk.serve(&mut store.dictionary);
        store
    }

    fn roomy() -> Self {
        Self::new(ByteCount::mebibytes(32), ByteCount::mebibytes(64))
    }

    /// Starts a process that has not yet read its disk.
    fn start(&mut self) {
        self.starts += 1;
        let random = SeededRandom::from_seed(self.starts);
        self.dictionary = Dictionary::with_key(self.config, DictionaryKey::new([5; 32]), random);
        self.dictionary.open();
    }

    fn restart(&mut self) {
        self.settle();
        self.start();
        self.disk.serve(&mut self.dictionary);
    }

    /// Writes down everything that is to be written.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.now += 2 * SYNC_INTERVAL;
            self.dictionary.handle_timeout(self.now);
            self.dictionary.request_flush();
            self.disk.serve(&mut self.dictionary);
        }
    }

    fn store(&mut self, body: &[u8], piece: usize) -> ContentHandle {
        let mut writer = ContentWriter::new();
        for piece in body.chunks(piece) {
            writer.append(&mut self.dictionary, piece).unwrap();
            self.disk.serve(&mut self.dictionary);
        }
        let handle = writer.finish(&mut self.dictionary).unwrap();
        self.settle();
        handle
    }

    fn read(&mut self, handle: &ContentHandle, range: std::ops::Range<u64>) -> ReadOutcome {
        let mut reader = ContentReader::new(handle.clone(), range);
        self.read_on(&mut reader)
    }

    fn read_on(&mut self, reader: &mut ContentReader) -> ReadOutcome {
        let mut bytes = Vec::new();
        loop {
            match reader.poll(&mut self.dictionary) {
                ContentRead::Piece(piece) => {
                    assert!(!piece.is_empty());
                    bytes.extend_from_slice(&piece);
                }
                ContentRead::WaitForDisk => self.disk.serve(&mut self.dictionary),
                end @ (ContentRead::Done | ContentRead::Gone(_)) => {
                    return ReadOutcome { bytes, end };
                }
            }
        }
    }

    fn read_all(&mut self, handle: &ContentHandle) -> ReadOutcome {
        self.read(handle, 0..handle.length())
    }

    fn holds_its_limits(&self) {
        let statistics = self.dictionary.statistics();
        assert!(statistics.memory_bytes <= self.config.memory.bytes());
        assert!(statistics.disk_bytes <= self.config.disk.bytes());
        assert!(self.disk.bytes() <= self.config.disk.bytes());
    }
}

impl ReadOutcome {
    fn done(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            end: ContentRead::Done,
        }
    }

    fn is_gone(&self) -> bool {
        self.end == ContentRead::Gone(ContentUnavailable::Gone)
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn body_reads_back_from_any_pieces() {
    let mut store = TestStore::roomy();
    for length in [0, 1, 100, 8_191, 65_536, 300_000] {
        let body = noise(length as u64, length);
        let handle = store.store(&body, usize::MAX);
        for piece in [1 << 20, 65_536, 10_000, 977] {
            assert_eq!(store.store(&body, piece), handle, "{length} by {piece}");
        }
        assert_eq!(handle.length(), length as u64);
        assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
    }
}

#[test]
fn any_range_of_a_body_can_be_read() {
    let mut store = TestStore::roomy();
    // A stretch that repeats a chunk in the middle of others.
    let body = [noise(1, 150_000), vec![7; 400_000], noise(2, 90_000)].concat();
    let handle = store.store(&body, 50_000);
    let mut random = SeededRandom::from_seed(3);
    for round in 0..300 {
        let start = random.below(body.len() as u64 + 1);
        let end = start + random.below(if round % 2 == 0 { 2_000 } else { 700_000 });
        let expected = &body[start as usize..body.len().min(end as usize)];
        assert_eq!(store.read(&handle, start..end), ReadOutcome::done(expected));
    }
    assert_eq!(
        store.read(&handle, 640_000..u64::MAX),
        ReadOutcome::done(&[])
    );
    assert_eq!(
        store.read(&handle, u64::MAX - 1..u64::MAX),
        ReadOutcome::done(&[])
    );
}

#[test]
fn stored_body_adds_nothing_and_has_small_handle() {
    let mut store = TestStore::roomy();
    let body = noise(1, 10_000_000);
    let handle = store.store(&body, 100_000);
    let bytes = handle.to_bytes().len();
    assert!(bytes * 200 <= body.len(), "{bytes}");
    let before = store.dictionary.statistics();
    assert_eq!(store.store(&body, 65_536), handle);
    let after = store.dictionary.statistics();
    assert_eq!(
        (before.chunks, before.disk_bytes),
        (after.chunks, after.disk_bytes)
    );
    // 64 KiB each time: one reference with its repetitions, and what is left at the end.
    let flat = store.store(&vec![0; 20_000_000], 100_000);
    assert_eq!(flat.count(), 2);
}

/// Most chunks of a body that came over the WAN are in the dictionary as the flow cut them.
#[test]
fn decoded_body_is_already_stored() {
    let mut far = Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(1));
    let mut store = TestStore::roomy();
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), far.peer(NodeId([1; 32])));
    let peer = store.dictionary.peer(NodeId([2; 32]));
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), peer);
    let body = noise(1, 4_000_000);
    // Another body's end stands before it in the flow.
    encoder.push(Time::ZERO, FlowSegment::payload(noise(2, 5_000).into()));
    encoder.push(Time::ZERO, FlowSegment::payload(Bytes::from(body.clone())));
    encoder.finish();
    let mut decoded = Vec::new();
    while let Some(record) = encoder.poll_encoded(Time::ZERO, &mut far, 1 << 20) {
        decoder.push(record);
        while let DecoderOutput::Segment(segment) = decoder.poll(&mut store.dictionary).unwrap() {
            decoded.push(segment.bytes);
        }
        encoder.acknowledged(decoder.consumed(), &mut far);
    }
    assert!(!decoder.has_received_unstorable());
    let chunks = store.dictionary.statistics().chunks;
    let mut writer = ContentWriter::new();
    let mut skipped = 5_000;
    for mut piece in decoded {
        let before = skipped.min(piece.len());
        skipped -= before;
        writer
            .append(&mut store.dictionary, &piece.split_off(before))
            .unwrap();
    }
    let handle = writer.finish(&mut store.dictionary).unwrap();
    let added = store.dictionary.statistics().chunks - chunks;
    assert!(added <= 12, "{added} of {}", handle.count());
    assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
}

/// Bodies of all lengths, one after the other in a flow, with heads between them, cut and polled at random:
/// where their ends were said, storing them adds nothing.
#[test]
fn bodies_with_marked_ends_are_stored_once() {
    let mut random = SeededRandom::from_seed(1);
    let mut far = Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(2));
    let mut store = TestStore::new(ByteCount::mebibytes(32), ByteCount::new(0));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), far.peer(NodeId([1; 32])));
    let peer = store.dictionary.peer(NodeId([2; 32]));
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), peer);
    let lengths = (0..120).map(|number| match number % 4 {
        0 => number / 4,
        1 => 1 + random.below(5_000),
        2 => 8_000 + random.below(30_000),
        _ => random.below(300_000),
    });
    let bodies: Vec<Vec<u8>> = lengths
        .enumerate()
        .map(|(seed, length)| noise(seed as u64, length as usize))
        .collect();
    let (mut now, mut decoded) = (Time::ZERO, Vec::new());
    // The second time as references.
    for body in bodies.iter().chain(&bodies) {
        encoder.push(now, FlowSegment::control(Bytes::from_static(b"a head")));
        let mut rest = &body[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(50_000) as usize));
            encoder.push(now, FlowSegment::payload(Bytes::copy_from_slice(piece)));
            rest = behind;
            now += std::time::Duration::from_millis(random.below(5));
            if random.below(3) == 0 {
                transfer(
                    &mut encoder,
                    &mut far,
                    &mut decoder,
                    &mut store,
                    now,
                    &mut decoded,
                );
            }
        }
        encoder.end_body();
    }
    encoder.finish();
    transfer(
        &mut encoder,
        &mut far,
        &mut decoder,
        &mut store,
        now,
        &mut decoded,
    );
    assert!(decoder.is_at_boundary() && decoded == bodies.concat().repeat(2));
    let chunks = store.dictionary.statistics().chunks;
    for body in &bodies {
        let handle = store.store(body, 70_000);
        assert_eq!(store.read_all(&handle), ReadOutcome::done(body));
        assert_eq!(
            store.dictionary.statistics().chunks,
            chunks,
            "{}",
            body.len()
        );
    }
}

/// Transfers the encoded records, and keeps the payload.
fn transfer(
    encoder: &mut FlowEncoder,
    far: &mut Dictionary,
    decoder: &mut FlowDecoder,
    store: &mut TestStore,
    now: Time,
    decoded: &mut Vec<u8>,
) {
    while let Some(record) = encoder.poll_encoded(now, far, 60_000) {
        decoder.push(record);
        while let DecoderOutput::Segment(segment) = decoder.poll(&mut store.dictionary).unwrap() {
            if segment.kind == SegmentKind::Payload {
                decoded.extend_from_slice(&segment.bytes);
            }
        }
        encoder.acknowledged(decoder.consumed(), far);
    }
}

#[test]
fn decoder_reports_unstorable_payload() {
    let mut far = Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(1));
    let mut near = Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(2));
    let config = EncoderConfig {
        storing: StoragePolicy::Never,
        ..EncoderConfig::default()
    };
    let mut encoder = FlowEncoder::new(config, far.peer(NodeId([1; 32])));
    let peer = near.peer(NodeId([2; 32]));
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), peer);
    encoder.push(
        Time::ZERO,
        FlowSegment::control(Bytes::from_static(b"head")),
    );
    decoder.push(encoder.poll_encoded(Time::ZERO, &mut far, 1 << 20).unwrap());
    assert!(matches!(
        decoder.poll(&mut near),
        Ok(DecoderOutput::Segment(_))
    ));
    assert!(!decoder.has_received_unstorable());
    encoder.push(
        Time::ZERO,
        FlowSegment::payload(Bytes::from_static(b"secret")),
    );
    decoder.push(encoder.poll_encoded(Time::ZERO, &mut far, 1 << 20).unwrap());
    assert!(matches!(
        decoder.poll(&mut near),
        Ok(DecoderOutput::Segment(_))
    ));
    assert!(decoder.has_received_unstorable());
}

#[test]
fn evicted_content_is_gone_and_limits_hold() {
    for disk in [0, 2] {
        let mut store = TestStore::new(ByteCount::mebibytes(1), ByteCount::mebibytes(disk));
        let body = noise(1, 200_000);
        let handle = store.store(&body, 60_000);
        assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
        for seed in 2..60 {
            store.store(&noise(seed, 200_000), 60_000);
            store.holds_its_limits();
        }
        let read = store.read_all(&handle);
        assert!(read.is_gone() && body.starts_with(&read.bytes));
        // What replaced it is another body under another handle; stored again, it is there again.
        assert_eq!(store.store(&body, 60_000), handle);
        assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
    }
}

#[test]
fn handle_outlives_the_process() {
    let mut store = TestStore::roomy();
    let body = noise(1, 3_000_000);
    let written = store.store(&body, 64_000).to_bytes();
    store.restart();
    let handle = ContentHandle::parse(written).unwrap();
    let before = store.disk.read;
    assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
    assert!(store.disk.read - before >= body.len() as u64);
    // And then from memory.
    let before = store.disk.read;
    assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
    assert_eq!(store.disk.read, before);
}

#[test]
fn body_is_not_yet_available_during_recovery() {
    let mut store = TestStore::roomy();
    let body = noise(1, 500_000);
    let handle = store.store(&body, 64_000);
    store.start();
    let read = store.read_all(&handle);
    assert_eq!(read.end, ContentRead::Gone(ContentUnavailable::NotYet));
    store.disk.serve(&mut store.dictionary);
    assert_eq!(store.read_all(&handle), ReadOutcome::done(&body));
}

#[test]
fn read_waiting_for_disk_blocks_no_other() {
    let mut store = TestStore::roomy();
    let on_disk = noise(1, 1_000_000);
    let slow = store.store(&on_disk, 64_000);
    store.restart();
    let in_memory = noise(2, 1_000_000);
    let fast = store.store(&in_memory, 64_000);
    let mut waiting = ContentReader::new(slow.clone(), 0..slow.length());
    assert_eq!(
        waiting.poll(&mut store.dictionary),
        ContentRead::WaitForDisk
    );
    assert!(waiting.held() <= slow.held() + 600 * 1024);
    let mut reader = ContentReader::new(fast.clone(), 0..fast.length());
    let mut bytes = Vec::new();
    while let ContentRead::Piece(piece) = reader.poll(&mut store.dictionary) {
        bytes.extend_from_slice(&piece);
        assert_eq!(
            waiting.poll(&mut store.dictionary),
            ContentRead::WaitForDisk
        );
    }
    assert!(bytes == in_memory);
    assert_eq!(store.read_on(&mut waiting), ReadOutcome::done(&on_disk));
}

#[test]
fn damaged_content_is_gone_and_never_delivered() {
    let mut store = TestStore::roomy();
    let body = noise(1, 2_000_000);
    let handle = store.store(&body, 64_000);
    store.restart();
    let sound = store.disk.clone();
    let numbers = store.disk.numbers();
    let middle = numbers[numbers.len() / 2];
    // A bit, in the middle of a record's body; then the file's end.
    store.disk.segment(middle)[100_000] ^= 1;
    let read = store.read_all(&handle);
    assert!(read.is_gone() && read.bytes.len() < body.len() && body.starts_with(&read.bytes));
    // It is forgotten, so that the next read does not even begin.
    let read = store.read_all(&handle);
    assert!(read.is_gone() && read.bytes.is_empty());

    store.disk = sound;
    store.restart();
    store.disk.segment(middle).truncate(50_000);
    let read = store.read_all(&handle);
    assert!(read.is_gone() && read.bytes.len() < body.len() && body.starts_with(&read.bytes));
    store.restart();
    assert!(store.read_all(&handle).is_gone());
}

#[test]
fn an_emptied_dictionary_has_nothing_left() {
    let mut store = TestStore::roomy();
    let body = noise(1, 500_000);
    let handle = store.store(&body, 64_000);
    let mut reader = ContentReader::new(handle.clone(), 0..handle.length());
    assert!(matches!(
        reader.poll(&mut store.dictionary),
        ContentRead::Piece(_)
    ));
    store.dictionary.clear(Some(DictionaryKey::new([6; 32])));
    store.disk.serve(&mut store.dictionary);
    assert!(store.read_all(&handle).is_gone());
    // The same body again, while the old reader still is there.
    assert_eq!(store.store(&body, 64_000), handle);
    let other = store.read_all(&handle);
    drop(reader);
    assert_eq!(other, ReadOutcome::done(&body));
}

#[test]
fn content_being_read_is_not_evicted() {
    for disk in [0, 2] {
        let mut store = TestStore::new(ByteCount::mebibytes(2), ByteCount::mebibytes(disk));
        let body = noise(1, 400_000);
        let handle = store.store(&body, 60_000);
        let mut reader = ContentReader::new(handle.clone(), 0..handle.length());
        let first = reader.poll(&mut store.dictionary);
        let ContentRead::Piece(first) = first else {
            panic!("it is there: {first:?}");
        };
        for seed in 2..100 {
            store.store(&noise(seed, 200_000), 60_000);
            store.holds_its_limits();
        }
        let rest = store.read_on(&mut reader);
        assert_eq!(rest, ReadOutcome::done(&body[first.len()..]));
        drop(reader);
        for seed in 2..100 {
            store.store(&noise(seed, 200_000), 60_000);
        }
        assert!(store.read_all(&handle).is_gone());
    }
}

/// A body that is more than may be pinned is read without, as far as it is there.
#[test]
fn pins_stay_within_the_limits() {
    for disk in [0, 3] {
        let mut store = TestStore::new(ByteCount::mebibytes(2), ByteCount::mebibytes(disk));
        let mut pins = Vec::new();
        let mut states = Vec::new();
        for seed in 0..40 {
            let handle = store.store(&noise(seed, 150_000), 60_000);
            let pin = store.dictionary.pin(&handle);
            states.push(store.dictionary.pin_more(&pin));
            pins.push(pin);
            store.holds_its_limits();
        }
        assert_eq!(states[0], PinState::Pinned);
        assert_eq!(states.last(), Some(&PinState::NoRoom));
        // Readers have room beside what is kept.
        let body = noise(100, 150_000);
        let handle = store.store(&body, 60_000);
        let mut reader = ContentReader::new(handle.clone(), 0..handle.length());
        assert!(matches!(
            reader.poll(&mut store.dictionary),
            ContentRead::Piece(_)
        ));
        for seed in 200..260 {
            store.store(&noise(seed, 150_000), 60_000);
            store.holds_its_limits();
        }
        assert_eq!(store.read_on(&mut reader).end, ContentRead::Done);
        let pinned = store.dictionary.pinned_memory_bytes();
        assert!(pinned <= store.config.memory.bytes() / PINNED_MEMORY_PART);
        drop((pins, reader));
        store.settle();
        assert_eq!(store.dictionary.pinned_memory_bytes(), 0);
        assert_eq!(store.dictionary.pinned_segments(), 0);
    }
}

#[test]
fn many_readers_of_one_body_pin_it_once() {
    let mut store = TestStore::new(ByteCount::mebibytes(2), ByteCount::new(0));
    let body = noise(1, 50_000);
    let handle = store.store(&body, 60_000);
    let readers = (0..300).map(|_| ContentReader::new(handle.clone(), 0..handle.length()));
    let mut readers: Vec<_> = readers.collect();
    for reader in &mut readers {
        assert!(matches!(
            reader.poll(&mut store.dictionary),
            ContentRead::Piece(_)
        ));
    }
    assert_eq!(store.dictionary.pinned_memory_bytes(), body.len() as u64);
    readers.truncate(1);
    for seed in 2..60 {
        store.store(&noise(seed, 200_000), 60_000);
    }
    let rest = store.read_on(&mut readers[0]);
    assert!(rest.end == ContentRead::Done && body.ends_with(&rest.bytes));
}
