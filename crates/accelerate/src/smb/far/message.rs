//! One frame of the client's, whole: its messages' heads and what lies between them.

use bytes::Bytes;

use super::super::wire::header::{Header, command};
use super::super::wire::split::{Head, Piece};

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Message {
    parts: Vec<Part>,
    bytes: usize,
}

/// A part of a frame.
#[derive(Debug)]
pub(crate) enum Part {
    Head(Box<Head>),
    Rest(Bytes),
}

impl Message {
    /// Takes the next piece; whether the frame is complete.
    pub(crate) fn push(&mut self, piece: Piece) -> bool {
        match piece {
            Piece::Head(head) => {
                self.bytes += head.bytes.len();
                self.parts.push(Part::Head(Box::new(head)));
                false
            }
            Piece::Rest(_, bytes) => {
                self.bytes += bytes.len();
                self.parts.push(Part::Rest(bytes));
                false
            }
            Piece::End => true,
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The heads of its messages.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Head> {
        self.parts.iter().filter_map(|part| match part {
            Part::Head(head) => Some(&**head),
            Part::Rest(_) => None,
        })
    }

    /// The same, to be changed.
    pub(crate) fn heads_mut(&mut self) -> impl Iterator<Item = &mut Head> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Head(head) => Some(&mut **head),
            Part::Rest(_) => None,
        })
    }

    /// The head, if the frame holds one message alone.
    pub(crate) fn single(&self) -> Option<&Head> {
        let head = self.heads().next()?;
        head.is_single().then_some(head)
    }

    /// The message of a frame that holds one alone, in one piece and without the frame's header.
    pub(crate) fn joined(&self) -> Option<Vec<u8>> {
        let start = self.single()?.start;
        let mut joined = Vec::with_capacity(self.bytes);
        for part in &self.parts {
            match part {
                Part::Head(head) => joined.extend_from_slice(&head.bytes),
                Part::Rest(bytes) => joined.extend_from_slice(bytes),
            }
        }
        Some(joined.split_off(start))
    }

    /// The command of the first message.
    pub(crate) fn first(&self) -> Option<&Header> {
        self.heads().next().map(|head| &head.header)
    }

    /// The credits it takes.
    pub(crate) fn charge(&self) -> u32 {
        self.heads()
            .filter(|head| head.header.command != command::CANCEL)
            .map(|head| u32::from(head.header.charge()))
            .sum()
    }

    /// Its bytes, in order.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        self.parts.into_iter().map(|part| match part {
            Part::Head(head) => head.bytes.freeze(),
            Part::Rest(bytes) => bytes,
        })
    }
}
