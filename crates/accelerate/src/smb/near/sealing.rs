//! Encrypted messages at the client's end.
//!
//! Until the far half has handed over a session's keys, encrypted messages pass unchanged and are
//! only counted. Afterwards frames are gathered and decrypted, and pass in the clear, each behind
//! [`HalfFrame::Sealed`]; one that no key decrypts passes unchanged, for the far half to judge.
//! Messages that the far half marks so are encrypted for the client once they are complete.

use bytes::{Buf, Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::{ClientSealing, GatheredAnswer, NearState, Smb2NearHalf};
use crate::smb::config::TREES_MAX;
use crate::smb::frames::HalfFrame;
use crate::smb::keys::{MessageSealer, NONCE_SEED_LENGTH, SealingKeys};
use crate::smb::sealed;
use crate::smb::wire::frame::FRAME_HEADER;
use crate::smb::wire::split::SplitterPiece;
use crate::smb::wire::transform::TransformHeader;
use crate::{AcceleratorOutput, ReasonCode};

impl Smb2NearHalf {
    /// Takes a session's keys from the far half.
    pub(super) fn take_sealing(
        &mut self,
        session: u64,
        keys: SealingKeys,
        chance: [u8; NONCE_SEED_LENGTH],
        may_store: bool,
    ) {
        if self.sealing.len() >= TREES_MAX || self.state != NearState::Serving {
            return self.close(ReasonCode::LIMIT);
        }
        if self.sealing.is_empty() {
            // So far all that came has passed at once.
            self.passed = self.requests.held();
        }
        let sealing = ClientSealing {
            client: keys.client,
            may_store,
            sealer: MessageSealer::new(keys.server, chance),
        };
        self.sealing.insert(session, sealing);
    }

    /// Handles the client's bytes; some may be encrypted with a known key.
    pub(super) fn open_bytes(&mut self, now: Time, bytes: Bytes) {
        self.requests.push(bytes);
        loop {
            match self.requests.next() {
                Ok(Some(SplitterPiece::Sealed(frame))) => self.sealed_request(now, frame),
                Ok(Some(piece)) => self.pass_on(now, piece),
                Ok(None) => return,
                Err(_) => {
                    self.is_blind = true;
                    let held = self.requests.give_back();
                    return self.send_far(SegmentKind::Payload, held);
                }
            }
        }
    }

    /// Handles a frame with an encrypted message.
    fn sealed_request(&mut self, now: Time, frame: BytesMut) {
        let frame = frame.freeze();
        // The beginning of one that came before the keys has gone on as it was.
        let opened = (self.passed == 0).then(|| self.open(&frame)).flatten();
        let Some((session, pieces)) = opened else {
            self.send_far(SegmentKind::Payload, frame);
            return self.passed_unread(now);
        };
        self.tell_far(HalfFrame::Sealed { session });
        let may_store = self.sealing.get(&session).is_some_and(|of| of.may_store);
        for piece in pieces {
            self.pass_on(
                now,
                match piece {
                    // No dictionary keeps control.
                    SplitterPiece::Rest(_, bytes) if !may_store => {
                        SplitterPiece::Rest(SegmentKind::Control, bytes)
                    }
                    piece => piece,
                },
            );
        }
    }

    fn open(&self, frame: &Bytes) -> Option<(u64, Vec<SplitterPiece>)> {
        let message = &frame[FRAME_HEADER..];
        let session = TransformHeader::parse(message).ok()?.session;
        let plain = self.sealing.get(&session)?.client.open(message)?;
        Some((session, sealed::pieces(session, &plain)?))
    }

    /// Sends a piece of the client's on, and looks at it.
    fn pass_on(&mut self, now: Time, piece: SplitterPiece) {
        match piece {
            SplitterPiece::Head(head) => {
                self.send_far(SegmentKind::Control, head.bytes.clone().freeze());
                self.passes(now, &head);
            }
            SplitterPiece::Rest(kind, bytes) => {
                self.gather_open(&bytes);
                if let Some(mac) = &mut self.mac {
                    mac.update(&bytes);
                }
                if let Some(frame) = &mut self.asking {
                    frame.update(&bytes);
                }
                if let Some(frame) = &mut self.looking {
                    frame.update(&bytes);
                }
                self.children.update(&bytes);
                self.send_far(kind, bytes);
            }
            SplitterPiece::End => self.passed(now),
            SplitterPiece::Sealed(_) => {}
        }
    }

    /// Sends bytes to the far half, except those that have passed before.
    fn send_far(&mut self, kind: SegmentKind, mut bytes: Bytes) {
        let passed = self.passed.min(bytes.len());
        self.passed -= passed;
        bytes.advance(passed);
        if !bytes.is_empty() {
            let segment = FlowSegment { kind, bytes };
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    /// Handles a passed client frame with unknown content: it may change any directory or file. It
    /// names no served open, because the client knew none when it was sent.
    pub(super) fn passed_unread(&mut self, now: Time) {
        self.position += 1;
        self.unread_at = self.position;
        self.children.passed_unread(self.position);
        self.names_may_change(self.position);
        self.missing.may_be_made(self.position);
        self.offers.drop_before(self.position);
        self.offers.passed(now, self.position);
    }

    /// The answer that follows is to be encrypted.
    pub(super) fn answer_sealed(&mut self, session: u64) {
        let is_expected =
            self.state == NearState::Serving && self.answers.at_boundary() && self.sealed.is_none();
        if !is_expected {
            return self.close(ReasonCode::VIOLATION);
        }
        let parts = Vec::new();
        self.sealed = Some(GatheredAnswer { session, parts });
    }

    /// Gives the client bytes of the server's, or keeps them to be encrypted.
    pub(super) fn pass(&mut self, bytes: Bytes) {
        match &mut self.sealed {
            Some(sealed) => sealed.parts.push(bytes),
            None => self.send_client(bytes),
        }
    }

    /// The frame that is passing is complete.
    pub(super) fn give_sealed(&mut self) {
        let Some(sealed) = self.sealed.take() else {
            return;
        };
        // It may have been kept back.
        if sealed.parts.is_empty() {
            return;
        }
        let parts = sealed.parts.iter().enumerate();
        let parts = parts.map(|(index, part)| match index {
            0 => &part[FRAME_HEADER..],
            _ => &part[..],
        });
        if let Some(bytes) = self.seal(sealed.session, parts) {
            self.send_client(bytes);
        }
    }

    /// A frame with this message encrypted in the server's place; closes if that may not be.
    pub(super) fn seal<'a>(
        &mut self,
        session: u64,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Bytes> {
        let Some(sealing) = self.sealing.get_mut(&session) else {
            self.close(ReasonCode::ENCRYPTED);
            return None;
        };
        let sealed = sealing.sealer.seal(session, parts);
        if sealed.is_none() {
            self.close(ReasonCode::LIMIT);
        }
        sealed.map(Bytes::from)
    }
}
