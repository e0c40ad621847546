//! Matching of an edited chunk with chunks that the peer holds, byte for byte.
//!
//! ```text
//! old stream  …│ A │  B        │  C        │ D │…          copies and literals
//! new stream  …│ A │  B' ▒▒            C'  │ D │…     ─►  B to ▒ │ ▒▒ │ rest of B, C
//!                   ▲ cursor: where the old stream goes on
//! ```
//! Three things are tried at each place, the cheap and likely one first: that the old stream
//! continues where the last match ended; that a few bytes were inserted, deleted or replaced there;
//! and that an anchor in the next bytes is known. A match is extended in both directions as far as
//! the bytes agree, across the old stream's chunks by their links.
//!
//! Only chunks in memory are compared. Chunks that are only on disk are read when the cursor
//! approaches them, as after a restart; the encoder decides whether to wait for them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::anchor::{ChunkAnchor, WINDOW, anchors};
use crate::config::{MAX_CHUNK, MIN_CHUNK};
use crate::dictionary::{Dictionary, FetchResult, FetchTicket, NO_KEY, PeerSlot};
use crate::fingerprint::ChunkKey;

/// Bytes that may have been inserted, deleted or replaced where the old stream stops to agree,
/// for it to be found again without an anchor.
const NEAR: usize = 256;
/// Bytes that have to agree after such an edit.
const AGREEING: usize = 16;
/// The shortest copy from where the cursor stands: two tags and a length have to be saved.
const LEAST_CONTINUED: usize = 12;
/// The shortest copy from somewhere else, in bytes as they would be coded: a source may have to
/// be named for it.
const LEAST_ELSEWHERE: usize = 32;
/// A literal of this size is worth being compressed against what the old stream has there.
const LEAST_BASED: usize = 64;
/// Number of consecutive equal bytes that identify an old stream rather than a common phrase. Only
/// then is it searched, and remembered, beyond them.
const LEAST_TRUSTED: usize = 512;
/// Bytes without a match after which the old stream is taken to have ended.
const LOST: usize = 64 * 1024;
/// Number of consecutive bytes without a match after which data counts as new ...
const FRESH: usize = 256 * 1024;
/// ... and only one of this many anchors is looked up, until one is found: about each kibibyte.
/// Each lookup costs a cache miss.
const FRESH_STEP: usize = 16;
/// Chunks of the old stream that are read from disk together, when the first of them has to be
/// waited for: a quarter of a mebibyte.
const READ_AHEAD: usize = 32;
/// Bytes at the start of an old chunk whose anchors tell whether all of them are known.
const SAMPLED: usize = 8 * 1024;
/// Chunks that one match may span: more than the longest chunk has shortest ones.
const MAX_SPAN: usize = 64;

/// A place in an old chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPosition {
    pub(super) key: ChunkKey,
    pub(super) offset: usize,
}

/// Position in the old stream that corresponds to the new one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamCursor {
    place: Option<ChunkPosition>,
    /// Bytes that agreed up to there.
    matched: usize,
    /// Bytes since then that did not.
    unmatched: usize,
    /// Bytes since anything was found.
    fresh: usize,
    /// The chunk around which the old stream was searched for anchors last.
    searched: ChunkKey,
}

/// Piece of a chunk: a literal or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkPiece {
    Literal(usize),
    Copy {
        from: ChunkPosition,
        length: usize,
        /// True if it reaches the old chunk's end.
        to_end: bool,
    },
}

impl ChunkPiece {
    /// Bytes that it stands for.
    pub(super) fn length(&self) -> usize {
        match self {
            ChunkPiece::Literal(length) | ChunkPiece::Copy { length, .. } => *length,
        }
    }
}

/// The pieces of a chunk, and the old chunks against which its literals may compress well.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkMatches {
    pub(super) pieces: Vec<ChunkPiece>,
    pub(super) bases: Vec<ChunkKey>,
}

/// Chunks that the peer holds.
pub(super) struct PeerHoldings<'a> {
    pub(super) dictionary: &'a mut Dictionary,
    pub(super) in_flight: &'a BTreeMap<ChunkKey, u64>,
    pub(super) peer: PeerSlot,
}

/// The anchors of the new bytes that may still be looked for.
struct AnchorSearch<'a> {
    anchors: &'a [ChunkAnchor],
    next: usize,
    step: usize,
    /// The shortest match that is worth its bytes.
    least: usize,
}

