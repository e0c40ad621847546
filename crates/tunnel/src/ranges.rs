//! Sets of integers kept as ranges: offsets to send again, packets received.
//!
//! Adjacent ranges are merged. A lookup in a set of n ranges takes log n steps; the owner bounds n.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// End of each range by its start; neither empty nor touching.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the count of numbers in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The range with the least numbers.
    pub(crate) fn first(&self) -> Option<Range<u64>> {
        let (start, end) = self.ends.first_key_value()?;
        Some(*start..*end)
    }

    /// Returns the count of ranges.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if the set contains `number`.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.around(number).is_some()
    }

    /// The range that a number is in.
    pub(crate) fn around(&self, number: u64) -> Option<Range<u64>> {
        let (start, end) = self.ends.range(..=number).next_back()?;
        (*end > number).then_some(*start..*end)
    }

    /// The ranges in rising order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// The ranges that begin below a number, in falling order.
    pub(crate) fn below(&self, number: u64) -> impl Iterator<Item = Range<u64>> {
        let below = self.ends.range(..number).rev();
        below.map(|(start, end)| *start..*end)
    }

    /// Adds numbers; those that are in it already stay.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Numbers mostly come in their order.
        if let Some(mut last) = self.ends.last_entry()
            && (*last.key()..=*last.get()).contains(&start)
        {
            let until = end.max(*last.get());
            self.total += until - last.insert(until);
            return;
        }
        if let Some((before, until)) = self.ends.range(..start).next_back()
            && *until >= start
        {
            start = *before;
        }
        while let Some((next, until)) = self.ends.range(start..).next()
            && *next <= end
        {
            let (next, until) = (*next, *until);
            end = end.max(until);
            self.total -= until - next;
            self.ends.remove(&next);
        }
        self.total += end - start;
        self.ends.insert(start, end);
    }

    /// Takes numbers out, whether or not they are in it.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        let first = self.ends.first_key_value();
        if range.is_empty() || first.is_none_or(|(start, _)| *start >= range.end) {
            return;
        }
        if let Some((before, until)) = self.ends.range(..range.start).next_back()
            && *until > range.start
        {
            let (before, until) = (*before, *until);
            self.total -= until - range.start;
            self.ends.insert(before, range.start);
            if until > range.end {
                self.total += until - range.end;
                self.ends.insert(range.end, until);
                return;
            }
        }
        while let Some((next, until)) = self.ends.range(range.start..).next()
            && *next < range.end
        {
            let (next, until) = (*next, *until);
            self.ends.remove(&next);
            self.total -= until - next;
            if until > range.end {
                self.total += until - range.end;
                self.ends.insert(range.end, until);
            }
        }
    }

    /// The numbers of `range` that are not in the set.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut from = range.start;
        let before = self.ends.range(..=range.start).next_back();
        let after = self.ends.range(range.start..);
        for (start, end) in before.into_iter().chain(after) {
            if *start >= range.end {
                break;
            }
            if *start > from {
                missing.push(from..*start);
            }
            from = from.max(*end);
        }
        if from < range.end {
            missing.push(from..range.end);
        }
        missing
    }

    /// The numbers of `range` that are in the set.
    pub(crate) fn common(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let before = self.ends.range(..range.start).next_back();
        let after = self.ends.range(range.start..);
        let all = before.into_iter().chain(after);
        all.take_while(|(start, _)| **start < range.end)
            .map(|(start, end)| range.start.max(*start)..range.end.min(*end))
            .filter(|common| !common.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: impl Iterator<Item = Range<u64>>) -> BTreeSet<u64> {
        ranges.flatten().collect()
    }

    proptest! {
        #[test]
        fn range_set_matches_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 1..60),
            asked in (0_u64..60, 0_u64..30),
        ) {
            let mut ranges = RangeSet::default();
            let mut reference = BTreeSet::new();
            for (adds, start, length) in steps {
                let range = start..start + length;
                if adds {
                    ranges.insert(range.clone());
                    reference.extend(range);
                } else {
                    ranges.remove(range.clone());
                    reference.retain(|number| !range.contains(number));
                }
                prop_assert_eq!(&numbers(ranges.iter()), &reference);
                prop_assert_eq!(ranges.total(), reference.len() as u64);
                let found: Vec<_> = ranges.iter().collect();
                prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(ranges.first(), found.first().cloned());
                prop_assert_eq!(ranges.is_empty(), reference.is_empty());
                prop_assert_eq!(ranges.count(), found.len());
                for number in 0..80 {
                    prop_assert_eq!(ranges.contains(number), reference.contains(&number));
                    let around = found.iter().find(|range| range.contains(&number));
                    prop_assert_eq!(ranges.around(number), around.cloned());
                    let below = found.iter().rev().filter(|range| range.start < number);
                    prop_assert!(ranges.below(number).eq(below.cloned()));
                }
            }
            let asked = asked.0..asked.0 + asked.1;
            let common = numbers(ranges.common(asked.clone()).into_iter());
            let expected: BTreeSet<u64> =
                asked.clone().filter(|number| reference.contains(number)).collect();
            prop_assert_eq!(common, expected);
            let missing = numbers(ranges.missing(asked.clone()).into_iter());
            let expected: BTreeSet<u64> = asked.filter(|number| !reference.contains(number)).collect();
            prop_assert_eq!(missing, expected);
        }
    }
}
