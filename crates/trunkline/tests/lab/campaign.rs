//! Tests of campaigns as a user runs them: a plan is measured, killed and continued.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::servers::ServerKind;
use lab::workload::WorkloadKind;
use serde_json::Value;

use crate::setting::{mailbox_python, shared_turn, smb_python};

const PLAN: &str = r#"
title = "A small campaign"
seed = 7
span = "5s"

[[link]]
name = "branch"
settings = "rate=8Mbit,delay=10ms"
document = "700kB"

[[group]]
protocol = "HTTP"
workload = "http-download"
links = ["branch"]
one_way_delays = ["0s", "10ms"]
modes = ["baseline", "transport", "application"]

[[group]]
protocol = "FTP-up"
workload = "ftp-upload"
links = ["branch"]
modes = ["baseline"]

[[group]]
protocol = "FTP-down"
workload = "ftp-download"
links = ["branch"]
modes = ["baseline"]

[[group]]
protocol = "CIFS-up"
workload = "smb-upload"
links = ["branch"]
modes = ["baseline"]

[[group]]
protocol = "CIFS"
workload = "smb-download"
links = ["branch"]
modes = ["baseline", "application"]
caches = ["cold", "warm"]
files = ["50K.doc", "50K.xls"]

"#;

/// Workloads of serial SMB clients, where their Python is installed.
const SERIAL: &str = r#"
[[group]]
protocol = "CIFS-serial"
workload = "smb-serial-download"
links = ["branch"]
modes = ["application"]

[[group]]
protocol = "CIFS-office"
workload = "smb-office"
links = ["branch"]
modes = ["baseline"]
caches = ["cold"]
files = ["50K.doc"]
"#;

/// Attachments of a mailbox, where its Python is installed.
const MAIL: &str = r#"
[[group]]
protocol = "MAPI-XP"
workload = "mapi-xp"
links = ["branch"]
modes = ["baseline", "application"]

[[group]]
protocol = "MAPI-2003"
workload = "mapi-2003"
links = ["branch"]
modes = ["baseline", "exchange"]
"#;

/// Time limit for the first finished series.
const FIRST_LIMIT: Duration = Duration::from_secs(120);

fn run(plan: &Path, kept: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command
        .args(["lab", "run"])
        .arg(plan)
        .arg("--keep")
        .arg(kept)
        .arg("--json");
    command
}

#[test]
fn killed_campaign_continues_without_repeating() {
    let kinds = [ServerKind::Http, ServerKind::Ftp, ServerKind::Smb];
    let Some(_turn) = shared_turn("campaign", &kinds) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let plan = directory.path().join("plan.toml");
    let kept = directory.path().join("kept");
    let has_serial = smb_python().is_some();
    let has_mail = mailbox_python().is_some();
    let mut text = PLAN.to_owned();
    for (is_there, group, package) in [
        (has_serial, SERIAL, "smbprotocol"),
        (has_mail, MAIL, "impacket"),
    ] {
        match is_there {
            true => text += group,
            false => {
                eprintln!("not all is run: no Python with {package} (scripts/install.sh test)")
            }
        }
    }
    std::fs::write(&plan, text).expect("the plan is written");

    let mut first = run(&plan, &kept)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let journal = || std::fs::read_to_string(kept.join("journal.jsonl")).unwrap_or_default();
    let began = Instant::now();
    while journal().lines().count() < 3 {
        assert!(began.elapsed() < FIRST_LIMIT, "no series ends");
        assert!(first.try_wait().expect("it is a child").is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    first.kill().expect("it is killed");
    first.wait().expect("it ends");
    let before = journal();

    let second = run(&plan, &kept).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.success(), "{errors}");
    assert!(errors.contains("are finished"), "{errors}");
    let whole = before.rfind('\n').map_or(0, |last| last + 1);
    assert!(journal().starts_with(&before[..whole]));
    let document: Value = serde_json::from_slice(&second.stdout).expect("it writes JSON");
    let cells = document["cells"].as_array().expect("there are cells");
    let expected = 12 + 2 * usize::from(has_serial) + 4 * usize::from(has_mail);
    assert_eq!(cells.len(), expected);
    for cell in cells {
        assert_eq!(cell["status"], "measured", "{cell}");
        assert!(cell["throughput_kB_s"].is_f64(), "{cell}");
        assert_eq!(cell["identical"], true, "{cell}");
    }
    // Two files over SMB, and a document.
    let rows = 2 + usize::from(has_serial);
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(rows));
    // A series that was finished when the first run was killed has no further attempt, and every other one
    // that it had begun has one more.
    let (before, after) = (
        attempts_by_series(&before[..whole]),
        attempts_by_series(&journal()),
    );
    let unchanged = before
        .iter()
        .filter(|(key, count)| after.get(*key) == Some(*count));
    assert_eq!(
        unchanged.count(),
        finished_series(&errors),
        "{before:?} {after:?}"
    );
    assert!(finished_series(&errors) > 0, "{errors}");
    let most = *after.values().max().expect("there are attempts");
    assert!(most <= 2, "{after:?}");
    assert_eq!(document["attempts"].as_u64(), Some(after.values().sum()));

    let report = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["lab", "report"])
        .arg(&kept)
        .arg("--json")
        .output()
        .expect("the program starts");
    let again: Value = serde_json::from_slice(&report.stdout).expect("it writes JSON");
    assert_eq!(again, document);
    recompute(&kept, attempts_passes(&journal()));
}

/// Number of attempts of each series in a journal.
fn attempts_by_series(journal: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in journal.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of the journal is JSON");
        if let Some(series) = line["attempt"]["series"].as_str() {
            *counts.entry(series.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Number of series that the program found finished, as it says at the start.
fn finished_series(notes: &str) -> usize {
    let before = notes.split(" series are finished").next();
    let words = before.map(|text| text.split_whitespace().rev().collect::<Vec<_>>());
    // `2 of 12 series are finished`
    let number = words.and_then(|words| words.get(2).and_then(|word| word.parse().ok()));
    number.expect("the program says how many series are finished")
}

/// Number of cells of all attempts in a journal.
fn attempts_passes(journal: &str) -> usize {
    let lines = journal
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter_map(|line| line["attempt"]["passes"].as_array().map(Vec::len))
        .sum()
}

/// Recomputes every row and every pass, those of all workloads of the plan.
fn recompute(kept: &Path, passes: usize) {
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
    // A header, and a line for each row; file sets have several for each pass.
    let samples = std::fs::read_to_string(kept.join("samples.csv")).expect("there are samples");
    let rows = samples.lines().count() - 1;
    assert!(rows >= passes, "{rows} rows of {passes} passes");
    let expected = format!("{rows} rows and {passes} passes recomputed, 0 differ");
    assert!(text.contains(&expected), "{text}");
    let mut workloads: Vec<&str> = WorkloadKind::EVERY.iter().map(|kind| kind.name()).collect();
    if smb_python().is_none() {
        workloads.retain(|name| !["smb-serial-download", "smb-office"].contains(name));
    }
    if mailbox_python().is_none() {
        workloads.retain(|name| !name.starts_with("mapi-"));
    }
    for workload in workloads {
        let is_there = samples
            .lines()
            .any(|line| line.split(',').nth(2) == Some(workload));
        assert!(is_there, "no row of {workload} was recomputed");
    }
}
