//! Turn-up tests over an emulated link, as a person runs them.
//!
//! Only what a busy machine cannot change is asserted: sizes, windows, counters, and that no rate is
//! above the link's.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lab::command;
use lab::kernel;
use lab::servers::Kind;
use lab::site::{Lab, WithNodes};
use lab::topology::Site;
use serde_json::Value;

use crate::setting::{SLOW, standing, turn};

const KEY: &str = "an onyx cat sleeps";
/// What the far router lets through of the way up, without a word about the rest.
const CARRIED: u64 = 1_380;
const SILENT_DROP: &str = "table ip hole {
    chain forward {
        type filter hook forward priority 0
        iifname wan0 ip length > 1380 drop
    }
}
";

/// The server, ended when dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn trunkline(lab: &Lab, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command
        .args(["measure"])
        .args(arguments)
        .env("TRUNKLINE_MEASURE_KEY", KEY);
    let namespace = lab.topology().namespace_file(role);
    kernel::prepare_child(&mut command, Some(&namespace)).expect("the namespace is there");
    command
}

fn serve(lab: &Lab) -> Serving {
    let log = lab.logs().join("turn-up-server.log");
    let output = std::fs::File::create(&log).expect("the log can be written");
    let child = trunkline(lab, "server", &["server"])
        .stdout(output)
        .stdin(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_for(&log, "ready");
    Serving(child)
}

fn wait_for(log: &Path, word: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(log)
        .unwrap_or_default()
        .contains(word)
    {
        assert!(Instant::now() < until, "the server did not say \"{word}\"");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn document(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// RFC 6349 from end to end: path MTU to the byte behind a silent drop, a rate no higher than the
/// link's, the effective window within 2 % of the one asked for, counters that agree.
#[test]
fn a_circuit_is_measured_from_end_to_end() {
    let Some(_turn) = turn("a_circuit_is_measured_from_end_to_end", &[Kind::Http]) else {
        return;
    };
    if command::find("nft").is_none() {
        return;
    }
    let lab = standing(SLOW, WithNodes::No, &[Site::Near, Site::Far]);
    let far = lab.topology().namespace("far");
    let nft = ["netns", "exec", &far, "nft", "-f", "-"];
    command::run_with_input("ip", nft, SILENT_DROP).expect("the rule is taken");
    let _server = serve(&lab);
    let page = lab.logs().join("turn-up.html");
    let host = Site::Far.host_address().to_string();
    let arguments = [
        "run",
        &host,
        "--direction=up",
        "--duration=2s",
        "--walk=0",
        "--window=12kB",
        "--connections=1",
        "--max-rate=40Mbit",
        "--min-path-mtu=1400",
        "--json",
        "--html",
        page.to_str().expect("a path of plain letters"),
    ];
    let output = trunkline(&lab, "client", &arguments)
        .output()
        .expect("the program starts");
    let found = document(&output);
    assert_eq!(output.status.code(), Some(1), "{}", found["reasons"]);
    assert_eq!(found["path_mtu_bytes"], CARRIED);
    let rtt = found["baseline_rtt_ms"].as_f64().expect("it was measured");
    assert!(rtt >= 20.0, "both delays are 10 ms: {rtt}");
    let up = &found["directions"]["up"];
    let rate = up["bottleneck_bit_s"].as_f64().expect("it was measured");
    assert!(rate <= 10.02e6, "the link has 10 Mbit/s: {rate}");
    let run = &up["runs"][0];
    assert_eq!(run["window_bytes"], 12_000);
    let effective = run["effective_window_bytes"]
        .as_f64()
        .expect("the kernel tells");
    assert!((effective / 12_000.0 - 1.0).abs() <= 0.02, "{effective}");
    let (sent, again) = (&run["sent_bytes"], &run["retransmitted_bytes"]);
    let (sent, again) = (
        sent.as_f64().expect("counted"),
        again.as_f64().expect("counted"),
    );
    let efficiency = run["tcp_efficiency_percent"].as_f64().expect("computed");
    assert!((efficiency - (sent - again) / sent * 100.0).abs() < 1e-9);
    let causes: Vec<&str> = found["diagnosis"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|finding| finding["cause"].as_str())
        .collect();
    assert!(causes.contains(&"mtu-black-hole"), "{causes:?}");
    let page = std::fs::read_to_string(&page).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("FAILED: path MTU up"));
}
