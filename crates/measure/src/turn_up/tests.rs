//! Tests of the order of steps and of the verdict, with made-up results.

use super::*;
use crate::procedure::slow_host::taken_in;
use crate::procedure::{CountedStream, LimitedBy};
use crate::wire::DatagramArrival;

fn profile() -> TestProfile {
    TestProfile {
        directions: TestDirection::BOTH.to_vec(),
        walk_percent: metrics::WALK_PERCENT.to_vec(),
        windows: vec![ByteCount::new(65_536)],
        connections: 4,
        connection_window: None,
        duration: Duration::from_secs(10),
        max_rate: Bitrate::from_bits_per_second(1_000_000_000),
        tcp_headers: metrics::HEADERS_IPV4,
        target: None,
        thresholds: TestThresholds::default(),
    }
}

/// A stream through a line of `limit`, without a queue.
fn through(limit: u64, plan: StreamPlan) -> StreamRecord {
    let bits = u64::from(plan.ip_bytes) * 8;
    let offered = plan.rate.bits_per_second();
    let span = plan.duration.as_nanos() as u64;
    let gap = |rate: u64| (u128::from(bits) * 1_000_000_000 / u128::from(rate)) as u64;
    let sent = span / gap(offered);
    let passing = span / gap(offered.min(limit));
    let arrivals = (0..passing)
        .map(|place| DatagramArrival {
            number: place * sent / passing,
            sent_ns: place * sent / passing * gap(offered),
            arrived_ns: place * gap(offered.min(limit)),
        })
        .collect();
    StreamRecord {
        plan,
        sent,
        arrivals,
        left_ns: Vec::new(),
        no_room: 0,
    }
}

fn figures(throughput: u64, ideal: u64) -> RunFigures {
    RunFigures {
        connections: 1,
        effective_window: None,
        throughput: Bitrate::from_bits_per_second(throughput),
        ideal: Some(Bitrate::from_bits_per_second(ideal)),
        bytes_sent: Some(ByteCount::new(1_000)),
        bytes_retransmitted: Some(ByteCount::new(20)),
        transfer_time_ratio: Some(ideal as f64 / throughput as f64),
        efficiency_percent: Some(98.0),
        average_rtt: None,
        buffer_delay_percent: Some(10.0),
        rtt_min: Some(Duration::from_millis(50)),
        window_limited_percent: None,
        send_buffer_limited_percent: None,
    }
}

/// Runs a whole test over a path of 10 Mbit/s up and 40 down, 50 ms; returns the tasks.
fn whole(profile: TestProfile) -> (TurnUp, Vec<TurnUpTask>) {
    let mut test = TurnUp::new(profile);
    let mut tasks = Vec::new();
    let mut progress = 0.0;
    loop {
        let task = test.next_task();
        tasks.push(task);
        match task {
            TurnUpTask::PathMtu(_) => test.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => test.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(50); 100],
                sent: 100,
            }),
            TurnUpTask::Stream(direction, plan) => {
                let limit = [10_000_000, 40_000_000][direction as usize];
                test.stream(through(limit, plan));
            }
            TurnUpTask::Run(plan) => {
                let made = |count: u16| (count > 0).then(|| figures(9_000_000, 9_900_000));
                test.run(plan.connections.map(made));
            }
            TurnUpTask::Done => return (test, tasks),
        }
        assert!(test.progress() >= progress, "{task:?}");
        progress = test.progress();
        assert!(tasks.len() < 100, "{tasks:?}");
    }
}

