//! Repair: what a decoder asks when it cannot resolve a record, and what the encoder answers.
//!
//! A request names a record by where it starts in the flow's encoded stream, and either the
//! whole record or some of its references and runs by their numbers in it. It never names a
//! fingerprint: a peer can only be given bytes again that this very flow has sent it.
//!
//! ```text
//! request: version=2  record_start  scope ┬ 0 (all)
//!            u8         varint       u8   └ 1, count, reference…, count, run…
//! answer:  version=2  record_start  scope  count, length…  (scope 1: count, key…)  coded  rest
//! ```
//! A run is answered with the keys of its chunks, a reference with its bytes. `coded` is 0 when
//! `rest` is the bytes themselves one after the other, 1 when it is a zstd frame of them.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter};

use crate::config::{MAX_RECORD_OPERATIONS, MAX_RECORD_RAW, MAX_RECORD_SOURCES, MAX_REPAIR_RANGES};
use crate::error::ReductionError;
use crate::fingerprint::ChunkKey;
use crate::record::limited;

const VERSION: u8 = 2;
const SCOPE_ALL: u8 = 0;
const SCOPE_SOME: u8 = 1;

/// Requested part of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairScope {
    /// All its raw bytes.
    All,
    /// Some of it.
    Some {
        /// The raw bytes of these references, numbered from 0 in the record's order.
        references: Vec<usize>,
        /// The keys of these groups of sources, numbered from 0 in the record's order.
        runs: Vec<usize>,
    },
}

/// A decoder's wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairRequest {
    /// Start of the record in the flow's encoded stream, in bytes.
    pub record_start: u64,
    /// Requested part of the record.
    pub scope: RepairScope,
}

/// An encoder's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairAnswer {
    /// As in the request.
    pub record_start: u64,
    /// As in the request, the numbers left out: what the pieces are is known to who asked.
    pub scope: AnswerScope,
    /// The bytes: one piece for each of the whole record's operations, or for each reference
    /// asked for.
    pub pieces: Vec<Bytes>,
    /// The keys of the runs asked for, one run after the other.
    pub keys: Vec<u64>,
}

/// Kind of the request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerScope {
    /// The whole record.
    All,
    /// Some references and runs.
    Some,
}

impl RepairRequest {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Bytes {
        let mut out = ByteWriter::new();
        out.u8(VERSION).varint(self.record_start);
        match &self.scope {
            RepairScope::All => {
                out.u8(SCOPE_ALL);
            }
            RepairScope::Some { references, runs } => {
                out.u8(SCOPE_SOME);
                for numbers in [references, runs] {
                    out.varint(numbers.len() as u64);
                    for number in numbers {
                        out.varint(*number as u64);
                    }
                }
            }
        }
        out.finish()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// When it is malformed, of another version, or above a limit.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReductionError> {
        let mut reader = ByteReader::new(bytes);
        let record_start = versioned_start(&mut reader)?;
        let scope = match reader.u8()? {
            SCOPE_ALL => RepairScope::All,
            SCOPE_SOME => RepairScope::Some {
                references: ascending(&mut reader, MAX_RECORD_OPERATIONS)?,
                runs: ascending(&mut reader, MAX_RECORD_SOURCES)?,
            },
            _ => return Err(ReductionError::InvalidMessage("an unknown scope of repair")),
        };
        if !reader.is_empty() {
            return Err(ReductionError::InvalidMessage(
                "bytes after a repair request",
            ));
        }
        Ok(Self {
            record_start,
            scope,
        })
    }
}

