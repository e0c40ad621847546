//! Tests of exit codes: a refusal always has the same code, whichever part refuses; a failure has
//! another.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use crate::setting::turn;

const FAILED: i32 = 1;
const REFUSED: i32 = 2;
const FAILED_AROUND: i32 = 125;

fn emulate(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .arg("emulate")
        .args(arguments)
        .output()
        .unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Arguments that are refused by the argument parser, by settings, by files, by the models, and by
/// their combination.
const REFUSALS: [(&[&str], &str); 23] = [
    (&["run", "--bogus"], "--bogus"),
    (&["run", "--rate", "0"], "`rate`"),
    (&["run", "--rate", "fast"], "64kbit"),
    (&["run", "--delay", "-5ms"], "below zero"),
    (&["run", "--delay", "1", "%"], "without a space: --delay 1%"),
    (
        &["set", "--rate", "1.5", "Mbit"],
        "without a space: --rate 1.5Mbit",
    ),
    (&["run", "--seed", "-1"], "seed"),
    (&["run", "--preset", "4g"], "lte"),
    (
        &["run", "--config", "/nowhere/link.toml"],
        "/nowhere/link.toml",
    ),
    (&["run", "--trace", "/nowhere/trace"], "/nowhere/trace"),
    (
        &["run", "--rate", "1Mbit", "--shaper", "rate=1Mbit,burst=2kB"],
        "contradict",
    ),
    (&["run", "--delay", "11min"], "600s"),
    (&["run", "--aqm", "codel:target=0ms"], "above zero"),
    (&["run", "--rate", "10Mbit", "--queue", "100GB"], "100GB"),
    (&["run", "--bridge", "eth1"], "--bridge eth1,eth2"),
    (&["run", "--bridge", "eth1,eth1"], "two different"),
    (&["run", "--io", "xdp"], "--bridge"),
    (&["run", "--io", "xdp", "--", "true"], "--io"),
    (&["run", "--delay", "5ms", "--"], "no command follows --"),
    (&["run", "--device-a", "x", "--device-b", "x"], "--device-b"),
    (&["run", "--device-a", "longer-than-names-are"], "1 to 15"),
    (&["presets", "4g"], "lte"),
    (&["set"], "name a setting to change"),
];

#[test]
fn usage_error_ends_with_2() {
    for (arguments, hint) in REFUSALS {
        let (code, said) = emulate(arguments);
        assert_eq!(code, Some(REFUSED), "{arguments:?}: {said}");
        assert!(said.contains(hint), "{arguments:?}: {said}");
    }
}

#[test]
fn usage_error_ends_with_2_before_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("ran");
    for setting in [
        ["--rate", "0"],
        ["--trace", "/nowhere/trace"],
        ["--delay", "11min"],
    ] {
        let command = ["--", "touch", mark.to_str().unwrap()];
        let arguments = [&["run"], &setting[..], &command].concat();
        let (code, said) = emulate(&arguments);
        assert_eq!(code, Some(REFUSED), "{arguments:?}: {said}");
        assert!(!mark.exists());
    }
}

#[test]
fn replay_succeeds_only_on_a_whole_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log.csv");
    let head = "# trunkline packet log, version 1\n\
        # set: {\"at_ns\":0,\"next\":[0,0],\"settings\":{\"delay\":\"1ms\"},\"files\":[]}\n";
    let row = |number: u64, fate: &str, at_ns: u64| {
        format!("forward,{number},{number},40,0,{fate},{at_ns},\n")
    };
    let rows = row(0, "delivered", 1_000_000) + &row(1, "delivered", 1_000_001);
    let end = |records: u64, lost: u64| {
        format!("# end: {{\"records\":{records},\"lost_records\":{lost},\"error\":null}}\n")
    };
    let with_untaken = rows.clone() + &row(2, "untaken", 1_000_002);
    for (text, code, hint) in [
        (rows.clone() + &end(2, 0), 0, ""),
        (with_untaken + &end(3, 0), 0, ""),
        (
            row(0, "lost", 1_000_000) + &end(1, 0),
            FAILED,
            "differ from those in the log",
        ),
        (rows.clone(), FAILED, "has no end"),
        (rows.clone() + &end(2, 3), FAILED, "lacks 3 records"),
        (rows.clone() + &end(3, 0), FAILED, "there are 2"),
        (
            rows + &row(3, "delivered", 1_000_003) + &end(3, 0),
            FAILED,
            "packet 2 is not in",
        ),
        (row(0, "eaten", 1), FAILED, "line 3"),
    ] {
        std::fs::write(&log, head.to_owned() + &text).unwrap();
        let (is, said) = emulate(&["replay", log.to_str().unwrap()]);
        assert_eq!(is, Some(code), "{text}: {said}");
        assert!(said.contains(hint), "{text}: {said}");
    }
}

#[test]
fn failure_ends_with_1_or_125_around_command() {
    let Some(_turn) = turn("failure_ends_with_1_or_125_around_command", &[]) else {
        return;
    };
    let log = "/nowhere/log.csv";
    assert!(!Path::new("/nowhere").exists());
    let (code, said) = emulate(&[
        "run",
        "--device-a",
        "C-a",
        "--device-b",
        "C-b",
        "--log",
        log,
    ]);
    assert_eq!(code, Some(FAILED), "{said}");
    assert!(said.contains(log), "{said}");
    let (code, said) = emulate(&["run", "--log", log, "--", "true"]);
    assert_eq!(code, Some(FAILED_AROUND), "{said}");
    let (code, said) = emulate(&["status", "--control", "/nowhere/control.sock"]);
    assert_eq!(code, Some(FAILED), "{said}");
    // What this host has, or has not, at the time: a name that is taken, no such interface.
    for (arguments, hint) in [
        (&["run", "--device-a", "lo"][..], "the name is taken"),
        (
            &["run", "--bridge", "no-such-1,no-such-2"],
            "no such interface",
        ),
        (
            &["run", "--control", "/nowhere/control.sock"],
            "the directory /nowhere does not exist",
        ),
    ] {
        let (code, said) = emulate(arguments);
        assert_eq!(code, Some(FAILED), "{arguments:?}: {said}");
        assert!(said.contains(hint), "{arguments:?}: {said}");
    }
    let control = ["run", "--control", "/nowhere/control.sock", "--", "true"];
    let (code, said) = emulate(&control);
    assert_eq!(code, Some(FAILED_AROUND), "{said}");
    let (code, said) = emulate(&["run", "--", "sh", "-c", "exit 3"]);
    assert_eq!(code, Some(3), "{said}");
}
