//! Reader of a stored body, or a range of it.
//!
//! ```text
//! handle, range ─► pin what is here ─► fetch ahead, memory or disk ─► hash, compare ─► pieces
//!                      │ not here           │ under way: WaitForDisk      │ differs
//!                      └────────────────────┴─ not here: Gone ◄───────────┘
//! ```
//! The pieces are the dictionary's own copies of the chunks, or parts of them. Up to
//! [`CONTENT_READ_AHEAD`] bytes are fetched ahead, so that the disk's delays overlap. The read ends
//! at the first missing chunk; the bytes delivered before are right.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use super::handle::{BodyReference, ContentHandle};
use crate::config::CONTENT_READ_AHEAD;
use crate::dictionary::{ContentPin, Dictionary, FetchResult, FetchTicket, PinPurpose, PinState};
use crate::fingerprint::Fingerprint;

/// Result of [`ContentReader::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentRead {
    /// The next bytes of the range, verified.
    Piece(Bytes),
    /// Waits for a disk completion of the dictionary: poll again after each.
    WaitForDisk,
    /// The whole range was delivered.
    Done,
    /// The rest cannot be had.
    Gone(ContentUnavailable),
}

/// Reason why a body, or the rest of it, is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentUnavailable {
    /// The body was evicted, cleared or damaged. The handle is no longer usable.
    Gone,
    /// The dictionary is still reading its disk, and may find it.
    NotYet,
}

/// Reader of a range of a body.
///
/// While it exists, the rest of the range is pinned as far as there is room ([`PinState`]).
#[derive(Debug)]
pub struct ContentReader {
    handle: ContentHandle,
    pin: Option<ContentPin>,
    pinned: PinState,
    /// The number of the reference that is fetched next, and how often its chunk was fetched.
    next: usize,
    repeated: u32,
    /// The number behind the last reference of the range.
    end: usize,
    /// Bytes of the front chunk that are before the range.
    skip: usize,
    /// Bytes that are still to be delivered.
    left: u64,
    /// Chunks that were fetched, or are being fetched.
    ahead: VecDeque<PendingChunk>,
    ahead_bytes: usize,
    ahead_limit: usize,
    absence: Option<ContentUnavailable>,
}

/// A chunk that is to be delivered.
#[derive(Debug)]
struct PendingChunk {
    fingerprint: Fingerprint,
    length: usize,
    state: PendingChunkState,
}

#[derive(Debug)]
enum PendingChunkState {
    Reading(FetchTicket),
    /// As the dictionary gave it.
    Fetched(Bytes),
    Verified(Bytes),
    Missing,
}

impl ContentReader {
    /// Reads this range of a body. The part beyond the body's end is ignored.
    #[must_use]
    pub fn new(handle: ContentHandle, range: Range<u64>) -> Self {
        let end = range.end.min(handle.length());
        let start = range.start.min(end);
        let mut reader = Self {
            pin: None,
            pinned: PinState::Unfinished,
            next: 0,
            repeated: 0,
            end: 0,
            skip: 0,
            left: end - start,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            ahead_limit: usize::MAX,
            absence: None,
            handle,
        };
        reader.seek(start, end);
        reader
    }

