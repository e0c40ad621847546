//! Tests of the device profiler: over a cable of its own, and through a router of the kernel.
//!
//! ```text
//!   namespace of the ports:  port0        port1
//!                              ║            ║
//!   router's namespace:      in0 ─ forward ─ in1 (tbf)
//! ```
//! The kernel's own counters of forwarded and dropped packets are the reference. The tests need root;
//! without it each says so on standard error, and passes. They run one at a time.

#![allow(clippy::unwrap_used)]
// A report for people.
#![allow(clippy::disallowed_macros)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use host::progress::SilentProgress;
use host::rootless::UserNamespaceMembership;
use host::run::LabRun;
use host::{ProgramEnvironment, command, kernel};
use profiler::benchmark::{self, BenchmarkSettings};
use profiler::captured_flows;
use profiler::{MeasurementPlan, MeasurementSettings, PortLocation, measure, report};
use serde_json::Value;

static TURN: Mutex<()> = Mutex::new(());

/// Waits for this test's turn; `None` where it cannot run, with a remark on standard error.
fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let has_root = kernel::effective_user() == 0 && command::find("ip").is_some();
    if has_root && command::run("unshare", ["-n", "true"]).is_ok() {
        return Some(turn);
    }
    // Past the test harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "skipped {test}: it needs root and ip(8)");
    None
}

fn lab() -> LabRun {
    LabRun::create(&ProgramEnvironment {
        program: PathBuf::new(),
        arguments: Vec::new(),
        user_namespace: UserNamespaceMembership::No,
    })
    .unwrap()
}

/// A router of the kernel between two ports.
struct KernelRouter {
    ports: String,
    router: String,
    run: LabRun,
}

impl KernelRouter {
    fn new() -> Self {
        let run = lab();
        let ports = run.make_namespace("ports").unwrap();
        let router = run.make_namespace("router").unwrap();
        // The router asks for no host until its own check for duplicates has ended, two seconds later.
        command::run(
            "ip",
            [
                "netns",
                "exec",
                &router,
                "sysctl",
                "-qw",
                "net.ipv6.conf.all.accept_dad=0",
                "net.ipv6.conf.default.accept_dad=0",
            ],
        )
        .unwrap();
        for number in 0..2 {
            let pair = format!(
                "-n {ports} link add port{number} type veth peer name in{number} netns {router}"
            );
            ip(&pair);
            ip(&format!(
                "-n {router} address add 198.18.{number}.1/24 dev in{number}"
            ));
            ip(&format!(
                "-n {router} address add 2001:2:0:{number}::1/64 dev in{number} nodad"
            ));
            ip(&format!("-n {router} link set in{number} up"));
            ip(&format!("-n {ports} link set port{number} up"));
        }
        let router = Self { ports, router, run };
        router.inside("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        assert_eq!(
            router.inside("cat /proc/sys/net/ipv4/ip_forward").trim(),
            "1"
        );
        router
    }

    fn inside(&self, words: &str) -> String {
        let arguments = ["netns", "exec", &self.router].into_iter();
        command::run("ip", arguments.chain(words.split(' '))).unwrap()
    }

    /// Packets that the kernel has forwarded (RFC 4293, ipForwDatagrams).
    fn forwarded(&self) -> u64 {
        let text = self.inside("cat /proc/net/snmp");
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
        let names = lines.next().unwrap().split(' ');
        let values = lines.next().unwrap().split(' ');
        let found = names.zip(values).find(|(name, _)| *name == "ForwDatagrams");
        found.unwrap().1.parse().unwrap()
    }

    /// The same of IPv6 (RFC 4293, ipv6IfStatsOutForwDatagrams).
    fn forwarded_ipv6(&self) -> u64 {
        let text = self.inside("cat /proc/net/snmp6");
        let value = |line: &str| {
            line.strip_prefix("Ip6OutForwDatagrams")?
                .trim()
                .parse()
                .ok()
        };
        text.lines().find_map(value).unwrap()
    }

    fn ports(&self) -> Vec<PortLocation> {
        [0, 1]
            .map(|number| PortLocation::parse(&format!("port{number}@{}", self.ports)).unwrap())
            .to_vec()
    }

    fn profile(&self, plan: &str, records: &Path) -> Value {
        profile(&self.run, plan, self.ports(), records).unwrap()
    }
}

fn ip(words: &str) {
    command::run("ip", words.split(' ')).unwrap();
}

