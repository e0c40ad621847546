//! A small SMB 1 server in memory that is strict about its requests: a multiplex id in use, more
//! requests than it allows or an unknown open fail the test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use vocab::SeededRandom;

use super::messages::{CLIENT_BUFFER, PROCESS_EXIT, body, framed};
use crate::smb::nt1::wire::WORDS_AT;
use crate::smb::nt1::wire::header::NO_ANDX;
use crate::smb::nt1::wire::header::{END_OF_CHAIN, Smb1Header, UNASKED, command, flag, flag2};
use crate::smb::nt1::wire::oplock::{LockingRequest, release};
use crate::smb::nt1::wire::split::{Smb1Frame, Smb1Splitter};
use crate::smb::nt1::wire::target::opens_by_unix_extensions;
use crate::smb::nt1::wire::transfer::{
    ReadAndxRequest, WriteAndxRequest, read_answer_front, write_answer,
};
use crate::smb::wire::{u8_at, u16_at, u32_at, u64_at};

/// STATUS_INVALID_HANDLE, and STATUS_DISK_FULL.
pub(crate) const INVALID_HANDLE: u32 = 0xc000_0008;
pub(crate) const DISK_FULL: u32 = 0xc000_007f;
/// STATUS_FILE_LOCK_CONFLICT.
pub(crate) const LOCK_CONFLICT: u32 = 0xc000_0054;

/// The number of requests that may be outstanding.
pub(crate) const MPX: u16 = 10;

#[derive(Debug, Default)]
struct Smb1ServerConnection {
    splitter: Smb1Splitter,
    /// Answers that were not taken yet, and whether each is one.
    out: VecDeque<(bool, Vec<u8>)>,
    /// The process and multiplex ids of unanswered requests.
    asked: BTreeSet<(u16, u16)>,
    is_gone: bool,
}

#[derive(Debug)]
struct Smb1ServerOpen {
    connection: usize,
    name: String,
    /// 0, 1 (exclusive) or 2 (batch).
    oplock: u8,
    is_breaking: bool,
    /// The position that SEEK and FilePositionInformation change.
    position: u64,
    reported: u64,
    header: Smb1Header,
}

/// A request to open a file that waits for an oplock.
struct Smb1WaitingCreate {
    connection: usize,
    header: Smb1Header,
    message: Vec<u8>,
}

/// A locked range.
struct ByteRangeLock {
    file: u16,
    name: String,
    process: u16,
    range: Range<u64>,
    is_shared: bool,
}

/// A transaction whose data has not arrived completely.
struct PartialTransaction {
    connection: usize,
    header: Smb1Header,
    message: Vec<u8>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Smb1Server {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    connections: Vec<Smb1ServerConnection>,
    opens: BTreeMap<u16, Smb1ServerOpen>,
    waiting: Vec<Smb1WaitingCreate>,
    parts: Vec<PartialTransaction>,
    locks: Vec<ByteRangeLock>,
    /// True if it executes requests in any permitted order, and answers in any order.
    pub(crate) disorder: Option<SeededRandom>,
    /// True if postponed requests that open files run first.
    pub(crate) creates_first: bool,
    /// The messages of the first connection that have arrived and are not executed yet.
    undone: VecDeque<(Smb1Header, Vec<u8>)>,
    /// True if breaks are sent before all postponed messages.
    pub(crate) breaks_first: bool,
    /// It has room for so many bytes more.
    pub(crate) room: Option<usize>,
    /// It gives no more than this in answer to a READ.
    pub(crate) read_most: Option<u32>,
    /// True if it knows no READs beyond the client's buffer, nor lengths of more than 16 bits.
    pub(crate) has_short_reads: bool,
    /// True if its client has not announced READ lengths of more than 16 bits.
    pub(crate) ignores_high_lengths: bool,
    /// It answers NEGOTIATE in SMB 2.
    pub(crate) speaks_smb2: bool,
    pub(crate) requires_signatures: bool,
    /// The next CLOSE ends its open and fails nevertheless; the next TREE_DISCONNECT only fails.
    pub(crate) fails_to_end: bool,
    /// It gives no oplocks.
    pub(crate) keeps_oplocks: bool,
    /// Commands of the first connection, in order.
    pub(crate) heard: Vec<u8>,
    /// All bytes of the first connection.
    pub(crate) bytes: Vec<u8>,
    pub(crate) mpx_most: usize,
}

impl Smb1Server {
    pub(crate) fn connect(&mut self) -> usize {
        self.connections.push(Smb1ServerConnection::default());
        self.connections.len() - 1
    }

