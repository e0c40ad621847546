//! Tests of the reduction benchmark's processes on little data: a transfer, a restart, kill -9; and
//! of its small parts.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const MEBIBYTE: u64 = 1 << 20;

/// One end with its dictionary in `place`, under its role's name unless another is given.
fn end(role: &str, place: &Path, directory: &str, bytes: u64) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command
        .args(["bench", "reduction-end", role, "--seed", "9"])
        .args(["--bytes", &bytes.to_string()])
        .args(["--memory", &(16 * MEBIBYTE).to_string()])
        .args(["--disk", &(256 * MEBIBYTE).to_string()])
        .arg("--directory")
        .arg(place.join(directory))
        .arg("--result")
        .arg(place.join(role));
    command
}

fn result(place: &Path, role: &str) -> Value {
    serde_json::from_slice(&std::fs::read(place.join(role)).unwrap()).unwrap()
}

fn transfer(place: &Path) -> [Value; 2] {
    let bytes = 4 * MEBIBYTE;
    let mut receiver: Child = end("receive", place, "far", bytes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = end("send", place, "near", bytes)
        .stdin(receiver.stdout.take().unwrap())
        .stdout(receiver.stdin.take().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(receiver.wait().unwrap().success());
    ["send", "receive"].map(|role| result(place, role))
}

#[test]
fn data_sent_before_a_restart_costs_little() {
    let place = tempfile::tempdir().unwrap();
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap();
    let [cold, _] = transfer(place.path());
    assert!(number(&cold, "wire_bytes") >= 4 * MEBIBYTE);
    let [warm, received] = transfer(place.path());
    assert_eq!(number(&received, "bytes"), 4 * MEBIBYTE);
    assert!(number(&warm, "wire_bytes") < MEBIBYTE / 20, "{warm}");
    assert_eq!(number(&warm, "repairs"), 0);
    assert!(number(&received, "resident_peak_bytes") > MEBIBYTE);
}

#[test]
fn data_reported_on_disk_survives_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let wanted = 24 * MEBIBYTE;
    let mut filling = end("fill", place.path(), "near", wanted)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !place.path().join("fill").exists() {
        assert!(filling.try_wait().unwrap().is_none(), "it ended by itself");
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "nothing is said"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    filling.kill().unwrap();
    filling.wait().unwrap();
    let status = end("reopen", place.path(), "near", 0).status().unwrap();
    assert!(status.success());
    let there = result(place.path(), "reopen")["disk_bytes"].as_u64();
    assert!(there.unwrap() >= wanted);
}

#[test]
fn bench_part_gives_figures_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "a line of found text\n".repeat(10_000)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args([
            "bench",
            "reduction",
            "--json",
            "--parts",
            "idle,text",
            "--repeat",
            "1",
        ])
        .arg("--directory")
        .arg(directory.path())
        .arg("--text")
        .arg(&text)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = &document["figures"];
    assert!(figures["idle_write_delay_us"].as_f64().unwrap() > 0.0);
    assert!(figures["text_cold_wire_bytes"].as_u64().unwrap() < 10_000);
    assert!(figures["text_zstd3_bytes"].as_u64().unwrap() < 1_000);
    assert!(figures["cold_text_gbit_s"].as_f64().unwrap() > 0.0);
    assert!(figures["reopen_10gib_s"].is_null());
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Some dozens of points; `trunkline bench reduction-kill` uses a thousand.
#[test]
fn acknowledged_data_survives_a_kill_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["bench", "reduction-kill", "--json", "--points", "40"])
        .arg("--directory")
        .arg(directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| document["figures"][key].as_u64().unwrap();
    assert_eq!(number("points"), 40);
    assert_eq!(number("lost_references"), 0);
    assert!(number("while_opening") > 0 && number("while_writing") > 0);
    assert!(number("found_bytes") > MEBIBYTE);
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 0, "{left:?}");
}
