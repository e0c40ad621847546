//! A log whose owner keeps numbers and texts: restarts at any moment, damage of any kind, and disks that fail.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::*;
use crate::shared::memory_files::MemoryFiles;

const SET: u8 = 1;
const REMOVED: u8 = 2;

type Held = BTreeMap<u8, Vec<u8>>;

/// An owner of a log, and its disk.
struct Owner {
    log: SealedLog,
    held: Held,
    /// The rewrite that goes on, and what it has.
    snapshot: Option<(u64, Option<u8>)>,
    files: MemoryFiles,
    now: Time,
    damage: Option<Damage>,
    failures: usize,
}

fn key(byte: u8) -> StateKey {
    StateKey::new(Zeroizing::new([byte; 32]))
}

impl Owner {
    fn start(files: MemoryFiles, key: StateKey, seed: u64) -> Self {
        let mut owner = Self {
            log: SealedLog::new("log", key, SeededRandom::from_seed(seed)),
            held: Held::new(),
            snapshot: None,
            files,
            now: Time::ZERO,
            damage: None,
            failures: 0,
        };
        owner.log.start();
        owner
    }

    /// One that has read everything back.
    fn ready(files: MemoryFiles) -> Self {
        let mut owner = Self::start(files, key(1), 7);
        owner.run();
        owner
    }

    fn set(&mut self, name: u8, text: &[u8]) {
        self.held.insert(name, text.to_vec());
        let body = [&[name], text].concat();
        self.log.append(self.now, SET, &body);
    }

    fn remove(&mut self, name: u8) {
        self.held.remove(&name);
        self.log.append(self.now, REMOVED, &[name]);
    }

    /// The next request to the disk.
    fn step(&mut self) -> Option<FileRequest> {
        while let Some(event) = self.log.poll_event() {
            match event {
                LogEvent::Record { kind: SET, body } => {
                    self.held.insert(body[0], body[1..].to_vec());
                }
                LogEvent::Record { body, .. } => drop(self.held.remove(&body[0])),
                LogEvent::Recovered(damage) => self.damage = Some(damage),
                LogEvent::Failed(_) => self.failures += 1,
            }
        }
        while let Some(number) = self.log.wants_snapshot() {
            let last = self.snapshot.filter(|(of, _)| *of == number);
            let last = last.and_then(|(_, last)| last);
            let mut held = self.held.iter();
            match held.find(|(name, _)| last.is_none_or(|last| **name > last)) {
                Some((name, text)) => {
                    let body = [&[*name], &text[..]].concat();
                    self.log.append(self.now, SET, &body);
                    self.snapshot = Some((number, Some(*name)));
                }
                None => self.log.finish_snapshot(),
            }
        }
        self.log.poll_request()
    }

    /// Carries out what is asked for, until nothing is.
    fn run(&mut self) {
        while let Some(request) = self.step() {
            let completion = self.files.complete(request);
            self.log.handle(self.now, completion);
        }
    }

    fn wait(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        self.run();
        while let Some(at) = self.log.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.log.handle_timeout(self.now);
            self.run();
        }
        self.now = until;
    }

    fn restarted(&self) -> Self {
        Self::ready(self.files.clone())
    }
}

fn filled() -> Owner {
    let mut owner = Owner::ready(MemoryFiles::default());
    owner.set(1, b"one");
    owner.set(2, b"two");
    owner.set(1, b"another one");
    owner.remove(2);
    owner.set(3, b"");
    owner.wait(2);
    owner
}

#[test]
fn records_are_read_back_after_restart() {
    let owner = filled();
    let again = owner.restarted();
    assert_eq!(again.held, owner.held);
    assert_eq!(again.damage, Some(Damage::default()));
    // What was read is in a file of its own, and the old one is gone.
    assert_eq!(again.files.names(), ["log-00000002"]);
    assert_eq!(again.restarted().held, owner.held);
    let on_disk = owner.files.content("log-00000001").unwrap();
    assert!(!on_disk.windows(3).any(|bytes| bytes == b"one"));
}

