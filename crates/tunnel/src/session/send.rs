//! Sending half of a flow: the data that was written and sent, and that the peer has.
//!
//! ```text
//!  0 ─── base ──────────────── reached ─────── written      limit
//!        │ kept until the peer   │ was never     │            │ the peer's
//!        │ has all before it     │ sent          │            │ credit
//! ```
//!
//! Between `base` and `reached`, ranges in `again` have to be sent again, because their packet was
//! lost or the link has changed, and ranges in `arrived` are known to have arrived behind a gap.
//! Data to send again goes first.
//!
//! All data of a flow waits at the peer behind a lost piece, for a round trip each time that the piece is lost.
//! So a piece that was lost twice is sent twice: with 5 % of loss this adds 0.25 % of packets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use vocab::{ByteWriter, Time};

use crate::credit::{CreditPool, FlowCredit};
use crate::ranges::RangeSet;

/// State of the end of this side's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinishState {
    /// More may be written.
    Open,
    /// The engine has ended it; Finish is to be sent after the last byte.
    Wanted,
    /// Finish has been sent.
    Sent,
    /// The peer has Finish and every byte.
    Acknowledged,
}

/// Progress that an acknowledgement brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckProgress {
    /// Bytes that the peer was not known to have.
    pub(super) delivered: u64,
    /// Bytes newly consumed by the peer.
    pub(super) consumed: u64,
}

/// Approximate memory overhead of a kept piece, in bytes.
const PIECE_OVERHEAD: usize = 96;

/// Pieces of a flow that are sent between two copies of the same bytes: a burst of losses seldom takes both.
const COPY_BEHIND: u32 = 16;

/// Copies that wait at most. With more, each is one in hundreds of packets, and the path has other problems.
const COPIES_MAX: usize = 256;

/// Bytes that were sent more than once.
#[derive(Debug, Default)]
struct RepeatedBytes {
    resent: RangeSet,
    /// Bytes that were lost more than once, and are to be sent twice.
    stubborn: RangeSet,
    /// Second copies of such bytes, each with the number of pieces to send before it.
    copies: VecDeque<(u32, Range<u64>)>,
}

impl RepeatedBytes {
    fn lost(&mut self, range: Range<u64>) {
        for again in self.resent.common(range) {
            self.stubborn.insert(again);
        }
    }

    /// These bytes are sent again; those that were lost more than once get a second copy.
    fn sent(&mut self, range: Range<u64>) {
        for copy in self.stubborn.common(range.clone()) {
            self.stubborn.remove(copy.clone());
            if self.copies.len() < COPIES_MAX {
                self.copies.push_back((COPY_BEHIND, copy));
            }
        }
        self.resent.insert(range);
    }

    /// Takes the copies whose time has come, when another piece was sent; all of them if the flow is idle.
    fn due_copies(&mut self, is_idle: bool) -> Vec<Range<u64>> {
        for (behind, _) in &mut self.copies {
            *behind = behind.saturating_sub(1);
        }
        let mut due = Vec::new();
        while let Some((_, range)) =
            (self.copies).pop_front_if(|(behind, _)| *behind == 0 || is_idle)
        {
            due.push(range);
        }
        due
    }
}

#[derive(Debug)]
pub(super) struct SendHalf {
    /// Kept data, each piece with its offset.
    chunks: VecDeque<(u64, Bytes)>,
    base: u64,
    reached: u64,
    written: u64,
    limit: u64,
    consumed: u64,
    again: RangeSet,
    arrived: RangeSet,
    /// `None` until bytes are sent again: most flows are idle, and there are many.
    repeated: Option<Box<RepeatedBytes>>,
    pub(super) ending: FinishState,
    /// True if the engine found little room when it last asked, and waits for `Writable`.
    pub(super) wants_room: Cell<bool>,
    /// Bytes that the peer's reader is known to consume in time, see [`crate::credit`].
    proven: u64,
    retransmitted: u64,
    blocked_since: Option<Time>,
    blocked: Duration,
}

