//! Traffic tests: flows between two sites whose nodes are killed, whose disks lose power or fail,
//! and which forget, lose or restore old dictionaries, compared with the plain bytes that hosts
//! sent.
//!
//! ```text
//! steps ─► flows (both ways, several at once) ─► what arrives: the same bytes, in order, all of them
//!      └─► dictionaries over disks that lose power ─► what they keep, say and believe:
//!          · nothing but what was sent comes out of them, and nothing that may not be stored
//!          · what was written is there after a kill, what was synced after a loss of power
//!          · what was written a second ago is synced
//!          · nobody is said to hold what it never held; where nothing is lost, nothing is asked again
//!          · caps on memory and disk
//! ```
//! A simulation is a list of steps, so that a failure shrinks to the few that matter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use vocab::{ByteCount, FlowSegment, NodeId, SeededRandom, SegmentKind, Time};

use super::{Dictionary, DictionaryKey, DiskLocation, NO_KEY, PeerSlot};
use crate::chunker::Chunker;
use crate::config::{
    DecoderConfig, DictionaryConfig, EncoderConfig, MAX_RECORD_LITERALS, SYNC_INTERVAL,
    StoragePolicy,
};
use crate::decoder::{DecoderOutput, FlowDecoder};
use crate::disk::DiskOperation;
use crate::encoder::FlowEncoder;
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::repair::{RepairRequest, RepairScope};
use crate::testing::PowerLossDisk;

/// Flows that there may be at the same time.
const FLOWS: usize = 3;
/// Bytes that recovery may add to a disk, at the ends of segments that have no contents.
const ROOM_FOR_CONTENTS: u64 = 128 * 1024;
/// Requests for one record at most: two for parts of it and one for all.
const MOST_REPAIRS: usize = 3;
/// Turns after which a flow that is not through stands still.
const MOST_TURNS: usize = 20_000;

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum TrafficStep {
    /// The flow of this number is brought to its end, and another begins in its place.
    Start {
        flow: usize,
        from: usize,
        storing: StoragePolicy,
    },
    Push {
        flow: usize,
        data: HostData,
    },
    /// The host sends no more.
    Finish {
        flow: usize,
    },
    /// Data is encoded, and is now in flight.
    Encode {
        flow: usize,
        most: usize,
    },
    /// The first piece that is under way arrives.
    Arrive {
        flow: usize,
    },
    /// The receiver's answers arrive: acknowledgements and requests; and then the replies.
    Answer {
        flow: usize,
    },
    /// The disk does something.
    Serve {
        side: usize,
        requests: usize,
    },
    /// Requests that fail, because the disk is full or broken.
    Fault {
        side: usize,
        requests: usize,
        full: bool,
    },
    /// Time passes, and the disks complete their requests.
    Pass {
        milliseconds: u64,
    },
    /// A node ends without a word and starts again.
    Restart {
        side: usize,
        found: DiskAfterRestart,
    },
    /// A node starts again before it has recovered.
    RestartTwice {
        side: usize,
        requests: usize,
    },
    /// The dictionary is emptied by its operator.
    Purge {
        side: usize,
    },
    /// The sites announce the generations of their dictionaries.
    Tell,
    /// The disk is copied.
    Copy {
        side: usize,
    },
}

/// State of the disk that a node finds when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskAfterRestart {
    /// All written data.
    Written,
    /// The state after a loss of power.
    Synced,
    /// No data.
    Nothing,
    /// The state at the time of the copy.
    Older,
}

/// Data that a host sends.
#[derive(Clone, Copy, Debug)]
struct HostData {
    kind: SegmentKind,
    /// Number of the long string that the data comes from.
    content: u64,
    skip: usize,
    length: usize,
    /// Interval of inserted bytes; zero for none.
    edited_every: usize,
}

/// Room for chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageRoom {
    /// Much is evicted.
    Little,
    /// No limit is reached.
    Plenty,
}

struct TrafficSimulation {
    random: SeededRandom,
    room: StorageRoom,
    now: Time,
    sides: [TrafficSide; 2],
    flows: [Option<TrafficFlow>; FLOWS],
    /// Generation of the peer's dictionary as each side was last told since its start.
    told: [Option<[u8; 16]>; 2],
    /// All chunks of payload that may be stored.
    chunks: BTreeMap<ChunkKey, Bytes>,
    /// Chunks of payload that may not be stored, and that was not sent otherwise.
    unstorable: BTreeSet<ChunkKey>,
    /// Something has happened after which repairs are asked for.
    something_was_lost: bool,
    /// Requests for what a dictionary should have had.
    lost_chunks: usize,
}

