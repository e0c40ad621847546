//! The receiving half of a flow: what has arrived, what was read and consumed, and the credit
//! that the peer gets.
//!
//! ```text
//!  0 ─── consumed ────── read ───────────── received ───────── limit
//!        │ the decoder    │ waits to be     │ the peer may     │
//!        │ still works on │ read            │ send this        │
//! ```
//!
//! The window doubles when half of it was consumed within two round trips: then it, and not
//! the reader, holds the flow up. What the peer gets also depends on what is left of the
//! total, a quarter of it for each flow at most, so that a few flows whose readers stall leave
//! room for all others (the dynamic thresholds of Choudhury and Hahne, 1998).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use vocab::{FlowId, Time};

use crate::wire::{Ack, Seen};

/// Pieces below this are copied together, so that a small piece does not keep the whole read
/// of the link it arrived in alive.
const COPY_BELOW: usize = 4 << 10;

/// Copied pieces are joined up to this size.
const JOIN_UP_TO: usize = 16 << 10;

/// Credit that a flow gets however full the total is.
const LEAST_WINDOW: u64 = 64 << 10;

/// What the session knows that a flow's window depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    pub(super) now: Time,
    pub(super) round_trip: Option<Duration>,
    pub(super) window_limit: u64,
    /// Bytes of the total window that no flow holds.
    pub(super) total_free: u64,
}

/// Why arrived bytes cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    Gap,
    BeyondCredit,
    BeyondEnd,
    EndMoved,
}

/// When an acknowledgement should go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// With other frames, or after the delay.
    Later,
    /// Now: much has arrived, or the peer will soon want the credit.
    Now,
}

#[derive(Debug)]
pub(super) struct ReceiveHalf {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    received: u64,
    read: u64,
    consumed: u64,
    limit: u64,
    window: u64,
    final_offset: Option<u64>,
    told_received: u64,
    told_consumed: u64,
    epoch: Option<(Time, u64)>,
    /// Whether the engine was told of bytes it has not read to the end.
    pub(super) readable_told: bool,
    /// Whether the engine was told of the end.
    pub(super) finish_told: bool,
}

