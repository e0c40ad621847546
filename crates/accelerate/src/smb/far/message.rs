//! One frame of the client's, whole: its messages' heads and the bytes between them.

use bytes::Bytes;

use super::super::keys::{SigningKey, VerifiedSignature};
pub(crate) use super::super::sealed::SAME_SESSION;
use super::super::wire::header::{MessageProtection, Smb2Header, command, flag};
use super::super::wire::split::{Smb2MessageHead, SplitterPiece};
use super::connection::asks_for_interfaces;

/// The tree id of a compounded message that uses the tree of the message before it ([MS-SMB2]
/// §3.2.4.1.4, Sending Compounded Requests).
pub(crate) const SAME_TREE: u32 = u32::MAX;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct GatheredMessage {
    parts: Vec<FramePart>,
    bytes: usize,
    /// The session of the encrypted frame.
    sealed: Option<u64>,
    /// The original frame, while everything passes.
    raw: Option<Bytes>,
}

/// A part of a frame.
#[derive(Debug)]
pub(crate) enum FramePart {
    Head(Box<Smb2MessageHead>),
    Rest(Bytes),
}

/// The reason why a message's signature proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// The session's key is unknown.
    NoKey {
        /// The session.
        session: u64,
    },
    /// It is not the session's.
    Forged,
}

/// The bytes after a head, up to the next one.
fn rest(parts: &[FramePart]) -> impl Iterator<Item = &[u8]> {
    parts.iter().map_while(|part| match part {
        FramePart::Rest(bytes) => Some(&bytes[..]),
        FramePart::Head(_) => None,
    })
}

impl GatheredMessage {
    /// Takes the next piece; whether the frame is complete.
    pub(crate) fn push(&mut self, piece: SplitterPiece) -> bool {
        match piece {
            SplitterPiece::Head(head) => {
                self.bytes += head.bytes.len();
                self.parts.push(FramePart::Head(Box::new(head)));
                false
            }
            SplitterPiece::Rest(_, bytes) => {
                self.bytes += bytes.len();
                self.parts.push(FramePart::Rest(bytes));
                false
            }
            SplitterPiece::End => true,
            // Whoever takes such frames opens them first.
            SplitterPiece::Sealed(frame) => {
                self.bytes += frame.len();
                self.parts.push(FramePart::Rest(frame.freeze()));
                true
            }
        }
    }

    /// A frame that arrived encrypted: the pieces of its content, and the original frame where it
    /// may have to pass.
    pub(crate) fn sealed(session: u64, pieces: Vec<SplitterPiece>, raw: Option<Bytes>) -> Self {
        let mut message = Self {
            sealed: Some(session),
            raw,
            ..Self::default()
        };
        for piece in pieces {
            message.push(piece);
        }
        message.bytes += message.raw.as_ref().map_or(0, Bytes::len);
        message
    }

    /// A frame with unknown content.
    pub(crate) fn unread(frame: Bytes) -> Self {
        Self {
            raw: Some(frame),
            ..Self::default()
        }
    }

    /// Returns the session of the encrypted frame.
    pub(crate) fn sealed_for(&self) -> Option<u64> {
        self.sealed
    }

    /// Marks one whose encryption the near half has taken off.
    pub(crate) fn mark_sealed(&mut self, session: u64) {
        self.sealed = Some(session);
        self.heads_mut()
            .for_each(|head| head.header.is_sealed = true);
    }

    /// Drops the original frame, which no longer passes unchanged.
    pub(crate) fn forget_raw(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.bytes -= raw.len();
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The heads of its messages.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Smb2MessageHead> {
        self.parts.iter().filter_map(|part| match part {
            FramePart::Head(head) => Some(&**head),
            FramePart::Rest(_) => None,
        })
    }

    /// Returns the sessions in which it queries the server's interfaces.
    pub(crate) fn asks_for_interfaces(&self) -> impl Iterator<Item = u64> {
        let mut session = self.sealed.unwrap_or(0);
        self.heads().filter_map(move |head| {
            if head.header.session != SAME_SESSION {
                session = head.header.session;
            }
            asks_for_interfaces(&head.header, head.body()).then_some(session)
        })
    }

    /// The heads of its messages, to be changed.
    pub(crate) fn heads_mut(&mut self) -> impl Iterator<Item = &mut Smb2MessageHead> {
        self.parts.iter_mut().filter_map(|part| match part {
            FramePart::Head(head) => Some(&mut **head),
            FramePart::Rest(_) => None,
        })
    }

    /// The head, if the frame holds one message alone.
    pub(crate) fn single(&self) -> Option<&Smb2MessageHead> {
        let head = self.heads().next()?;
        head.is_single().then_some(head)
    }

    /// The message of a frame that holds one alone, in one piece and without the frame's header.
    pub(crate) fn joined(&self) -> Option<Vec<u8>> {
        let start = self.single()?.start;
        let mut joined = Vec::with_capacity(self.bytes);
        for part in &self.parts {
            match part {
                FramePart::Head(head) => joined.extend_from_slice(&head.bytes),
                FramePart::Rest(bytes) => joined.extend_from_slice(bytes),
            }
        }
        Some(joined.split_off(start))
    }

    /// Writes a message of the same length over the one that is alone in the frame, see
    /// [`Self::joined`].
    pub(crate) fn write_over(&mut self, mut message: &[u8]) {
        for part in &mut self.parts {
            let length = match part {
                FramePart::Head(head) => {
                    let place = head.message_mut();
                    place.copy_from_slice(&message[..place.len()]);
                    place.len()
                }
                FramePart::Rest(bytes) => {
                    *bytes = Bytes::copy_from_slice(&message[..bytes.len()]);
                    bytes.len()
                }
            };
            message = &message[length..];
        }
    }

    /// Has each message changed, whose length stays the same. A message is given in one piece.
    pub(crate) fn rewrite(&mut self, change: impl Fn(&Smb2Header, &mut Vec<u8>)) {
        for index in 0..self.parts.len() {
            let (before, behind) = self.parts.split_at_mut(index + 1);
            let Some(FramePart::Head(head)) = before.last_mut() else {
                continue;
            };
            let mut joined = head.message().to_vec();
            rest(behind).for_each(|bytes| joined.extend_from_slice(bytes));
            let original = joined.clone();
            change(&head.header, &mut joined);
            if joined == original {
                continue;
            }
            let mut changed = Bytes::from(joined);
            let place = head.message_mut();
            place.copy_from_slice(&changed.split_to(place.len()));
            for part in behind {
                match part {
                    FramePart::Rest(bytes) => *bytes = changed.split_to(bytes.len()),
                    FramePart::Head(_) => break,
                }
            }
        }
    }

    /// Returns its messages, each in one piece and with the padding before the next.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Smb2Header, Vec<u8>)> {
        let heads = self.parts.iter().enumerate();
        heads.filter_map(|(index, part)| match part {
            FramePart::Head(head) => {
                let mut joined = head.message().to_vec();
                rest(&self.parts[index + 1..]).for_each(|bytes| joined.extend_from_slice(bytes));
                Some((head.header, joined))
            }
            FramePart::Rest(_) => None,
        })
    }

