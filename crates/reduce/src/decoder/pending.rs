//! A record on its way to delivery: where its bytes come from, and whether they are right.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Decoded;
use crate::config::{MAX_CHUNK, MAX_REPAIR_RANGES, MAX_SOURCE_BYTES};
use crate::dictionary::{Dictionary, Fetch, Ticket};
use crate::error::Error;
use crate::fingerprint::Key;
use crate::literals::join_bases;
use crate::record::{Literals, Operation, Record, check_of};
use crate::repair::{RepairRequest, RepairScope};

/// A record that is not delivered yet.
pub(super) struct Pending {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) record: Record,
    /// One for each reference among the operations, then one for each base.
    pub(super) sources: Vec<Source>,
    pub(super) references: usize,
    pub(super) repair: Repair,
}

/// Where a reference's bytes are to come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Not looked for yet, or not found when looked for early.
    Unknown(Key),
    Reading(Ticket),
    /// The chunk.
    Chunk(Bytes),
    Missing,
    /// The very bytes, from the encoder.
    Repaired(Bytes),
}

/// How far a record's repair has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    None,
    AskedReferences(Vec<usize>),
    AnsweredReferences,
    AskedAll,
    AnsweredAll(Vec<Bytes>),
}

/// What came of trying to deliver the front record.
pub(super) enum Attempt {
    Verified(Verified),
    Waits(Decoded),
}

/// A record's raw bytes, found right by its check: only [`Pending::verify`] makes one.
pub(super) struct Verified {
    pub(super) raw: Bytes,
    /// How many of them each operation gave.
    pub(super) lengths: Vec<usize>,
    pub(super) origin: Origin,
}

/// Where a record's raw bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Sources,
    Repair,
}

impl Pending {
    pub(super) fn new(start: u64, end: u64, record: Record) -> Self {
        let mut sources = Vec::new();
        for operation in &record.operations {
            match operation {
                Operation::Chunk { key } | Operation::Range { key, .. } => {
                    sources.push(Source::Unknown(*key));
                }
                Operation::Literal { .. } | Operation::Aside { .. } => {}
            }
        }
        let references = sources.len();
        if let Literals::ZstdWithBases(keys) = &record.literals {
            sources.extend(keys.iter().copied().map(Source::Unknown));
        }
        Self {
            start,
            end,
            record,
            sources,
            references,
            repair: Repair::None,
        }
    }

    /// Looks early for what is there already. What is not may still come with a record before
    /// this one. What is beyond [`MAX_SOURCE_BYTES`] is left for a repair.
    pub(super) fn start_reads(&mut self, dictionary: &mut Dictionary) {
        let (mut counted, mut total) = (BTreeSet::new(), 0);
        for source in &mut self.sources {
            if let Source::Unknown(key) = *source {
                if counted.insert(key) {
                    total += dictionary.length(key);
                }
                if total > MAX_SOURCE_BYTES {
                    return;
                }
                match dictionary.fetch(key) {
                    Fetch::Ready(bytes) => *source = Source::Chunk(bytes),
                    Fetch::Reading(ticket) => *source = Source::Reading(ticket),
                    Fetch::Missing => {}
                }
            }
        }
    }

    /// Tries to make the raw bytes, now that all records before this one are delivered.
    pub(super) fn attempt(&mut self, dictionary: &mut Dictionary) -> Result<Attempt, Error> {
        match &self.repair {
            Repair::AskedReferences(_) | Repair::AskedAll => {
                return Ok(Attempt::Waits(Decoded::WaitForRepair));
            }
            Repair::AnsweredAll(pieces) => {
                let verified = self.join_pieces(pieces);
                return verified.map(Attempt::Verified).ok_or(Error::PeerMisbehaved(
                    "a record does not verify, even sent again as a whole",
                ));
            }
            Repair::None | Repair::AnsweredReferences => {}
        }
        self.start_reads(dictionary);
        let mut waits = false;
        for source in &mut self.sources {
            match source {
                Source::Reading(ticket) => match ticket.outcome() {
                    None => waits = true,
                    Some(Some(bytes)) => *source = Source::Chunk(bytes),
                    Some(None) => *source = Source::Missing,
                },
                Source::Unknown(_) => *source = Source::Missing,
                Source::Chunk(_) | Source::Missing | Source::Repaired(_) => {}
            }
        }
        if waits {
            return Ok(Attempt::Waits(Decoded::WaitForDisk));
        }
        let missing = self.sources.iter().enumerate();
        let missing: Vec<usize> = missing
            .filter(|(_, source)| matches!(source, Source::Missing))
            .map(|(number, _)| number)
            .collect();
        if missing.is_empty() {
            if let Some(verified) = self.assemble(dictionary) {
                return Ok(Attempt::Verified(verified));
            }
        } else {
            let references = missing.iter().all(|number| *number < self.references);
            if references && missing.len() <= MAX_REPAIR_RANGES && self.repair == Repair::None {
                let request = self.request(RepairScope::References(missing.clone()));
                self.repair = Repair::AskedReferences(missing);
                return Ok(Attempt::Waits(request));
            }
        }
        self.repair = Repair::AskedAll;
        Ok(Attempt::Waits(self.request(RepairScope::All)))
    }

