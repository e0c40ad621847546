//! Tests of the diagnosis of a whole test.

use std::time::Duration;

use crate::procedure::{RttOutcome, StreamPlan};
use crate::tcp_info::TcpInfo;
use crate::turn_up::{RunPlan, TestProfile, TestThresholds, TurnUpTask};
use crate::wire::{DatagramArrival, RunSample};

use super::*;

/// A test over 100 Mbit/s and 20 ms by a host that sends no faster than `host`, with runs that
/// were always limited by their windows.
fn window_limited(host: u64, windows: &[u64], walk: &[u64]) -> FinishedTest {
    tested(windows, walk, |plan| sent(plan, host))
}

/// A test whose streams have the results of `carry`.
fn tested(
    windows: &[u64],
    walk: &[u64],
    carry: impl Fn(StreamPlan) -> StreamRecord,
) -> FinishedTest {
    let mut turn_up = TurnUp::new(TestProfile {
        directions: vec![TestDirection::Up],
        walk_percent: walk.to_vec(),
        windows: windows.iter().copied().map(ByteCount::new).collect(),
        connections: 1,
        connection_window: None,
        duration: Duration::from_secs(4),
        max_rate: Bitrate::from_bits_per_second(1_000_000_000),
        tcp_headers: 40,
        target: None,
        thresholds: TestThresholds::default(),
    });
    let mut runs = Vec::new();
    loop {
        match turn_up.next_task() {
            TurnUpTask::PathMtu(_) => turn_up.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => turn_up.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(20); 100],
                sent: 100,
            }),
            TurnUpTask::Stream(_, plan) => turn_up.stream(carry(plan)),
            TurnUpTask::Run(plan) => {
                let raw = held_back(plan);
                let ideal = turn_up.ideal(TestDirection::Up).unwrap();
                turn_up.run([raw.figures(&ideal), None]);
                runs.push(raw);
            }
            TurnUpTask::Done => break,
        }
    }
    FinishedTest {
        turn_up,
        runs,
        server: "192.0.2.1:6349".parse().unwrap(),
        local: "192.0.2.2:40000".parse().unwrap(),
        hosts: Vec::new(),
        interface_mtu: 1_500,
        took: Duration::from_secs(60),
    }
}

/// A stream over a line of 100 Mbit/s with room for everything, by a host that keeps no more
/// than `host`.
fn sent(plan: StreamPlan, host: u64) -> StreamRecord {
    const LINE: u64 = 100_000_000;
    let bits = u64::from(plan.ip_bytes) * 8_000_000_000;
    let gap = bits / plan.rate.bits_per_second().min(host);
    let line = bits / LINE;
    let sent = plan.duration.as_nanos() as u64 / gap;
    StreamRecord {
        plan,
        sent,
        arrivals: (0..sent)
            .map(|number| DatagramArrival {
                number,
                sent_ns: number * gap,
                arrived_ns: number * gap.max(line) + 10_000_000,
            })
            .collect(),
        left_ns: Vec::new(),
        no_room: 0,
    }
}

/// A run that was always limited by its window, with one window per round trip.
fn held_back(plan: RunPlan) -> RawRun {
    let window = plan.windows[0];
    let samples: Vec<RunSample> = (0..=40_u64)
        .map(|tenth| RunSample {
            connection: 0,
            at: Duration::from_millis(100 * tenth),
            info: TcpInfo {
                // 20 ms go five times into a tenth of a second.
                bytes_acknowledged: ByteCount::new(tenth * 5 * window.bytes()),
                bytes_sent: ByteCount::new(tenth * 5 * window.bytes()),
                rtt: Duration::from_millis(20),
                rtt_min: Duration::from_millis(20),
                congestion_window: 1_000,
                busy: Duration::from_millis(100 * tenth),
                receive_window_limited: Duration::from_millis(100 * tenth),
                peer_window: Some(window),
                ..TcpInfo::default()
            },
        })
        .collect();
    RawRun {
        plan,
        direction: TestDirection::Up,
        seconds: crate::run::seconds(&samples),
        samples,
        reads: Vec::new(),
        congestion_control: "cubic".to_owned(),
        segments_retransmitted: None,
        busy_permille: [0; 2],
    }
}

fn causes(finished: &FinishedTest) -> Vec<DiagnosisCause> {
    let found = diagnose_test(finished).into_iter();
    found.map(|(_, finding)| finding.cause).collect()
}

