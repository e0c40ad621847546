//! The handle of a stored body: its length, a check, and a reference to each of its chunks.

#[cfg(any(test, feature = "testing"))]
use bytes::Buf;
use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;
use vocab::ByteReader;

use crate::config::MAX_CONTENT_REFERENCES;
use crate::fingerprint::Fingerprint;

/// First bytes of a serialised handle.
const MAGIC: [u8; 3] = *b"TLC";
/// The version of the format that is written and read here.
const VERSION: u8 = 1;
/// Bytes before the references.
const HEAD: usize = 3 + 1 + 4 + 8 + CHECK;
/// Bytes of the check: a whole BLAKE3 hash.
const CHECK: usize = 32;
/// Bytes of one reference.
const REFERENCE: usize = 2 + 2 + 32;
/// Times that one reference may repeat its chunk at most.
const MAX_REPEATS: u32 = 1 << 16;
/// Context string that separates the check from all other uses of the hash.
const CHECK_CONTEXT: &str = "trunkline content handle 1 check";

/// Name of a body that was stored in a dictionary.
///
/// It is a value: it may be cloned, kept and written to disk, and outlives the process. Its
/// existence does not mean that the body is still stored. Cloning it copies no bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct ContentHandle {
    length: u64,
    check: [u8; CHECK],
    /// Serialised, head and references.
    serialised: Bytes,
}

/// Reason why bytes are not a usable handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandleError {
    /// They are not what the format says.
    #[error("the content handle is not well-formed: {0}")]
    Invalid(&'static str),
    /// They are of a version of the format that is not read here.
    #[error("the content handle is of version {0}, which this release does not read")]
    Version(u8),
    /// They are damaged: the check does not match the references.
    #[error("the content handle is damaged: its check does not match its references")]
    Damaged,
}

/// A chunk of a body, and how often it stands there in succession.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyReference {
    pub(crate) fingerprint: Fingerprint,
    /// Bytes of the chunk, from 1 to [`crate::MAX_CHUNK`].
    pub(crate) length: usize,
    /// Number of repetitions, from 1 to [`MAX_REPEATS`].
    pub(crate) repeats: u32,
}

/// A handle in the making.
#[derive(Debug)]
pub(super) struct HandleBuilder {
    /// Room for the head, and references.
    serialised: BytesMut,
    length: u64,
    /// The last reference, which the next chunk may repeat.
    last: Option<BodyReference>,
}

impl ContentHandle {
    /// The body's length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A hash of the whole body: two handles have the same check exactly if their bodies are equal.
    #[must_use]
    pub fn check(&self) -> [u8; 32] {
        self.check
    }

