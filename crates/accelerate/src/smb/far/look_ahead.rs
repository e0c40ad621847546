//! Looks for names that are probably not there, ahead of the client that looks for them.
//!
//! Programs look for names that seldom exist beside the files that they open: Windows for the stream
//! `N:Zone.Identifier` of a document N, Explorer for `desktop.ini` in a folder, Finder for the streams
//! `N:AFP_AfpInfo` and `N:AFP_Resource` of each file.
//!
//! ```text
//!  client   CREATE N ─► ◄─ answer        CREATE N:stream ─► ◄─ STATUS_OBJECT_NAME_NOT_FOUND, from here
//!  far      CREATE N, then CREATE N:stream for attributes alone; Missing
//! ```
//! If the client did not find a name that begins with the name of an open that it made shortly before, the
//! far half looks for the rest behind the name of the next open of the same form. The near half answers
//! the client's own CREATE within 20 ms, and it goes to the server as well (docs/decisions/0088).
//!
//! An open for attributes alone breaks no oplock and conflicts with no share. If it finds a file, it is
//! closed, and the client's own CREATE is the server's to answer.
//!
//! If the client read of the last open before it looked behind it, the far half looks behind the first data of the next,
//! which would delay the word otherwise.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::message::GatheredMessage;
use super::open::TrackedOpen;
use super::open_after_stat::TreeName;
use super::{FarState, RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::ReasonCode;
use crate::smb::config::{
    LOOK_FORMS_MAX, LOOK_MESSAGES_MAX, LOOK_OPENS_MAX, LOOK_SUFFIX_MAX, LOOK_SUFFIXES_MAX,
    LOOK_UNUSED_MAX, LOOKS_MAX, OPENS_MAX,
};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateForm, CreateResponse, attributes_request, form_of};
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::split::Smb2MessageHead;

/// The separator between a file's name and that of a stream of it, in UTF-16.
const STREAM: [u8; 2] = [b':', 0];

/// A frame of the client's that begins with a CREATE.
#[derive(Clone, Debug)]
struct OpeningFrame {
    header: Smb2Header,
    name: TreeName,
    form: CreateForm,
    /// The client's ids of its messages, and the statuses of their answers.
    ids: Vec<u64>,
    statuses: Vec<Option<u32>>,
}

/// A name that is looked for behind an open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MissingSuffix {
    /// The rest of the name behind that of the open.
    suffix: Vec<u8>,
    form: CreateForm,
    /// The statuses of the requests behind the CREATE in its compound.
    rest: Vec<u32>,
    /// The client has read of the open before.
    follows_reads: bool,
    /// The times that it was looked for since the client has last done so.
    unused: usize,
    /// The name of the open behind which it was missed first.
    first: TreeName,
    /// It is looked for. A stream is at once, but a name in a directory only if it was missed in two: programs
    /// ask for the name of each file that they make.
    is_usual: bool,
}

/// Names that are looked for behind an open once its first data has been sent.
#[derive(Debug)]
pub(super) struct DelayedLooks {
    frame: OpeningFrame,
    suffixes: Vec<MissingSuffix>,
}

/// An open of the client's.
#[derive(Debug)]
struct OpenedName {
    name: TreeName,
    form: CreateForm,
    file: Option<FileId>,
}

/// Our own CREATE for a name.
#[derive(Debug)]
struct PendingLook {
    header: Smb2Header,
    name: Vec<u8>,
    form: CreateForm,
    rest: Vec<u32>,
    position: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct LookHabits {
    frames: Vec<OpeningFrame>,
    /// The client's last opens, the latest at the end.
    opens: VecDeque<OpenedName>,
    /// The names that are looked for behind opens of a form, the form that was used last at the end.
    habits: VecDeque<(CreateForm, Vec<MissingSuffix>)>,
    asked: HashMap<u64, PendingLook>,
    next_number: u64,
}

impl LookHabits {
    /// Records the status of an answer. Returns the frame once the answer to its CREATE says success, or
    /// all of its answers are there.
    fn answered(&mut self, message_id: u64, status: u32) -> Option<OpeningFrame> {
        let index = self
            .frames
            .iter()
            .position(|frame| frame.ids.contains(&message_id))?;
        let frame = &mut self.frames[index];
        let place = frame.ids.iter().position(|id| *id == message_id)?;
        frame.statuses[place] = Some(status);
        let is_open = place == 0 && status == status::SUCCESS;
        let is_done = frame.statuses.iter().all(Option::is_some);
        (is_open || is_done).then(|| self.frames.swap_remove(index))
    }