struct TrafficSide {
    dictionary: Dictionary,
    disk: PowerLossDisk,
    config: DictionaryConfig,
    key_number: u8,
    /// Chunks that the running or the next process must find on the disk.
    kept: DiskPlacement,
    /// A copy of the disk, and under which key it was made.
    copy: Option<(PowerLossDisk, DiskPlacement, u8)>,
    /// Chunks that the dictionary held when it was purged and that were not stored again.
    purged: BTreeSet<ChunkKey>,
    /// Chunks that the dictionary ever held.
    had: BTreeSet<ChunkKey>,
    /// Bytes on disk when it started.
    found: u64,
    has_recovered: bool,
    /// A request has failed since the start, before it had recovered.
    is_excused: bool,
    /// Its operator has emptied it since the last segment was deleted.
    is_purging: bool,
}

/// Locations of chunks on a disk.
#[derive(Clone, Debug, Default)]
struct DiskPlacement {
    /// The segment, and since when at the latest; `None` when a failed request may have delayed it.
    written: BTreeMap<ChunkKey, (u32, Option<Time>)>,
    synced: BTreeSet<ChunkKey>,
    /// Chunks that a start has found beyond that. After a loss of power a segment's contents may
    /// survive without the chunk, which is noticed when the chunk is read.
    doubtful: BTreeMap<ChunkKey, u32>,
}

struct TrafficFlow {
    from: usize,
    storing: StoragePolicy,
    encoder: FlowEncoder,
    decoder: FlowDecoder,
    under_way: VecDeque<Bytes>,
    requests: VecDeque<Bytes>,
    /// Segments that were sent and have not come out.
    expected: VecDeque<FlowSegment>,
    chunker: Chunker,
    open: Vec<u8>,
    is_finished: bool,
    /// Repairs asked for, by record.
    asked: BTreeMap<u64, usize>,
}

fn key(number: u8) -> DictionaryKey {
    DictionaryKey::new([number; 32])
}

impl DiskPlacement {
    fn drop_segment(&mut self, segment: u32) {
        self.written.retain(|_, (kept, _)| *kept != segment);
        self.doubtful.retain(|_, kept| *kept != segment);
        let written = &self.written;
        self.synced.retain(|key| written.contains_key(key));
    }
}

impl TrafficSide {
    fn new(number: usize, room: StorageRoom, random: &mut SeededRandom) -> Self {
        let config = match room {
            StorageRoom::Little => DictionaryConfig {
                memory: ByteCount::mebibytes(1),
                disk: ByteCount::kibibytes(1024 + random.below(3) * 512),
                segment: ByteCount::kibibytes(64 << random.below(3)),
            },
            StorageRoom::Plenty => DictionaryConfig {
                memory: ByteCount::mebibytes(32),
                disk: ByteCount::mebibytes(64),
                segment: ByteCount::kibibytes(64 << random.below(4)),
            },
        };
        let mut side = Self {
            dictionary: Dictionary::new(config, SeededRandom::from_seed(0)),
            disk: PowerLossDisk::default(),
            config,
            key_number: number as u8,
            kept: DiskPlacement::default(),
            copy: None,
            purged: BTreeSet::new(),
            had: BTreeSet::new(),
            found: 0,
            has_recovered: false,
            is_excused: false,
            is_purging: false,
        };
        side.start(random);
        side
    }

    /// Starts a process over the disk.
    fn start(&mut self, random: &mut SeededRandom) {
        let random = SeededRandom::from_seed(random.next_u64());
        self.dictionary = Dictionary::with_key(self.config, key(self.key_number), random);
        self.dictionary.open();
        self.found = self.disk.seen().bytes();
        self.has_recovered = false;
        self.is_excused = false;
        self.is_purging = false;
    }

    fn segment_of(&self, key: ChunkKey) -> Option<u32> {
        match self.dictionary.index.get(key)?.place {
            DiskLocation::At { segment, .. } => Some(segment),
            DiskLocation::Nowhere | DiskLocation::Queued | DiskLocation::Writing => None,
        }
    }