impl RepairAnswer {
    /// The answer's bytes, compressed where that helps.
    #[must_use]
    pub fn emit(&self, level: i32) -> Bytes {
        let mut out = ByteWriter::new();
        let scope = match self.scope {
            AnswerScope::All => SCOPE_ALL,
            AnswerScope::Some => SCOPE_SOME,
        };
        out.u8(VERSION)
            .varint(self.record_start)
            .u8(scope)
            .varint(self.pieces.len() as u64);
        for piece in &self.pieces {
            out.varint(piece.len() as u64);
        }
        if self.scope == AnswerScope::Some {
            out.varint(self.keys.len() as u64);
            for key in &self.keys {
                out.u64(*key);
            }
        }
        let joined = self.pieces.concat();
        let mut coded = Vec::with_capacity(zstd_safe::compress_bound(joined.len()));
        match zstd_safe::compress(&mut coded, &joined, level) {
            Ok(length) if length < joined.len() => out.u8(1).bytes(&coded),
            Ok(_) | Err(_) => out.u8(0).bytes(&joined),
        };
        out.finish()
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// When it is malformed, of another version, or above a limit.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReductionError> {
        let mut reader = ByteReader::new(bytes);
        let record_start = versioned_start(&mut reader)?;
        let scope = match reader.u8()? {
            SCOPE_ALL => AnswerScope::All,
            SCOPE_SOME => AnswerScope::Some,
            _ => return Err(ReductionError::InvalidMessage("an unknown scope of repair")),
        };
        let count = limited(&mut reader, MAX_RECORD_OPERATIONS)?;
        let (mut lengths, mut total) = (Vec::with_capacity(count), 0);
        for _ in 0..count {
            let length = limited(&mut reader, MAX_RECORD_RAW - total)?;
            total += length;
            lengths.push(length);
        }
        let keys = match scope {
            AnswerScope::All => Vec::new(),
            AnswerScope::Some => {
                let count = limited(&mut reader, MAX_RECORD_SOURCES)?;
                let keys = (0..count).map(|_| reader.u64());
                keys.collect::<Result<Vec<ChunkKey>, _>>()?
            }
        };
        let coding = reader.u8()?;
        let rest = reader.bytes(reader.remaining())?;
        let mut joined = match coding {
            0 => Bytes::copy_from_slice(rest),
            1 => {
                let mut raw = Vec::with_capacity(total);
                zstd_safe::decompress(&mut raw, rest).map_err(|_| {
                    ReductionError::InvalidMessage("a repair that does not decompress")
                })?;
                Bytes::from(raw)
            }
            _ => {
                return Err(ReductionError::InvalidMessage(
                    "an unknown coding of a repair",
                ));
            }
        };
        if joined.len() != total {
            return Err(ReductionError::InvalidMessage("a repair of another length"));
        }
        let pieces = lengths.iter().map(|length| joined.split_to(*length));
        let pieces = pieces.collect();
        Ok(Self {
            record_start,
            scope,
            pieces,
            keys,
        })
    }
}

/// Numbers in ascending order and so without repeats, or a short request could ask for much.
fn ascending(reader: &mut ByteReader<'_>, most: usize) -> Result<Vec<usize>, ReductionError> {
    let count = limited(reader, MAX_REPAIR_RANGES)?;
    let numbers = (0..count).map(|_| limited(reader, most));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    if !numbers.is_sorted_by(|one, next| one < next) {
        return Err(ReductionError::InvalidMessage("numbers out of order"));
    }
    Ok(numbers)
}

fn versioned_start(reader: &mut ByteReader<'_>) -> Result<u64, ReductionError> {
    match reader.u8()? {
        VERSION => Ok(reader.varint()?),
        other => Err(ReductionError::PeerIncompatible(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_read_back_as_written() {
        let some = RepairScope::Some {
            references: vec![0, 3, 4000],
            runs: vec![7],
        };
        for scope in [RepairScope::All, some] {
            let request = RepairRequest {
                record_start: 1 << 40,
                scope,
            };
            assert_eq!(RepairRequest::parse(&request.emit()), Ok(request));
        }
        let answer = RepairAnswer {
            record_start: 12,
            scope: AnswerScope::Some,
            pieces: vec![Bytes::from(vec![1; 9000]), Bytes::new(), Bytes::from("x")],
            keys: vec![5, 6],
        };
        let emitted = answer.emit(3);
        assert!(emitted.len() < 120);
        assert_eq!(RepairAnswer::parse(&emitted), Ok(answer));
    }

    #[test]
    fn an_answer_above_the_limit_is_refused() {
        let answer = RepairAnswer {
            record_start: 0,
            scope: AnswerScope::All,
            pieces: vec![Bytes::from(vec![0; MAX_RECORD_RAW + 1])],
            keys: Vec::new(),
        };
        assert!(RepairAnswer::parse(&answer.emit(3)).is_err());
        let unsorted = RepairRequest {
            record_start: 0,
            scope: RepairScope::Some {
                references: vec![3, 3],
                runs: Vec::new(),
            },
        };
        assert!(RepairRequest::parse(&unsorted.emit()).is_err());
        let many = RepairRequest {
            record_start: 0,
            scope: RepairScope::Some {
                references: Vec::new(),
                runs: (0..=MAX_REPAIR_RANGES).collect(),
            },
        };
        assert!(RepairRequest::parse(&many.emit()).is_err());
        assert!(RepairRequest::parse(&[]).is_err());
    }
}