    /// The client has opened a file. Returns the names to look for.
    fn opened(&mut self, frame: &OpeningFrame, file: Option<FileId>) -> Vec<MissingSuffix> {
        self.opens.retain(|open| open.name != frame.name);
        while self.opens.len() >= LOOK_OPENS_MAX {
            self.opens.pop_front();
        }
        self.opens.push_back(OpenedName {
            name: frame.name.clone(),
            form: frame.form,
            file,
        });
        let mut habits = self.habits.iter_mut();
        let Some((_, suffixes)) = habits.find(|(form, _)| *form == frame.form) else {
            return Vec::new();
        };
        suffixes.retain(|suffix| suffix.unused < LOOK_UNUSED_MAX);
        suffixes.iter_mut().for_each(|suffix| suffix.unused += 1);
        let usual = suffixes.iter().filter(|suffix| suffix.is_usual);
        usual.cloned().collect()
    }

    /// Returns the open whose name a name begins with, and the rest of it.
    fn behind(&self, name: &TreeName) -> Option<(&OpenedName, Vec<u8>)> {
        let opens = self.opens.iter().rev();
        let rests = opens.filter_map(|open| Some((open, name.behind(&open.name)?)));
        let suffixes = rests.filter(|(_, suffix)| {
            let separates = matches!(suffix.get(..2), Some([b':' | b'\\', 0]));
            separates && suffix.len() <= LOOK_SUFFIX_MAX
        });
        let shortest = suffixes.min_by_key(|(_, suffix)| suffix.len());
        shortest.map(|(open, suffix)| (open, suffix.to_vec()))
    }

    /// The client has looked for a name that is not there.
    fn missed(&mut self, frame: &OpeningFrame, is_read: impl Fn(FileId) -> bool) {
        let Some((open, suffix)) = self.behind(&frame.name) else {
            return;
        };
        let form = open.form;
        let statuses = frame.statuses[1..].iter().copied();
        let mut missing = MissingSuffix {
            is_usual: suffix.starts_with(&STREAM),
            suffix,
            form: frame.form,
            rest: statuses.map(Option::unwrap_or_default).collect(),
            follows_reads: open.file.is_some_and(is_read),
            unused: 0,
            first: open.name.clone(),
        };
        let index = self.habits.iter().position(|(other, _)| *other == form);
        let habit = index.and_then(|index| self.habits.remove(index));
        let (_, mut suffixes) = habit.unwrap_or((form, Vec::new()));
        let is_same =
            |other: &MissingSuffix| (&other.suffix, other.form) == (&missing.suffix, missing.form);
        if let Some(index) = suffixes.iter().position(is_same) {
            let known = suffixes.remove(index);
            missing.is_usual |= known.is_usual || known.first != missing.first;
            missing.first = known.first;
        }
        // The one that was missed the longest ago gives way.
        if suffixes.len() >= LOOK_SUFFIXES_MAX {
            suffixes.remove(0);
        }
        suffixes.push(missing);
        while self.habits.len() >= LOOK_FORMS_MAX {
            self.habits.pop_front();
        }
        self.habits.push_back((form, suffixes));
    }
}

impl Smb2FarHalf {
    /// Records a frame that begins with a CREATE.
    pub(super) fn note_opening(&mut self, message: &GatheredMessage) {
        if !self.near_takes_looks {
            return;
        }
        // The near half may answer a frame, and then the server does not.
        if self.looks.frames.len() >= LOOKS_MAX {
            self.looks.frames.remove(0);
        }
        let mut heads = message.heads().map(|head| head.header);
        let Some(header) = heads
            .next()
            .filter(|first| first.command == command::CREATE)
        else {
            return;
        };
        let mut ids = vec![header.message_id];
        for other in heads {
            let is_its = other.has(flag::RELATED) && other.command != command::CREATE;
            if !is_its || ids.len() >= LOOK_MESSAGES_MAX {
                return;
            }
            ids.push(other.message_id);
        }
        let Some((_, create)) = message.messages().next() else {
            return;
        };
        let body = create.get(header::LENGTH..).unwrap_or_default();
        let (Some(name), Some(form)) = (TreeName::of(&header, &create), form_of(body)) else {
            return;
        };
        self.looks.frames.push(OpeningFrame {
            header,
            name,
            form,
            statuses: vec![None; ids.len()],
            ids,
        });
    }

