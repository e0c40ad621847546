//! Tests of the reader: what the writer wrote comes back, and damage is named.

use std::fs::{self, OpenOptions};
use std::path::Path;

use profile::{MeasuredRun, MeasurementPlan, PacketFate, PacketRecord};
use serde_json::Value;
use vocab::Time;

use super::{RecordDirectory, write_virtual_records};

fn plan() -> MeasurementPlan {
    MeasurementPlan::from_toml(
        r#"
        name = "reader"
        ports = 2
        [[experiment]]
        name = "lone"
        purpose = "transit"
        subjects = ["cable", "device"]
        traffic = [{ from = [0], to = [1], packets = 3, sizes = [{ size = "100B" }],
            pattern = { kind = "constant", packets_per_second = 5.0 } }]
        "#,
    )
    .unwrap()
}

fn packet(sequence: u64, fate: PacketFate) -> PacketRecord {
    let sent = Time::from_nanos(sequence * 1_000);
    let is_lost = matches!(fate, PacketFate::Lost | PacketFate::LostAtPort);
    PacketRecord {
        sequence,
        flow: 0,
        size: 100,
        input: 0,
        output: 1,
        sent,
        received: (!is_lost).then(|| sent + std::time::Duration::from_nanos(500)),
        fate,
    }
}

fn runs() -> Vec<MeasuredRun> {
    let records = [
        packet(0, PacketFate::Delivered),
        packet(1, PacketFate::Reordered),
        packet(1, PacketFate::Duplicated),
        packet(2, PacketFate::Lost),
        packet(4, PacketFate::Corrupted),
    ];
    plan()
        .runs()
        .into_iter()
        .map(|plan| MeasuredRun {
            plan,
            records: records.to_vec(),
        })
        .collect()
}

/// Records in a new directory below `directory`.
fn written(directory: &Path, runs: &[MeasuredRun]) -> std::path::PathBuf {
    let path = directory.join("records");
    write_virtual_records(&path, &plan(), u64::MAX, runs.to_vec()).unwrap();
    path
}

/// The message of the error that opening or reading gives.
fn failure(path: &Path) -> String {
    let read = RecordDirectory::open(path).and_then(|records| {
        records
            .blocks
            .iter()
            .map(|block| records.read(block))
            .collect::<Result<Vec<_>, _>>()
    });
    read.unwrap_err().to_string()
}

fn overwrite(path: &Path, column: &str, at: usize, bytes: &[u8]) {
    let file = path.join(format!("{column}.npy"));
    let mut content = fs::read(&file).unwrap();
    content[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(file, content).unwrap();
}

#[test]
fn reader_returns_what_the_writer_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    let records = RecordDirectory::open(&path).unwrap();
    assert_eq!(records.plan, plan());
    assert!(records.stamps.starts_with("virtual time"));
    assert!(records.remarks.is_empty());
    let read: Vec<MeasuredRun> = records
        .blocks
        .iter()
        .map(|block| records.read(block).unwrap())
        .collect();
    assert_eq!(read.len(), 2);
    for (read, wrote) in read.iter().zip(runs()) {
        assert_eq!(read.plan, wrote.plan);
        assert_eq!(read.records, wrote.records);
    }
}

#[test]
fn cut_file_is_named_with_column_and_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    let cut = |column: &str, bytes: u64| {
        let file = path.join(format!("{column}.npy"));
        OpenOptions::new()
            .write(true)
            .open(file)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        failure(&path)
    };
    // 10 rows of 8 bytes follow a head of 128 bytes.
    let error = cut("sent_ns", 128 + 8 * 7 + 3);
    assert!(
        error.contains("column sent_ns ends before row 7"),
        "{error}"
    );
    assert!(
        error.contains("10 rows") && error.contains("sent_ns.npy"),
        "{error}"
    );
    let error = cut("sent_ns", 40);
    assert!(error.contains("ends within its head"), "{error}");
    fs::remove_file(path.join("sent_ns.npy")).unwrap();
    let error = failure(&path);
    assert!(error.contains("the column sent_ns is missing"), "{error}");
}

#[test]
fn foreign_columns_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    fs::copy(path.join("flow.npy"), path.join("fate.npy")).unwrap();
    let error = failure(&path);
    assert!(
        error.contains("its type is <u4") && error.contains("|u1"),
        "{error}"
    );
    fs::write(path.join("fate.npy"), b"fate\n0\n1\n0\n0\n0\n").unwrap();
    let error = failure(&path);
    assert!(error.contains("fate.npy: it is no NumPy file"), "{error}");
}

