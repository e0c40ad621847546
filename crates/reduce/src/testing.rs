//! For tests here and in the crates that use the dictionary: disks in memory, one with faults and one
//! that loses power, and records that a lying encoder would send.

use std::collections::BTreeMap;

use bytes::Bytes;
use vocab::SeededRandom;

use crate::check::{CheckSpan, check_of};
use crate::dictionary::Dictionary;
use crate::disk::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
};
use crate::fingerprint::Fingerprint;
use crate::record::{
    CopyExtent, LiteralEncoding, OperationEnd, ParsedRecord, RecordOperation, SourceGroup,
    digest_of,
};

/// Segment files as byte strings. It executes one request at a time, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDisk {
    segments: BTreeMap<u32, Vec<u8>>,
    /// Bytes of all segments together above which appends fail as on a full disk; the part that
    /// still fits is written.
    pub capacity: Option<u64>,
    /// Every request fails with an input/output error.
    pub broken: bool,
    /// Requests executed so far.
    pub executed: u64,
    /// Bytes read so far.
    pub read: u64,
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Executes one request.
    pub fn execute(&mut self, request: DiskRequest) -> DiskCompletion {
        self.executed += 1;
        let result = if self.broken {
            Err(DiskFault::Io("the disk is broken".to_owned()))
        } else {
            self.perform(request.operation)
        };
        DiskCompletion {
            id: request.id,
            result,
        }
    }

    /// Executes everything that the dictionary asks for, until it asks for nothing.
    pub fn serve(&mut self, dictionary: &mut Dictionary) {
        while let Some(request) = dictionary.poll_disk() {
            let completion = self.execute(request);
            dictionary.handle_disk(completion);
        }
    }

    /// The numbers of the segments there are, in ascending order.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        self.segments.keys().copied().collect()
    }

    /// A segment's bytes, to be read, cut or overwritten; made when it is not there.
    pub fn segment(&mut self, number: u32) -> &mut Vec<u8> {
        self.segments.entry(number).or_default()
    }

    /// Bytes of all segments together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|file| file.len() as u64).sum()
    }

    fn perform(&mut self, operation: DiskOperation) -> Result<DiskAnswer, DiskFault> {
        match operation {
            DiskOperation::List => {
                let listing = self.segments.iter().map(|(number, file)| SegmentListing {
                    number: *number,
                    bytes: file.len() as u64,
                });
                Ok(DiskAnswer::Segments(listing.collect()))
            }
            DiskOperation::Read {
                segment,
                offset,
                length,
            } => {
                let file = self.segments.get(&segment).ok_or(DiskFault::Missing)?;
                let start = file.len().min(offset as usize);
                let end = file.len().min(start + length as usize);
                let bytes = Bytes::copy_from_slice(&file[start..end]);
                self.read += bytes.len() as u64;
                Ok(DiskAnswer::Bytes(bytes))
            }
            DiskOperation::Append {
                segment,
                offset,
                bytes,
            } => {
                let room = self
                    .capacity
                    .map_or(u64::MAX, |capacity| capacity.saturating_sub(self.bytes()));
                let fits = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                let file = self.segments.entry(segment).or_default();
                let end = offset as usize + fits;
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[offset as usize..end].copy_from_slice(&bytes[..fits]);
                if fits < bytes.len() {
                    return Err(DiskFault::Full);
                }
                Ok(DiskAnswer::Done)
            }
            DiskOperation::Truncate { segment, length } => {
                let file = self.segments.get_mut(&segment).ok_or(DiskFault::Missing)?;
                file.truncate(length as usize);
                Ok(DiskAnswer::Done)
            }
            DiskOperation::Sync { segment } => match self.segments.contains_key(&segment) {
                true => Ok(DiskAnswer::Done),
                false => Err(DiskFault::Missing),
            },
            DiskOperation::Delete { segment } => {
                self.segments.remove(&segment);
                Ok(DiskAnswer::Done)
            }
        }
    }
}

/// Unit in which a disk writes, in bytes: each one has either the old or the new content.
const SECTOR: usize = 512;

/// A disk whose power can fail: then each write, cut and deletion since the last sync of its
/// segment has happened, has not, or has in part, in any order.
#[derive(Clone, Debug, Default)]
pub struct PowerLossDisk {
    /// Contents as the running process reads them.
    seen: MemoryDisk,
    /// Contents that are certain to survive a loss of power.
    durable: BTreeMap<u32, Vec<u8>>,
    /// Operations requested since, in order.
    uncertain: Vec<DiskOperation>,
}

impl PowerLossDisk {
    /// Executes one request.
    pub fn execute(&mut self, request: DiskRequest) -> DiskCompletion {
        let operation = request.operation.clone();
        let completion = self.seen.execute(request);
        match operation {
            DiskOperation::Sync { segment } if completion.result.is_ok() => {
                let file = self.seen.segment(segment).clone();
                self.durable.insert(segment, file);
                self.uncertain
                    .retain(|other| segment_of(other) != Some(segment));
            }
            DiskOperation::Append { .. }
            | DiskOperation::Truncate { .. }
            | DiskOperation::Delete { .. } => self.uncertain.push(operation),
            DiskOperation::List | DiskOperation::Read { .. } | DiskOperation::Sync { .. } => {}
        }
        completion
    }

    /// Returns the disk as the running process sees it, for inspection or to inject faults.
    pub fn seen(&mut self) -> &mut MemoryDisk {
        &mut self.seen
    }

