//! Tests of appends: when waiting chunks are written, and their alignment in memory.

use vocab::{ByteCount, SeededRandom, Time};

use super::{Dictionary, DictionaryKey, NO_KEY, PeerSlot};
use crate::config::{DISK_BLOCK, DictionaryConfig, GATHERED, GATHERING, MAX_DISK_APPEND};
use crate::disk::{DiskOperation, DiskRequest};
use crate::fingerprint::Fingerprint;
use crate::testing::MemoryDisk;

const CONFIG: DictionaryConfig = DictionaryConfig {
    memory: ByteCount::mebibytes(32),
    disk: ByteCount::mebibytes(64),
    segment: ByteCount::mebibytes(4),
};
const CHUNK: usize = 30_000;

/// A dictionary whose first chunk was appended just now, and its disk.
struct AppendFixture {
    dictionary: Dictionary,
    disk: MemoryDisk,
    random: SeededRandom,
}

impl AppendFixture {
    fn new() -> Self {
        let mut disk = MemoryDisk::new();
        let key = DictionaryKey::new([3; 32]);
        let mut dictionary = Dictionary::with_key(CONFIG, key, SeededRandom::from_seed(1));
        dictionary.open();
        disk.serve(&mut dictionary);
        let mut world = Self {
            dictionary,
            disk,
            random: SeededRandom::from_seed(2),
        };
        world.insert(1);
        let first = world.appended().expect("a lone chunk is written at once");
        world.finish(first);
        world
    }

    /// As many more chunks.
    fn insert(&mut self, count: usize) {
        for _ in 0..count {
            let mut bytes = vec![0; CHUNK];
            self.random.fill(&mut bytes);
            let fingerprint = Fingerprint::of(&bytes);
            self.dictionary
                .insert(&fingerprint, &bytes, NO_KEY, PeerSlot::UNTRACKED);
        }
    }

    /// The append that is asked for now, if any.
    fn appended(&mut self) -> Option<DiskRequest> {
        let request = self.dictionary.poll_disk()?;
        assert!(matches!(request.operation, DiskOperation::Append { .. }));
        Some(request)
    }

    /// Completes the request, and what follows from it except further appends of chunks.
    fn finish(&mut self, request: DiskRequest) {
        let completion = self.disk.execute(request);
        self.dictionary.handle_disk(completion);
    }

    fn due(&self) -> Option<Time> {
        self.dictionary.poll_timeout()
    }
}

/// Length of an append, whose bytes have the same alignment in memory as in the file.
fn length(request: &DiskRequest) -> usize {
    let DiskOperation::Append { offset, bytes, .. } = &request.operation else {
        panic!("{request:?}");
    };
    let in_file = *offset as usize % DISK_BLOCK;
    assert_eq!(bytes.as_ptr().addr() % DISK_BLOCK, in_file);
    bytes.len()
}

#[test]
fn chunks_soon_after_an_append_are_gathered() {
    let mut world = AppendFixture::new();
    world.insert(2);
    assert!(world.appended().is_none());
    assert_eq!(world.due(), Some(Time::ZERO + GATHERING));
    world.dictionary.handle_timeout(Time::ZERO + GATHERING);
    let append = world.appended().expect("the time is over");
    assert!((2 * CHUNK..3 * CHUNK).contains(&length(&append)));
}

#[test]
fn full_append_is_written_at_once() {
    let mut world = AppendFixture::new();
    world.insert(GATHERED / CHUNK);
    assert!(world.appended().is_none());
    world.insert(1);
    let append = world.appended().expect("it is enough");
    assert!(length(&append) >= GATHERED);
}

#[test]
fn append_overflow_is_written_without_waiting() {
    let mut world = AppendFixture::new();
    world.insert(MAX_DISK_APPEND / CHUNK + 5);
    let append = world.appended().expect("it is more than enough");
    assert!(length(&append) <= MAX_DISK_APPEND);
    assert!(world.appended().is_none());
    world.finish(append);
    let rest = world.appended().expect("it has waited already");
    assert!(length(&rest) < GATHERED);
}

#[test]
fn gathered_chunks_are_written_at_the_end() {
    let mut world = AppendFixture::new();
    world.dictionary.request_flush();
    assert!(world.appended().is_none());
    world.insert(2);
    assert!(world.appended().is_none());
    world.dictionary.request_flush();
    let append = world.appended().expect("there will be no more");
    assert!((2 * CHUNK..3 * CHUNK).contains(&length(&append)));
}
