//! Edited files: what small changes cost, and that every byte arrives whatever was changed.

mod sides;

use bytes::Bytes;
use proptest::prelude::*;
use reduce::DictionaryConfig;
use reduce::testing::MemoryDisk;
use sides::{TestFlow, TestSide, noise, text};
use vocab::{ByteCount, FlowSegment, SeededRandom, Time};

/// The file with random bytes inserted about every `period` bytes.
fn inserted(file: &Bytes, period: u64, bytes: usize) -> Bytes {
    let mut random = SeededRandom::from_seed(period);
    let mut out = Vec::with_capacity(file.len() * 11 / 10);
    let mut rest = &file[..];
    while !rest.is_empty() {
        let step = (period / 2 + random.below(period)) as usize;
        let (piece, after) = rest.split_at(step.min(rest.len()));
        out.extend_from_slice(piece);
        let mut more = vec![0; bytes];
        random.fill(&mut more);
        out.extend_from_slice(&more);
        rest = after;
    }
    out.into()
}

/// Cost of the second file after the first was sent, repairs included, in bytes.
fn second(first: &Bytes, second: &Bytes) -> usize {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    TestFlow::new().transfer(&mut near, &mut far, first);
    TestFlow::new().transfer(&mut near, &mut far, second)
}

#[test]
fn insertions_every_64_kib_cost_twelve_bytes_each() {
    let file = noise(1, 2 << 20);
    let wire = second(&file, &inserted(&file, 65_536, 1));
    assert!(wire <= 10_000 / 8, "{wire}");
}

#[test]
fn eight_byte_insertions_every_4_kib_are_cheap() {
    let file = noise(2, 2 << 20);
    let wire = second(&file, &inserted(&file, 4096, 8));
    assert!(wire <= 100_000 / 8, "{wire}");
}

#[test]
fn bytes_replaced_and_deleted_cost_as_little() {
    let file = noise(3, 1 << 20);
    let mut edited = file.to_vec();
    for at in (3_000..edited.len() - 100).step_by(10_000).rev() {
        match at / 10_000 % 3 {
            0 => edited[at..at + 20].fill(7),
            1 => drop(edited.drain(at..at + 90)),
            _ => edited[at] ^= 1,
        }
    }
    let wire = second(&file, &edited.into());
    assert!(wire <= 4_000, "{wire}");
}

#[test]
fn moved_data_and_short_repeats_are_found() {
    let file = noise(4, 1 << 20);
    let blocks: Vec<&[u8]> = file.chunks(30_011).collect();
    let moved: Vec<u8> = blocks
        .iter()
        .rev()
        .flat_map(|block| block.to_vec())
        .collect();
    let wire = second(&file, &moved.into());
    assert!(wire <= 6_000, "{wire}");
    // Two hundred bytes in a thousand are old ones: most of those do not travel again.
    let mut random = SeededRandom::from_seed(5);
    let fresh = noise(6, 400_000);
    let mut sprinkled = Vec::new();
    for piece in fresh.chunks(800) {
        let at = random.below(file.len() as u64 - 200) as usize;
        sprinkled.extend_from_slice(piece);
        sprinkled.extend_from_slice(&file[at..at + 200]);
    }
    let wire = second(&file, &sprinkled.into());
    assert!(wire <= 400_000 + 30_000, "{wire}");
}

#[test]
fn edited_start_is_found_from_later_chunks() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(7, 1 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut edited = file.to_vec();
    edited.splice(10..20, *b"another head");
    let wire = TestFlow::new().transfer(&mut near, &mut far, &edited.into());
    assert!(wire <= 400, "{wire}");
}

