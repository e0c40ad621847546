//! A whole test: path MTU, RTT, bottleneck, window walk, many connections, both directions, diagnosis.

use std::time::Duration;

use emulate::{DirectionConfig, LineConfig, LinkConfig, QueueConfig, QueueLimit};
use measure::diagnosis::{DiagnosisCause, diagnose_test};
use measure::procedure::{LimitedBy, MtuOutcome};
use measure::turn_up::{FinishedTest, RunPurpose, TurnUpVerdict};
use measure::wire::TestDirection;
use vocab::Bitrate;

use crate::{VirtualTest, profile};

/// A line with this rate, delay and queue in packets.
fn line(rate: u64, delay: Duration, queue_packets: u64) -> DirectionConfig {
    DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(rate)),
        queue: QueueConfig::from(QueueLimit::packets(queue_packets)),
        delay,
        ..DirectionConfig::default()
    }
}

/// Test of 20 Mbit/s up and 40 Mbit/s down over 20 ms, with a queue of 50 packets, that carries
/// packets up to 1,400 bytes up.
fn asymmetric_circuit() -> FinishedTest {
    let delay = Duration::from_millis(10);
    let link = LinkConfig {
        forward: line(20_000_000, delay, 50),
        back: line(40_000_000, delay, 50),
        seed: 7,
    };
    let mut profile = profile(&TestDirection::BOTH, Duration::from_secs(3), 200_000_000);
    profile.walk_percent = vec![25, 50, 100];
    profile.connections = 4;
    VirtualTest::new(link, [1_400, 1_500], profile).run()
}

/// A path that drops UDP is tested with TCP alone.
#[test]
fn firewall_without_udp_leaves_tcp_alone() {
    let link = LinkConfig::symmetric(line(20_000_000, Duration::from_millis(10), 50), 7);
    let mut profile = profile(&[TestDirection::Up], Duration::from_secs(3), 200_000_000);
    profile.walk_percent = vec![50];
    let finished = VirtualTest::new(link, [1_500; 2], profile)
        .without_udp()
        .run();
    let turn_up = &finished.turn_up;
    assert!(turn_up.is_tcp_alone());
    assert!(turn_up.remarks()[0].contains("allow UDP port 6349 to the server"));
    let reached = turn_up
        .reached(TestDirection::Up)
        .expect("TCP gets through");
    let share = reached.bits_per_second() as f64 / (20e6 * 1_448.0 / 1_500.0);
    // The counters advance by two segments at a time, and 5,000 segments are counted.
    assert!((0.9..1.001).contains(&share), "{share}");
    assert_eq!(turn_up.known(TestDirection::Up).runs.len(), 3);
}

#[test]
fn whole_test_runs_in_virtual_time() {
    let finished = asymmetric_circuit();
    let turn_up = &finished.turn_up;
    assert_eq!(turn_up.verdict(), TurnUpVerdict::Passed(0));
    for (direction, mtu, rate) in [
        (TestDirection::Up, 1_400, 20e6),
        (TestDirection::Down, 1_500, 40e6),
    ] {
        let known = turn_up.known(direction);
        assert_eq!(
            known.path_mtu,
            Some(MtuOutcome::Found { mtu, tried: 1_500 })
        );
        let found = known.bottleneck.as_ref().expect("the rate was measured");
        assert_eq!(found.limited_by, LimitedBy::Path);
        let error = found.rate.bits_per_second() as f64 / rate - 1.0;
        assert!(error.abs() < 1e-3, "{direction:?}: {error}");
        let loss = known.loss.expect("the loss was counted");
        assert_eq!(loss.lost, 0);
        let purposes: Vec<RunPurpose> = known.runs.iter().map(|run| run.plan.purpose).collect();
        assert_eq!(
            purposes,
            [
                RunPurpose::Walk(25),
                RunPurpose::Walk(50),
                RunPurpose::Walk(100),
                RunPurpose::Many,
                RunPurpose::Together
            ]
        );
        for run in &known.runs {
            let figures = run.figures.as_ref().expect("the run was measured");
            let ratio = figures.transfer_time_ratio.expect("the ideal is known");
            // The other direction's data delays acknowledgements by up to a full queue.
            let most = match run.plan.purpose {
                RunPurpose::Together => 2.0,
                _ => 1.2,
            };
            assert!((0.99..most).contains(&ratio), "{:?}: {ratio}", run.plan);
        }
    }
    // Both delays, and a probe of 84 bytes on both lines.
    let baseline = turn_up.round_trip().expect("probes were answered");
    let on_lines = 84.0 * 8.0 / 20e6 + 84.0 * 8.0 / 40e6;
    let error = baseline.as_secs_f64() - 0.02 - on_lines;
    assert!(error.abs() < 1e-6, "{baseline:?}");
    let causes: Vec<(TestDirection, DiagnosisCause)> = diagnose_test(&finished)
        .into_iter()
        .map(|(direction, finding)| (direction, finding.cause))
        .collect();
    assert!(
        causes.contains(&(TestDirection::Up, DiagnosisCause::MtuBlackHole)),
        "{causes:?}"
    );
    for direction in TestDirection::BOTH {
        assert!(
            causes.contains(&(direction, DiagnosisCause::DropTailQueue)),
            "{causes:?}"
        );
    }
}

#[test]
fn same_seed_gives_the_same_report() {
    let reports: Vec<String> = (0..2)
        .map(|_| {
            let finished = asymmetric_circuit();
            format!(
                "{:?} {:?}",
                finished.turn_up.known(TestDirection::Up),
                finished.took
            )
        })
        .collect();
    assert_eq!(reports[0], reports[1]);
}
