//! Opens the file that a client opens after it has changed a name, ahead of the client's own CREATE
//! (docs/decisions/0092).
//!
//! Programs that save a document rename a new file and delete the old one. Which name comes next is told by the order
//! in which the client has used its names before.
//!
//! ```text
//!  client   CREATE A ── rename A to B ── CLOSE ── CREATE C ── delete ── CLOSE ── CREATE B
//!  far                       answered ──► CREATE C               answered ──► CREATE B
//! ```
//! After a change of a name that the server has confirmed, the far half opens the name that stands in the place of the
//! list of used names from which the client took it the last time. The open is made as those in `open_after_stat`:
//! under a lease of the far half's own, and the near half decides whether the client gets it.
//!
//! Windows opens a file to rename or delete it without any caching. The far half requests the lease for such an open all
//! the same, so that its open refuses nobody as long as no client has it. The client's answer says that it has none. From
//! then on the far half gives the lease back at once if the server wants it.

use std::collections::{HashMap, HashSet, VecDeque};

use vocab::Time;

use super::connection::OplockRequester;
use super::message::GatheredMessage;
use super::open_after_stat::TreeName;
use super::{RequestPurpose, Smb2FarHalf};
use crate::smb::config::{CHANGE_HABITS_MAX, DurablePolicy, OPENS_MAX, USED_NAMES_MAX};
use crate::smb::wire::FileId;
use crate::smb::wire::create::{CreateRequest, contexts_after, oplock_level};
use crate::smb::wire::header::{self, Smb2Header, command};
use crate::smb::wire::lease::{LeaseKey, acknowledgement};
use crate::smb::wire::set_info::{NameChange, name_change};

/// A change of a name, by what is alike from one save to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeKind {
    /// A rename, and not a deletion.
    is_rename: bool,
    /// The place of the changed name in the list of used names as it was opened for the change.
    place: Option<usize>,
    /// The change before was a rename.
    follows_rename: bool,
}

/// The CREATE that followed a change.
#[derive(Clone, Debug)]
struct NextOpen {
    /// The place of its name in the list of used names.
    place: usize,
    header: Smb2Header,
    body: Vec<u8>,
}

/// A change that the client has sent.
#[derive(Clone, Debug)]
enum SentChange {
    Rename(TreeName),
    Delete,
}

/// A file that is to be opened ahead.
#[derive(Debug)]
pub(super) struct PredictedOpen {
    pub(super) name: TreeName,
    pub(super) model: (Smb2Header, Vec<u8>),
    pub(super) contexts: u32,
    pub(super) after: ChangeKind,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct NameChanges {
    /// The names that the client has used, the last one first.
    used: VecDeque<TreeName>,
    /// The place that the name of an open had before.
    places: HashMap<FileId, Option<usize>>,
    sent: HashMap<FileId, SentChange>,
    /// Opens that delete their file as they are closed.
    deletes: HashSet<FileId>,
    follows_rename: bool,
    /// The last change, until the client opens a file.
    last: Option<ChangeKind>,
    /// The opens that followed, the latest at the end.
    habits: VecDeque<(ChangeKind, NextOpen)>,
    predicted: VecDeque<PredictedOpen>,
    /// The leases of opens that were made under one, and whose client requested none, by the far half's key.
    hidden: HashMap<LeaseKey, FileId>,
}

impl NameChanges {
    /// The client has used a name, with this open if it has one.
    pub(super) fn used(&mut self, name: &TreeName, file: Option<FileId>) {
        let place = self.used.iter().position(|other| other == name);
        if let Some(place) = place {
            self.used.remove(place);
        }
        self.used.truncate(USED_NAMES_MAX - 1);
        self.used.push_front(name.clone());
        if let Some(file) = file.filter(|_| self.places.len() < OPENS_MAX) {
            self.places.insert(file, place);
        }
    }

    /// An open is no more.
    pub(super) fn forget(&mut self, file: FileId) {
        self.places.remove(&file);
        self.sent.remove(&file);
        self.deletes.remove(&file);
        self.hidden.retain(|_, of| *of != file);
    }

    /// An open that was made after such a change was of no use.
    pub(super) fn not_used(&mut self, after: ChangeKind) {
        self.habits.retain(|(kind, _)| *kind != after);
    }

    /// Returns true if the lease of this key is one that the client does not know.
    pub(super) fn is_hidden(&self, key: LeaseKey) -> bool {
        self.hidden.contains_key(&key)
    }

    pub(super) fn hide(&mut self, key: LeaseKey, file: FileId) {
        self.hidden.insert(key, file);
    }

    pub(super) fn next_predicted(&mut self) -> Option<PredictedOpen> {
        self.predicted.pop_front()
    }

