//! A server of one share in memory, for any number of connections.
//!
//! It implements the features that the tactics depend on: windows of message ids, exclusive oplocks
//! and their breaks, which the opener waits for, shares, names that change, pending requests, and a
//! disk that can be full. It answers at once. It can record its events ([`HistoryEvent`]).

mod history;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use vocab::Time;

use super::login::{LoginProof, PreauthHashes, UserLogin};
use super::seal::{SessionEncryption, SessionEndpoint};
use crate::smb::keys::{SigningAlgorithm, SigningKey};
use crate::smb::wire::create::CreateRequest;
use crate::smb::wire::directory::{QueryDirectoryRequest, answer_body};
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{LENGTH, Smb2Header, UNASKED, command, error_answer, flag, status};
use crate::smb::wire::lease::LeaseKey;
use crate::smb::wire::oplock::OplockBreak;
use crate::smb::wire::query_info;
use crate::smb::wire::split::{Smb2Splitter, SplitterPiece};
use crate::smb::wire::transfer::{ReadRequest, WriteRequest, read_answer_body, write_answer_body};
use crate::smb::wire::{FileId, array, u8_at, u16_at, u32_at, u64_at};
pub(crate) use history::HistoryEvent;

pub(crate) const DISK_FULL: u32 = 0xc000_007f;
pub(crate) const NO_SUCH_FILE: u32 = 0xc000_0034;
pub(crate) const CANCELLED: u32 = 0xc000_0120;
pub(crate) const FILE_CLOSED: u32 = 0xc000_0128;
pub(crate) const INVALID_INFO_CLASS: u32 = 0xc000_0003;
/// An information class that this server does not know.
pub(crate) const NO_CLASS: u8 = 99;
pub(crate) const ACCESS_DENIED: u32 = 0xc000_0022;
pub(crate) const SHARING_VIOLATION: u32 = 0xc000_0043;
pub(crate) const COLLISION: u32 = 0xc000_0035;
const UNSUCCESSFUL: u32 = 0xc000_0001;
const INVALID_OPLOCK_PROTOCOL: u32 = 0xc000_00e3;
pub(crate) const DELETE_PENDING: u32 = 0xc000_0056;

/// Rights that shares are about ([MS-SMB2] §2.2.13.1.1), each with its share ([MS-SMB2] §2.2.13,
/// ShareAccess).
const SHARED: [(u32, u32); 3] = [(0x21, 0x1), (0x6, 0x2), (0x1_0000, 0x4)];
/// Rights that concern attributes alone: an open with no others breaks no oplock ([MS-FSA]
/// §2.1.5.1.2, Open of an Existing File).
const ATTRIBUTES: u32 = 0x0010_0180;

/// Information classes ([MS-FSCC] §2.4): FileBasicInformation, FileStandardInformation, FileRenameInformation and
/// FileDispositionInformation.
const BASIC: u8 = 4;
const STANDARD: u8 = 5;
const RENAME: u8 = 10;
const ALLOCATION: u8 = 19;
const DISPOSITION: u8 = 13;
/// FileIdFullDirectoryInformation, the one class of entries that this server writes as it is specified.
pub(crate) const FULL: u8 = 38;

/// Oplock levels.
const EXCLUSIVE: u8 = 8;
const SHARED_LEVEL: u8 = 1;

/// The connection of opens that have outlived theirs.
const NOBODY: usize = usize::MAX;

/// One connection to the server.
struct Smb2ServerConnection {
    requests: Smb2Splitter,
    frame: Vec<u8>,
    out: Vec<u8>,
    /// Ids that may be used: those below `top` that were not.
    top: u64,
    used: BTreeSet<u64>,
    /// Requests that are pending: their headers.
    pending: Vec<Smb2Header>,
    heard: PreauthHashes,
    /// The key of the connection's session, if it signs.
    key: Option<SigningKey>,
    is_gone: bool,
    /// The encryption of the session, if there is any.
    pub(super) seal: Option<SessionEncryption>,
    /// Sessions that were set up over it by users.
    sessions: u64,
}

/// The signing of a server's sessions.
#[derive(Clone, Debug)]
pub(crate) struct SigningPolicy {
    pub(crate) login: UserLogin,
    pub(crate) algorithm: SigningAlgorithm,
    /// Unsigned requests are refused.
    pub(crate) is_required: bool,
}

/// The messages that a server encrypts, with the cipher of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncryptionPolicy {
    /// All that a client encrypts.
    AsAsked(u16),
    /// All of a session.
    OfSessions(u16),
    /// All of the share, whose tree has the number 5.
    OfTheShare(u16),
}

impl EncryptionPolicy {
    pub(crate) fn cipher(self) -> u16 {
        match self {
            Self::AsAsked(cipher) | Self::OfSessions(cipher) | Self::OfTheShare(cipher) => cipher,
        }
    }
}

struct Smb2ServerOpen {
    connection: usize,
    name: String,
    object: u64,
    access: u32,
    share: u32,
    deletes_on_close: bool,
    /// Its level; of a lease [`EXCLUSIVE`] with WRITE caching, and [`SHARED_LEVEL`] with READ caching alone.
    oplock: u8,
    lease: Option<LeaseKey>,
    /// It outlives its connection, and then belongs to [`NOBODY`].
    is_durable: bool,
    session: u64,
    tree: u32,
    position: u64,
    /// The names that come next in a directory's listing, once it is requested.
    listing: Option<VecDeque<String>>,
}

/// A CREATE that waits for an oplock break.
struct WaitingCreate {
    connection: usize,
    header: Smb2Header,
    body: Vec<u8>,
}

