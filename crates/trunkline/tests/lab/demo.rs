//! Tests of the demo as a user runs it, on a few files.

use std::path::Path;
use std::process::Command;

use lab::servers::ServerKind;
use serde_json::Value;

use crate::setting::shared_turn;

#[test]
fn demo_rows_are_complete_and_match_tshark() {
    let Some(_turn) = shared_turn(
        "demo",
        &[ServerKind::Http, ServerKind::Ftp, ServerKind::Smb],
    ) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args([
            "demo",
            "--workload",
            "http-download,ftp-download,ftp-upload,smb-download,smb-upload,page-load",
            "--files",
            "50K.doc,200K.ppt,500K.xls",
            "--seed",
            "1",
        ])
        .arg("--json")
        .arg(path("rows.json"))
        .arg("--report")
        .arg(path("report.html"))
        .arg("--keep")
        .arg(path("kept"))
        .output()
        .expect("the program starts");
    let table = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{errors}");
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let rows = std::fs::read_to_string(path("rows.json")).expect("it writes JSON");
    let rows: Value = serde_json::from_str(&rows).expect("it writes JSON");
    page_load(&rows["page_load"]);
    let rows = rows["rows"].as_array().expect("there are rows");
    assert_eq!(rows.len(), 15);
    for row in rows {
        for pass in ["baseline", "cold", "warm", "edited"] {
            assert!(row[format!("{pass}_s")].is_f64(), "{row}");
            assert!(row[format!("{pass}_wan_bytes")].is_u64(), "{row}");
        }
    }
    let sum = |key: &str, kind: &str| -> f64 {
        rows.iter()
            .filter(|row| {
                row["workload"]
                    .as_str()
                    .is_some_and(|name| name.starts_with(kind))
            })
            .filter_map(|row| row[key].as_f64())
            .sum()
    };
    // The bars of the whole set stand in its own report; these small files must gain, too.
    for kind in ["http", "ftp", "smb"] {
        let share = sum("warm_wan_bytes", kind) / sum("baseline_wan_bytes", kind);
        assert!(
            share < 0.05,
            "{kind}: warm transfers cost {share} of the baseline's bytes"
        );
    }
    let page = std::fs::read_to_string(path("report.html")).expect("it writes a report");
    assert!(page.contains("<svg"));
    recompute(&path("kept"));
}

/// A file that is downloaded again crosses the WAN as nothing.
#[test]
fn https_download_has_a_row_for_each_state() {
    let Some(_turn) = shared_turn("demo by HTTPS", &[ServerKind::Http]) else {
        return;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["demo", "--workload", "https-download", "--json"])
        .args(["--link", "rate=100Mbit,delay=5ms,queue=1MB"])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
    let download = &rows["https_download"];
    let rows = download["rows"].as_array().expect("there are rows");
    let bytes = |state: &str| -> f64 {
        let row = rows.iter().find(|row| row["state"] == state);
        let row = row.expect("each state has a row");
        let seconds = row["download_s"].as_f64();
        assert!(seconds.is_some_and(|seconds| seconds > 0.0), "{row}");
        row["wan_bytes"].as_f64().expect("bytes were counted")
    };
    let file = download["bytes"].as_f64().expect("the file has a size");
    assert!(bytes("without") > file, "{download}");
    assert!(bytes("cold") > file, "{download}");
    assert!(bytes("warm") < 20_000.0, "{download}");
}

/// A page that a second client loads crosses the WAN as one conditional request.
fn page_load(page: &Value) {
    let rows = page["rows"].as_array().expect("there are rows");
    let bytes = |state: &str| -> f64 {
        let row = rows.iter().find(|row| row["state"] == state);
        let row = row.expect("each state has a row");
        assert!(row["load_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
        row["wan_bytes"].as_f64().expect("bytes were counted")
    };
    assert!(bytes("without") > 1_000_000.0, "{page}");
    assert!(bytes("cold") > 1_000_000.0, "{page}");
    assert!(bytes("warm") < 20_000.0, "{page}");
}

fn recompute(kept: &Path) {
    if host::command::find("tshark").is_none() {
        eprintln!("not recomputed: tshark is missing (apt-get install tshark)");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/recompute-rows.sh");
    let output = Command::new(script)
        .arg(kept)
        .output()
        .expect("the script starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("60 rows and 0 passes recomputed, 0 differ"),
        "{text}"
    );
}