    /// Executes one request, if there is one.
    fn serve(&mut self, now: Time, chunks: &BTreeMap<ChunkKey, Bytes>) -> bool {
        let Some(request) = self.dictionary.poll_disk() else {
            return false;
        };
        let operation = request.operation.clone();
        if let DiskOperation::Delete { segment } = operation {
            let lost = self.kept.written.values().any(|(kept, _)| *kept == segment);
            let is_full =
                self.disk.seen().bytes() + ROOM_FOR_CONTENTS >= self.config.disk.bytes() / 2;
            let is_roomy = match self.has_recovered {
                false => self.found + ROOM_FOR_CONTENTS < self.config.disk.bytes(),
                true => !is_full,
            };
            assert!(
                !lost || !is_roomy || self.is_purging,
                "segment {segment} was sound, and there was room for it"
            );
            self.kept.drop_segment(segment);
        }
        let completion = self.disk.execute(request);
        let is_done = completion.result.is_ok();
        self.dictionary.handle_disk(completion);
        if !is_done && !self.has_recovered {
            self.is_excused = true;
        }
        if !self.has_recovered && self.dictionary.is_ready() {
            self.look_at_purged();
            self.has_recovered = true;
            self.check_recovered();
            self.kept.doubtful = chunks
                .keys()
                .filter(|key| !self.kept.written.contains_key(key))
                .filter_map(|key| Some((*key, self.segment_of(*key)?)))
                .collect();
        }
        if self.has_recovered {
            match operation {
                DiskOperation::Append { .. } => self.note_places(Some(now), chunks),
                DiskOperation::Sync { segment } if is_done => {
                    let written = self.kept.written.iter();
                    let synced = written.filter(|(_, (kept, _))| *kept == segment);
                    self.kept.synced.extend(synced.map(|(key, _)| *key));
                }
                DiskOperation::List
                | DiskOperation::Read { .. }
                | DiskOperation::Truncate { .. }
                | DiskOperation::Sync { .. }
                | DiskOperation::Delete { .. } => {}
            }
        }
        self.check_caps();
        true
    }

    fn check_recovered(&mut self) {
        let DiskPlacement { written, .. } = &self.kept;
        let lost = written
            .iter()
            .find(|(key, (segment, _))| self.segment_of(**key).is_none_or(|at| at < *segment));
        if let (Some((key, (segment, _))), false) = (lost, self.is_excused) {
            panic!("{key:x} was in segment {segment} and is lost");
        }
    }

    /// Checks that a later start does not find purged chunks on disk.
    fn look_at_purged(&mut self) {
        let came_back = |key: &&ChunkKey| self.segment_of(**key).is_some();
        if !self.has_recovered
            && let Some(key) = self.purged.iter().find(came_back)
        {
            panic!("{key:x} was purged and is there again");
        }
        let dictionary = &self.dictionary;
        self.purged.retain(|key| dictionary.length(*key) == 0);
    }

    /// Records where the dictionary has put chunks.
    fn note_places(&mut self, now: Option<Time>, chunks: &BTreeMap<ChunkKey, Bytes>) {
        if !self.has_recovered {
            return;
        }
        for key in chunks.keys() {
            let place = self.segment_of(*key);
            let noted = self.kept.written.get(key).map(|(segment, _)| *segment);
            if place == noted || place.is_some() && place == self.kept.doubtful.get(key).copied() {
                continue;
            }
            self.kept.synced.remove(key);
            self.kept.doubtful.remove(key);
            match place {
                Some(segment) => {
                    self.kept.written.insert(*key, (segment, now));
                }
                None => {
                    self.kept.written.remove(key);
                }
            }
        }
    }

    fn check_caps(&mut self) {
        let memory = self.dictionary.statistics().memory_bytes;
        assert!(memory <= self.config.memory.bytes(), "the cap on memory");
        // What a loss of power brought back goes first; nothing is written before it is gone.
        if self.has_recovered && self.dictionary.log.deletions == 0 {
            let bytes = self.disk.seen().bytes();
            assert!(bytes <= self.config.disk.bytes(), "the cap on disk");
        }
    }
}

