//! Disjoint ranges of stream positions, kept sorted: what a SACK scoreboard and a reassembly need.

/// Set of positions, as sorted ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Position behind the last range.
    pub(crate) fn end(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.1)
    }

    /// Number of ranges.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Adds the positions from `start` to before `end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        if first == last {
            self.ranges.insert(first, (start, end));
            return;
        }
        let merged = (
            start.min(self.ranges[first].0),
            end.max(self.ranges[last - 1].1),
        );
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..last);
    }

    /// Parts of `start..end` that are not in the set, in order.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        let first = self.ranges.partition_point(|range| range.1 <= start);
        for range in &self.ranges[first..] {
            if range.0 >= end {
                break;
            }
            if range.0 > at {
                gaps.push((at, range.0));
            }
            at = at.max(range.1);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// The range that contains `position`.
    pub(crate) fn containing(&self, position: u64) -> Option<(u64, u64)> {
        let index = self.ranges.partition_point(|range| range.1 <= position);
        let range = *self.ranges.get(index)?;
        (range.0 <= position).then_some(range)
    }

    /// True if the set has all of `start..end`.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.containing(start).is_some_and(|range| end <= range.1)
    }

    /// Removes the positions below `position`.
    pub(crate) fn remove_below(&mut self, position: u64) {
        let count = self.ranges.partition_point(|range| range.1 <= position);
        self.ranges.drain(..count);
        if let Some(first) = self.ranges.first_mut() {
            first.0 = first.0.max(position);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_positions(
            steps in proptest::collection::vec((0_u64..60, 0_u64..12, any::<bool>()), 1..40)
        ) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (start, length, inserts) in steps {
                let end = start + length;
                if inserts {
                    set.insert(start, end);
                    model.extend(start..end);
                } else if length == 0 {
                    set.remove_below(start);
                    model.retain(|position| *position >= start);
                }
                let gaps: BTreeSet<u64> = set.gaps(start, end).into_iter().flat_map(|(a, b)| a..b).collect();
                let missing: BTreeSet<u64> = (start..end).filter(|at| !model.contains(at)).collect();
                prop_assert_eq!(gaps, missing);
                for position in 0..80 {
                    prop_assert_eq!(set.containing(position).is_some(), model.contains(&position));
                }
            }
        }
    }
}
