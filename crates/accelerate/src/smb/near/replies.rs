//! The server's messages on their way to the client: answers to requests that were answered here
//! are kept back, and losses are reported.

use bytes::{Bytes, BytesMut};

use super::{
    AlteredMessage, LicensedOpen, NearState, PendingRequest, RequestRemainder, SetLoss,
    Smb2NearHalf,
};
use crate::ReasonCode;
use crate::smb::wire::FileId;
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{
    self, ERROR_BODY, MessageProtection, Smb2Header, command, flag, status,
};
use crate::smb::wire::split::{Smb2MessageHead, SplitterPiece};
use crate::smb::wire::transfer::written;

impl Smb2NearHalf {
    /// Bytes of the server's.
    pub(super) fn answer_bytes(&mut self, bytes: Bytes) {
        if self.state == NearState::Passing {
            return self.send_client(bytes);
        }
        self.answers.push(bytes);
        while self.state == NearState::Serving {
            match self.answers.next() {
                Ok(Some(SplitterPiece::Head(mut head))) => {
                    head.header.is_sealed = self.sealed.is_some();
                    self.answer(head);
                }
                Ok(Some(SplitterPiece::Rest(_, bytes))) => match &mut self.altered {
                    Some(altered) => {
                        altered.left -= bytes.len();
                        altered.rest.push(bytes);
                        self.sign_altered();
                    }
                    None if self.rest == RequestRemainder::Pass => self.pass(bytes),
                    None => {}
                },
                Ok(Some(SplitterPiece::End)) => {
                    self.rest = RequestRemainder::Pass;
                    self.give_sealed();
                }
                Ok(None) => break,
                Ok(Some(SplitterPiece::Sealed(_))) | Err(_) => {
                    return self.close(ReasonCode::VIOLATION);
                }
            }
            if self.answers.is_between() {
                self.give_ready();
            }
        }
    }

    /// Answers from here that waited for the end of one that was passing.
    fn give_ready(&mut self) {
        for bytes in std::mem::take(&mut self.ready) {
            self.send_client(bytes);
        }
    }