    pub(crate) fn open_count(&self) -> usize {
        self.opens.len()
    }

    pub(crate) fn disconnect(&mut self, connection: usize) {
        self.connections[connection].is_gone = true;
        self.waiting
            .retain(|waiting| waiting.connection != connection);
        let theirs: Vec<u16> = self
            .opens
            .iter()
            .filter(|(_, open)| open.connection == connection)
            .map(|(file, _)| *file)
            .collect();
        for file in theirs {
            self.opens.remove(&file);
        }
        self.try_waiting();
    }

    pub(crate) fn receive(&mut self, connection: usize, bytes: &[u8]) {
        if connection == 0 {
            self.bytes.extend_from_slice(bytes);
        }
        self.connections[connection].splitter.push(bytes);
        loop {
            let next = self.connections[connection].splitter.next();
            match next.expect("a client speaks SMB 1") {
                Some(Smb1Frame::Message(header, frame)) => {
                    self.message(connection, &header, &frame[4..]);
                }
                Some(Smb1Frame::KeepAlive(_)) => {}
                None => return,
            }
        }
    }

    /// Returns true if an answer is ready.
    pub(crate) fn has_answers(&self, connection: usize) -> bool {
        let is_undone = connection == 0 && !self.undone.is_empty();
        is_undone || !self.connections[connection].out.is_empty()
    }

    /// Executes all postponed requests, in any order that a parallel server may choose.
    fn catch_up(&mut self) {
        while !self.undone.is_empty() {
            let is_free = |(header, _): &&(Smb1Header, Vec<u8>)| {
                matches!(
                    header.command,
                    command::READ
                        | command::WRITE
                        | command::SEEK
                        | command::FLUSH
                        | command::TRANSACTION_2
                )
            };
            let free = self.undone.iter().take_while(is_free).count();
            let chance = self.disorder.as_mut().expect("only then it puts off");
            let mut next = chance.below(free.max(1) as u64) as usize;
            let is_create =
                |(header, _): &(Smb1Header, Vec<u8>)| header.command == command::NT_CREATE;
            if let (true, Some(at)) = (self.creates_first, self.undone.iter().position(is_create)) {
                next = at;
            }
            let (header, message) = self.undone.remove(next).expect("it is one of them");
            self.carry_out(0, &header, &message);
        }
    }

    /// Returns the next message on a connection.
    pub(crate) fn take(&mut self, connection: usize) -> Option<Vec<u8>> {
        if connection == 0 {
            self.catch_up();
        }
        let disorder = self.disorder.as_mut();
        let connection = &mut self.connections[connection];
        let is_break = |(_, bytes): &(bool, Vec<u8>)| {
            Smb1Header::parse(&bytes[4..]).is_ok_and(|header| header.mid == UNASKED)
        };
        let first_break = connection.out.iter().position(is_break);
        let mut next = first_break.filter(|_| self.breaks_first).unwrap_or(0);
        if let (Some(chance), count @ 1..) = (disorder, connection.out.len()) {
            next = chance.below(count as u64) as usize;
            // But for answers in several messages.
            let mid = |(_, bytes): &(bool, Vec<u8>)| [bytes[34], bytes[35]];
            let of = mid(&connection.out[next]);
            next = connection
                .out
                .iter()
                .position(|other| mid(other) == of)
                .unwrap_or(next);
        }
        let (is_answer, bytes) = connection.out.remove(next)?;
        if is_answer {
            let header = Smb1Header::parse(&bytes[4..]).expect("it wrote one");
            connection.asked.remove(&(header.process, header.mid));
        }
        Some(bytes)
    }

