//! Durability test: random use of a dictionary whose process is killed and whose disk fails and
//! loses power, compared with a plain record of the stored chunks.
//!
//! Checked after every restart: no wrong byte is returned; after a kill all written chunks are
//! there, after a loss of power all synced ones; no peer is said to hold a chunk that it never
//! held; limits hold; and no position of a segment is sealed twice under one salt, whatever failed
//! in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vocab::{ByteCount, NodeId, SeededRandom, Time};

use super::contents::TRAILER;
use super::{Dictionary, DictionaryKey, DiskLocation, FetchResult, NO_KEY, PeerSlot};
use crate::config::DictionaryConfig;
use crate::disk::{DiskFault, DiskOperation};
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::testing::PowerLossDisk;

const PEERS: u8 = 3;
/// Bytes that recovery may add to a disk, at the ends of segments that have no contents.
const ROOM_FOR_CONTENTS: u64 = 128 * 1024;

struct SurvivalSimulation {
    random: SeededRandom,
    config: DictionaryConfig,
    disk: PowerLossDisk,
    dictionary: Dictionary,
    now: Time,
    /// All chunks ever stored.
    chunks: BTreeMap<ChunkKey, Vec<u8>>,
    keys: Vec<ChunkKey>,
    /// Segment in which a chunk was synced.
    synced: BTreeMap<ChunkKey, u32>,
    /// Segment of a chunk when the process was killed.
    written: BTreeMap<ChunkKey, u32>,
    /// Chunks that each peer was ever said to hold.
    held: BTreeSet<(u8, ChunkKey)>,
    /// Largest sealed offset of each segment under each salt.
    sealed: BTreeMap<(u32, Vec<u8>), u64>,
    /// Bytes that were on disk when this life began.
    found: u64,
}

