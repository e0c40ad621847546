//! A log of sealed records on disk: the files of an index that an accelerator keeps in memory.
//!
//! The owner holds what the records say, and appends each change. The log reads the records of an earlier run back,
//! and now and then is written anew from what the owner holds, so that it stays in proportion to that.
//!
//! ```text
//!  Listing ──► Reading ──Recovered──► Writing ──fault──► Clearing ──► Paused ──(PAUSE)──► Writing
//!                                      │    ▲
//!                                      └────┘ rewrite: a new file, all that is held, sync, the old files go
//! ```
//! - **After a start** the first thing is a rewrite: no file of an earlier run is appended to.
//! - **A file ends where a record's head does not open.** A record whose body does not open is left out. The owner is
//!   told whether anything was left out, since that may have said that an earlier record no longer holds.
//! - **After a fault of the disk** (it is full, say) all files are removed, because what is in them would be out of date
//!   after the next change. The owner goes on in memory; [`PAUSE`] later the log is written anew.
//! - One request is under way at a time. Records are durable [`SYNC_AFTER`] later at most; those of a rewrite before the
//!   old files go.
//!
//! `format.rs` has the bytes. The log knows nothing of what its records say.

mod format;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use vocab::{SeededRandom, Time};

use super::files::{
    FileAnswer, FileCompletion, FileFault, FileName, FileOperation, FileRequest, READ_MAX,
};
use format::{BODY_MAX, FileSeal, HEAD, RECORD_HEAD, TAG};

pub use format::StateKey;

/// The time after which what was appended is synced at the latest. What a loss of power costs is so much.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// The time for which the disk is left alone after a fault. Disks do not become less full within seconds.
const PAUSE: Duration = Duration::from_secs(60);
/// Bytes that wait for the disk at most; a disk that is slower than that for long is treated as one that fails.
const WAITING_MAX: usize = 8 << 20;
/// Bytes of one append: few enough that other accelerators' requests do not wait for long.
const APPEND_MAX: usize = 1 << 20;
/// While no more than this waits, the owner is asked for more of what it holds.
const SNAPSHOT_AHEAD: usize = 256 * 1024;
/// Bytes beyond twice the length after the last rewrite at which the log is written anew.
const GROWTH: u64 = 4 << 20;
/// Files of one log that are read back at most. There are two at most, unless somebody puts more there.
const FILES_MAX: usize = 8;

/// An event of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A record of an earlier run; they come oldest first.
    Record {
        /// The kind that the owner gave it.
        kind: u8,
        /// Body as the owner wrote it.
        body: Bytes,
    },
    /// All that could be read was put out.
    Recovered(Damage),
    /// The disk failed, and the log is not kept on it for a while.
    Failed(FileFault),
}

/// Damage found in an earlier run's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Files of another key, another version, or with a damaged head.
    pub files: u64,
    /// Records that do not open, or that end in the middle.
    pub records: u64,
    /// Reads that failed.
    pub faults: u64,
}

impl Damage {
    /// True if something was left out.
    #[must_use]
    pub fn is_any(self) -> bool {
        self != Self::default()
    }
}

/// The log.
#[derive(Debug)]
pub struct SealedLog {
    name: &'static str,
    key: StateKey,
    random: SeededRandom,
    stage: Stage,
    /// The numbers of all files that may be there, oldest first, the one that is written included.
    files: Vec<u32>,
    /// The files of earlier runs are known.
    is_listed: bool,
    /// The owner wants the log to be on disk.
    is_kept: bool,
    next_number: u32,
    current: Option<CurrentFile>,
    /// Sealed bytes for the current file.
    waiting: BytesMut,
    under_way: Option<Operation>,
    last_id: u64,
    /// When what was written is synced; `is_sync_due` once that moment has come.
    sync_at: Option<Time>,
    is_sync_due: bool,
    is_stopping: bool,
    rewrite: Option<Rewrite>,
    wants_rewrite: bool,
    /// The number of the last rewrite that was asked for, and of the last that has ended.
    asked: u64,
    done: u64,
    /// The current file's length after the last rewrite.
    floor: u64,
    damage: Damage,
    events: VecDeque<LogEvent>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// The files of earlier runs are being listed, to be read or else to be removed.
    Listing {
        reads: bool,
    },
    Reading(ReadingFile),
    Writing,
    /// These files are still to be removed.
    Clearing {
        left: Vec<u32>,
        pauses: bool,
    },
    Paused(Time),
    /// The log is not kept on disk.
    Off,
}