/// Measures by a plan; returns the report.
fn profile(
    run: &LabRun,
    plan: &str,
    ports: Vec<PortLocation>,
    records: &Path,
) -> anyhow::Result<Value> {
    let settings = MeasurementSettings {
        plan: MeasurementPlan::from_toml(plan).unwrap(),
        ports,
        records: Some(records.to_owned()),
        records_max_bytes: 1 << 30,
    };
    let result = measure(run, &settings, &SilentProgress)?;
    Ok(report::document(&result))
}

/// Rows of a column, by the head of its NumPy file.
fn rows(records: &Path, column: &str) -> (u64, Vec<u8>) {
    let bytes = fs::read(records.join(format!("{column}.npy"))).unwrap();
    let head = String::from_utf8_lossy(&bytes[10..128]).into_owned();
    let shape = head.split(['(', ',']).nth(3).unwrap();
    (shape.trim().parse().unwrap(), bytes[128..].to_vec())
}

fn plan(subject: &str, traffic: &str) -> String {
    format!(
        r#"
name = "test"
ports = 2
loss_after = "300ms"
[[experiment]]
name = "only"
purpose = "report"
subjects = ["{subject}"]
{traffic}
"#
    )
}

fn constant(from: u16, to: u16, size: u32, rate: f64, packets: u64) -> String {
    format!(
        r#"[[experiment.traffic]]
from = [{from}]
to = [{to}]
pattern = {{ kind = "constant", packets_per_second = {rate:.1} }}
sizes = [{{ size = "{size}B" }}]
packets = {packets}
"#
    )
}

#[test]
fn cable_delivers_and_records_every_packet() {
    let Some(_turn) = turn("cable_delivers_and_records_every_packet") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    let plan = plan("cable", &constant(0, 1, 92, 5_000.0, 5_000));
    let document = profile(&lab(), &plan, Vec::new(), &records).unwrap();
    let run = &document["runs"][0];
    assert_eq!(run["sent"], 5_000, "{document:#}");
    assert_eq!(run["delivered"], 5_000, "{document:#}");
    assert_eq!(run["own_loss"], 0.0);
    assert_eq!(document["records"]["rows"], 5_000);
    assert_eq!(rows(&records, "sent_ns").0, 5_000);
    let (count, fates) = rows(&records, "fate");
    assert_eq!((count, fates), (5_000, vec![0; 5_000]));
    // A packet cannot arrive before it is sent, and the stamps are the kernel's.
    assert!(run["delay"]["min_ns"].as_u64().unwrap() > 0);
    assert_eq!(run["ports"]["lost_stamps"], 0);
}

#[test]
fn each_measurement_has_a_cable_of_its_own() {
    let Some(_turn) = turn("each_measurement_has_a_cable_of_its_own") else {
        return;
    };
    let lab = lab();
    let plan = plan("cable", &constant(0, 1, 92, 1_000.0, 100));
    for _ in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let records = directory.path().join("records");
        let document = profile(&lab, &plan, Vec::new(), &records).unwrap();
        assert_eq!(document["runs"][0]["sent"], 100, "{document:#}");
    }
}

#[test]
fn routed_packets_agree_with_the_kernels_counter() {
    let Some(_turn) = turn("routed_packets_agree_with_the_kernels_counter") else {
        return;
    };
    let router = KernelRouter::new();
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    let traffic = constant(0, 1, 1_400, 1_000.0, 1_000) + &constant(1, 0, 92, 2_000.0, 2_000);
    let document = router.profile(&plan("device", &traffic), &records);
    let run = &document["runs"][0];
    assert_eq!(run["sent"], 3_000, "{document:#}");
    assert_eq!(run["delivered"], 3_000, "{document:#}");
    assert_eq!(router.forwarded(), 3_000);
    assert_eq!(rows(&records, "output").0, 3_000);
}

