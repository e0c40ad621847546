//! Encrypted messages, in both directions.
//!
//! ```text
//!             client's                                 server's
//!  Watching   opened to be looked at, passes as it came, both ways
//!  Engaged    comes opened by the near half, behind    is opened, and goes to the near half
//!             Frame::Sealed, or as it was sent while   in the clear behind Frame::Sealed;
//!             that had no keys; is sealed for the      answers to what is asked here go
//!             server                                   nowhere
//! ```
//! A message that arrived encrypted leaves encrypted, message by message, and no other does: the
//! hosts decide whether a session, a tree or the client alone uses encryption. A clear answer to an
//! encrypted request is not trusted (see `answers`).

use bytes::{Bytes, BytesMut};
use vocab::{SegmentKind, Time};

use super::message::GatheredMessage;
use super::sessions::MessageSender;
use super::{FarState, Smb2FarHalf};
use crate::ReasonCode;
use crate::smb::frames::HalfFrame;
use crate::smb::keys::NONCE_SEED_LENGTH;
use crate::smb::sealed;
use crate::smb::wire::frame::FRAME_HEADER;
use crate::smb::wire::header::Smb2Header;
use crate::smb::wire::split::{Smb2MessageHead, SplitterPiece};
use crate::smb::wire::transform::TransformHeader;

impl Smb2FarHalf {
    /// A frame of the client's with an encrypted message.
    pub(super) fn sealed_request(&mut self, now: Time, frame: BytesMut) {
        let frame = frame.freeze();
        match self.open(MessageSender::Client, &frame) {
            Ok((session, pieces)) => {
                let raw = (self.state == FarState::Watching).then_some(frame);
                self.arrived(now, GatheredMessage::sealed(session, pieces, raw));
            }
            Err(reason) => {
                self.gathering = GatheredMessage::unread(frame);
                self.stop(reason);
            }
        }
    }

    /// The near half has opened the message that follows.
    pub(super) fn request_sealed(&mut self, session: u64) {
        let is_expected = self.state == FarState::Engaged
            && self.requests.at_boundary()
            && self.next_sealed.is_none()
            && self.sessions.is_proved(session);
        match is_expected {
            true => self.next_sealed = Some(session),
            false => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// Marks a client's message as encrypted, as the near half reported. Returns false if that is
    /// impossible.
    pub(super) fn mark_sealed(&mut self, message: &mut GatheredMessage) -> bool {
        let Some(session) = self.next_sealed.take() else {
            return true;
        };
        message.mark_sealed(session);
        message
            .heads()
            .all(|head| sealed::is_of(session, &head.header))
    }

    /// A frame of the server's with an encrypted message.
    pub(super) fn sealed_answer(&mut self, now: Time, frame: BytesMut) {
        let frame = frame.freeze();
        let opened = self.open(MessageSender::Server, &frame);
        if self.state == FarState::Watching {
            self.send_client(SegmentKind::Payload, frame);
        }
        let (session, pieces) = match opened {
            Ok(_) if self.state == FarState::Engaged && !self.near_takes_sealing => {
                return self.stop(ReasonCode::ENCRYPTED);
            }
            Ok(opened) => opened,
            Err(reason) => return self.stop(reason),
        };
        if self.state == FarState::Engaged {
            // Of a session in which nothing was encrypted before.
            self.tell_sealing();
        }
        self.is_muted = self.state == FarState::Watching;
        self.answer_sealed = Some(session);
        let mut pieces = pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                SplitterPiece::Head(head) if self.state != FarState::Gone => {
                    let mut rest = Vec::new();
                    while let Some(SplitterPiece::Rest(kind, bytes)) =
                        pieces.next_if(|piece| matches!(piece, SplitterPiece::Rest(..)))
                    {
                        rest.push((kind, bytes));
                    }
                    self.learn_keys(&head, &rest);
                    if self.state != FarState::Gone {
                        self.whole_answer(now, head, rest);
                    }
                }
                SplitterPiece::End if self.state != FarState::Gone => self.answer_complete(),
                SplitterPiece::Head(_)
                | SplitterPiece::Rest(..)
                | SplitterPiece::End
                | SplitterPiece::Sealed(_) => {}
            }
        }
        self.is_muted = false;
        self.answer_sealed = None;
        if self.state != FarState::Gone {
            self.forget_ended(session);
            self.give_ready();
        }
    }