impl TrafficSimulation {
    fn new(seed: u64, room: StorageRoom) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        Self {
            sides: [0, 1].map(|number| TrafficSide::new(number, room, &mut random)),
            random,
            room,
            now: Time::ZERO + Duration::from_secs(1),
            flows: [const { None }; FLOWS],
            told: [None; 2],
            chunks: BTreeMap::new(),
            unstorable: BTreeSet::new(),
            something_was_lost: false,
            lost_chunks: 0,
        }
    }

    fn take(&mut self, step: TrafficStep) {
        match step {
            TrafficStep::Start {
                flow,
                from,
                storing,
            } => {
                self.end_flow(flow);
                self.start_flow(flow, from, storing);
            }
            TrafficStep::Push { flow, data } => self.push(flow, data),
            TrafficStep::Finish { flow } => self.finish(flow),
            TrafficStep::Encode { flow, most } => {
                self.encode(flow, most);
            }
            TrafficStep::Arrive { flow } => {
                self.arrive(flow);
            }
            TrafficStep::Answer { flow } => {
                self.answer(flow);
            }
            TrafficStep::Serve { side, requests } => {
                for _ in 0..requests {
                    self.serve(side);
                }
            }
            TrafficStep::Fault {
                side,
                requests,
                full,
            } => self.fail(side, requests, full),
            TrafficStep::Pass { milliseconds } => self.pass(Duration::from_millis(milliseconds)),
            TrafficStep::Restart { side, found } => self.restart(side, found),
            TrafficStep::RestartTwice { side, requests } => {
                self.restart(side, DiskAfterRestart::Written);
                for _ in 0..requests {
                    self.serve(side);
                }
                self.restart(side, DiskAfterRestart::Synced);
            }
            TrafficStep::Purge { side } => self.purge(side),
            TrafficStep::Tell => self.tell(),
            TrafficStep::Copy { side } => {
                let at = &mut self.sides[side];
                at.copy = Some((at.disk.clone(), at.kept.clone(), at.key_number));
            }
        }
        self.look_at_dictionaries();
    }

    fn serve(&mut self, side: usize) -> bool {
        self.sides[side].serve(self.now, &self.chunks)
    }

    fn serve_all(&mut self) {
        for side in 0..2 {
            while self.serve(side) {}
        }
    }

    fn fail(&mut self, side: usize, requests: usize, full: bool) {
        self.something_was_lost = true;
        for _ in 0..requests {
            let bytes = self.sides[side].disk.seen().bytes();
            let room = self.random.below(20_000);
            let seen = self.sides[side].disk.seen();
            seen.broken = !full;
            seen.capacity = full.then_some(bytes + room);
            self.serve(side);
            let seen = self.sides[side].disk.seen();
            seen.broken = false;
            seen.capacity = None;
        }
        let at = &mut self.sides[side];
        at.note_places(None, &self.chunks);
        // What was not synced yet may have been in a sync that failed.
        for (_, since) in at.kept.written.values_mut() {
            *since = None;
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for side in 0..2 {
            self.sides[side].dictionary.handle_timeout(self.now);
            while self.serve(side) {}
            let kept = &self.sides[side].kept;
            for (key, (segment, since)) in &kept.written {
                let is_due = since.is_some_and(|since| since + SYNC_INTERVAL <= self.now);
                assert!(
                    !is_due || kept.synced.contains(key),
                    "{key:x} in segment {segment} is not synced after {SYNC_INTERVAL:?}"
                );
            }
        }
    }

    fn restart(&mut self, side: usize, found: DiskAfterRestart) {
        // A node that is not there any more has no flows, and its peer resets their other ends.
        self.flows = [const { None }; FLOWS];
        self.something_was_lost = true;
        let at = &mut self.sides[side];
        at.note_places(None, &self.chunks);
        match found {
            DiskAfterRestart::Written => {}
            DiskAfterRestart::Synced => {
                at.disk.lose_power(&mut self.random);
                let DiskPlacement {
                    written, synced, ..
                } = &mut at.kept;
                written.retain(|key, _| synced.contains(key));
            }
            DiskAfterRestart::Nothing => {
                at.disk = PowerLossDisk::default();
                at.kept = DiskPlacement::default();
            }
            DiskAfterRestart::Older => {
                if let Some((disk, kept, key_number)) = at.copy.clone() {
                    at.disk = disk;
                    at.kept = match key_number == at.key_number {
                        true => kept,
                        false => DiskPlacement::default(),
                    };
                }
            }
        }
        for (_, since) in at.kept.written.values_mut() {
            *since = None;
        }
        at.start(&mut self.random);
        self.told[side] = None;
    }

    fn purge(&mut self, side: usize) {
        self.something_was_lost = true;
        let at = &mut self.sides[side];
        let chunks = self.chunks.keys();
        let held = chunks.filter(|key| at.dictionary.length(**key) > 0);
        at.purged.extend(held);
        at.key_number += 2;
        at.dictionary.clear(Some(key(at.key_number)));
        at.kept = DiskPlacement::default();
        at.is_purging = true;
    }

    /// Announces each site's generation to the other as soon as it is known.
    fn tell(&mut self) {
        for side in 0..2 {
            while !self.sides[side].dictionary.is_identified() {
                assert!(self.serve(side), "recovery stands still");
            }
        }
        for side in 0..2 {
            let generation = self.sides[1 - side].dictionary.generation();
            let peer = self.peer(side);
            let dictionary = &mut self.sides[side].dictionary;
            dictionary.peer_generation(peer, generation);
            if self.told[side].is_some_and(|before| before != generation) {
                let is_held = |key: &&ChunkKey| dictionary.is_held_by(**key, peer);
                assert_eq!(
                    self.chunks.keys().find(is_held),
                    None,
                    "of another dictionary"
                );
            }
            self.told[side] = Some(generation);
        }
    }

    /// The other site, as this one's dictionary knows it.
    fn peer(&mut self, side: usize) -> PeerSlot {
        let other = NodeId([1 - side as u8; 32]);
        self.sides[side].dictionary.peer(other)
    }

    fn start_flow(&mut self, flow: usize, from: usize, storing: StoragePolicy) {
        self.tell();
        let config = EncoderConfig {
            record: ByteCount::new(256 + self.random.below(MAX_RECORD_LITERALS as u64)),
            retained: ByteCount::kibibytes(64 << self.random.below(6)),
            storing,
            ..EncoderConfig::default()
        };
        self.flows[flow] = Some(TrafficFlow {
            from,
            storing,
            encoder: FlowEncoder::new(config, self.peer(from)),
            decoder: FlowDecoder::new(DecoderConfig::default(), self.peer(1 - from)),
            under_way: VecDeque::new(),
            requests: VecDeque::new(),
            expected: VecDeque::new(),
            chunker: Chunker::default(),
            open: Vec::new(),
            is_finished: false,
            asked: BTreeMap::new(),
        });
    }

    fn push(&mut self, number: usize, data: HostData) {
        let Some(flow) = self.flows[number].as_mut().filter(|flow| !flow.is_finished) else {
            return;
        };
        let bytes = data.bytes();
        let segment = FlowSegment {
            kind: data.kind,
            bytes: bytes.clone(),
        };
        flow.expected.push_back(segment.clone());
        flow.encoder.push(self.now, segment);
        if data.kind == SegmentKind::Payload {
            let mut rest = &bytes[..];
            while let Some(length) = flow.chunker.cut(rest) {
                flow.open.extend_from_slice(&rest[..length]);
                rest = &rest[length..];
                let chunk = std::mem::take(&mut flow.open);
                let storing = flow.storing;
                note_chunk(&mut self.chunks, &mut self.unstorable, chunk, storing);
            }
            flow.open.extend_from_slice(rest);
        }
    }

    fn finish(&mut self, number: usize) {
        let Some(flow) = self.flows[number].as_mut().filter(|flow| !flow.is_finished) else {
            return;
        };
        flow.is_finished = true;
        flow.encoder.finish();
        let last = std::mem::take(&mut flow.open);
        if !last.is_empty() {
            note_chunk(&mut self.chunks, &mut self.unstorable, last, flow.storing);
        }
    }

    /// Says whether anything was encoded.
    fn encode(&mut self, number: usize, most: usize) -> bool {
        let Some(flow) = &mut self.flows[number] else {
            return false;
        };
        let dictionary = &mut self.sides[flow.from].dictionary;
        let encoded = flow.encoder.poll_encoded(self.now, dictionary, most);
        let is_something = encoded.is_some();
        if let Some(encoded) = encoded {
            assert!((1..=most).contains(&encoded.len()));
            flow.under_way.push_back(encoded);
        }
        is_something
    }

    /// Hands the decoder what arrives; says whether anything did.
    fn arrive(&mut self, number: usize) -> bool {
        let Some(flow) = &mut self.flows[number] else {
            return false;
        };
        let piece = flow.under_way.pop_front();
        let has_arrived = piece.is_some();
        flow.decoder.push(piece.unwrap_or_default());
        let dictionary = &mut self.sides[1 - flow.from].dictionary;
        loop {
            let decoded = flow.decoder.poll(dictionary);
            match decoded.expect("a sound stream is never refused") {
                DecoderOutput::Segment(segment) => compare(&mut flow.expected, segment),
                DecoderOutput::NeedRepair(request) => {
                    let wanted = RepairRequest::parse(&request).unwrap();
                    let asked = flow.asked.entry(wanted.record_start).or_default();
                    *asked += 1;
                    assert!(*asked <= MOST_REPAIRS, "it asks again and again");
                    self.lost_chunks += usize::from(is_for_bytes(&wanted.scope));
                    flow.requests.push_back(request);
                }
                DecoderOutput::NeedMore
                | DecoderOutput::WaitForDisk
                | DecoderOutput::WaitForRepair => break,
            }
        }
        has_arrived
    }

    /// Carries back what the decoder has to say; says whether there was anything.
    fn answer(&mut self, number: usize) -> bool {
        let Some(flow) = &mut self.flows[number] else {
            return false;
        };
        let dictionary = &mut self.sides[flow.from].dictionary;
        let before = flow.encoder.retained();
        flow.encoder
            .acknowledged(flow.decoder.consumed(), dictionary);
        let mut was_told = flow.encoder.retained() < before;
        for request in flow.requests.drain(..) {
            let answer = flow.encoder.repair(&request);
            let answer = answer.expect("an honest request is answered");
            let taken = flow.decoder.handle_repair(&answer);
            taken.expect("an honest answer is taken");
            was_told = true;
        }
        was_told
    }

    /// Checks that all sent bytes arrive.
    fn end_flow(&mut self, number: usize) {
        self.finish(number);
        for _ in 0..MOST_TURNS {
            let mut moves = self.encode(number, 1 << 16);
            moves |= self.arrive(number);
            moves |= self.answer(number);
            for side in 0..2 {
                while self.serve(side) {
                    moves = true;
                }
            }
            if moves {
                continue;
            }
            let Some(flow) = self.flows[number].take() else {
                return;
            };
            assert!(flow.expected.is_empty(), "not all has arrived");
            assert!(flow.decoder.is_at_boundary() && flow.encoder.pending() == 0);
            return;
        }
        panic!("the flow stands still");
    }

    /// Checks the invariants of the dictionaries.
    fn look_at_dictionaries(&mut self) {
        for at in &mut self.sides {
            self.something_was_lost |= at.dictionary.statistics().evictions > 0;
            let chunks = self.chunks.keys();
            let held = chunks.filter(|key| at.dictionary.length(**key) > 0);
            at.had.extend(held);
        }
        for side in 0..2 {
            let peer = self.peer(side);
            self.sides[side].look_at_purged();
            for key in &self.unstorable {
                let length = self.sides[side].dictionary.length(*key);
                assert_eq!(length, 0, "{key:x} was not to be stored");
            }
            let [one, other] = &self.sides;
            let (this, that) = if side == 0 {
                (one, other)
            } else {
                (other, one)
            };
            for key in self.chunks.keys() {
                let is_said = this.dictionary.is_held_by(*key, peer);
                assert!(
                    !is_said || that.had.contains(key),
                    "{key:x} is said to be held by who never had it"
                );
            }
        }
    }

    /// All flows come to their end; both nodes start again, and all that they have kept is right.
    fn end(&mut self) {
        for flow in 0..FLOWS {
            self.end_flow(flow);
            self.look_at_dictionaries();
        }
        if self.room == StorageRoom::Plenty && !self.something_was_lost {
            assert_eq!(self.lost_chunks, 0, "nothing was lost");
        }
        self.pass(Duration::from_secs(60));
        for side in 0..2 {
            self.restart(side, DiskAfterRestart::Synced);
            self.serve_all();
            assert!(self.sides[side].has_recovered, "recovery stands still");
            for (key, chunk) in &self.chunks {
                let at = &mut self.sides[side];
                let read = match at.dictionary.fetch(*key) {
                    super::FetchResult::Ready(bytes) => Some(bytes),
                    super::FetchResult::Missing => None,
                    super::FetchResult::Reading(ticket) => {
                        while at.serve(self.now, &self.chunks) {}
                        ticket.outcome().expect("the disk has answered")
                    }
                };
                let must_be_there = at.kept.written.contains_key(key);
                assert!(read.is_some() || !must_be_there, "{key:x} cannot be read");
                assert!(read.is_none_or(|read| read == chunk), "{key:x} has changed");
            }
        }
    }
}

