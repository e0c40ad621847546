//! Round-trip tests: an encoder's input comes out of the decoder at the other side, however it is
//! cut.

mod sides;

use bytes::Bytes;
use proptest::prelude::*;
use reduce::{Dictionary, DictionaryConfig, EncoderConfig, FlowEncoder, PeerSlot, StoragePolicy};
use sides::{TestFlow, TestSide, noise, text};
use vocab::{ByteCount, FlowSegment, SeededRandom, SegmentKind, Time};

/// Joins neighbouring payload and control segments: where they are cut carries no meaning.
fn joined(segments: &[FlowSegment]) -> Vec<(SegmentKind, Vec<u8>)> {
    let mut out: Vec<(SegmentKind, Vec<u8>)> = Vec::new();
    for segment in segments {
        match out.last_mut() {
            Some((kind, bytes)) if *kind == segment.kind && *kind != SegmentKind::Frame => {
                bytes.extend_from_slice(&segment.bytes);
            }
            _ => out.push((segment.kind, segment.bytes.to_vec())),
        }
    }
    out
}

#[test]
fn warm_two_megabytes_cost_at_most_four_kilobytes() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 2_000_000);
    let cold = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(cold < 2_000_000 + 2_000, "{cold}");
    let warm = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(warm <= 4_000, "{warm}");
    // The other direction profits as well: the near side holds what it sent.
    let back = TestFlow::new().transfer(&mut far, &mut near, &file);
    assert!(back <= 4_000, "{back}");
}

#[test]
fn inserted_byte_costs_a_delta_only() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(4, 2_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut edited = file.to_vec();
    for at in (0..30).rev() {
        edited.insert(30_000 + at * 65_000, 7);
    }
    let warm = TestFlow::new().transfer(&mut near, &mut far, &edited.into());
    assert!(warm <= 12_000, "{warm}");
}

#[test]
fn cold_text_matches_zstd_in_blocks() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = text(5, 2_000_000);
    let blocks: usize = file
        .chunks(64 * 1024)
        .map(|block| {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(block.len()));
            zstd_safe::compress(&mut out, block, 3).unwrap()
        })
        .sum();
    let cold = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(cold * 100 <= blocks * 102, "{cold} against {blocks}");
}

/// A record is delivered when all of it is there, so the first record of an answer decides when
/// its first byte is.
#[test]
fn answers_start_with_short_records() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let mut flow = TestFlow::new();
    let mut sizes = |flow: &mut TestFlow, now: u64, bytes: usize| -> Vec<usize> {
        let now = Time::from_nanos(now * 1_000_000);
        flow.encoder
            .push(now, FlowSegment::payload(noise(now.as_nanos(), bytes)));
        let mut sizes = Vec::new();
        while let Some(record) = flow
            .encoder
            .poll_encoded(now, &mut near.dictionary, 1 << 20)
        {
            sizes.push(record.len());
            flow.decoder.push(record);
        }
        flow.receive(&mut far);
        sizes
    };
    let answer = sizes(&mut flow, 0, 64 * 1024);
    assert!(answer[0] < 17_000, "{answer:?}");
    assert!(answer.len() <= 4, "{answer:?}");
    let bulk = sizes(&mut flow, 1, 1 << 20);
    assert!(bulk[4..].iter().any(|size| *size > 120_000), "{bulk:?}");
    // The next answer, after a pause in which the tail left, begins anew.
    sizes(&mut flow, 10, 0);
    let next = sizes(&mut flow, 200, 64 * 1024);
    assert!(next[0] < 17_000, "{next:?}");
}

/// New data is not retained until it is acknowledged: none of it can be requested again.
#[test]
fn records_without_references_are_not_retained() {
    for storing in [StoragePolicy::Remember, StoragePolicy::Never] {
        let config = EncoderConfig {
            retained: ByteCount::mebibytes(1),
            storing,
            ..EncoderConfig::default()
        };
        let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
        let mut flow = TestFlow::with(config);
        let file = noise(11, 4 << 20);
        let mut sent = 0;
        for piece in file.chunks(1 << 16) {
            let segment = FlowSegment::payload(Bytes::copy_from_slice(piece));
            flow.encoder.push(Time::ZERO, segment);
            while let Some(bytes) =
                flow.encoder
                    .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16)
            {
                sent += bytes.len();
                flow.decoder.push(bytes);
            }
        }
        assert!(sent > 3 << 20, "{sent} with {storing:?}");
        assert!(flow.encoder.retained() < 1 << 16, "{storing:?}");
        flow.encoder.finish();
        flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 16);
        flow.receive(&mut far);
        assert!(flow.payload() == file, "{storing:?}");
    }
}