    fn say(&mut self, connection: usize, is_answer: bool, message: &[u8]) {
        let connection = &mut self.connections[connection];
        if !connection.is_gone {
            connection.out.push_back((is_answer, framed(message)));
        }
    }

    fn fail(&mut self, connection: usize, header: &Smb1Header, status: u32) {
        let header = Smb1Header {
            status,
            ..header.answer()
        };
        self.say(connection, true, &header.alone());
    }

    fn message(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        assert!(!header.is_reply(), "{header:?}");
        if connection == 0 {
            self.heard.push(header.command);
        }
        let is_without_answer = header.command == command::NT_CANCEL
            || header.command == command::TRANSACTION_2_SECONDARY
            || header.command == command::LOCKING
                && LockingRequest::parse(message).is_ok_and(|locking| locking.is_without_answer());
        if !is_without_answer {
            let asked = &mut self.connections[connection].asked;
            assert!(
                asked.insert((header.process, header.mid)),
                "{} is in use",
                header.mid
            );
            if connection == 0 {
                self.mpx_most = self.mpx_most.max(asked.len());
                // One more while another client waits for what is written.
                let most = usize::from(MPX) + usize::from(!self.waiting.is_empty());
                assert!(asked.len() <= most, "too much is under way");
            }
        }
        if connection == 0 && self.disorder.is_some() {
            self.undone.push_back((*header, message.to_vec()));
        } else {
            self.carry_out(connection, header, message);
        }
    }