    /// The serialised form, which [`Self::parse`] reads; no bytes are copied.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.serialised.clone()
    }

    /// Bytes of memory that the handle takes, those included that its clones share.
    #[must_use]
    pub fn held(&self) -> usize {
        size_of::<Self>() + self.serialised.len()
    }

    /// Reads a serialised handle. The bytes are kept and not copied.
    ///
    /// # Errors
    /// When they are malformed, of another version, or damaged. Then the body is to be taken for one that
    /// is no longer there.
    pub fn parse(serialised: Bytes) -> Result<Self, HandleError> {
        let cut = |_| HandleError::Invalid("it is cut short");
        let mut reader = ByteReader::new(&serialised);
        let magic: [u8; 3] = reader.array().map_err(cut)?;
        if magic != MAGIC {
            return Err(HandleError::Invalid("it begins with other bytes"));
        }
        let version = reader.u8().map_err(cut)?;
        if version != VERSION {
            return Err(HandleError::Version(version));
        }
        let count = reader.u32().map_err(cut)? as usize;
        let length = reader.u64().map_err(cut)?;
        let check: [u8; CHECK] = reader.array().map_err(cut)?;
        if count > MAX_CONTENT_REFERENCES {
            return Err(HandleError::Invalid("it has too many references"));
        }
        if reader.remaining() != count * REFERENCE {
            return Err(HandleError::Invalid(
                "its length is not that of its references",
            ));
        }
        let handle = Self {
            length,
            check,
            serialised,
        };
        handle.examine()?;
        match check_of(length, &handle.serialised[HEAD..]) == check {
            true => Ok(handle),
            false => Err(HandleError::Damaged),
        }
    }

    /// Checks that the references make a body of this length and are written as this release writes
    /// them.
    fn examine(&self) -> Result<(), HandleError> {
        let mut length: u64 = 0;
        let mut before: Option<BodyReference> = None;
        for reference in self.references(0) {
            length += reference.bytes();
            let joins = before.is_some_and(|before| {
                before.repeats < MAX_REPEATS && before.is_same_chunk(&reference)
            });
            if joins {
                return Err(HandleError::Invalid("a repetition is not written as one"));
            }
            before = Some(reference);
        }
        match length == self.length {
            true => Ok(()),
            false => Err(HandleError::Invalid("its references are of another length")),
        }
    }

    /// References in all.
    pub(crate) fn count(&self) -> usize {
        (self.serialised.len() - HEAD) / REFERENCE
    }

    /// The references from this number on.
    pub(crate) fn references(&self, from: usize) -> impl Iterator<Item = BodyReference> + '_ {
        let start = HEAD + from.min(self.count()) * REFERENCE;
        self.serialised[start..].chunks_exact(REFERENCE).map(parse)
    }

    /// One reference.
    pub(crate) fn reference(&self, number: usize) -> Option<BodyReference> {
        self.references(number).next()
    }
}

impl std::fmt::Debug for ContentHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "ContentHandle({} bytes, {} references)",
            self.length,
            self.count()
        )
    }
}

impl BodyReference {
    /// Bytes of the body that it stands for.
    pub(crate) fn bytes(&self) -> u64 {
        self.length as u64 * u64::from(self.repeats)
    }

    fn is_same_chunk(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.length == other.length
    }
}

