//! The steps in plain code.

use super::batch::{BatchParts, ListedPlaces, ROOM, RepeatMatches, RepeatReach};
use super::{
    AHEAD, BEHIND, COMPARED, LEAST_AGREEING, LEAST_BEYOND, LONG_LOG, LONGEST_LOG, MULTIPLIER, NEAR,
    OTHER_MULTIPLIER, PLACE, PlaceTables, REST, SHORT_LOG, WORD, least_gain,
};
use crate::agreement::{differing, fetch};

/// Places that are listed at once, whether they are there or not: as many as there mostly are.
const LISTED: usize = 12;

/// All steps.
pub(super) fn find(
    parts: BatchParts<'_>,
    tables: &mut PlaceTables,
    history: &[u8],
    marks: &[u64],
    base: usize,
) {
    parts.now.count = list(marks, base as u32, &mut parts.now.places);
    for place in 0..parts.now.count {
        let at = parts.now.places[place];
        let bytes: &[u8; 16] = there(history, at as usize);
        let (words, _) = bytes.as_chunks();
        let [front, back] = [0, 1].map(|word: usize| u64::from_le_bytes(words[word]));
        let short = (front << 32).wrapping_mul(MULTIPLIER);
        let long = front.wrapping_mul(OTHER_MULTIPLIER);
        // Of 32 bits each.
        let back = u64::from(back as u32) * u64::from(MULTIPLIER as u32);
        let longest = front.wrapping_add(back).wrapping_mul(OTHER_MULTIPLIER);
        let short = exchange::<SHORT_LOG, _>(&mut tables.short, short, at);
        let long = exchange::<LONG_LOG, _>(&mut tables.long, long, at);
        let longest = exchange::<LONGEST_LOG, _>(&mut tables.longest, longest, at);
        // Choices that the compiler makes without branches.
        let mut best = short.unwrap_or(0);
        best = long.unwrap_or(best);
        best = longest.unwrap_or(best);
        let candidate = best.max(BEHIND as u32);
        parts.now.candidates[place] = candidate;
        // They may be in two lines of the cache.
        fetch(history, candidate as usize - BEHIND);
        fetch(history, candidate as usize + AHEAD - 1);
    }
    compare(parts.before, history, parts.reach, parts.repeats);
    thin(parts.repeats);
    if parts.now.count == 0 {
        *parts.reach = RepeatReach::default();
    }
}

fn list(marks: &[u64], base: u32, places: &mut [u32; ROOM]) -> usize {
    let mut count = 0;
    for (base, marks) in (base..).step_by(WORD).zip(marks) {
        let here = marks.count_ones() as usize;
        let mut marks = *marks;
        let mut listed = 0;
        while listed < here {
            for place in &mut places[count + listed..][..LISTED] {
                *place = base + marks.trailing_zeros();
                marks &= marks.wrapping_sub(1);
            }
            listed += LISTED;
        }
        count += here;
    }
    count
}

/// Writes a place into a table; returns the one that was there before, if it was of the same bytes, as far as
/// can be known.
#[inline]
fn exchange<const LOG: u32, const SIZE: usize>(
    table: &mut [u32; SIZE],
    hash: u64,
    at: u32,
) -> Option<u32> {
    let written = entry::<LOG>(hash, at);
    let entry = &mut table[(hash >> (u64::BITS - LOG)) as usize];
    let before = std::mem::replace(entry, written);
    (before ^ written <= PLACE).then_some(before & PLACE)
}

/// A place, and above it the bits of its hash that follow those that choose the slot.
#[inline]
fn entry<const LOG: u32>(hash: u64, at: u32) -> u32 {
    (hash << LOG >> 32) as u32 & !PLACE | at
}

/// Compares the bytes at each place and its candidate, and collects repeats that are worth a
/// sequence.
fn compare(
    listed: &ListedPlaces,
    history: &[u8],
    reach: &mut RepeatReach,
    repeats: &mut RepeatMatches,
) {
    let places = listed.places[..listed.count].iter();
    let mut count = 0;
    let mut last = (0, 0, 0);
    for (at, candidate) in places.zip(&listed.candidates) {
        let one: &[u8; COMPARED] = there(history, (*at as usize).wrapping_sub(BEHIND));
        let other: &[u8; COMPARED] = there(history, *candidate as usize - BEHIND);
        let (one, _) = one.as_chunks();
        let (other, _) = other.as_chunks();
        let lanes = (0..).step_by(16).zip(one.iter().zip(other));
        let bits = lanes.map(|(at, (one, other))| u64::from(differing(one, other)) << at);
        let differing = bits.fold(0, |bits, more| bits | more);
        let ahead = (differing >> BEHIND | 1 << AHEAD).trailing_zeros();
        let behind = (differing as u16).leading_zeros();
        let (offset, end) = (at.wrapping_sub(*candidate), at.wrapping_add(ahead));
        // Whether it is what is left of the one before.
        let (last_offset, last_ahead, last_end) =
            std::mem::replace(&mut last, (offset, ahead, end));
        let is_rest = last_offset == offset && last_end == end && last_ahead <= REST;
        repeats.at[count] = *at;
        repeats.offset[count] = offset;
        repeats.ahead[count] = ahead;
        repeats.behind[count] = behind;
        let gain = least_gain(offset);
        let is_found = ahead >= LEAST_AGREEING
            && *candidate > BEHIND as u32
            && ahead + behind >= gain
            && !is_rest;
        // It becomes a sequence if it ends there at most: so far the sequence before it may reach.
        let beyond = end.wrapping_sub(gain - 1).min(at + NEAR - LEAST_BEYOND);
        count += usize::from(is_found && beyond > reach.least);
        let certain = if beyond > reach.most { end } else { beyond };
        reach.least = reach.least.max(if is_found { certain } else { 0 });
        reach.most = reach.most.max(if is_found { end } else { 0 });
    }
    repeats.count = count;
}

/// Leaves out what the next one covers from its beginning on.
fn thin(repeats: &mut RepeatMatches) {
    let mut count = 0;
    for place in 0..repeats.count {
        let first = repeats.at[place] - repeats.behind[place];
        let next = place + 1;
        let is_covered = next < repeats.count && repeats.at[next] - repeats.behind[next] <= first;
        repeats.at[count] = repeats.at[place];
        repeats.offset[count] = repeats.offset[place];
        repeats.ahead[count] = repeats.ahead[place];
        repeats.behind[count] = repeats.behind[place];
        count += usize::from(!is_covered);
    }
    repeats.count = count;
}

#[inline]
fn there<const LENGTH: usize>(bytes: &[u8], at: usize) -> &[u8; LENGTH] {
    let from = bytes.get(at..).unwrap_or_default();
    from.first_chunk().expect("as many bytes are there")
}