#[test]
fn log_cut_at_any_byte_gives_a_state_it_had() {
    let mut states = vec![Held::new()];
    let mut owner = Owner::ready(MemoryFiles::default());
    let mut ends = vec![0, HEAD];
    for change in 0..12 {
        match change % 3 {
            0 | 1 => owner.set(change % 4, &[change; 9]),
            _ => owner.remove(change % 4),
        }
        owner.run();
        states.push(owner.held.clone());
        ends.push(owner.files.content("log-00000001").unwrap().len());
    }
    owner.wait(2);
    let length = owner.files.content("log-00000001").unwrap().len();
    for cut in 0..=length {
        let mut files = owner.files.clone();
        files.damage("log-00000001", |content| content.truncate(cut));
        let again = Owner::ready(files);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(again.held, states[whole.saturating_sub(2)], "cut at {cut}");
        let is_damaged = again.damage.unwrap().is_any();
        assert_eq!(is_damaged, !ends.contains(&cut), "cut at {cut}");
    }
}

#[test]
fn changed_byte_is_noticed_and_never_read() {
    let owner = filled();
    let length = owner.files.content("log-00000001").unwrap().len();
    for at in 0..length {
        for bit in [1, 128] {
            let mut files = owner.files.clone();
            files.damage("log-00000001", |content| content[at] ^= bit);
            let again = Owner::ready(files);
            assert!(again.damage.unwrap().is_any(), "byte {at}");
            for (name, text) in &again.held {
                let known: &[(u8, &[u8])] =
                    &[(1, b"one"), (2, b"two"), (1, b"another one"), (3, b"")];
                assert!(known.contains(&(*name, text)), "byte {at}: {name}");
            }
        }
    }
}

#[test]
fn record_that_does_not_open_is_left_out_alone() {
    let owner = filled();
    let mut files = owner.files.clone();
    // In the body of the second record.
    let at = HEAD + (RECORD_HEAD + 4 + TAG) + RECORD_HEAD + 2;
    files.damage("log-00000001", |content| content[at] ^= 1);
    let again = Owner::ready(files);
    assert_eq!(again.held, owner.held);
    let records = again.damage.unwrap().records;
    assert_eq!(records, 1);
}

#[test]
fn foreign_files_are_refused_and_removed() {
    let owner = filled();
    let mut other = Owner::start(owner.files.clone(), key(2), 8);
    other.run();
    assert_eq!(other.held, Held::new());
    assert_eq!(other.damage.map(|damage| damage.files), Some(1));
    assert_eq!(other.files.names(), ["log-00000002"]);
    // A file under another number is foreign, too: it may be an older state of this very log.
    let mut files = owner.files.clone();
    let content = Bytes::copy_from_slice(files.content("log-00000001").unwrap());
    let replace = |name: &str, bytes: &Bytes| FileRequest {
        id: 1,
        operation: FileOperation::Replace {
            file: name.parse().unwrap(),
            bytes: bytes.clone(),
        },
    };
    files.complete(replace("log-00000009", &content));
    files.complete(replace("other", &content));
    let again = Owner::ready(files);
    assert_eq!(again.held, owner.held);
    assert_eq!(again.damage.map(|damage| damage.files), Some(1));
    assert_eq!(again.files.names(), ["log-00000010", "other"]);
}

#[test]
fn log_stays_in_proportion_to_what_is_held() {
    let mut owner = Owner::ready(MemoryFiles::default());
    let text = vec![5; 50_000];
    let mut longest = 0;
    for round in 0..100 {
        owner.set(round as u8 % 8, &text);
        owner.run();
        let content = |name: &String| owner.files.content(name).unwrap().len();
        longest = longest.max(owner.files.names().iter().map(content).sum());
    }
    let floor = 8 * 50_200;
    assert!(longest < GROWTH as usize + 4 * floor, "{longest}");
    assert_eq!(owner.files.names(), ["log-00000002"]);
    assert_eq!(owner.restarted().held, owner.held);
}