/// RFC 6349 §3: path MTU, then baseline RTT and bottleneck, then TCP; §3.3: each direction alone, then
/// both.
#[test]
fn steps_come_in_the_order_of_the_rfc() {
    let (test, tasks) = whole(profile());
    assert_eq!(tasks[0], TurnUpTask::PathMtu(TestDirection::Up));
    assert_eq!(tasks[1], TurnUpTask::PathMtu(TestDirection::Down));
    assert_eq!(tasks[2], TurnUpTask::BaselineRtt);
    let runs: Vec<RunPlan> = tasks
        .iter()
        .filter_map(|task| match task {
            TurnUpTask::Run(plan) => Some(*plan),
            _ => None,
        })
        .collect();
    // Five windows, one listed, many connections, each way; then both.
    assert_eq!(runs.len(), 15);
    assert_eq!(runs[0].windows[0], ByteCount::new(15_625));
    assert_eq!(runs[6].connections, [4, 0]);
    assert_eq!(runs[6].windows[0], ByteCount::new(15_625));
    assert_eq!(runs[14].purpose, RunPurpose::Together);
    assert_eq!(runs[14].connections, [1, 1]);
    let last_stream = tasks
        .iter()
        .rposition(|task| matches!(task, TurnUpTask::Stream(..)));
    let first_run = tasks
        .iter()
        .position(|task| matches!(task, TurnUpTask::Run(_)));
    assert!(last_stream < first_run);
    let found = test.known(TestDirection::Down).bottleneck.as_ref().unwrap();
    assert_eq!(found.limited_by, LimitedBy::Path);
    let rate = found.rate.bits_per_second() as f64 / 40e6;
    assert!((0.999..1.001).contains(&rate), "{rate}");
    let loss = test.known(TestDirection::Up).loss.unwrap();
    assert_eq!(loss.lost, 0, "a stream below the rate loses nothing");
    assert_eq!(test.known(TestDirection::Up).runs.len(), 8);
    assert_eq!(test.verdict(), TurnUpVerdict::Passed(0));
}

/// Ten seconds per run, five windows and many connections each way, both together, each rate:
/// sending takes less than three minutes at 100 Mbit/s and 50 ms, with time to spare for the rest.
#[test]
fn standard_test_takes_less_than_three_minutes() {
    /// Path MTU and baseline RTT, a second's rest before each rate, a few round trips and a tenth of a second
    /// before each stream and run.
    const SPARE: Duration = Duration::from_secs(18);
    let mut standard = profile();
    standard.windows.clear();
    let mut test = TurnUp::new(standard);
    let (mut all, mut runs) = (Duration::ZERO, 0);
    loop {
        match test.next_task() {
            TurnUpTask::PathMtu(_) => test.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => test.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(50); 100],
                sent: 120,
            }),
            TurnUpTask::Stream(_, plan) => {
                all += plan.duration;
                test.stream(through(100_000_000, plan));
            }
            TurnUpTask::Run(plan) => {
                (all, runs) = (all + plan.duration, runs + 1);
                let made = |count: u16| (count > 0).then(|| figures(90_000_000, 94_000_000));
                test.run(plan.connections.map(made));
            }
            TurnUpTask::Done => break,
        }
    }
    assert_eq!(runs, 13);
    assert!(all + SPARE < Duration::from_secs(180), "{all:?}");
}

#[test]
fn only_stated_thresholds_are_judged() {
    let mut demanding = profile();
    demanding.thresholds = TestThresholds {
        rate_min: Some(Bitrate::from_bits_per_second(20_000_000)),
        efficiency_percent_min: Some(99.0),
        transfer_time_ratio_max: Some(1.2),
        path_mtu_min: Some(1_500),
        baseline_rtt_max: Some(Duration::from_millis(60)),
        buffer_delay_percent_max: Some(20.0),
    };
    let (test, _) = whole(demanding);
    let TurnUpVerdict::Failed(missed) = test.verdict() else {
        panic!("{:?}", test.verdict());
    };
    let texts: Vec<&str> = missed.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].contains("bottleneck rate up"), "{texts:?}");
    assert!(texts[1].contains("efficiency up"), "{texts:?}");
    assert!(texts[2].contains("efficiency down"), "{texts:?}");
}

