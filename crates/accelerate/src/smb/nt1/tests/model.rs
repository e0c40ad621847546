//! Random steps by two clients, one behind the pair and one beside the server, against a reference:
//! every answer must equal the contents of the files at that moment, under delays, cuts and pieces
//! of any size.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::SeededRandom;

use super::DELAY;
use crate::smb::nt1::testing::server::LOCK_CONFLICT;
use crate::smb::nt1::testing::world::Smb1World;
use crate::smb::nt1::testing::{
    Smb1CreateParameters, chained, close, flush, lock_ranges, locking, process_exit, query_file,
    read, seek, set_size, tell, unix_open_with, write,
};
use crate::smb::nt1::wire::create::NtCreateResponse;
use crate::smb::nt1::wire::header::command;
use crate::smb::wire::u32_at;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const STEPS: usize = 120;
const RUNS: u64 = 100;

/// An open, and where its client has left both positions.
#[derive(Clone, Copy)]
struct Smb1ModelOpen {
    file: u16,
    name: &'static str,
    position: u64,
    reported: u64,
    is_own: bool,
}

struct Smb1Model {
    world: Smb1World,
    random: SeededRandom,
    files: BTreeMap<&'static str, Vec<u8>>,
    /// By client.
    opens: [Vec<Smb1ModelOpen>; 2],
    /// Files ids whose oplocks the server wanted back, and that the first client did not know.
    early_breaks: Vec<u16>,
}