/// A stretch of the new bytes that is somewhere in the old ones.
struct FoundMatch {
    start: usize,
    end: usize,
    copies: Vec<ChunkPiece>,
    /// Continuation of the old stream.
    after: Option<ChunkPosition>,
}

impl StreamCursor {
    /// Moves the cursor behind a whole chunk that was found, to the one that followed it.
    pub(super) fn follow(&mut self, next: ChunkKey, matched: usize) {
        self.place = Some(next)
            .filter(|key| *key != NO_KEY)
            .map(|key| ChunkPosition { key, offset: 0 });
        self.matched += matched;
        self.unmatched = 0;
    }

    /// Part of a chunk was found.
    pub(super) fn move_to(&mut self, key: ChunkKey, offset: usize) {
        self.place = Some(ChunkPosition { key, offset });
        self.matched = self.matched.max(LEAST_TRUSTED);
        self.unmatched = 0;
    }

    /// Returns `true` if the cursor has a position.
    pub(super) fn is_placed(&self) -> bool {
        self.place.is_some()
    }

    /// Reads chunks that are only on disk into memory, from here on in the old stream. Returns the
    /// reads to wait for before `length` bytes are searched.
    pub(super) fn read_ahead(
        &self,
        held: &mut PeerHoldings<'_>,
        length: usize,
    ) -> Vec<FetchTicket> {
        let mut waits = Vec::new();
        let Some(place) = self.place else {
            return waits;
        };
        let needed = place.offset + length + MIN_CHUNK;
        let (mut key, mut covered) = (place.key, 0);
        for _ in 0..READ_AHEAD {
            if !held.holds(key) || (covered >= needed && waits.is_empty()) {
                break;
            }
            if let FetchResult::Reading(ticket) = held.dictionary.fetch(key)
                && covered < needed
            {
                waits.push(ticket);
            }
            covered += held.dictionary.length(key);
            key = held.next(key);
        }
        waits
    }

    /// Finds matches for `new` from `at` on, and moves behind it. The anchors are those of `new`.
    /// The more compression alone shrinks the flow's literals, `expansion` times, the longer a copy
    /// from elsewhere must be: it costs more than the compressed bytes it replaces, which are then
    /// also missing from the flow's window.
    pub(super) fn search(
        &mut self,
        held: &mut PeerHoldings<'_>,
        new: &[u8],
        mut at: usize,
        anchors: &[ChunkAnchor],
        expansion: usize,
    ) -> ChunkMatches {
        let mut matching = ChunkMatches::default();
        let mut sought = AnchorSearch {
            anchors,
            next: 0,
            step: if self.fresh < FRESH { 1 } else { FRESH_STEP },
            least: LEAST_ELSEWHERE * expansion.pow(3),
        };
        while at < new.len() {
            let found = self
                .goes_on(held, new, at)
                .or_else(|| self.search_near(held, new, at))
                .or_else(|| search_anchors(held, new, at, &mut sought))
                .or_else(|| self.search_around(held, new, at, anchors, expansion));
            let Some(found) = found else {
                break;
            };
            if found.start > at {
                self.literal(held, found.start - at, &mut matching);
            }
            matching.pieces.extend(found.copies);
            if found.start > at {
                self.matched = 0;
            }
            self.matched += found.end - found.start;
            self.unmatched = 0;
            self.fresh = 0;
            self.place = found.after;
            at = found.end;
        }
        if at < new.len() {
            self.literal(held, new.len() - at, &mut matching);
            self.skip(held, new.len() - at);
        }
        matching
    }

    fn goes_on(&self, held: &mut PeerHoldings<'_>, new: &[u8], at: usize) -> Option<FoundMatch> {
        let found = forward(held, new, at, self.place?);
        let worth_it = found.end - at >= LEAST_CONTINUED.min(new.len() - at);
        (worth_it && found.end > at).then_some(found)
    }

    /// Looks for the end of a small edit.
    fn search_near(
        &self,
        held: &mut PeerHoldings<'_>,
        new: &[u8],
        at: usize,
    ) -> Option<FoundMatch> {
        let place = self.place?;
        let old = window(held, place, NEAR + AGREEING);
        let new_there = &new[at..new.len().min(at + NEAR + AGREEING)];
        let agree = |new_skip: usize, old_skip: usize| {
            let one = new_there.get(new_skip..new_skip + AGREEING);
            one.is_some() && one == old.get(old_skip..old_skip + AGREEING)
        };
        let skips = (1..=NEAR).flat_map(|skip| [(skip, 0), (skip, skip), (0, skip)]);
        let (new_skip, old_skip) = skips
            .into_iter()
            .find(|(new_skip, old_skip)| agree(*new_skip, *old_skip))?;
        let place = advance(held, place, old_skip)?;
        let found = forward(held, new, at + new_skip, place);
        (found.end > found.start).then_some(found)
    }