    fn carry_out(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        let is_chained = message[32] > 0
            && !matches!(
                header.command,
                command::CLOSE
                    | command::FLUSH
                    | command::READ_OLD
                    | command::SEEK
                    | command::ECHO
                    | command::TRANSACTION_2
                    | command::TRANSACTION_2_SECONDARY
                    | command::NT_TRANSACT
                    | command::TREE_DISCONNECT
                    | PROCESS_EXIT
            )
            && u8_at(message, WORDS_AT) != Ok(NO_ANDX);
        if is_chained {
            // The one chain that tests send: a READ, and a CLOSE of its file.
            let request = ReadAndxRequest::parse(&unchained(message)).expect("it is a READ");
            match self.opens.remove(&request.file) {
                Some(_) => self.say(connection, true, &read_answer_front(header, 0)),
                None => self.fail(connection, header, INVALID_HANDLE),
            }
            return self.try_waiting();
        }
        match header.command {
            command::NEGOTIATE if self.speaks_smb2 => {
                let mut answer = vec![0; 64 + 65];
                answer[..4].copy_from_slice(&[0xfe, b'S', b'M', b'B']);
                answer[4] = 64;
                answer[16] = 1;
                self.connections[connection].asked.clear();
                self.say(connection, false, &answer);
            }
            command::NEGOTIATE => {
                let mut words = vec![0; 34];
                words[2] = 3 | if self.requires_signatures { 0x0c } else { 0 };
                words[3..5].copy_from_slice(&MPX.to_le_bytes());
                words[7..11].copy_from_slice(&16_644u32.to_le_bytes());
                let capabilities: u32 = match self.has_short_reads {
                    true => 0x0000_005d,
                    false => 0x0000_c05d,
                };
                words[19..23].copy_from_slice(&capabilities.to_le_bytes());
                self.say(
                    connection,
                    true,
                    &body(&header.answer(), &words, b"challeng"),
                );
            }
            command::SESSION_SETUP => {
                let answer = Smb1Header {
                    user: 100,
                    ..header.answer()
                };
                let words = [&END_OF_CHAIN[..], &[0; 2]].concat();
                self.say(connection, true, &body(&answer, &words, b"Unix\0"));
            }
            command::TREE_CONNECT => {
                if u16_at(message, WORDS_AT + 4).is_ok_and(|flags| flags & 1 != 0) {
                    self.opens.retain(|_, open| {
                        open.connection != connection || open.header.tree != header.tree
                    });
                    self.try_waiting();
                }
                let is_pipe = message.windows(4).any(|at| at == b"IPC$");
                let (tree, service) = match is_pipe {
                    true => (8, &b"IPC\0\0"[..]),
                    false => (7, &b"A:\0NTFS\0"[..]),
                };
                let answer = Smb1Header {
                    tree,
                    ..header.answer()
                };
                let words = [&END_OF_CHAIN[..], &[0; 2]].concat();
                self.say(connection, true, &body(&answer, &words, service));
            }
            command::TREE_DISCONNECT if std::mem::take(&mut self.fails_to_end) => {
                self.fail(connection, header, INVALID_HANDLE);
            }
            PROCESS_EXIT => {
                self.opens.retain(|_, open| {
                    open.connection != connection || open.header.process != header.process
                });
                self.say(connection, true, &header.answer().alone());
                self.try_waiting();
            }
            command::TREE_DISCONNECT => {
                self.opens.retain(|_, open| open.connection != connection);
                self.say(connection, true, &header.answer().alone());
                self.try_waiting();
            }
            command::NT_CREATE | command::OPEN => {
                self.waiting.push(Smb1WaitingCreate {
                    connection,
                    header: *header,
                    message: message.to_vec(),
                });
                self.try_waiting();
            }
            command::READ => self.read(connection, header, message),
            command::READ_OLD => {
                let file = u16_at(message, WORDS_AT).expect("a file");
                let (length, offset) =
                    (u16_at(message, WORDS_AT + 2), u32_at(message, WORDS_AT + 4));
                let open = self.opens.get_mut(&file).expect("an open file");
                open.position = u64::from(offset.unwrap()) + u64::from(length.unwrap());
                open.reported = open.position;
                let answer = body(&header.answer(), &[0; 10], &[]);
                self.say(connection, true, &answer);
            }
            command::WRITE => self.write(connection, header, message),
            command::CLOSE => {
                let file = u16_at(message, WORDS_AT).expect("a file");
                match self.opens.remove(&file) {
                    Some(_) if std::mem::take(&mut self.fails_to_end) => {
                        self.fail(connection, header, DISK_FULL);
                    }
                    Some(_) => self.say(connection, true, &header.answer().alone()),
                    None => self.fail(connection, header, INVALID_HANDLE),
                }
                self.try_waiting();
            }
            command::FLUSH | command::ECHO => {
                let count = match header.command {
                    command::ECHO => u16_at(message, WORDS_AT).expect("a count"),
                    _ => 1u16,
                };
                for turn in 1..=count {
                    let answer = body(&header.answer(), &turn.to_le_bytes(), b"echo");
                    self.say(connection, turn == count, &answer);
                }
            }
            command::SEEK => {
                let file = u16_at(message, WORDS_AT).expect("a file");
                let (mode, by) = (u16_at(message, WORDS_AT + 2), u32_at(message, WORDS_AT + 4));
                let open = self.opens.get_mut(&file).expect("an open file");
                let from = match mode {
                    Ok(0) => 0,
                    Ok(1) => open.position,
                    _ => self.files[&open.name].len() as u64,
                };
                open.position = from.wrapping_add_signed(by.unwrap().cast_signed().into());
                let at = (open.position as u32).to_le_bytes();
                self.say(connection, true, &body(&header.answer(), &at, &[]));
            }
            command::LOCKING => {
                let locking = LockingRequest::parse(message).expect("it is one");
                // What is not answered is so if it fails.
                let Some(open) = self.opens.get_mut(&locking.file) else {
                    return self.fail(connection, header, INVALID_HANDLE);
                };
                let name = open.name.clone();
                if locking.releases() {
                    open.oplock = 0;
                    open.is_breaking = false;
                    self.try_waiting();
                }
                self.lock(&locking, &name, message);
                if !locking.is_without_answer() {
                    let answer = body(&header.answer(), &END_OF_CHAIN, &[]);
                    self.say(connection, true, &answer);
                }
            }
            command::TRANSACTION_2 if data_missing(message) > 0 => {
                self.parts.push(PartialTransaction {
                    connection,
                    header: *header,
                    message: message.to_vec(),
                });
                // It waits for the rest.
                self.say(connection, false, &header.answer().alone());
            }
            command::TRANSACTION_2 if opens_by_unix_extensions(header, message) => {
                self.waiting.push(Smb1WaitingCreate {
                    connection,
                    header: *header,
                    message: message.to_vec(),
                });
                self.try_waiting();
            }
            command::TRANSACTION_2 => self.transaction(connection, header, message),
            command::TRANSACTION_2_SECONDARY => self.more_parts(connection, header, message),
            // It waits for a change, and none is told here.
            command::NT_TRANSACT => {}
            // CREATE_DIRECTORY, which is neither a file's nor an open's.
            0x00 => self.say(connection, true, &header.answer().alone()),
            command::NT_CANCEL | command::READ_RAW => {}
            other => panic!("command {other:#x}"),
        }
    }

