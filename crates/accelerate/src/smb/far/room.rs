//! The room that is left in the trees whose WRITEs are answered before the server has them.
//!
//! ```text
//!  client     CREATE ─────────────► ◄──────── answer │ MayWrite
//!  far half          CREATE ─► ◄─ answer   QUERY_INFO ─► ◄─ room
//!  server                                  (FileFsFullSizeInformation)
//! ```
//! A program that has written and closed a file does not ask again, and some clients drop the status of a CLOSE. So no
//! WRITE may be answered that could find the disk full, or the user's quota used up. The far half asks for the
//! room through every open whose WRITEs it may let the near half answer, since a share can have several file
//! systems, and again after each [`BEHIND_MAX`] bytes of WRITEs. If the last answer is fresh and shows enough room, the
//! open's licence includes WRITEs at once; otherwise [`HalfFrame::MayWrite`] follows the answer. If little room
//! is left, the licences of the tree's opens that include WRITEs end, and after a refusal for want of room none
//! includes WRITEs for a minute.
//!
//! It does not know the writes of other clients since the last answer (docs/decisions/0091).

use std::collections::BTreeMap;

use vocab::Time;

use super::{OutstandingRequest, RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::config::{BEHIND_MAX, FULL_LASTS, ROOM_LASTS, ROOM_MIN, ROOM_REFRESH, TREES_MAX};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::header::{Smb2Header, flag, status};
use crate::smb::wire::query_info::{
    FULL_SIZE, FULL_SIZE_LENGTH, FileSystemQuestion, information, room_left,
};
use crate::smb::wire::split::Smb2MessageHead;

/// A session and a tree of it.
type TreeOfSession = (u64, u32);

/// The room of one tree.
#[derive(Debug, Default)]
struct TreeRoom {
    /// The bytes that the last answer has left, and the time of its question.
    left: Option<(u64, Time)>,
    /// The bytes of WRITEs that went to the server since the last question.
    written: u64,
    /// A question is under way.
    is_asked: bool,
    /// The server has refused a change for want of room.
    full_until: Option<Time>,
}

impl TreeRoom {
    /// Returns true if WRITEs of so many bytes as may be answered early will find room.
    fn has_room(&self, now: Time) -> bool {
        let is_full = self.full_until.is_some_and(|until| now < until);
        let left = self.left.filter(|(_, at)| now.since(*at) <= ROOM_LASTS);
        !is_full && left.is_some_and(|(bytes, _)| bytes.saturating_sub(self.written) >= ROOM_MIN)
    }

    /// Returns true if a WRITE calls for the next question.
    fn is_due(&self, now: Time) -> bool {
        let is_old = |(_, at): (u64, Time)| now.since(at) > ROOM_REFRESH;
        self.left.is_none_or(is_old) || self.written >= BEHIND_MAX
    }
}

/// The trees with opens whose WRITEs may be answered early.
#[derive(Debug, Default)]
pub(super) struct RoomTable {
    trees: BTreeMap<TreeOfSession, TreeRoom>,
}

impl RoomTable {
    /// Returns true if WRITEs in a tree may be answered early.
    pub(super) fn has_room(&self, now: Time, tree: TreeOfSession) -> bool {
        let room = self.trees.get(&tree);
        room.is_some_and(|room| room.has_room(now))
    }

    /// Returns true if the server has said nothing against WRITEs that are answered early.
    pub(super) fn is_unknown(&self, now: Time, tree: TreeOfSession) -> bool {
        let room = self.trees.get(&tree);
        room.is_none_or(|room| {
            let is_old = |(_, at): (u64, Time)| now.since(at) > ROOM_LASTS;
            room.full_until.is_none_or(|until| now >= until) && room.left.is_none_or(is_old)
        })
    }

    fn of(&mut self, tree: TreeOfSession) -> Option<&mut TreeRoom> {
        if self.trees.len() >= TREES_MAX && !self.trees.contains_key(&tree) {
            return None;
        }
        Some(self.trees.entry(tree).or_default())
    }

    /// The trees have ended.
    pub(super) fn forget(&mut self, session: u64, tree: Option<u32>) {
        self.trees
            .retain(|of, _| of.0 != session || tree.is_some_and(|tree| tree != of.1));
    }
}

impl Smb2FarHalf {
    /// Asks for the room of the file system that an open lies in, if its WRITEs are or will be answered early.
    pub(super) fn ask_room(&mut self, now: Time, file: FileId) {
        let Some(open) = self.opens.get(&file) else {
            return;
        };
        let tree = (open.session, open.tree);
        let is_wanted = (open.may_write || open.awaits_room) && open.is_held();
        if !is_wanted || !self.ids.can_take(1) || self.client_finish != StreamFinish::Open {
            return;
        }
        let header = self.query_header(open);
        let Some(room) = self.room.of(tree).filter(|room| !room.is_asked) else {
            return;
        };
        room.is_asked = true;
        if let Some((left, _)) = &mut room.left {
            *left = left.saturating_sub(std::mem::take(&mut room.written));
        }
        room.written = 0;
        let question = FileSystemQuestion {
            class: FULL_SIZE,
            length: FULL_SIZE_LENGTH,
            file,
        };
        let (session, tree) = tree;
        let purpose = RequestPurpose::AsksRoom {
            session,
            tree,
            at: now,
        };
        self.send_own(header, &question.emit(), purpose);
    }

    /// The server has answered the question, or refused it.
    pub(super) fn room_answered(
        &mut self,
        now: Time,
        head: &Smb2MessageHead,
        tree: TreeOfSession,
        asked_at: Time,
    ) {
        let Some(room) = self.room.trees.get_mut(&tree) else {
            return;
        };
        room.is_asked = false;
        // A server that cannot tell has no room that is known.
        let left = match head.header.status {
            status::SUCCESS => information(head.body()).and_then(room_left).unwrap_or(0),
            _ => 0,
        };
        room.left = Some((left, asked_at));
        match room.has_room(now) {
            true => self.let_writes_be_answered(now, tree),
            false => self.answer_no_writes(now, tree),
        }
    }

    /// The licences of the opens that have waited for room include WRITEs now.
    fn let_writes_be_answered(&mut self, now: Time, tree: TreeOfSession) {
        for file in self.files() {
            let open = &self.opens[&file];
            let is_meant = open.awaits_room && open.is_held() && (open.session, open.tree) == tree;
            // Meanwhile another open of the lease may have been made durable.
            let is_outlived = open.lease.is_some_and(|key| self.has_durable_kin(key));
            let may_tell = self.near_takes_late_writes && self.may_answer_writes(now, tree.0);
            if !is_meant || is_outlived || !may_tell {
                continue;
            }
            let (takes_compounds, takes_office_requests) =
                (self.near_takes_compounds, self.near_takes_office_requests);
            if let Some(open) = self.opens.get_mut(&file) {
                open.allow_writes(takes_compounds, takes_office_requests);
                let may_set = open.may_set;
                self.tell_near(HalfFrame::MayWrite { file, may_set });
            }
        }
    }

    /// Returns true if nothing but the room decides whether WRITEs of a session are answered early. Another
    /// connection of the client's may wait for the end of those that were, and the session may end.
    pub(super) fn may_answer_writes(&self, now: Time, session: u64) -> bool {
        self.stops_by().is_none() && !self.sessions.is_ending(now, session)
    }

    /// Ends the licences of a tree's opens that include WRITEs.
    fn answer_no_writes(&mut self, now: Time, tree: TreeOfSession) {
        for file in self.files() {
            let open = &self.opens[&file];
            if open.may_write && (open.session, open.tree) == tree {
                self.give_back(now, file);
            }
        }
    }

    /// A frame of the client's has gone to the server.
    pub(super) fn note_written(&mut self, now: Time, (file, bytes): (FileId, u64)) {
        let Some(open) = self.opens.get(&file) else {
            return;
        };
        if open.may_write || open.awaits_room {
            let tree = (open.session, open.tree);
            let is_due = self.room.of(tree).is_some_and(|room| {
                room.written = room.written.saturating_add(bytes);
                room.is_due(now)
            });
            if is_due {
                self.ask_room(now, file);
            }
        }
    }

    /// The server has answered a request of the client's, perhaps with a refusal for want of room.
    pub(super) fn note_refused_room(
        &mut self,
        now: Time,
        header: &Smb2Header,
        request: &OutstandingRequest,
    ) {
        let is_for_room = matches!(
            header.status,
            status::DISK_FULL | status::QUOTA_EXCEEDED | status::DISK_QUOTA_EXCEEDED
        );
        if !is_for_room {
            return;
        }
        let file = match request.purpose {
            RequestPurpose::Changes { file, .. } | RequestPurpose::Closes(file) => Some(file),
            _ => None,
        };
        let open = file.and_then(|file| self.opens.get(&file));
        let tree = match (open, request.purpose) {
            (Some(open), _) => (open.session, open.tree),
            (None, RequestPurpose::Create { tree, .. }) => (request.session, tree),
            // An answer that was pending does not name its tree.
            (None, _) if header.has(flag::ASYNC) => return,
            (None, _) => (header.session, header.tree),
        };
        if let Some(room) = self.room.of(tree) {
            room.full_until = Some(now + FULL_LASTS);
        }
        self.answer_no_writes(now, tree);
    }
}
