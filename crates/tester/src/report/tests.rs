//! Tests of reports, for a made-up test result.

use std::time::Duration;

use measure::procedure::{CountedStream, MtuOutcome, RttOutcome, StreamPlan, StreamRecord};
use measure::run;
use measure::steps::{
    SearchGoal, ServiceCriteria, ServicePlan, ServiceProcedure, StreamTest, ThroughputPlan,
    ThroughputProcedure,
};
use measure::tcp_info::TcpInfo;
use measure::turn_up::{TestProfile, TestThresholds, TurnUp, TurnUpTask};
use measure::wire::{DatagramArrival, RunSample};
use vocab::{Bitrate, ByteCount};

use super::*;
use crate::steps::SteppedTest;
use measure::turn_up::{FinishedTest, RawRun};

/// A line of 10 Mbit/s and 40 ms, and a host that reaches three quarters of it.
fn finished() -> FinishedTest {
    finished_by(TurnUp::new(profile()))
}

fn profile() -> TestProfile {
    TestProfile {
        directions: vec![TestDirection::Up],
        walk_percent: vec![50, 100],
        windows: Vec::new(),
        connections: 1,
        connection_window: None,
        duration: Duration::from_secs(4),
        max_rate: Bitrate::from_bits_per_second(100_000_000),
        tcp_headers: 40,
        target: None,
        thresholds: TestThresholds {
            rate_min: Some(Bitrate::from_bits_per_second(20_000_000)),
            ..TestThresholds::default()
        },
    }
}

fn finished_by(turn_up: TurnUp) -> FinishedTest {
    finished_with(turn_up, |record| record)
}

/// A finished test, between hosts that change each stream by `host`.
fn finished_with(mut turn_up: TurnUp, host: fn(StreamRecord) -> StreamRecord) -> FinishedTest {
    let mut runs = Vec::new();
    loop {
        match turn_up.next_task() {
            TurnUpTask::PathMtu(_) => turn_up.path_mtu(MtuOutcome::Found {
                mtu: 1_380,
                tried: 1_500,
            }),
            TurnUpTask::BaselineRtt => turn_up.baseline_rtt(RttOutcome {
                samples: vec![Duration::from_millis(40); 100],
                sent: 100,
            }),
            TurnUpTask::Stream(_, plan) => {
                let gap = |rate: u64| u64::from(plan.ip_bytes) * 8_000_000_000 / rate;
                let span = plan.duration.as_nanos() as u64;
                let sent = span / gap(plan.rate.bits_per_second());
                let out = gap(plan.rate.bits_per_second().min(10_000_000));
                let arrivals = (0..sent.min(span / out))
                    .map(|number| DatagramArrival {
                        number: number * sent / sent.min(span / out),
                        sent_ns: number * span / sent.min(span / out),
                        arrived_ns: number * out,
                    })
                    .collect();
                let record = StreamRecord {
                    plan,
                    sent,
                    arrivals,
                    left_ns: Vec::new(),
                    no_room: 0,
                };
                match turn_up.is_one_ended() {
                    true => turn_up.counted(CountedStream {
                        plan,
                        sent,
                        span: plan.duration,
                        received: record.arrivals.len() as u64,
                        jitter: Some(Duration::from_micros(40)),
                        arrivals: Vec::new(),
                        no_room: None,
                    }),
                    false => turn_up.stream(host(record)),
                }
            }
            TurnUpTask::Run(plan) => {
                let samples: Vec<RunSample> = (0..=40_u64)
                    .map(|tenth| RunSample {
                        connection: 0,
                        at: Duration::from_millis(100 * tenth),
                        info: TcpInfo {
                            bytes_acknowledged: ByteCount::new(tenth * 93_750),
                            bytes_sent: ByteCount::new(tenth * 95_000),
                            bytes_retransmitted: ByteCount::new(tenth * 1_250),
                            rtt: Duration::from_millis(50),
                            rtt_min: Duration::from_millis(40),
                            peer_window: Some(plan.windows[0]),
                            ..TcpInfo::default()
                        },
                    })
                    .collect();
                let ideal = turn_up.ideal(TestDirection::Up).unwrap();
                let figures = run::figures(&samples, plan.duration, &ideal);
                runs.push(RawRun {
                    plan,
                    direction: TestDirection::Up,
                    seconds: run::seconds(&samples),
                    samples,
                    reads: Vec::new(),
                    segments_retransmitted: None,
                    congestion_control: "cubic".to_owned(),
                    busy_permille: [100, 200],
                });
                turn_up.run([figures, None]);
            }
            TurnUpTask::Done => break,
        }
    }
    FinishedTest {
        turn_up,
        runs,
        server: "192.0.2.1:6349".parse().unwrap(),
        local: "192.0.2.2:40000".parse().unwrap(),
        hosts: vec!["this host: windows above <4MiB> are not to be had".to_owned()],
        interface_mtu: 1_500,
        took: Duration::from_secs(60),
    }
}

