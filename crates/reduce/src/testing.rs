//! A disk in memory, with faults, for tests here and in the crates that use the dictionary.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::dictionary::Dictionary;
use crate::disk::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
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