    /// Once for each place in the old stream: takes in the anchors of the chunks there, which
    /// may never have been, and looks again.
    fn search_around(
        &mut self,
        held: &mut PeerHoldings<'_>,
        new: &[u8],
        at: usize,
        known: &[ChunkAnchor],
        expansion: usize,
    ) -> Option<FoundMatch> {
        let mut key = self.place?.key;
        if self.searched == key || self.matched < LEAST_TRUSTED {
            return None;
        }
        self.searched = key;
        for _ in 0..3 {
            let Some(old) = held.bytes(key) else {
                break;
            };
            let start = anchors(&old[..old.len().min(SAMPLED)], expansion);
            let known = |anchor: &ChunkAnchor| {
                held.dictionary.find_anchor(anchor.hash, held.peer) == Some((key, anchor.at))
            };
            if !start.iter().any(known) {
                let whole = anchors(&old, expansion);
                held.dictionary.add_anchors(key, &whole, held.peer);
            }
            key = held.next(key);
        }
        let mut sought = AnchorSearch {
            anchors: known,
            next: 0,
            step: 1,
            least: LEAST_ELSEWHERE * expansion.pow(3),
        };
        search_anchors(held, new, at, &mut sought)
    }

    /// Adds a literal, and chunks that it may be similar to.
    fn literal(&self, held: &mut PeerHoldings<'_>, length: usize, matching: &mut ChunkMatches) {
        matching.pieces.push(ChunkPiece::Literal(length));
        let Some(place) = self.place else {
            return;
        };
        if length < LEAST_BASED || self.matched < LEAST_TRUSTED {
            return;
        }
        let (mut key, mut covered) = (place.key, 0);
        while covered < place.offset + length + MIN_CHUNK && held.holds(key) {
            covered += held.dictionary.length(key).max(1);
            if matching.bases.last() != Some(&key) {
                matching.bases.push(key);
            }
            key = held.next(key);
        }
    }

    /// Bytes were replaced by others, as far as can be known.
    fn skip(&mut self, held: &mut PeerHoldings<'_>, length: usize) {
        self.unmatched += length;
        self.fresh += length;
        self.place = self
            .place
            .filter(|_| self.matched >= LEAST_TRUSTED && self.unmatched < LOST)
            .and_then(|place| advance(held, place, length));
        if self.place.is_none() {
            self.matched = 0;
        }
    }
}

impl PeerHoldings<'_> {
    fn holds(&self, key: ChunkKey) -> bool {
        key != NO_KEY
            && (self.in_flight.contains_key(&key) || self.dictionary.is_held_by(key, self.peer))
    }

    /// The chunk that came after this one in the peer's flows, or else in others.
    fn next(&self, key: ChunkKey) -> ChunkKey {
        self.dictionary.next(key, self.peer)
    }

    /// The bytes of a chunk that the peer holds, if they are in memory here.
    fn bytes(&mut self, key: ChunkKey) -> Option<Bytes> {
        match self.holds(key) {
            true => self.dictionary.resident(key),
            false => None,
        }
    }
}

/// Returns the number of equal bytes of `new` from `at` on and of the old stream from `place` on.
fn forward(held: &mut PeerHoldings<'_>, new: &[u8], at: usize, place: ChunkPosition) -> FoundMatch {
    let mut found = FoundMatch {
        start: at,
        end: at,
        copies: Vec::new(),
        after: Some(place),
    };
    let mut place = place;
    for _ in 0..MAX_SPAN {
        let Some(old) = held.bytes(place.key) else {
            break;
        };
        let old_there = old.get(place.offset..).unwrap_or_default();
        let length = common_prefix(&new[found.end..], old_there);
        let to_end = length == old_there.len();
        if length > 0 {
            found.copies.push(ChunkPiece::Copy {
                from: place,
                length,
                to_end,
            });
            found.end += length;
        }
        if !to_end {
            place.offset += length;
            found.after = Some(place);
            break;
        }
        place = ChunkPosition {
            key: held.next(place.key),
            offset: 0,
        };
        found.after = Some(place).filter(|place| place.key != NO_KEY);
        if found.end == new.len() {
            break;
        }
    }
    found
}

