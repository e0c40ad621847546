//! Model test: stored bodies under random use, compared with a plain map; content is correct or
//! gone.
//!
//! Bodies are stored and read side by side, piece by piece, over a dictionary that is far too small
//! for all of them. Its process is killed, its disk loses power, is damaged and fills up, and it is
//! emptied.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use reduce::testing::PowerLossDisk;
use reduce::{
    ContentHandle, ContentPin, ContentRead, ContentReader, ContentUnavailable, ContentWriter,
    Dictionary, DictionaryConfig, DictionaryKey,
};
use vocab::{ByteCount, SeededRandom, Time};

/// Bodies that there are.
const BODIES: u64 = 12;
/// Bytes of one at most.
const LONGEST: u64 = 600_000;

#[derive(Clone, Debug)]
enum ModelStep {
    /// Begins to store a body.
    Begin(u64),
    /// Hands over more of each body that is being stored.
    Append(usize),
    /// Abandons one.
    Abandon(usize),
    /// Begins to read a range of a body that was stored, in thousandths of its length.
    Read(u64, Range<u64>),
    /// Takes this many pieces of each read.
    Take(usize),
    /// Ends a read early.
    Drop(usize),
    /// Has a body kept by an index; or none any more.
    Pin(Option<u64>),
    /// Executes this many disk requests.
    Serve(usize),
    Wait(u64),
    Kill,
    LosePower,
    /// Bends a byte of some segment.
    Bend(usize, usize),
    Cut(usize, usize),
    Full,
    Clear,
}

struct OpenWrite {
    body: u64,
    writer: ContentWriter,
    handed: usize,
}

struct OpenRead {
    reader: ContentReader,
    /// Bytes that are still to come.
    expected: Vec<u8>,
    /// True if the dictionary had read its disk when the read began.
    is_ready: bool,
}

struct ContentSimulation {
    config: DictionaryConfig,
    dictionary: Dictionary,
    disk: PowerLossDisk,
    random: SeededRandom,
    now: Time,
    key: u8,
    storing: Vec<OpenWrite>,
    reading: Vec<OpenRead>,
    pin: Option<ContentPin>,
    /// Handles that an index would have on disk.
    handles: BTreeMap<u64, bytes::Bytes>,
    done: usize,
    gone: usize,
}

/// Makes the bytes of a body. Some bodies share much with others, and some repeat themselves.
fn body(number: u64) -> Vec<u8> {
    let mut random = SeededRandom::from_seed(number / 2);
    let mut bytes = vec![0; (number * LONGEST / BODIES) as usize];
    random.fill(&mut bytes);
    if number.is_multiple_of(3) {
        let middle = bytes.len() / 2;
        bytes[middle..].fill(number as u8);
    }
    bytes
}

impl ContentSimulation {
    fn new(seed: u64, with_disk: bool) -> Self {
        let config = DictionaryConfig {
            memory: ByteCount::mebibytes(1),
            disk: ByteCount::kibibytes(if with_disk { 1_100 } else { 0 }),
            segment: ByteCount::kibibytes(128),
        };
        let mut world = Self {
            config,
            dictionary: Dictionary::new(config, SeededRandom::from_seed(seed)),
            disk: PowerLossDisk::default(),
            random: SeededRandom::from_seed(seed),
            now: Time::ZERO,
            key: 1,
            storing: Vec::new(),
            reading: Vec::new(),
            pin: None,
            handles: BTreeMap::new(),
            done: 0,
            gone: 0,
        };
        world.start();
        world.serve(usize::MAX);
        world
    }

    fn start(&mut self) {
        self.storing.clear();
        self.reading.clear();
        self.pin = None;
        let chance = SeededRandom::from_seed(self.random.next_u64());
        let key = DictionaryKey::new([self.key; 32]);
        self.dictionary = Dictionary::with_key(self.config, key, chance);
        self.dictionary.open();
    }

