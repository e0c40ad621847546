//! Bulk flows are compressed against what they sent before, within what either side can keep.

mod sides;

use reduce::{EncoderConfig, MAX_DECODING_WINDOWS, MAX_ENCODING_WINDOWS};
use sides::{TestFlow, TestSide, text};
use vocab::{ByteCount, FlowSegment, Time};

#[test]
fn cold_text_matches_zstd_over_the_whole() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = text(5, 4_000_000);
    let mut whole = Vec::with_capacity(zstd_safe::compress_bound(file.len()));
    let whole = zstd_safe::compress(&mut whole, &file, 3).expect("room enough");
    let mut flow = TestFlow::new();
    let mut cold = 0;
    for piece in 0..file.len().div_ceil(128 * 1024) {
        let range = piece * 128 * 1024..file.len().min((piece + 1) * 128 * 1024);
        let segment = FlowSegment::payload(file.slice(range));
        flow.encoder.push(Time::ZERO, segment);
        cold += flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 17);
    }
    flow.encoder.finish();
    cold += flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 17);
    assert!(flow.payload() == file);
    assert!(cold <= whole, "{cold} against {whole}");
}

/// Two nodes have eight bulk flows each to a third, which cannot keep that many windows.
#[test]
fn lost_decoder_window_causes_finite_repairs() {
    let (mut one, mut two, mut far) = (TestSide::new(1), TestSide::new(2), TestSide::new(3));
    const { assert!(2 * MAX_ENCODING_WINDOWS > MAX_DECODING_WINDOWS) };
    let config = EncoderConfig {
        record: ByteCount::kibibytes(16),
        ..EncoderConfig::default()
    };
    let mut flows: Vec<TestFlow> = (0..2 * MAX_ENCODING_WINDOWS)
        .map(|_| TestFlow::with(config))
        .collect();
    let files: Vec<_> = (0..flows.len() as u64)
        .map(|seed| text(seed, 160 * 1024))
        .collect();
    for step in 0..10 {
        for (number, (flow, file)) in flows.iter_mut().zip(&files).enumerate() {
            let near = if number % 2 == 0 { &mut one } else { &mut two };
            let piece = file.slice(step * 16 * 1024..(step + 1) * 16 * 1024);
            flow.encoder.push(Time::ZERO, FlowSegment::payload(piece));
            flow.exchange(Time::ZERO, near, &mut far, 1 << 16);
        }
    }
    let mut repairs = 0;
    for (number, (flow, file)) in flows.iter_mut().zip(&files).enumerate() {
        let near = if number % 2 == 0 { &mut one } else { &mut two };
        flow.encoder.finish();
        flow.exchange(Time::ZERO, near, &mut far, 1 << 16);
        assert!(flow.payload() == *file, "flow {number}");
        assert!(flow.repairs <= 2, "flow {number}: {}", flow.repairs);
        repairs += flow.repairs;
    }
    assert!(
        repairs > 0,
        "all windows could be kept: the test tests nothing"
    );
}