fn note_chunk(
    chunks: &mut BTreeMap<ChunkKey, Bytes>,
    unstorable: &mut BTreeSet<ChunkKey>,
    chunk: Vec<u8>,
    storing: StoragePolicy,
) {
    let key = Fingerprint::of(&chunk).key();
    assert_ne!(key, NO_KEY);
    match storing {
        StoragePolicy::Remember => {
            unstorable.remove(&key);
            chunks.insert(key, chunk.into());
        }
        StoragePolicy::Never if !chunks.contains_key(&key) => {
            unstorable.insert(key);
        }
        StoragePolicy::Never => {}
    }
}

/// Returns `true` if a repair request asks for bytes and not for keys. Flows that cross may leave
/// different links at the two ends, which is not an error.
fn is_for_bytes(scope: &RepairScope) -> bool {
    match scope {
        RepairScope::All => true,
        RepairScope::Some { runs, .. } => runs.is_empty(),
    }
}

/// Removes a segment from the front of the expected ones.
fn compare(expected: &mut VecDeque<FlowSegment>, segment: FlowSegment) {
    if segment.kind == SegmentKind::Frame {
        assert_eq!(
            expected.pop_front(),
            Some(segment),
            "another frame came out"
        );
        return;
    }
    let mut rest = segment.bytes;
    while !rest.is_empty() {
        let front = expected.front_mut().expect("more came out than was sent");
        assert_eq!(front.kind, segment.kind);
        let length = rest.len().min(front.bytes.len());
        assert!(
            front.bytes.split_to(length) == rest.split_to(length),
            "other bytes came out than were sent"
        );
        if front.bytes.is_empty() {
            expected.pop_front();
        }
    }
}