#[test]
fn ipv6_packets_and_tcp_flows_pass_a_router() {
    let Some(_turn) = turn("ipv6_packets_and_tcp_flows_pass_a_router") else {
        return;
    };
    let router = KernelRouter::new();
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    let udp = constant(0, 1, 1_400, 1_000.0, 200) + &constant(1, 0, 92, 1_000.0, 200);
    let plan = "family = \"ipv6\"".to_owned() + &plan("device", &udp);
    let document = router.profile(&plan, &records);
    let run = &document["runs"][0];
    assert_eq!(run["delivered"], 400, "{document:#}");
    // The router counts its replies to our solicitations apart.
    assert_eq!(router.forwarded_ipv6(), 400);
    assert_eq!(router.forwarded(), 0);
    // The router asked who has the addresses of the hosts, and our ports answered.
    let neighbours = router.inside("ip -6 neigh show");
    for host in ["2001:2:0:0::3", "2001:2:0:1::2"] {
        let host: std::net::Ipv6Addr = host.parse().unwrap();
        let line = neighbours
            .lines()
            .find(|line| line.starts_with(&format!("{host} ")));
        assert!(
            line.is_some_and(|line| line.contains("lladdr")),
            "{neighbours}"
        );
    }
    let tcp = r#"[[experiment.traffic]]
from = [0]
to = [1]
pattern = { kind = "tcp", segment = "1428B", bytes = "100kB" }
flows = 3
duration = "400ms"
"#;
    let records = directory.path().join("tcp");
    let plan = plan.replace(&udp, tcp);
    let document = router.profile(&plan, &records);
    let run = &document["runs"][0];
    let count = |key: &str| run[key].as_u64().unwrap();
    // 71 segments of each flow, and acknowledgements.
    assert!(count("sent") > 3 * 71, "{document:#}");
    assert_eq!(count("delivered"), count("sent"), "{document:#}");
    assert_eq!(router.forwarded_ipv6(), 400 + count("sent"));
}

#[test]
fn losses_agree_with_the_drops_of_a_shaper() {
    let Some(_turn) = turn("losses_agree_with_the_drops_of_a_shaper") else {
        return;
    };
    let router = KernelRouter::new();
    router.inside("tc qdisc add dev in1 root tbf rate 4mbit burst 3000 limit 15000");
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records");
    // 8 Mbit/s of IP for 1 s: half of it finds the queue full.
    let traffic = constant(0, 1, 1_000, 1_000.0, 1_000);
    let document = router.profile(&plan("device", &traffic), &records);
    let run = &document["runs"][0];
    let count = |key: &str| run[key].as_u64().unwrap();
    assert_eq!(count("sent"), 1_000, "{document:#}");
    assert_eq!(count("delivered") + count("lost"), 1_000);
    let text = router.inside("tc -s qdisc show dev in1");
    let dropped: u64 = text
        .split("dropped ")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(count("lost"), dropped, "{text}{document:#}");
    assert!(dropped > 100, "{text}");
    let (_, fates) = rows(&records, "fate");
    let lost = fates.iter().filter(|fate| **fate == 4).count();
    assert_eq!(lost as u64, dropped);
}

#[test]
fn port_without_a_device_is_named() {
    let Some(_turn) = turn("port_without_a_device_is_named") else {
        return;
    };
    let router = KernelRouter::new();
    router.inside("ip link set in0 down");
    let plan = plan("device", &constant(0, 1, 92, 100.0, 10));
    let records = router.run.directory().join("records");
    let error = profile(&router.run, &plan, router.ports(), &records).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("no device answers on port 0 (port0)"),
        "{error}"
    );
}

#[test]
fn two_measurements_on_one_interface_are_refused() {
    let Some(_turn) = turn("two_measurements_on_one_interface_are_refused") else {
        return;
    };
    let router = KernelRouter::new();
    let ports = router.ports();
    let twice = vec![ports[0].clone(), ports[0].clone()];
    let plan = plan("device", &constant(0, 1, 92, 100.0, 10));
    let records = router.run.directory().join("records");
    let error = profile(&router.run, &plan, twice, &records).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("a profiler measures through it"), "{error}");
}

/// Packets of the runs through routers that misbehave.
const PACKETS: u64 = 200;

/// Sends packets of 1000 bytes through a router that was set up with these commands; returns the
/// report, and its findings as a text.
fn through_misbehaving_router(commands: &[&str]) -> (Value, String) {
    let router = KernelRouter::new();
    for command in commands {
        router.inside(command);
    }
    let records = router.run.directory().join("records");
    let traffic = constant(0, 1, 1_000, 1_000.0, PACKETS);
    let document = router.profile(&plan("device", &traffic), &records);
    // Whatever happens, each packet has its record.
    assert_eq!(rows(&records, "fate").0, PACKETS, "{document:#}");
    let findings = document["findings"].to_string();
    (document["runs"][0].clone(), findings)
}

const NFT_TABLE: &str = "nft add table ip misbehaving";
const NFT_FORWARD: &str =
    "nft add chain ip misbehaving rules { type filter hook forward priority 0 ; }";
const NFT_BEFORE: &str =
    "nft add chain ip misbehaving rules { type filter hook prerouting priority -300 ; }";

