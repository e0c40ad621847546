//! Packets of the profiler through a device in real time.

use std::thread;
use std::time::{Duration, Instant};

use crate::stand::{DeviceStand, ip};
use profiler::{RunOutcome, report};

/// A router with a slow line: a packet of 1,000 bytes takes 8 ms.
const SLOW: &str = r#"
    ports = 3
    transit = [{ size = "64B", time = "2ms" }, { size = "1000B", time = "10ms" }]
    [output]
    rate = "1Mbit"
    queue = { packets = 10 }
"#;

fn plan(traffic: &str) -> String {
    format!(
        r#"
        name = "test"
        ports = 3
        loss_after = "500ms"
        [[experiment]]
        name = "only"
        purpose = "report"
        subjects = ["device"]
        traffic = [{traffic}]
        "#
    )
}

#[test]
fn queue_drops_are_the_profilers_losses() {
    let Some(stand) = DeviceStand::new("queue_drops_are_the_profilers_losses", 3) else {
        return;
    };
    let device = stand.start(SLOW);
    let bursts = r#"{ from = [0, 2], to = [1], packets = 200, sizes = [{ size = "1000B" }],
        pattern = { kind = "bursts", packets_per_burst = 100, period = "1s" } }"#;
    let result = stand.measure(&plan(bursts), None).unwrap();
    let document = report::document(&result);
    let run = &result.runs[0].outcome;
    let counters = device.stop().unwrap();
    assert_eq!(run.summary.sent, 200, "{document:#}");
    assert_eq!(
        run.summary.delivered + run.summary.lost,
        200,
        "{document:#}"
    );
    let dropped = counters.dropped_by_output_queue_packets;
    assert_eq!(run.summary.lost, dropped, "{counters:#?}{document:#}");
    // Ten of each burst pass, and a few more if the sender was interrupted for long.
    assert!((100..=180).contains(&dropped), "{counters:#?}");
    assert_eq!(counters.lost_outside_the_model(), 0, "{counters:#?}");
    // Nothing leaves before its time; the clocks of stamps and model differ by less than this.
    let least = u64::from(result.runs[0].delays.unwrap().min_ns);
    assert!(least > 9_950_000, "{least}");
}

#[test]
fn flows_of_all_ports_reach_theirs() {
    let Some(stand) = DeviceStand::new("flows_of_all_ports_reach_theirs", 3) else {
        return;
    };
    let device = stand.start(
        r#"
        ports = 3
        transit = [{ size = "64B", time = "50us" }]
        [output]
        # More than all packets of the run, so that no pause of the machine loses one.
        queue = { packets = 10000 }
        "#,
    );
    let udp = r#"{ from = [0, 1, 2], to = [1, 2, 0], packets = 3000, sizes = [{ size = "200B" }],
        pattern = { kind = "constant", packets_per_second = 3000.0 } }"#;
    let tcp = r#"{ from = [0], to = [2], flows = 10, duration = "500ms",
        pattern = { kind = "tcp", segment = "1448B", bytes = "20kB" } }"#;
    // Longer than a busy machine keeps the device waiting.
    let patient =
        plan(&format!("{udp}, {tcp}")).replace(r#"loss_after = "500ms""#, r#"loss_after = "2s""#);
    let result = stand.measure(&patient, None).unwrap();
    let document = report::document(&result);
    let RunOutcome {
        summary, arrivals, ..
    } = &result.runs[0].outcome;
    assert!(summary.sent > 3_100, "{document:#}");
    assert_eq!(summary.duplicated, 0, "{document:#}");
    // Packets of different ports may overtake each other, and those that wait for a processor for
    // longer than the plan's patience count as late.
    let arrived = summary.delivered + summary.reordered + arrivals.late;
    assert_eq!(arrived, summary.sent, "{document:#}");
    assert_eq!(arrivals.misrouted, 0);
    let counters = device.stop().unwrap();
    assert!(counters.delivered_packets >= arrived, "{counters:#?}");
}

#[test]
fn endless_flows_end_with_their_pattern() {
    let Some(stand) = DeviceStand::new("endless_flows_end_with_their_pattern", 3) else {
        return;
    };
    let device = stand.start(SLOW);
    // The line takes 8 ms for a packet, so that nothing is left to send most of the time.
    let tcp = r#"{ from = [0, 2], to = [1], flows = 4, duration = "1500ms",
        pattern = { kind = "tcp", segment = "948B" } }"#;
    let result = stand.measure(&plan(tcp), None).unwrap();
    assert_eq!(result.failure, None);
    let summary = result.runs[0].outcome.summary;
    assert!(summary.delivered >= 50, "{:#}", report::document(&result));
    drop(device);
}

#[test]
fn deleted_interface_ends_the_device() {
    let Some(stand) = DeviceStand::new("deleted_interface_ends_the_device", 3) else {
        return;
    };
    let device = stand.start(SLOW);
    ip(&format!("-n {} link del in1", stand.device));
    let until = Instant::now() + Duration::from_secs(20);
    while device.is_running() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    let error = format!("{:#}", device.stop().unwrap_err());
    assert!(error.contains("in1 is gone"), "{error}");
}

#[test]
fn loop_between_ports_is_cut() {
    let Some(stand) = DeviceStand::new("loop_between_ports_is_cut", 3) else {
        return;
    };
    // A bridge of the kernel outside joins two ports: each frame to all ports returns.
    let ports = &stand.ports;
    ip(&format!("-n {ports} link add loop type bridge"));
    ip(&format!("-n {ports} link set loop up"));
    for port in ["port1", "port2"] {
        ip(&format!("-n {ports} link set {port} master loop"));
    }
    let device = stand.start(
        r#"
        ports = 3
        transit = [{ size = "64B", time = "20us" }]
        [output]
        queue = { packets = 1000 }
        "#,
    );
    ip(&format!("-n {ports} link set port0 arp on"));
    ip(&format!("-n {ports} address add 198.18.0.2/24 dev port0"));
    // Nobody answers, so the kernel asks everybody.
    let _ = host::command::run(
        "ip",
        [
            "netns",
            "exec",
            ports,
            "ping",
            "-c",
            "1",
            "-W",
            "1",
            "198.18.0.9",
        ],
    );
    let until = Instant::now() + Duration::from_secs(20);
    let mut report = device.report().unwrap();
    while report.dropped_by_flood_limit_frames == 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
        report = device.report().unwrap();
    }
    assert!(report.dropped_by_flood_limit_frames > 0, "{report:#?}");
    let before = report.offered_packets;
    thread::sleep(Duration::from_secs(1));
    let passed = device.report().unwrap().offered_packets - before;
    // 500 frames in 100 ms to two other ports, and twice as much for a late look.
    assert!(passed <= 2 * 2 * 5_000, "{passed}");
    drop(device);
}