impl HostData {
    fn bytes(self) -> Bytes {
        const LONGEST: usize = 300_000;
        let mut whole = vec![0; LONGEST];
        let mut random = SeededRandom::from_seed(self.content);
        random.fill(&mut whole);
        if self.content.is_multiple_of(2) {
            // Something that can be compressed.
            for byte in &mut whole {
                *byte = b'a' + *byte % 8;
            }
        }
        let start = self.skip.min(LONGEST);
        let end = (start + self.length).min(LONGEST);
        let mut bytes = whole[start..end].to_vec();
        if self.edited_every > 0 {
            for at in (0..bytes.len()).step_by(self.edited_every).skip(1) {
                bytes.insert(at, b'!');
            }
        }
        bytes.into()
    }
}

fn data() -> impl Strategy<Value = HostData> {
    let kind = prop_oneof![
        12 => Just(SegmentKind::Payload),
        1 => Just(SegmentKind::Control),
        1 => Just(SegmentKind::Frame),
    ];
    let length = prop_oneof![1..200_usize, 1..20_000_usize, 20_000..150_000_usize];
    let skip = prop_oneof![Just(0_usize), Just(100_000), 0..200_000_usize];
    let edited_every = prop_oneof![3 => Just(0_usize), 1 => 500..60_000_usize];
    (kind, 0..4_u64, skip, length, edited_every).prop_map(
        |(kind, content, skip, length, edited_every)| HostData {
            kind,
            content,
            skip,
            // What belongs to no chunk need not be long.
            length: match kind {
                SegmentKind::Payload => length,
                SegmentKind::Control | SegmentKind::Frame => 1 + length % 5_000,
            },
            edited_every,
        },
    )
}