    fn serve(&mut self, most: usize) {
        for _ in 0..most {
            let Some(request) = self.dictionary.poll_disk() else {
                return;
            };
            let completion = self.disk.execute(request);
            self.dictionary.handle_disk(completion);
        }
    }

    fn handle(&self, number: u64) -> Option<ContentHandle> {
        let bytes = self.handles.get(&number)?.clone();
        Some(ContentHandle::parse(bytes).expect("nobody has damaged the index"))
    }

    fn append(&mut self, most: usize) {
        let storing = std::mem::take(&mut self.storing);
        for mut one in storing {
            let body = body(one.body);
            let end = body.len().min(one.handed + most);
            let piece = &body[one.handed..end];
            one.writer
                .append(&mut self.dictionary, piece)
                .expect("no two chunks have the same key");
            one.handed = end;
            if end < body.len() {
                self.storing.push(one);
                continue;
            }
            let handle = one.writer.finish(&mut self.dictionary).expect("it fits");
            assert_eq!(handle.length(), body.len() as u64);
            let serialised = handle.to_bytes();
            assert!(serialised.len() <= 100 + body.len() / 100);
            let before = self.handles.insert(one.body, serialised.clone());
            assert!(before.is_none_or(|before| before == serialised));
        }
    }

    fn begin_read(&mut self, number: u64, thousandths: Range<u64>) {
        let Some(handle) = self.handle(number) else {
            return;
        };
        let place = |at: u64| at * handle.length() / 1_000;
        let range = place(thousandths.start)..place(thousandths.end);
        let expected = body(number)[range.start as usize..range.end as usize].to_vec();
        self.reading.push(OpenRead {
            reader: ContentReader::new(handle, range),
            expected,
            is_ready: self.dictionary.is_ready(),
        });
    }

    fn take(&mut self, pieces: usize) {
        for mut one in std::mem::take(&mut self.reading) {
            let mut taken = 0;
            let goes_on = loop {
                if taken == pieces {
                    break true;
                }
                match one.reader.poll(&mut self.dictionary) {
                    ContentRead::Piece(piece) => {
                        taken += 1;
                        assert!(!piece.is_empty() && one.expected.starts_with(&piece));
                        one.expected.drain(..piece.len());
                        assert_eq!(one.reader.left(), one.expected.len() as u64);
                    }
                    ContentRead::WaitForDisk => break true,
                    ContentRead::Done => {
                        assert!(one.expected.is_empty());
                        self.done += 1;
                        break false;
                    }
                    ContentRead::Gone(absence) => {
                        assert!(!one.expected.is_empty());
                        assert!(absence == ContentUnavailable::Gone || !one.is_ready);
                        self.gone += 1;
                        break false;
                    }
                }
            };
            if goes_on {
                self.reading.push(one);
            }
        }
    }

    fn segment(&mut self, which: usize) -> Option<&mut Vec<u8>> {
        let numbers = self.disk.seen().numbers();
        let number = *numbers.get(which % numbers.len().max(1))?;
        Some(self.disk.seen().segment(number))
    }

