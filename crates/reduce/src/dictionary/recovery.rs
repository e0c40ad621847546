//! Reading the segments again after a start.
//!
//! ```text
//! open ──► list ──► identify (head of the newest sound segment: generation) ──► read segments
//!                                                                  oldest first, 1 MiB a read
//!      ──► ready: the last segment is cut after its last sound record and appended to
//! ```
//! What is read goes into the index only; bytes are read again, and verified, when they are
//! needed. A segment that is not one of ours, or of another version or generation, is deleted
//! and counted. New chunks are taken in meanwhile and written when recovery is over.

use bytes::{Bytes, BytesMut};

use super::log::{Active, LogState, Segment, Work};
use super::segment::{LogRecord, SEGMENT_HEAD, Step, parse_segment_head, step};
use super::{Dictionary, PeerSlot, Place};
use crate::config::{MAX_DISK_READ, MAX_TRACKED_PEERS};
use crate::disk::{DiskAnswer, DiskFault, DiskOperation, SegmentListing};
use crate::fingerprint::{Fingerprint, Key};

/// How far recovery has come.
pub(super) struct Recovery {
    phase: Phase,
    adopt: Adopt,
    /// Segments not read yet; the next one is last.
    waiting: Vec<SegmentListing>,
    /// What each slot of the segment being read means here.
    slots: [PeerSlot; MAX_TRACKED_PEERS],
    buffer: BytesMut,
    /// Bytes of the segment up to the front of `buffer`.
    valid: u64,
    /// Where the next read starts.
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    /// Reading the head of the segment at this place in `waiting`.
    Identifying(usize),
    Reading,
}

/// Whose generation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopt {
    FromDisk,
    /// The dictionary was cleared meanwhile: what is on disk is of the past.
    Ours,
}

