//! The dictionary on disk: what survives a restart, and what faults cost.

mod sides;

use proptest::prelude::*;
use reduce::testing::MemoryDisk;
use reduce::{Dictionary, DictionaryConfig, DictionaryKey, scan_segment};
use sides::{TestFlow, TestSide, key, noise};
use vocab::{ByteCount, SeededRandom, Time};

fn config(memory_mib: u64, disk_mib: u64, segment: ByteCount) -> DictionaryConfig {
    DictionaryConfig {
        memory: ByteCount::mebibytes(memory_mib),
        disk: ByteCount::mebibytes(disk_mib),
        segment,
    }
}

fn roomy() -> DictionaryConfig {
    config(32, 64, ByteCount::mebibytes(4))
}

/// Starts a new dictionary over the same disk, as after kill -9.
fn restarted(side: &TestSide, seed: u64) -> TestSide {
    TestSide::with(seed, side.config, side.disk.clone())
}

/// Writes gathered chunks, which takes some milliseconds.
fn write_down(side: &mut TestSide) {
    let due = side.dictionary.poll_timeout().expect("something waits");
    side.dictionary.handle_timeout(due);
    side.disk.serve(&mut side.dictionary);
}

#[test]
fn restart_keeps_chunks_and_peer_holdings() {
    let mut near = TestSide::with(1, roomy(), MemoryDisk::new());
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = noise(3, 2_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    // Acknowledged knowledge is written with the next batch, a second later at most.
    for side in [&mut near, &mut far] {
        let due = side.dictionary.poll_timeout().expect("a sync is due");
        side.dictionary.handle_timeout(due);
        side.disk.serve(&mut side.dictionary);
    }
    let (mut again_near, mut again_far) = (restarted(&near, 11), restarted(&far, 12));
    assert_eq!(
        again_near.dictionary.generation(),
        near.dictionary.generation()
    );
    assert_ne!(
        again_near.dictionary.generation(),
        again_far.dictionary.generation()
    );
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    let wire = flow.exchange(Time::ZERO, &mut again_near, &mut again_far, 1 << 16);
    assert!(flow.payload() == file);
    assert!(wire <= 4_000, "{wire}");
    assert_eq!(flow.repairs, 0);
    assert!(again_far.dictionary.statistics().disk_faults == 0);
}

#[test]
fn chunks_evicted_at_far_side_are_repaired() {
    let mut near = TestSide::new(1);
    let tiny = config(1, 0, ByteCount::mebibytes(1));
    let mut far = TestSide::with(2, tiny, MemoryDisk::new());
    let file = noise(3, 4_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 16);
    assert!(flow.payload() == file);
    assert!(flow.repairs > 0);
    assert_eq!(flow.encoder.statistics().repairs, flow.repairs as u64);
    assert!(far.dictionary.statistics().memory_bytes <= 1 << 20);
    assert!(far.dictionary.statistics().evictions > 0);
}

#[test]
fn lost_dictionary_is_repaired_once() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 500_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    far.dictionary.clear(None);
    let slot = near.peer();
    near.dictionary.forget_peer(slot);
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 16);
    assert!(flow.payload() == file);
    assert_eq!(flow.repairs, 0);
}

#[test]
fn overwritten_files_cause_repairs_not_wrong_bytes() {
    let mut near = TestSide::with(1, roomy(), MemoryDisk::new());
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = noise(3, 2_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut random = SeededRandom::from_seed(4);
    for number in far.disk.numbers() {
        let segment = far.disk.segment(number);
        for _ in 0..20 {
            let at = random.below(segment.len() as u64 - 64) as usize;
            random.fill(&mut segment[at..at + 64]);
        }
    }
    // Once for a running node that reads what was overwritten under it ...
    let mut damaged = restarted(&far, 12);
    assert!(damaged.dictionary.statistics().damaged_records > 0);
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut near, &mut damaged, 1 << 16);
    assert!(flow.payload() == file);
    assert!(flow.repairs > 0);
    // ... and the repaired chunks are there again.
    let wire = TestFlow::new().transfer(&mut near, &mut damaged, &file);
    assert!(wire <= 4_000, "{wire}");
}