    /// The power fails and comes back.
    pub fn lose_power(&mut self, random: &mut SeededRandom) {
        let mut operations = std::mem::take(&mut self.uncertain);
        if random.below(4) == 0 {
            // Caches write in the order they like.
            for last in (1..operations.len()).rev() {
                operations.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        let mut files = std::mem::take(&mut self.durable);
        for operation in operations {
            match operation {
                DiskOperation::Append {
                    segment,
                    offset,
                    bytes,
                } => {
                    // A file whose directory was not synced may have no name.
                    if files.contains_key(&segment) || random.below(3) > 0 {
                        let file = files.entry(segment).or_default();
                        tear(file, offset as usize, &bytes, random);
                    }
                }
                DiskOperation::Truncate { segment, length } => {
                    if let Some(file) = files.get_mut(&segment)
                        && random.below(2) == 0
                    {
                        file.truncate(length as usize);
                    }
                }
                DiskOperation::Delete { segment } => {
                    if random.below(2) == 0 {
                        files.remove(&segment);
                    }
                }
                DiskOperation::List | DiskOperation::Read { .. } | DiskOperation::Sync { .. } => {}
            }
        }
        self.durable.clone_from(&files);
        self.seen.segments = files;
    }
}

fn segment_of(operation: &DiskOperation) -> Option<u32> {
    match operation {
        DiskOperation::List => None,
        DiskOperation::Read { segment, .. }
        | DiskOperation::Append { segment, .. }
        | DiskOperation::Truncate { segment, .. }
        | DiskOperation::Sync { segment }
        | DiskOperation::Delete { segment } => Some(*segment),
    }
}

/// Writes all of the sectors, none, the first ones, or some; where the file has become longer
/// without being written, anything may stand.
fn tear(file: &mut Vec<u8>, offset: usize, bytes: &[u8], random: &mut SeededRandom) {
    let sectors = bytes.len() / SECTOR + 2;
    let whole = random.below(sectors as u64 + 1) as usize;
    let way = random.below(4);
    for sector in 0..sectors {
        let kept = match way {
            0 => true,
            1 => false,
            2 => sector < whole,
            _ => random.below(2) == 0,
        };
        // Sectors are the disk's, not the write's.
        let first = (offset / SECTOR + sector) * SECTOR;
        let start = first.max(offset);
        let end = (first + SECTOR).min(offset + bytes.len());
        if !kept || start >= end {
            continue;
        }
        if file.len() < start {
            let old = file.len();
            file.resize(start, 0);
            if random.below(2) == 0 {
                random.fill(&mut file[old..]);
            }
        }
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(&bytes[start - offset..end - offset]);
    }
}

/// Writes the matching check into a serialised content handle, so that only its content is wrong.
pub fn write_handle_check(serialised: &mut [u8]) {
    crate::content::write_check(serialised);
}

/// Sources of a record as a malicious encoder names them: chunks by their keys, which it need not
/// have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgedSources {
    /// One key after the other.
    Listed(Vec<u64>),
    /// Run that begins with the first of these keys and whose digest covers all of them.
    Run(Vec<u64>),
}

/// One step of a forged record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgedOperation {
    /// A chunk that travels in the record, whole.
    NewChunk(Bytes),
    /// One of the sources, whole.
    WholeSource(usize),
    /// Part of a source, in bytes.
    PartOfSource {
        /// Number of the source.
        source: usize,
        /// Offset in the source.
        offset: usize,
        /// Number of bytes.
        length: usize,
    },
}

/// The key by which records name a chunk.
#[must_use]
pub fn chunk_key(chunk: &[u8]) -> u64 {
    Fingerprint::of(chunk).key()
}

/// Makes a record as a malicious encoder would. `guess` is the claimed result of each operation:
/// the record verifies where the guess is right.
#[must_use]
pub fn forged_record(
    sources: ForgedSources,
    operations: &[ForgedOperation],
    guess: &[&[u8]],
) -> Bytes {
    let group = match sources {
        ForgedSources::Listed(keys) => SourceGroup::Listed(keys),
        ForgedSources::Run(keys) => SourceGroup::Run {
            first: keys.first().copied().unwrap_or_default(),
            count: keys.len(),
            digest: digest_of(keys.iter().copied()),
        },
    };
    let mut literals = Vec::new();
    let operations = operations.iter().map(|operation| match operation {
        ForgedOperation::NewChunk(bytes) => {
            literals.extend_from_slice(bytes);
            RecordOperation::Literal {
                length: bytes.len(),
                end: OperationEnd::Ends,
            }
        }
        ForgedOperation::WholeSource(source) => RecordOperation::Chunk { source: *source },
        ForgedOperation::PartOfSource {
            source,
            offset,
            length,
        } => RecordOperation::Copy {
            source: *source,
            offset: *offset,
            extent: CopyExtent::Bytes(*length),
            end: OperationEnd::Continues,
        },
    });
    let operations = operations.collect();
    let record = ParsedRecord {
        raw_length: guess.iter().map(|piece| piece.len()).sum(),
        check: check_of(&CheckSpan::of_each(guess)),
        literal_length: literals.len(),
        literals: LiteralEncoding::Stored,
        coded: Bytes::new(),
        groups: match group.len() {
            0 => Vec::new(),
            _ => vec![group],
        },
        operations,
    };
    record.emit_with(&[&literals]).0
}