    /// The server has made a change. Predicts the next open.
    fn changed(&mut self, file: FileId, is_rename: bool) {
        let kind = ChangeKind {
            is_rename,
            place: self.places.get(&file).copied().flatten(),
            follows_rename: self.follows_rename,
        };
        self.follows_rename = is_rename;
        self.last = Some(kind);
        let mut habits = self.habits.iter();
        let Some((_, next)) = habits.find(|(other, _)| *other == kind) else {
            return;
        };
        let Some(name) = self.used.get(next.place).cloned() else {
            return;
        };
        if let Some(contexts) = contexts_after(&next.body, name.units()) {
            self.predicted.clear();
            self.predicted.push_back(PredictedOpen {
                name,
                model: (next.header, next.body.clone()),
                contexts,
                after: kind,
            });
        }
    }
}

impl Smb2FarHalf {
    /// Records a frame that may change a name.
    pub(super) fn note_name_change(&mut self, message: &GatheredMessage) {
        let Some(head) = message.single() else {
            return;
        };
        if !self.near_takes_office_requests || head.header.command != command::SET_INFO {
            return;
        }
        let Some(joined) = message.joined() else {
            return;
        };
        let (session, tree) = (head.header.session, head.header.tree);
        let Some((file, change)) = name_change(&joined[header::LENGTH..]) else {
            return;
        };
        let sent = match change {
            NameChange::Rename(name) => SentChange::Rename(TreeName::new(session, tree, name)),
            NameChange::Delete => SentChange::Delete,
        };
        if self.opens.contains_key(&file) {
            self.changes.sent.insert(file, sent);
        }
    }

    /// The server has answered such a request with success.
    pub(super) fn name_changed(&mut self, file: FileId) {
        match self.changes.sent.remove(&file) {
            Some(SentChange::Rename(name)) => {
                self.stats.renamed_to(file, &name);
                self.changes.used(&name, None);
                self.changes.changed(file, true);
            }
            Some(SentChange::Delete) => {
                self.changes.deletes.insert(file);
            }
            None => {}
        }
    }

    /// The server has closed an open.
    pub(super) fn closed_after_change(&mut self, file: FileId) {
        if self.changes.deletes.remove(&file) {
            self.changes.changed(file, false);
        }
    }

    /// Records a CREATE of the client's: the first one behind a change is the model of the next.
    pub(super) fn note_open_after_change(&mut self, header: &Smb2Header, message: &[u8]) {
        let Some(kind) = self.changes.last.take() else {
            return;
        };
        self.changes.not_used(kind);
        let Some(name) = TreeName::of(header, message) else {
            return;
        };
        let place = self.changes.used.iter().position(|other| *other == name);
        let Some(place) = place.filter(|_| self.may_open_after_change(header, message)) else {
            return;
        };
        while self.changes.habits.len() >= CHANGE_HABITS_MAX {
            self.changes.habits.pop_front();
        }
        let body = message[header::LENGTH..].to_vec();
        let header = *header;
        let next = NextOpen {
            place,
            header,
            body,
        };
        self.changes.habits.push_back((kind, next));
    }

    /// Returns true if a CREATE opens an existing file to change its name, shares it with everybody, and asks for a
    /// lease that allows nothing. Other opens have leases of the client's own, under keys that it may use again.
    pub(super) fn may_open_after_change(&self, header: &Smb2Header, message: &[u8]) -> bool {
        let Ok(request) = CreateRequest::parse(message) else {
            return false;
        };
        let is_keyed = self.sessions.is_keyed(header.session);
        let is_leased = request.oplock_level == oplock_level::LEASE;
        let lease = request.lease().ok().flatten().filter(|_| is_leased);
        let is_declined = !request.is_durable()
            || self.settings.durable == DurablePolicy::Decline && !request.is_persistent();
        let is_served = match self.connection.judge(header, &request, is_keyed) {
            OplockRequester::ForNobody => {
                lease.is_some_and(|lease| lease.is_empty()) && request.is_shared_with_all()
            }
            OplockRequester::ForItself | OplockRequester::ForUs | OplockRequester::NotServed => {
                false
            }
        };
        is_served
            && is_declined
            && request.disposition == 1
            && !request.is_directory()
            && self.may_answer(header)
    }

    /// Opens the files that the client probably opens next.
    pub(super) fn open_predicted(&mut self, now: Time) {
        while let Some(predicted) = self.changes.next_predicted() {
            let PredictedOpen {
                name,
                model,
                contexts,
                after,
            } = predicted;
            self.open_under_lease(now, (&name, contexts), model, Some(after));
        }
    }

    /// Gives back a lease that the client does not know, if the server waits for it. Returns true if the key is that
    /// of such a lease.
    pub(super) fn give_back_hidden(&mut self, key: LeaseKey, is_awaited: bool) -> bool {
        let Some(file) = self.changes.hidden.get(&key).copied() else {
            return false;
        };
        if let Some(open) = self.opens.get(&file).filter(|_| is_awaited) {
            let header = open.request(command::OPLOCK_BREAK);
            self.send_own(header, &acknowledgement(key), RequestPurpose::Own);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TreeName {
        let units = text.encode_utf16().flat_map(u16::to_le_bytes);
        TreeName::new(1, 2, &units.collect::<Vec<u8>>())
    }

    #[test]
    fn used_names_are_told_by_their_places() {
        let mut changes = NameChanges::default();
        for text in ["a", "b", "c"] {
            changes.used(&name(text), None);
        }
        let file = FileId([7; 16]);
        changes.used(&name("a"), Some(file));
        assert_eq!(changes.places[&file], Some(2));
        assert_eq!(changes.used[0], name("a"));
        for index in 0..2 * USED_NAMES_MAX {
            changes.used(&name(&index.to_string()), None);
        }
        assert_eq!(changes.used.len(), USED_NAMES_MAX);
        changes.forget(file);
        assert!(changes.places.is_empty());
    }
}