    fn step(&mut self, step: ModelStep) {
        match step {
            ModelStep::Begin(body) => self.storing.push(OpenWrite {
                body,
                writer: ContentWriter::new(),
                handed: 0,
            }),
            ModelStep::Append(most) => self.append(most),
            ModelStep::Abandon(which) => {
                if which < self.storing.len() {
                    self.storing.remove(which);
                }
            }
            ModelStep::Read(body, range) => self.begin_read(body, range),
            ModelStep::Take(pieces) => self.take(pieces),
            ModelStep::Drop(which) => {
                if which < self.reading.len() {
                    self.reading.remove(which);
                }
            }
            ModelStep::Pin(body) => {
                let handle = body.and_then(|body| self.handle(body));
                self.pin = handle.map(|handle| self.dictionary.pin(&handle));
                if let Some(pin) = &self.pin {
                    self.dictionary.pin_more(pin);
                }
            }
            ModelStep::Serve(most) => self.serve(most),
            ModelStep::Wait(milliseconds) => {
                self.now += Duration::from_millis(milliseconds);
                self.dictionary.handle_timeout(self.now);
            }
            ModelStep::Kill => self.start(),
            ModelStep::LosePower => {
                self.disk.lose_power(&mut self.random);
                self.start();
            }
            ModelStep::Bend(which, at) => {
                if let Some(segment) = self.segment(which)
                    && !segment.is_empty()
                {
                    let at = at % segment.len();
                    segment[at] ^= 1;
                }
            }
            ModelStep::Cut(which, at) => {
                if let Some(segment) = self.segment(which) {
                    segment.truncate(at);
                }
            }
            ModelStep::Full => {
                let seen = self.disk.seen();
                seen.capacity = match seen.capacity {
                    None => Some(seen.bytes()),
                    Some(_) => None,
                };
            }
            ModelStep::Clear => {
                self.key += 1;
                self.dictionary
                    .clear(Some(DictionaryKey::new([self.key; 32])));
            }
        }
        let statistics = self.dictionary.statistics();
        assert!(statistics.memory_bytes <= self.config.memory.bytes());
    }

    /// Every body that was ever stored, read as a whole.
    fn read_everything(&mut self) {
        self.reading.clear();
        for number in 0..BODIES {
            self.begin_read(number, 0..1_000);
            while !self.reading.is_empty() {
                self.take(usize::MAX);
                self.serve(usize::MAX);
            }
        }
    }
}

fn step() -> impl Strategy<Value = ModelStep> {
    let body = 0..BODIES;
    let range = (0..=1_000u64, 0..=1_000u64).prop_map(|(one, two)| one.min(two)..one.max(two));
    prop_oneof![
        6 => body.clone().prop_map(ModelStep::Begin),
        12 => (1..150_000usize).prop_map(ModelStep::Append),
        1 => (0..3usize).prop_map(ModelStep::Abandon),
        5 => (body.clone(), range).prop_map(|(body, range)| ModelStep::Read(body, range)),
        3 => body.clone().prop_map(|body| ModelStep::Read(body, 0..1_000)),
        10 => (1..20usize).prop_map(ModelStep::Take),
        1 => (0..3usize).prop_map(ModelStep::Drop),
        1 => proptest::option::of(body).prop_map(ModelStep::Pin),
        10 => (1..20usize).prop_map(ModelStep::Serve),
        5 => (0..3_000u64).prop_map(ModelStep::Wait),
        1 => Just(ModelStep::Kill),
        1 => Just(ModelStep::LosePower),
        1 => (0..20usize, 0..200_000usize).prop_map(|(which, at)| ModelStep::Bend(which, at)),
        1 => (0..20usize, 0..200_000usize).prop_map(|(which, at)| ModelStep::Cut(which, at)),
        1 => Just(ModelStep::Full),
        1 => Just(ModelStep::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn content_is_correct_or_gone(
        seed in any::<u64>(),
        with_disk in prop::bool::weighted(0.8),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = ContentSimulation::new(seed, with_disk);
        for step in steps {
            world.step(step);
        }
        world.serve(usize::MAX);
        world.read_everything();
    }
}

/// The model does meet both: bodies that are there, and bodies that are gone.
#[test]
fn the_model_reads_bodies_and_misses_some() {
    let mut world = ContentSimulation::new(1, true);
    for number in 0..BODIES {
        world.step(ModelStep::Begin(number));
        world.step(ModelStep::Append(usize::MAX >> 1));
        world.step(ModelStep::Wait(2_000));
        world.serve(usize::MAX);
    }
    world.read_everything();
    assert!(
        world.done > 2 && world.gone > 2,
        "{} {}",
        world.done,
        world.gone
    );
}
