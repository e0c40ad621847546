//! Messages between the engines: kept until the peer has them, in order over all flows, and
//! put together again when they came in pieces.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use vocab::FlowId;

use crate::limits::{DATA_LIMIT, MESSAGE_BACKLOG_LIMIT, MESSAGE_LIMIT};
use crate::wire::{Message, Piece};

/// What an arrived piece led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A whole message.
    Whole(Bytes),
    /// A piece, or one that had arrived before.
    Nothing,
    /// Something a peer must not send.
    Violation(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct Messages {
    outgoing: VecDeque<Message>,
    /// Of `outgoing`, how many were sent on this link.
    sent: usize,
    next_sequence: u64,
    backlog: usize,
    next_incoming: u64,
    assembling: Option<(FlowId, BytesMut)>,
}

impl Messages {
    /// Queues a message; `false` when it is too long or too much is waiting.
    pub(super) fn push(&mut self, flow: FlowId, kind: u8, mut bytes: Bytes) -> bool {
        if bytes.len() > MESSAGE_LIMIT || self.backlog + bytes.len() > MESSAGE_BACKLOG_LIMIT {
            return false;
        }
        self.backlog += bytes.len();
        loop {
            let part = bytes.split_to(bytes.len().min(DATA_LIMIT));
            let piece = if bytes.is_empty() {
                Piece::Last
            } else {
                Piece::Part
            };
            self.outgoing.push_back(Message {
                flow,
                kind,
                piece,
                sequence: self.next_sequence,
                bytes: part,
            });
            self.next_sequence += 1;
            if piece == Piece::Last {
                return true;
            }
        }
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    pub(super) fn next_to_send(&mut self) -> Option<Message> {
        let message = self.outgoing.get(self.sent)?.clone();
        self.sent += 1;
        Some(message)
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
                self.sent = self.sent.saturating_sub(1);
            }
        }
        true
    }

    /// A new link: everything that is not acknowledged is sent again.
    pub(super) fn rewind(&mut self) {
        self.sent = 0;
    }

    pub(super) fn next_incoming(&self) -> u64 {
        self.next_incoming
    }

    pub(super) fn arrived(&mut self, message: Message) -> Arrival {
        if message.sequence < self.next_incoming {
            return Arrival::Nothing;
        }
        if message.sequence > self.next_incoming {
            return Arrival::Violation("a message is missing before this one");
        }
        self.next_incoming += 1;
        let whole = match self.assembling.take() {
            None if message.piece == Piece::Last => return Arrival::Whole(message.bytes),
            None => BytesMut::from(&message.bytes[..]),
            Some((flow, _)) if flow != message.flow => {
                return Arrival::Violation("pieces of two messages are mixed");
            }
            Some((_, mut parts)) => {
                parts.extend_from_slice(&message.bytes);
                parts
            }
        };
        if whole.len() > MESSAGE_LIMIT {
            return Arrival::Violation("a message is too long");
        }
        match message.piece {
            Piece::Last => Arrival::Whole(whole.freeze()),
            Piece::Part => {
                self.assembling = Some((message.flow, whole));
                Arrival::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_arrives_whole_after_a_change_of_links() {
        let (mut near, mut far) = (Messages::default(), Messages::default());
        let long = Bytes::from(vec![7; 40_000]);
        assert!(near.push(FlowId(2), 1, long.clone()));
        let first = near.next_to_send().unwrap();
        assert_eq!(far.arrived(first), Arrival::Nothing);
        near.next_to_send().unwrap();
        near.rewind();
        assert!(near.acknowledge(far.next_incoming()));
        let mut whole = Arrival::Nothing;
        while let Some(piece) = near.next_to_send() {
            whole = far.arrived(piece);
        }
        assert_eq!(whole, Arrival::Whole(long));
        assert!(near.acknowledge(3));
        assert_eq!(near.backlog(), 0);
        assert!(!near.acknowledge(4));
    }

    #[test]
    fn the_backlog_is_bounded() {
        let mut near = Messages::default();
        let large = Bytes::from(vec![0; MESSAGE_LIMIT]);
        for _ in 0..MESSAGE_BACKLOG_LIMIT / MESSAGE_LIMIT {
            assert!(near.push(FlowId(0), 0, large.clone()));
        }
        assert!(!near.push(FlowId(0), 0, Bytes::from_static(b"x")));
        assert!(!Messages::default().push(FlowId(0), 0, vec![0; MESSAGE_LIMIT + 1].into()));
    }
}
