//! Damage tests: a log cut at any byte, a log with garbage behind the cut, and a log with any
//! flipped bit. They cover every position of a small sample.
//!
//! ```text
//! segment 1: head │ peer │ chunk … │ held, lacking │ contents trailer     ended by a start
//! segment 2: head │ peer │ chunk … │ held, lacking                        as a crash leaves it
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use vocab::{ByteCount, NodeId, SeededRandom, Time};

use super::segment::{LogRecord, SEGMENT_HEAD, ScanStep, parse_segment_head, step};
use super::{Dictionary, DictionaryKey, DiskLocation, FetchResult, NO_KEY};
use crate::config::{DictionaryConfig, SYNC_INTERVAL};
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::testing::MemoryDisk;

const CONFIG: DictionaryConfig = DictionaryConfig {
    memory: ByteCount::mebibytes(1),
    disk: ByteCount::mebibytes(1),
    segment: ByteCount::kibibytes(64),
};
/// Peer recorded as holding every second chunk, and another one for a while.
const PEER: NodeId = NodeId([7; 32]);

/// Log with its chunks.
struct SampleLog {
    disk: MemoryDisk,
    chunks: BTreeMap<ChunkKey, LoggedChunk>,
}

struct LoggedChunk {
    bytes: Vec<u8>,
    segment: u32,
    /// Position of its record.
    record: Range<usize>,
    /// True if the peer was ever recorded as holding it.
    was_held: bool,
}

fn key() -> DictionaryKey {
    DictionaryKey::new([3; 32])
}

/// A process over this disk, recovered, its own disk work done.
fn started(seed: u64, disk: &mut MemoryDisk) -> Dictionary {
    let mut dictionary = Dictionary::with_key(CONFIG, key(), SeededRandom::from_seed(seed));
    dictionary.open();
    disk.serve(&mut dictionary);
    assert!(dictionary.is_ready());
    dictionary
}

fn bytes(number: u64) -> Vec<u8> {
    let mut random = SeededRandom::from_seed(number);
    let mut bytes = vec![0; 40 + random.below(60) as usize];
    random.fill(&mut bytes);
    bytes
}

impl SampleLog {
    /// Both segments, the second without contents.
    fn new() -> Self {
        let mut disk = MemoryDisk::new();
        let mut chunks = BTreeMap::new();
        for life in 0..2 {
            let mut dictionary = started(life, &mut disk);
            let peer = dictionary.peer(PEER);
            dictionary.peer_generation(peer, [9; 16]);
            let mut previous = NO_KEY;
            for number in life * 10..life * 10 + 4 {
                let bytes = bytes(number);
                let fingerprint = Fingerprint::of(&bytes);
                let key = fingerprint.key();
                dictionary.insert(&fingerprint, &bytes, previous, peer);
                disk.serve(&mut dictionary);
                let was_held = number % 2 == 0 || number == 13;
                if was_held {
                    dictionary.mark_held(key, fingerprint.check(), peer);
                }
                previous = key;
                let chunk = LoggedChunk {
                    bytes,
                    segment: life as u32 + 1,
                    record: 0..0,
                    was_held,
                };
                chunks.insert(key, chunk);
            }
            let wrong = Fingerprint::of(&bytes(13)).key();
            dictionary.mark_lacking(wrong, peer);
            dictionary.handle_timeout(Time::ZERO + SYNC_INTERVAL + Duration::from_secs(1));
            disk.serve(&mut dictionary);
        }
        let mut sample = Self { disk, chunks };
        for number in [1, 2] {
            sample.find_records(number);
        }
        assert!(sample.chunks.values().all(|chunk| !chunk.record.is_empty()));
        sample
    }

    /// Makes the same sample after another start, which gives the second segment its contents.
    fn ended() -> Self {
        let mut sample = Self::new();
        started(5, &mut sample.disk);
        sample
    }

    fn find_records(&mut self, number: u32) {
        let file = self.disk.segment(number).clone();
        let super::segment::HeaderKind::Sound(name) = parse_segment_head(&key(), &file, number)
        else {
            panic!("the sample is sound");
        };
        let (seal, mut opened) = (key().records(&name), Vec::new());
        let mut at = SEGMENT_HEAD;
        while let ScanStep::Record(record, length) =
            step(&seal, at as u64, &file[at..], &mut opened)
        {
            if let LogRecord::Chunk { fingerprint, .. } = record {
                let chunk = self.chunks.get_mut(&fingerprint.key()).unwrap();
                chunk.record = at..at + length;
            }
            at += length;
        }
    }

