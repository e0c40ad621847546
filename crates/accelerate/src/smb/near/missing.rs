//! Names that the far half has not found, and the client's frames that look for them
//! (docs/decisions/0088). The server answers those frames as well, but its answers are discarded.
//!
//! ```text
//!  client   CREATE ── alone, or with requests behind it in a compound ──► passes to the far half
//!           ◄── STATUS_OBJECT_NAME_NOT_FOUND, if the far half has looked within 20 ms
//! ```
//! If the server has the file by then, its open is one that the client does not know; the far half
//! closes it.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::Time;

use super::{NearState, PendingRequest, Smb2NearHalf};
use crate::smb::config::{
    LISTING_WAITS, LOOK_MESSAGES_MAX, LOOKS_MAX, OFFERED_MAX, OUTSTANDING_MAX,
};
use crate::smb::frames::{HalfFrame, LOOKS};
use crate::smb::keys::SignatureMac;
use crate::smb::listing::may_make_names;
use crate::smb::wire::create::{CreateRequest, CreateResponse, name_of};
use crate::smb::wire::header::{
    self, ERROR_BODY, MessageProtection, Smb2Header, command, flag, status,
};
use crate::smb::wire::split::Smb2MessageHead;

/// A name that is not there.
#[derive(Debug)]
pub(super) struct MissingName {
    pub(super) session: u64,
    pub(super) tree: u32,
    pub(super) guard: MessageProtection,
    /// The client's frames that had arrived before the server was asked.
    pub(super) position: u64,
    /// The fixed part of the CREATE that it answers, and the name.
    pub(super) form: Bytes,
    pub(super) name: Bytes,
    /// The statuses of the requests behind the CREATE.
    pub(super) rest: Vec<u32>,
    pub(super) at: Time,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct MissingNames {
    names: VecDeque<MissingName>,
    /// The client's last frame that may have made a name.
    made_at: u64,
}

/// A frame of the client's that begins with a CREATE.
#[derive(Debug)]
pub(super) struct LookingFrame {
    headers: Vec<Smb2Header>,
    create: Vec<u8>,
    /// The signature of the message that is passing.
    mac: Option<SignatureMac>,
}

impl LookingFrame {
    /// More of the message that is passing.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if self.headers.len() == 1 {
            self.create.extend_from_slice(bytes);
        }
        if let Some(mac) = &mut self.mac {
            mac.update(bytes);
        }
    }

    /// Ends the message that is passing; false if its signature is not its session's.
    fn verify(&mut self) -> bool {
        let last = self.headers.last();
        let is_signed = last.is_some_and(|last| last.guard() == MessageProtection::Signed);
        let mac = self.mac.take();
        !is_signed || mac.and_then(SignatureMac::verify).is_some()
    }
}

impl MissingNames {
    /// A frame of the client's may make any name.
    pub(super) fn may_be_made(&mut self, position: u64) {
        self.made_at = position;
    }

    /// An answer of the server's that passes may tell the client of a name that was made meanwhile: an open
    /// that it was given, a change in a directory, or another client's open.
    pub(super) fn answered(&mut self, header: &Smb2Header) {
        let tells = match header.command {
            command::CREATE => header.status == status::SUCCESS,
            command::CHANGE_NOTIFY => header.status != status::PENDING,
            command::OPLOCK_BREAK => true,
            _ => false,
        };
        if tells {
            self.names.clear();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let names = self.names.iter();
        names.map(|name| name.form.len() + name.name.len()).sum()
    }
}

impl Smb2NearHalf {
    /// A message of the client's passes: perhaps one that looks for a name, or one behind it.
    pub(super) fn note_looking(&mut self, head: &Smb2MessageHead) {
        if may_make_names(&head.header, head.body()) {
            self.missing.may_be_made(self.position + 1);
        }
        let frame = match head.start {
            0 => self.looking.take(),
            _ => None,
        };
        self.looking = None;
        let is_first = head.start > 0;
        let frame = match frame {
            Some(mut frame) => {
                let is_its = head.header.has(flag::RELATED)
                    && head.header.command != command::CREATE
                    && frame.headers.len() < LOOK_MESSAGES_MAX
                    && frame.verify();
                is_its.then_some(frame)
            }
            None => {
                let is_meant = is_first
                    && self.far_version >= LOOKS
                    && head.header.command == command::CREATE
                    && head.length <= OFFERED_MAX
                    && !head.header.is_dfs()
                    && !self.missing.names.is_empty();
                is_meant.then(|| LookingFrame {
                    headers: Vec::new(),
                    create: head.body().to_vec(),
                    mac: None,
                })
            }
        };
        let Some(mut frame) = frame else {
            return;
        };
        if head.header.guard() == MessageProtection::Signed {
            let key = self.keys.get(&head.header.session);
            frame.mac = key.map(|key| key.begin(head.message()));
        }
        frame.headers.push(head.header);
        self.looking = Some(frame);
    }

