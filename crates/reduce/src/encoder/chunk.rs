//! A whole chunk on its way into records.

use std::collections::VecDeque;

use bytes::Bytes;

use super::draft::RecordDraft;
use super::matching::ChunkPiece;
use crate::anchor::ChunkAnchor;
use crate::dictionary::Dictionary;
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::record::{CopyExtent, OperationEnd};

/// A whole chunk, not yet all sent.
pub(super) struct OutgoingChunk {
    pub(super) bytes: Bytes,
    pub(super) fingerprint: Fingerprint,
    pub(super) sent: usize,
    pub(super) plan: Option<ChunkPlan>,
}

/// Plan for sending a chunk.
pub(super) enum ChunkPlan {
    /// As one reference, or copies of the same chunk.
    Refer,
    /// The pieces that are left, from the front on.
    Pieces(EditedChunk),
}

/// A chunk that the peer does not hold as a whole.
pub(super) struct EditedChunk {
    pub(super) pieces: VecDeque<ChunkPiece>,
    pub(super) bases: Vec<ChunkKey>,
    pub(super) anchors: Vec<ChunkAnchor>,
}

impl OutgoingChunk {
    pub(super) fn new(bytes: Bytes, fingerprint: Fingerprint, sent: usize) -> Self {
        Self {
            bytes,
            fingerprint,
            sent,
            plan: None,
        }
    }

    /// Emits the chunk, or the rest of it, as a reference of at most `most` bytes; nothing when
    /// there is no room.
    pub(super) fn take_reference(
        &self,
        dictionary: &Dictionary,
        draft: &mut RecordDraft,
        most: usize,
    ) -> Option<usize> {
        let available = most.min(self.bytes.len() - self.sent);
        let whole = available == self.bytes.len();
        if whole && available > draft.raw_room() {
            return None;
        }
        let source = draft.source(dictionary, self.fingerprint.key())?;
        let length = available.min(draft.raw_room());
        let piece = self.bytes.slice(self.sent..self.sent + length);
        if whole {
            draft.chunk(source, piece);
        } else {
            let (extent, end) = match self.end_after(length) {
                OperationEnd::Ends => (CopyExtent::Rest, OperationEnd::Ends),
                OperationEnd::Continues => (CopyExtent::Bytes(length), OperationEnd::Continues),
            };
            draft.copy(source, self.sent, extent, piece, end);
        }
        Some(length)
    }

    /// Emits the next of its pieces, or part of it: `most` bytes at most, or none when there is
    /// no room for them.
    pub(super) fn take_piece(
        &self,
        dictionary: &mut Dictionary,
        draft: &mut RecordDraft,
        edited: &mut EditedChunk,
        most: usize,
    ) -> Option<usize> {
        let Some(next) = edited.pieces.front_mut() else {
            // All of it was sent before it was known to end.
            draft.literal(Bytes::new(), OperationEnd::Ends);
            return Some(0);
        };
        let available = most.min(next.length());
        let length = match next {
            // A chunk in two records is hashed twice at either side.
            ChunkPiece::Literal(left)
                if *left == self.bytes.len()
                    && available > draft.literal_room()
                    && draft.is_half_full() =>
            {
                return None;
            }
            ChunkPiece::Literal(left) => {
                add_bases(dictionary, draft, &edited.bases);
                let length = available.min(draft.literal_room());
                let piece = self.bytes.slice(self.sent..self.sent + length);
                draft.literal(piece, self.end_after(length));
                *left -= length;
                length
            }
            ChunkPiece::Copy {
                from,
                length: left,
                to_end,
            } => {
                let source = draft.source(dictionary, from.key)?;
                let length = available.min(draft.raw_room());
                let extent = if *to_end && length == *left {
                    CopyExtent::Rest
                } else {
                    CopyExtent::Bytes(length)
                };
                let piece = self.bytes.slice(self.sent..self.sent + length);
                draft.copy(source, from.offset, extent, piece, self.end_after(length));
                from.offset += length;
                *left -= length;
                length
            }
        };
        if next.length() == 0 {
            edited.pieces.pop_front();
        }
        Some(length)
    }

    fn end_after(&self, length: usize) -> OperationEnd {
        if self.sent + length == self.bytes.len() {
            OperationEnd::Ends
        } else {
            OperationEnd::Continues
        }
    }
}

/// Offers chunks for the draft's literals to be compressed against.
pub(super) fn add_bases(dictionary: &mut Dictionary, draft: &mut RecordDraft, bases: &[ChunkKey]) {
    for key in bases {
        let Some(bytes) = dictionary.resident(*key) else {
            return;
        };
        if !draft.base(dictionary, *key, bytes) {
            return;
        }
    }
}