/// A circuit does not fail for a load that the tester could not offer; thresholds that it met all
/// the same are met.
#[test]
fn a_limit_that_the_tester_set_fails_nothing() {
    let verdict = |least: u64, max_rate: u64| {
        let mut demanding = profile();
        demanding.directions = vec![TestDirection::Up];
        demanding.max_rate = Bitrate::from_bits_per_second(max_rate);
        demanding.thresholds.rate_min = Some(Bitrate::from_bits_per_second(least));
        whole(demanding).0.verdict()
    };
    // The path carries 10 Mbit/s up.
    let TurnUpVerdict::NotMeasured(why) = verdict(8_000_000, 5_000_000) else {
        panic!("{:?}", verdict(8_000_000, 5_000_000));
    };
    assert!(
        why.contains("at least 8 and could not be measured"),
        "{why}"
    );
    assert!(
        why.contains("no more than 5.000 Mbit/s was offered"),
        "{why}"
    );
    assert_eq!(verdict(4_000_000, 5_000_000), TurnUpVerdict::Passed(1));
    assert!(matches!(
        verdict(12_000_000, 100_000_000),
        TurnUpVerdict::Failed(_)
    ));
}

/// A host that sends 3 Mbit/s, whatever it is asked to, over a path that may carry any rate.
#[test]
fn sending_hosts_limit_fails_no_threshold() {
    let mut demanding = profile();
    demanding.directions = vec![TestDirection::Up];
    demanding.thresholds.rate_min = Some(Bitrate::from_bits_per_second(9_000_000));
    demanding.thresholds.transfer_time_ratio_max = Some(1.2);
    let mut test = TurnUp::new(demanding);
    loop {
        match test.next_task() {
            TurnUpTask::PathMtu(_) => test.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => test.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(50); 100],
                sent: 100,
            }),
            TurnUpTask::Stream(_, plan) => {
                let rate = plan.rate.min(Bitrate::from_bits_per_second(3_000_000));
                let slow = through(1_000_000_000, StreamPlan { rate, ..plan });
                test.stream(StreamRecord { plan, ..slow });
            }
            TurnUpTask::Run(_) => test.run([Some(figures(1_500_000, 2_900_000)), None]),
            TurnUpTask::Done => break,
        }
    }
    let found = test.known(TestDirection::Up).bottleneck.as_ref().unwrap();
    assert_eq!(found.limited_by, LimitedBy::Sender);
    let TurnUpVerdict::NotMeasured(why) = test.verdict() else {
        panic!("{:?}", test.verdict());
    };
    assert!(why.contains("all that the sending host managed"), "{why}");
}

/// A host that takes in 3 Mbit/s, whatever comes, behind a path that may carry any rate.
#[test]
fn receiving_hosts_limit_fails_no_threshold() {
    let mut demanding = profile();
    demanding.directions = vec![TestDirection::Up];
    demanding.thresholds.rate_min = Some(Bitrate::from_bits_per_second(9_000_000));
    demanding.thresholds.transfer_time_ratio_max = Some(1.2);
    demanding.max_rate = Bitrate::from_bits_per_second(20_000_000);
    let mut test = TurnUp::new(demanding);
    loop {
        match test.next_task() {
            TurnUpTask::PathMtu(_) => test.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => test.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(50); 100],
                sent: 100,
            }),
            TurnUpTask::Stream(_, plan) => {
                let most = Bitrate::from_bits_per_second(3_000_000);
                test.stream(taken_in(through(1_000_000_000, plan), most, 50));
            }
            TurnUpTask::Run(_) => test.run([Some(figures(1_500_000, 2_900_000)), None]),
            TurnUpTask::Done => break,
        }
    }
    let known = test.known(TestDirection::Up);
    let found = known.bottleneck.as_ref().unwrap();
    assert_eq!(found.limited_by, LimitedBy::Receiver);
    assert_eq!(known.loss.unwrap().lost, 0);
    let TurnUpVerdict::NotMeasured(why) = test.verdict() else {
        panic!("{:?}", test.verdict());
    };
    assert!(why.contains("all that the receiving host took in"), "{why}");
}