/// 150 % of a slow host's rate is less than the path's BDP; that is not a fault of the hosts'
/// windows.
#[test]
fn testers_own_windows_are_not_the_hosts() {
    let slow = window_limited(50_000_000, &[], &[150]);
    let found = slow.turn_up.known(TestDirection::Up).bottleneck.as_ref();
    assert_eq!(found.unwrap().limited_by, LimitedBy::Sender);
    assert_eq!(causes(&slow), [DiagnosisCause::TestHostLimited]);
}

/// A stream faster than 100 Mbit/s over the line of which one in `one_in` packets is missing;
/// `no_room` of these found no room.
fn missing(plan: StreamPlan, one_in: u64, no_room: impl Fn(u64) -> u64) -> StreamRecord {
    let mut record = sent(plan, u64::MAX);
    if plan.rate > Bitrate::from_bits_per_second(100_000_000) {
        // By a hash of its number: losses in rhythm are nobody's chance.
        let is_missing = |number: u64| {
            let mixed = (number ^ (number >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 33).is_multiple_of(one_in)
        };
        record.arrivals.retain(|one| !is_missing(one.number));
        record.no_room = no_room(record.sent - record.arrivals.len() as u64);
    }
    record
}

fn of_socket(finished: &FinishedTest) -> Vec<String> {
    let limited = diagnose_test(finished).into_iter();
    limited
        .filter(|(_, finding)| finding.cause == DiagnosisCause::TestHostLimited)
        .flat_map(|(_, finding)| finding.evidence)
        .filter(|line| line.contains("found no room in the tester's socket"))
        .collect()
}

#[test]
fn packets_without_room_are_no_path_loss() {
    let all = tested(&[], &[150], |plan| missing(plan, 30, |missing| missing));
    let found = all.turn_up.known(TestDirection::Up).bottleneck.as_ref();
    assert_eq!(found.unwrap().limited_by, LimitedBy::Receiver);
    assert_eq!(causes(&all), [DiagnosisCause::TestHostLimited]);
    // Both tries.
    let said = of_socket(&all);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("(the server's host)"), "{said:?}");
    // The same losses, of the path.
    let none = tested(&[], &[150], |plan| missing(plan, 30, |_| 0));
    let found = causes(&none);
    let of_path = |cause: &DiagnosisCause| {
        !matches!(
            cause,
            DiagnosisCause::None | DiagnosisCause::Unknown | DiagnosisCause::TestHostLimited
        )
    };
    assert!(found.iter().all(of_path), "{found:?}");
    assert!(of_socket(&none).is_empty());
    // A few of them without room, which change nothing.
    let few = tested(&[], &[150], |plan| {
        missing(plan, 30, |missing| missing / 101)
    });
    assert_eq!(causes(&few), causes(&none));
}

#[test]
fn stream_taken_in_at_full_rate_is_used() {
    let measured = std::cell::Cell::new(0);
    let once = tested(&[], &[150], |plan| {
        measured.set(measured.get() + u32::from(plan.duration == Duration::from_secs(4)));
        match measured.get() {
            1 => missing(plan, 30, |missing| missing),
            _ => sent(plan, u64::MAX),
        }
    });
    assert_eq!(measured.get(), 2);
    let found = once.turn_up.known(TestDirection::Up).bottleneck.as_ref();
    assert_eq!(found.unwrap().limited_by, LimitedBy::Path);
    assert_eq!(of_socket(&once), [""; 0]);
    let whole = tested(&[], &[150], |plan| sent(plan, u64::MAX));
    assert_eq!(causes(&once), causes(&whole));
}

#[test]
fn listed_window_counts_if_surely_too_small() {
    let named = |host, window| {
        causes(&window_limited(host, &[window], &[])).contains(&DiagnosisCause::HostWindow)
    };
    // The BDP is 250,000 bytes; by what a host of 50 Mbit/s reaches it is 125,000.
    assert!(named(1_000_000_000, 64_000) && named(1_000_000_000, 200_000));
    assert!(named(50_000_000, 64_000));
    assert!(!named(50_000_000, 200_000));
}

