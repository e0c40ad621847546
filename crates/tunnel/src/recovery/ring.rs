//! Ring of entries by rising numbers, until each is settled.
//!
//! ```text
//!  base                                        end
//!   │ held │ gone→ │ gone→ │ held │ gone→ │ held │
//!              └───────┴──────▲
//! ```
//!
//! Acknowledgements repeat earlier ones. So a settled number points at the first number that may
//! not be settled, and each traversal shortens these pointers (the disjoint sets of Tarjan and van
//! Leeuwen, 1984, "Worst-case analysis of set union algorithms", with path compression). Visiting
//! the same range again then takes a step or two, however long it is.

use std::collections::VecDeque;

/// Capacity that an empty ring may keep, in entries: enough for a small window.
const SPARE: usize = 1 << 10;

/// Entries by number.
#[derive(Clone, Debug)]
pub(super) struct PacketRing<E> {
    slots: VecDeque<RingSlot<E>>,
    base: u64,
}

#[derive(Clone, Debug)]
enum RingSlot<E> {
    Held(E),
    /// No entry from here to before `next` is held.
    Gone {
        next: u64,
    },
}

impl<E> PacketRing<E> {
    pub(super) fn new() -> Self {
        Self {
            slots: VecDeque::new(),
            base: 0,
        }
    }

    /// The first number that may be held.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The number after the last that was given out.
    pub(super) fn end(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Count of numbers from the first that may be held to the last.
    pub(super) fn span(&self) -> usize {
        self.slots.len()
    }

    /// Holds an entry for `number`, which is not below [`PacketRing::end`]; numbers in between are gone.
    pub(super) fn push(&mut self, number: u64, entry: E) {
        assert!(number >= self.end(), "numbers rise");
        if self.slots.is_empty() {
            self.base = number;
        }
        while self.end() < number {
            self.slots.push_back(RingSlot::Gone { next: number });
        }
        self.slots.push_back(RingSlot::Held(entry));
    }

    /// The first held number that is not below `from`, or [`PacketRing::end`].
    pub(super) fn find(&mut self, from: u64) -> u64 {
        let end = self.end();
        let from = from.max(self.base);
        let mut found = from;
        while found < end {
            match &self.slots[(found - self.base) as usize] {
                RingSlot::Held(_) => break,
                RingSlot::Gone { next } => found = *next,
            }
        }
        let mut passed = from;
        while passed < found.min(end) {
            let RingSlot::Gone { next } = &mut self.slots[(passed - self.base) as usize] else {
                break;
            };
            passed = std::mem::replace(next, found);
        }
        found.min(end).max(from)
    }

    pub(super) fn get(&self, number: u64) -> Option<&E> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.slots.get(index)? {
            RingSlot::Held(entry) => Some(entry),
            RingSlot::Gone { .. } => None,
        }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut E> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.slots.get_mut(index)? {
            RingSlot::Held(entry) => Some(entry),
            RingSlot::Gone { .. } => None,
        }
    }

    /// Takes an entry out; its number is gone.
    pub(super) fn take(&mut self, number: u64) -> Option<E> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let slot = self.slots.get_mut(index)?;
        if matches!(slot, RingSlot::Gone { .. }) {
            return None;
        }
        let RingSlot::Held(entry) = std::mem::replace(slot, RingSlot::Gone { next: number + 1 })
        else {
            return None;
        };
        self.drop_front();
        Some(entry)
    }

    fn drop_front(&mut self) {
        while let Some(RingSlot::Gone { .. }) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
        // A burst's memory is given back once it is over.
        if self.slots.is_empty() && self.slots.capacity() > SPARE {
            self.slots.shrink_to(SPARE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packet_ring_matches_a_plain_map(
            steps in prop::collection::vec((0_u8..4, 0_u64..40), 1..200),
        ) {
            let mut ring = PacketRing::new();
            let mut reference = BTreeMap::new();
            let mut end = 0;
            for (step, value) in steps {
                match step {
                    0 => {
                        let number = end + value % 5;
                        ring.push(number, value);
                        reference.insert(number, value);
                        end = number + 1;
                    }
                    1 => {
                        let number = end.saturating_sub(value);
                        prop_assert_eq!(ring.take(number), reference.remove(&number));
                    }
                    2 => {
                        let from = end.saturating_sub(value);
                        let first = reference.range(from..).next();
                        // Below the base nothing is held, and the base stands for it.
                        let expected = first.map_or(end, |(number, _)| *number);
                        prop_assert_eq!(ring.find(from), expected);
                    }
                    _ => {
                        let number = end.saturating_sub(value);
                        prop_assert_eq!(ring.get(number), reference.get(&number));
                        prop_assert_eq!(ring.get_mut(number).copied(), reference.get(&number).copied());
                    }
                }
                prop_assert_eq!(ring.end(), end);
                let base = reference.first_key_value().map_or(end, |(number, _)| *number);
                prop_assert_eq!(ring.base(), base);
                prop_assert_eq!(ring.span() as u64, end - base);
            }
        }
    }

    #[test]
    fn a_long_range_is_gone_over_once() {
        let mut ring = PacketRing::new();
        for number in 0..100_000 {
            ring.push(number, ());
        }
        for number in 1..99_999 {
            ring.take(number);
        }
        assert_eq!(ring.find(1), 99_999);
        let RingSlot::Gone { next } = ring.slots[50_000] else {
            panic!("it was taken");
        };
        assert_eq!(next, 99_999);
    }

    #[test]
    fn the_memory_of_a_burst_is_given_back() {
        let mut ring = PacketRing::new();
        for number in 0..100_000 {
            ring.push(number, ());
        }
        for number in 0..100_000 {
            ring.take(number);
        }
        assert!(ring.slots.capacity() <= 2 * SPARE);
    }
}
