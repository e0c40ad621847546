//! Messages between the engines: kept until the peer has them, in order over all flows, and
//! put together again when they came in pieces.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use vocab::FlowId;

use crate::limits::{MESSAGE_BACKLOG_LIMIT, MESSAGE_LIMIT, MESSAGE_PIECE, MESSAGE_PIECES_LIMIT};
use crate::ranges::RangeSet;
use crate::wire::{MessageContinuation, MessageFrame};

/// Approximate memory overhead of a kept piece, in bytes.
const PIECE_OVERHEAD: usize = 160;

#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    outgoing: VecDeque<MessageFrame>,
    /// Sequences below this were sent on this link.
    sent_below: u64,
    /// Sent messages that have to be sent again, and messages that arrived behind a gap.
    again: RangeSet,
    arrived: RangeSet,
    next_sequence: u64,
    backlog: usize,
    next_incoming: u64,
    /// Messages that arrived before their turn.
    early: BTreeMap<u64, MessageFrame>,
    early_bytes: usize,
    assembling: Option<(FlowId, BytesMut)>,
    whole: VecDeque<ReassembledMessage>,
}

/// A message of the peer's, with all its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReassembledMessage {
    pub(super) flow: FlowId,
    pub(super) kind: u8,
    pub(super) bytes: Bytes,
}