impl SurvivalSimulation {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let config = DictionaryConfig {
            memory: ByteCount::mebibytes(1),
            disk: ByteCount::kibibytes(1024 + random.below(3) * 512),
            segment: ByteCount::kibibytes(64 << random.below(3)),
        };
        Self {
            dictionary: dictionary(config, &mut random),
            random,
            config,
            disk: PowerLossDisk::default(),
            now: Time::ZERO,
            chunks: BTreeMap::new(),
            keys: Vec::new(),
            synced: BTreeMap::new(),
            written: BTreeMap::new(),
            held: BTreeSet::new(),
            sealed: BTreeMap::new(),
            found: 0,
        }
    }

    fn peer(&mut self, number: u8) -> PeerSlot {
        self.dictionary.peer(NodeId([number; 32]))
    }

    /// One thing that a node does with its dictionary.
    fn act(&mut self) {
        match self.random.below(16) {
            0..6 => self.insert(),
            6..8 => self.fetch(),
            8 | 9 => {
                let number = self.random.below(u64::from(PEERS)) as u8;
                if let Some(key) = self.any_key() {
                    let peer = self.peer(number);
                    self.held.insert((number, key));
                    let check = Fingerprint::of(&self.chunks[&key]).check();
                    self.dictionary.mark_held(key, check, peer);
                }
            }
            10 => {
                let number = self.random.below(u64::from(PEERS)) as u8;
                let peer = self.peer(number);
                match self.any_key().filter(|_| self.random.below(8) > 0) {
                    Some(key) => self.dictionary.mark_lacking(key, peer),
                    None => self.dictionary.peer_generation(peer, [number + 1; 16]),
                }
            }
            11 => {
                self.now += Duration::from_millis(self.random.below(3_000));
                self.dictionary.handle_timeout(self.now);
            }
            _ => {
                for _ in 0..self.random.below(12) {
                    self.serve();
                }
            }
        }
    }

    fn any_key(&mut self) -> Option<ChunkKey> {
        let at = self.random.below(self.keys.len() as u64) as usize;
        self.keys.get(at).copied()
    }

    fn insert(&mut self) {
        let previous = self.any_key().unwrap_or(NO_KEY);
        let bytes = match self.any_key().filter(|_| self.random.below(4) == 0) {
            Some(known) => self.chunks[&known].clone(),
            None => {
                let longest = [200, 9_000, 30_000, 65_536][self.random.below(4) as usize];
                let mut bytes = vec![0; 64 + self.random.below(longest - 63) as usize];
                self.random.fill(&mut bytes);
                bytes
            }
        };
        let fingerprint = Fingerprint::of(&bytes);
        self.dictionary
            .insert(&fingerprint, &bytes, previous, PeerSlot::UNTRACKED);
        if self.chunks.insert(fingerprint.key(), bytes).is_none() {
            self.keys.push(fingerprint.key());
        }
    }

    /// Fetches chunks and checks that their bytes are right.
    fn fetch(&mut self) {
        let Some(key) = self.any_key() else { return };
        let bytes = self.read(key);
        assert!(bytes.is_none_or(|bytes| bytes == self.chunks[&key]));
    }

    fn read(&mut self, key: ChunkKey) -> Option<Vec<u8>> {
        match self.dictionary.fetch(key) {
            FetchResult::Ready(bytes) => Some(bytes.to_vec()),
            FetchResult::Missing => None,
            FetchResult::Reading(ticket) => {
                while ticket.outcome().is_none() {
                    assert!(self.serve(), "the read is never asked for");
                }
                let outcome = ticket.outcome().expect("it was waited for");
                outcome.map(|bytes| bytes.to_vec())
            }
        }
    }

    /// Executes one request, if there is one.
    fn serve(&mut self) -> bool {
        let Some(request) = self.dictionary.poll_disk() else {
            return false;
        };
        let operation = request.operation.clone();
        self.note_sealing(&operation);
        if let DiskOperation::Delete { segment } = operation {
            let mut kept = self.synced.values().chain(self.written.values());
            let lost = kept.any(|kept| *kept == segment);
            let roomy = self.found + ROOM_FOR_CONTENTS < self.config.disk.bytes();
            let refused = lost && roomy && !self.dictionary.is_ready();
            assert!(!refused, "segment {segment} was sound");
            self.synced.retain(|_, synced| *synced != segment);
            self.written.retain(|_, written| *written != segment);
        }
        let fails = self.random.below(60) == 0;
        // A read that fails during recovery leaves what it would have told for the next start.
        let reads = self.dictionary.is_ready();
        self.disk.seen().broken = fails && reads && self.random.below(2) == 0;
        let bytes = self.disk.seen().bytes();
        self.disk.seen().capacity = fails.then(|| bytes + self.random.below(40_000));
        let completion = self.disk.execute(request);
        self.disk.seen().broken = false;
        self.disk.seen().capacity = None;
        let ok = completion.result.is_ok();
        if let (true, DiskOperation::Sync { segment }) = (ok, operation) {
            for key in &self.keys {
                if self.segment_of(*key) == Some(segment) {
                    self.synced.insert(*key, segment);
                }
            }
        }
        if matches!(completion.result, Err(DiskFault::Io(_))) {
            // A chunk whose read fails is given up, as it must be: what a disk does not give is
            // not there.
            let before: Vec<ChunkKey> = self.synced.keys().copied().collect();
            self.dictionary.handle_disk(completion);
            for key in before {
                if self.segment_of(key).is_none() && self.dictionary.is_ready() {
                    self.synced.remove(&key);
                }
            }
        } else {
            self.dictionary.handle_disk(completion);
        }
        let most = self.config.disk.bytes();
        let bytes = self.disk.seen().bytes();
        // What a loss of power brought back goes first; nothing is written before it is gone.
        let settled = self.dictionary.is_ready() && self.dictionary.log.deletions == 0;
        assert!(bytes <= most || !settled, "the cap on disk");
        let memory = self.dictionary.statistics().memory_bytes;
        assert!(memory <= self.config.memory.bytes(), "the cap on memory");
        true
    }

    /// Checks that only contents, which have their own salt, are written to an offset again.
    fn note_sealing(&mut self, operation: &DiskOperation) {
        let DiskOperation::Append {
            segment,
            offset,
            bytes,
        } = operation
        else {
            return;
        };
        let trailer = bytes.len().checked_sub(TRAILER);
        if trailer.is_some_and(|trailer| bytes[trailer..].starts_with(b"TRNKLIDX")) {
            return;
        }
        let salt = match offset {
            0 => bytes[32..48].to_vec(),
            _ => self.disk.seen().segment(*segment)[32..48].to_vec(),
        };
        let sealed = self.sealed.entry((*segment, salt)).or_default();
        assert!(*offset >= *sealed, "a nonce would be used again");
        *sealed = offset + bytes.len() as u64;
    }

    fn segment_of(&self, key: ChunkKey) -> Option<u32> {
        match self.dictionary.index.get(key)?.place {
            DiskLocation::At { segment, .. } => Some(segment),
            DiskLocation::Nowhere | DiskLocation::Queued | DiskLocation::Writing => None,
        }
    }

    /// The process ends without a word, and the power with it or not; the next one recovers.
    fn crash(&mut self) {
        if self.random.below(2) == 0 {
            self.disk.lose_power(&mut self.random);
            self.written.clear();
        } else {
            for key in &self.keys {
                if let Some(segment) = self.segment_of(*key) {
                    self.written.insert(*key, segment);
                }
            }
        }
        self.dictionary = dictionary(self.config, &mut self.random);
        self.found = self.disk.seen().bytes();
        self.dictionary.open();
        if self.random.below(4) == 0 {
            // Killed again before it has recovered; the next life checks what was kept.
            for _ in 0..self.random.below(6) {
                self.serve();
            }
            return;
        }
        self.recover();
        let kept = self.synced.keys().chain(self.written.keys());
        for key in kept {
            assert!(self.segment_of(*key).is_some(), "{key:x} is lost");
        }
        self.written.clear();
        for key in self.keys.clone() {
            if let Some(known) = self.dictionary.index.get(key) {
                for number in 0..PEERS {
                    let peer = self.peer(number);
                    let said = known.peers.readers & peer.bit() != 0;
                    assert!(!said || self.held.contains(&(number, key)));
                }
            }
        }
    }

    fn recover(&mut self) {
        while !self.dictionary.is_ready() {
            assert!(self.serve(), "recovery stands still");
        }
    }

    /// Checks that all expected chunks are there and right.
    fn check(&mut self) {
        self.recover();
        for (key, _) in self.synced.clone() {
            let still = self.synced.contains_key(&key);
            let bytes = self.read(key);
            let failed = still && !self.synced.contains_key(&key);
            assert!(
                failed || bytes.as_ref() == Some(&self.chunks[&key]),
                "{key:x}"
            );
        }
    }
}

fn dictionary(config: DictionaryConfig, random: &mut SeededRandom) -> Dictionary {
    let key = DictionaryKey::new([3; 32]);
    Dictionary::with_key(config, key, SeededRandom::from_seed(random.next_u64()))
}

fn live(seed: u64) {
    let mut world = SurvivalSimulation::new(seed);
    world.dictionary.open();
    for _ in 0..4 {
        for _ in 0..10 + world.random.below(250) {
            world.act();
        }
        world.crash();
    }
    world.check();
}

#[test]
fn acknowledged_chunks_survive_kills_and_power_loss() {
    for seed in 0..150 {
        live(seed);
    }
}

#[test]
#[ignore = "minutes; `cargo test --release -p reduce --lib survival -- --ignored`"]
fn acknowledged_chunks_survive_on_ten_thousand_seeds() {
    for seed in 0..10_000 {
        live(seed);
    }
}
