//! Segments that were sent and not yet acknowledged: what SACK, RACK and recovery know about each.
//!
//! ```text
//!   stream ─►  una                                              next
//!              │ lost │ retransmitted │ sacked │ sacked │  in flight │
//!              front (index `first`) ───────────────────────────► back
//! ```
//!
//! A segment is sent again as it was sent first, so an entry per segment is enough. `by_time` has
//! every transmission that RACK may still declare lost, in the order of sending (RFC 8985 §4).

use std::collections::VecDeque;

use vocab::Time;

use crate::range_set::RangeSet;

/// A sent segment. Positions count the SYN as 0 and the first byte as 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentSegment {
    pub(crate) start: u64,
    /// Sequence numbers that it takes, a FIN included.
    pub(crate) length: u32,
    /// The latest transmission and its rank among all transmissions.
    pub(crate) sent: Time,
    pub(crate) order: u64,
    pub(crate) sacked: bool,
    /// Counted as lost; `resent` tells whether it is on its way again.
    pub(crate) lost: bool,
    pub(crate) resent: bool,
    /// Sent more than once.
    pub(crate) ambiguous: bool,
}

impl SentSegment {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// The sent segments and their counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendScoreboard {
    segments: VecDeque<SentSegment>,
    /// Number of the front segment; numbers are never used again.
    first: u64,
    by_time: VecDeque<(u64, u64)>,
    next_order: u64,
    sacked: RangeSet,
    highest_sacked: u64,
    sacked_count: u32,
    lost_count: u32,
    resent_count: u32,
    /// No segment below this number is lost and waits.
    lost_hint: u64,
}

impl SendScoreboard {
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Segments that are not cumulatively acknowledged.
    pub(crate) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    pub(crate) fn sacked_count(&self) -> u32 {
        self.sacked_count
    }

    pub(crate) fn lost_count(&self) -> u32 {
        self.lost_count
    }

    pub(crate) fn resent_count(&self) -> u32 {
        self.resent_count
    }