impl MessageQueue {
    /// Queues a message; `false` when it is too long or too much is waiting.
    pub(super) fn push(&mut self, flow: FlowId, kind: u8, mut bytes: Bytes) -> bool {
        let pieces = bytes.len().div_ceil(MESSAGE_PIECE).max(1);
        if bytes.len() > MESSAGE_LIMIT
            || self.backlog + bytes.len() > MESSAGE_BACKLOG_LIMIT
            || self.outgoing.len() + pieces > MESSAGE_PIECES_LIMIT
        {
            return false;
        }
        self.backlog += bytes.len();
        loop {
            let part = bytes.split_to(bytes.len().min(MESSAGE_PIECE));
            let piece = if bytes.is_empty() {
                MessageContinuation::Last
            } else {
                MessageContinuation::Part
            };
            self.outgoing.push_back(MessageFrame {
                flow,
                kind,
                piece,
                sequence: self.next_sequence,
                bytes: part,
            });
            self.next_sequence += 1;
            if piece == MessageContinuation::Last {
                return true;
            }
        }
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Bytes of memory that messages take, about.
    pub(super) fn memory(&self) -> usize {
        let pieces = self.outgoing.len() + self.early.len();
        let assembling = self.assembling.as_ref();
        let begun = assembling.map_or(0, |(_, bytes)| bytes.capacity());
        self.backlog + self.early_bytes + begun + pieces * PIECE_OVERHEAD
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.next_sequence_to_send() < self.next_sequence
    }

    fn next_sequence_to_send(&self) -> u64 {
        self.again
            .first()
            .map_or(self.sent_below, |range| range.start)
    }

    /// Returns the next piece to send, with at most `room` bytes of content; `None` when there is
    /// none that short.
    pub(super) fn next_to_send(&mut self, room: usize) -> Option<MessageFrame> {
        let sequence = self.next_sequence_to_send();
        let first = self.outgoing.front()?.sequence;
        let message = self.outgoing.get((sequence.checked_sub(first)?) as usize)?;
        if message.bytes.len() > room {
            return None;
        }
        self.again.remove(sequence..sequence + 1);
        self.sent_below = self.sent_below.max(sequence + 1);
        Some(message.clone())
    }

    /// The peer has all below `next`; `false` when it cannot have.
    pub(super) fn acknowledge(&mut self, next: u64) -> bool {
        if next > self.next_sequence {
            return false;
        }
        while self
            .outgoing
            .front()
            .is_some_and(|front| front.sequence < next)
        {
            if let Some(done) = self.outgoing.pop_front() {
                self.backlog -= done.bytes.len();
            }
        }
        self.again.remove(0..next);
        self.arrived.remove(0..next);
        self.sent_below = self.sent_below.max(next);
        true
    }

    /// The packet with this message is lost.
    pub(super) fn lost(&mut self, sequence: u64) {
        let base = self.base();
        if sequence >= base && self.arrived.missing(sequence..sequence + 1).len() == 1 {
            self.again.insert(sequence..sequence + 1);
        }
    }

    /// The packet with this message has arrived.
    pub(super) fn arrived_there(&mut self, sequence: u64) {
        if sequence >= self.base() {
            self.again.remove(sequence..sequence + 1);
            self.arrived.insert(sequence..sequence + 1);
        }
    }

    /// A new link: everything that is not acknowledged is sent again.
    pub(super) fn rewind(&mut self) {
        self.sent_below = self.base();
        self.again = RangeSet::default();
        self.arrived = RangeSet::default();
    }

    /// Schedules sent but unconfirmed messages again, though packets with some of them may still be
    /// in flight.
    pub(super) fn repeat(&mut self) {
        let sent = self.base()..self.sent_below;
        for range in self.arrived.missing(sent) {
            self.again.insert(range);
        }
    }

    /// The sequence of the oldest message that the peer has not acknowledged.
    fn base(&self) -> u64 {
        self.outgoing
            .front()
            .map_or(self.next_sequence, |front| front.sequence)
    }

    pub(super) fn next_incoming(&self) -> u64 {
        self.next_incoming
    }

    /// Takes a piece, in its turn or before it; whole messages are then in
    /// [`Self::next_whole`].
    ///
    /// # Errors
    /// With what a peer must not send.
    pub(super) fn receive(&mut self, message: MessageFrame) -> Result<(), &'static str> {
        if message.sequence < self.next_incoming || self.early.contains_key(&message.sequence) {
            return Ok(());
        }
        if message.sequence > self.next_incoming {
            self.early_bytes += message.bytes.len();
            if message.sequence - self.next_incoming > MESSAGE_PIECES_LIMIT as u64
                || self.early_bytes > MESSAGE_BACKLOG_LIMIT
            {
                return Err("more messages than may wait for an acknowledgement");
            }
            // Its packet is not kept alive for it.
            let bytes = Bytes::copy_from_slice(&message.bytes);
            let sequence = message.sequence;
            self.early
                .insert(sequence, MessageFrame { bytes, ..message });
            return Ok(());
        }
        self.assemble(message)?;
        while let Some(next) = self.early.remove(&self.next_incoming) {
            self.early_bytes -= next.bytes.len();
            self.assemble(next)?;
        }
        Ok(())
    }

    /// The next message that has all its pieces.
    pub(super) fn next_whole(&mut self) -> Option<ReassembledMessage> {
        self.whole.pop_front()
    }