#[test]
fn verdict_comes_first_and_names_missed_thresholds() {
    let text = text(&finished());
    let first = text.lines().take(2).collect::<Vec<_>>().join(" ");
    assert!(
        first.starts_with("FAILED: bottleneck rate up in Mbit/s was to be at least 20"),
        "{text}"
    );
    assert!(
        text.contains("path MTU 1380 bytes: larger packets"),
        "{text}"
    );
    assert!(text.contains("baseline RTT 40.000 ms"), "{text}");
    assert!(text.contains("congestion control: cubic"), "{text}");
}

#[test]
fn no_line_is_wider_than_a_terminal() {
    let text = text(&finished());
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}\n\n{text}");
    }
    assert!(text.contains("rate 10.000 Mbit/s"), "{text}");
}

#[test]
fn tester_limited_ideal_is_marked() {
    let capped = TestProfile {
        max_rate: Bitrate::from_bits_per_second(5_000_000),
        ..profile()
    };
    let text = text(&finished_by(TurnUp::new(capped)));
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert!(
        text.starts_with("NOT MEASURED: bottleneck rate up"),
        "{text}"
    );
    assert!(text.contains("and TCP more than its ideal here"), "{text}");
}

/// Against a server that counts: the same figures, with a note on what they measure.
#[test]
fn one_ended_report_names_what_it_measured() {
    let finished = finished_by(TurnUp::one_ended(profile(), "one-ended"));
    let text = text(&finished);
    for words in [
        "FAILED: bottleneck rate up",
        "path MTU not searched for; packets of 1500 bytes",
        "least RTT 40.000 ms as TCP saw it",
        "bottleneck 10.0",
        "100 % of BDP",
        "loss below the rate: 0 of",
        "run `trunkline measure diagnose",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    // To measure again would tell no more.
    assert!(
        !text.contains("unknown") && !text.contains("Measure again"),
        "{text}"
    );
    let document = json(&finished);
    assert_eq!(document["diagnosis"].as_array().map(Vec::len), Some(0));
    assert_eq!(document["baseline_rtt_by"], "tcp");
    let stream = &document["directions"]["up"]["streams"][0];
    assert_eq!(stream["jitter_ms"], 0.04);
    assert!(stream["arrived_packets"].as_u64() > Some(0), "{stream}");
    let page = html(&finished).unwrap();
    assert!(page.contains("One-ended. RTT:") && page.contains("Window walk, up"));
}

/// The names that programs read.
#[test]
fn the_document_has_the_names_that_were_promised() {
    let document = json(&finished());
    assert_eq!(document["path_mtu_bytes"], 1_380);
    assert_eq!(document["baseline_rtt_ms"], 40.0);
    assert_eq!(document["verdict"], "failed");
    let up = &document["directions"]["up"];
    let rate = up["bottleneck_bit_s"].as_f64().unwrap();
    assert!((rate / 10e6 - 1.0).abs() < 0.001, "{rate}");
    let bdp = up["bdp_bytes"].as_f64().unwrap();
    assert!((bdp / 50e3 - 1.0).abs() < 0.001, "{bdp}");
    let run = &up["runs"][1];
    for name in [
        "window_bytes",
        "effective_window_bytes",
        "connections",
        "throughput_bit_s",
        "ideal_bit_s",
        "transfer_time_ratio",
        "tcp_efficiency_percent",
        "average_rtt_ms",
        "buffer_delay_percent",
    ] {
        assert!(run[name].is_number(), "{name}: {run}");
    }
    assert_eq!(run["throughput_bit_s"], 7_500_000);
    let delay = run["buffer_delay_percent"].as_f64().unwrap();
    assert!((delay - 25.0).abs() < 1e-9, "{delay}");
    let causes = document["diagnosis"].as_array().unwrap();
    assert!(!causes.is_empty());
    for cause in causes {
        assert!(cause["cause"].is_string() && cause["confidence"].is_number());
        assert!(cause["evidence"].is_array() && cause["parameters"].is_object());
        assert!(cause["advice"].is_string());
    }
    assert!(
        causes
            .iter()
            .any(|cause| cause["cause"] == "mtu-black-hole"),
        "{causes:?}"
    );
}

/// Simulates a line of 10 Mbit/s of IP packets with a queue of no length that carries a stream.
fn carried(plan: StreamPlan) -> StreamRecord {
    let gap = |rate: u64| u64::from(plan.ip_bytes) * 8_000_000_000 / rate;
    let sent = plan.duration.as_nanos() as u64 / gap(plan.rate.bits_per_second());
    let arrives = plan.rate.bits_per_second().min(10_000_000);
    let arrivals = (0..sent * arrives / plan.rate.bits_per_second())
        .map(|number| DatagramArrival {
            number: number * plan.rate.bits_per_second() / arrives,
            sent_ns: number * gap(arrives),
            arrived_ns: number * gap(arrives) + 20_000_000,
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

fn stepped<T: StreamTest>(found: T) -> SteppedTest<T> {
    stepped_by(found, carried)
}

fn stepped_by<T: StreamTest>(
    mut found: T,
    carry: fn(StreamPlan) -> StreamRecord,
) -> SteppedTest<T> {
    while let Some((_, plan)) = found.next_stream() {
        found.handle(&carry(plan));
    }
    SteppedTest {
        found,
        server: "192.0.2.1:6349".parse().unwrap(),
        local: "192.0.2.2:40000".parse().unwrap(),
        hosts: vec!["this host: <busy>".to_owned()],
        took: Duration::from_secs(60),
    }
}

const BASELINE: Option<Duration> = Some(Duration::from_millis(40));

#[test]
fn service_page_shows_received_beside_purchased_rates() {
    let page = service_html(&stepped(ServiceProcedure::new(
        ServicePlan {
            directions: vec![TestDirection::Up],
            committed: Bitrate::from_bits_per_second(8_000_000),
            excess: Bitrate::from_bits_per_second(4_000_000),
            frames: vec![512, 1_518],
            step: Duration::from_secs(3),
            performance: Duration::ZERO,
            stream_max: Duration::from_secs(60),
            criteria: ServiceCriteria {
                loss_ratio_max: Some(0.001),
                ..ServiceCriteria::default()
            },
        },
        BASELINE,
    )))
    .unwrap();
    for chart in [
        "Information rate, up",
        "Frame loss, up",
        "Round trip of the mean frame, up",
        "CIR + EIR",
        "frames of 1518 bytes",
    ] {
        assert!(page.contains(chart), "{chart}");
    }
    assert!(page.contains("&lt;busy&gt;"));
    assert_stands_alone(&page);
}

/// A sender that keeps 6.5 Mbit/s at most, and of whose frames every other is lost where it was asked for more.
fn held_back(plan: StreamPlan) -> StreamRecord {
    const MOST: u64 = 6_500_000;
    let asked = plan.rate.bits_per_second();
    let gap = u64::from(plan.ip_bytes) * 8_000_000_000 / asked.min(MOST);
    let sent = plan.duration.as_nanos() as u64 / gap;
    let arrivals = (0..sent)
        .filter(|number| asked <= MOST || number % 2 == 0)
        .map(|number| DatagramArrival {
            number,
            sent_ns: number * gap,
            arrived_ns: number * gap + 20_000_000,
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

fn service_plan() -> ServicePlan {
    ServicePlan {
        directions: vec![TestDirection::Up],
        committed: Bitrate::from_bits_per_second(8_000_000),
        excess: Bitrate::default(),
        frames: vec![1_518],
        step: Duration::from_secs(3),
        performance: Duration::ZERO,
        stream_max: Duration::from_secs(60),
        criteria: ServiceCriteria::default(),
    }
}

#[test]
fn sender_shortfall_is_no_loss_in_a_chart() {
    let test = ServiceProcedure::new(service_plan(), BASELINE);
    let page = service_html(&stepped_by(test, held_back)).unwrap();
    assert!(page.contains("Information rate, up"));
    // The table has it.
    assert!(page.contains("not kept"));
    assert!(page.contains("Frame loss, up: none at any step."));
}

#[test]
fn throughput_page_has_one_chart_per_figure() {
    let page = throughput_html(&stepped(ThroughputProcedure::new(
        throughput_plan(true),
        BASELINE,
    )))
    .unwrap();
    for chart in [
        "Throughput, down",
        "Delay at the load that is carried, down",
        "Frame loss, down",
        "not carried",
    ] {
        assert!(page.contains(chart), "{chart}");
    }
    assert_stands_alone(&page);
}

fn throughput_plan(is_whole: bool) -> ThroughputPlan {
    ThroughputPlan {
        directions: vec![TestDirection::Down],
        frames: vec![512, 1_518],
        max_rate: Bitrate::from_bits_per_second(100_000_000),
        stream_max: Duration::from_secs(2),
        goal: SearchGoal {
            loss_ratio: 0.0,
            trial: Duration::from_secs(1),
            duration_sum: Duration::from_secs(1),
            exceed_ratio: 0.5,
            width: 0.01,
        },
        is_whole,
    }
}

/// A sender that keeps 6.5 Mbit/s at most, over a path that carries all of it.
fn held_back_lossless(plan: StreamPlan) -> StreamRecord {
    let mut record = held_back(StreamPlan {
        rate: plan.rate.min(Bitrate::from_bits_per_second(6_500_000)),
        ..plan
    });
    record.plan = plan;
    record
}

#[test]
fn unoffered_load_is_no_throughput_bound() {
    let whole = throughput_text(&stepped(ThroughputProcedure::new(
        throughput_plan(true),
        BASELINE,
    )));
    let first = whole.lines().next().unwrap_or_default();
    assert!(first.starts_with("MEASURED: down 10."), "{whole}");
    assert!(
        first.ends_with("Mbit/s in frames of 512 to 1518 B"),
        "{whole}"
    );
    for is_whole in [true, false] {
        let test = ThroughputProcedure::new(throughput_plan(is_whole), BASELINE);
        let text = throughput_text(&stepped_by(test, held_back_lossless));
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with("1518"))
            .unwrap_or_default();
        let not_carried = row.split_whitespace().nth(2);
        assert_eq!(not_carried, Some("–"), "{text}");
        assert!(
            text.contains("could not be sent by the sending host"),
            "{text}"
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let left_out = "frame loss and bursts, which take more than is carried, were not measured";
        assert_eq!(words.contains(left_out), is_whole, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}

#[test]
fn service_step_shows_requested_and_sent_rates() {
    let text = service_text(&stepped_by(
        ServiceProcedure::new(service_plan(), BASELINE),
        held_back,
    ));
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("100 % CIR"))
        .unwrap_or_default();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[3], "8.000", "{text}");
    let sent: f64 = cells[4].parse().expect("a rate");
    assert!((6.5..6.7).contains(&sent), "{text}");
    assert!(row.ends_with("not kept"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

/// A receiving host that has no room for every other packet that comes at more than 6 Mbit/s.
fn without_room(mut record: StreamRecord) -> StreamRecord {
    if record.plan.rate > Bitrate::from_bits_per_second(6_000_000) {
        let all = record.arrivals.len();
        let mut place = 0;
        record.arrivals.retain(|_| {
            place += 1;
            place % 2 == 0
        });
        record.no_room = (all - record.arrivals.len()) as u64;
    }
    record
}

#[test]
fn receiver_limited_rate_fails_no_threshold() {
    let finished = finished_with(TurnUp::new(profile()), without_room);
    let value = json(&finished);
    assert_eq!(value["verdict"], "not-measured");
    let up = &value["directions"]["up"];
    assert_eq!(up["bottleneck_limited_by"], "receiver");
    let no_room = up["streams"][0]["no_room_packets"].as_u64().unwrap();
    assert!(no_room > 1_000, "{no_room}");
    let causes = value["diagnosis"].as_array().unwrap();
    assert!(
        causes.iter().any(|one| one["cause"] == "test-host-limited"),
        "{causes:?}"
    );
    for page in [text::text(&finished), html(&finished).unwrap()] {
        let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("all that the receiving host took in; the path may carry more"),
            "{page}"
        );
        assert!(words.contains("found no room in the tester"), "{page}");
    }
}

#[test]
fn steps_beyond_the_receiving_host_are_marked() {
    let carry = |plan| without_room(carried(plan));
    let service = stepped_by(ServiceProcedure::new(service_plan(), BASELINE), carry);
    let text = service_text(&service);
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("100 % CIR"))
        .unwrap_or_default();
    assert!(row.ends_with("no room"), "{text}");
    // Every other of 1,987.
    let step = &service_json(&service)["steps"][3];
    assert_eq!(step["verdict"], "not-measured");
    assert_eq!(step["lost_frames"], 0);
    assert!(step["no_room_frames"].as_u64() > Some(900), "{step}");
    let throughput = stepped_by(
        ThroughputProcedure::new(throughput_plan(true), BASELINE),
        carry,
    );
    let text = throughput_text(&throughput);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "found no room in the tester's socket on the receiving host; the path may carry more"
        ),
        "{text}"
    );
    for found in throughput_json(&throughput)["sizes"].as_array().unwrap() {
        assert_eq!(found["is_receiver_limited"], true);
        assert_eq!(found["is_sender_limited"], false);
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn the_page_stands_alone() {
    let page = html(&finished()).unwrap();
    assert!(page.contains("&lt;4MiB&gt;"));
    assert!(page.matches("<svg").count() >= 5);
    assert_stands_alone(&page);
}

fn assert_stands_alone(page: &str) {
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"));
    for outside in ["http://", "https://", "<script", "<link", "url("] {
        let own = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(outside), "{outside}");
    }
}