impl Smb1Model {
    fn new(seed: u64) -> Self {
        let mut chance = SeededRandom::from_seed(seed);
        let mut world = Smb1World::new(DELAY);
        world.piece = [usize::MAX, 40, 1_000][below(&mut chance, 3)];
        world.server_takes = Duration::from_millis([0, 1, 30][below(&mut chance, 3)]);
        world.clients[0].has_one_mid = below(&mut chance, 2) == 0;
        if below(&mut chance, 2) == 0 {
            world.server.disorder = Some(SeededRandom::from_seed(seed));
        }
        world.set_up(0);
        world.beside();
        Self {
            world,
            random: chance,
            files: BTreeMap::new(),
            opens: [Vec::new(), Vec::new()],
            early_breaks: Vec::new(),
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        below(&mut self.random, limit)
    }

    fn step(&mut self) {
        // The second one comes now and then, and keeps nothing open for long.
        let who = usize::from(self.below(5) == 0);
        if who == 1 && self.opens[1].len() > 1 {
            return self.close(1, 0);
        }
        let count = self.opens[who].len();
        if count == 0 || (count < 3 && self.below(8) == 0) {
            return self.open(who);
        }
        let index = self.below(count);
        let open = self.opens[who][index];
        let contents = self.files[open.name].clone();
        match self.below(13) {
            // Serial, as clients are.
            0..=3 => {
                let start = open.position;
                let length = [10, 100, 3_000][self.below(3)];
                for turn in 0..1 + self.below(4) as u64 {
                    self.read(who, index, start + turn * length, length as u32);
                }
            }
            4..=7 => {
                let at = self.below(contents.len() + 50);
                let data = vec![self.below(256) as u8; 1 + self.below(400)];
                let answer = self.world.ask(who, &write(open.file, at as u64, &data).0);
                assert_eq!(answer.header.status, 0);
                let contents = self.files.get_mut(open.name).unwrap();
                contents.resize(contents.len().max(at + data.len()), 0);
                contents[at..at + data.len()].copy_from_slice(&data);
                self.opens[who][index].position = (at + data.len()) as u64;
            }
            8 => match self.below(5) {
                0 => {
                    assert_eq!(self.world.ask(who, &flush(open.file)).header.status, 0);
                    assert_eq!(self.world.server.files[open.name], contents);
                }
                1 => self.locks(who, index),
                2 => self.read_at_once(who, index),
                3 => {
                    let answer = self.world.ask(who, &query_file(open.file, 0x107));
                    let size = (contents.len() as u64).to_le_bytes();
                    assert_eq!(answer.message[answer.message.len() - 8..], size);
                }
                _ => {
                    let size = self.below(2_000);
                    self.world.ask(who, &set_size(open.file, size as u64));
                    self.files.get_mut(open.name).unwrap().resize(size, 0);
                }
            },
            9 => self.positions(who, index),
            10 => {
                let time = Duration::from_millis(self.below(700) as u64);
                self.world.is_cut = self.below(3) == 0;
                self.world.run_for(time);
                self.world.is_cut = false;
            }
            11 if who == 0 && self.below(3) == 0 => self.end_unseen(index),
            _ => self.close(who, index),
        }
        self.give_back();
        if who == 1 && self.below(2) == 0 && !self.opens[1].is_empty() {
            self.close(1, 0);
        }
    }

    fn close(&mut self, who: usize, index: usize) {
        let open = self.opens[who].remove(index);
        assert_eq!(self.world.ask(who, &close(open.file)).header.status, 0);
        if who == 0 {
            assert_eq!(self.world.server.files[open.name], self.files[open.name]);
        }
    }

    fn open(&mut self, who: usize) {
        let name = NAMES[self.below(NAMES.len())];
        let is_own = who == 0 && self.below(3) == 0;
        let is_unix = is_own && self.below(2) == 0;
        let create = Smb1CreateParameters {
            flags: if is_own { 2 } else { 0 },
            disposition: if self.below(6) == 0 && !is_unix { 5 } else { 3 },
            ..Smb1CreateParameters::file(name)
        };
        let message = match is_unix {
            true => unix_open_with(name, 2, 1),
            false => create.message(),
        };
        self.world.send(who, &message);
        // Its own oplock may be in its way, which it gives back.
        let answer = loop {
            if let Some(answer) = self.world.clients[who].answered.pop_front() {
                break answer;
            }
            self.world.run_for(Duration::from_millis(10));
            self.give_back();
        };
        self.files.entry(name).or_default();
        if create.disposition == 5 {
            self.files.insert(name, Vec::new());
        }
        let answer = match is_unix {
            true => NtCreateResponse::parse_unix(&answer.message),
            false => NtCreateResponse::parse(&answer.message),
        };
        let answer = answer.expect("it opens");
        assert_eq!(answer.size, self.files[name].len() as u64);
        assert!(is_own || !answer.has_oplock());
        self.opens[who].push(Smb1ModelOpen {
            file: answer.file,
            name,
            position: 0,
            reported: 0,
            is_own,
        });
        if is_own && self.early_breaks.contains(&answer.file) {
            self.world.send(0, &locking(answer.file, 2, 0));
        }
        self.early_breaks.retain(|file| *file != answer.file);
    }

    /// An open of the client's behind the pair ends otherwise than with a CLOSE that is done.
    fn end_unseen(&mut self, index: usize) {
        let file = self.opens[0][index].file;
        match self.below(3) {
            0 => {
                let answer = self.world.ask(0, &chained(&read(file, 0, 0)));
                assert_eq!(answer.header.status, 0);
                self.opens[0].remove(index);
            }
            1 => {
                self.world.server.fails_to_end = true;
                self.world.ask(0, &close(file));
                while self.world.server.fails_to_end {
                    self.world.run_for(Duration::from_millis(1));
                }
                self.opens[0].remove(index);
            }
            _ => {
                assert_eq!(self.world.ask(0, &process_exit()).header.status, 0);
                self.opens[0].clear();
            }
        }
    }

    /// Sends several READs at a time, which are answered in any order.
    fn read_at_once(&mut self, who: usize, index: usize) {
        let open = self.opens[who][index];
        if self.world.clients[who].has_one_mid {
            return;
        }
        let length = [10, 700][self.below(2)];
        let mut asked = BTreeMap::new();
        for turn in 0..2 + self.below(4) {
            let at = open.position + (turn * length) as u64;
            let mid = self.world.send(who, &read(open.file, at, length as u32));
            asked.insert(mid, at as usize);
        }
        let contents = &self.files[open.name];
        while !asked.is_empty() {
            let answer = self.world.wait(who);
            let at = asked.remove(&answer.header.mid).expect("it was asked");
            let [start, end] = [at, at + length].map(|at| at.min(contents.len()));
            assert_eq!(answer.data(), &contents[start..end]);
        }
        // Which was the last is the server's to know.
        let position = open.position as i32;
        self.world.ask(who, &seek(open.file, 0, position));
        self.world.ask(who, &tell(open.file, open.reported));
    }

    /// Two processes lock a part each with one request, and both read and write both.
    fn locks(&mut self, who: usize, index: usize) {
        const RANGES: [(u16, u32); 2] = [(77, 0), (88, 100)];
        let open = self.opens[who][index];
        let kind = self.below(2) as u8;
        let ranges = &RANGES[..1 + self.below(2)];
        let locked = lock_ranges(open.file, kind, false, ranges);
        assert_eq!(self.world.ask(who, &locked).header.status, 0);
        for _ in 0..4 {
            let (process, at) = (RANGES[self.below(2)].0, RANGES[self.below(2)].1);
            let mut ranges = ranges.iter();
            let others = ranges
                .find(|range| range.1 == at)
                .map(|range| range.0 != process);
            self.world.clients[who].process = Some(process);
            let is_read = self.below(2) == 0;
            let may = match others {
                None => true,
                Some(is_others) if is_read => kind == 1 || !is_others,
                Some(is_others) => kind == 0 && !is_others,
            };
            let status = if is_read {
                let answer = self.world.ask(who, &read(open.file, at.into(), 16));
                if may {
                    let contents = &self.files[open.name];
                    let [start, end] = [at, at + 16].map(|at| contents.len().min(at as usize));
                    assert_eq!(answer.data(), &contents[start..end]);
                    let position = u64::from(at) + (end - start) as u64;
                    self.opens[who][index].reported = position;
                    self.opens[who][index].position = position;
                }
                answer.header.status
            } else {
                let data = [self.below(256) as u8; 16];
                let answer = self.world.ask(who, &write(open.file, at.into(), &data).0);
                if may {
                    let contents = self.files.get_mut(open.name).unwrap();
                    contents.resize(contents.len().max(at as usize + 16), 0);
                    contents[at as usize..at as usize + 16].copy_from_slice(&data);
                    self.opens[who][index].position = u64::from(at) + 16;
                }
                answer.header.status
            };
            assert_eq!(status, if may { 0 } else { LOCK_CONFLICT });
        }
        self.world.clients[who].process = None;
        let unlocked = lock_ranges(open.file, kind, true, ranges);
        assert_eq!(self.world.ask(who, &unlocked).header.status, 0);
        self.positions(who, index);
    }

    /// Queries and changes an open's positions.
    fn positions(&mut self, who: usize, index: usize) {
        let open = self.opens[who][index];
        let size = self.files[open.name].len() as u64;
        let by = self.below(40) as i32;
        let to = self.below(3_000) as u64;
        let (message, position, told) = match self.below(5) {
            0 => (seek(open.file, 0, by), by as u64, open.reported),
            1 => (
                seek(open.file, 1, by),
                open.position + by as u64,
                open.reported,
            ),
            2 => (seek(open.file, 2, by), size + by as u64, open.reported),
            3 => (tell(open.file, to), open.position, to),
            _ => (query_file(open.file, 1_014), open.position, open.reported),
        };
        let answer = self.world.ask(who, &message);
        assert_eq!(answer.header.status, 0);
        match answer.header.command {
            command::SEEK => assert_eq!(u32_at(&answer.message, 33), Ok(position as u32)),
            _ if message == query_file(open.file, 1_014) => {
                assert_eq!(
                    answer.message[answer.message.len() - 8..],
                    told.to_le_bytes()
                );
            }
            _ => {}
        }
        self.opens[who][index].position = position;
        self.opens[who][index].reported = told;
    }

    fn read(&mut self, who: usize, index: usize, at: u64, length: u32) {
        let open = self.opens[who][index];
        let answer = self.world.ask(who, &read(open.file, at, length));
        let contents = &self.files[open.name];
        let start = (at as usize).min(contents.len());
        let end = (at as usize + length as usize).min(contents.len());
        assert_eq!(answer.data(), &contents[start..end]);
        let open = &mut self.opens[who][index];
        open.position = at + (end - start) as u64;
        open.reported = open.position;
    }

    /// The client behind the pair gives its own broken oplocks back.
    fn give_back(&mut self) {
        for broken in std::mem::take(&mut self.world.clients[0].unasked) {
            let file = u16::from_le_bytes([broken.message[37], broken.message[38]]);
            let mut opens = self.opens[0].iter();
            match opens.find(|open| open.file == file) {
                Some(open) => {
                    assert!(open.is_own, "of an oplock it did not ask for");
                    self.world.send(0, &locking(file, 2, 0));
                }
                // It is closed, or what opens it is not answered yet.
                None => self.early_breaks.push(file),
            }
        }
    }
}

fn below(chance: &mut SeededRandom, limit: usize) -> usize {
    chance.below(limit as u64) as usize
}

#[test]
fn clients_only_get_what_files_contain() {
    let mut helped = 0;
    for seed in 0..RUNS {
        let mut model = Smb1Model::new(seed);
        for _ in 0..STEPS {
            model.step();
        }
        for who in [0, 1] {
            for open in std::mem::take(&mut model.opens[who]) {
                assert_eq!(model.world.ask(who, &close(open.file)).header.status, 0);
            }
        }
        for (name, contents) in &model.files {
            assert_eq!(&model.world.server.files[*name], contents);
        }
        assert_eq!(model.world.let_go, None);
        helped += model.world.answered();
    }
    assert!(helped > RUNS * 20, "{helped} were answered here");
}