#[test]
fn router_that_rewrites_is_named() {
    let Some(_turn) = turn("router_that_rewrites_is_named") else {
        return;
    };
    let rule = "nft add rule ip misbehaving rules ip saddr set 198.18.0.99";
    let (run, findings) = through_misbehaving_router(&[NFT_TABLE, NFT_FORWARD, rule]);
    assert_eq!(run["arrivals"]["rewritten"], PACKETS, "{run:#}");
    assert_eq!(run["corrupted"], PACKETS, "{run:#}");
    assert!(findings.contains("the device rewrites them"), "{findings}");
}

#[test]
fn router_that_fragments_is_named() {
    let Some(_turn) = turn("router_that_fragments_is_named") else {
        return;
    };
    // It forgets that packets must not be fragmented.
    let rule = "nft add rule ip misbehaving rules ip frag-off set 0";
    let (run, findings) =
        through_misbehaving_router(&[NFT_TABLE, NFT_BEFORE, rule, "ip link set in1 mtu 600"]);
    assert_eq!(run["arrivals"]["fragments"], 2 * PACKETS, "{run:#}");
    assert_eq!(run["lost"], PACKETS, "{run:#}");
    assert!(findings.contains("smaller MTU"), "{findings}");
}

#[test]
fn icmp_answers_are_named() {
    let Some(_turn) = turn("icmp_answers_are_named") else {
        return;
    };
    let (run, findings) = through_misbehaving_router(&["ip link set in1 mtu 600"]);
    assert_eq!(run["lost"], PACKETS, "{run:#}");
    // The kernel limits their rate. RFC 792: fragmentation needed and DF set.
    let icmp = &run["arrivals"]["icmp"][0];
    assert_eq!(
        (&icmp["kind"], &icmp["code"]),
        (&3.into(), &4.into()),
        "{run:#}"
    );
    assert!(
        findings.contains("ICMP messages of type 3, code 4 came"),
        "{findings}"
    );
}

#[test]
fn asymmetric_forwarding_is_named() {
    let Some(_turn) = turn("asymmetric_forwarding_is_named") else {
        return;
    };
    let (run, findings) = through_misbehaving_router(&[
        "ip route replace 198.18.1.0/24 via 198.18.0.9 dev in0",
        "sysctl -qw net.ipv4.conf.all.send_redirects=0",
        "sysctl -qw net.ipv4.conf.in0.send_redirects=0",
    ]);
    assert_eq!(run["arrivals"]["returned"], PACKETS, "{run:#}");
    assert_eq!(run["lost"], PACKETS, "{run:#}");
    assert!(findings.contains("came back to the port"), "{findings}");
}

#[test]
fn flows_agree_with_captures_of_the_router() {
    let Some(_turn) = turn("flows_agree_with_captures_of_the_router") else {
        return;
    };
    if command::find("tcpdump").is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped flows_agree_with_captures_of_the_router: it needs tcpdump"
        );
        return;
    }
    let figures =
        captured_flows::compare(&lab(), 100, Duration::from_secs(3), &SilentProgress).unwrap();
    println!("{figures:#?}");
    assert_eq!(figures.void, None, "{figures:#?}");
    assert_eq!(figures.captured_flows, 100);
    assert_eq!(figures.recorded_packets, figures.captured_packets);
    assert!(figures.captured_packets > 5_000, "{figures:#?}");
    assert!(figures.loss_ratio > 0.001, "{figures:#?}");
    assert!(
        figures.flow_goodput_error_max_percent < 1e-9,
        "{figures:#?}"
    );
    assert!(figures.flow_loss_error_max < 1e-9, "{figures:#?}");
}

/// Prints what the ports of this machine hold. It takes half a minute and a quiet machine.
#[test]
#[ignore = "a measurement, which needs a quiet machine"]
fn rate_of_the_ports_is_measured() {
    let Some(_turn) = turn("rate_of_the_ports_is_measured") else {
        return;
    };
    let settings = BenchmarkSettings {
        packets_per_second: 260_000.0,
        duration: Duration::from_secs(30),
        known_devices: 0,
        known_devices_real_time: 0..0,
        foreign_devices: 0,
        foreign_devices_real_time: 0..0,
        compares_flows: false,
        within: None,
    };
    let result = benchmark::run(&lab(), settings, &SilentProgress, &|_| ()).unwrap();
    println!(
        "{}\n{:#}",
        report::text(&result.cable),
        result.document["figures"]
    );
}