    /// The session and the pieces of an encrypted message.
    fn open(
        &mut self,
        sender: MessageSender,
        frame: &Bytes,
    ) -> Result<(u64, Vec<SplitterPiece>), ReasonCode> {
        let message = &frame[FRAME_HEADER..];
        let transform = TransformHeader::parse(message).map_err(|_| ReasonCode::VIOLATION)?;
        let session = transform.session;
        let plain = self
            .sessions
            .open(session, sender, message)
            .map_err(|(reason, account)| {
                self.no_key_for = account;
                reason
            })?;
        let pieces = sealed::pieces(session, &plain).ok_or(ReasonCode::UNSUPPORTED)?;
        Ok((session, pieces))
    }

    /// Hands the keys for encryption to the near half, if it takes them.
    pub(super) fn tell_sealing(&mut self) {
        if !self.near_takes_sealing {
            return;
        }
        for (session, keys) in self.sessions.sealing_to_tell() {
            let chance = self.draw();
            self.tell_near(HalfFrame::Sealing {
                session,
                keys,
                nonce_seed: chance,
                may_store: self.settings.may_store_decrypted,
            });
        }
    }

    /// Chance for nonces.
    pub(super) fn draw(&mut self) -> [u8; NONCE_SEED_LENGTH] {
        let mut chance = [0; NONCE_SEED_LENGTH];
        chance[..8].copy_from_slice(&self.random.next_u64().to_be_bytes());
        chance[8..].copy_from_slice(&self.random.next_u64().to_be_bytes());
        chance
    }

    /// Sends the server a frame, given in the clear, encrypted.
    pub(super) fn send_sealed(&mut self, session: u64, frame: &[Bytes]) {
        // The first part begins with the frame's header, which is written anew.
        let parts = frame.iter().enumerate().map(|(index, part)| match index {
            0 => &part[FRAME_HEADER..],
            _ => &part[..],
        });
        match self.sessions.seal(session, parts) {
            Some(sealed) => self.send_server(sealed.into()),
            None => self.stop(ReasonCode::LIMIT),
        }
    }

    /// Passes a message's head on to the client, unless it has passed unchanged.
    pub(super) fn pass_head(&mut self, head: Smb2MessageHead) {
        if let Some(session) = self.answer_sealed
            && head.start > 0
            && !self.is_muted
        {
            self.tell_near(HalfFrame::Sealed { session });
        }
        self.pass(SegmentKind::Control, head.bytes.freeze());
    }

    /// Passes on more of it.
    pub(super) fn pass(&mut self, kind: SegmentKind, bytes: Bytes) {
        if !self.is_muted {
            let kind = self.storable(kind, self.answer_sealed.is_some());
            self.send_client(kind, bytes);
        }
    }

    /// Returns the segment kind for bytes of this kind on their way to the near half. No dictionary
    /// stores control bytes; decrypted bytes are therefore sent as control unless the policy allows
    /// storing them.
    pub(super) fn storable(&self, kind: SegmentKind, is_sealed: bool) -> SegmentKind {
        match is_sealed && !self.settings.may_store_decrypted {
            true => SegmentKind::Control,
            false => kind,
        }
    }

    /// Gives the client an answer from here, encrypted if its request was.
    pub(super) fn answer_here(&mut self, request: &Smb2Header, answer: Bytes) {
        let sealed = request.is_sealed.then_some(request.session);
        self.ready.push((sealed, answer));
        if self.answers.at_boundary() && self.answer_sealed.is_none() {
            self.give_ready();
        }
    }

    /// Gives out the answers from here that waited.
    pub(super) fn give_ready(&mut self) {
        for (sealed, answer) in std::mem::take(&mut self.ready) {
            if let Some(session) = sealed {
                self.tell_near(HalfFrame::Sealed { session });
            }
            self.send_client(SegmentKind::Control, answer);
        }
    }
}