    /// Sets how many bytes may be fetched ahead, beside the limit that always holds; one chunk at least is.
    pub fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_limit = bytes;
    }

    /// Bytes of memory that it holds: the handle, and chunks that were fetched or are to be.
    #[must_use]
    pub fn held(&self) -> usize {
        self.handle.held() + self.ahead_bytes + self.ahead.capacity() * size_of::<PendingChunk>()
    }

    /// Bytes of the range that were not delivered yet.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next thing. After [`ContentRead::Piece`] call again.
    pub fn poll(&mut self, dictionary: &mut Dictionary) -> ContentRead {
        if self.left == 0 {
            self.pin = None;
            return ContentRead::Done;
        }
        if self.absence.is_none() {
            self.pin_on(dictionary);
        }
        if let Some(absence) = self.absence {
            return ContentRead::Gone(absence);
        }
        self.fetch_ahead(dictionary);
        self.take_in();
        let bytes = match self.ahead.front().map(|chunk| &chunk.state) {
            Some(PendingChunkState::Verified(bytes)) => bytes.clone(),
            Some(PendingChunkState::Reading(_)) => return ContentRead::WaitForDisk,
            Some(PendingChunkState::Fetched(_) | PendingChunkState::Missing) | None => {
                return self.give_up(dictionary);
            }
        };
        self.ahead.pop_front();
        self.ahead_bytes -= bytes.len();
        let start = std::mem::take(&mut self.skip);
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let piece = bytes.slice(start..bytes.len().min(start.saturating_add(most)));
        self.left -= piece.len() as u64;
        ContentRead::Piece(piece)
    }

    /// Finds the references of the range.
    fn seek(&mut self, start: u64, end: u64) {
        let mut at: u64 = 0;
        let mut found = false;
        for (number, reference) in self.handle.references(0).enumerate() {
            if at >= end {
                break;
            }
            let behind = at + reference.bytes();
            if !found && start < behind {
                found = true;
                let within = start - at;
                self.next = number;
                self.repeated = (within / reference.length as u64) as u32;
                self.skip = (within % reference.length as u64) as usize;
            }
            at = behind;
            self.end = number + 1;
        }
    }

    /// Pins a step further. A chunk that is not here ends the read before it has begun.
    fn pin_on(&mut self, dictionary: &mut Dictionary) {
        if self.pinned != PinState::Unfinished {
            return;
        }
        let references = self.next..self.end;
        let pin = self.pin.get_or_insert_with(|| {
            dictionary.pin_references(&self.handle, references, PinPurpose::Reading)
        });
        self.pinned = dictionary.pin_more(pin);
        if self.pinned == PinState::Missing {
            self.give_up(dictionary);
        }
    }

    fn fetch_ahead(&mut self, dictionary: &mut Dictionary) {
        let limit = CONTENT_READ_AHEAD.min(self.ahead_limit);
        while self.next < self.end && (self.ahead.is_empty() || self.ahead_bytes < limit) {
            let Some(reference) = self.handle.reference(self.next) else {
                return;
            };
            let BodyReference {
                fingerprint,
                length,
                repeats,
            } = reference;
            let state = match dictionary.fetch_exact(&fingerprint, length) {
                FetchResult::Ready(bytes) => PendingChunkState::Fetched(bytes),
                FetchResult::Reading(ticket) => PendingChunkState::Reading(ticket),
                FetchResult::Missing => PendingChunkState::Missing,
            };
            self.ahead.push_back(PendingChunk {
                fingerprint,
                length,
                state,
            });
            self.ahead_bytes += length;
            self.repeated += 1;
            if self.repeated == repeats {
                self.next += 1;
                self.repeated = 0;
            }
        }
    }

    /// Collects chunks read from disk, and compares new ones with their fingerprints.
    fn take_in(&mut self) {
        if let Some(PendingChunk {
            state: PendingChunkState::Verified(_),
            ..
        }) = self.ahead.front()
        {
            return;
        }
        for chunk in &mut self.ahead {
            if let PendingChunkState::Reading(ticket) = &chunk.state
                && let Some(outcome) = ticket.outcome()
            {
                chunk.state =
                    outcome.map_or(PendingChunkState::Missing, PendingChunkState::Fetched);
            }
        }
        let fetched = self.ahead.iter().filter_map(|chunk| match &chunk.state {
            PendingChunkState::Fetched(bytes) => Some(&bytes[..]),
            PendingChunkState::Reading(_)
            | PendingChunkState::Verified(_)
            | PendingChunkState::Missing => None,
        });
        let fetched: Vec<&[u8]> = fetched.collect();
        let mut hashes = Fingerprint::of_each(&fetched).into_iter();
        for chunk in &mut self.ahead {
            let PendingChunkState::Fetched(bytes) = &mut chunk.state else {
                continue;
            };
            let bytes = std::mem::take(bytes);
            let is_same = hashes.next() == Some(chunk.fingerprint) && bytes.len() == chunk.length;
            chunk.state = match is_same {
                true => PendingChunkState::Verified(bytes),
                false => PendingChunkState::Missing,
            };
        }
    }

    fn give_up(&mut self, dictionary: &Dictionary) -> ContentRead {
        let absence = match dictionary.is_ready() {
            true => ContentUnavailable::Gone,
            false => ContentUnavailable::NotYet,
        };
        self.absence = Some(absence);
        self.pin = None;
        self.ahead = VecDeque::new();
        self.ahead_bytes = 0;
        ContentRead::Gone(absence)
    }
}