impl HandleBuilder {
    pub(super) fn new() -> Self {
        let mut serialised = BytesMut::new();
        serialised.put_bytes(0, HEAD);
        Self {
            serialised,
            length: 0,
            last: None,
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn held(&self) -> usize {
        self.serialised.capacity()
    }

    /// Adds the body's next chunk; says whether there was room for it.
    pub(super) fn push(&mut self, fingerprint: Fingerprint, length: usize) -> bool {
        let next = BodyReference {
            fingerprint,
            length,
            repeats: 1,
        };
        match &mut self.last {
            Some(last) if last.repeats < MAX_REPEATS && last.is_same_chunk(&next) => {
                last.repeats += 1;
            }
            _ => {
                let finished = (self.serialised.len() - HEAD) / REFERENCE;
                if finished + usize::from(self.last.is_some()) >= MAX_CONTENT_REFERENCES {
                    return false;
                }
                self.write_last();
                self.last = Some(next);
            }
        }
        self.length += length as u64;
        true
    }

    pub(super) fn finish(mut self) -> ContentHandle {
        self.write_last();
        let references = &self.serialised[HEAD..];
        let count = (references.len() / REFERENCE) as u32;
        let check = check_of(self.length, references);
        let mut head = &mut self.serialised[..HEAD];
        head.put_slice(&MAGIC);
        head.put_u8(VERSION);
        head.put_u32(count);
        head.put_u64(self.length);
        head.put_slice(&check);
        ContentHandle {
            length: self.length,
            check,
            // A copy of the right length: what is kept for long has no room to spare.
            serialised: Bytes::copy_from_slice(&self.serialised),
        }
    }

    fn write_last(&mut self) {
        if let Some(last) = self.last.take() {
            self.serialised.put_u16((last.length - 1) as u16);
            self.serialised.put_u16((last.repeats - 1) as u16);
            self.serialised.put_slice(&last.fingerprint.0);
        }
    }
}

fn parse(bytes: &[u8]) -> BodyReference {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(&bytes[4..REFERENCE]);
    BodyReference {
        fingerprint: Fingerprint(fingerprint),
        length: usize::from(word(0)) + 1,
        repeats: u32::from(word(2)) + 1,
    }
}

/// The check of a body of this length and these references. The references hold a strong hash of each
/// chunk, and where a body is cut follows from its bytes alone, so this is a strong hash of the body.
fn check_of(length: u64, references: &[u8]) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new_derive_key(CHECK_CONTEXT);
    hasher.update(&length.to_be_bytes()).update(references);
    *hasher.finalize().as_bytes()
}

/// Writes into a serialised handle the check that its length and references have. For tests: no other
/// change of a handle can be seen behind a check that does not match.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn write_check(serialised: &mut [u8]) {
    if serialised.len() >= HEAD {
        let (head, references) = serialised.split_at_mut(HEAD);
        let length = (&head[8..16]).get_u64();
        head[16..].copy_from_slice(&check_of(length, references));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(chunks: &[(u8, usize)]) -> ContentHandle {
        let mut builder = HandleBuilder::new();
        for (fill, length) in chunks {
            assert!(builder.push(Fingerprint::of(&vec![*fill; *length]), *length));
        }
        builder.finish()
    }

    #[test]
    fn a_handle_reads_back_and_no_damage_passes() {
        let written = handle(&[(1, 65_536), (2, 1), (2, 1), (2, 1), (1, 65_536), (3, 9_000)]);
        assert_eq!(written.length(), 2 * 65_536 + 3 + 9_000);
        assert_eq!(written.count(), 4);
        let bytes = written.to_bytes();
        assert_eq!(ContentHandle::parse(bytes.clone()).unwrap(), written);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(ContentHandle::parse(damaged.into()).is_err(), "byte {at}");
            assert!(
                ContentHandle::parse(bytes.slice(..at)).is_err(),
                "cut at {at}"
            );
        }
        let mut split = bytes.to_vec();
        // The three chunks that repeat as two and one.
        let repeated = HEAD + REFERENCE;
        split.splice(repeated..repeated, bytes[repeated..][..REFERENCE].to_vec());
        split[repeated + 3] = 1;
        split[repeated + REFERENCE + 3] = 0;
        split[7] += 1;
        write_check(&mut split);
        assert_eq!(
            ContentHandle::parse(split.into()),
            Err(HandleError::Invalid("a repetition is not written as one"))
        );
        let mut longer = bytes.to_vec();
        longer[15] += 1;
        write_check(&mut longer);
        assert_eq!(
            ContentHandle::parse(longer.into()),
            Err(HandleError::Invalid("its references are of another length"))
        );
        let mut newer = bytes.to_vec();
        newer[3] = 2;
        assert_eq!(
            ContentHandle::parse(newer.into()),
            Err(HandleError::Version(2))
        );
    }

    #[test]
    fn an_empty_body_has_a_handle_without_references() {
        let empty = handle(&[]);
        assert_eq!((empty.length(), empty.count()), (0, 0));
        assert_eq!(empty.to_bytes().len(), HEAD);
        assert_eq!(ContentHandle::parse(empty.to_bytes()).unwrap(), empty);
    }

    #[test]
    fn long_repetition_uses_few_references() {
        let fingerprint = Fingerprint::of(&[0; 65_536]);
        let mut builder = HandleBuilder::new();
        for _ in 0..MAX_REPEATS + 1 {
            assert!(builder.push(fingerprint, 65_536));
        }
        let handle = builder.finish();
        let repeats: Vec<u32> = handle.references(0).map(|at| at.repeats).collect();
        assert_eq!(repeats, [MAX_REPEATS, 1]);
        assert_eq!(ContentHandle::parse(handle.to_bytes()).unwrap(), handle);
    }

    #[test]
    fn a_body_of_too_many_chunks_is_refused() {
        let mut builder = HandleBuilder::new();
        for number in 0..MAX_CONTENT_REFERENCES {
            let fingerprint = Fingerprint::of(&number.to_be_bytes());
            assert!(builder.push(fingerprint, 8));
        }
        assert!(!builder.push(Fingerprint::of(&[1]), 1));
        assert_eq!(builder.finish().count(), MAX_CONTENT_REFERENCES);
    }
}