/// Steps of a simulation in which nothing is lost.
fn traffic() -> impl Strategy<Value = TrafficStep> {
    let storing = prop_oneof![4 => Just(StoragePolicy::Remember), 1 => Just(StoragePolicy::Never)];
    let start =
        (0..FLOWS, 0..2_usize, storing).prop_map(|(flow, from, storing)| TrafficStep::Start {
            flow,
            from,
            storing,
        });
    prop_oneof![
        4 => start,
        10 => (0..FLOWS, data()).prop_map(|(flow, data)| TrafficStep::Push { flow, data }),
        1 => (0..FLOWS).prop_map(|flow| TrafficStep::Finish { flow }),
        10 => (0..FLOWS, 1..70_000_usize).prop_map(|(flow, most)| TrafficStep::Encode { flow, most }),
        8 => (0..FLOWS).prop_map(|flow| TrafficStep::Arrive { flow }),
        6 => (0..FLOWS).prop_map(|flow| TrafficStep::Answer { flow }),
        8 => (0..2_usize, 1..20_usize).prop_map(|(side, requests)| TrafficStep::Serve { side, requests }),
        3 => (0..3_000_u64).prop_map(|milliseconds| TrafficStep::Pass { milliseconds }),
    ]
}

fn disk_impairment() -> impl Strategy<Value = TrafficStep> {
    let found = prop_oneof![
        3 => Just(DiskAfterRestart::Written),
        4 => Just(DiskAfterRestart::Synced),
        1 => Just(DiskAfterRestart::Nothing),
        1 => Just(DiskAfterRestart::Older),
    ];
    let side = 0..2_usize;
    prop_oneof![
        4 => (side.clone(), found).prop_map(|(side, found)| TrafficStep::Restart { side, found }),
        1 => (side.clone(), 0..8_usize)
            .prop_map(|(side, requests)| TrafficStep::RestartTwice { side, requests }),
        1 => side.clone().prop_map(|side| TrafficStep::Purge { side }),
        1 => Just(TrafficStep::Tell),
        1 => side.clone().prop_map(|side| TrafficStep::Copy { side }),
        1 => (side, 1..6_usize, any::<bool>())
            .prop_map(|(side, requests, full)| TrafficStep::Fault { side, requests, full }),
    ]
}