    /// The server has answered a request of the client's.
    pub(super) fn looked(&mut self, head: &Smb2MessageHead) {
        let header = &head.header;
        let Some(frame) = self.looks.answered(header.message_id, header.status) else {
            return;
        };
        match frame.statuses[0] {
            Some(status::SUCCESS) => {
                let file = CreateResponse::parse(head.body()).ok();
                let file = file.map(|answer| answer.file);
                self.changes.used(&frame.name, file);
                let suffixes = self.looks.opened(&frame, file);
                let (later, suffixes) = suffixes
                    .into_iter()
                    .partition(|suffix: &MissingSuffix| suffix.follows_reads);
                self.look_ahead(&frame, suffixes);
                self.look_later(file, frame, later);
            }
            Some(status::OBJECT_NAME_NOT_FOUND) => {
                let opens = &self.opens;
                let is_read = |file| opens.get(&file).is_some_and(|open| open.is_read);
                self.looks.missed(&frame, is_read);
            }
            _ => {}
        }
    }

    /// Looks for names behind an open once its first data has been sent.
    fn look_later(
        &mut self,
        file: Option<FileId>,
        frame: OpeningFrame,
        suffixes: Vec<MissingSuffix>,
    ) {
        let open = file.and_then(|file| self.opens.get_mut(&file));
        match open.filter(|open| open.awaits_first_data()) {
            Some(open) => open.looks = Some(DelayedLooks { frame, suffixes }),
            None => self.look_ahead(&frame, suffixes),
        }
    }

    /// The first data of an open has been sent.
    pub(super) fn look_behind_data(&mut self, looks: DelayedLooks) {
        self.look_ahead(&looks.frame, looks.suffixes);
    }

    /// Looks for names behind an open.
    fn look_ahead(&mut self, frame: &OpeningFrame, suffixes: Vec<MissingSuffix>) {
        let makes_names = |request: &super::OutstandingRequest| request.makes_names;
        let is_quiet = self.queue.is_empty()
            && self.state == FarState::Engaged
            && self.client_finish == StreamFinish::Open
            && !self.outstanding.values().any(makes_names);
        let is_keyed = self.sessions.is_keyed(frame.header.session);
        let is_served =
            self.may_answer(&frame.header) && self.connection.serves_tree(&frame.header, is_keyed);
        if !is_quiet || !is_served {
            return;
        }
        for missing in suffixes {
            let is_room = self.looks.asked.len() < LOOKS_MAX && self.opens.len() < OPENS_MAX;
            if !is_room || !self.ids.can_take(1) {
                return;
            }
            let name = frame.name.with(&missing.suffix);
            let Some(body) = attributes_request(&name) else {
                continue;
            };
            let of = &frame.header;
            let header = Smb2Header::alike(command::CREATE, of);
            let number = self.looks.next_number;
            self.looks.next_number += 1;
            self.send_own(header, &body, RequestPurpose::LooksAhead(number));
            let asked = PendingLook {
                header,
                name,
                form: missing.form,
                rest: missing.rest,
                position: self.position,
            };
            self.looks.asked.insert(number, asked);
        }
    }

    /// The client does not know this open.
    pub(super) fn unwanted(
        &mut self,
        file: FileId,
        (session, tree): (u64, u32),
        guard: MessageProtection,
    ) {
        if !self.opens.contains_key(&file) {
            let mut open = TrackedOpen::new(session, tree, false);
            open.guard = guard;
            self.keep_open(file, open);
        }
        self.discard(file);
    }

    /// The server has answered our own CREATE for a name.
    pub(super) fn looked_ahead(&mut self, head: &Smb2MessageHead, number: u64) {
        let Some(asked) = self.looks.asked.remove(&number) else {
            return;
        };
        let of = &asked.header;
        match head.header.status {
            status::OBJECT_NAME_NOT_FOUND => self.tell_near(HalfFrame::Missing {
                session: of.session,
                tree: of.tree,
                guard: of.guard(),
                position: asked.position,
                form: Bytes::copy_from_slice(&asked.form),
                name: asked.name.into(),
                rest: asked.rest,
            }),
            status::SUCCESS => match CreateResponse::parse(head.body()) {
                Ok(answer) => {
                    let mut open = TrackedOpen::new(of.session, of.tree, false);
                    open.guard = of.guard();
                    self.keep_open(answer.file, open);
                    self.discard(answer.file);
                }
                Err(_) => self.stop(ReasonCode::VIOLATION),
            },
            _ => {}
        }
    }
}
