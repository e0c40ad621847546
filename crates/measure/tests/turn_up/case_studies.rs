//! The two published case studies of RFC 6349 testers, with the settings of `trunkline bench turn-up`
//! and the figures that it measured over sockets (docs/guides/turn-up.md).

use std::time::Duration;

use emulate::{DirectionConfig, LineConfig, LinkConfig, QueueConfig};
use measure::diagnosis::{DiagnosisCause, DiagnosisFinding, diagnose_test};
use measure::turn_up::FinishedTest;
use measure::wire::TestDirection;
use vocab::{Bitrate, ByteCount};

use crate::{VirtualTest, profile};

/// Windows of the first case study, and the throughput of a real test in Mbit/s.
const WINDOWS: [(u64, f64); 4] = [
    (32_000, 12.666),
    (64_000, 25.320),
    (128_000, 50.618),
    (256_000, 94.055),
];
/// Buffers of the second case study that hold a few packets, and the throughput of real tests in
/// Mbit/s, the mean of two.
const SHALLOW_BUFFERS: [(u64, f64); 2] = [(7_500, 67.3), (15_000, 105.45)];
/// Buffer of two packets, and the throughput of real tests on an idle machine in Mbit/s.
const TWO_PACKETS_BUFFER: (u64, f64) = (3_000, 17.75);
/// Buffer of one BDP, and the throughput of real tests in Mbit/s.
const BDP_BUFFER: (u64, f64) = (1_875_000, 289.4);
/// Bytes of a full packet.
const PACKET: u64 = 1_500;
/// Greatest share by which throughput may differ from a real test's.
const AGREES: f64 = 0.01;
/// ... behind a buffer of a few packets. Real tests differ from each other by as much.
const AGREES_WITHOUT_BUFFER: f64 = 0.1;
/// ... behind a buffer of two packets, where a fifth of the packets is lost and small delays of the
/// hosts decide about each loss. The simulated hosts have none and lose more packets than the real
/// ones. A real test on a loaded machine had 11.3 Mbit/s.
const AGREES_WITH_TWO_PACKETS: f64 = 0.5;
/// Duration of streams and runs in the bench.
const DURATION: Duration = Duration::from_secs(5);

/// Throughput of a direction's runs in Mbit/s, and the causes that were found.
fn figures(finished: &FinishedTest) -> (Vec<f64>, Vec<DiagnosisFinding>) {
    let runs = finished.turn_up.known(TestDirection::Up).runs.iter();
    let figures = runs.filter_map(|run| run.figures.as_ref());
    let throughput = figures.map(|figures| figures.throughput.bits_per_second() as f64 / 1e6);
    let found = diagnose_test(finished).into_iter();
    (
        throughput.collect(),
        found.map(|(_, finding)| finding).collect(),
    )
}

#[test]
fn window_limited_host_agrees_with_a_real_test() {
    let way = DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(100_000_000)),
        overhead: ByteCount::new(38),
        delay: Duration::from_millis(10),
        queue: QueueConfig::from(ByteCount::new(400_000)),
        ..DirectionConfig::default()
    };
    let mut profile = profile(&[TestDirection::Up], DURATION, 200_000_000);
    profile.windows = WINDOWS.map(|(window, _)| ByteCount::new(window)).to_vec();
    let link = LinkConfig::symmetric(way, 1);
    let finished = VirtualTest::new(link, [1_500; 2], profile).run();
    let (throughput, found) = figures(&finished);
    assert_eq!(throughput.len(), WINDOWS.len());
    for ((window, real), found) in WINDOWS.into_iter().zip(throughput) {
        let error = found / real - 1.0;
        assert!(
            error.abs() < AGREES,
            "{window} bytes: {found} Mbit/s, {error}"
        );
    }
    let causes: Vec<DiagnosisCause> = found.iter().map(|finding| finding.cause).collect();
    assert_eq!(causes, [DiagnosisCause::HostWindow]);
}

/// Throughput of 30 connections behind a buffer in Mbit/s, and the one cause that was found.
fn behind(buffer: u64) -> (f64, DiagnosisFinding) {
    let way = DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(300_000_000)),
        delay: Duration::from_millis(25),
        queue: QueueConfig::from(ByteCount::new(buffer)),
        ..DirectionConfig::default()
    };
    let mut profile = profile(&[TestDirection::Up], DURATION, 450_000_000);
    profile.connections = 30;
    profile.connection_window = Some(ByteCount::new(64_000));
    let link = LinkConfig::symmetric(way, 1);
    let finished = VirtualTest::new(link, [1_500; 2], profile).run();
    let (throughput, found) = figures(&finished);
    let ([throughput], [finding]) = (&throughput[..], &found[..]) else {
        panic!("{buffer} bytes: {throughput:?}, {found:?}");
    };
    (*throughput, finding.clone())
}

/// Size of the buffer that a finding names.
fn named_buffer(finding: &DiagnosisFinding) -> u64 {
    finding.parameters.queue.expect("its size is told").bytes()
}

/// Measures behind a shallow buffer; returns the relative error of the throughput.
fn error_behind_shallow_buffer((buffer, real): (u64, f64)) -> f64 {
    let (throughput, found) = behind(buffer);
    assert_eq!(found.cause, DiagnosisCause::ShallowBuffer);
    let named = named_buffer(&found);
    assert!(named.abs_diff(buffer) <= PACKET, "{buffer} bytes: {named}");
    throughput / real - 1.0
}

#[test]
fn shallow_buffer_is_found_as_in_a_real_test() {
    let errors = SHALLOW_BUFFERS.map(error_behind_shallow_buffer);
    let is_near = |error: &f64| error.abs() < AGREES_WITHOUT_BUFFER;
    assert!(errors.iter().all(is_near), "{errors:?}");
}

#[test]
fn buffer_of_two_packets_is_found() {
    let error = error_behind_shallow_buffer(TWO_PACKETS_BUFFER);
    assert!(error.abs() < AGREES_WITH_TWO_PACKETS, "{error}");
}

#[test]
fn deep_buffer_agrees_with_a_real_test() {
    let (buffer, real) = BDP_BUFFER;
    let (throughput, found) = behind(buffer);
    assert_eq!(found.cause, DiagnosisCause::DropTailQueue);
    let named = named_buffer(&found);
    assert!(named.abs_diff(buffer) <= PACKET, "{named}");
    let error = throughput / real - 1.0;
    assert!(error.abs() < AGREES, "{throughput} Mbit/s, {error}");
}