    fn request(&self, scope: RepairScope) -> Decoded {
        let record_start = self.start;
        Decoded::NeedRepair(
            RepairRequest {
                record_start,
                scope,
            }
            .emit(),
        )
    }

    /// The raw bytes from the sources, if they come out right.
    fn assemble(&self, dictionary: &mut Dictionary) -> Option<Verified> {
        let record = &self.record;
        let decoded;
        let mut literals: &[u8] = match &record.literals {
            Literals::Stored => &record.coded,
            Literals::Zstd | Literals::ZstdWithBases(_) => {
                let bases = &self.sources[self.references..];
                let joined = if bases.is_empty() {
                    Vec::new()
                } else {
                    join_bases(bases.iter().map(|base| base.bytes().unwrap_or_default()))
                };
                let length = record.literal_length;
                decoded = dictionary.codec().decode(&record.coded, &joined, length)?;
                &decoded
            }
        };
        let mut raw = Vec::with_capacity(record.raw_length);
        let mut lengths = Vec::with_capacity(record.operations.len());
        let mut sources = self.sources.iter();
        for operation in &record.operations {
            let piece = match *operation {
                Operation::Literal { length, .. } | Operation::Aside { length, .. } => {
                    let (piece, rest) = literals.split_at_checked(length)?;
                    literals = rest;
                    piece
                }
                Operation::Chunk { .. } => sources.next()?.bytes()?,
                Operation::Range { offset, length, .. } => match sources.next()? {
                    Source::Repaired(bytes) => &bytes[..],
                    source => source.bytes()?.get(offset..offset + length)?,
                },
            };
            if raw.len() + piece.len() > record.raw_length {
                return None;
            }
            raw.extend_from_slice(piece);
            lengths.push(piece.len());
        }
        self.verify(raw, lengths, Origin::Sources)
    }

    /// The raw bytes from a whole repair, one piece for each operation, if they come out right.
    fn join_pieces(&self, pieces: &[Bytes]) -> Option<Verified> {
        let lengths = pieces.iter().map(Bytes::len).collect();
        self.verify(pieces.concat(), lengths, Origin::Repair)
    }

    fn verify(&self, raw: Vec<u8>, lengths: Vec<usize>, origin: Origin) -> Option<Verified> {
        let record = &self.record;
        let mut fits = raw.len() == record.raw_length && lengths.len() == record.operations.len();
        for (operation, have) in record.operations.iter().zip(&lengths) {
            match operation {
                Operation::Literal { length, .. }
                | Operation::Range { length, .. }
                | Operation::Aside { length, .. } => fits &= length == have,
                Operation::Chunk { .. } => fits &= (1..=MAX_CHUNK).contains(have),
            }
        }
        (fits && check_of(&raw) == record.check).then(|| Verified {
            raw: raw.into(),
            lengths,
            origin,
        })
    }
}

impl Source {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Source::Chunk(bytes) | Source::Repaired(bytes) => Some(bytes),
            Source::Unknown(_) | Source::Reading(_) | Source::Missing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DictionaryConfig;
    use crate::dictionary::NO_KEY;
    use crate::fingerprint::Fingerprint;
    use vocab::Random;

    #[test]
    fn a_record_of_many_references_takes_no_more_than_a_sound_one_could() {
        let mut dictionary = Dictionary::new(DictionaryConfig::default(), Random::from_seed(1));
        let chunks: Vec<Vec<u8>> = (0..100).map(|byte| vec![byte; MAX_CHUNK]).collect();
        let mut operations = Vec::new();
        for chunk in &chunks {
            let fingerprint = Fingerprint::of(chunk);
            dictionary.insert(&fingerprint, chunk, NO_KEY);
            let key = fingerprint.key();
            operations.extend([Operation::Chunk { key }; 2]);
        }
        let record = Record {
            raw_length: MAX_CHUNK,
            check: check_of(&chunks[0]),
            literal_length: 0,
            literals: Literals::Stored,
            coded: Bytes::new(),
            operations,
        };
        let mut pending = Pending::new(0, 1, record);
        pending.start_reads(&mut dictionary);
        let taken = pending.sources.iter().filter_map(Source::bytes).count();
        assert_eq!(taken, 2 * (MAX_SOURCE_BYTES / MAX_CHUNK));
    }
}