/// Looks for the first match of the anchors behind `at`, and extends it backwards up to there.
fn search_anchors(
    held: &mut PeerHoldings<'_>,
    new: &[u8],
    at: usize,
    sought: &mut AnchorSearch<'_>,
) -> Option<FoundMatch> {
    while let Some(anchor) = sought.anchors.get(sought.next) {
        sought.next += sought.step;
        if anchor.at < at {
            continue;
        }
        let Some((key, offset)) = held.dictionary.find_anchor(anchor.hash, held.peer) else {
            continue;
        };
        let Some(old) = held.bytes(key) else {
            continue;
        };
        let there = &new[anchor.at..anchor.at + WINDOW];
        if old.get(offset..offset + WINDOW) != Some(there) {
            continue;
        }
        let mut found = forward(held, new, anchor.at, ChunkPosition { key, offset });
        backward(held, new, at, &mut found);
        if found.end - found.start >= sought.least.min(new.len() - at) {
            sought.step = 1;
            return Some(found);
        }
    }
    None
}

/// Extends a match towards `least`, which is not before it.
fn backward(held: &mut PeerHoldings<'_>, new: &[u8], least: usize, found: &mut FoundMatch) {
    for _ in 0..MAX_SPAN {
        let Some(ChunkPiece::Copy {
            from,
            length,
            to_end,
        }) = found.copies.first().copied()
        else {
            return;
        };
        if found.start == least {
            return;
        }
        if from.offset > 0 {
            let Some(old) = held.bytes(from.key) else {
                return;
            };
            let old_before = old.get(..from.offset).unwrap_or_default();
            let more = common_suffix(&new[least..found.start], old_before);
            found.start -= more;
            let offset = from.offset - more;
            found.copies[0] = ChunkPiece::Copy {
                from: ChunkPosition {
                    key: from.key,
                    offset,
                },
                length: length + more,
                to_end,
            };
            if offset > 0 {
                return;
            }
            continue;
        }
        let key = held.dictionary.previous(from.key);
        let Some(old) = held.bytes(key) else {
            return;
        };
        let more = common_suffix(&new[least..found.start], &old);
        if more == 0 {
            return;
        }
        found.start -= more;
        let copy = ChunkPiece::Copy {
            from: ChunkPosition {
                key,
                offset: old.len() - more,
            },
            length: more,
            to_end: true,
        };
        found.copies.insert(0, copy);
    }
}

/// The old stream's next bytes from `place` on, `length` at most.
fn window(held: &mut PeerHoldings<'_>, mut place: ChunkPosition, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..MAX_SPAN {
        let Some(old) = held.bytes(place.key) else {
            break;
        };
        let there = old.get(place.offset..).unwrap_or_default();
        bytes.extend_from_slice(&there[..there.len().min(length - bytes.len())]);
        if bytes.len() == length {
            break;
        }
        place = ChunkPosition {
            key: held.next(place.key),
            offset: 0,
        };
    }
    bytes
}

/// Returns the position `length` bytes later in the old stream.
fn advance(
    held: &PeerHoldings<'_>,
    mut place: ChunkPosition,
    length: usize,
) -> Option<ChunkPosition> {
    place.offset += length;
    for _ in 0..MAX_SPAN {
        let here = held.dictionary.length(place.key);
        if here == 0 || place.offset > 2 * MAX_CHUNK {
            return None;
        }
        if place.offset < here {
            return Some(place);
        }
        place = ChunkPosition {
            key: held.next(place.key),
            offset: place.offset - here,
        };
    }
    None
}

fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    let length = one.len().min(other.len());
    let (one, other) = (&one[..length], &other[..length]);
    // Whole words first: the compiler compares them with vector instructions.
    let mut same = 0;
    for (one, other) in one.chunks_exact(64).zip(other.chunks_exact(64)) {
        if one != other {
            break;
        }
        same += 64;
    }
    let rest = one[same..].iter().zip(&other[same..]);
    same + rest.take_while(|(one, other)| one == other).count()
}

fn common_suffix(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().rev().zip(other.iter().rev());
    pairs.take_while(|(one, other)| one == other).count()
}