    fn assemble(&mut self, message: MessageFrame) -> Result<(), &'static str> {
        self.next_incoming += 1;
        let MessageFrame {
            flow, kind, piece, ..
        } = message;
        let bytes = match self.assembling.take() {
            None if piece == MessageContinuation::Last => {
                let bytes = message.bytes;
                self.whole
                    .push_back(ReassembledMessage { flow, kind, bytes });
                return Ok(());
            }
            None => BytesMut::from(&message.bytes[..]),
            Some((other, _)) if other != flow => return Err("pieces of two messages are mixed"),
            Some((_, mut parts)) => {
                parts.extend_from_slice(&message.bytes);
                parts
            }
        };
        if bytes.len() > MESSAGE_LIMIT {
            return Err("a message is too long");
        }
        match piece {
            MessageContinuation::Last => {
                let bytes = bytes.freeze();
                self.whole
                    .push_back(ReassembledMessage { flow, kind, bytes });
            }
            MessageContinuation::Part => self.assembling = Some((flow, bytes)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(messages: &mut MessageQueue) -> Vec<MessageFrame> {
        std::iter::from_fn(|| messages.next_to_send(MESSAGE_PIECE)).collect()
    }

    #[test]
    fn long_message_survives_a_link_change() {
        let (mut near, mut far) = (MessageQueue::default(), MessageQueue::default());
        let long = Bytes::from(vec![7; 40_000]);
        assert!(near.push(FlowId(2), 1, long.clone()));
        let first = near.next_to_send(MESSAGE_PIECE).unwrap();
        assert_eq!(far.receive(first), Ok(()));
        near.next_to_send(MESSAGE_PIECE).unwrap();
        near.rewind();
        assert!(near.acknowledge(far.next_incoming()));
        for piece in sent(&mut near) {
            assert_eq!(far.next_whole(), None);
            assert_eq!(far.receive(piece), Ok(()));
        }
        assert_eq!(far.next_whole().unwrap().bytes, long);
        let pieces = 40_000_u64.div_ceil(MESSAGE_PIECE as u64);
        assert!(near.acknowledge(pieces));
        assert_eq!(near.backlog(), 0);
        assert!(!near.acknowledge(pieces + 1));
    }

    #[test]
    fn lost_message_is_resent_and_later_ones_wait() {
        let (mut near, mut far) = (MessageQueue::default(), MessageQueue::default());
        for kind in 0..4 {
            assert!(near.push(FlowId(0), kind, Bytes::from_static(b"x")));
        }
        let pieces = sent(&mut near);
        for kept in [3, 1, 1] {
            assert_eq!(far.receive(pieces[kept].clone()), Ok(()));
        }
        assert_eq!(far.next_whole(), None);
        near.arrived_there(3);
        near.arrived_there(1);
        for sequence in 0..4 {
            near.lost(sequence);
        }
        let again = sent(&mut near);
        let sequences: Vec<u64> = again.iter().map(|message| message.sequence).collect();
        assert_eq!(sequences, [0, 2]);
        for message in again {
            assert_eq!(far.receive(message), Ok(()));
        }
        let kinds: Vec<u8> = std::iter::from_fn(|| far.next_whole())
            .map(|whole| whole.kind)
            .collect();
        assert_eq!(kinds, [0, 1, 2, 3]);
        assert!(near.acknowledge(far.next_incoming()));
        assert!(!near.is_waiting());
    }

    /// A link broke, and packets with some of them are still under way.
    #[test]
    fn repeated_messages_survive_further_loss() {
        let mut near = MessageQueue::default();
        for kind in 0..5 {
            assert!(near.push(FlowId(0), kind, Bytes::from_static(b"x")));
        }
        assert_eq!(sent(&mut near).len(), 5);
        near.arrived_there(1);
        near.repeat();
        near.lost(3);
        let again: Vec<u64> = sent(&mut near)
            .iter()
            .map(|message| message.sequence)
            .collect();
        assert_eq!(again, [0, 2, 3, 4]);
    }

    #[test]
    fn the_backlog_is_bounded_on_both_sides() {
        let mut near = MessageQueue::default();
        let large = Bytes::from(vec![0; MESSAGE_LIMIT]);
        for _ in 0..MESSAGE_BACKLOG_LIMIT / MESSAGE_LIMIT {
            assert!(near.push(FlowId(0), 0, large.clone()));
        }
        assert!(!near.push(FlowId(0), 0, Bytes::from_static(b"x")));
        assert!(!MessageQueue::default().push(FlowId(0), 0, vec![0; MESSAGE_LIMIT + 1].into()));
        let mut many = MessageQueue::default();
        while many.push(FlowId(0), 0, Bytes::new()) {}
        assert_eq!(many.outgoing.len(), MESSAGE_PIECES_LIMIT);
        let far_ahead = MessageFrame {
            sequence: MESSAGE_PIECES_LIMIT as u64 + 1,
            ..many.outgoing[0].clone()
        };
        assert!(MessageQueue::default().receive(far_ahead).is_err());
    }
}