#[test]
fn server_limits_are_reported() {
    let limits = |seconds, connections| ServerLimits {
        rate: Bitrate::from_bits_per_second(100_000_000),
        order: Duration::from_secs(seconds),
        session: Duration::from_secs(1_800),
        connections,
    };
    let mut asked = profile();
    let cut = asked.cut_to(&limits(5, 2));
    assert_eq!(asked.duration, Duration::from_secs(5));
    assert_eq!((asked.connections, asked.max_rate), (2, limits(5, 2).rate));
    assert_eq!(cut.len(), 2, "{cut:?}");
    assert!(
        cut[0].contains("--duration 10 s") && cut[0].contains("5 s at most"),
        "{cut:?}"
    );
    assert!(profile().cut_to(&limits(10, 4)).is_empty());
}

#[test]
fn threshold_above_the_allowed_rate_is_refused() {
    let most = Bitrate::from_bits_per_second(5_000_000);
    let demanded = |least| TestThresholds {
        rate_min: least,
        ..TestThresholds::default()
    };
    assert!(demanded(None).are_within(most) && demanded(Some(most)).are_within(most));
    assert!(!demanded(Some(Bitrate::from_bits_per_second(5_000_001))).are_within(most));
}

/// A threshold that nothing was measured for does not hide those that were kept.
#[test]
fn met_thresholds_are_listed_beside_unmeasured_ones() {
    let mut few = profile();
    few.walk_percent = vec![25];
    few.windows = Vec::new();
    few.connections = 1;
    few.thresholds.rate_min = Some(Bitrate::from_bits_per_second(5_000_000));
    few.thresholds.transfer_time_ratio_max = Some(1.5);
    let (test, _) = whole(few);
    let TurnUpVerdict::NotMeasured(why) = test.verdict() else {
        panic!("{:?}", test.verdict());
    };
    assert!(
        why.contains("was to be at most 1.5 and was not measured"),
        "{why}"
    );
    assert!(
        why.contains("; kept: bottleneck rate up in Mbit/s 10.0"),
        "{why}"
    );
}

#[test]
fn unmeasurable_values_and_their_dependents_are_omitted() {
    let mut test = TurnUp::new(profile());
    test.path_mtu(MtuOutcome::NoAnswer);
    test.path_mtu(MtuOutcome::NoAnswer);
    test.baseline_rtt(RttOutcome {
        samples: Vec::new(),
        sent: 120,
    });
    while let TurnUpTask::Stream(_, plan) = test.next_task() {
        test.stream(StreamRecord {
            plan,
            sent: 16,
            arrivals: Vec::new(),
            left_ns: Vec::new(),
            no_room: 0,
        });
    }
    assert_eq!(test.next_task(), TurnUpTask::Done);
    assert!(test.remarks().len() >= 4, "{:?}", test.remarks());
    assert!(matches!(test.verdict(), TurnUpVerdict::NotMeasured(_)));
}

/// The verdict itself names the black hole, so that its reader does not look for a server that is
/// down.
#[test]
fn black_hole_that_ends_a_test_is_named() {
    let mut test = TurnUp::new(profile());
    test.path_mtu(MtuOutcome::Found {
        mtu: 1_300,
        tried: 1_500,
    });
    test.path_mtu(MtuOutcome::Found {
        mtu: 1_500,
        tried: 1_500,
    });
    test.give_up("the server was not heard of");
    let TurnUpVerdict::NotMeasured(why) = test.verdict() else {
        panic!("{:?}", test.verdict());
    };
    assert_eq!(
        why,
        "the server was not heard of; an MTU black hole up: packets above 1300 bytes vanish"
    );
}