#[test]
fn a_small_write_leaves_at_once() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let mut flow = TestFlow::new();
    for key in 0..50_u8 {
        let now = Time::from_nanos(u64::from(key) * 1_000_000);
        let segment = FlowSegment::payload(Bytes::copy_from_slice(&[key; 20]));
        flow.encoder.push(now, segment);
        let bytes = flow
            .encoder
            .poll_encoded(now, &mut near.dictionary, 1 << 16);
        flow.decoder.push(bytes.expect("it leaves at once"));
        assert_eq!(flow.encoder.pending(), 0);
        assert_eq!(flow.encoder.poll_timeout(), None);
        flow.receive(&mut far);
        assert_eq!(flow.received_bytes(), 20 * (usize::from(key) + 1));
    }
}

#[test]
fn a_bulk_tail_waits_three_milliseconds_at_most() {
    let mut near = TestSide::new(1);
    let mut flow = TestFlow::new();
    let now = Time::from_nanos(5_000_000_000);
    flow.encoder
        .push(now, FlowSegment::payload(noise(6, 100_000)));
    while flow
        .encoder
        .poll_encoded(now, &mut near.dictionary, 1 << 20)
        .is_some()
    {}
    let held = flow.encoder.pending();
    assert!(held > 0 && held < 65_536);
    let until = flow.encoder.poll_timeout().expect("a timer runs");
    assert!(until.since(now) <= reduce::TAIL_HOLD);
    assert!(
        flow.encoder
            .poll_encoded(until, &mut near.dictionary, 1 << 20)
            .is_some()
    );
    assert_eq!(flow.encoder.pending(), 0);
    assert_eq!(flow.encoder.poll_timeout(), None);
}

#[test]
fn pending_counts_the_rest_until_the_end() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let mut flow = TestFlow::new();
    let now = Time::from_nanos(5_000_000_000);
    let file = noise(6, 100_020);
    flow.encoder.push(now, FlowSegment::payload(file.clone()));
    flow.encoder.push(now, FlowSegment::frame(Bytes::new()));
    flow.encoder.finish();
    while flow.encoder.pending() > 0 {
        let bytes = flow.encoder.poll_encoded(now, &mut near.dictionary, 1000);
        flow.decoder.push(bytes.expect("something is pending"));
    }
    assert!(
        flow.encoder
            .poll_encoded(now, &mut near.dictionary, 1000)
            .is_none()
    );
    flow.receive(&mut far);
    assert_eq!(flow.payload(), file);
    assert_eq!(
        flow.received.last().map(|segment| segment.kind),
        Some(SegmentKind::Frame)
    );
}

#[test]
fn warm_tail_is_sent_at_once_as_range() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(7, 300_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    let now = Time::from_nanos(7_000_000_000);
    flow.encoder
        .push(now, FlowSegment::payload(file.slice(..100_000)));
    let mut wire = 0;
    while let Some(bytes) = flow
        .encoder
        .poll_encoded(now, &mut near.dictionary, 1 << 20)
    {
        wire += bytes.len();
        flow.decoder.push(bytes);
    }
    assert_eq!(flow.encoder.pending(), 0);
    assert!(wire < 300, "{wire}");
    flow.receive(&mut far);
    assert_eq!(flow.received_bytes(), 100_000);
}

#[test]
fn control_does_not_break_the_payloads_chunks() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(8, 1_000_000);
    let mut send = |period: usize| {
        let mut flow = TestFlow::new();
        for piece in file.chunks(period) {
            flow.encoder.push(
                Time::ZERO,
                FlowSegment::control(Bytes::from_static(&[9; 64])),
            );
            flow.encoder.push(
                Time::ZERO,
                FlowSegment::payload(Bytes::copy_from_slice(piece)),
            );
        }
        flow.encoder.finish();
        let wire = flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 16);
        let payload = flow
            .received
            .iter()
            .filter(|segment| segment.kind == SegmentKind::Payload);
        let payload: Vec<u8> = payload.flat_map(|segment| segment.bytes.to_vec()).collect();
        assert!(payload == file);
        wire
    };
    send(1_000_000);
    let warm = send(10_007);
    assert!(warm < 10_000, "{warm}");
}

#[test]
fn payload_that_may_not_be_stored_is_not() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let config = EncoderConfig {
        storing: StoragePolicy::Never,
        ..EncoderConfig::default()
    };
    let file = text(9, 200_000);
    for _ in 0..2 {
        let wire = TestFlow::with(config).transfer(&mut near, &mut far, &file);
        assert!(wire > 10_000, "{wire}");
    }
    assert_eq!(near.dictionary.statistics().chunks, 0);
    assert_eq!(far.dictionary.statistics().chunks, 0);
}