#[test]
fn an_edited_reply_leaves_at_once() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(8, 200_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    let mut edited = file.slice(..2_000).to_vec();
    edited[1_000] ^= 1;
    let now = Time::from_nanos(7_000_000_000);
    flow.encoder.push(now, FlowSegment::payload(edited.into()));
    let wire = flow.exchange(now, &mut near, &mut far, 1 << 16);
    assert_eq!(flow.received_bytes(), 2_000);
    assert_eq!(flow.encoder.poll_timeout(), None);
    assert!(wire <= 100, "{wire}");
}

/// A chunk that is not whole yet leaves as copies and literals, and they may be more than one record takes.
#[test]
fn edits_every_20_bytes_fit_record_operations() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    // No chunk ends in what repeats itself, so that all of it is the open tail.
    let mut file = noise(8, 5_000).to_vec();
    let pattern = noise(9, 80);
    file.extend(pattern.iter().cycle().take(55_000));
    TestFlow::new().transfer(&mut near, &mut far, &file.clone().into());
    let mut edited = file;
    edited
        .iter_mut()
        .skip(5_000)
        .step_by(20)
        .for_each(|byte| *byte ^= 1);
    let mut flow = TestFlow::new();
    // Records have come to be long ones.
    let before = noise(10, 100_000);
    flow.encoder
        .push(Time::ZERO, FlowSegment::payload(before.clone()));
    flow.encoder.end_body();
    let segment = FlowSegment::payload(edited.clone().into());
    flow.encoder.push(Time::ZERO, segment);
    // Nothing is held back for what may follow.
    let later = Time::from_nanos(1_000_000_000);
    flow.exchange(later, &mut near, &mut far, 1 << 16);
    assert!(flow.payload() == [&before[..], &edited].concat());
}

#[test]
fn old_bytes_are_read_on_demand_after_restart() {
    let config = DictionaryConfig {
        memory: ByteCount::mebibytes(8),
        disk: ByteCount::mebibytes(64),
        segment: ByteCount::mebibytes(4),
    };
    let mut sides = [1, 2].map(|seed| TestSide::with(seed, config, MemoryDisk::new()));
    let [near, far] = &mut sides;
    let file = noise(9, 4 << 20);
    TestFlow::new().transfer(near, far, &file);
    let [mut near, mut far] = sides.map(|mut side| {
        let due = side.dictionary.poll_timeout().expect("a sync is due");
        side.dictionary.handle_timeout(due);
        side.disk.serve(&mut side.dictionary);
        TestSide::with(3, config, side.disk)
    });
    let read_before = near.disk.executed;
    let wire = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(wire <= 1_000, "{wire}");
    assert_eq!(
        near.disk.executed, read_before,
        "it reads what it was given"
    );
    let [mut near, mut far] = [near, far].map(|side| TestSide::with(4, config, side.disk));
    let edited = inserted(&file, 65_536, 1);
    let wire = TestFlow::new().transfer(&mut near, &mut far, &edited);
    assert!(wire <= 10_000, "{wire}");
    assert!(near.dictionary.statistics().memory_bytes <= 8 << 20);
    // A disk that does not answer holds the encoder up for three milliseconds, once a chunk.
    let mut near = TestSide::with(5, config, near.disk);
    let again = inserted(&file, 50_000, 1);
    let mut flow = TestFlow::new();
    let mut now = Time::from_nanos(1_000_000_000);
    flow.encoder
        .push(now, FlowSegment::payload(again.slice(..400_000)));
    let mut waits = 0;
    while flow.encoder.pending() > 0 {
        while let Some(bytes) = flow
            .encoder
            .poll_encoded(now, &mut near.dictionary, 1 << 16)
        {
            flow.decoder.push(bytes);
        }
        let Some(due) = flow.encoder.poll_timeout() else {
            continue;
        };
        assert!(due > now && due.since(now) <= reduce::TAIL_HOLD);
        waits += usize::from(flow.encoder.waits_for_disk());
        now = due;
    }
    assert!(waits > 0);
    flow.receive(&mut far);
    assert_eq!(flow.received_bytes(), 400_000);
}