/// RFC 6349 §3 without its streams: the least RTT by TCP, TCP's throughput, then windows up to
/// that; and no verdict, because neither rate nor path MTU is known.
#[test]
fn only_tcp_is_measured_where_only_tcp_passes() {
    let mut demanding = profile();
    demanding.thresholds.rate_min = Some(Bitrate::from_bits_per_second(1_000_000));
    let mut test = TurnUp::of_tcp_alone(demanding, "no UDP gets through");
    let (mut purposes, mut progress) = (Vec::new(), 0.0);
    while let TurnUpTask::Run(plan) = test.next_task() {
        purposes.push((plan.purpose, plan.connections, plan.windows));
        let made = |count: u16| (count > 0).then(|| figures(8_000_000, 8_000_000));
        test.run(plan.connections.map(made));
        assert!(test.progress() >= progress, "{plan:?}");
        progress = test.progress();
    }
    assert_eq!(test.next_task(), TurnUpTask::Done);
    assert_eq!(purposes[0].0, RunPurpose::RoundTrip);
    assert_eq!((purposes[1].0, purposes[1].1), (RunPurpose::Open, [1, 0]));
    assert_eq!((purposes[2].0, purposes[2].1), (RunPurpose::Open, [0, 1]));
    // 8 Mbit/s x 50 ms are 50,000 bytes.
    assert_eq!(purposes[3].0, RunPurpose::Walk(25));
    assert_eq!(purposes[3].2[0], ByteCount::new(12_500));
    assert_eq!(purposes.last().unwrap().0, RunPurpose::Together);
    assert_eq!(purposes.len(), 3 + 7 + 7 + 1);
    assert_eq!(test.round_trip(), Some(Duration::from_millis(50)));
    assert_eq!(test.bdp(TestDirection::Up), None);
    assert!(test.known(TestDirection::Up).bottleneck.is_none());
    let reached = test.reached(TestDirection::Up).unwrap();
    assert_eq!(reached, Bitrate::from_bits_per_second(8_000_000));
    let why = "no UDP gets through".to_owned();
    assert_eq!(test.verdict(), TurnUpVerdict::NotMeasured(why));
}

#[test]
fn no_window_walk_without_a_round_trip_time() {
    let mut test = TurnUp::of_tcp_alone(profile(), "no UDP gets through").without_both_at_once();
    let mut runs = 0;
    while let TurnUpTask::Run(_) = test.next_task() {
        test.run([None, None]);
        runs += 1;
    }
    assert_eq!(runs, 3);
    assert!(matches!(test.verdict(), TurnUpVerdict::NotMeasured(_)));
}

