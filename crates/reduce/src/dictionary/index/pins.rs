//! Pins: the number of read or kept bodies that an entry is part of.
//!
//! The count is stored in the entry. Pinned chunks are counted by place: in memory only, or in
//! which segment. So the dictionary can bound both, and knows the segments to keep. A count at its
//! maximum accepts no more pins; a chunk without a pin may be evicted.

use super::{ChunkIndex, EntrySlot, FIRST_SEGMENT, PLACE_NOWHERE};

/// Totals of the pinned chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::dictionary) struct PinnedTotals {
    /// Bytes of chunks that are in memory only. Chunks on their way to the disk are held in memory
    /// anyway, and count after they were written.
    pub(in crate::dictionary) memory_bytes: u64,
    /// Segments that hold a pinned chunk.
    pub(in crate::dictionary) segments: usize,
}

impl ChunkIndex {
    /// Returns the totals of the pinned chunks.
    pub(in crate::dictionary) fn pinned(&self) -> PinnedTotals {
        self.pinned
    }

    /// Returns `true` if a pinned chunk is in the segment.
    pub(in crate::dictionary) fn is_segment_pinned(&self, segment: u32) -> bool {
        self.segments.pinned(segment) > 0
    }

    /// Pins a chunk once more; says whether its count had room.
    pub(in crate::dictionary) fn pin(&mut self, slot: EntrySlot) -> bool {
        let Some(pins) = self.entry(slot.0).pins.checked_add(1) else {
            return false;
        };
        self.set_pins(slot, pins);
        true
    }

    /// Takes one pin back, if there is any.
    pub(in crate::dictionary) fn unpin(&mut self, slot: EntrySlot) {
        let pins = self.entry(slot.0).pins;
        self.set_pins(slot, pins.saturating_sub(1));
    }

    fn set_pins(&mut self, slot: EntrySlot, pins: u8) {
        self.uncount_pinned(slot.0);
        self.entry_mut(slot.0).pins = pins;
        self.count_pinned(slot.0);
    }

    /// Counts a pinned chunk where it is. To be called when it has come there.
    pub(super) fn count_pinned(&mut self, slot: u32) {
        let entry = *self.entry(slot);
        if entry.pins == 0 {
            return;
        }
        if entry.place == PLACE_NOWHERE {
            self.pinned.memory_bytes += u64::from(entry.length_less_one) + 1;
        }
        let Some(number) = entry.place.checked_sub(FIRST_SEGMENT) else {
            return;
        };
        let pinned = self.segments.pinned_mut(number);
        *pinned += 1;
        self.pinned.segments += usize::from(*pinned == 1);
    }

    /// Takes a pinned chunk out of the counts. To be called before it goes elsewhere.
    pub(super) fn uncount_pinned(&mut self, slot: u32) {
        let entry = *self.entry(slot);
        if entry.pins == 0 {
            return;
        }
        if entry.place == PLACE_NOWHERE {
            self.pinned.memory_bytes -= u64::from(entry.length_less_one) + 1;
        }
        let Some(number) = entry.place.checked_sub(FIRST_SEGMENT) else {
            return;
        };
        let pinned = self.segments.pinned_mut(number);
        *pinned -= 1;
        self.pinned.segments -= usize::from(*pinned == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::DiskLocation;
    use super::super::super::seeded::SeededBuildHasher;
    use super::*;

    #[test]
    fn pinned_chunks_are_counted_by_place() {
        let mut index = ChunkIndex::new(SeededBuildHasher(1));
        let one = index.insert(1, 1, 100);
        let two = index.insert(2, 2, 200);
        assert!(index.pin(one) && index.pin(one) && index.pin(two));
        assert_eq!(
            (index.pinned().memory_bytes, index.pinned().segments),
            (300, 0)
        );
        for slot in [one, two] {
            index.set_place(
                slot,
                DiskLocation::At {
                    segment: 7,
                    offset: 64,
                },
            );
        }
        assert_eq!(
            (index.pinned().memory_bytes, index.pinned().segments),
            (0, 1)
        );
        index.unpin(one);
        index.remove(2);
        assert!(index.is_segment_pinned(7));
        index.unpin(one);
        index.unpin(one);
        assert!(!index.is_segment_pinned(7));
        assert_eq!(index.pinned(), PinnedTotals::default());
    }

    #[test]
    fn a_full_count_takes_no_more() {
        let mut index = ChunkIndex::new(SeededBuildHasher(1));
        let slot = index.insert(1, 1, 100);
        let taken = (0..1_000).filter(|_| index.pin(slot)).count();
        assert_eq!(taken, usize::from(u8::MAX));
        (0..taken).for_each(|_| index.unpin(slot));
        assert_eq!(index.pinned(), PinnedTotals::default());
    }
}