    /// Executes the opens that no longer wait for an oplock.
    fn try_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let name = String::from_utf8(name(&waiting.message)).expect("tests name files so");
            let mut holders = self.opens.iter_mut();
            let held = holders.find(|(_, open)| open.name == name && open.oplock != 0);
            match held {
                Some((_, open)) if open.is_breaking => self.waiting.push(waiting),
                Some((file, open)) => {
                    open.is_breaking = true;
                    let header = Smb1Header {
                        mid: UNASKED,
                        process: 0xffff,
                        ..open.header
                    };
                    let (to, message) = (open.connection, release(&header, *file));
                    self.say(to, false, &message);
                    self.waiting.push(waiting);
                }
                None => self.create(&waiting, name),
            }
        }
    }

    fn create(&mut self, waiting: &Smb1WaitingCreate, name: String) {
        let (header, message) = (&waiting.header, &waiting.message);
        let is_old = header.command == command::OPEN;
        let is_unix = header.command == command::TRANSACTION_2;
        let [flags, disposition] = match is_old {
            true => [0, 3],
            false if is_unix => {
                let at = usize::from(u16_at(message, WORDS_AT + 24).expect("it is there"));
                [u32_at(message, at).expect("it is there"), 3]
            }
            false => [7, 35].map(|at| u32_at(message, WORDS_AT + at).expect("it is there")),
        };
        let is_alone = !self.opens.values().any(|open| open.name == name);
        let oplock = match flags & 6 {
            0 => 0,
            _ if !is_alone || self.keeps_oplocks => 0,
            2 => 1,
            _ => 2,
        };
        let contents = self.files.entry(name.clone()).or_default();
        if disposition == 5 {
            contents.clear();
        }
        let size = contents.len() as u64;
        let mut files = 0x4001..;
        let file = files
            .find(|file| !self.opens.contains_key(file))
            .expect("tests open few");
        let mut words = END_OF_CHAIN.to_vec();
        words.push(oplock);
        words.extend(file.to_le_bytes());
        words.extend(1u32.to_le_bytes());
        words.extend([0; 32 + 4]);
        words.extend(size.to_le_bytes());
        words.extend(size.to_le_bytes());
        words.extend([0; 2 + 2 + 1]);
        if is_old {
            words = [&END_OF_CHAIN[..], &file.to_le_bytes(), &[0; 24]].concat();
        }
        self.locks.retain(|lock| lock.file != file);
        self.opens.insert(
            file,
            Smb1ServerOpen {
                connection: waiting.connection,
                name,
                oplock,
                is_breaking: false,
                position: 0,
                reported: 0,
                header: *header,
            },
        );
        if is_unix {
            let mut data = u16::from(oplock).to_le_bytes().to_vec();
            data.extend(file.to_le_bytes());
            data.extend([1, 0, 0, 0, 0, 2, 0, 0]);
            data.extend(size.to_le_bytes());
            data.resize(112, 0);
            let answer = transaction_answer(header, data.len(), 0, &data);
            return self.say(waiting.connection, true, &answer);
        }
        self.say(
            waiting.connection,
            true,
            &body(&header.answer(), &words, &[]),
        );
    }

    fn read(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        let request = ReadAndxRequest::parse(message).expect("it is one");
        let Some(open) = self.opens.get_mut(&request.file) else {
            return self.fail(connection, header, INVALID_HANDLE);
        };
        assert_eq!(open.connection, connection);
        let asked = request.offset..request.offset + u64::from(request.length);
        let mut locks = self.locks.iter();
        if locks
            .any(|lock| lock.name == open.name && lock.keeps_from_reading(header, &request, &asked))
        {
            return self.fail(connection, header, LOCK_CONFLICT);
        }
        let contents = &self.files[&open.name];
        let start = (request.offset as usize).min(contents.len());
        let length = match self.has_short_reads {
            true => (request.length & 0xffff).min(u32::from(CLIENT_BUFFER) - 60),
            false if self.ignores_high_lengths => request.length & 0xffff,
            false => request.length.min(0x1_ffff - 60),
        };
        let most = self.read_most.unwrap_or(u32::MAX).min(length);
        let end = (start + most as usize).min(contents.len());
        let data = &contents[start..end];
        // At the file's end as well.
        open.position = request.offset + data.len() as u64;
        open.reported = open.position;
        let mut answer = read_answer_front(header, data.len() as u32);
        answer.extend_from_slice(data);
        self.say(connection, true, &answer);
    }

    fn write(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        let request = WriteAndxRequest::parse(message).expect("it is one");
        let Some(open) = self.opens.get_mut(&request.file) else {
            return self.fail(connection, header, INVALID_HANDLE);
        };
        assert_eq!(open.connection, connection);
        let asked = request.offset..request.end().expect("it is a place in a file");
        let mut locks = self.locks.iter();
        if locks.any(|lock| {
            let is_others = !lock.is_of(request.file, header);
            lock.name == open.name && lock.meets(&asked) && (lock.is_shared || is_others)
        }) {
            return self.fail(connection, header, LOCK_CONFLICT);
        }
        open.position = asked.end;
        let length = request.length as usize;
        if let Some(room) = &mut self.room {
            if *room < length {
                return self.fail(connection, header, DISK_FULL);
            }
            *room -= length;
        }
        let data = &message[request.data_at..request.data_at + length];
        let contents = self.files.get_mut(&open.name).expect("it is open");
        let (start, end) = (request.offset as usize, request.offset as usize + length);
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[start..end].copy_from_slice(data);
        self.say(connection, true, &write_answer(header, request.length));
    }

    /// Locks and unlocks the ranges of a request: of 10 bytes each, unlocks first.
    fn lock(&mut self, locking: &LockingRequest, name: &str, message: &[u8]) {
        let short = |at: usize| u16_at(message, WORDS_AT + at).unwrap();
        let (unlocks, locks) = (usize::from(short(12)), usize::from(short(14)));
        for range in 0..unlocks + locks {
            let at = WORDS_AT + 16 + 2 + range * 10;
            let process = u16_at(message, at).unwrap();
            let start = u64::from(u32_at(message, at + 2).unwrap());
            let range_asked = start..start + u64::from(u32_at(message, at + 6).unwrap());
            if range < unlocks {
                self.locks.retain(|lock| {
                    (lock.file, lock.process, &lock.range) != (locking.file, process, &range_asked)
                });
            } else {
                self.locks.push(ByteRangeLock {
                    file: locking.file,
                    name: name.to_owned(),
                    process,
                    range: range_asked,
                    is_shared: locking.may_lock_shared(),
                });
            }
        }
    }

    fn more_parts(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        let whose = |header: &Smb1Header| (header.process, header.mid);
        let meant = self.parts.iter().position(|parts| {
            parts.connection == connection && whose(&parts.header) == whose(header)
        });
        let mut parts = self.parts.remove(meant.expect("a part of something"));
        let short = |at: usize| usize::from(u16_at(message, WORDS_AT + at).unwrap());
        let (count, at) = (short(10), short(12));
        // Its data ends the first message.
        parts.message.extend(&message[at..at + count]);
        let had = u16_at(&parts.message, WORDS_AT + 22).unwrap();
        let has = (had + count as u16).to_le_bytes();
        parts.message[WORDS_AT + 22..WORDS_AT + 24].copy_from_slice(&has);
        assert_eq!(data_missing(&parts.message), 0, "tests send two parts");
        self.transaction(connection, &parts.header, &parts.message);
    }

    fn transaction(&mut self, connection: usize, header: &Smb1Header, message: &[u8]) {
        let parameters = usize::from(u16_at(message, WORDS_AT + 20).unwrap());
        let data_at = usize::from(u16_at(message, WORDS_AT + 24).unwrap());
        let subcommand = u16_at(message, WORDS_AT + 28).unwrap();
        if subcommand == 1 {
            // Names, in two messages.
            for (at, last) in [(0, false), (50, true)] {
                let answer = transaction_answer(header, 100, at, &[1; 50]);
                self.say(connection, last, &answer);
            }
            return;
        }
        if subcommand == 6 {
            let count = usize::from(u16_at(message, WORDS_AT + 18).unwrap());
            let name = message[parameters + 6..parameters + count].to_vec();
            let contents = String::from_utf8(name).map(|name| self.files.get_mut(&name));
            let size = u64_at(message, data_at).unwrap();
            contents.unwrap().expect("a file").resize(size as usize, 0);
            return self.say(connection, true, &transaction_answer(header, 0, 0, &[]));
        }
        let file = u16_at(message, parameters).unwrap();
        let Some(open) = self.opens.get_mut(&file) else {
            return self.fail(connection, header, INVALID_HANDLE);
        };
        let contents = self.files.get_mut(&open.name).expect("it is open");
        let level = u16_at(message, parameters + 2).unwrap();
        let data = match (subcommand, level) {
            (7, 1_014) => open.reported.to_le_bytes().to_vec(),
            (7, _) => (contents.len() as u64).to_le_bytes().to_vec(),
            (8, 1_014) => {
                open.reported = u64_at(message, data_at).unwrap();
                Vec::new()
            }
            (8, _) => {
                let size = u64_at(message, data_at).unwrap();
                contents.resize(size as usize, 0);
                Vec::new()
            }
            other => panic!("transaction {other:?}"),
        };
        let answer = transaction_answer(header, data.len(), 0, &data);
        self.say(connection, true, &answer);
    }
}