/// A run of ten seconds that its window limited, with so many retransmitted bytes.
fn run(retransmitted: u64) -> TcpRun {
    let sample = |second: u64| TcpSample {
        at: Time::from_epoch(Duration::from_secs(second)),
        info: TcpInfo {
            bytes_acknowledged: ByteCount::new(second * 1_600_000),
            bytes_retransmitted: ByteCount::new(retransmitted * second / 10),
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(20),
            congestion_window: 100,
            busy: Duration::from_secs(second),
            receive_window_limited: Duration::from_secs(second),
            peer_window: Some(ByteCount::new(32_000)),
            ..TcpInfo::default()
        },
    };
    TcpRun {
        connections: vec![(0..=10).map(sample).collect()],
        written_until: None,
        received: Vec::new(),
    }
}

#[test]
fn finished_connection_is_not_idle_while_others_drain() {
    let rest = |busy: u64, at: u64| TcpSample {
        at: Time::from_epoch(Duration::from_secs(at)),
        info: TcpInfo {
            busy: Duration::from_secs(busy),
            ..TcpInfo::default()
        },
    };
    let found = |written_until| {
        let done = (0..=10).map(|second| rest(second, second));
        let run = TcpRun {
            connections: vec![done.chain([rest(10, 14)]).collect()],
            written_until,
            received: Vec::new(),
        };
        let observed = TwoEnded {
            runs: vec![run],
            ..TwoEnded::default()
        };
        diagnose(&observed)[0].cause
    };
    assert_eq!(found(None), DiagnosisCause::TestHostLimited);
    assert_eq!(
        found(Some(Time::from_epoch(Duration::from_secs(10)))),
        DiagnosisCause::Unknown
    );
}

#[test]
fn path_limit_that_was_met_is_reported() {
    let bottleneck = |limited_by| BottleneckResult {
        rate: Bitrate::from_bits_per_second(2_000_000),
        is_steady: true,
        limited_by,
        loss_below: 0.0,
    };
    let gap = Duration::from_millis(10);
    let sent = (0..100).map(|number| Time::from_epoch(gap * number));
    let passed = LoadStage {
        offered: Bitrate::from_bits_per_second(1_200_000),
        packet: ByteCount::new(1_500),
        packets: sent
            .map(|sent| StreamPacket {
                sent,
                received: Some(sent + gap),
            })
            .collect(),
    };
    let observed = TwoEnded {
        stages: vec![passed],
        ..TwoEnded::default()
    };
    let cause = |bottleneck: Option<BottleneckResult>| {
        let mut found = diagnose(&observed);
        leave_open(&mut found, bottleneck.as_ref());
        found[0].cause
    };
    assert_eq!(cause(None), DiagnosisCause::None);
    assert_eq!(
        cause(Some(bottleneck(LimitedBy::MaxRate))),
        DiagnosisCause::None
    );
    assert_eq!(
        cause(Some(bottleneck(LimitedBy::Path))),
        DiagnosisCause::Unknown
    );
}

#[test]
fn long_row_of_losses_is_remarked_on() {
    let plan = StreamPlan {
        rate: Bitrate::from_bits_per_second(120_000_000),
        duration: Duration::from_secs(1),
        ip_bytes: 1_500,
    };
    let record = |lost: std::ops::Range<u64>| StreamRecord {
        plan,
        sent: 10_000,
        arrivals: (0..10_000)
            .filter(|number| !lost.contains(number))
            .map(|number| DatagramArrival {
                number,
                sent_ns: number * 100_000,
                arrived_ns: number * 100_000,
            })
            .collect(),
        left_ns: Vec::new(),
        no_room: 0,
    };
    let said = interrupted(TestDirection::Up, &record(4_000..4_874)).unwrap();
    assert!(
        said.contains("874 packets") && said.contains("87 ms"),
        "{said}"
    );
    assert_eq!(interrupted(TestDirection::Up, &record(4_000..4_010)), None);
}

#[test]
fn queue_is_idle_when_window_limits_without_loss() {
    let found = |runs: Vec<TcpRun>| {
        diagnose(&TwoEnded {
            baseline_rtt: Some(Duration::from_millis(20)),
            runs,
            ..TwoEnded::default()
        })
    };
    let held = found(vec![run(0)]);
    assert_eq!(held[0].cause, DiagnosisCause::HostWindow);
    assert_eq!(held[0].parameters.window, Some(ByteCount::new(32_000)));
    assert!(is_queue_idle(&held, &[run(0), run(0)]));
    assert!(!is_queue_idle(&held, &[run(0), run(14_480)]));
    assert!(!is_queue_idle(&found(Vec::new()), &[run(0)]));
}
