//! Local chunks of this node: those of bodies stored under content handles.
//!
//! They are in the same index, memory and segments as all others and obey the same limits. But no
//! peer has sent or received them this way, so no peer becomes a reader; and they get no link,
//! because links belong to peers' flows. To a peer such a chunk does not exist (`view.rs`).

use super::{Dictionary, FetchResult};
use crate::fingerprint::Fingerprint;

/// Result of storing a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// The chunk was already stored.
    Here,
    /// The chunk was added.
    Added,
    /// Another chunk has its key.
    Refused,
}

impl Dictionary {
    /// Sees to it that a chunk is there. It counts as used.
    pub(crate) fn keep(&mut self, fingerprint: &Fingerprint, bytes: &[u8]) -> InsertOutcome {
        let key = fingerprint.key();
        match self.index.get(key) {
            Some(known) if known.check != fingerprint.check() || known.length != bytes.len() => {
                InsertOutcome::Refused
            }
            Some(known) => {
                self.index.touch(known.slot);
                self.memory.touch(key);
                InsertOutcome::Here
            }
            None => {
                self.index.insert(key, fingerprint.check(), bytes.len());
                self.memory.insert(key, bytes);
                self.enqueue(*fingerprint);
                self.keep_within_memory();
                InsertOutcome::Added
            }
        }
    }

    /// The bytes of the chunk with this fingerprint and length, from wherever they are; they still have
    /// to be compared with the whole of it.
    pub(crate) fn fetch_exact(&mut self, fingerprint: &Fingerprint, length: usize) -> FetchResult {
        let known = self.index.get(fingerprint.key());
        let known =
            known.filter(|known| known.check == fingerprint.check() && known.length == length);
        match known {
            Some(known) => {
                self.index.touch(known.slot);
                self.fetch_known(&known)
            }
            None => FetchResult::Missing,
        }
    }
}
