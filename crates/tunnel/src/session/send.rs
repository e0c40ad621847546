//! The sending half of a flow: what was written, what of it was sent, and what the peer has.
//!
//! ```text
//!  0 ─── base ───────────── sent ────────── written      limit
//!        │ kept until the    │ waits to be   │            │ the peer's
//!        │ peer has it       │ sent (again)  │            │ credit
//! ```
//!
//! After a change of links `sent` goes back to what the peer says it has; `reached` remembers
//! how far it had been. A link that loses single frames would go back over ranges instead; that
//! is a change of this file only.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use vocab::{Time, Writer};

/// How far the end of our direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// More may be written.
    Open,
    /// The engine has ended it; Finish is to be sent after the last byte.
    Wanted,
    /// Finish has been sent.
    Sent,
    /// The peer has Finish and every byte.
    Acknowledged,
}

/// What acknowledging did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes newly consumed by the peer.
    pub(super) consumed: u64,
}

#[derive(Debug)]
pub(super) struct SendHalf {
    chunks: VecDeque<Bytes>,
    /// The chunk that the next byte to send is in, and where in it.
    cursor: (usize, usize),
    base: u64,
    sent: u64,
    reached: u64,
    written: u64,
    limit: u64,
    consumed: u64,
    pub(super) ending: Ending,
    /// Whether the engine found little room when it last asked, and waits for `Writable`.
    pub(super) wants_room: Cell<bool>,
    retransmitted: u64,
    blocked_since: Option<Time>,
    blocked: Duration,
}

impl SendHalf {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            cursor: (0, 0),
            base: 0,
            sent: 0,
            reached: 0,
            written: 0,
            limit,
            consumed: 0,
            ending: Ending::Open,
            wants_room: Cell::new(false),
            retransmitted: 0,
            blocked_since: None,
            blocked: Duration::ZERO,
        }
    }

    pub(super) fn write(&mut self, bytes: Bytes) {
        self.written += bytes.len() as u64;
        self.chunks.push_back(bytes);
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// How far bytes were ever sent.
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

    /// Credit beyond what is written.
    pub(super) fn credit(&self) -> u64 {
        self.limit.saturating_sub(self.written)
    }

    /// Bytes that may be sent again without touching any credit.
    pub(super) fn repeatable(&self) -> u64 {
        self.reached - self.sent
    }

    /// Bytes that may be sent for the flow's own credit.
    pub(super) fn sendable(&self) -> u64 {
        self.written.min(self.limit.max(self.reached)) - self.sent
    }

    /// Whether Finish goes out next.
    pub(super) fn finish_due(&self) -> bool {
        self.ending == Ending::Wanted && self.sent == self.written
    }

    /// Notes from when on bytes wait for the peer's credit.
    pub(super) fn note_blocked(&mut self, now: Time) {
        if self.sendable() == 0 && self.sent < self.written {
            self.blocked_since.get_or_insert(now);
        }
    }

    /// Copies the next `count` bytes to `out`; the caller has asked `sendable`. Returns how
    /// many of them had been sent before.
    pub(super) fn take(&mut self, count: usize, out: &mut Writer) -> u64 {
        let mut left = count;
        while left > 0 {
            let (index, from) = self.cursor;
            let chunk = &self.chunks[index];
            let part = left.min(chunk.len() - from);
            out.bytes(&chunk[from..from + part]);
            left -= part;
            self.cursor = if from + part == chunk.len() {
                (index + 1, 0)
            } else {
                (index, from + part)
            };
        }
        let again = self.repeatable().min(count as u64);
        self.retransmitted += again;
        self.sent += count as u64;
        self.reached = self.reached.max(self.sent);
        again
    }

    /// Takes the peer's word; `None` when it claims what cannot be.
    pub(super) fn acknowledge(
        &mut self,
        now: Time,
        received: u64,
        consumed: u64,
        limit: u64,
    ) -> Option<Progress> {
        if received > self.reached {
            return None;
        }
        // Acknowledgements may overtake each other on some links: an older one says nothing new.
        self.drop_below(received);
        if limit > self.limit {
            self.limit = limit;
            if let Some(since) = self.blocked_since.take() {
                self.blocked += now.since(since);
            }
        }
        let newly = consumed.saturating_sub(self.consumed);
        self.consumed = self.consumed.max(consumed);
        Some(Progress { consumed: newly })
    }

    /// Takes Finish as arrived; `None` when it cannot have.
    pub(super) fn acknowledge_finish(&mut self, received: u64) -> Option<()> {
        match self.ending {
            Ending::Sent | Ending::Acknowledged if received == self.written => {
                self.ending = Ending::Acknowledged;
                Some(())
            }
            Ending::Open | Ending::Wanted | Ending::Sent | Ending::Acknowledged => None,
        }
    }

    /// Everything that the peer does not have is to be sent again, on a new link.
    pub(super) fn rewind(&mut self) {
        self.sent = self.base;
        self.cursor = (0, 0);
        if self.ending == Ending::Sent {
            self.ending = Ending::Wanted;
        }
    }

    fn drop_below(&mut self, received: u64) {
        // What the peer has need not be sent again, so the cursor is never behind the base.
        while self.sent < received {
            let (index, from) = self.cursor;
            let left = self.chunks[index].len() - from;
            let skip = left.min((received - self.sent) as usize);
            self.sent += skip as u64;
            self.cursor = if skip == left {
                (index + 1, 0)
            } else {
                (index, from + skip)
            };
        }
        while self.base < received {
            let front = &mut self.chunks[0];
            let skip = front.len().min((received - self.base) as usize);
            self.base += skip as u64;
            if skip == front.len() {
                self.chunks.pop_front();
                self.cursor.0 -= 1;
            } else {
                *front = front.slice(skip..);
                if self.cursor.0 == 0 {
                    self.cursor.1 -= skip;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(half: &mut SendHalf, count: usize) -> Vec<u8> {
        let mut out = Writer::new();
        half.take(count, &mut out);
        out.finish().to_vec()
    }

    #[test]
    fn bytes_are_kept_until_the_peer_has_them_and_sent_again_from_there() {
        let mut half = SendHalf::new(100);
        half.write(Bytes::from_static(b"abc"));
        half.write(Bytes::from_static(b"defgh"));
        assert_eq!(taken(&mut half, 5), b"abcde");
        assert!(half.acknowledge(Time::ZERO, 2, 0, 100).is_some());
        half.rewind();
        assert_eq!(half.repeatable(), 3);
        assert_eq!(taken(&mut half, 4), b"cdef");
        assert_eq!(half.retransmitted(), 3);
        half.rewind();
        assert!(half.acknowledge(Time::ZERO, 6, 6, 100).is_some());
        assert_eq!(taken(&mut half, 2), b"gh");
        assert_eq!(half.unsent(), 0);
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