/// Whether the front of the buffer can be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    NeedsMore,
    Over,
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
        self.log.state = LogState::Recovering(Box::new(Recovery {
            phase: Phase::Listing,
            adopt: Adopt::FromDisk,
            waiting: Vec::new(),
            slots: [PeerSlot::UNTRACKED; MAX_TRACKED_PEERS],
            buffer: BytesMut::new(),
            valid: 0,
            offset: 0,
        }));
        self.log.ask(DiskOperation::List, Work::List);
    }

    /// Whether recovery is over. The dictionary can be used before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self.log.state {
            LogState::Recovering(_) => false,
            LogState::Closed => self.log.cap == 0,
            LogState::Ready | LogState::Failed => true,
        }
    }

    /// Whether [`Self::generation`] is final, because recovery has seen the disk's. Peers must
    /// not be told before.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        match &self.log.state {
            LogState::Recovering(recovery) => recovery.phase == Phase::Reading,
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
        // The oldest is read first and therefore stands last.
        segments.reverse();
        recovery.waiting = segments;
        self.identify(0);
    }

    /// Reads the head of the segment at this place, newest first, or goes on without.
    fn identify(&mut self, place: usize) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let listing = recovery.waiting.get(place);
        let Some(listing) = listing.filter(|_| recovery.adopt == Adopt::FromDisk) else {
            recovery.phase = Phase::Reading;
            self.read_next_segment();
            return;
        };
        recovery.phase = Phase::Identifying(place);
        let operation = DiskOperation::Read {
            segment: listing.number,
            offset: 0,
            length: SEGMENT_HEAD as u32,
        };
        self.log.ask(operation, Work::Identify);
    }

    pub(super) fn identified(&mut self, result: Result<DiskAnswer, DiskFault>) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Phase::Identifying(place) = recovery.phase else {
            return;
        };
        let number = recovery.waiting.get(place).map(|listing| listing.number);
        let head = number.and_then(|number| parse_segment_head(&bytes_of(result), number));
        match head {
            Some(generation) if recovery.adopt == Adopt::FromDisk => {
                self.generation = generation;
                recovery.phase = Phase::Reading;
                self.read_next_segment();
            }
            Some(_) | None => self.identify(place + 1),
        }
    }

    /// The dictionary is cleared: what has not been read yet will be found to be of another
    /// generation, the segment that is being read included.
    pub(super) fn forget_recovered(&mut self) {
        if let LogState::Recovering(recovery) = &mut self.log.state {
            recovery.adopt = Adopt::Ours;
            recovery.buffer.clear();
            recovery.offset = 0;
        }
    }

    fn read_next_segment(&mut self) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        if recovery.waiting.is_empty() {
            self.finish_recovery();
            return;
        }
        recovery.slots = [PeerSlot::UNTRACKED; MAX_TRACKED_PEERS];
        recovery.buffer.clear();
        recovery.valid = 0;
        recovery.offset = 0;
        self.read_on();
    }

    fn read_on(&mut self) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Some(listing) = recovery.waiting.last() else {
            return;
        };
        let operation = DiskOperation::Read {
            segment: listing.number,
            offset: recovery.offset,
            length: MAX_DISK_READ,
        };
        self.log.ask(operation, Work::Recover);
    }

    pub(super) fn recovered(&mut self, result: Result<DiskAnswer, DiskFault>) {
        let bytes = bytes_of(result);
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        let Some(listing) = recovery.waiting.last().copied() else {
            return;
        };
        let first = recovery.offset == 0;
        let full = bytes.len() == MAX_DISK_READ as usize;
        recovery.offset += bytes.len() as u64;
        recovery.buffer.extend_from_slice(&bytes);
        if first {
            let generation = parse_segment_head(&recovery.buffer, listing.number);
            if generation != Some(self.generation) {
                self.reject_segment(listing);
                return;
            }
            recovery.valid = SEGMENT_HEAD as u64;
            let _ = recovery.buffer.split_to(SEGMENT_HEAD);
            self.log.segments.insert(listing.number, Segment::default());
        }
        let progress = self.read_records(listing.number);
        if progress == Progress::NeedsMore && full {
            self.read_on();
        } else {
            self.finish_segment(listing);
        }
    }

    /// Takes in all whole records that the buffer holds.
    fn read_records(&mut self, number: u32) -> Progress {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return Progress::Over;
        };
        let buffer = std::mem::take(&mut recovery.buffer).freeze();
        let mut at = 0;
        let progress = loop {
            let length = match step(&buffer[at..]) {
                Step::Record(record, length) => {
                    self.recover_record(number, record);
                    length
                }
                Step::Damaged(length) => {
                    self.statistics.damaged_records += 1;
                    length
                }
                Step::Short => break Progress::NeedsMore,
                Step::Lost => break Progress::Over,
            };
            at += length;
            self.advance(length);
        };
        if let LogState::Recovering(recovery) = &mut self.log.state {
            recovery.buffer = BytesMut::from(&buffer[at..]);
        }
        progress
    }

    fn advance(&mut self, length: usize) {
        if let LogState::Recovering(recovery) = &mut self.log.state {
            recovery.valid += length as u64;
        }
    }

    fn recover_record(&mut self, number: u32, record: LogRecord<'_>) {
        match record {
            LogRecord::Chunk {
                fingerprint,
                peers,
                previous,
                bytes,
            } => {
                let LogState::Recovering(recovery) = &self.log.state else {
                    return;
                };
                let Ok(offset) = u32::try_from(recovery.valid) else {
                    return;
                };
                let known = recovery.slots.iter().enumerate();
                let peers = known
                    .filter(|(slot, _)| peers >> slot & 1 == 1)
                    .fold(0, |mask, (_, slot)| mask | slot.bit());
                let place = Place::At {
                    segment: number,
                    offset,
                };
                self.recover_chunk(&fingerprint, bytes.len(), place, peers, previous);
            }
            LogRecord::Peer { slot, node } => {
                let here = self.peer(node);
                if let LogState::Recovering(recovery) = &mut self.log.state {
                    recovery.slots[usize::from(slot)] = here;
                }
            }
            LogRecord::Held { slot, keys } => {
                let peer = self.recovered_slot(slot);
                for key in keys {
                    if let Some(known) = self.index.get(key) {
                        self.index.set_peers(known.slot, known.peers | peer.bit());
                    }
                }
            }
            LogRecord::Lacking { slot, keys } => {
                let peer = self.recovered_slot(slot);
                for key in keys {
                    if let Some(known) = self.index.get(key) {
                        self.index.set_peers(known.slot, known.peers & !peer.bit());
                    }
                }
            }
            LogRecord::Forget { slot } => {
                self.index.forget_peers(self.recovered_slot(slot).bit());
            }
        }
    }

    /// A chunk of the log goes into the index; what arrived since the start stays as it is, and
    /// a later place replaces an earlier one.
    fn recover_chunk(
        &mut self,
        fingerprint: &Fingerprint,
        length: usize,
        place: Place,
        peers: u64,
        previous: Key,
    ) {
        let key = fingerprint.key();
        let (slot, peers) = match self.index.get(key) {
            Some(known) if known.check != fingerprint.check() || known.length != length => return,
            Some(known) => (known.slot, known.peers | peers),
            None => (self.index.insert(key, fingerprint.check(), length), peers),
        };
        self.index.set_place(slot, place);
        self.index.set_peers(slot, peers);
        if let Place::At { segment, .. } = place {
            self.log.list(segment, slot);
        }
        self.link(previous, key);
        self.keep_within_memory();
    }

    fn recovered_slot(&self, slot: u8) -> PeerSlot {
        match &self.log.state {
            LogState::Recovering(recovery) => recovery.slots[usize::from(slot)],
            LogState::Closed | LogState::Ready | LogState::Failed => PeerSlot::UNTRACKED,
        }
    }

    fn reject_segment(&mut self, listing: SegmentListing) {
        if listing.bytes > 0 {
            self.statistics.rejected_segments += 1;
        }
        let segment = listing.number;
        self.log
            .ask(DiskOperation::Delete { segment }, Work::Upkeep);
        if let LogState::Recovering(recovery) = &mut self.log.state {
            recovery.waiting.pop();
        }
        self.read_next_segment();
    }

    /// The segment has been read up to its end, or as far as it can be.
    fn finish_segment(&mut self, listing: SegmentListing) {
        let LogState::Recovering(recovery) = &mut self.log.state else {
            return;
        };
        recovery.waiting.pop();
        let valid = recovery.valid;
        let last = recovery.waiting.is_empty();
        let number = listing.number;
        if let Some(segment) = self.log.segments.get_mut(&number) {
            // A middle segment keeps its lost rest until it is dropped; it counts as bytes.
            segment.bytes = if last {
                valid
            } else {
                listing.bytes.max(valid)
            };
        }
        if valid < listing.bytes {
            self.statistics.damaged_records += 1;
        }
        if last {
            if valid < listing.bytes {
                let operation = DiskOperation::Truncate {
                    segment: number,
                    length: valid,
                };
                self.log.ask(operation, Work::Upkeep);
            }
            if self.log.segment_has_room(number) {
                // Slots may have another order now: all peers are named again.
                self.log.active = Some(Active {
                    number,
                    announced: 0,
                });
            }
        }
        self.log.finish_list(number);
        self.drop_segments(0);
        self.read_next_segment();
    }

    fn finish_recovery(&mut self) {
        self.log.state = LogState::Ready;
    }
}

/// The bytes of an answer; none when it failed, which ends what was being read.
fn bytes_of(result: Result<DiskAnswer, DiskFault>) -> Bytes {
    match result {
        Ok(DiskAnswer::Bytes(bytes)) => bytes,
        Ok(DiskAnswer::Segments(_) | DiskAnswer::Done) | Err(_) => Bytes::new(),
    }
}
