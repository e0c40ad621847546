//! Recovery: reads the segments after a start.
//!
//! ```text
//! open ──► list ──► identify (head of the newest sound segment: generation)
//!      ──► contents of every segment, oldest first, several at a time  ─► index
//!      ──► segments without contents: all their records, oldest first, 1 MiB a read
//!                 ─► index; then the contents are written behind the last sound record
//!      ──► ready: the next chunk begins a new segment
//! ```
//! After a crash one segment has no contents: the one that was appended to. Recovery fills only the
//! index; chunks are read again, and verified, when they are needed. A foreign segment, or one of
//! another version, key or generation, is deleted and counted. The dictionary is usable meanwhile
//! with the recovered chunks; new chunks are accepted and written after recovery.

use bytes::{Bytes, BytesMut};
use vocab::NodeId;

use super::contents::{ChunkLine, EncodedFacts, SegmentContents, SegmentTrailer};
use super::log::{LogState, RequestPurpose, SegmentFile};
use super::seal::SegmentName;
use super::segment::{
    CHUNK_HEAD, HeaderKind, LogRecord, RECORD_OVERHEAD, SEGMENT_HEAD, ScanStep, parse_segment_head,
    step,
};
use super::{ChunkPeers, Dictionary, DiskLocation, PeerSlot};
use crate::config::{MAX_DISK_READ, MAX_TRACKED_PEERS};
use crate::disk::{DiskAnswer, DiskFault, DiskOperation, SegmentListing};

/// The end of a segment that is read first, in bytes: the contents of most, and not much more.
const LIKELY_CONTENTS: u64 = 224 * 1024;
/// Segments whose contents are read at the same time, so that the disk does not wait for us.
const CONTENTS_AHEAD: usize = 8;

/// Progress of recovery.
pub(super) struct LogRecovery {
    phase: RecoveryPhase,
    adopt: GenerationSource,
    /// Segments whose contents have not been asked for; the oldest is last.
    waiting: Vec<SegmentListing>,
    /// Contents that are being read.
    reading: usize,
    /// Segments that have no contents; the oldest is last once all have been looked at.
    bare: Vec<SegmentListing>,
    scan: Option<ScanProgress>,
}

/// A segment that is being read from its start.
struct ScanProgress {
    listing: SegmentListing,
    name: Option<SegmentName>,
    /// Peers of the segment's slots in this dictionary.
    slots: PeerSlotMap,
    buffer: BytesMut,
    /// Bytes of the segment up to the front of `buffer`.
    valid: u64,
    /// Start of the next read.
    offset: u64,
    facts: EncodedFacts,
}

/// Peers of a segment's slots in this dictionary.
type PeerSlotMap = [PeerSlot; MAX_TRACKED_PEERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryPhase {
    Listing,
    /// Reading the head of the segment at this place in `waiting`, the newest first.
    Identifying(usize),
    Reading,
}

/// Whose generation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GenerationSource {
    FromDisk,
    /// The dictionary was cleared meanwhile: the disk's content is obsolete.
    Ours,
}

/// Result of reading a segment's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanResult {
    /// At its end, or where no further record could be found.
    Read,
    /// The disk would not give the rest, which may be sound.
    Failed,
}

impl Dictionary {
    /// Starts recovery from disk. Without a disk tier, or when it was called before, it does
    /// nothing.
    pub fn open(&mut self) {
        if !matches!(self.log.state, LogState::Closed) {
            return;
        }
        if self.log.cap == 0 {
            self.log.state = LogState::Ready;
            return;
        }
        self.log.state = LogState::Recovering(Box::new(LogRecovery {
            phase: RecoveryPhase::Listing,
            adopt: GenerationSource::FromDisk,
            waiting: Vec::new(),
            reading: 0,
            bare: Vec::new(),
            scan: None,
        }));
        self.log.ask(DiskOperation::List, RequestPurpose::List);
    }