    /// Verifies the signature of every message that is marked as signed. The error names the first
    /// session without a key, or nothing when a signature is invalid.
    pub(crate) fn verify<'a>(
        &self,
        key_of: impl Fn(u64) -> Option<&'a SigningKey>,
    ) -> Result<Option<VerifiedSignature>, SignatureError> {
        let mut authentic = None;
        let mut session = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let FramePart::Head(head) = part else {
                continue;
            };
            if head.header.session != SAME_SESSION {
                session = head.header.session;
            }
            if head.header.guard() != MessageProtection::Signed {
                continue;
            }
            let key = key_of(session).ok_or(SignatureError::NoKey { session })?;
            let mut mac = key.begin(head.message());
            rest(&self.parts[index + 1..]).for_each(|bytes| mac.update(bytes));
            authentic = Some(mac.verify().ok_or(SignatureError::Forged)?);
        }
        Ok(authentic)
    }

    /// Signs again every message that the client has signed.
    pub(crate) fn sign<'a>(&mut self, key_of: impl Fn(u64) -> Option<&'a SigningKey>) {
        let mut session = 0;
        for index in 0..self.parts.len() {
            let (before, behind) = self.parts.split_at_mut(index + 1);
            let Some(FramePart::Head(head)) = before.last_mut() else {
                continue;
            };
            if head.header.session != SAME_SESSION {
                session = head.header.session;
            }
            let is_signed = head.header.guard() == MessageProtection::Signed;
            if let Some(key) = key_of(session).filter(|_| is_signed) {
                key.sign(head.message_mut(), rest(behind));
            }
        }
    }

    /// Returns true if the first message is marked as related to one before it. Servers refuse all
    /// of such a frame ([MS-SMB2] §3.3.5.2.7.2, Handling Compounded Related Requests). Samba
    /// refuses it before it checks the protection, and so answers in the clear.
    pub(crate) fn relates_to_nothing(&self) -> bool {
        self.first().is_some_and(|header| header.has(flag::RELATED))
    }

    /// The command of the first message.
    pub(crate) fn first(&self) -> Option<&Smb2Header> {
        self.heads().next().map(|head| &head.header)
    }

    /// The credits it takes.
    pub(crate) fn charge(&self) -> u32 {
        self.heads()
            .filter(|head| head.header.command != command::CANCEL)
            .map(|head| u32::from(head.header.charge()))
            .sum()
    }

    /// Returns its bytes, in order: the original ones while they are kept, otherwise in the clear.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        let parts = match self.raw {
            Some(_) => Vec::new(),
            None => self.parts,
        };
        let parts = parts.into_iter().map(|part| match part {
            FramePart::Head(head) => head.bytes.freeze(),
            FramePart::Rest(bytes) => bytes,
        });
        self.raw.into_iter().chain(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::testing::messages::{echo, frame, query_interfaces};
    use crate::smb::wire::split::Smb2Splitter;

    #[test]
    fn related_message_uses_the_previous_session() {
        let (echo, asks) = (echo(), query_interfaces());
        let bytes = frame(&[
            (echo.header(1, 7, 5), &echo.body),
            (asks.header(2, SAME_SESSION, 5), &asks.body),
            (echo.header(3, 8, 5), &echo.body),
            (asks.header(4, 9, 5), &asks.body),
        ]);
        let mut pieces = Smb2Splitter::new();
        pieces.push(bytes.into());
        let mut message = GatheredMessage::default();
        while let Some(piece) = pieces.next().unwrap() {
            message.push(piece);
        }
        let sessions: Vec<u64> = message.asks_for_interfaces().collect();
        assert_eq!(sessions, [7, 9]);
    }
}