    /// Segments in the network: pipe of RFC 6675 §4, as Linux counts it.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.count() + self.resent_count).saturating_sub(self.sacked_count + self.lost_count)
    }

    pub(crate) fn front(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    pub(crate) fn back_number(&self) -> Option<u64> {
        let count = self.segments.len() as u64;
        (count > 0).then(|| self.first + count - 1)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&SentSegment> {
        self.segments.get(number.checked_sub(self.first)? as usize)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut SentSegment> {
        let index = number.checked_sub(self.first)? as usize;
        self.segments.get_mut(index)
    }

    /// Position behind the highest sacked segment.
    pub(crate) fn highest_sacked(&self) -> u64 {
        self.highest_sacked
    }

    /// Adds a segment that is sent for the first time.
    pub(crate) fn push(&mut self, now: Time, start: u64, length: u32) {
        let number = self.first + self.segments.len() as u64;
        let order = self.next_order;
        self.next_order += 1;
        self.by_time.push_back((order, number));
        self.segments.push_back(SentSegment {
            start,
            length,
            sent: now,
            order,
            sacked: false,
            lost: false,
            resent: false,
            ambiguous: false,
        });
    }

    /// Notes that a segment is sent again.
    pub(crate) fn resend(&mut self, now: Time, number: u64) {
        let order = self.next_order;
        let Some(segment) = self.get_mut(number) else {
            return;
        };
        let was_resent = segment.resent;
        segment.sent = now;
        segment.order = order;
        segment.ambiguous = true;
        segment.resent = true;
        self.resent_count += u32::from(!was_resent);
        self.next_order += 1;
        self.by_time.push_back((order, number));
    }

    /// The first lost segment that is not on its way again.
    pub(crate) fn next_lost(&mut self) -> Option<u64> {
        if self.lost_count <= self.resent_count && self.lost_count == 0 {
            return None;
        }
        let mut number = self.lost_hint.max(self.first);
        while let Some(segment) = self.get(number) {
            if segment.lost && !segment.resent && !segment.sacked {
                self.lost_hint = number;
                return Some(number);
            }
            number += 1;
        }
        self.lost_hint = number;
        None
    }

    /// Counts a segment as lost; a lost retransmission is lost again.
    pub(crate) fn mark_lost(&mut self, number: u64) -> bool {
        let Some(segment) = self.get_mut(number) else {
            return false;
        };
        if segment.sacked || (segment.lost && !segment.resent) {
            return false;
        }
        let (was_lost, was_resent) = (segment.lost, segment.resent);
        segment.lost = true;
        segment.resent = false;
        self.lost_count += u32::from(!was_lost);
        self.resent_count -= u32::from(was_resent);
        self.lost_hint = self.lost_hint.min(number);
        true
    }

    /// Takes all losses back.
    pub(crate) fn forgive_losses(&mut self) {
        for segment in &mut self.segments {
            segment.lost = false;
        }
        self.lost_count = 0;
        self.requeue();
    }

    /// Removes everything below `position`; `each` sees the removed segments.
    pub(crate) fn acknowledge(&mut self, position: u64, mut each: impl FnMut(&SentSegment)) {
        while let Some(segment) = self.segments.front().copied() {
            if segment.end() > position {
                break;
            }
            self.sacked_count -= u32::from(segment.sacked);
            self.lost_count -= u32::from(segment.lost);
            self.resent_count -= u32::from(segment.resent);
            self.segments.pop_front();
            self.first += 1;
            each(&segment);
        }
        if let Some(front) = self.segments.front_mut()
            && front.start < position
        {
            front.length -= (position - front.start) as u32;
            front.start = position;
        }
        self.sacked.remove_below(position);
        while self
            .by_time
            .front()
            .is_some_and(|(_, number)| *number < self.first)
        {
            self.by_time.pop_front();
        }
    }

    /// Marks the segments inside a SACK block; `each` sees those that are new.
    pub(crate) fn sack(&mut self, start: u64, end: u64, mut each: impl FnMut(&SentSegment)) {
        for (gap_start, gap_end) in self.sacked.gaps(start, end) {
            let mut index = self
                .segments
                .partition_point(|segment| segment.end() <= gap_start);
            while let Some(segment) = self.segments.get_mut(index)
                && segment.start < gap_end
            {
                index += 1;
                let is_whole = segment.start >= start && segment.end() <= end;
                if !is_whole || segment.sacked {
                    continue;
                }
                each(segment);
                segment.sacked = true;
                self.sacked_count += 1;
                self.lost_count -= u32::from(segment.lost);
                self.resent_count -= u32::from(segment.resent);
                (segment.lost, segment.resent) = (false, false);
                self.highest_sacked = self.highest_sacked.max(segment.end());
                self.sacked.insert(segment.start, segment.end());
            }
        }
    }

    /// Forgets all SACKs: the receiver reneged (RFC 2018 §8).
    pub(crate) fn renege(&mut self) {
        for segment in &mut self.segments {
            segment.sacked = false;
        }
        self.sacked_count = 0;
        self.sacked.clear();
        self.requeue();
    }

    /// Walks the transmissions that may be lost, oldest first, and marks those for which `is_lost`
    /// returns `true` until it returns `None`. Returns the number of marked segments.
    pub(crate) fn mark_by_time(
        &mut self,
        mut is_lost: impl FnMut(&SentSegment) -> Option<bool>,
    ) -> u32 {
        let mut marked = 0;
        let mut at = 0;
        while let Some((order, number)) = self.by_time.get(at).copied() {
            let current = self.get(number).filter(|segment| {
                segment.order == order && !segment.sacked && (!segment.lost || segment.resent)
            });
            let Some(segment) = current else {
                // Entries in the middle leave when they reach the front.
                if at == 0 {
                    self.by_time.pop_front();
                } else {
                    at += 1;
                }
                continue;
            };
            match is_lost(segment) {
                None => break,
                Some(false) => at += 1,
                Some(true) => {
                    marked += u32::from(self.mark_lost(number));
                    if at == 0 {
                        self.by_time.pop_front();
                    } else {
                        at += 1;
                    }
                }
            }
        }
        marked
    }

    /// Rebuilds the order of sending after segments have come back to it.
    fn requeue(&mut self) {
        let first = self.first;
        let mut order: Vec<(u64, u64)> = self
            .segments
            .iter()
            .zip(first..)
            .map(|(segment, number)| (segment.order, number))
            .collect();
        order.sort_unstable();
        self.by_time = order.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(segments: u64) -> SendScoreboard {
        let mut board = SendScoreboard::default();
        for index in 0..segments {
            board.push(Time::from_nanos(index), 1 + index * 100, 100);
        }
        board
    }

    #[test]
    fn sacked_segments_are_counted_once() {
        let mut board = board(10);
        let mut seen = Vec::new();
        board.sack(301, 501, |segment| seen.push(segment.start));
        board.sack(201, 601, |segment| seen.push(segment.start));
        // A block that covers a part of a segment says nothing about it.
        board.sack(801, 850, |segment| seen.push(segment.start));
        assert_eq!(seen, [301, 401, 201, 501]);
        assert_eq!((board.sacked_count(), board.in_flight()), (4, 6));
        assert_eq!(board.highest_sacked(), 601);
    }

    #[test]
    fn a_lost_segment_is_resent_and_lost_again() {
        let mut board = board(3);
        assert!(board.mark_lost(1));
        assert!(!board.mark_lost(1));
        assert_eq!(board.in_flight(), 2);
        assert_eq!(board.next_lost(), Some(1));
        board.resend(Time::from_nanos(10), 1);
        assert_eq!((board.in_flight(), board.next_lost()), (3, None));
        assert!(board.mark_lost(1));
        assert_eq!((board.in_flight(), board.next_lost()), (2, Some(1)));
        board.acknowledge(301, |_| {});
        assert_eq!(
            (board.count(), board.in_flight(), board.lost_count()),
            (0, 0, 0)
        );
    }

    #[test]
    fn partial_acknowledgement_shortens_the_front() {
        let mut board = board(2);
        board.acknowledge(51, |_| panic!("no whole segment is acknowledged"));
        let front = board.front().unwrap();
        assert_eq!((front.start, front.length), (51, 50));
    }

    #[test]
    fn order_of_sending_skips_what_arrived() {
        let mut board = board(4);
        board.sack(101, 201, |_| {});
        board.resend(Time::from_nanos(9), 0);
        let mut seen = Vec::new();
        board.mark_by_time(|segment| {
            seen.push(segment.start);
            Some(false)
        });
        assert_eq!(seen, [201, 301, 1]);
    }
}
