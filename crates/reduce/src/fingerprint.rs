//! Fingerprint of a chunk: the BLAKE3 hash of its bytes.
//!
//! The full hash is on disk and is compared whenever bytes are read from there. The index keeps
//! half of it, and references name a quarter ([`ChunkKey`]). Two chunks have the same key with
//! probability 2^-64 for each pair; the record's own check turns that into a repair.

use std::fmt;

/// The first eight bytes of a fingerprint: what references and the index are keyed by.
pub(crate) type ChunkKey = u64;

/// Number of chunks from which hashing together is faster than one by one.
const TOGETHER: usize = 3;

/// The BLAKE3 hash of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    /// The fingerprint of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The fingerprint of each of these, in order: together they fill the processor's vectors,
    /// which one chunk does not.
    pub(crate) fn of_each(chunks: &[&[u8]]) -> Vec<Self> {
        match simd::blake3::Blake3Kernel::detect() {
            Some(kernel) if chunks.len() >= TOGETHER => {
                kernel.hash_each(chunks).into_iter().map(Self).collect()
            }
            Some(_) | None => chunks.iter().map(|chunk| Self::of(chunk)).collect(),
        }
    }

    /// The fingerprint of the bytes that these pieces make together.
    pub(crate) fn of_pieces<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let Some(first) = pieces.next() else {
            return Self::of(&[]);
        };
        let Some(second) = pieces.next() else {
            return Self::of(first);
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(first).update(second);
        for piece in pieces {
            hasher.update(piece);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The part that references name. Zero, which stands for "none" in links, is avoided.
    pub(crate) fn key(&self) -> ChunkKey {
        self.word(0).max(1)
    }

    /// The part that the index compares besides the key.
    pub(crate) fn check(&self) -> u64 {
        self.word(1)
    }

    fn word(&self, index: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[8 * index..8 * index + 8]);
        u64::from_be_bytes(word)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Fingerprint({:016x})", self.key())
    }
}