impl ByteRangeLock {
    fn meets(&self, asked: &Range<u64>) -> bool {
        self.range.start < asked.end && asked.start < self.range.end
    }

    /// Returns true if the sender of this request holds the lock on this file.
    fn is_of(&self, file: u16, header: &Smb1Header) -> bool {
        (self.file, self.process) == (file, header.process)
    }

    fn keeps_from_reading(
        &self,
        header: &Smb1Header,
        read: &ReadAndxRequest,
        asked: &Range<u64>,
    ) -> bool {
        self.meets(asked) && !self.is_shared && !self.is_of(read.file, header)
    }
}

/// Returns the bytes of a transaction's data that follow in further messages.
fn data_missing(message: &[u8]) -> u16 {
    u16_at(message, WORDS_AT + 2).unwrap() - u16_at(message, WORDS_AT + 22).unwrap()
}

/// A part of an answer with so many bytes of data in all.
fn transaction_answer(header: &Smb1Header, total: usize, at: usize, data: &[u8]) -> Vec<u8> {
    let short = |value: usize| (value as u16).to_le_bytes();
    let mut words = Vec::new();
    for value in [0, total, 0, 0, 56, 0, data.len(), 56, at, 0] {
        words.extend(short(value));
    }
    let mut answer = body(&header.answer(), &words, &[&[0], data].concat());
    debug_assert_eq!(answer[9] & flag::REPLY, flag::REPLY);
    answer[10..12].copy_from_slice(&(header.flags2 | flag2::NT_STATUS).to_le_bytes());
    answer
}

fn unchained(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[WORDS_AT] = NO_ANDX;
    message
}

/// The name in a request to open a file.
fn name(message: &[u8]) -> Vec<u8> {
    if message[4] == command::OPEN {
        return message[WORDS_AT + 30 + 2..].to_vec();
    }
    if message[4] == command::TRANSACTION_2 {
        let [count, at] = [18, 20].map(|at| u16_at(message, WORDS_AT + at).expect("parameters"));
        return message[usize::from(at) + 6..usize::from(at + count)].to_vec();
    }
    let length = usize::from(u16_at(message, WORDS_AT + 5).expect("a length"));
    let at = WORDS_AT + 48 + 2;
    message[at..at + length].to_vec()
}