/// See the module documentation.
pub(crate) struct Smb2Server {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The names that are directories, whatever a CREATE asks for. Each lists all files, and, but for the top,
    /// the directories in it where the class of the entries has attributes ([`FULL`]). If there are none, each
    /// name is one that is opened as such.
    pub(crate) directories: BTreeSet<String>,
    /// The names that are reparse points.
    pub(crate) links: BTreeSet<String>,
    /// A holder of a lease with HANDLE caching is asked before its open refuses another ([MS-FSA] §2.1.5.1.2).
    pub(crate) breaks_handles: bool,
    /// Durable handles are granted with batch oplocks and leases with HANDLE caching.
    pub(crate) grants_durable: bool,
    /// The requests for durable handles.
    pub(crate) asked_durable: usize,
    pub(crate) dialect: u16,
    /// Bytes that all files may hold together.
    pub(crate) disk: usize,
    /// The bytes that clients are told are left in the tree, whatever the disk may hold.
    pub(crate) told_room: u64,
    /// The number of questions for them.
    pub(crate) room_questions: usize,
    /// The most credits that each answer grants.
    pub(crate) credits_max: u16,
    /// Questions about the file system, and how long their answers are.
    pub(crate) file_system_questions: usize,
    pub(crate) file_system_bytes: usize,
    /// Every request: connection and header.
    pub(crate) log: Vec<(usize, Smb2Header)>,
    connections: Vec<Smb2ServerConnection>,
    opens: BTreeMap<FileId, Smb2ServerOpen>,
    next_file: u64,
    waiting: VecDeque<WaitingCreate>,
    /// WRITEs are kept until [`Self::do_held_writes`], which does the last one first: a server may
    /// work on several at a time.
    pub(crate) holds_writes: bool,
    held_writes: Vec<(usize, Smb2Header, Vec<u8>, FileId)>,
    /// CLOSEs are kept until [`Self::do_held_closes`].
    pub(crate) holds_closes: bool,
    held_closes: Vec<(usize, Smb2Header, FileId)>,
    /// If set, users must authenticate, and sessions have a key.
    pub(crate) signing: Option<SigningPolicy>,
    /// Otherwise they are guests.
    pub(crate) takes_guests: bool,
    /// Sessions are encrypted, too.
    pub(crate) sealing: Option<EncryptionPolicy>,
    /// True if answers to encrypted requests go in the clear, which no real server may do.
    pub(crate) forgets_to_seal: bool,
    /// The capabilities beside those of its dialect.
    pub(crate) capabilities: u8,
    /// Its clock at NEGOTIATE, as a FILETIME; 0: it does not tell it.
    pub(crate) clock: u64,
    /// Requests whose signature was missing or not valid.
    pub(crate) refused: usize,
    /// The events, if they are recorded.
    pub(crate) history: Option<Vec<HistoryEvent>>,
    /// The time of each event, and the present time.
    pub(crate) times: Vec<Time>,
    pub(crate) now: Time,
    /// The first connection's next request of this command is refused with this status.
    pub(crate) refuses: Option<(u16, u32)>,
    /// The first connection's next answer to this command goes behind the next break.
    pub(crate) is_overtaken: Option<u16>,
    overtaken: Vec<u8>,
    /// The oplocks with an outstanding break.
    breaking: BTreeSet<FileId>,
    /// The oplocks that were not given back in time.
    given_up: BTreeSet<FileId>,
    /// Files by name, as the history calls them.
    objects: BTreeMap<String, u64>,
    /// The files that are deleted with their last open.
    deleting: BTreeSet<String>,
    /// How often each file has changed, if the events are recorded; told as the time of its last change.
    versions: BTreeMap<u64, u64>,
}