    /// The far half has not found a name.
    pub(super) fn store_missing(&mut self, name: MissingName) {
        while self.missing.names.len() >= LOOKS_MAX {
            self.missing.names.pop_front();
        }
        self.missing.names.push_back(name);
    }

    /// A frame of the client's has passed. Returns true if it looked for a name that is not there, and is
    /// answered.
    pub(super) fn answer_looking(&mut self, now: Time) -> bool {
        let Some(mut frame) = self.looking.take() else {
            return false;
        };
        let (true, Some(first)) = (frame.verify(), frame.headers.first().copied()) else {
            return false;
        };
        let names = self.missing.names.iter();
        let is_meant = |missing: &&MissingName| {
            (missing.session, missing.tree) == (first.session, first.tree)
                && missing.guard == first.guard()
                && name_of(&frame.create) == Some(&missing.name[..])
                && frame.create.starts_with(&missing.form)
        };
        let Some(index) = names.clone().position(|missing| is_meant(&missing)) else {
            return false;
        };
        let Some(missing) = self.missing.names.remove(index) else {
            return false;
        };
        let rest = &frame.headers[1..];
        let is_its = |other: &Smb2Header| other.guard() >= first.guard();
        let is_usable = now.since(missing.at) <= LISTING_WAITS
            && missing.position >= self.missing.made_at
            && self.fresh.is_fresh(now)
            && self.state == NearState::Serving
            && first.is_of_first_channel()
            && self.pending.len() + frame.headers.len() < OUTSTANDING_MAX
            && rest.len() == missing.rest.len()
            && rest.iter().all(is_its)
            && looks_alone(&frame.create);
        if is_usable {
            self.give_missing(&frame.headers, &missing.rest);
        }
        is_usable
    }

    /// Gives the client the answers to a frame that looks for a missing name.
    fn give_missing(&mut self, headers: &[Smb2Header], rest: &[u32]) {
        let first = headers[0];
        let statuses = std::iter::once(&status::OBJECT_NAME_NOT_FOUND).chain(rest);
        let answers = headers.iter().zip(statuses);
        let answers = answers.map(|(of, status)| (*of, *status, ERROR_BODY.to_vec()));
        let front = self.compound_frame(answers);
        let closes = headers.iter().any(|of| of.command == command::CLOSE);
        for of in headers {
            let missed = PendingRequest::Missed {
                closes,
                session: first.session,
                tree: first.tree,
                guard: first.guard(),
            };
            self.pending.insert(of.message_id, missed);
        }
        self.answered += headers.len() as u64;
        self.give_signed(&first, front);
    }

    /// The server has answered a request for a name that the client was told is missing. An open that
    /// it has made is not the client's.
    pub(super) fn missed_answered(
        &mut self,
        head: &Smb2MessageHead,
        (session, tree): (u64, u32),
        guard: MessageProtection,
    ) {
        let header = head.header;
        let is_open = header.command == command::CREATE && header.status == status::SUCCESS;
        if is_open && let Ok(answer) = CreateResponse::parse(head.body()) {
            self.opens.remove(&answer.file);
            self.tell_far(HalfFrame::Unwanted {
                file: answer.file,
                session,
                tree,
                guard,
            });
        }
    }
}

/// Returns true if a CREATE asks for an existing file by its name alone: not for one of an earlier time, and
/// for none that it had open.
fn looks_alone(body: &[u8]) -> bool {
    let whole = [&[0; header::LENGTH][..], body].concat();
    CreateRequest::parse(&whole).is_ok_and(|request| {
        request.disposition == 1
            && !request.is_taken_up_again()
            && request.context_names().is_ok_and(|names| {
                names.iter().all(|name| {
                    matches!(
                        *name,
                        b"MxAc" | b"QFid" | b"AlSi" | b"DHnQ" | b"DH2Q" | b"RqLs"
                    )
                })
            })
    })
}
