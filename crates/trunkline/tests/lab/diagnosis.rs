//! Tests of the diagnosis on the kernel's own policers and shapers, with a few cases of `trunkline
//! bench diagnosis`.
//!
//! The benchmark measures on an idle machine whether each bottleneck is named correctly. Here only
//! facts are tested that a busy machine does not change: every case is built, measured at both ends
//! and in its capture, judged, and kept.

use std::process::Command;

use bench::labelled::{BottleneckDevice, PathCase};
use lab::servers::ServerKind;
use serde_json::Value;

use crate::setting::turn;

const SEED: u64 = 7;

/// The first case of each kind of device, of those that take the shortest.
fn cases() -> Vec<u32> {
    let is = |kind: fn(&BottleneckDevice) -> bool| {
        let drawn = (0..60).map(|index| PathCase::draw(SEED, index));
        drawn
            .filter(|case| kind(&case.device) && case.truth().rate < 12e6)
            .min_by(|a, b| a.measure_for().cmp(&b.measure_for()))
            .map(|case| case.index)
            .expect("sixty cases hold every kind")
    };
    vec![
        is(|device| matches!(device, BottleneckDevice::NftPackets { .. })),
        is(|device| {
            matches!(
                device,
                BottleneckDevice::Tbf {
                    queue_packets: 2,
                    ..
                }
            )
        }),
        is(|device| {
            matches!(
                device,
                BottleneckDevice::Tbf {
                    queue_packets: 5..,
                    ..
                }
            )
        }),
    ]
}

#[test]
fn kernel_paths_are_measured_judged_and_kept() {
    let Some(_turn) = turn(
        "kernel_paths_are_measured_judged_and_kept",
        &[ServerKind::Http],
    ) else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let results = folder.path().join("results.jsonl");
    let numbers: Vec<String> = cases().iter().map(u32::to_string).collect();
    let captures = folder.path().join("captures");
    let bench = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
            .args(["bench", "diagnosis", "--json", "--at-once=3"])
            .arg(format!("--seed={SEED}"))
            .arg(format!("--only={}", numbers.join(",")))
            .arg("--results")
            .arg(&results)
            .arg("--keep")
            .arg(&captures)
            .args(more)
            .output()
            .expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {errors}"))
    };
    let found = bench(&[]);
    let all = found["cases"].as_array().expect("a list");
    assert_eq!(all.len(), 3, "{}", found["not_measured"]);
    for outcome in all {
        // A rate was found behind each bottleneck, so something is said of it.
        assert!(!outcome["found"].as_array().expect("a list").is_empty());
        assert!(!outcome["captured"].as_array().expect("a list").is_empty());
    }
    let figures = &found["figures"]["two_ended"];
    assert_eq!(figures["policer_or_shaper"]["all"], 3);
    let kept = std::fs::read_to_string(&results).expect("results are kept");
    assert_eq!(kept.lines().count(), 3);
    // What is there is not measured again.
    assert_eq!(bench(&[])["figures"], found["figures"]);
    let again = std::fs::read_to_string(&results).expect("results are kept");
    assert_eq!(again, kept);
    // Nor to judge a kept capture again, which gives what it gave.
    let judged = bench(&["--again"]);
    assert_eq!(judged["cases"], found["cases"]);
    let one = std::fs::read_dir(&captures).expect("captures are kept");
    let one = one.flatten().next().expect("three of them").path();
    std::fs::remove_file(one).expect("ours");
    let judged = bench(&["--again"]);
    assert_eq!(judged["cases"].as_array().map(Vec::len), Some(2));
    assert_eq!(judged["not_measured"].as_array().map(Vec::len), Some(1));
}
