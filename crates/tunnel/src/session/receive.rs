//! Receiving half of a flow: the data that has arrived, was read and was consumed, and the credit
//! that the peer gets.
//!
//! ```text
//!  0 ─── consumed ────── read ───────────── received ─ ─ ─── ─ limit
//!        │ the decoder    │ waits to be     │ the peer may     │
//!        │ still works on │ read            │ send this        │
//! ```
//!
//! Data behind a gap is held until the gap is filled. The credit bounds its bytes, and the session
//! bounds the number of its pieces; small adjacent pieces are joined.
//!
//! A flow begins with the credit that both sides agreed on. Where earlier flows of the session have reached
//! a greater window, its first acknowledgement grants more, so that it fills a known path after one round
//! trip. The window doubles when half of it was consumed within four round trips. It is then at most
//! eight times the data in flight, so that a packet may be lost a few times in a row, with the data
//! behind it waiting, before the flow stops. The peer's credit also depends on the rest of the
//! total, half of it for each flow at most, so that a few flows with stalled readers leave room for
//! all others: one holds a third of the total, four hold two thirds (the dynamic thresholds of
//! Choudhury and Hahne, 1998).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowId, Time};

use crate::credit::LEAST_WINDOW;
use crate::limits::DATA_LIMIT;
use crate::wire::{FlowAck, ReceiptState};

/// Size at which a receive buffer is closed, in bytes. Received data is copied into such buffers,
/// because a slice of a read would keep the whole read in memory, and most of it may be old data or
/// another flow's.
const JOIN_UP_TO: usize = 16 << 10;

/// Size of a receive buffer for flows with much data, in bytes: room for what closes one and for
/// the largest frame behind it.
const JOINED: usize = JOIN_UP_TO + DATA_LIMIT;

/// Approximate memory overhead of a kept piece, in bytes: its place in a list or a tree, and its
/// buffer's header.
const PIECE_OVERHEAD: usize = 128;

/// A piece behind a gap below this is joined to those beside it ...
const JOIN_HELD_BELOW: usize = 512;

/// ... up to this size: a terminal's bytes, each in a packet of its own, cost little more than they
/// are, and each is copied a few times at most.
const JOIN_HELD_UP_TO: usize = 2 * JOIN_HELD_BELOW;

/// Session state that a flow's window depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowContext {
    pub(super) now: Time,
    pub(super) round_trip: Option<Duration>,
    pub(super) window_limit: u64,
    /// Bytes of the total window that no flow holds.
    pub(super) total_free: u64,
}

/// Protocol violation of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveViolation {
    BeyondCredit,
    BeyondEnd,
    EndMoved,
}

/// Urgency of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckUrgency {
    /// With other frames, or after the delay.
    Later,
    /// Now: much has arrived, or the peer will soon want the credit.
    Now,
}

#[derive(Debug)]
pub(super) struct ReceiveHalf {
    chunks: VecDeque<Bytes>,
    tail: Vec<u8>,
    /// Data received behind a gap, by offset; the pieces do not overlap.
    held: BTreeMap<u64, Bytes>,
    held_bytes: u64,
    received: u64,
    read: u64,
    consumed: u64,
    limit: u64,
    window: u64,
    final_offset: Option<u64>,
    told_received: u64,
    told_consumed: u64,
    epoch: Option<(Time, u64)>,
    /// True if the engine was told of bytes that it has not read to the end.
    pub(super) readable_told: bool,
    /// True if the engine was told of the end.
    pub(super) finish_told: bool,
}

