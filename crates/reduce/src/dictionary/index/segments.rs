//! Short numbers for the segments in which chunks are, and how many pinned chunks are in each.

use std::collections::BTreeMap;

use super::FIRST_SEGMENT;

/// Largest number of distinct segments: places have sixteen bits, and three values are reserved.
const MAX_PLACES: usize = (1 << 16) - FIRST_SEGMENT as usize;

/// Short numbers for the segments in which chunks are.
#[derive(Default)]
pub(super) struct SegmentNumbers {
    numbers: BTreeMap<u32, u16>,
    segments: Vec<u32>,
    /// Pinned chunks in each, by its number.
    pinned: Vec<u32>,
    free: Vec<u16>,
}

impl SegmentNumbers {
    pub(super) fn bytes(&self) -> usize {
        // A tree's leaves are at least half full: two places for each pair.
        self.numbers.len() * 2 * size_of::<(u32, u16)>()
            + (self.segments.capacity() + self.pinned.capacity()) * size_of::<u32>()
            + self.free.capacity() * size_of::<u16>()
    }

    /// The number that stands for a segment, given out at its first mention.
    pub(super) fn number(&mut self, segment: u32) -> Option<u16> {
        if let Some(number) = self.numbers.get(&segment) {
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.segments[usize::from(number)] = segment;
                number
            }
            None if self.segments.len() < MAX_PLACES => {
                self.segments.push(segment);
                self.pinned.push(0);
                (self.segments.len() - 1) as u16
            }
            None => return None,
        };
        self.numbers.insert(segment, number);
        Some(number)
    }

    pub(super) fn segment(&self, number: u16) -> u32 {
        self.segments[usize::from(number)]
    }

    pub(super) fn release(&mut self, segment: u32) {
        if let Some(number) = self.numbers.remove(&segment) {
            debug_assert_eq!(self.pinned[usize::from(number)], 0);
            self.free.push(number);
        }
    }

    /// Pinned chunks in a segment.
    pub(super) fn pinned(&self, segment: u32) -> u32 {
        let number = self.numbers.get(&segment);
        number.map_or(0, |number| self.pinned[usize::from(*number)])
    }

    /// Pinned chunks in the segment of this number, to be counted up and down.
    pub(super) fn pinned_mut(&mut self, number: u16) -> &mut u32 {
        &mut self.pinned[usize::from(number)]
    }
}