    /// Starts a process over a damaged copy of the disk. Checks that only stored chunks come out,
    /// that all chunks for which `is_safe` holds come out, that no peer is recorded as holding
    /// other chunks, and that the amount read is bounded by a multiple of the disk's size.
    fn check(&self, what: &str, mut disk: MemoryDisk, is_safe: impl Fn(&LoggedChunk) -> bool) {
        let stored = disk.bytes();
        (disk.read, disk.executed) = (0, 0);
        let mut dictionary = started(6, &mut disk);
        assert!(disk.read <= 3 * stored + 1024, "{what}: {} read", disk.read);
        assert!(disk.executed <= 30, "{what}: {} requests", disk.executed);
        let peer = dictionary.peer(PEER);
        for (key, chunk) in &self.chunks {
            let said = dictionary.is_held_by(*key, peer);
            assert!(
                chunk.was_held || !said,
                "{what}: {key:x} is said to be held"
            );
            let found = read(&mut dictionary, &mut disk, *key);
            assert!(
                found.is_some() || !is_safe(chunk),
                "{what}: {key:x} is lost, {:?} of segment {}",
                chunk.record,
                chunk.segment
            );
            assert!(
                found.is_none_or(|found| found == chunk.bytes),
                "{what}: {key:x} has changed"
            );
        }
        // What is written now is there after the next start, and so is what was there before.
        let more = bytes(99);
        let fingerprint = Fingerprint::of(&more);
        dictionary.insert(&fingerprint, &more, NO_KEY, peer);
        disk.serve(&mut dictionary);
        let kept: Vec<ChunkKey> = self
            .chunks
            .keys()
            .copied()
            .filter(|key| matches!(place(&dictionary, *key), Some(DiskLocation::At { .. })))
            .collect();
        let mut again = started(7, &mut disk);
        for key in kept {
            assert!(
                read(&mut again, &mut disk, key).is_some(),
                "{what}: {key:x} was there once"
            );
        }
        let found = read(&mut again, &mut disk, fingerprint.key());
        assert_eq!(found, Some(more), "{what}");
    }
}

fn place(dictionary: &Dictionary, key: ChunkKey) -> Option<DiskLocation> {
    dictionary.index.get(key).map(|known| known.place)
}

fn read(dictionary: &mut Dictionary, disk: &mut MemoryDisk, key: ChunkKey) -> Option<Vec<u8>> {
    match dictionary.fetch(key) {
        FetchResult::Ready(bytes) => Some(bytes.to_vec()),
        FetchResult::Missing => None,
        FetchResult::Reading(ticket) => {
            disk.serve(dictionary);
            let outcome = ticket.outcome().expect("the disk has answered");
            outcome.map(|bytes| bytes.to_vec())
        }
    }
}

#[test]
fn intact_log_is_recovered_completely() {
    for sample in [SampleLog::new(), SampleLog::ended()] {
        sample.check("sound", sample.disk.clone(), |_| true);
    }
}

#[test]
fn log_cut_anywhere_keeps_earlier_records() {
    for (mut sample, numbers) in [(SampleLog::new(), 1..=2), (SampleLog::ended(), 2..=2)] {
        for number in numbers {
            let whole = sample.disk.segment(number).clone();
            for cut in 0..whole.len() {
                let mut disk = sample.disk.clone();
                disk.segment(number).truncate(cut);
                let is_before =
                    |chunk: &LoggedChunk| chunk.segment != number || chunk.record.end <= cut;
                sample.check(&format!("{number} cut at {cut}"), disk, is_before);
            }
        }
    }
}

#[test]
fn log_with_garbage_after_cut_keeps_earlier_records() {
    let mut sample = SampleLog::new();
    let whole = sample.disk.segment(2).clone();
    let mut random = SeededRandom::from_seed(1);
    for cut in 0..whole.len() {
        let mut disk = sample.disk.clone();
        let torn = disk.segment(2);
        torn[cut..].fill(0);
        if random.below(2) == 0 {
            random.fill(&mut torn[cut..]);
        }
        torn.resize(whole.len() + random.below(600) as usize, 0);
        let is_before = |chunk: &LoggedChunk| chunk.segment != 2 || chunk.record.end <= cut;
        sample.check(&format!("torn at {cut}"), disk, is_before);
    }
}

#[test]
fn flipped_bit_costs_only_later_records_in_segment() {
    for (mut sample, numbers) in [(SampleLog::new(), 1..=2), (SampleLog::ended(), 2..=2)] {
        for number in numbers {
            let whole = sample.disk.segment(number).clone();
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut disk = sample.disk.clone();
                    disk.segment(number)[at] ^= 1 << bit;
                    // Without a head nothing is known of a segment but what its contents say.
                    let is_safe = |chunk: &LoggedChunk| {
                        chunk.segment != number || at >= SEGMENT_HEAD && chunk.record.end <= at
                    };
                    sample.check(&format!("{number}: bit {bit} of {at}"), disk, is_safe);
                }
            }
        }
    }
}