#[derive(Debug)]
struct ReadingFile {
    /// Its place in the list of files.
    place: usize,
    /// Where the next read begins.
    read_to: u64,
    /// What was read and not understood yet, and where in the file it begins.
    buffer: BytesMut,
    at: u64,
    seal: Option<FileSeal>,
}

#[derive(Debug)]
struct CurrentFile {
    number: u32,
    seal: FileSeal,
    /// Its length with all that waits.
    length: u64,
    /// Bytes that were put out to be written.
    written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    List,
    Read,
    Append,
    Sync,
    Delete(u32),
}

/// The log is being written anew, into the current file.
#[derive(Debug)]
struct Rewrite {
    number: u64,
    /// The owner has appended all that it holds.
    is_whole: bool,
    is_synced: bool,
}

impl SealedLog {
    /// A log whose files have this name and a number, sealed with this key.
    #[must_use]
    pub fn new(name: &'static str, key: StateKey, random: SeededRandom) -> Self {
        Self {
            name,
            key,
            random,
            stage: Stage::Idle,
            files: Vec::new(),
            is_listed: false,
            is_kept: true,
            next_number: 1,
            current: None,
            waiting: BytesMut::new(),
            under_way: None,
            last_id: 0,
            sync_at: None,
            is_sync_due: false,
            is_stopping: false,
            rewrite: None,
            wants_rewrite: false,
            asked: 0,
            done: 0,
            floor: 0,
            damage: Damage::default(),
            events: VecDeque::new(),
        }
    }

    /// Begins to read back what an earlier run has left.
    pub fn start(&mut self) {
        if matches!(self.stage, Stage::Idle) {
            self.stage = Stage::Listing { reads: true };
        }
    }

    /// Removes all files, and keeps nothing on disk until the next [`Self::resume`].
    pub fn discard(&mut self, now: Time) {
        self.is_kept = false;
        self.clear(now, false);
    }

    /// Keeps the log on disk again after [`Self::discard`].
    pub fn resume(&mut self, now: Time) {
        self.is_kept = true;
        if matches!(self.stage, Stage::Off) {
            self.go_on(now);
        }
    }

    /// Removes what is on disk and writes the log anew, with another key if there is one.
    pub fn replace_key(&mut self, now: Time, key: Option<StateKey>) {
        self.key = key.unwrap_or_else(|| self.key.clone());
        if !matches!(self.stage, Stage::Off) {
            self.clear(now, false);
        }
    }

    /// Appends a record. It is left out while the log is not written, as what the owner holds is written later.
    pub fn append(&mut self, now: Time, kind: u8, body: &[u8]) {
        if !matches!(self.stage, Stage::Writing) || body.len() > BODY_MAX {
            return;
        }
        if self.current.is_none() {
            self.begin_file();
        }
        let Some(current) = &mut self.current else {
            return;
        };
        let record = current.seal.record(current.length, kind, body);
        current.length += record.len() as u64;
        self.waiting.extend_from_slice(&record);
        self.sync_at.get_or_insert(now + SYNC_AFTER);
        let is_long = current.length > 2 * self.floor + GROWTH;
        if self.waiting.len() > WAITING_MAX {
            let slow = format!("more than {WAITING_MAX} bytes wait for the disk");
            self.fail(now, FileFault::Io(slow));
        } else if is_long && self.rewrite.is_none() && !self.wants_rewrite {
            self.rewrite();
        }
    }

    /// Has the log written anew, so that nothing older than what the owner now holds is on disk; the number of
    /// this rewrite.
    pub fn rewrite(&mut self) -> u64 {
        self.asked += 1;
        match &self.stage {
            Stage::Idle => self.stage = Stage::Listing { reads: false },
            Stage::Off => self.done = self.asked,
            Stage::Paused(_) if self.files.is_empty() && self.is_listed => self.done = self.asked,
            Stage::Reading(_) | Stage::Listing { .. } => {
                self.stop_reading();
                self.wants_rewrite = true;
            }
            Stage::Writing if self.files.is_empty() => self.done = self.asked,
            Stage::Writing | Stage::Clearing { .. } | Stage::Paused(_) => self.wants_rewrite = true,
        }
        self.asked
    }