/// Between two hosts side by side a few bytes fill the path: windows of eight bytes are not used,
/// and equal windows are run once.
#[test]
fn no_window_is_smaller_than_two_segments() {
    let least = Bitrate::from_bits_per_second(10_000_000).time_for(ByteCount::new(40));
    let mut test = TurnUp::new(profile());
    let mut runs = Vec::new();
    loop {
        match test.next_task() {
            TurnUpTask::PathMtu(_) => test.path_mtu(MtuOutcome::Found {
                mtu: 1_500,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => test.baseline_rtt(RttOutcome {
                samples: vec![least; 100],
                sent: 120,
            }),
            TurnUpTask::Stream(_, plan) => test.stream(through(10_000_000, plan)),
            TurnUpTask::Run(plan) => {
                runs.push(plan);
                test.run([None, None]);
            }
            TurnUpTask::Done => break,
        }
    }
    // Of the walk only its largest share; then what was listed, many connections, each way; then both.
    let purposes: Vec<RunPurpose> = runs.iter().map(|run| run.purpose).collect();
    let way = [RunPurpose::Walk(150), RunPurpose::Listed, RunPurpose::Many];
    assert_eq!(purposes[..3], way);
    assert_eq!(runs.len(), 3 + 3 + 1);
    for run in &runs {
        for (window, connections) in run.windows.iter().zip(run.connections) {
            assert!(connections == 0 || window.bytes() >= WINDOW_MIN, "{run:?}");
        }
    }
    let is_said = |remark: &String| remark.contains("less than two segments");
    assert!(test.remarks().iter().any(is_said), "{:?}", test.remarks());
}

/// 62,500 bytes have room for four windows of ten segments.
#[test]
fn run_with_fewer_connections_gives_the_reason() {
    let said = |connections| {
        let mut many = profile();
        many.directions = vec![TestDirection::Up];
        many.connections = connections;
        let (test, _) = whole(many);
        let run = test.known(TestDirection::Up).runs.iter();
        let made = run
            .filter(|run| run.plan.purpose == RunPurpose::Many)
            .map(|run| run.plan.connections[0]);
        let is_of_it = |remark: &&String| remark.contains("the run with many connections up");
        let why = test.remarks().iter().find(is_of_it).cloned();
        (made.collect::<Vec<u16>>(), why)
    };
    assert_eq!(said(4), (vec![4], None));
    let (made, why) = said(8);
    assert_eq!(made, [4]);
    let why = why.expect("four are not eight");
    assert!(why.contains("has 4, not 8"), "{why}");
}

/// A stream through the same line, for which the far end only counts the arrivals.
fn counted_through(limit: u64, plan: StreamPlan) -> CountedStream {
    let record = through(limit, plan);
    CountedStream {
        plan,
        sent: record.sent,
        span: plan.duration,
        received: record.arrivals.len() as u64,
        jitter: None,
        arrivals: Vec::new(),
        no_room: None,
    }
}

/// Against an end that counts: the least RTT by TCP, then rates by streams, and with both a BDP and a verdict;
/// each in the order of RFC 6349 §3.
#[test]
fn counted_streams_give_rates_that_are_judged() {
    let mut demanding = profile();
    demanding.thresholds.rate_min = Some(Bitrate::from_bits_per_second(9_900_000));
    let mut test = TurnUp::one_ended(demanding, "one-ended").without_both_at_once();
    let (mut purposes, mut progress) = (Vec::new(), 0.0);
    loop {
        match test.next_task() {
            TurnUpTask::Run(plan) => {
                purposes.push(plan.purpose);
                let made = |count: u16| (count > 0).then(|| figures(8_000_000, 8_000_000));
                test.run(plan.connections.map(made));
            }
            TurnUpTask::Stream(direction, plan) => {
                assert_eq!(purposes, [RunPurpose::RoundTrip]);
                let limit = [10_000_000, 40_000_000][direction as usize];
                test.counted(counted_through(limit, plan));
            }
            TurnUpTask::Done => break,
            other => panic!("{other:?}"),
        }
        assert!(test.progress() >= progress, "{purposes:?}");
        progress = test.progress();
    }
    assert!(!purposes.contains(&RunPurpose::Open), "{purposes:?}");
    assert_eq!(purposes.len(), 1 + 7 + 7);
    assert!(test.is_one_ended() && !test.is_tcp_alone());
    // 10 Mbit/s x 50 ms.
    let bdp = test.bdp(TestDirection::Up).unwrap().bytes();
    assert!((62_000..63_000).contains(&bdp), "{bdp}");
    let loss = test.known(TestDirection::Down).loss.unwrap();
    assert_eq!((loss.lost, loss.sent > 0), (0, true));
    assert!(matches!(
        test.ideal(TestDirection::Up).unwrap().maximum,
        PathMaximum::Known(_)
    ));
    assert_eq!(test.verdict(), TurnUpVerdict::Passed(2));
}

/// A path that silently drops full-size packets, up or both ways: smaller packets show the rate,
/// both sizes are known, and no path MTU is claimed.
#[test]
fn small_packets_measure_rate_behind_black_hole() {
    for holed in [&TestDirection::BOTH[..], &[TestDirection::Up]] {
        let mut demanding = profile();
        demanding.thresholds.path_mtu_min = Some(1_200);
        let mut test = TurnUp::one_ended(demanding, "one-ended").without_both_at_once();
        loop {
            match test.next_task() {
                TurnUpTask::Run(plan) => {
                    let made = |count: u16| (count > 0).then(|| figures(8_000_000, 8_000_000));
                    test.run(plan.connections.map(made));
                }
                TurnUpTask::Stream(direction, plan) => {
                    let mut stream = counted_through(10_000_000, plan);
                    if holed.contains(&direction) && plan.ip_bytes > 1_400 {
                        stream.received = 0;
                    }
                    test.counted(stream);
                }
                TurnUpTask::Done => break,
                other => panic!("{other:?}"),
            }
        }
        for direction in TestDirection::BOTH {
            let known = test.known(direction);
            let rate = known.bottleneck.as_ref().unwrap().rate.bits_per_second();
            assert!((9_900_000..10_100_000).contains(&rate), "{rate}");
            let between = MtuOutcome::Between {
                passes: path::BASE_SIZE,
                vanishes: MTU_ASSUMED,
            };
            let is_holed = holed.contains(&direction);
            assert_eq!(known.path_mtu, is_holed.then_some(between));
            let silent = known.counted.iter().filter(|stream| stream.received == 0);
            assert_eq!(silent.count() > 0, is_holed);
            let is_said = |remark: &String| {
                remark.contains(&format!("vanish on the way {} ", direction.name()))
            };
            assert_eq!(test.remarks().iter().any(is_said), is_holed);
        }
        // Enough passes up; down, nobody has looked.
        let kept = holed.len() == 2;
        assert_eq!(test.verdict() == TurnUpVerdict::Passed(2), kept);
    }
}

/// Not even small packets arrive: the report says so, and blames no size.
#[test]
fn no_black_hole_is_claimed_where_nothing_passes() {
    let mut test = TurnUp::one_ended(profile(), "one-ended").without_both_at_once();
    let mut sizes = Vec::new();
    loop {
        match test.next_task() {
            TurnUpTask::Run(plan) => test.run(plan.connections.map(|_| None)),
            TurnUpTask::Stream(_, plan) => {
                sizes.push(plan.ip_bytes);
                let mut stream = counted_through(10_000_000, plan);
                stream.received = 0;
                test.counted(stream);
            }
            TurnUpTask::Done => break,
            other => panic!("{other:?}"),
        }
    }
    sizes.dedup();
    assert_eq!(sizes, [1_500, 1_200, 1_500, 1_200]);
    assert_eq!(test.known(TestDirection::Up).path_mtu, None);
    let why = "the bottleneck rate up could not be measured: no stream got through";
    assert_eq!(test.verdict(), TurnUpVerdict::NotMeasured(why.to_owned()));
}

/// TCP connects and its full-size segments are lost: the report says so, and gives no rate.
#[test]
fn undelivered_segments_are_reported_without_throughput() {
    let mut test = TurnUp::of_tcp_alone(profile(), "no UDP gets through").without_both_at_once();
    while let TurnUpTask::Run(plan) = test.next_task() {
        let made = |count: u16| {
            (count > 0).then(|| RunFigures {
                transfer_time_ratio: None,
                ..figures(0, 8_000_000)
            })
        };
        test.run(plan.connections.map(made));
    }
    for direction in TestDirection::BOTH {
        let words = format!("nothing of what it then sends {} gets", direction.name());
        let is_said = |remark: &String| remark.contains(&words);
        assert!(test.remarks().iter().any(is_said), "{:?}", test.remarks());
        assert_eq!(test.reached(direction), None);
        assert!(
            test.known(direction)
                .runs
                .iter()
                .all(|run| run.plan.purpose == RunPurpose::Open
                    || run.plan.purpose == RunPurpose::RoundTrip)
        );
    }
    assert!(matches!(test.verdict(), TurnUpVerdict::NotMeasured(_)));
}

/// A firewall eats the streams of both directions, or of one: TCP alone is measured there, and nothing passes.
#[test]
fn tcp_alone_is_measured_without_counted_streams() {
    for dead in [&TestDirection::BOTH[..], &[TestDirection::Down]] {
        let mut test = TurnUp::one_ended(profile(), "one-ended").without_both_at_once();
        let mut opened = Vec::new();
        loop {
            match test.next_task() {
                TurnUpTask::Run(plan) => {
                    if plan.purpose == RunPurpose::Open {
                        opened.push(plan.connections);
                    }
                    let made = |count: u16| (count > 0).then(|| figures(8_000_000, 8_000_000));
                    test.run(plan.connections.map(made));
                }
                TurnUpTask::Stream(direction, _) if dead.contains(&direction) => {
                    test.no_stream(format!("no UDP {}", direction.name()));
                }
                TurnUpTask::Stream(_, plan) => test.counted(counted_through(10_000_000, plan)),
                TurnUpTask::Done => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(opened.len(), dead.len());
        assert_eq!(test.is_tcp_alone(), dead.len() == 2);
        assert!(test.reached(TestDirection::Down).is_some());
        assert!(matches!(test.verdict(), TurnUpVerdict::NotMeasured(_)));
    }
}