#[test]
fn impossible_values_are_named_with_their_row() {
    for (column, width, row, bytes, part) in [
        ("fate", 1, 3, vec![9], "9 is no fate"),
        ("fate", 1, 3, vec![0], "received_ns is 0"),
        (
            "input",
            2,
            4,
            vec![7, 0],
            "port 7, but the plan has 2 ports",
        ),
        ("sent_ns", 8, 1, vec![0xff; 8], "the time is negative"),
        (
            "run",
            4,
            9,
            vec![5, 0, 0, 0],
            "run 5, but the plan has 2 runs",
        ),
        ("run", 4, 7, vec![0, 0, 0, 0], "run 0 begins again"),
        ("sequence", 4, 1, vec![0, 0, 0, 0], "two measurements"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), &runs());
        overwrite(&path, column, 128 + width * row, &bytes);
        let error = failure(&path);
        assert!(error.contains(part), "{error} lacks {part}");
        assert!(
            error.contains(&format!("column {column}, row {row}")),
            "{error}"
        );
    }
}

#[test]
fn two_measurements_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let first = written(directory.path(), &runs());
    // A column of another measurement has another number of rows.
    let other = directory.path().join("other");
    write_virtual_records(&other, &plan(), u64::MAX, runs().into_iter().take(1)).unwrap();
    let error = failure(directory.path());
    assert!(error.contains("contains 2 measurements"), "{error}");
    fs::copy(other.join("size.npy"), first.join("size.npy")).unwrap();
    let error = failure(&first);
    assert!(error.contains("column size has 5 rows"), "{error}");
}

#[test]
fn killed_measurement_is_read_to_last_common_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    let other = directory.path().join("other");
    write_virtual_records(&other, &plan(), u64::MAX, runs().into_iter().take(1)).unwrap();
    fs::copy(other.join("fate.npy"), path.join("fate.npy")).unwrap();
    let about = path.join("about.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
    text["complete"] = false.into();
    fs::write(&about, text.to_string()).unwrap();
    let records = RecordDirectory::open(&path).unwrap();
    assert_eq!(records.blocks.len(), 1);
    assert_eq!(records.blocks[0].rows, 0..5);
    assert!(
        records.remarks[0].contains("did not end"),
        "{:?}",
        records.remarks
    );
}

#[test]
fn run_without_a_verdict_or_with_missing_rows_is_void() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    let void = || -> Vec<bool> {
        let records = RecordDirectory::open(&path).unwrap();
        records.blocks.iter().map(|block| block.is_void).collect()
    };
    let count = runs().len();
    assert_eq!(void(), vec![false; count]);
    let about = path.join("about.json");
    let whole: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
    let expected: Vec<bool> = (0..count).map(|run| run == 0).collect();
    // The measurement was killed in a run, or the disk lost the end of one, or a run ended early.
    let mut killed = whole.clone();
    killed["verdicts"].as_array_mut().unwrap().remove(0);
    let mut cut = whole.clone();
    cut["verdicts"][0]["rows"] = 6.into();
    let mut early = whole.clone();
    early["verdicts"][0]["is_valid"] = false.into();
    for text in [killed, cut, early] {
        fs::write(&about, text.to_string()).unwrap();
        assert_eq!(void(), expected);
    }
    // Records of earlier releases name void runs only.
    let mut old = whole;
    old.as_object_mut().unwrap().remove("verdicts");
    old["void_runs"] = serde_json::json!([runs()[0].plan.number]);
    fs::write(&about, old.to_string()).unwrap();
    assert_eq!(void(), expected);
}

#[test]
fn description_of_another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &runs());
    let about = path.join("about.json");
    let text = fs::read_to_string(&about).unwrap();
    for (from, to, part) in [
        ("version 1", "version 7", "version 7"),
        ("\"ports\": 2", "\"ports\": 0", "its plan is none"),
        ("\"plan\"", "\"plam\"", "does not describe records"),
    ] {
        fs::write(&about, text.replacen(from, to, 1)).unwrap();
        let error = failure(&path);
        assert!(error.contains(part), "{error} lacks {part}");
    }
    fs::remove_file(&about).unwrap();
    let error = failure(&path);
    assert!(error.contains("no file about.json"), "{error}");
}