#[test]
fn retained_records_are_bounded_and_freed() {
    let mut near = TestSide::new(1);
    let config = EncoderConfig {
        retained: ByteCount::mebibytes(1),
        ..EncoderConfig::default()
    };
    let mut flow = TestFlow::with(config);
    flow.encoder
        .push(Time::ZERO, FlowSegment::payload(text(10, 3 << 20)));
    flow.encoder.finish();
    let mut wire = 0;
    while let Some(bytes) = flow
        .encoder
        .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16)
    {
        wire += bytes.len() as u64;
    }
    assert!(flow.encoder.retained() >= 1 << 20);
    assert!(flow.encoder.retained() <= (1 << 20) + reduce::MAX_RECORD_RAW);
    flow.encoder.acknowledged(wire, &mut near.dictionary);
    assert_eq!(flow.encoder.retained(), 0);
    assert!(
        flow.encoder
            .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16)
            .is_some()
    );
}

#[test]
fn unacknowledged_chunks_of_other_flows_are_not_referenced() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(11, 200_000);
    let mut first = TestFlow::new();
    first
        .encoder
        .push(Time::ZERO, FlowSegment::payload(file.clone()));
    first.encoder.finish();
    while first
        .encoder
        .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16)
        .is_some()
    {}
    // The first flow's bytes never arrive; the second must not depend on them.
    let wire = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(wire > 200_000);
    // The same flow may refer to what it has sent itself.
    let mut twice = file.to_vec();
    twice.extend_from_slice(&file);
    let mut fresh = TestSide::new(3);
    let wire = TestFlow::new().transfer(&mut fresh, &mut far, &twice.into());
    assert!(wire < 230_000, "{wire}");
}

fn segments() -> impl Strategy<Value = Vec<FlowSegment>> {
    let kind = prop_oneof![
        6 => Just(SegmentKind::Payload),
        1 => Just(SegmentKind::Control),
        1 => Just(SegmentKind::Frame),
    ];
    let length = prop_oneof![1..100_usize, 1_000..30_000_usize, 100_000..200_000_usize];
    let one = (kind, 0..4_u64, 0..50_000_usize, length);
    prop::collection::vec(one, 1..12).prop_map(|parts| {
        let part = |(kind, seed, skip, length)| {
            // Few seeds, so that content comes again at other places.
            let source = if seed % 2 == 0 {
                noise(seed, 300_000)
            } else {
                text(seed, 300_000)
            };
            FlowSegment {
                kind,
                bytes: source.slice(skip..skip + length),
            }
        };
        parts.into_iter().map(part).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_whatever_the_splits(flows in prop::collection::vec(segments(), 1..4), seed: u64) {
        let (mut near, mut far) = (TestSide::new(seed), TestSide::new(seed ^ 1));
        let mut random = SeededRandom::from_seed(seed);
        for segments in flows {
            let mut flow = TestFlow::new();
            let mut now = Time::ZERO;
            for segment in &segments {
                flow.encoder.push(now, segment.clone());
                now += std::time::Duration::from_micros(random.below(5_000));
                if random.below(2) == 0 {
                    flow.exchange(now, &mut near, &mut far, 1 + random.below(200_000) as usize);
                }
            }
            flow.encoder.finish();
            flow.exchange(now, &mut near, &mut far, 70_000);
            prop_assert!(joined(&segments) == joined(&flow.received));
            prop_assert!(flow.decoder.is_at_boundary());
            prop_assert_eq!(flow.encoder.retained(), 0);
            prop_assert_eq!(flow.encoder.statistics().repairs, 0);
        }
    }
}

/// A record that is longer than the credit that is left could not be sent to its end.
#[test]
fn a_record_is_no_longer_than_its_limit() {
    /// Size of a record's head and its operations, in bytes.
    const HEAD: usize = 256;
    let mut dictionary = Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(1));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), PeerSlot::UNTRACKED);
    let now = Time::from_nanos(1);
    encoder.push(now, FlowSegment::payload(noise(1, 200_000)));
    encoder.finish();
    let mut total = 0;
    for limit in [4_096, 500, 64 << 10].into_iter().cycle() {
        encoder.limit_record(limit);
        let Some(first) = encoder.poll_encoded(now, &mut dictionary, 1_000) else {
            break;
        };
        let rest = encoder.rest_of_record().unwrap_or_default();
        let length = first.len() + rest.len();
        assert!(length <= limit + HEAD, "{length} bytes, limit {limit}");
        total += length;
    }
    assert!(total >= 200_000, "{total} bytes");
}