fn live(seed: u64, room: StorageRoom, steps: &[TrafficStep]) {
    let mut world = TrafficSimulation::new(seed, room);
    for flow in 0..FLOWS {
        world.start_flow(flow, flow % 2, StoragePolicy::Remember);
    }
    for step in steps {
        world.take(*step);
    }
    world.end();
}

/// Worlds that are tried in the long run.
const MANY: u32 = 3_000;

fn worlds(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    }
}

fn steps() -> impl Strategy<Value = Vec<TrafficStep>> {
    prop::collection::vec(prop_oneof![5 => traffic(), 1 => disk_impairment()], 1..120)
}

fn unimpaired_steps() -> impl Strategy<Value = Vec<TrafficStep>> {
    prop::collection::vec(traffic(), 1..120)
}

proptest! {
    #![proptest_config(worlds(60))]

    #[test]
    fn every_byte_arrives_and_invariants_hold(
        seed in any::<u64>(),
        steps in steps(),
    ) {
        live(seed, StorageRoom::Little, &steps);
    }

    #[test]
    fn invariants_hold_without_eviction(seed in any::<u64>(), steps in steps()) {
        live(seed, StorageRoom::Plenty, &steps);
    }

    #[test]
    fn nothing_is_repaired_without_loss(
        seed in any::<u64>(),
        steps in unimpaired_steps(),
    ) {
        live(seed, StorageRoom::Plenty, &steps);
    }
}

proptest! {
    #![proptest_config(worlds(MANY))]

    #[test]
    #[ignore = "minutes; `cargo test --release -p reduce --lib traffic -- --ignored`"]
    fn every_byte_arrives_in_thousands_of_simulations(seed in any::<u64>(), steps in steps()) {
        live(seed, StorageRoom::Little, &steps);
        live(seed, StorageRoom::Plenty, &steps);
    }

    #[test]
    #[ignore = "minutes; `cargo test --release -p reduce --lib traffic -- --ignored`"]
    fn nothing_is_repaired_in_thousands_of_quiet_simulations(
        seed in any::<u64>(),
        steps in unimpaired_steps(),
    ) {
        live(seed, StorageRoom::Plenty, &steps);
    }
}