    /// An answer begins to pass.
    fn answer(&mut self, head: Smb2MessageHead) {
        let header = head.header;
        self.rest = RequestRemainder::Pass;
        let is_interim = header.status == status::PENDING && header.has(flag::ASYNC);
        let is_question = matches!(
            self.pending.get(&header.message_id),
            Some(
                PendingRequest::Asks {
                    is_answered: true,
                    ..
                } | PendingRequest::Missed { .. }
            )
        );
        if !self.discards_alike(&head, is_question) {
            return self.close(ReasonCode::VIOLATION);
        }
        self.note_listing_opened(&head);
        self.missing.answered(&header);
        let is_answered = self
            .pending
            .get(&header.message_id)
            .is_some_and(PendingRequest::is_answered);
        if head.start > 0 && !is_interim && header.message_id != header::UNASKED && !is_answered {
            self.crossed.count(header.command);
        }
        let Some(pending) = self.pending.get_mut(&header.message_id) else {
            return self.pass(head.bytes.freeze());
        };
        match *pending {
            PendingRequest::Read {
                is_answered: true, ..
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                }
                self.keep_back(&head);
            }
            PendingRequest::Lists {
                is_answered: true, ..
            } => self.close(ReasonCode::VIOLATION),
            PendingRequest::Read { .. } | PendingRequest::Lists { .. } if is_interim => {
                if let PendingRequest::Read { is_servers, .. }
                | PendingRequest::Lists { is_servers, .. } = pending
                {
                    *is_servers = true;
                }
                self.pass(head.bytes.freeze());
            }
            PendingRequest::Read { .. } | PendingRequest::Lists { .. } => {
                self.pending.remove(&header.message_id);
                self.pass(head.bytes.freeze());
            }
            PendingRequest::Write {
                file,
                length,
                is_answered: true,
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                    self.behind = self.behind.saturating_sub(u64::from(length));
                    self.note_loss(file, &head, length);
                }
                self.keep_back(&head);
            }
            PendingRequest::Sets {
                file,
                loses,
                is_answered: true,
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                    if let Some(open) = self.opens.get_mut(&file)
                        && header.status != status::SUCCESS
                    {
                        open.is_refused = true;
                        let status = status::of_loss(header.status);
                        match loses {
                            SetLoss::Nothing => {}
                            SetLoss::Attributes => {
                                open.refused.get_or_insert(status);
                            }
                            SetLoss::Data => {
                                open.lost.get_or_insert(status);
                            }
                        }
                    }
                }
                self.keep_back(&head);
            }
            PendingRequest::Close {
                file,
                is_answered: true,
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                    self.opens.remove(&file);
                }
                self.keep_back(&head);
            }
            PendingRequest::Asks {
                is_answered: true, ..
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                }
                self.rest = RequestRemainder::Swallow;
            }
            PendingRequest::Missed {
                closes,
                session,
                tree,
                guard,
            } => {
                if !is_interim {
                    self.pending.remove(&header.message_id);
                    if !closes {
                        self.missed_answered(&head, (session, tree), guard);
                    }
                }
                self.rest = RequestRemainder::Swallow;
            }
            PendingRequest::Asks { .. } if is_interim => {
                // The client was told to wait for the server.
                if let PendingRequest::Asks { file_system, .. } = pending {
                    *file_system = None;
                }
                self.questions = None;
                self.pass(head.bytes.freeze());
            }
            PendingRequest::Write { .. }
            | PendingRequest::Sets { .. }
            | PendingRequest::Reports { .. }
            | PendingRequest::Close { .. }
                if is_interim =>
            {
                self.pass(head.bytes.freeze());
            }
            PendingRequest::Opens => {
                self.pending.remove(&header.message_id);
                self.keep_back(&head);
            }
            PendingRequest::Asks { .. } => {
                self.pending.remove(&header.message_id);
                self.pass(head.bytes.freeze());
            }
            PendingRequest::Write { file, .. } => {
                self.pending.remove(&header.message_id);
                self.report(file, head);
            }
            PendingRequest::Ends { .. } if is_interim => self.pass(head.bytes.freeze()),
            PendingRequest::Ends { session, tree } => {
                self.pending.remove(&header.message_id);
                let ends = |open: &LicensedOpen| {
                    let licence = &open.licence;
                    licence.session == session && tree.is_none_or(|tree| tree == licence.tree)
                };
                // The last answer in which what was lost with an open can be said.
                let lost = self
                    .opens
                    .iter()
                    .find(|(_, open)| ends(open) && (open.lost.is_some() || open.refused.is_some()))
                    .map(|(file, _)| *file);
                match lost {
                    Some(file) => self.report(file, head),
                    None => self.pass(head.bytes.freeze()),
                }
                if header.status == status::SUCCESS {
                    self.opens.retain(|_, open| !ends(open));
                    self.offers.retain(|file| self.opens.contains_key(&file));
                    self.children.retain(|file| self.opens.contains_key(&file));
                }
            }
            PendingRequest::Sets { file, .. } => {
                self.pending.remove(&header.message_id);
                self.report(file, head);
            }
            PendingRequest::Reports { file } => {
                self.pending.remove(&header.message_id);
                // A FLUSH behind all changes has reported what the CLOSE would.
                if let Some(open) = self.opens.get_mut(&file)
                    && open.flushing == Some(header.message_id)
                {
                    open.flushing = None;
                    let is_kept = header.status == status::SUCCESS
                        && open.lost.is_none()
                        && open.refused.is_none();
                    open.is_changed &= !is_kept || open.is_bound;
                }
                self.report(file, head);
            }
            PendingRequest::Close { file, .. } => {
                self.pending.remove(&header.message_id);
                self.report(file, head);
                if header.status == status::SUCCESS {
                    self.opens.remove(&file);
                }
            }
        }
    }

    fn keep_back(&mut self, head: &Smb2MessageHead) {
        if head.is_single() {
            self.rest = RequestRemainder::Swallow;
        } else {
            // An answer among others, to a request that was alone.
            self.close(ReasonCode::VIOLATION);
        }
    }

    /// Remembers that a WRITE that was answered did not arrive, or not all of it.
    fn note_loss(&mut self, file: FileId, head: &Smb2MessageHead, length: u32) {
        let lost = match head.header.status {
            status::SUCCESS if written(head.body()) == Ok(length) => return,
            status::SUCCESS => status::UNEXPECTED_IO_ERROR,
            status => status::of_loss(status),
        };
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.lost.get_or_insert(lost);
        // A client writes through any of the opens under its lease, and confirms through any other.
        if let Some(key) = open.lease {
            let alike = self.opens.values_mut();
            let alike = alike.filter(|open| open.lease == Some(key));
            alike.for_each(|open| {
                open.lost.get_or_insert(lost);
            });
        }
    }

    /// Passes an answer on, with an earlier loss in place of its own status. Refused times and attributes are
    /// told once, and not with a WRITE or a LOCK, which the server has done.
    fn report(&mut self, file: FileId, mut head: Smb2MessageHead) {
        let does_data = matches!(head.header.command, command::WRITE | command::LOCK);
        let lost = self.opens.get_mut(&file).and_then(|open| match open.lost {
            None if !does_data => open.refused.take(),
            lost => lost,
        });
        let Some(lost) = lost else {
            return self.pass(head.bytes.freeze());
        };
        if head.is_single() {
            self.rest = RequestRemainder::Swallow;
            let header = Smb2Header {
                status: lost,
                signature: [0; 16],
                ..head.header
            };
            let mut bytes = BytesMut::from(&frame_header(header::LENGTH + ERROR_BODY.len())[..]);
            bytes.extend_from_slice(&header.emit());
            bytes.extend_from_slice(&ERROR_BODY);
            if header.guard() == MessageProtection::Signed {
                let Some(key) = self.keys.get(&header.session) else {
                    return self.close(ReasonCode::SIGNED);
                };
                key.sign(&mut bytes[FRAME_HEADER..], []);
            }
            return self.pass(bytes.freeze());
        }
        header::set_status(head.message_mut(), lost);
        let body = head.body_mut();
        let length = body.len().min(ERROR_BODY.len());
        body[..length].copy_from_slice(&ERROR_BODY[..length]);
        if head.header.guard() != MessageProtection::Signed {
            return self.pass(head.bytes.freeze());
        }
        let Some(key) = self.keys.get(&head.header.session).cloned() else {
            return self.close(ReasonCode::SIGNED);
        };
        let left = head.length - head.message().len();
        self.altered = Some(AlteredMessage {
            key,
            head,
            rest: Vec::new(),
            left,
        });
        self.sign_altered();
    }

    /// Signs the altered message, once it is complete, and passes it on.
    fn sign_altered(&mut self) {
        let Some(mut altered) = self.altered.take_if(|altered| altered.left == 0) else {
            return;
        };
        let rest = altered.rest.iter().map(|piece| &piece[..]);
        altered.key.sign(altered.head.message_mut(), rest);
        self.pass(altered.head.bytes.freeze());
        for bytes in altered.rest {
            self.pass(bytes);
        }
    }
}