impl ReceiveHalf {
    pub(super) fn new(window: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
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

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn consumed(&self) -> u64 {
        self.consumed
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// What counts against the total.
    pub(super) fn unconsumed(&self) -> u64 {
        self.received - self.consumed
    }

    pub(super) fn is_finished(&self) -> bool {
        self.final_offset.is_some()
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
    pub(super) fn push(&mut self, offset: u64, bytes: &Bytes) -> Result<u64, Violation> {
        let end = offset + bytes.len() as u64;
        if end > self.limit {
            return Err(Violation::BeyondCredit);
        }
        if self.final_offset.is_some_and(|last| end > last) {
            return Err(Violation::BeyondEnd);
        }
        if offset > self.received {
            return Err(Violation::Gap);
        }
        if end <= self.received {
            return Ok(0);
        }
        let fresh = bytes.slice((self.received - offset) as usize..);
        let count = fresh.len() as u64;
        self.received = end;
        if fresh.len() < COPY_BELOW {
            self.tail.extend_from_slice(&fresh);
            if self.tail.len() >= JOIN_UP_TO {
                self.flush_tail();
            }
        } else {
            self.flush_tail();
            self.chunks.push_back(fresh);
        }
        Ok(count)
    }

    pub(super) fn finish(&mut self, final_offset: u64) -> Result<(), Violation> {
        match self.final_offset {
            Some(known) if known != final_offset => Err(Violation::EndMoved),
            Some(_) => Ok(()),
            None if final_offset < self.received => Err(Violation::EndMoved),
            None if final_offset > self.received => Err(Violation::Gap),
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

    /// Everything below `offset` is done with; returns how many bytes that frees.
    pub(super) fn consume(&mut self, offset: u64, around: &Surroundings) -> u64 {
        let offset = offset.min(self.read);
        let freed = offset.saturating_sub(self.consumed);
        self.consumed += freed;
        let (since, from) = *self.epoch.get_or_insert((around.now, self.consumed));
        if self.consumed - from >= self.window / 2 {
            let spent = around.now.since(since);
            let quick = around
                .round_trip
                .is_some_and(|round_trip| spent <= 2 * round_trip);
            if quick && self.window < around.window_limit {
                self.window = (2 * self.window).min(around.window_limit);
            }
            self.epoch = Some((around.now, self.consumed));
        }
        freed
    }

    /// Whether the peer should hear of the progress now.
    pub(super) fn urgency(&self, least_bytes: u64) -> Urgency {
        let step = least_bytes.max(self.window / 8);
        let progress = (self.received - self.told_received).max(self.consumed - self.told_consumed);
        if progress >= step.min(self.window / 4) {
            Urgency::Now
        } else {
            Urgency::Later
        }
    }

    /// What the peer is to be told, with as much credit as there is to give.
    pub(super) fn acknowledgement(&mut self, flow: FlowId, around: &Surroundings) -> Ack {
        let window = self.window.min(LEAST_WINDOW.max(around.total_free / 4));
        if self.final_offset.is_none() {
            self.limit = self.limit.max(self.consumed + window);
        }
        self.told_received = self.received;
        self.told_consumed = self.consumed;
        Ack {
            flow,
            received: self.received,
            consumed: self.consumed,
            limit: self.limit,
            finish: match self.final_offset {
                Some(_) => Seen::Seen,
                None => Seen::NotYet,
            },
        }
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(now: Time) -> Surroundings {
        Surroundings {
            now,
            round_trip: Some(Duration::from_millis(100)),
            window_limit: 1000,
            total_free: 1 << 30,
        }
    }

    #[test]
    fn what_arrives_twice_is_read_once() {
        let mut half = ReceiveHalf::new(100);
        assert_eq!(half.push(0, &Bytes::from_static(b"abc")), Ok(3));
        assert_eq!(half.push(1, &Bytes::from_static(b"bcde")), Ok(2));
        assert_eq!(half.push(0, &Bytes::from_static(b"ab")), Ok(0));
        assert_eq!(half.read(100), Some(Bytes::from_static(b"abcde")));
        assert_eq!(half.read(100), None);
    }

    #[test]
    fn gaps_credit_and_ends_are_kept() {
        let mut half = ReceiveHalf::new(4);
        let bytes = Bytes::from_static(b"abc");
        assert_eq!(half.push(1, &bytes), Err(Violation::Gap));
        assert_eq!(half.push(2, &bytes), Err(Violation::BeyondCredit));
        assert_eq!(half.push(0, &bytes), Ok(3));
        assert_eq!(half.finish(2), Err(Violation::EndMoved));
        assert_eq!(half.finish(4), Err(Violation::Gap));
        assert_eq!(half.finish(3), Ok(()));
        assert_eq!(half.finish(4), Err(Violation::EndMoved));
        assert_eq!(half.push(1, &bytes), Err(Violation::BeyondEnd));
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
            half.push(half.received(), &fill.into()).unwrap();
            while half.read(64).is_some() {}
            half.consume(offset, &around(now));
            half.acknowledgement(FlowId(0), &around(now));
            assert_eq!(half.window(), window, "at {now}");
        }
    }

    #[test]
    fn a_full_total_leaves_a_flow_its_least_window() {
        let mut half = ReceiveHalf::new(1 << 20);
        half.push(0, &vec![0; 1 << 20].into()).unwrap();
        while half.read(1 << 20).is_some() {}
        let mut around = around(Time::ZERO);
        half.consume(1 << 20, &around);
        around.total_free = 0;
        let ack = half.acknowledgement(FlowId(0), &around);
        assert_eq!(ack.limit, (1 << 20) + LEAST_WINDOW);
    }
}