impl ReceiveHalf {
    pub(super) fn new(window: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            tail: Vec::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            received: 0,
            read: 0,
            consumed: 0,
            limit: window,
            window,
            final_offset: None,
            told_received: 0,
            told_consumed: 0,
            epoch: None,
            readable_told: false,
            finish_told: false,
        }
    }

    /// Takes over a window that another flow has reached. The peer is told with the next
    /// acknowledgement.
    pub(super) fn take_over(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Bytes that count against the total credit.
    pub(super) fn unconsumed(&self) -> u64 {
        self.received + self.held_bytes - self.consumed
    }

    /// Bytes of memory that the half takes beside itself, about.
    pub(super) fn memory(&self) -> usize {
        let waiting = (self.received - self.read) as usize - self.tail.len();
        let pieces = self.chunks.len() + self.held.len();
        waiting + self.tail.capacity() + self.held_bytes as usize + pieces * PIECE_OVERHEAD
    }

    /// Pieces held behind gaps.
    pub(super) fn pieces(&self) -> usize {
        self.held.len()
    }

    /// The end is known and nothing before it is missing.
    pub(super) fn is_finished(&self) -> bool {
        self.final_offset == Some(self.received)
    }

    /// The end has arrived and every byte was read.
    pub(super) fn is_read_to_end(&self) -> bool {
        self.final_offset == Some(self.read)
    }

    /// The end has arrived and every byte was consumed.
    pub(super) fn is_consumed_to_end(&self) -> bool {
        self.final_offset == Some(self.consumed)
    }

    pub(super) fn has_unread(&self) -> bool {
        self.read < self.received
    }

    /// Takes bytes in; returns how many of them are new.
    pub(super) fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<u64, ReceiveViolation> {
        let end = offset + bytes.len() as u64;
        if end > self.limit {
            return Err(ReceiveViolation::BeyondCredit);
        }
        if self.final_offset.is_some_and(|last| end > last) {
            return Err(ReceiveViolation::BeyondEnd);
        }
        if end <= self.received {
            return Ok(0);
        }
        if offset > self.received {
            return Ok(self.hold(offset, bytes));
        }
        let before = self.received + self.held_bytes;
        let known = (self.received - offset) as usize;
        self.append(&bytes[known..]);
        self.release();
        Ok(self.received + self.held_bytes - before)
    }

    /// Appends bytes that follow the received ones.
    fn append(&mut self, fresh: &[u8]) {
        self.received += fresh.len() as u64;
        if self.tail.capacity() == 0 && !self.chunks.is_empty() {
            self.tail.reserve_exact(JOINED);
        }
        self.tail.extend_from_slice(fresh);
        if self.tail.len() >= JOIN_UP_TO {
            self.flush_tail();
        }
    }

    /// Moves held pieces that now follow to the received bytes, and drops duplicate ones.
    fn release(&mut self) {
        while let Some(entry) = self.held.first_entry()
            && *entry.key() <= self.received
        {
            let (offset, piece) = entry.remove_entry();
            self.held_bytes -= piece.len() as u64;
            let known = (self.received - offset) as usize;
            if known < piece.len() {
                self.append(&piece[known..]);
            }
        }
    }

    /// Keeps bytes behind a gap; returns how many of them are new.
    fn hold(&mut self, mut offset: u64, mut bytes: &[u8]) -> u64 {
        let before = self.held_bytes;
        if let Some((start, piece)) = self.held.range(..=offset).next_back() {
            let known = (start + piece.len() as u64).saturating_sub(offset);
            let known = (known as usize).min(bytes.len());
            bytes = &bytes[known..];
            offset += known as u64;
        }
        while !bytes.is_empty() {
            let end = offset + bytes.len() as u64;
            let next = self.held.range(offset..).next();
            let (until, from) = next.map_or((end, end), |(start, piece)| {
                ((*start).min(end), (start + piece.len() as u64).min(end))
            });
            if until > offset {
                self.keep(offset, &bytes[..(until - offset) as usize]);
            }
            let from = from.max(until);
            bytes = &bytes[(from - offset) as usize..];
            offset = from;
        }
        self.held_bytes - before
    }

    /// Keeps bytes that nothing overlaps, in a copy: a socket hands on packets by the dozen in one
    /// piece of memory, and one that waits here must not keep all of them alive.
    fn keep(&mut self, offset: u64, piece: &[u8]) {
        self.held_bytes += piece.len() as u64;
        if piece.len() >= JOIN_HELD_BELOW {
            self.held.insert(offset, Bytes::copy_from_slice(piece));
            return;
        }
        let end = offset + piece.len() as u64;
        let (mut start, mut joined) = (offset, Vec::with_capacity(piece.len()));
        if let Some((before, bytes)) = self.held.range(..offset).next_back()
            && before + bytes.len() as u64 == offset
            && bytes.len() + piece.len() <= JOIN_HELD_UP_TO
        {
            start = *before;
            joined.extend_from_slice(bytes);
        }
        joined.extend_from_slice(piece);
        if let Some(bytes) = self.held.get(&end)
            && joined.len() + bytes.len() <= JOIN_HELD_UP_TO
        {
            joined.extend_from_slice(bytes);
            self.held.remove(&end);
        }
        self.held.insert(start, joined.into());
    }

    pub(super) fn finish(&mut self, final_offset: u64) -> Result<(), ReceiveViolation> {
        let reached = self
            .held
            .last_key_value()
            .map_or(self.received, |(offset, piece)| offset + piece.len() as u64);
        match self.final_offset {
            Some(known) if known != final_offset => Err(ReceiveViolation::EndMoved),
            Some(_) => Ok(()),
            None if final_offset < reached => Err(ReceiveViolation::EndMoved),
            None if final_offset > self.limit => Err(ReceiveViolation::BeyondCredit),
            None => {
                self.final_offset = Some(final_offset);
                Ok(())
            }
        }
    }

    pub(super) fn read(&mut self, max: usize) -> Option<Bytes> {
        if self.chunks.is_empty() {
            self.flush_tail();
        }
        let front = self.chunks.front_mut().filter(|_| max > 0)?;
        let part = if front.len() <= max {
            self.chunks.pop_front()?
        } else {
            front.split_to(max)
        };
        self.read += part.len() as u64;
        Some(part)
    }

    /// Records that everything below `offset` is consumed. Returns the number of bytes that are
    /// freed.
    pub(super) fn consume(&mut self, offset: u64, around: &WindowContext) -> u64 {
        let offset = offset.min(self.read);
        let freed = offset.saturating_sub(self.consumed);
        self.consumed += freed;
        let (since, from) = *self.epoch.get_or_insert((around.now, self.consumed));
        if self.consumed - from >= self.window / 2 {
            let spent = around.now.since(since);
            let quick = around
                .round_trip
                .is_some_and(|round_trip| spent <= 4 * round_trip);
            if quick && self.window < around.window_limit {
                self.window = (2 * self.window).min(around.window_limit);
            }
            self.epoch = Some((around.now, self.consumed));
        }
        freed
    }

    /// Returns whether the peer should be told of the progress now.
    pub(super) fn urgency(&self, least_bytes: u64) -> AckUrgency {
        let step = least_bytes.max(self.window / 8);
        let progress = (self.received - self.told_received).max(self.consumed - self.told_consumed);
        if progress >= step.min(self.window / 4) {
            AckUrgency::Now
        } else {
            AckUrgency::Later
        }
    }

    /// Returns the acknowledgement for the peer, with as much credit as is available.
    pub(super) fn acknowledgement(&mut self, flow: FlowId, around: &WindowContext) -> FlowAck {
        let window = self.window.min(LEAST_WINDOW.max(around.total_free / 2));
        if self.final_offset.is_none() {
            self.limit = self.limit.max(self.consumed + window);
        }
        self.told_received = self.received;
        self.told_consumed = self.consumed;
        FlowAck {
            flow,
            received: self.received,
            consumed: self.consumed,
            limit: self.limit,
            finish: if self.is_finished() {
                ReceiptState::Seen
            } else {
                ReceiptState::NotYet
            },
        }
    }

    /// Moves the gathered bytes to the data that waits to be read; its buffer stays empty.
    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            let mut tail = std::mem::take(&mut self.tail);
            if tail.len() < tail.capacity() / 2 {
                tail.shrink_to_fit();
            }
            self.chunks.push_back(tail.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(now: Time) -> WindowContext {
        WindowContext {
            now,
            round_trip: Some(Duration::from_millis(100)),
            window_limit: 1000,
            total_free: 1 << 30,
        }
    }

    #[test]
    fn duplicate_data_is_read_once() {
        let mut half = ReceiveHalf::new(100);
        assert_eq!(half.push(0, &Bytes::from_static(b"abc")), Ok(3));
        assert_eq!(half.push(1, &Bytes::from_static(b"bcde")), Ok(2));
        assert_eq!(half.push(0, &Bytes::from_static(b"ab")), Ok(0));
        assert_eq!(half.read(100), Some(Bytes::from_static(b"abcde")));
        assert_eq!(half.read(100), None);
    }

    /// A peer may send few new bytes between many old ones.
    #[test]
    fn waiting_data_has_little_memory_overhead() {
        let frame = [0; 20_000];
        for step in [1, 100, 4_096, 12_000] {
            let mut half = ReceiveHalf::new(1 << 20);
            for end in (step..20_000).step_by(step) {
                assert_eq!(half.push(0, &frame[..end]), Ok(step as u64));
            }
            let memory = half.memory();
            assert!(memory < 2 * 20_000 + JOINED, "{step} by {step}: {memory}");
            while half.read(100_000).is_some() {}
            assert_eq!(half.memory(), 0);
        }
    }

    #[test]
    fn gaps_credit_and_ends_are_kept() {
        let mut half = ReceiveHalf::new(4);
        let bytes = Bytes::from_static(b"abc");
        assert_eq!(half.push(2, &bytes), Err(ReceiveViolation::BeyondCredit));
        assert_eq!(half.push(1, &bytes), Ok(3));
        assert_eq!(half.finish(3), Err(ReceiveViolation::EndMoved));
        assert_eq!(half.push(0, &bytes), Ok(1));
        assert_eq!(half.finish(5), Err(ReceiveViolation::BeyondCredit));
        assert_eq!(half.finish(3), Err(ReceiveViolation::EndMoved));
        assert_eq!(half.finish(4), Ok(()));
        assert_eq!(half.finish(3), Err(ReceiveViolation::EndMoved));
        assert!(half.is_finished());
        assert_eq!(half.push(2, &bytes), Err(ReceiveViolation::BeyondCredit));
    }

    #[test]
    fn data_beyond_the_finish_is_refused() {
        let mut half = ReceiveHalf::new(100);
        assert_eq!(half.finish(4), Ok(()));
        assert!(!half.is_finished());
        let around = around(Time::ZERO);
        assert_eq!(
            half.acknowledgement(FlowId(0), &around).finish,
            ReceiptState::NotYet
        );
        assert_eq!(
            half.push(2, &Bytes::from_static(b"cde")),
            Err(ReceiveViolation::BeyondEnd)
        );
        assert_eq!(half.push(2, &Bytes::from_static(b"cd")), Ok(2));
        assert_eq!(half.push(0, &Bytes::from_static(b"ab")), Ok(2));
        assert!(half.is_finished());
        assert_eq!(
            half.acknowledgement(FlowId(0), &around).finish,
            ReceiptState::Seen
        );
    }

    /// Bytes that arrive one by one behind a gap, in whatever order, as a terminal's do.
    #[test]
    fn small_pieces_behind_a_gap_are_joined() {
        let count = 20_000;
        let orders: [Vec<u64>; 3] = [
            (1..count).collect(),
            (1..count).rev().collect(),
            (0..7)
                .flat_map(|phase| (1 + phase..count).step_by(7))
                .collect(),
        ];
        for order in orders {
            let mut half = ReceiveHalf::new(1 << 20);
            for offset in order {
                let byte = Bytes::from(vec![offset as u8]);
                assert_eq!(half.push(offset, &byte), Ok(1));
            }
            assert!(half.pieces() <= 2 * (count as usize).div_ceil(JOIN_HELD_UP_TO));
            assert_eq!(half.push(0, &Bytes::from_static(b"x")), Ok(1));
            assert_eq!((half.received(), half.pieces()), (count, 0));
            let mut at = 0;
            while let Some(bytes) = half.read(1 << 20) {
                for byte in bytes {
                    assert!(at == 0 || byte == at as u8);
                    at += 1;
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn pieces_in_any_order_make_the_stream(
            pieces in proptest::collection::vec((0_u64..400, 1_usize..60), 0..80),
        ) {
            let stream: Vec<u8> = (0..460_u32).map(|byte| (byte * 7 + byte / 256) as u8).collect();
            let mut half = ReceiveHalf::new(460);
            let mut there = vec![false; stream.len()];
            let all = [(0, 200), (150, 310)];
            for (offset, length) in pieces.into_iter().chain(all) {
                let range = offset as usize..offset as usize + length;
                let fresh = there[range.clone()].iter().filter(|there| !**there).count();
                there[range.clone()].fill(true);
                let bytes = Bytes::copy_from_slice(&stream[range]);
                proptest::prop_assert_eq!(half.push(offset, &bytes), Ok(fresh as u64));
                let held = there.iter().filter(|there| **there).count() as u64;
                proptest::prop_assert_eq!(half.unconsumed(), held);
                let whole = there.iter().take_while(|there| **there).count() as u64;
                proptest::prop_assert_eq!(half.received(), whole);
            }
            let mut read = Vec::new();
            while let Some(bytes) = half.read(100) {
                read.extend_from_slice(&bytes);
            }
            proptest::prop_assert_eq!(read, stream);
        }
    }

    #[test]
    fn the_window_grows_for_a_quick_reader_only() {
        let mut half = ReceiveHalf::new(100);
        let slow = Time::ZERO + Duration::from_secs(1);
        let quick = slow + Duration::from_millis(50);
        let end = quick + Duration::from_millis(50);
        for (now, offset, window) in [
            (Time::ZERO, 10, 100),
            (slow, 60, 100),
            (quick, 110, 200),
            (end, 200, 200),
        ] {
            let fill = vec![0; (offset - half.received()) as usize];
            half.push(half.received(), &fill).unwrap();
            while half.read(64).is_some() {}
            half.consume(offset, &around(now));
            half.acknowledgement(FlowId(0), &around(now));
            assert_eq!(half.window(), window, "at {now}");
        }
    }

    #[test]
    fn known_window_is_granted_with_the_first_acknowledgement() {
        let mut half = ReceiveHalf::new(100);
        half.take_over(400);
        assert_eq!(half.push(0, &[0; 101]), Err(ReceiveViolation::BeyondCredit));
        half.push(0, &[0; 10]).unwrap();
        let ack = half.acknowledgement(FlowId(0), &around(Time::ZERO));
        assert_eq!(ack.limit, 400);
    }

    #[test]
    fn exhausted_total_leaves_the_least_window() {
        let mut half = ReceiveHalf::new(1 << 20);
        half.push(0, &vec![0; 1 << 20]).unwrap();
        while half.read(1 << 20).is_some() {}
        let mut around = around(Time::ZERO);
        half.consume(1 << 20, &around);
        around.total_free = 0;
        let ack = half.acknowledgement(FlowId(0), &around);
        assert_eq!(ack.limit, (1 << 20) + LEAST_WINDOW);
    }
}