    /// True if nothing is on disk that is older than the rewrite of this number.
    #[must_use]
    pub fn is_rewritten(&self, number: u64) -> bool {
        self.done >= number
    }

    /// True until [`LogEvent::Recovered`] was put out and taken.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        let is_reading = matches!(
            self.stage,
            Stage::Idle | Stage::Listing { .. } | Stage::Reading(_)
        );
        is_reading || !self.events.is_empty()
    }

    /// The number of the rewrite for which the owner is to append more of what it holds.
    #[must_use]
    pub fn wants_snapshot(&self) -> Option<u64> {
        let rewrite = self.rewrite.as_ref()?;
        (!rewrite.is_whole && self.waiting.len() < SNAPSHOT_AHEAD).then_some(rewrite.number)
    }

    /// The owner has appended all that it holds.
    pub fn finish_snapshot(&mut self) {
        if let Some(rewrite) = &mut self.rewrite {
            rewrite.is_whole = true;
        }
    }

    /// The engine stops: all that waits is put out at once, and synced.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.is_sync_due = self.sync_at.is_some();
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<LogEvent> {
        self.events.pop_front()
    }

    /// The next request to the disk.
    pub fn poll_request(&mut self) -> Option<FileRequest> {
        if self.under_way.is_some() && !self.is_stopping {
            return None;
        }
        if self.is_stopping && !matches!(self.stage, Stage::Writing) {
            return None;
        }
        let (operation, request) = match &mut self.stage {
            Stage::Idle | Stage::Off | Stage::Paused(_) => return None,
            Stage::Listing { .. } => (Operation::List, FileOperation::List),
            Stage::Reading(reading) => {
                if !self.events.is_empty() {
                    return None;
                }
                let (offset, number) = (reading.read_to, self.files[reading.place]);
                let (file, length) = (self.file(number), READ_MAX);
                let read = FileOperation::Read {
                    file,
                    offset,
                    length,
                };
                (Operation::Read, read)
            }
            Stage::Writing => self.write()?,
            Stage::Clearing { left, .. } => {
                let number = left.pop()?;
                self.delete(number)
            }
        };
        self.last_id += 1;
        self.under_way = Some(operation);
        Some(FileRequest {
            id: self.last_id,
            operation: request,
        })
    }

    /// Takes the end of a request.
    pub fn handle(&mut self, now: Time, completion: FileCompletion) {
        if completion.id != self.last_id {
            return;
        }
        let Some(operation) = self.under_way.take() else {
            return;
        };
        match (operation, completion.result) {
            (Operation::List, result) => self.listed(now, result),
            (Operation::Read, result) => self.read(result),
            (Operation::Sync, Ok(_)) => {
                if let Some(rewrite) = &mut self.rewrite {
                    rewrite.is_synced = rewrite.is_whole && self.waiting.is_empty();
                }
            }
            (Operation::Delete(number), Ok(_)) => self.files.retain(|file| *file != number),
            (Operation::Append, Ok(_)) => {}
            (Operation::Append | Operation::Sync | Operation::Delete(_), Err(fault)) => {
                match self.stage {
                    Stage::Writing => self.fail(now, fault),
                    _ => self.events.push_back(LogEvent::Failed(fault)),
                }
            }
        }
        self.finish_clearing(now);
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.stage {
            Stage::Writing if !self.is_sync_due => self.sync_at,
            Stage::Paused(until) => Some(*until),
            _ => None,
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        match self.stage {
            Stage::Writing => self.is_sync_due = true,
            _ => self.go_on(now),
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn held(&self) -> usize {
        let reading = match &self.stage {
            Stage::Reading(reading) => reading.buffer.len(),
            _ => 0,
        };
        let of_event = |event: &LogEvent| match event {
            LogEvent::Record { body, .. } => body.len(),
            LogEvent::Recovered(_) | LogEvent::Failed(_) => 0,
        };
        let events: usize = self.events.iter().map(of_event).sum();
        self.waiting.len() + reading + events
    }

    fn file(&self, number: u32) -> FileName {
        let name = format!("{}-{number:08}", self.name);
        name.parse().expect("a short name and digits name a file")
    }

    fn delete(&self, number: u32) -> (Operation, FileOperation) {
        let file = self.file(number);
        (Operation::Delete(number), FileOperation::Delete { file })
    }

    /// The next step while the log is written.
    fn write(&mut self) -> Option<(Operation, FileOperation)> {
        if self.waiting.is_empty() && self.rewrite.is_none() && self.wants_rewrite {
            if let Some(sync) = self.sync() {
                return Some(sync);
            }
            self.wants_rewrite = false;
            self.begin_file();
            self.rewrite = Some(Rewrite {
                number: self.asked,
                is_whole: false,
                is_synced: false,
            });
        }
        if !self.waiting.is_empty() {
            let current = self.current.as_mut()?;
            let bytes = self.waiting.split_to(self.waiting.len().min(APPEND_MAX));
            let offset = current.written;
            current.written += bytes.len() as u64;
            let number = current.number;
            let append = FileOperation::Append {
                file: self.file(number),
                offset,
                bytes: bytes.freeze(),
            };
            return Some((Operation::Append, append));
        }
        let current = self.current.as_ref()?.number;
        if let Some(rewrite) = &self.rewrite
            && rewrite.is_whole
        {
            if !rewrite.is_synced {
                self.sync_at.get_or_insert(Time::ZERO);
                return self.sync();
            }
            if let Some(old) = self.files.iter().find(|file| **file != current) {
                return Some(self.delete(*old));
            }
            self.done = rewrite.number;
            self.rewrite = None;
            self.floor = self.current.as_ref()?.length;
            return self.write();
        }
        self.is_sync_due.then(|| self.sync()).flatten()
    }

    /// A sync of the current file, if something in it is not synced.
    fn sync(&mut self) -> Option<(Operation, FileOperation)> {
        self.is_sync_due = false;
        self.sync_at.take()?;
        let file = self.file(self.current.as_ref()?.number);
        Some((Operation::Sync, FileOperation::Sync { file }))
    }

    fn begin_file(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        let mut salt = [0; 16];
        self.random.fill(&mut salt);
        let seal = self.key.file(self.name, number, &salt);
        self.waiting.extend_from_slice(&seal.head(&salt));
        self.files.push(number);
        self.current = Some(CurrentFile {
            number,
            seal,
            length: HEAD as u64,
            written: 0,
        });
    }

    fn listed(&mut self, now: Time, result: Result<FileAnswer, FileFault>) {
        let Stage::Listing { reads } = self.stage else {
            return;
        };
        let files = match result {
            Ok(FileAnswer::Files(files)) => files,
            Ok(_) | Err(_) => {
                self.damage.faults += 1;
                self.stage = Stage::Paused(now + PAUSE);
                return self.end_recovery();
            }
        };
        self.is_listed = true;
        let number = |file: &FileName| {
            let digits = file.as_str().strip_prefix(self.name)?.strip_prefix('-')?;
            let number: u32 = digits.parse().ok()?;
            (self.file(number) == *file && number < u32::MAX).then_some(number)
        };
        let mut numbers: Vec<u32> = files
            .iter()
            .filter_map(|listed| number(&listed.file))
            .collect();
        numbers.sort_unstable();
        self.next_number = numbers.last().map_or(1, |last| last + 1);
        self.files = numbers;
        if !reads || self.files.len() > FILES_MAX {
            self.clear(now, false);
            return self.end_recovery();
        }
        self.read_file(0);
    }

    /// Begins with the file at this place, or ends the recovery behind the last.
    fn read_file(&mut self, place: usize) {
        if place < self.files.len() {
            self.stage = Stage::Reading(ReadingFile {
                place,
                read_to: 0,
                buffer: BytesMut::new(),
                at: 0,
                seal: None,
            });
            return;
        }
        self.stage = Stage::Writing;
        if !self.files.is_empty() {
            self.asked += 1;
            self.wants_rewrite = true;
        }
        self.end_recovery();
    }

    fn end_recovery(&mut self) {
        self.events.push_back(LogEvent::Recovered(self.damage));
    }

    /// What is still to be read is left out.
    fn stop_reading(&mut self) {
        match &self.stage {
            Stage::Reading(_) => {
                self.damage.files += 1;
                self.events.clear();
                self.read_file(self.files.len());
            }
            Stage::Listing { .. } => {
                self.stage = Stage::Listing { reads: false };
            }
            _ => {}
        }
    }

    fn read(&mut self, result: Result<FileAnswer, FileFault>) {
        let Stage::Reading(reading) = &mut self.stage else {
            return;
        };
        let place = reading.place;
        let bytes = match result {
            Ok(FileAnswer::Bytes(bytes)) => bytes,
            Ok(_) | Err(_) => {
                self.damage.faults += 1;
                return self.read_file(place + 1);
            }
        };
        reading.read_to += bytes.len() as u64;
        reading.buffer.extend_from_slice(&bytes);
        let number = self.files[place];
        let goes_on = reading.understand(
            (&self.key, self.name, number),
            &mut self.events,
            &mut self.damage,
        );
        if bytes.is_empty() || !goes_on {
            let is_cut = bytes.is_empty() && !reading.buffer.is_empty();
            self.damage.records += u64::from(is_cut);
            self.read_file(place + 1);
        }
    }

    /// Removes all files. If the log is kept, it is written anew behind that, or after a pause.
    fn clear(&mut self, now: Time, pauses: bool) {
        self.current = None;
        self.waiting.clear();
        self.sync_at = None;
        self.is_sync_due = false;
        self.rewrite = None;
        self.wants_rewrite = false;
        self.floor = 0;
        if !self.is_listed {
            self.stage = Stage::Listing { reads: false };
            return;
        }
        let left = self.files.clone();
        self.stage = Stage::Clearing { left, pauses };
        self.finish_clearing(now);
    }

    fn finish_clearing(&mut self, now: Time) {
        let Stage::Clearing { left, pauses } = &self.stage else {
            return;
        };
        if self.under_way.is_some() || !left.is_empty() {
            return;
        }
        let is_clear = self.files.is_empty();
        // What could not be removed is tried again.
        let until = match *pauses || !is_clear {
            true => now + PAUSE,
            false => now,
        };
        if is_clear {
            self.done = self.asked;
        }
        self.stage = match is_clear && !self.is_kept {
            true => Stage::Off,
            false => Stage::Paused(until),
        };
    }

    /// Writes the log anew, or first removes what is there.
    fn go_on(&mut self, now: Time) {
        if !self.is_listed || !self.files.is_empty() {
            return self.clear(now, false);
        }
        self.stage = Stage::Writing;
        self.asked += 1;
        self.wants_rewrite = true;
    }

    fn fail(&mut self, now: Time, fault: FileFault) {
        self.events.push_back(LogEvent::Failed(fault));
        self.clear(now, true);
    }
}

impl ReadingFile {
    /// Takes the whole records out of what was read; false if nothing behind them can be understood.
    fn understand(
        &mut self,
        (key, name, number): (&StateKey, &str, u32),
        events: &mut VecDeque<LogEvent>,
        damage: &mut Damage,
    ) -> bool {
        let seal = match &self.seal {
            Some(seal) => seal,
            None => {
                let Some(head) = self.buffer.first_chunk::<HEAD>() else {
                    return true;
                };
                let Some(seal) = format::open_head(key, name, number, head) else {
                    damage.files += 1;
                    return false;
                };
                self.take(HEAD);
                self.seal.insert(seal)
            }
        };
        while let Some(head) = self.buffer.get(..RECORD_HEAD) {
            let Some(head) = seal.open_record_head(self.at, head) else {
                damage.records += 1;
                self.buffer.clear();
                return false;
            };
            let length = RECORD_HEAD + head.length + TAG;
            let Some(body) = self.buffer.get(RECORD_HEAD..length) else {
                return true;
            };
            match seal.open_body(self.at, body) {
                Some(body) => events.push_back(LogEvent::Record {
                    kind: head.kind,
                    body: body.into(),
                }),
                None => damage.records += 1,
            }
            let _ = self.buffer.split_to(length);
            self.at += length as u64;
        }
        true
    }

    fn take(&mut self, length: usize) {
        let _ = self.buffer.split_to(length);
        self.at += length as u64;
    }
}