/// A change to a file.
#[derive(Clone, Copy, Debug)]
enum FileEdit {
    Insert { at: usize, length: usize },
    Delete { at: usize, length: usize },
    Replace { at: usize, length: usize },
    Move { at: usize, length: usize, to: usize },
}

fn edits() -> impl Strategy<Value = Vec<FileEdit>> {
    let at = 0..1_000_000_usize;
    let length = prop_oneof![1..40_usize, 100..1_000_usize, 5_000..50_000_usize];
    let one = prop_oneof![
        (at.clone(), length.clone()).prop_map(|(at, length)| FileEdit::Insert { at, length }),
        (at.clone(), length.clone()).prop_map(|(at, length)| FileEdit::Delete { at, length }),
        (at.clone(), length.clone()).prop_map(|(at, length)| FileEdit::Replace { at, length }),
        (at.clone(), length, at).prop_map(|(at, length, to)| FileEdit::Move { at, length, to }),
    ];
    prop::collection::vec(one, 1..12)
}

fn apply(file: &mut Vec<u8>, edit: FileEdit, random: &mut SeededRandom) {
    let range = |file: &[u8], at: usize, length: usize| {
        let at = at % (file.len() + 1);
        at..file.len().min(at + length)
    };
    match edit {
        FileEdit::Insert { at, length } => {
            let mut more = vec![0; length];
            random.fill(&mut more);
            let at = at % (file.len() + 1);
            file.splice(at..at, more);
        }
        FileEdit::Delete { at, length } => drop(file.drain(range(file, at, length))),
        FileEdit::Replace { at, length } => {
            let range = range(file, at, length);
            random.fill(&mut file[range]);
        }
        FileEdit::Move { at, length, to } => {
            let moved: Vec<u8> = file.drain(range(file, at, length)).collect();
            let to = to % (file.len() + 1);
            file.splice(to..to, moved);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn every_file_version_arrives_despite_lost_chunks(
        versions in prop::collection::vec((edits(), 0..5_u8, any::<bool>()), 1..6),
        seed: u64,
    ) {
        let tiny = DictionaryConfig {
            memory: ByteCount::mebibytes(1),
            disk: ByteCount::mebibytes(2),
            segment: ByteCount::kibibytes(128),
        };
        let mut random = SeededRandom::from_seed(seed);
        let roomy = DictionaryConfig { memory: ByteCount::mebibytes(8), ..tiny };
        let mut near = TestSide::with(seed, roomy, MemoryDisk::new());
        let mut far = TestSide::with(seed ^ 1, tiny, MemoryDisk::new());
        let mut file = match seed % 3 {
            0 => noise(seed, 300_000).to_vec(),
            1 => text(seed, 300_000).to_vec(),
            _ => [text(seed, 100_000), noise(seed, 100_000)].concat(),
        };
        for (number, (edits, event, back)) in versions.into_iter().enumerate() {
            for edit in edits {
                apply(&mut file, edit, &mut random);
            }
            match event {
                0 => far.dictionary.clear(None),
                1 => far = TestSide::with(number as u64, far.config, far.disk.clone()),
                2 => near = TestSide::with(number as u64, near.config, near.disk.clone()),
                _ => {}
            }
            let (from, to) = if back { (&mut far, &mut near) } else { (&mut near, &mut far) };
            let mut flow = TestFlow::new();
            let now = Time::from_nanos(1_000_000_000 * number as u64);
            let mut rest = Bytes::from(file.clone());
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(1 + random.below(100_000) as usize));
                flow.encoder.push(now, FlowSegment::payload(piece));
                if random.below(2) == 0 {
                    flow.exchange(now, from, to, 1 + random.below(100_000) as usize);
                }
            }
            flow.encoder.finish();
            flow.exchange(now, from, to, 1 << 16);
            prop_assert!(flow.payload() == file);
            prop_assert!(flow.decoder.is_at_boundary());
        }
    }
}