impl SendHalf {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            base: 0,
            reached: 0,
            written: 0,
            limit,
            consumed: 0,
            again: RangeSet::default(),
            arrived: RangeSet::default(),
            repeated: None,
            ending: FinishState::Open,
            wants_room: Cell::new(false),
            proven: 0,
            retransmitted: 0,
            blocked_since: None,
            blocked: Duration::ZERO,
        }
    }

    pub(super) fn write(&mut self, bytes: Bytes) {
        let offset = self.written;
        self.written += bytes.len() as u64;
        self.chunks.push_back((offset, bytes));
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the offset up to which bytes were ever sent.
    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(super) fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    pub(super) fn blocked(&self, now: Time) -> Duration {
        self.blocked
            + self
                .blocked_since
                .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Bytes that were never sent.
    pub(super) fn unsent(&self) -> u64 {
        self.written - self.reached
    }

    /// Bytes sent and not yet consumed by the peer: what counts against the total credit.
    pub(super) fn outstanding(&self) -> u64 {
        self.reached - self.consumed
    }

    /// Returns the flow's part in the division of the total credit.
    pub(super) fn holding(&self) -> FlowCredit {
        FlowCredit {
            committed: self.written - self.consumed,
            behind: self.base.saturating_sub(self.consumed),
            proven: self.proven,
        }
    }

    /// Records that the peer's reader consumed `consumed` more bytes.
    pub(super) fn note_consumed(&mut self, pool: &CreditPool, consumed: u64) {
        self.proven = pool.proven(self.holding(), consumed);
    }

    /// Bytes of memory that the half takes beside itself, about.
    pub(super) fn memory(&self) -> usize {
        // Of a piece that the peer has in part all is kept.
        let front = self.chunks.front();
        let kept = front.map_or(0, |(offset, _)| self.written - offset);
        kept as usize + self.chunks.len() * PIECE_OVERHEAD
    }

    /// Credit beyond the written data, in bytes.
    pub(super) fn credit(&self) -> u64 {
        self.limit.saturating_sub(self.written)
    }

    /// Bytes that may be sent again without touching any credit.
    pub(super) fn repeatable(&self) -> u64 {
        self.again.total()
    }

    /// Bytes that may be sent for the flow's own credit.
    pub(super) fn sendable(&self) -> u64 {
        self.again.total() + self.fresh()
    }

    /// Bytes never sent that the flow's own credit lets out.
    fn fresh(&self) -> u64 {
        self.written.min(self.limit.max(self.reached)) - self.reached
    }

    /// Returns the range to send next in one piece; empty when there is nothing.
    pub(super) fn next(&self) -> Range<u64> {
        self.again
            .first()
            .unwrap_or(self.reached..self.reached + self.fresh())
    }

    /// Returns `true` if Finish is sent next.
    pub(super) fn finish_due(&self) -> bool {
        self.ending == FinishState::Wanted && self.again.is_empty() && self.reached == self.written
    }

    /// Notes from when on bytes wait for the peer's credit.
    pub(super) fn note_blocked(&mut self, now: Time) {
        if self.sendable() == 0 && self.reached < self.written {
            self.blocked_since.get_or_insert(now);
        }
    }

    /// Copies the first `count` bytes of [`Self::next`] to `out`. Returns how many of them had
    /// been sent before.
    pub(super) fn take(&mut self, count: usize, out: &mut ByteWriter) -> u64 {
        let range = self.next();
        let range = range.start..range.end.min(range.start + count as u64);
        debug_assert_eq!(range.end - range.start, count as u64, "the caller asked");
        self.copy(range.clone(), out);
        let again = if range.start < self.reached {
            self.again.remove(range.clone());
            self.retransmitted += count as u64;
            self.repeated.get_or_insert_default().sent(range);
            count as u64
        } else {
            self.reached = range.end;
            0
        };
        self.release_copies();
        again
    }

    /// Lets copies go whose time has come; all of them if there is nothing else to send.
    fn release_copies(&mut self) {
        let is_idle = self.again.is_empty() && self.fresh() == 0;
        let Some(repeated) = &mut self.repeated else {
            return;
        };
        for range in repeated.due_copies(is_idle) {
            let range = range.start.max(self.base)..range.end.min(self.reached);
            for range in self.arrived.missing(range) {
                self.again.insert(range);
            }
        }
    }

    fn copy(&self, range: Range<u64>, out: &mut ByteWriter) {
        let mut at = range.start;
        let mut index = self.chunks.partition_point(|(offset, _)| *offset <= at);
        index = index.saturating_sub(1);
        while at < range.end {
            let (offset, chunk) = &self.chunks[index];
            let from = (at - offset) as usize;
            let to = chunk.len().min((range.end - offset) as usize);
            out.bytes(&chunk[from..to]);
            at = offset + to as u64;
            index += 1;
        }
    }

    /// Takes the peer's word; `None` when it claims what cannot be.
    pub(super) fn acknowledge(
        &mut self,
        now: Time,
        received: u64,
        consumed: u64,
        limit: u64,
    ) -> Option<AckProgress> {
        if received > self.reached {
            return None;
        }
        let known = self.known();
        // Acknowledgements may overtake each other: an older one says nothing new.
        self.drop_below(received);
        let delivered = self.known() - known;
        if limit > self.limit {
            self.limit = limit;
            if let Some(since) = self.blocked_since.take() {
                self.blocked += now.since(since);
            }
        }
        let newly = consumed.saturating_sub(self.consumed);
        self.consumed = self.consumed.max(consumed);
        Some(AckProgress {
            delivered,
            consumed: newly,
        })
    }

    /// Bytes that the peer is known to have, in order or behind gaps.
    fn known(&self) -> u64 {
        self.base + self.arrived.total()
    }

    /// Takes Finish as arrived; `None` when it cannot have.
    pub(super) fn acknowledge_finish(&mut self, received: u64) -> Option<()> {
        match self.ending {
            // An end that is to be sent again was sent before.
            FinishState::Wanted | FinishState::Sent | FinishState::Acknowledged
                if received == self.written && self.reached == self.written =>
            {
                self.ending = FinishState::Acknowledged;
                Some(())
            }
            FinishState::Open
            | FinishState::Wanted
            | FinishState::Sent
            | FinishState::Acknowledged => None,
        }
    }

    /// Marks all data that the peer is not known to have to be sent again, on a new link.
    pub(super) fn rewind(&mut self) {
        for range in self.arrived.missing(self.base..self.reached) {
            self.again.insert(range);
        }
        if self.ending == FinishState::Sent {
            self.ending = FinishState::Wanted;
        }
    }

    /// The packet that carried these bytes is lost.
    pub(super) fn lost(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.reached);
        for range in self.arrived.missing(range) {
            if let Some(repeated) = &mut self.repeated {
                repeated.lost(range.clone());
            }
            self.again.insert(range);
        }
    }

    /// The packet that carried the end is lost.
    pub(super) fn lost_finish(&mut self) {
        if self.ending == FinishState::Sent {
            self.ending = FinishState::Wanted;
        }
    }

    /// Records that these bytes have arrived: they need not be sent again, and wait at the peer for
    /// the data before them. Returns the number of bytes that the peer was not known to have.
    pub(super) fn arrived(&mut self, range: Range<u64>) -> u64 {
        let known = self.known();
        let range = range.start.max(self.base)..range.end.min(self.reached);
        self.again.remove(range.clone());
        self.arrived.insert(range);
        self.known() - known
    }

    fn drop_below(&mut self, received: u64) {
        if received <= self.base {
            return;
        }
        self.again.remove(self.base..received);
        self.arrived.remove(self.base..received);
        if let Some(repeated) = &mut self.repeated {
            repeated.resent.remove(self.base..received);
            repeated.stubborn.remove(self.base..received);
        }
        self.base = received;
        while self
            .chunks
            .pop_front_if(|(offset, front)| *offset + front.len() as u64 <= received)
            .is_some()
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(half: &mut SendHalf, count: usize) -> Vec<u8> {
        let mut out = ByteWriter::new();
        half.take(count, &mut out);
        out.finish().to_vec()
    }

    #[test]
    fn unacknowledged_bytes_are_kept_and_resent() {
        let mut half = SendHalf::new(100);
        half.write(Bytes::from_static(b"abc"));
        half.write(Bytes::from_static(b"defgh"));
        assert_eq!(taken(&mut half, 5), b"abcde");
        assert!(half.acknowledge(Time::ZERO, 2, 0, 100).is_some());
        half.rewind();
        assert_eq!(half.repeatable(), 3);
        assert_eq!(half.next(), 2..5);
        assert_eq!(taken(&mut half, 3), b"cde");
        assert_eq!(taken(&mut half, 1), b"f");
        assert_eq!(half.retransmitted(), 3);
        half.rewind();
        assert!(half.acknowledge(Time::ZERO, 6, 6, 100).is_some());
        assert_eq!(taken(&mut half, 2), b"gh");
        assert_eq!(half.unsent(), 0);
    }

    #[test]
    fn only_lost_data_is_resent_and_first() {
        let mut half = SendHalf::new(100);
        half.write(Bytes::from_static(b"abcdefghij"));
        for _ in 0..4 {
            taken(&mut half, 2);
        }
        half.lost(2..4);
        half.lost(4..6);
        assert_eq!(half.sendable(), 6);
        // The packet had only come late.
        assert_eq!(half.arrived(4..6), 2);
        assert_eq!(half.arrived(4..5), 0, "known");
        assert_eq!(half.next(), 2..4);
        assert_eq!(taken(&mut half, 1), b"c");
        assert_eq!(taken(&mut half, 1), b"d");
        assert_eq!(half.next(), 8..10);
        half.rewind();
        assert_eq!(taken(&mut half, 4), b"abcd");
        assert_eq!(taken(&mut half, 2), b"gh");
        assert!(half.acknowledge(Time::ZERO, 8, 0, 100).is_some());
        half.lost(0..8);
        assert_eq!(taken(&mut half, 2), b"ij");
    }

    #[test]
    fn bytes_that_were_lost_twice_are_sent_twice() {
        let other = usize::try_from(COPY_BEHIND).unwrap();
        let lost_twice = || {
            let mut half = SendHalf::new(100);
            half.write(Bytes::from_static(&[7; 60]));
            taken(&mut half, 2);
            half.lost(0..2);
            assert_eq!(half.next(), 0..2);
            taken(&mut half, 2);
            assert_eq!(half.next(), 2..60, "once lost, once again");
            half.lost(0..2);
            taken(&mut half, 2);
            half
        };
        let mut half = lost_twice();
        for piece in 1..other {
            assert_eq!(half.next().start as usize, 1 + piece);
            taken(&mut half, 1);
        }
        assert_eq!(half.next(), 0..2, "the copy");
        taken(&mut half, 2);
        assert_eq!(half.next().start as usize, 1 + other);
        taken(&mut half, 60 - 1 - other);
        assert_eq!(half.sendable(), 0, "two of them are enough");
        // The first of both has arrived.
        let mut half = lost_twice();
        half.arrived(0..2);
        taken(&mut half, 58);
        assert_eq!(half.sendable(), 0);
        // There is nothing else to send.
        let mut half = lost_twice();
        taken(&mut half, 58);
        assert_eq!(half.next(), 0..2);
    }

    #[test]
    fn lost_finish_is_resent_after_the_data() {
        let mut half = SendHalf::new(100);
        half.write(Bytes::from_static(b"ab"));
        half.ending = FinishState::Wanted;
        taken(&mut half, 2);
        assert!(half.finish_due());
        half.ending = FinishState::Sent;
        half.lost(0..2);
        half.lost_finish();
        assert!(!half.finish_due());
        taken(&mut half, 2);
        assert!(half.finish_due());
    }

    #[test]
    fn more_than_was_sent_cannot_be_acknowledged() {
        let mut half = SendHalf::new(100);
        half.write(Bytes::from_static(b"abc"));
        assert_eq!(half.acknowledge(Time::ZERO, 1, 0, 100), None);
        assert_eq!(half.acknowledge_finish(0), None);
    }

    #[test]
    fn time_without_credit_is_counted() {
        let mut half = SendHalf::new(2);
        half.write(Bytes::from_static(b"abc"));
        taken(&mut half, 2);
        half.note_blocked(Time::ZERO);
        let later = Time::ZERO + Duration::from_millis(40);
        assert!(half.acknowledge(later, 2, 2, 10).is_some());
        assert_eq!(half.blocked(later), Duration::from_millis(40));
        assert_eq!(half.sendable(), 1);
    }
}