    /// Returns `true` if recovery is complete. The dictionary can be used before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self.log.state {
            LogState::Recovering(_) => false,
            LogState::Closed => self.log.cap == 0,
            LogState::Ready | LogState::Failed => true,
        }
    }

    /// Returns `true` if [`Self::generation`] is final, because recovery has read the generation
    /// from the disk. Do not announce it to peers before.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        match &self.log.state {
            LogState::Recovering(recovery) => recovery.phase == RecoveryPhase::Reading,
            LogState::Closed => self.log.cap == 0,
            LogState::Ready | LogState::Failed => true,
        }
    }

    pub(super) fn listed(&mut self, result: Result<DiskAnswer, DiskFault>) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Ok(DiskAnswer::Segments(mut segments)) = result else {
            self.log.state = LogState::Failed;
            self.abandon_queue();
            return;
        };
        segments.sort_by_key(|listing| listing.number);
        segments.dedup_by_key(|listing| listing.number);
        let last = segments.last().map_or(0, |listing| listing.number);
        self.log.next_number = last.saturating_add(1);
        // A cap that was lowered holds before anything is read.
        let mut bytes: u64 = segments.iter().map(|listing| listing.bytes).sum();
        let mut beyond = Vec::new();
        segments.retain(|listing| {
            let fits = bytes <= self.log.cap;
            if !fits {
                bytes -= listing.bytes;
                beyond.push(*listing);
            }
            fits
        });
        segments.reverse();
        recovery.waiting = segments;
        for listing in beyond {
            self.log.delete(listing.number, listing.bytes);
        }
        self.identify(0);
    }

    /// Reads the head of the segment at this place, newest first, or continues without.
    fn identify(&mut self, place: usize) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let listing = recovery.waiting.get(place);
        let Some(listing) = listing.filter(|_| recovery.adopt == GenerationSource::FromDisk) else {
            recovery.phase = RecoveryPhase::Reading;
            self.read_contents();
            return;
        };
        recovery.phase = RecoveryPhase::Identifying(place);
        let operation = DiskOperation::Read {
            segment: listing.number,
            offset: 0,
            length: SEGMENT_HEAD as u32,
        };
        self.log.ask(operation, RequestPurpose::Identify);
    }

    pub(super) fn identified(&mut self, result: Result<DiskAnswer, DiskFault>) {
        let (LogState::Recovering(recovery), Some(key)) = (&mut self.log.state, &self.log.key)
        else {
            return;
        };
        let RecoveryPhase::Identifying(place) = recovery.phase else {
            return;
        };
        let number = recovery.waiting.get(place).map(|listing| listing.number);
        let bytes = bytes_of(result).unwrap_or_default();
        let head = number.map(|number| parse_segment_head(key, &bytes, number));
        match head {
            Some(HeaderKind::Sound(name)) if recovery.adopt == GenerationSource::FromDisk => {
                self.generation = name.generation;
                recovery.phase = RecoveryPhase::Reading;
                self.read_contents();
            }
            Some(_) | None => self.identify(place + 1),
        }
    }

    /// Marks all unread segments as obsolete, including the one being read, because the dictionary
    /// was cleared.
    pub(super) fn forget_recovered(&mut self) {
        if let LogState::Recovering(recovery) = &mut self.log.state {
            recovery.adopt = GenerationSource::Ours;
            if let Some(scan) = &mut recovery.scan {
                scan.buffer.clear();
                scan.offset = 0;
                scan.name = None;
            }
        }
    }

    /// Asks for the ends of the next segments; begins with those that have none when all are read.
    fn read_contents(&mut self) {
        while let LogState::Recovering(recovery) = &mut self.log.state
            && recovery.reading < CONTENTS_AHEAD
            && let Some(listing) = recovery.waiting.pop()
        {
            recovery.reading += 1;
            let length = listing.bytes.min(LIKELY_CONTENTS);
            let operation = DiskOperation::Read {
                segment: listing.number,
                offset: listing.bytes - length,
                length: length as u32,
            };
            self.log
                .ask(operation, RequestPurpose::Contents { listing });
        }
        if let LogState::Recovering(recovery) = &mut self.log.state
            && recovery.reading == 0
        {
            recovery.bare.sort_by_key(|listing| listing.number);
            recovery.bare.reverse();
            self.scan_next_segment();
        }
    }

    /// Takes in the end of a segment, or asks for more of it if the contents are longer.
    pub(super) fn contents_read(
        &mut self,
        listing: SegmentListing,
        result: Result<DiskAnswer, DiskFault>,
    ) {
        let (LogState::Recovering(recovery), Some(key)) = (&mut self.log.state, &self.log.key)
        else {
            return;
        };
        let bytes = bytes_of(result).unwrap_or_default();
        let trailer = SegmentTrailer::parse(key, &bytes, listing.number);
        let end = trailer.and_then(|trailer| Some((trailer, trailer.records_end(listing.bytes)?)));
        if let Some((_, end)) = end
            && (bytes.len() as u64) < listing.bytes - end
            && bytes.len() as u64 <= LIKELY_CONTENTS
        {
            let operation = DiskOperation::Read {
                segment: listing.number,
                offset: end,
                length: (listing.bytes - end) as u32,
            };
            self.log
                .ask(operation, RequestPurpose::Contents { listing });
            return;
        }
        recovery.reading -= 1;
        let opened = end.and_then(|(trailer, end)| {
            let start = bytes.len().checked_sub((listing.bytes - end) as usize)?;
            let mut sealed = bytes[start..][..trailer.length].to_vec();
            let contents = SegmentContents::parse(key, &trailer, &mut sealed)?;
            Some((trailer.name, end, contents))
        });
        match opened {
            Some((name, _, _)) if name.generation != self.generation => {
                self.reject_segment(listing, HeaderKind::Sound(name));
            }
            Some((name, end, contents)) => self.take_contents(listing, &name, end, &contents),
            None => recovery.bare.push(listing),
        }
        self.drop_segments(0);
        self.read_contents();
    }

    fn take_contents(
        &mut self,
        listing: SegmentListing,
        name: &SegmentName,
        end: u64,
        contents: &SegmentContents,
    ) {
        let number = listing.number;
        let segment = SegmentFile::new(name.salt, listing.bytes);
        self.log.segments.insert(number, segment);
        let mut slots = [PeerSlot::UNTRACKED; MAX_TRACKED_PEERS];
        for peer in &contents.peers {
            slots[usize::from(peer.slot)] = self.recovered_peer(peer.node, peer.generation);
        }
        self.log.reserve_list(number, contents.chunks.len());
        for line in &contents.chunks {
            let length = (RECORD_OVERHEAD + CHUNK_HEAD + line.length) as u64;
            if u64::from(line.offset) + length <= end {
                self.recover_chunk(number, &slots, line);
            }
        }
        for fact in contents.facts.records() {
            self.recover_fact(&slots, fact);
        }
        self.log.finish_list(number);
    }

    fn scan_next_segment(&mut self) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Some(listing) = recovery.bare.pop() else {
            self.log.state = LogState::Ready;
            return;
        };
        recovery.scan = Some(ScanProgress {
            listing,
            name: None,
            slots: [PeerSlot::UNTRACKED; MAX_TRACKED_PEERS],
            buffer: BytesMut::new(),
            valid: 0,
            offset: 0,
            facts: EncodedFacts::default(),
        });
        self.scan_on();
    }

    fn scan_on(&mut self) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Some(scan) = &recovery.scan else {
            return;
        };
        let operation = DiskOperation::Read {
            segment: scan.listing.number,
            offset: scan.offset,
            length: MAX_DISK_READ,
        };
        self.log.ask(operation, RequestPurpose::Scan);
    }

    /// Takes in the next bytes of the segment that is read from its start.
    pub(super) fn scanned(&mut self, result: Result<DiskAnswer, DiskFault>) {
        let (LogState::Recovering(recovery), Some(key)) = (&mut self.log.state, &self.log.key)
        else {
            return;
        };
        let Some(mut scan) = recovery.scan.take() else {
            return;
        };
        let Ok(bytes) = bytes_of(result) else {
            self.finish_scan(scan, ScanResult::Failed);
            return;
        };
        let full = bytes.len() == MAX_DISK_READ as usize;
        scan.offset += bytes.len() as u64;
        scan.buffer.extend_from_slice(&bytes);
        if scan.name.is_none() {
            let head = parse_segment_head(key, &scan.buffer, scan.listing.number);
            match head {
                HeaderKind::Sound(name)
                    if name.generation == self.generation && scan.valid == 0 =>
                {
                    scan.name = Some(name);
                }
                HeaderKind::Sound(_)
                | HeaderKind::OtherVersion
                | HeaderKind::OtherKey
                | HeaderKind::Foreign => {
                    self.reject_segment(scan.listing, head);
                    self.scan_next_segment();
                    return;
                }
            }
            scan.valid = SEGMENT_HEAD as u64;
            let _ = scan.buffer.split_to(SEGMENT_HEAD);
        }
        let more = self.scan_records(&mut scan);
        if more && full {
            if let LogState::Recovering(recovery) = &mut self.log.state {
                recovery.scan = Some(scan);
            }
            self.scan_on();
        } else {
            self.finish_scan(scan, ScanResult::Read);
        }
    }

    /// Takes in all whole records that the buffer holds; says whether more may follow.
    fn scan_records(&mut self, scan: &mut ScanProgress) -> bool {
        let (Some(name), Some(key)) = (scan.name, &self.log.key) else {
            return false;
        };
        let seal = key.records(&name);
        let number = name.number;
        self.log
            .segments
            .entry(number)
            .or_insert_with(|| SegmentFile::new(name.salt, scan.listing.bytes));
        let buffer = std::mem::take(&mut scan.buffer).freeze();
        let mut opened = Vec::new();
        let mut at = 0;
        let more = loop {
            let length = match step(&seal, scan.valid, &buffer[at..], &mut opened) {
                ScanStep::Record(record, length) => {
                    self.recover_record(scan, record);
                    length
                }
                ScanStep::Damaged(length) => {
                    self.statistics.damaged_records += 1;
                    length
                }
                ScanStep::Short => break true,
                ScanStep::Lost => break false,
            };
            at += length;
            scan.valid += length as u64;
        };
        scan.buffer = BytesMut::from(&buffer[at..]);
        more
    }

    fn recover_record(&mut self, scan: &mut ScanProgress, record: LogRecord<'_>) {
        match record {
            LogRecord::Chunk {
                fingerprint,
                peers,
                previous,
                bytes,
            } => {
                let Ok(offset) = u32::try_from(scan.valid) else {
                    return;
                };
                let line = ChunkLine {
                    key: fingerprint.key(),
                    check: fingerprint.check(),
                    previous,
                    peers,
                    offset,
                    length: bytes.len(),
                };
                self.recover_chunk(scan.listing.number, &scan.slots, &line);
            }
            LogRecord::Peer {
                slot,
                node,
                generation,
            } => scan.slots[usize::from(slot)] = self.recovered_peer(node, generation),
            LogRecord::Held { .. } | LogRecord::Lacking { .. } | LogRecord::Forget { .. } => {
                if let Some(fact) = self.recover_fact(&scan.slots, record) {
                    scan.facts.push(&fact);
                }
            }
        }
    }

    /// Returns the peer of a segment's slot in this dictionary, or no peer if the recorded
    /// generation of the peer's dictionary is outdated.
    fn recovered_peer(&mut self, node: NodeId, recorded: [u8; 16]) -> PeerSlot {
        let slot = self.peer(node);
        let peer = slot
            .0
            .and_then(|slot| self.peers.get_mut(usize::from(slot)));
        let (Some(peer), true) = (peer, recorded != [0; 16]) else {
            return slot;
        };
        if peer.generation == recorded {
            return slot;
        }
        if peer.has_announced {
            return PeerSlot::UNTRACKED;
        }
        let known = peer.generation != [0; 16];
        peer.generation = recorded;
        if known {
            self.index.forget_holders(slot.bit());
        }
        slot
    }

    /// Takes in what a segment says of a peer's holdings; returns it in terms of this start.
    fn recover_fact(
        &mut self,
        slots: &PeerSlotMap,
        fact: LogRecord<'_>,
    ) -> Option<LogRecord<'static>> {
        let here = |slot: u8| slots[usize::from(slot)];
        match fact {
            LogRecord::Held { slot, keys } => {
                let peer = here(slot);
                for key in &keys {
                    if let Some(known) = self.index.get(*key) {
                        let peers = known.peers.and_holder(peer.bit());
                        self.index.set_peers(known.slot, peers);
                    }
                }
                Some(LogRecord::Held {
                    slot: peer.0?,
                    keys,
                })
            }
            LogRecord::Lacking { slot, keys } => {
                let peer = here(slot);
                for key in &keys {
                    if let Some(known) = self.index.get(*key) {
                        let peers = known.peers.without_holder(peer.bit());
                        self.index.set_peers(known.slot, peers);
                    }
                }
                Some(LogRecord::Lacking {
                    slot: peer.0?,
                    keys,
                })
            }
            LogRecord::Forget { slot } => {
                self.index.forget_holders(here(slot).bit());
                Some(LogRecord::Forget {
                    slot: here(slot).0?,
                })
            }
            LogRecord::Chunk { .. } | LogRecord::Peer { .. } => None,
        }
    }

    /// A chunk of the log goes into the index; what arrived since the start stays as it is, and
    /// a place in a later segment replaces one in an earlier.
    fn recover_chunk(&mut self, number: u32, slots: &PeerSlotMap, line: &ChunkLine) {
        let mut peers = 0;
        let mut recorded = line.peers;
        while recorded != 0 {
            peers |= slots[recorded.trailing_zeros() as usize].bit();
            recorded &= recorded - 1;
        }
        let known = self.index.get(line.key);
        let (slot, with_those) = match known {
            Some(known) if known.check != line.check || known.length != line.length => return,
            Some(known) => (known.slot, known.peers.and_holder(peers)),
            None => {
                let slot = self.index.insert(line.key, line.check, line.length);
                (slot, ChunkPeers::holding(peers))
            }
        };
        self.index.set_peers(slot, with_those);
        let newer = known.is_some_and(
            |known| matches!(known.place, DiskLocation::At { segment, .. } if segment > number),
        );
        if !newer {
            let place = DiskLocation::At {
                segment: number,
                offset: line.offset,
            };
            self.index.set_place(slot, place);
            self.log.list(number, slot);
            self.link_for(line.previous, line.key, peers);
        }
        self.keep_within_memory();
    }

    fn reject_segment(&mut self, listing: SegmentListing, head: HeaderKind) {
        let statistics = &mut self.statistics;
        if listing.bytes > 0 {
            statistics.rejected_segments += 1;
        }
        match head {
            HeaderKind::OtherVersion => statistics.outdated_segments += 1,
            HeaderKind::OtherKey => statistics.sealed_segments += 1,
            HeaderKind::Sound(_) | HeaderKind::Foreign => {}
        }
        self.log.delete(listing.number, listing.bytes);
    }

    /// The segment has been read up to its end, or as far as it can be.
    fn finish_scan(&mut self, scan: ScanProgress, ending: ScanResult) {
        let ScanProgress {
            listing,
            name,
            valid,
            facts,
            ..
        } = scan;
        let number = listing.number;
        if name.is_some() && ending == ScanResult::Read {
            if valid < listing.bytes {
                self.statistics.damaged_records += 1;
                self.log.cut(number, valid, listing.bytes - valid);
            }
            if let Some(segment) = self.log.segments.get_mut(&number) {
                segment.bytes = valid;
            }
            self.write_contents(number, facts);
        }
        self.log.finish_list(number);
        self.drop_segments(0);
        self.scan_next_segment();
    }
}

/// The bytes of an answer.
fn bytes_of(result: Result<DiskAnswer, DiskFault>) -> Result<Bytes, DiskFault> {
    match result? {
        DiskAnswer::Bytes(bytes) => Ok(bytes),
        DiskAnswer::Segments(_) | DiskAnswer::Done => Ok(Bytes::new()),
    }
}
