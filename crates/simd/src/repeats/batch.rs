//! State of the places in a batch.

use super::{WORD, WORDS};

/// Places that are worked on together at most: nothing is marked right behind a mark.
pub(super) const MOST: usize = WORDS * WORD / 2;
/// Capacity of a batch, with room for the extra entries of whole vectors.
pub(super) const ROOM: usize = MOST + 16;

/// The places that are worked on.
pub struct RepeatBatch {
    /// Places looked up last, and those of the batch before.
    listed: [ListedPlaces; 2],
    last: usize,
    short: TableLookups,
    long: TableLookups,
    longest: TableLookups,
    /// For each place a bit for each byte that is compared: whether it differs.
    differing: [u64; ROOM],
    reach: RepeatReach,
    repeats: RepeatMatches,
}

/// Reach of the repeats that were found since the last batch without places.
#[derive(Clone, Copy, Default)]
pub(super) struct RepeatReach {
    /// End of the furthest repeat.
    pub(super) most: u32,
    /// Smallest end of a repeat that becomes a sequence.
    pub(super) least: u32,
}

/// Places of a batch, with their candidates.
pub(super) struct ListedPlaces {
    pub(super) count: usize,
    /// Each is greater than the one before.
    pub(super) places: [u32; ROOM],
    /// Places that may have the same bytes; [`super::BEHIND`] for none.
    pub(super) candidates: [u32; ROOM],
}

/// Table lookups of a batch: for each place its table entry, the value written there, and the
/// previous value.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct TableLookups {
    pub(super) slots: [u32; ROOM],
    pub(super) entries: [u32; ROOM],
    pub(super) before: [u32; ROOM],
}

/// Places whose bytes stand elsewhere, too, in their order.
pub struct RepeatMatches {
    pub(super) count: usize,
    pub(super) at: [u32; ROOM],
    pub(super) offset: [u32; ROOM],
    pub(super) ahead: [u32; ROOM],
    pub(super) behind: [u32; ROOM],
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatMatch {
    /// The place.
    pub at: u32,
    /// Distance back to the same bytes.
    pub offset: u32,
    /// Bytes from there on that agree, [`super::AHEAD`] at most.
    pub ahead: u32,
    /// Bytes before it that agree, [`super::BEHIND`] at most.
    pub behind: u32,
}

/// The parts of a batch, for a step.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct BatchParts<'a> {
    pub(super) now: &'a mut ListedPlaces,
    pub(super) before: &'a ListedPlaces,
    pub(super) short: &'a mut TableLookups,
    pub(super) long: &'a mut TableLookups,
    pub(super) longest: &'a mut TableLookups,
    pub(super) differing: &'a mut [u64; ROOM],
    pub(super) reach: &'a mut RepeatReach,
    pub(super) repeats: &'a mut RepeatMatches,
}

impl RepeatBatch {
    /// An empty one.
    #[must_use]
    pub fn new() -> Box<Self> {
        let listed = || ListedPlaces {
            count: 0,
            places: [0; _],
            candidates: [0; _],
        };
        let looked = || TableLookups {
            slots: [0; _],
            entries: [0; _],
            before: [0; _],
        };
        Box::new(Self {
            listed: [listed(), listed()],
            last: 0,
            short: looked(),
            long: looked(),
            longest: looked(),
            differing: [0; _],
            reach: RepeatReach::default(),
            repeats: RepeatMatches {
                count: 0,
                at: [0; _],
                offset: [0; _],
                ahead: [0; _],
                behind: [0; _],
            },
        })
    }

    /// Moves the last lookups to the comparison step and makes room for the next ones.
    pub(super) fn turn(&mut self) -> BatchParts<'_> {
        self.last ^= 1;
        let [one, other] = &mut self.listed;
        let (now, before) = match self.last {
            0 => (one, other),
            _ => (other, one),
        };
        BatchParts {
            now,
            before,
            short: &mut self.short,
            long: &mut self.long,
            longest: &mut self.longest,
            differing: &mut self.differing,
            reach: &mut self.reach,
            repeats: &mut self.repeats,
        }
    }

    pub(super) fn repeats(&self) -> &RepeatMatches {
        &self.repeats
    }
}

impl RepeatMatches {
    /// Returns the number of repeats.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no repeats.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each of them.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = RepeatMatch> {
        let places = self.at[..self.count].iter().zip(&self.offset);
        let lengths = self.ahead.iter().zip(&self.behind);
        let each = places.zip(lengths);
        each.map(|((at, offset), (ahead, behind))| RepeatMatch {
            at: *at,
            offset: *offset,
            ahead: *ahead,
            behind: *behind,
        })
    }
}