impl Smb2Server {
    pub(crate) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            directories: BTreeSet::new(),
            links: BTreeSet::new(),
            breaks_handles: false,
            grants_durable: false,
            asked_durable: 0,
            dialect: 0x0210,
            disk: usize::MAX,
            told_room: 1 << 40,
            room_questions: 0,
            credits_max: 64,
            file_system_questions: 0,
            file_system_bytes: 24,
            log: Vec::new(),
            connections: Vec::new(),
            opens: BTreeMap::new(),
            next_file: 1,
            waiting: VecDeque::new(),
            holds_writes: false,
            held_writes: Vec::new(),
            holds_closes: false,
            held_closes: Vec::new(),
            signing: None,
            takes_guests: false,
            sealing: None,
            forgets_to_seal: false,
            capabilities: 0,
            clock: 0,
            refused: 0,
            history: None,
            times: Vec::new(),
            now: Time::ZERO,
            refuses: None,
            is_overtaken: None,
            overtaken: Vec::new(),
            breaking: BTreeSet::new(),
            given_up: BTreeSet::new(),
            objects: BTreeMap::new(),
            deleting: BTreeSet::new(),
            versions: BTreeMap::new(),
        }
    }

    fn object(&mut self, name: &str) -> u64 {
        let next = self.next_file;
        let object = *self.objects.entry(name.to_owned()).or_insert(next);
        self.next_file += u64::from(object == next);
        object
    }

    /// The time of a file's last change.
    fn version(&self, name: &str) -> u64 {
        let object = self.objects.get(name);
        let version = object.and_then(|object| self.versions.get(object));
        version.copied().unwrap_or_default()
    }

    /// A connection is gone, and its opens with it.
    pub(crate) fn disconnect(&mut self, connection: usize) {
        self.do_held_writes();
        self.waiting
            .retain(|waiting| waiting.connection != connection);
        let files = self.opens.iter();
        let files = files.filter(|(_, open)| open.connection == connection);
        for file in files.map(|(file, _)| *file).collect::<Vec<_>>() {
            match self.opens.get_mut(&file) {
                Some(open) if open.is_durable => open.connection = NOBODY,
                _ => self.end(file),
            }
        }
        self.connections[connection].is_gone = true;
        self.connections[connection].out.clear();
        self.connections[connection].pending.clear();
        self.retry_waiting();
    }

    /// An open ends.
    fn end(&mut self, file: FileId) {
        let Some(open) = self.opens.remove(&file) else {
            return;
        };
        if open.deletes_on_close {
            self.deleting.insert(open.name.clone());
        }
        let is_last = !self.opens.values().any(|other| other.name == open.name);
        if is_last && self.deleting.remove(&open.name) {
            self.files.remove(&open.name);
            self.directories.remove(&open.name);
            self.objects.remove(&open.name);
            self.names_changed(open.connection);
            if open.deletes_on_close {
                self.note(|| HistoryEvent::Deleted(file));
            }
        }
    }

    /// Revokes an oplock whose holder has not answered its break.
    pub(crate) fn give_up_break(&mut self, file: FileId) {
        // It may have been given back, and granted again since.
        let Some(open) = self
            .opens
            .get(&file)
            .filter(|_| self.breaking.contains(&file))
        else {
            return;
        };
        for file in self.sharing(file, open.connection, open.lease) {
            self.opens.get_mut(&file).unwrap().oplock = 0;
            self.given_up.insert(file);
        }
        self.retry_waiting();
    }

    /// The opens of a connection's lease, and this one.
    fn sharing(&self, file: FileId, connection: usize, lease: Option<LeaseKey>) -> Vec<FileId> {
        let opens = self.opens.iter();
        let opens = opens.filter(|(other, open)| {
            **other == file
                || lease.is_some() && (open.connection, open.lease) == (connection, lease)
        });
        opens.map(|(file, _)| *file).collect()
    }

    /// Breaks the shared oplocks and leases on a file that was changed through an open, without
    /// waiting for the holders ([MS-SMB2] §3.3.4.6, Object Store Indicates an Oplock Break).
    fn break_shared(&mut self, by: FileId, name: &str) {
        let by_lease = self
            .opens
            .get(&by)
            .map(|open| (open.connection, open.lease));
        let shared = |(file, open): (&FileId, &mut Smb2ServerOpen)| {
            let is_own = open.lease.is_some() && by_lease == Some((open.connection, open.lease));
            let is_shared = *file != by && !is_own && open.name == name && open.oplock == 1;
            is_shared.then(|| {
                open.oplock = 0;
                (*file, open.connection, open.lease)
            })
        };
        let mut told = Vec::new();
        let broken: Vec<_> = self.opens.iter_mut().filter_map(shared).collect();
        for (file, holder, lease) in broken {
            match lease {
                None => self.say_broken(holder, file, 0),
                Some(key) if told.contains(&(holder, key)) => {}
                Some(key) => {
                    told.push((holder, key));
                    self.say_lease_broken(holder, key, 0);
                }
            }
        }
    }

    /// A lease is taken back but for this state ([MS-SMB2] §2.2.23.2, Lease Break Notification).
    pub(crate) fn say_lease_broken(&mut self, holder: usize, key: LeaseKey, state: u8) {
        let mut body = [0; 44];
        body[0] = 44;
        body[4] = u8::from(state > 0);
        body[8..24].copy_from_slice(&key.0);
        body[24] = if state > 0 { 7 } else { 3 };
        body[28] = state;
        let mut header = Smb2Header::request(command::OPLOCK_BREAK, UNASKED, 0, 0);
        header.credits = 0;
        header.flags = flag::FROM_SERVER;
        header.is_sealed = self.connections[holder].seal.is_some();
        self.say(holder, &header, &body);
    }

    fn say_broken(&mut self, holder: usize, file: FileId, level: u8) {
        let notice = OplockBreak { level, file };
        let mut header = Smb2Header::request(command::OPLOCK_BREAK, UNASKED, 0, 0);
        header.credits = 0;
        header.flags = flag::FROM_SERVER;
        header.is_sealed = self.connections[holder].seal.is_some();
        self.say(holder, &header, &notice.emit());
    }

    pub(crate) fn connect(&mut self) -> usize {
        self.connections.push(Smb2ServerConnection {
            requests: Smb2Splitter::taking_sealed(),
            frame: Vec::new(),
            out: Vec::new(),
            top: 1,
            used: BTreeSet::new(),
            pending: Vec::new(),
            heard: PreauthHashes::NOTHING,
            key: None,
            is_gone: false,
            seal: None,
            sessions: 0,
        });
        self.connections.len() - 1
    }

    /// The number of opens.
    pub(crate) fn open_count(&self) -> usize {
        self.opens.len()
    }

    /// The number of requests of this command that arrived over this connection.
    pub(crate) fn count(&self, connection: usize, command: u16) -> usize {
        self.log
            .iter()
            .filter(|(from, header)| *from == connection && header.command == command)
            .count()
    }

    /// Does the WRITEs that were kept, the last one first.
    pub(crate) fn do_held_writes(&mut self) {
        while let Some((connection, header, message, file)) = self.held_writes.pop() {
            self.write(connection, &header, &message, file);
        }
    }

    /// Does the WRITE that was kept first.
    pub(crate) fn do_oldest_held_write(&mut self) {
        if !self.held_writes.is_empty() {
            let (connection, header, message, file) = self.held_writes.remove(0);
            self.write(connection, &header, &message, file);
        }
    }

    /// Does the CLOSEs that were kept.
    pub(crate) fn do_held_closes(&mut self) {
        self.holds_closes = false;
        for (connection, header, file) in std::mem::take(&mut self.held_closes) {
            self.close(connection, &header, file);
        }
    }

    /// Revokes the oplocks whose holders have not answered their breaks.
    pub(crate) fn give_up_breaks(&mut self) {
        let wanted: Vec<FileId> = self.opens.keys().copied().collect();
        for file in wanted {
            self.opens.get_mut(&file).unwrap().oplock = 0;
        }
        self.retry_waiting();
    }

    /// Takes bytes of a client's.
    pub(crate) fn receive(&mut self, connection: usize, bytes: &[u8]) {
        let from = &mut self.connections[connection];
        if from.is_gone {
            return;
        }
        from.requests.push(Bytes::copy_from_slice(bytes));
        let mut frames = Vec::new();
        while let Some(piece) = from.requests.next().expect("a client speaks SMB2") {
            match piece {
                SplitterPiece::Head(head) => from.frame.extend_from_slice(&head.bytes),
                SplitterPiece::Rest(_, bytes) => from.frame.extend_from_slice(&bytes),
                SplitterPiece::Sealed(frame) => frames.push(frame.to_vec()),
                SplitterPiece::End => frames.push(std::mem::take(&mut from.frame)),
            }
        }
        // A keep-alive holds no message.
        frames.retain(|frame| frame[0] == 0);
        for frame in frames {
            if frame[FRAME_HEADER] != 0xfd {
                self.frame(connection, &frame[FRAME_HEADER..], false);
                continue;
            }
            let seal = self.connections[connection].seal.as_mut();
            let opened = seal.and_then(|seal| seal.open(&frame[FRAME_HEADER..]));
            match opened {
                Some(messages) => self.frame(connection, &messages, true),
                // A real server would end the connection.
                None => self.refused += 1,
            }
        }
    }

    /// The encryption of a connection's session.
    pub(crate) fn seal(&self, connection: usize) -> &SessionEncryption {
        self.connections[connection].seal.as_ref().expect("it does")
    }

    /// Returns the server's bytes to a client.
    pub(crate) fn take(&mut self, connection: usize) -> Vec<u8> {
        std::mem::take(&mut self.connections[connection].out)
    }

    fn frame(&mut self, connection: usize, mut rest: &[u8], is_sealed: bool) {
        let mut before = None;
        let first = Smb2Header::parse(rest).expect("a message of a client's has a header");
        let relates_to_nothing = first.has(flag::RELATED);
        loop {
            let header = Smb2Header {
                // Samba's server refuses such a compound in the clear, whatever it came in.
                is_sealed: is_sealed && !relates_to_nothing,
                ..Smb2Header::parse(rest).expect("a message of a client's has a header")
            };
            let length = match header.next as usize {
                0 => rest.len(),
                next => next,
            };
            let message = &rest[..length];
            if relates_to_nothing {
                self.log.push((connection, header));
                let answer = Smb2Header {
                    flags: header.flags & !flag::SIGNED,
                    ..header
                };
                self.use_id(connection, &header);
                self.error(connection, &answer, status::INVALID_PARAMETER);
            } else {
                before = self.message(connection, &header, message, before);
            }
            rest = &rest[length..];
            if header.next == 0 {
                return;
            }
        }
    }

    /// Takes a message's ids out of the window.
    fn use_id(&mut self, connection: usize, header: &Smb2Header) {
        let from = &mut self.connections[connection];
        for id in header.message_id..header.message_id + u64::from(header.charge()) {
            assert!(id < from.top, "message id {id} is beyond the window");
            assert!(from.used.insert(id), "message id {id} is used again");
        }
    }

    /// Handles one message; the open that it worked on.
    fn message(
        &mut self,
        connection: usize,
        header: &Smb2Header,
        message: &[u8],
        before: Option<FileId>,
    ) -> Option<FileId> {
        self.log.push((connection, *header));
        self.connections[connection].heard =
            self.connections[connection].heard.and(header, message);
        if header.command == command::SESSION_SETUP && header.session == 0 {
            // Its client has done with the session before, if there was one.
            let from = &mut self.connections[connection];
            (from.key, from.seal) = (None, None);
        }
        if !self.is_vouched_for(connection, header, message) {
            self.refused += 1;
            self.error(connection, header, ACCESS_DENIED);
            return before;
        }
        if header.command == command::CANCEL {
            self.cancel(connection, header);
            return None;
        }
        self.use_id(connection, header);
        let body = &message[LENGTH..];
        if let Some((_, status)) = self.refuses.take_if(|(command, _)| {
            connection == 0 && *command == header.command && header.next == 0
        }) {
            if header.command == command::WRITE {
                self.note_write(connection, message, false);
            }
            self.error(connection, header, status);
            return before;
        }
        let is_of_create = matches!(header.command, command::QUERY_INFO | command::CLOSE);
        if header.has(flag::RELATED) && before.is_none() && is_of_create {
            // [MS-SMB2] §3.3.5.2.7.2 (Handling Compounded Related Requests): the CREATE has failed.
            self.error(connection, header, NO_SUCH_FILE);
            return None;
        }
        let file = |at| {
            let file = FileId(array(body, at).expect("a body holds its file"));
            match (header.has(flag::RELATED), before) {
                (true, Some(before)) => before,
                _ => file,
            }
        };
        match header.command {
            command::NEGOTIATE => {
                let mut answer = vec![0; 65];
                answer[0] = 65;
                answer[2] = 1;
                answer[4..6].copy_from_slice(&self.dialect.to_le_bytes());
                answer[40..48].copy_from_slice(&self.clock.to_le_bytes());
                answer[24] = if self.dialect > 0x0202 { 4 } else { 0 } | self.capabilities;
                for at in [28, 32, 36] {
                    let most = if self.dialect > 0x0202 {
                        8u32 << 20
                    } else {
                        65_536
                    };
                    answer[at..at + 4].copy_from_slice(&most.to_le_bytes());
                }
                if let (0x0311, Some(signing)) = (self.dialect, &self.signing) {
                    // Contexts say how messages are signed, and encrypted.
                    answer[6] = 1 + u8::from(self.sealing.is_some());
                    answer.resize(72, 0);
                    answer[60] = (LENGTH + 72) as u8;
                    answer.extend([8, 0, 4, 0, 0, 0, 0, 0, 1, 0, signing.algorithm.number(), 0]);
                    if let Some(sealing) = self.sealing {
                        answer.extend([0; 4]);
                        answer.extend([2, 0, 4, 0, 0, 0, 0, 0, 1, 0, sealing.cipher() as u8, 0]);
                    }
                }
                self.answer(connection, header, &answer);
            }
            command::SESSION_SETUP if self.signing.is_some() => {
                let token = message[LENGTH + 24..].to_vec();
                self.log_in(connection, header, &token);
            }
            command::SESSION_SETUP => {
                let header = Smb2Header {
                    session: 77 + connection as u64,
                    ..*header
                };
                let flags = u8::from(self.takes_guests);
                self.answer(connection, &header, &[9, 0, flags, 0, 0, 0, 0, 0, 0]);
            }
            command::TREE_CONNECT => {
                let header = Smb2Header { tree: 5, ..*header };
                let mut answer = vec![0; 16];
                answer[0] = 16;
                answer[2] = 1;
                if let Some(EncryptionPolicy::OfTheShare(_)) = self.sealing {
                    // [MS-SMB2] §2.2.10 (SMB2_SHAREFLAG_ENCRYPT_DATA).
                    answer[5] = 0x80;
                }
                self.answer(connection, &header, &answer);
            }
            command::TREE_DISCONNECT => {
                let whose = (header.session, header.tree);
                let opens = self.opens.iter();
                let opens = opens.filter(|(_, open)| (open.session, open.tree) == whose);
                for file in opens.map(|(file, _)| *file).collect::<Vec<_>>() {
                    self.end(file);
                }
                self.answer(connection, header, &[4, 0, 0, 0]);
                self.retry_waiting();
            }
            command::CREATE => return self.create(connection, header, message),
            command::CLOSE => {
                let file = file(8);
                if self.holds_closes {
                    self.held_closes.push((connection, *header, file));
                } else {
                    self.close(connection, header, file);
                }
                return Some(file);
            }
            command::LOGOFF => {
                self.answer(connection, header, &[4, 0, 0, 0]);
                // What is pending is still answered under it.
                let from = &mut self.connections[connection];
                from.key.take_if(|_| from.pending.is_empty());
            }
            command::IOCTL => self.error(connection, header, 0xc000_00bb),
            command::FLUSH | command::LOCK => {
                self.open(connection, header, file(8));
                self.answer(connection, header, &[4, 0, 0, 0]);
                return Some(file(8));
            }
            command::QUERY_DIRECTORY => {
                self.list(connection, header, body, file(8));
                return Some(file(8));
            }
            // As a far half asks, and clients with more room for the answer.
            command::QUERY_INFO if body[2..8] == [2, query_info::FULL_SIZE, 32, 0, 0, 0] => {
                self.open(connection, header, file(24));
                self.room_questions += 1;
                // In sectors of 512 bytes, one a unit: of all, the caller's, and those that the disk has.
                let units = (self.told_room / 512).to_le_bytes();
                let mut found = [(1u64 << 40).to_le_bytes(), units, units].concat();
                found.extend([1, 0, 0, 0, 0, 2, 0, 0]);
                self.answer(connection, header, &query_info::answer_body(&found));
                return Some(file(24));
            }
            command::QUERY_INFO if body[2] == 2 => {
                self.open(connection, header, file(24));
                self.file_system_questions += 1;
                let used: u64 = self.files.values().map(|file| file.len() as u64).sum();
                let mut found = used.to_le_bytes().to_vec();
                found.resize(self.file_system_bytes, body[3]);
                self.answer(connection, header, &query_info::answer_body(&found));
                return Some(file(24));
            }
            command::QUERY_INFO => {
                let name = self.open(connection, header, file(24));
                let found = match body[3] {
                    STANDARD => {
                        let Smb2ServerOpen { object, access, .. } = self.opens[&file(24)];
                        if access & !ATTRIBUTES != 0 {
                            self.note(|| HistoryEvent::Used { connection, object });
                        }
                        self.files[&name].len() as u64
                    }
                    BASIC => self.version(&name),
                    _ => self.opens[&file(24)].position,
                };
                let mut answer = vec![9, 0, 72, 0, 8, 0, 0, 0];
                answer.extend(found.to_le_bytes());
                self.answer(connection, header, &answer);
                return Some(file(24));
            }
            command::SET_INFO if body[3] == 14 => {
                self.open(connection, header, file(16));
                let position = u64_at(body, 32).unwrap();
                self.opens.get_mut(&file(16)).unwrap().position = position;
                self.answer(connection, header, &[2, 0]);
            }
            command::SET_INFO if body[3] == BASIC => {
                self.open(connection, header, file(16));
                self.answer(connection, header, &[2, 0]);
            }
            command::SET_INFO if body[3] == DISPOSITION => {
                let name = self.open(connection, header, file(16));
                self.opens.get_mut(&file(16)).unwrap().deletes_on_close = true;
                self.deleting.insert(name);
                self.answer(connection, header, &[2, 0]);
            }
            command::SET_INFO if body[3] == RENAME => {
                let name = self.open(connection, header, file(16));
                let length = u32_at(body, 32 + 16).unwrap() as usize;
                let to = utf16(&body[32 + 20..32 + 20 + length]);
                if self.files.contains_key(&to) || self.directories.contains(&to) {
                    self.error(connection, header, COLLISION);
                    return Some(file(16));
                }
                let with = self.opens_within(&name);
                if !with.is_empty() {
                    self.note(|| HistoryEvent::Conflicted { connection, with });
                    self.error(connection, header, ACCESS_DENIED);
                    return Some(file(16));
                }
                self.rename(connection, &name, &to);
                self.answer(connection, header, &[2, 0]);
            }
            command::SET_INFO => {
                let name = self.open(connection, header, file(16));
                let end = u64_at(message, usize::from(u16_at(body, 8).unwrap())).unwrap();
                // An allocation truncates, and does not extend ([MS-FSA] §2.1.5.15.1).
                let end = match body[3] {
                    ALLOCATION => end.min(self.files[&name].len() as u64),
                    _ => end,
                };
                self.files.get_mut(&name).unwrap().resize(end as usize, 0);
                let object = self.object(&name);
                self.note(|| HistoryEvent::Used { connection, object });
                let mark = u16_at(body, 10).unwrap();
                self.note(|| HistoryEvent::Cut { connection, mark });
                self.changed(&name);
                self.break_shared(file(16), &name);
                self.answer(connection, header, &[2, 0]);
            }
            command::READ => {
                self.read(connection, header, body, file(16));
                return Some(file(16));
            }
            command::WRITE if self.holds_writes => {
                let held = (connection, *header, message.to_vec(), file(16));
                self.held_writes.push(held);
                return Some(file(16));
            }
            command::WRITE => {
                self.write(connection, header, message, file(16));
                return Some(file(16));
            }
            command::ECHO => self.answer(connection, header, &[4, 0, 0, 0]),
            command::CHANGE_NOTIFY => {
                let interim = Smb2Header {
                    process: header.message_id as u32,
                    tree: 0xa5,
                    flags: flag::ASYNC | header.flags & flag::SIGNED,
                    ..*header
                };
                self.connections[connection].pending.push(interim);
                self.error(connection, &interim, status::PENDING);
            }
            command::OPLOCK_BREAK if body[0] == 36 => {
                self.lease_given_back(connection, header, body);
            }
            command::OPLOCK_BREAK => {
                let notice = OplockBreak::parse(body).expect("an acknowledgement");
                self.open(connection, header, notice.file);
                let open = self.opens.get_mut(&notice.file).unwrap();
                // As Samba answers what it has not asked for.
                if self.given_up.contains(&notice.file) || !self.breaking.contains(&notice.file) {
                    self.error(connection, header, INVALID_OPLOCK_PROTOCOL);
                    return before;
                }
                assert!(
                    open.oplock >= 8,
                    "an acknowledgement that was not asked for"
                );
                open.oplock = notice.level;
                self.breaking.remove(&notice.file);
                self.answer(connection, header, body);
                self.retry_waiting();
            }
            other => panic!("command {other:#x} is not known"),
        }
        before
    }

    /// A holder has answered a break of its lease ([MS-SMB2] §2.2.24.2, Lease Break Acknowledgment).
    fn lease_given_back(&mut self, connection: usize, header: &Smb2Header, body: &[u8]) {
        let key = LeaseKey(array(body, 8).expect("an acknowledgement"));
        let files = self
            .opens
            .iter()
            .filter(|(_, open)| (open.connection, open.lease) == (connection, Some(key)));
        let files: Vec<FileId> = files.map(|(file, _)| *file).collect();
        if files.iter().any(|file| self.given_up.contains(file)) {
            return self.error(connection, header, INVALID_OPLOCK_PROTOCOL);
        }
        // A client may have closed all that it was asked for meanwhile.
        if !files.iter().any(|file| self.breaking.contains(file)) {
            return self.error(connection, header, UNSUCCESSFUL);
        }
        for file in files {
            self.breaking.remove(&file);
            self.opens.get_mut(&file).unwrap().oplock = match body[24] & 1 {
                0 => 0,
                _ => SHARED_LEVEL,
            };
        }
        self.answer(connection, header, body);
        self.retry_waiting();
    }

    /// Returns true if a request bears its session's signature where it must.
    fn is_vouched_for(&self, connection: usize, header: &Smb2Header, message: &[u8]) -> bool {
        let (Some(signing), Some(key)) = (&self.signing, &self.connections[connection].key) else {
            return true;
        };
        let must_be_sealed = self.connections[connection].seal.is_some()
            && match self.sealing {
                Some(EncryptionPolicy::OfSessions(_)) => true,
                Some(EncryptionPolicy::OfTheShare(_)) => {
                    header.tree == 5 && !header.has(flag::ASYNC)
                }
                Some(EncryptionPolicy::AsAsked(_)) | None => false,
            };
        if header.is_sealed || must_be_sealed {
            return header.is_sealed;
        }
        match header.has(flag::SIGNED) {
            // As Samba's does.
            true if header.message_id == UNASKED => false,
            true => key.verify(message).is_some(),
            // SMB 3.1.1 wants at least every TREE_CONNECT signed.
            false => {
                let is_tree_connect = header.command == command::TREE_CONNECT;
                !(signing.is_required || self.dialect == 0x0311 && is_tree_connect)
            }
        }
    }

    /// The two steps of a session's set-up.
    fn log_in(&mut self, connection: usize, header: &Smb2Header, token: &[u8]) {
        let signing = self.signing.clone().expect("sessions are signed");
        let mut header = *header;
        if header.session == 0 {
            let to = &mut self.connections[connection];
            header.session = 77 + connection as u64 + 1_000 * to.sessions;
            to.sessions += 1;
        }
        // [MS-SMB2] §2.2.6 (SMB2_SESSION_FLAG_ENCRYPT_DATA).
        let session_flags = match self.sealing {
            Some(EncryptionPolicy::OfSessions(_)) => 4,
            _ => 0,
        };
        let body = |token: &[u8]| {
            let mut body = vec![9, 0, session_flags, 0, (LENGTH + 8) as u8, 0];
            body.extend((token.len() as u16).to_le_bytes());
            body.extend(token);
            body
        };
        if token == UserLogin::begins() {
            let mut answer = header.answer(status::MORE_PROCESSING_REQUIRED);
            answer.credits = self.grant(connection, &header);
            // Only who proves again who they are can have signed it.
            answer.flags |= header.flags & flag::SIGNED;
            return self.say(connection, &answer, &body(&UserLogin::asks()));
        }
        let LoginProof {
            token: wanted,
            answer,
            session_key,
        } = signing.login.proves();
        if token != wanted {
            return self.error(connection, &header, 0xc000_006d);
        }
        if self.connections[connection].key.is_some() {
            // [MS-SMB2] §3.3.5.5.3: the session keeps its keys.
            return self.answer(connection, &header, &body(b"welcome back"));
        }
        let to = &mut self.connections[connection];
        to.key = Some(to.heard.key(self.dialect, signing.algorithm, &session_key));
        let seal = self.sealing.map(|sealing| {
            let agreed = (self.dialect, sealing.cipher());
            to.heard.seal(
                SessionEndpoint::Server,
                agreed,
                &session_key,
                header.session,
            )
        });
        header.flags |= flag::SIGNED;
        self.answer(connection, &header, &body(&answer));
        self.connections[connection].seal = seal;
    }

    /// The name of an open's file, after checking that it is the connection's own.
    fn open(&self, connection: usize, header: &Smb2Header, file: FileId) -> String {
        let Some(open) = self.opens.get(&file) else {
            panic!("{file:?} does not exist: {header:?}");
        };
        assert_eq!(
            (open.connection, open.session, open.tree),
            (connection, header.session, header.tree)
        );
        open.name.clone()
    }

    fn create(&mut self, connection: usize, header: &Smb2Header, message: &[u8]) -> Option<FileId> {
        let body = &message[LENGTH..];
        let at = usize::from(u16_at(body, 44).unwrap());
        let length = usize::from(u16_at(body, 46).unwrap());
        let name = utf16(&message[at..at + length]);
        if let Some(file) = reconnected(message) {
            return self.reconnect(connection, header, file);
        }
        let access = u32_at(body, 24).unwrap();
        let share = u32_at(body, 32).unwrap();
        let disposition = u32_at(body, 36).unwrap();
        let options = u32_at(body, 40).unwrap();
        let is_directory = options & 1 != 0 || self.directories.contains(&name);
        // Every exclusive oplock on the file must come back first, where the share does not forbid
        // the open; a batch oplock's holder may close it, and is asked in any case.
        let empties = matches!(disposition, 0 | 4 | 5);
        let request = CreateRequest::parse(message).expect("a CREATE");
        let lease = request.lease().expect("contexts that can be read");
        let lease = lease.filter(|_| u8_at(body, 3) == Ok(0xff));
        let key = lease.map(|lease| lease.key);
        let is_own = |open: &Smb2ServerOpen| {
            key.is_some() && (open.connection, open.lease) == (connection, key)
        };
        // [MS-SMB2] §3.3.5.9.8 (Handling the SMB2_CREATE_REQUEST_LEASE Create Context).
        if self
            .opens
            .values()
            .any(|open| is_own(open) && open.name != name)
        {
            let header = self.as_pending(connection, header);
            self.error(connection, &header, status::INVALID_PARAMETER);
            return None;
        }
        let conflicts = |open: &Smb2ServerOpen| {
            open.name == name
                && SHARED.iter().any(|(rights, shared)| {
                    access & rights != 0 && open.share & shared == 0
                        || open.access & rights != 0 && share & shared == 0
                })
        };
        let with: Vec<FileId> = self
            .opens
            .iter()
            .filter(|(_, open)| !is_directory && conflicts(open))
            .map(|(file, _)| *file)
            .collect();
        let mut broken = Vec::new();
        for (file, open) in &self.opens {
            let is_meant = match with.is_empty() {
                true => open.oplock >= 8 && (access & !ATTRIBUTES != 0 || empties),
                false => {
                    let has_handle = self.breaks_handles && open.lease.is_some();
                    (open.oplock == 9 || has_handle && open.oplock == EXCLUSIVE)
                        && with.contains(file)
                }
            };
            if open.name == name && is_meant && !is_own(open) {
                broken.push((*file, open.connection, open.lease));
            }
        }
        if broken.is_empty() && !with.is_empty() {
            self.note(|| HistoryEvent::Conflicted { connection, with });
            let header = self.as_pending(connection, header);
            self.error(connection, &header, SHARING_VIOLATION);
            return None;
        }
        if !broken.is_empty() {
            let is_new = !self.is_waiting(connection, header);
            self.note(|| HistoryEvent::Waits {
                connection,
                message_id: header.message_id,
                on: broken.iter().map(|(file, ..)| *file).collect(),
            });
            for (file, holder, lease) in broken {
                if self.breaking.contains(&file) {
                    continue;
                }
                match lease {
                    None => self.say_broken(holder, file, 1),
                    Some(key) => self.say_lease_broken(holder, key, 3),
                }
                for file in self.sharing(file, holder, lease) {
                    self.breaking.insert(file);
                    self.note(|| HistoryEvent::Broke {
                        file,
                        holder,
                        by: connection,
                        name: name.clone(),
                    });
                }
            }
            if is_new {
                self.error(connection, &as_async(header), status::PENDING);
            }
            self.waiting.push_back(WaitingCreate {
                connection,
                header: *header,
                body: message.to_vec(),
            });
            return None;
        }
        let is_there = is_directory
            && (name.is_empty() || self.directories.is_empty() || self.directories.contains(&name));
        let exists = self.files.contains_key(&name) || is_there;
        let refusal = match disposition {
            _ if self.deleting.contains(&name) => Some(DELETE_PENDING),
            1 | 4 if !exists => Some(NO_SUCH_FILE),
            2 if self.files.contains_key(&name) || self.directories.contains(&name) => {
                Some(COLLISION)
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            if refusal == DELETE_PENDING {
                let with = self.opens.iter().filter(|(_, open)| open.name == name);
                let with = with.map(|(file, _)| *file).collect();
                self.note(|| HistoryEvent::Conflicted { connection, with });
            }
            let header = self.as_pending(connection, header);
            self.error(connection, &header, refusal);
            return None;
        }
        if is_directory && !exists {
            self.directories.insert(name.clone());
        }
        if !is_directory && (!exists || empties) {
            self.files.insert(name.clone(), Vec::new());
            self.changed(&name);
            if !exists {
                self.names_changed(connection);
            }
        }
        let length = match is_directory {
            true => 0,
            false => self.files[&name].len(),
        };
        let is_shared = self
            .opens
            .values()
            .any(|open| open.name == name && !is_own(open));
        let held = self.opens.iter().find(|(_, open)| is_own(open));
        let held = held.map(|(file, open)| (self.breaking.contains(file), open.oplock));
        let (oplock, state) = match (u8_at(body, 3).unwrap(), lease) {
            (0xff, Some(lease)) => {
                let wants_all = lease.is_exclusive();
                let level = match held {
                    // While it is taken back, nothing is added.
                    Some((true, level)) => level,
                    Some((false, EXCLUSIVE)) => EXCLUSIVE,
                    _ if wants_all && !is_shared => EXCLUSIVE,
                    _ => SHARED_LEVEL,
                };
                (level, if level == EXCLUSIVE { 7 } else { 3 })
            }
            (0xff, None) => (0, 0),
            (8 | 9, _) if is_shared => (1, 0),
            (oplock, _) => (oplock, 0),
        };
        let is_breaking = held.is_some_and(|(is_breaking, _)| is_breaking);
        let kin: Vec<FileId> = self
            .opens
            .iter()
            .filter(|(_, open)| is_own(open))
            .map(|(file, _)| *file)
            .collect();
        for file in kin {
            self.opens.get_mut(&file).unwrap().oplock = oplock;
        }
        let mut file = [0xcc; 16];
        file[..8].copy_from_slice(&self.next_file.to_le_bytes());
        let file = FileId(file);
        self.next_file += 1;
        let mut answer = vec![0; 88];
        answer[0] = 89;
        answer[2] = oplock;
        answer[24..32].copy_from_slice(&self.version(&name).to_le_bytes());
        answer[48..56].copy_from_slice(&(length as u64).to_le_bytes());
        answer[56] = if is_directory { 0x10 } else { 0x80 };
        answer[57] = if self.links.contains(&name) { 4 } else { 0 };
        answer[64..80].copy_from_slice(&file.0);
        if let Some(key) = key {
            // A context behind the fixed part, at a multiple of 8 ([MS-SMB2] §2.2.14.2.10).
            answer[2] = 0xff;
            answer[80..84].copy_from_slice(&((LENGTH + 88) as u32).to_le_bytes());
            answer[84..88].copy_from_slice(&56u32.to_le_bytes());
            answer.extend([0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 32, 0, 0, 0]);
            answer.extend(b"RqLs\0\0\0\0");
            answer.extend(key.0);
            answer.extend([state, 0, 0, 0, u8::from(is_breaking) << 1, 0, 0, 0]);
            answer.extend([0; 8]);
        }
        if key.is_none() && request.context_names() == Ok(vec![&b"QFid"[..]]) {
            answer[80..84].copy_from_slice(&((LENGTH + 88) as u32).to_le_bytes());
            answer[84..88].copy_from_slice(&56u32.to_le_bytes());
            answer.extend([0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 32, 0, 0, 0]);
            answer.extend(b"QFid\0\0\0\0");
            answer.extend(file.0);
            answer.extend([0; 16]);
        }
        let asks_durable = request.is_durable();
        self.asked_durable += usize::from(asks_durable);
        let is_durable = asks_durable && self.grants_durable && (oplock == 9 || state == 7);
        if is_durable {
            // The first of the contexts, before the lease's.
            let next = if key.is_some() { 32 } else { 0 };
            let mut context = vec![next, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 8, 0, 0, 0];
            context.extend(b"DH2Q\0\0\0\0");
            context.extend([0; 8]);
            answer[80..84].copy_from_slice(&((LENGTH + 88) as u32).to_le_bytes());
            answer[84] = if key.is_some() { 88 } else { 32 };
            answer.splice(88..88, context);
        }
        let object = self.object(&name);
        if access & !ATTRIBUTES != 0 {
            self.note(|| HistoryEvent::Used { connection, object });
        }
        self.note(|| HistoryEvent::Opened { file, object });
        if empties {
            self.break_shared(file, &name);
        }
        self.opens.insert(
            file,
            Smb2ServerOpen {
                connection,
                name,
                object,
                access,
                share,
                deletes_on_close: options & 0x1000 != 0,
                oplock,
                lease: key,
                is_durable,
                session: header.session,
                tree: header.tree,
                position: 0,
                listing: None,
            },
        );
        let header = &self.as_pending(connection, header);
        self.answer(connection, header, &answer);
        Some(file)
    }

    /// A client takes up a durable handle ([MS-SMB2] §3.3.5.9.12, Handling the
    /// SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2 Create Context).
    fn reconnect(
        &mut self,
        connection: usize,
        header: &Smb2Header,
        file: FileId,
    ) -> Option<FileId> {
        let open = self.opens.get_mut(&file);
        let Some(open) = open.filter(|open| open.connection == NOBODY) else {
            self.error(connection, header, NO_SUCH_FILE);
            return None;
        };
        (open.connection, open.session, open.tree) = (connection, header.session, header.tree);
        let mut answer = vec![0; 88];
        answer[0] = 89;
        answer[64..80].copy_from_slice(&file.0);
        self.answer(connection, header, &answer);
        Some(file)
    }

    /// Returns true if a CREATE waits for an oplock.
    fn is_waiting(&self, connection: usize, header: &Smb2Header) -> bool {
        self.waiting.iter().any(|waiting| {
            waiting.connection == connection && waiting.header.message_id == header.message_id
        })
    }

    /// A CREATE's header as its answer must name it.
    fn as_pending(&self, connection: usize, header: &Smb2Header) -> Smb2Header {
        match self.is_waiting(connection, header) {
            true => as_async(header),
            false => *header,
        }
    }

    /// The opens of what lies in a directory: because of them, servers refuse to rename it ([MS-FSA]
    /// §2.1.5.15, Server Requests Setting of File Information).
    fn opens_within(&self, directory: &str) -> Vec<FileId> {
        let opens = self.opens.iter();
        let opens = opens.filter(|(_, open)| lies_within(&open.name, directory));
        opens.map(|(file, _)| *file).collect()
    }

    /// Renames a file, or a directory with what lies in it.
    fn rename(&mut self, connection: usize, from: &str, to: &str) {
        let renamed = |name: &String| {
            let is_meant = name == from || lies_within(name, from);
            is_meant.then(|| format!("{to}{}", &name[from.len()..]))
        };
        let rename = |name: String| renamed(&name).unwrap_or(name);
        let files = std::mem::take(&mut self.files).into_iter();
        self.files = files.map(|(name, of)| (rename(name), of)).collect();
        let objects = std::mem::take(&mut self.objects).into_iter();
        self.objects = objects.map(|(name, of)| (rename(name), of)).collect();
        for names in [&mut self.deleting, &mut self.directories] {
            *names = std::mem::take(names).into_iter().map(rename).collect();
        }
        for open in self.opens.values_mut() {
            if let Some(name) = renamed(&open.name) {
                open.name = name;
            }
        }
        self.names_changed(connection);
    }

    fn close(&mut self, connection: usize, header: &Smb2Header, file: FileId) {
        self.do_held_writes();
        self.open(connection, header, file);
        self.end(file);
        let mut answer = vec![0; 60];
        answer[0] = 60;
        self.answer(connection, header, &answer);
        self.retry_waiting();
    }

    fn retry_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            // Its id is used up already, and its break was sent.
            self.waiting.push_back(waiting);
            let index = self.waiting.len() - 1;
            let (connection, header, body) = {
                let waiting = &self.waiting[index];
                (waiting.connection, waiting.header, waiting.body.clone())
            };
            let before = self.waiting.len();
            self.create(connection, &header, &body);
            if self.waiting.len() > before {
                self.waiting.pop_back();
            } else {
                self.waiting.remove(index);
            }
        }
    }

    fn read(&mut self, connection: usize, header: &Smb2Header, body: &[u8], file: FileId) {
        let request = ReadRequest::parse(body).expect("a READ");
        let name = self.open(connection, header, file);
        let object = self.opens[&file].object;
        self.note(|| HistoryEvent::Used { connection, object });
        let contents = &self.files[&name];
        let start = (request.offset as usize).min(contents.len());
        let end = (start + request.length as usize).min(contents.len());
        if start == end {
            return self.error(connection, header, status::END_OF_FILE);
        }
        self.opens.get_mut(&file).unwrap().position = end as u64;
        let mut answer = read_answer_body((end - start) as u32).to_vec();
        answer.extend_from_slice(&contents[start..end]);
        self.answer(connection, header, &answer);
    }

    /// Names in entries of this server's own making; every file is in every directory.
    fn list(&mut self, connection: usize, header: &Smb2Header, body: &[u8], file: FileId) {
        let request = QueryDirectoryRequest::parse(body).expect("a QUERY_DIRECTORY");
        if !self.opens.contains_key(&file) {
            return self.error(connection, header, FILE_CLOSED);
        }
        self.open(connection, header, file);
        if request.class == NO_CLASS {
            return self.error(connection, header, INVALID_INFO_CLASS);
        }
        let length = request.length.div_ceil(65_536);
        assert!(u32::from(header.charge()) >= length, "it is not paid for");
        let mut names: VecDeque<String> = self.files.keys().cloned().collect();
        if request.class == FULL {
            let above = format!("{}\\", self.opens[&file].name);
            let within = self.directories.iter();
            let within = within.filter_map(|name| name.strip_prefix(&above));
            names.extend(
                within
                    .filter(|name| !name.contains('\\'))
                    .map(|name| format!("{name}\\")),
            );
        }
        let open = self.opens.get_mut(&file).unwrap();
        if open.listing.is_none() || request.flags & 0x11 != 0 {
            open.listing = Some(names);
            self.note(|| HistoryEvent::Listed(file));
        }
        let open = self.opens.get_mut(&file).unwrap();
        let left = open.listing.as_mut().unwrap();
        let mut entries = Vec::new();
        while let Some(name) = left.front() {
            // One class is as it should be.
            let entry = match request.class {
                FULL => (80 + 2 * name.len()).next_multiple_of(8),
                _ => (8 + name.len()).next_multiple_of(8).max(100),
            };
            if entries.len() + entry > request.length as usize {
                break;
            }
            let start = entries.len();
            entries.extend((entry as u32).to_le_bytes());
            let (name, attributes) = match name.strip_suffix('\\') {
                Some(directory) => (directory, 0x10),
                None => (&name[..], 0x80),
            };
            if request.class == FULL {
                entries.resize(start + 56, 0);
                entries.extend(u32::to_le_bytes(attributes));
                entries.extend((2 * name.len() as u32).to_le_bytes());
                entries.resize(start + 80, 0);
                entries.extend(name.encode_utf16().flat_map(u16::to_le_bytes));
                entries.resize(start + entry, 0);
            } else {
                entries.extend((name.len() as u32).to_le_bytes());
                entries.extend(name.bytes());
                entries.resize(start + entry, request.class);
            }
            left.pop_front();
            if request.flags & 0x2 != 0 {
                break;
            }
        }
        if entries.is_empty() {
            return self.error(connection, header, status::NO_MORE_FILES);
        }
        let mut answer = answer_body(entries.len() as u32).to_vec();
        answer.extend(entries);
        self.answer(connection, header, &answer);
    }

    fn write(&mut self, connection: usize, header: &Smb2Header, message: &[u8], file: FileId) {
        let request = WriteRequest::parse(&message[LENGTH..]).expect("a WRITE");
        let name = self.open(connection, header, file);
        let at = usize::from(request.data_at);
        let data = &message[at..at + request.length as usize];
        let used: usize = self.files.values().map(Vec::len).sum();
        let contents = self.files.get_mut(&name).unwrap();
        let end = request.offset as usize + data.len();
        if used + end.saturating_sub(contents.len()) > self.disk {
            self.note_write(connection, message, false);
            return self.error(connection, header, DISK_FULL);
        }
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[request.offset as usize..end].copy_from_slice(data);
        self.note_write(connection, message, true);
        self.changed(&name);
        self.break_shared(file, &name);
        self.answer(connection, header, &write_answer_body(request.length));
    }

    fn cancel(&mut self, connection: usize, header: &Smb2Header) {
        let from = &mut self.connections[connection];
        let meant = from
            .pending
            .iter()
            .position(|pending| match header.has(flag::ASYNC) {
                true => (pending.process, pending.tree) == (header.process, header.tree),
                false => pending.message_id == header.message_id,
            });
        if let Some(index) = meant {
            let pending = from.pending.remove(index);
            self.error(connection, &pending, CANCELLED);
        }
    }

    fn error(&mut self, connection: usize, header: &Smb2Header, status: u32) {
        let message = error_answer(header, status);
        let (answer, body) = message[FRAME_HEADER..].split_at(LENGTH);
        let mut answer = Smb2Header::parse(answer).unwrap();
        answer.is_sealed = header.is_sealed;
        answer.flags |= header.flags & (flag::ASYNC | flag::SIGNED);
        if status == status::PENDING {
            // Interim answers go unsigned ([MS-SMB2] §3.3.4.2).
            answer.flags &= !flag::SIGNED;
        }
        answer.credits = self.grant(connection, header);
        self.say(connection, &answer, body);
    }

    fn answer(&mut self, connection: usize, header: &Smb2Header, body: &[u8]) {
        let mut answer = header.answer(status::SUCCESS);
        answer.flags |= header.flags & (flag::ASYNC | flag::SIGNED);
        answer.credits = self.grant(connection, header);
        self.say(connection, &answer, body);
    }

    fn grant(&mut self, connection: usize, header: &Smb2Header) -> u16 {
        let to = &mut self.connections[connection];
        // What is not used and not taken back stays within the limit; one is always given.
        let open = to.top - to.used.len() as u64;
        let room = u64::from(self.credits_max).saturating_sub(open);
        let least = u64::from(open == 0);
        let credits = u64::from(header.credits).min(room).max(least) as u16;
        to.top += u64::from(credits);
        credits
    }

    fn say(&mut self, connection: usize, header: &Smb2Header, body: &[u8]) {
        let to = &mut self.connections[connection];
        if to.is_gone {
            return;
        }
        let mut message = header.emit().to_vec();
        message.extend_from_slice(body);
        if let Some(seal) = to.seal.as_mut().filter(|_| header.is_sealed)
            && !self.forgets_to_seal
        {
            // What is encrypted is not signed ([MS-SMB2] §3.3.4.1.1).
            message[16] &= !(flag::SIGNED as u8);
            to.out.extend(seal.seal(&message));
            return;
        }
        if let Some(key) = to.key.as_ref().filter(|_| header.has(flag::SIGNED)) {
            key.sign(&mut message, []);
        }
        to.heard = to.heard.and(header, &message);
        let framed = [&frame_header(message.len())[..], &message].concat();
        if connection == 0
            && self
                .is_overtaken
                .take_if(|of| *of == header.command && header.message_id != UNASKED)
                .is_some()
        {
            self.overtaken = framed;
            return;
        }
        to.out.extend(framed);
        if connection == 0 && header.message_id == UNASKED {
            to.out.append(&mut self.overtaken);
        }
    }
}

fn lies_within(name: &str, directory: &str) -> bool {
    let rest = name.strip_prefix(directory);
    rest.is_some_and(|rest| rest.starts_with('\\'))
}

/// Returns the handle that a CREATE takes up again, if it names one ([MS-SMB2] §2.2.13.2.12,
/// SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2).
fn reconnected(message: &[u8]) -> Option<FileId> {
    let at = message.windows(4).position(|name| name == b"DH2C")?;
    array(message, at + 8).ok().map(FileId)
}

/// Returns a request's header as its later answers contain it once it is pending: with an async id
/// in the place of the tree.
fn as_async(header: &Smb2Header) -> Smb2Header {
    Smb2Header {
        process: header.message_id as u32,
        tree: 0xa5,
        flags: flag::ASYNC | header.flags & flag::SIGNED,
        ..*header
    }
}

pub(crate) fn utf16(bytes: &[u8]) -> String {
    let pairs = bytes
        .chunks(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    String::from_utf16(&pairs.collect::<Vec<_>>()).unwrap()
}