#[test]
fn overwritten_file_is_noticed_when_read() {
    let small = config(1, 64, ByteCount::mebibytes(4));
    let mut near = TestSide::new(1);
    let mut far = TestSide::with(2, small, MemoryDisk::new());
    let file = noise(3, 3_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    for number in far.disk.numbers() {
        let length = far.disk.segment(number).len();
        *far.disk.segment(number) = noise(9, length).to_vec();
    }
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 16);
    assert!(flow.payload() == file);
    assert!(flow.repairs > 0);
    assert!(far.dictionary.statistics().damaged_records > 0);
}

#[test]
fn log_cut_at_every_byte_recovers_earlier_records() {
    let mut near = TestSide::new(1);
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = noise(3, 40_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let number = far.disk.numbers()[0];
    let whole = far.disk.segment(number).clone();
    // Each byte near a record's edge, and every 97th elsewhere: the rest are like their
    // neighbours, and the whole sweep takes a minute unoptimised.
    for cut in (0..=whole.len()).filter(|cut| *cut < 300 || cut % 211 == 0) {
        let mut disk = MemoryDisk::new();
        *disk.segment(number) = whole[..cut].to_vec();
        let expected = scan_segment(&key(), number, &whole[..cut]);
        let mut cut_side = TestSide::with(5, far.config, disk);
        let found = cut_side.dictionary.statistics();
        assert_eq!(found.chunks, expected.chunks, "cut at {cut}");
        // What is appended after the cut is found again after the next start.
        let more = noise(6, 20_000);
        TestFlow::new().transfer(&mut near, &mut cut_side, &more);
        let again = restarted(&cut_side, 7);
        let after = again.dictionary.statistics();
        assert!(after.chunks >= expected.chunks + 2, "cut at {cut}");
        assert_eq!(after.damaged_records, 0, "cut at {cut}");
        near.dictionary.clear(None);
    }
}

#[test]
fn garbage_and_other_versions_are_set_aside() {
    let mut disk = MemoryDisk::new();
    *disk.segment(3) = noise(1, 100_000).to_vec();
    *disk.segment(4) = b"TRNKLSEG\xff\xff".to_vec();
    let mut side = TestSide::with(2, roomy(), disk);
    assert_eq!(side.dictionary.statistics().rejected_segments, 2);
    assert!(side.disk.numbers().is_empty());
    let file = noise(5, 100_000);
    TestFlow::new().transfer(&mut TestSide::new(6), &mut side, &file);
    assert_eq!(side.disk.numbers(), [5]);
}

#[test]
fn foreign_dictionary_starts_empty_with_a_count() {
    let mut near = TestSide::new(1);
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    TestFlow::new().transfer(&mut near, &mut far, &noise(3, 500_000));
    let mut disk = far.disk.clone();
    let other = DictionaryKey::new([1; 32]);
    let mut stranger = Dictionary::with_key(roomy(), other, SeededRandom::from_seed(3));
    stranger.open();
    disk.serve(&mut stranger);
    let found = stranger.statistics();
    assert_eq!((found.chunks, found.rejected_segments), (0, 1));
    assert_eq!((found.sealed_segments, found.outdated_segments), (1, 0));
    assert_eq!(disk.bytes(), 0);

    // The version stands in clear behind eight bytes; 1 was not sealed.
    far.disk.segment(1)[9] = 1;
    let again = restarted(&far, 4);
    let found = again.dictionary.statistics();
    assert_eq!((found.chunks, found.rejected_segments), (0, 1));
    assert_eq!((found.sealed_segments, found.outdated_segments), (0, 1));
}

#[test]
fn disk_holds_no_cleartext() {
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = sides::text(3, 300_000);
    TestFlow::new().transfer(&mut TestSide::new(1), &mut far, &file);
    for number in far.disk.numbers() {
        let segment = far.disk.segment(number);
        for start in (0..file.len() - 8).step_by(5_001) {
            let sought = &file[start..start + 8];
            assert!(!segment.windows(8).any(|window| window == sought));
        }
    }
}

#[test]
fn start_from_contents_equals_a_full_scan() {
    let mut near = TestSide::with(1, roomy(), MemoryDisk::new());
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = noise(3, 20 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    write_down(&mut near);
    // The first start closes the segment that was appended to.
    let mut closed = restarted(&near, 3);
    closed.disk.read = 0;
    let mut by_ends = restarted(&closed, 4);
    let stored = by_ends.disk.bytes();
    assert!(by_ends.disk.read < stored / 12, "{}", by_ends.disk.read);
    let mut torn = closed.disk.clone();
    for number in torn.numbers() {
        torn.segment(number).pop();
    }
    let mut by_records = TestSide::with(5, roomy(), torn);
    assert!(by_records.disk.read >= stored - 100);
    let chunks = by_ends.dictionary.statistics().chunks;
    assert_eq!(by_records.dictionary.statistics().chunks, chunks);
    for near in [&mut by_ends, &mut by_records] {
        let wire = TestFlow::new().transfer(near, &mut far, &file);
        assert!(wire <= 40_000, "{wire}");
    }
}

#[test]
fn emptied_peer_dictionary_costs_no_repair() {
    let mut near = TestSide::with(1, roomy(), MemoryDisk::new());
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let slot = near.peer();
    let file = noise(3, 500_000);
    near.dictionary
        .peer_generation(slot, far.dictionary.generation());
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let due = near.dictionary.poll_timeout().expect("a sync is due");
    near.dictionary.handle_timeout(due);
    near.disk.serve(&mut near.dictionary);
    far.dictionary.clear(None);
    let mut again = restarted(&near, 3);
    let slot = again.peer();
    again
        .dictionary
        .peer_generation(slot, far.dictionary.generation());
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, vocab::FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut again, &mut far, 1 << 16);
    assert!(flow.payload() == file);
    assert_eq!(flow.repairs, 0);
}

#[test]
fn disk_cap_evicts_the_oldest_first() {
    let small = config(4, 4, ByteCount::kibibytes(512));
    let mut near = TestSide::new(1);
    let mut far = TestSide::with(2, small, MemoryDisk::new());
    for seed in 0..12 {
        let file = noise(100 + seed, 1_000_000);
        TestFlow::new().transfer(&mut near, &mut far, &file);
        assert!(far.disk.bytes() <= 4 << 20, "{}", far.disk.bytes());
        assert_eq!(far.disk.bytes(), far.dictionary.statistics().disk_bytes);
        assert!(far.dictionary.statistics().memory_bytes <= 4 << 20);
    }
    assert!(far.disk.numbers()[0] > 1);
    assert_eq!(far.dictionary.statistics().disk_faults, 0);
}

#[test]
fn used_chunks_outlive_unused_ones_on_disk() {
    let small = config(1, 8, ByteCount::kibibytes(512));
    let mut near = TestSide::with(1, small, MemoryDisk::new());
    let mut far = TestSide::with(2, small, MemoryDisk::new());
    // More than fits into memory, a little in every segment, and used again and again while three
    // times as much as the disk holds goes by.
    let often = noise(1, 2_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &often.slice(..1));
    let part = |round: usize| often.slice(round % 10 * 200_000..(round % 10 + 1) * 200_000);
    let mut warm = 0;
    for round in 0..60 {
        TestFlow::new().transfer(&mut near, &mut far, &noise(100 + round as u64, 400_000));
        let wire = TestFlow::new().transfer(&mut near, &mut far, &part(round));
        warm += if round >= 30 { wire } else { 0 };
    }
    assert!(far.disk.numbers()[0] > 20);
    // Without a second chance for what is on disk alone, all of it would have come again.
    assert!(warm < 30 * 200_000 / 4, "{warm}");
}

#[test]
fn full_disk_keeps_memory_working_and_is_retried() {
    let mut near = TestSide::new(1);
    let mut disk = MemoryDisk::new();
    disk.capacity = Some(300_000);
    let mut far = TestSide::with(2, roomy(), disk);
    let file = noise(3, 1_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let statistics = far.dictionary.statistics();
    assert!(statistics.disk_faults > 0 && statistics.unwritten_chunks > 0);
    let wire = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(wire <= 2_500, "{wire}");
    far.disk.capacity = None;
    assert!(far.dictionary.poll_timeout().is_some());
    far.dictionary
        .handle_timeout(Time::ZERO + reduce::DISK_RETRY);
    let more = noise(4, 500_000);
    TestFlow::new().transfer(&mut near, &mut far, &more);
    write_down(&mut far);
    let mut again = restarted(&far, 9);
    assert_eq!(again.dictionary.statistics().damaged_records, 0);
    let wire = TestFlow::new().transfer(&mut near, &mut again, &more);
    assert!(wire <= 1_500, "{wire}");
}

#[test]
fn a_broken_disk_is_a_dictionary_in_memory() {
    let mut disk = MemoryDisk::new();
    disk.broken = true;
    let mut far = TestSide::with(2, roomy(), disk);
    let mut near = TestSide::new(1);
    let file = noise(3, 1_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(TestFlow::new().transfer(&mut near, &mut far, &file) <= 2_500);
    assert!(far.dictionary.statistics().disk_faults > 0);
}

#[test]
fn clearing_empties_memory_and_disk() {
    let mut far = TestSide::with(2, roomy(), MemoryDisk::new());
    let file = noise(3, 1_000_000);
    TestFlow::new().transfer(&mut TestSide::new(1), &mut far, &file);
    let generation = far.dictionary.generation();
    far.dictionary.clear(None);
    far.disk.serve(&mut far.dictionary);
    assert_ne!(far.dictionary.generation(), generation);
    assert_eq!(far.dictionary.statistics().chunks, 0);
    assert_eq!(far.disk.bytes(), 0);
}

/// Event at the far side between two transfers.
#[derive(Clone, Copy, Debug)]
enum FarSideEvent {
    Nothing,
    Restart,
    Clear,
    Noise,
    Full,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_whatever_happens_to_the_dictionaries(
        steps in prop::collection::vec((0..6_u64, 0..400_000_usize, 1..400_000_usize, prop_oneof![
            Just(FarSideEvent::Nothing),
            Just(FarSideEvent::Restart),
            Just(FarSideEvent::Clear),
            Just(FarSideEvent::Noise),
            Just(FarSideEvent::Full),
        ]), 1..10),
    ) {
        let tiny = config(1, 2, ByteCount::kibibytes(128));
        let mut near = TestSide::with(1, tiny, MemoryDisk::new());
        let mut far = TestSide::with(2, tiny, MemoryDisk::new());
        let mut random = SeededRandom::from_seed(3);
        for (number, (seed, skip, length, event)) in steps.into_iter().enumerate() {
            let file = noise(seed, 800_000).slice(skip..skip + length);
            let mut flow = TestFlow::new();
            let now = Time::from_nanos(number as u64 * 20_000_000_000);
            for piece in 0..file.len().div_ceil(50_000) {
                let end = file.len().min((piece + 1) * 50_000);
                flow.encoder.push(now, vocab::FlowSegment::payload(file.slice(piece * 50_000..end)));
            }
            flow.encoder.finish();
            flow.exchange(now, &mut near, &mut far, 1 + random.below(100_000) as usize);
            prop_assert!(flow.payload() == file);
            prop_assert!(flow.decoder.is_at_boundary());
            prop_assert!(far.dictionary.statistics().memory_bytes <= 1 << 20);
            prop_assert!(far.disk.bytes() <= 2 << 20);
            far.disk.capacity = None;
            match event {
                FarSideEvent::Nothing => {}
                FarSideEvent::Restart => far = restarted(&far, 10 + number as u64),
                FarSideEvent::Clear => far.dictionary.clear(None),
                FarSideEvent::Noise => {
                    for number in far.disk.numbers() {
                        let segment = far.disk.segment(number);
                        if segment.len() > 8 {
                            let at = random.below(segment.len() as u64 - 8) as usize;
                            random.fill(&mut segment[at..at + 8]);
                        }
                    }
                }
                FarSideEvent::Full => far.disk.capacity = Some(far.disk.bytes()),
            }
        }
    }
}