#[test]
fn full_disk_is_told_and_left_alone_for_a_minute() {
    let mut owner = filled();
    owner.files.is_full = true;
    owner.set(4, b"four");
    owner.run();
    assert_eq!(owner.failures, 1);
    // What was on disk would be out of date by now.
    assert_eq!(owner.files.names(), [""; 0]);
    owner.set(5, b"five");
    owner.wait(59);
    assert_eq!(owner.failures, 1);
    assert!(owner.restarted().held.is_empty());
    owner.wait(2);
    assert_eq!(owner.failures, 2);
    owner.files.is_full = false;
    owner.wait(61);
    assert_eq!(owner.restarted().held, owner.held);
    assert!(owner.held.contains_key(&5));
}

#[test]
fn rewrite_leaves_nothing_older_on_disk() {
    let mut owner = filled();
    owner.held.remove(&1);
    let number = owner.log.rewrite();
    assert!(!owner.log.is_rewritten(number));
    owner.run();
    assert!(owner.log.is_rewritten(number));
    assert_eq!(owner.files.names(), ["log-00000002"]);
    assert_eq!(owner.restarted().held, owner.held);
    // One that is asked for while the files are read gives up what was not read.
    let mut again = Owner::start(owner.files.clone(), key(1), 9);
    let number = again.log.rewrite();
    again.wait(1);
    assert!(again.log.is_rewritten(number) && again.held.is_empty());
    assert_eq!(again.restarted().held, Held::new());
}

#[test]
fn discarded_log_leaves_no_file() {
    let mut owner = filled();
    owner.log.discard(owner.now);
    owner.wait(100);
    assert_eq!(owner.files.names(), [""; 0]);
    owner.set(6, b"six");
    owner.wait(2);
    assert_eq!(owner.files.names(), [""; 0]);
    owner.log.resume(owner.now);
    owner.wait(2);
    assert_eq!(owner.restarted().held, owner.held);
    // Files of an earlier run go as well.
    let mut other = Owner::start(filled().files, key(1), 3);
    other.log.discard(other.now);
    other.wait(1);
    assert_eq!(other.files.names(), [""; 0]);
    assert!(other.held.is_empty());
}

/// The process dies between any two requests, after any part of the last one has reached the disk: what is read back
/// is a state that the owner had since the last sync that was answered.
#[test]
fn crash_at_any_moment_gives_a_recent_state() {
    let mut random = SeededRandom::from_seed(11);
    for round in 0..300 {
        let mut owner = Owner::start(MemoryFiles::default(), key(1), round);
        let mut states = vec![Held::new()];
        for _ in 0..random.below(60) {
            if owner.damage.is_some() {
                let name = random.below(6) as u8;
                match random.below(8) {
                    0 => owner.remove(name),
                    1 => drop(owner.log.rewrite()),
                    _ => owner.set(name, &[random.below(256) as u8; 40]),
                }
                states.push(owner.held.clone());
            }
            for _ in 0..random.below(4) {
                if let Some(request) = owner.step() {
                    let is_durable = matches!(request.operation, FileOperation::Sync { .. });
                    let completion = owner.files.complete(request);
                    owner.log.handle(owner.now, completion);
                    if is_durable {
                        // A sync is put out when nothing waits to be written.
                        states.drain(..states.len() - 1);
                    }
                }
            }
            if random.below(4) == 0 {
                owner.now += Duration::from_millis(600);
                owner.log.handle_timeout(owner.now);
            }
        }
        let mut files = owner.files.clone();
        files.crash(random.below(200) as usize);
        let again = Owner::ready(files);
        assert!(states.contains(&again.held), "round {round}");
        assert_eq!(again.restarted().held, again.held);
    }
}
