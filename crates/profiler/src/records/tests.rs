//! Tests of the records: every byte is read back by the rules of the NumPy format alone.

use std::collections::BTreeMap;

use profile::PacketFate;
use serde_json::json;

use super::*;

fn row(sequence: u32) -> RecordRow {
    RecordRow {
        run: 2,
        packet: PacketRecord {
            sequence: u64::from(sequence),
            flow: 7,
            size: 1_400,
            input: 0,
            output: 1,
            sent: Time::from_nanos(1_700_000_000_000_000_000 + u64::from(sequence)),
            received: None,
            fate: PacketFate::Lost,
        },
    }
}

/// Values of a column, read by the rules of the NumPy format alone.
fn values(path: &Path) -> Vec<i64> {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = std::str::from_utf8(&bytes[10..start]).unwrap();
    let quoted = |key: &str| text.split(key).nth(1).unwrap().split('\'').nth(1).unwrap();
    let rows: usize = text
        .split('(')
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let width: usize = quoted("descr'")[2..].parse().unwrap();
    bytes[start..start + rows * width]
        .chunks(width)
        .map(|value| {
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(value);
            i64::from_le_bytes(wide)
        })
        .collect()
}

#[test]
fn all_columns_hold_the_rows_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    let mut writer = RecordWriter::create(&path, json!({"plan": "test"}), 1 << 30).unwrap();
    let all = BATCH_ROWS as u32 + 5;
    (0..all).for_each(|sequence| writer.add(row(sequence)));
    let summary = writer.finish().unwrap();
    assert_eq!(summary.rows, u64::from(all));
    assert_eq!(summary.end, RecordEnd::Complete);
    let columns: BTreeMap<&str, Vec<i64>> = COLUMNS
        .iter()
        .map(|(name, _, _)| (*name, values(&path.join(format!("{name}.npy")))))
        .collect();
    assert!(columns.values().all(|column| column.len() == all as usize));
    assert!(columns["sequence"].iter().copied().eq(0..i64::from(all)));
    assert_eq!(columns["sent_ns"][9], 1_700_000_000_000_000_009);
    assert_eq!(columns["size"][0], 1_400);
    let about: Value = serde_json::from_slice(&fs::read(path.join(ABOUT_FILE)).unwrap()).unwrap();
    assert_eq!(about["complete"], true);
    assert_eq!(about["plan"], "test");
    let row_bytes: u64 = fs::read_dir(&path)
        .unwrap()
        .flatten()
        .filter(|file| file.file_name() != ABOUT_FILE)
        .map(|file| file.metadata().unwrap().len() - column::HEAD_BYTES as u64)
        .sum();
    assert_eq!(row_bytes, u64::from(all) * ROW_BYTES);
}

#[test]
fn cut_run_leaves_columns_of_equal_length() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    let mut writer = RecordWriter::create(&path, json!({}), 1 << 30).unwrap();
    (0..100).for_each(|sequence| writer.add(row(sequence)));
    // The process ends here without `finish`.
    drop(writer);
    for (name, _, _) in COLUMNS {
        assert_eq!(values(&path.join(format!("{name}.npy"))).len(), 100);
    }
    let about: Value = serde_json::from_slice(&fs::read(path.join(ABOUT_FILE)).unwrap()).unwrap();
    assert_eq!(about["complete"], false);
}

#[test]
fn killed_measurement_keeps_the_verdicts_of_its_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    let about = json!({"runs": [{"run": 2}, {"run": 3}]});
    let mut writer = RecordWriter::create(&path, about, 1 << 30).unwrap();
    (0..7).for_each(|sequence| writer.add(row(sequence)));
    writer.end_run(2, "interrupted", false);
    let read =
        || -> Value { serde_json::from_slice(&fs::read(path.join(ABOUT_FILE)).unwrap()).unwrap() };
    let verdict = json!({"run": 2, "end": "interrupted", "is_valid": false, "rows": 7});
    assert_eq!(read()["verdicts"], json!([verdict]));
    assert_eq!(read()["void_runs"], json!([2]));
    // One of two planned runs is no whole measurement.
    writer.finish().unwrap();
    assert_eq!(read()["complete"], false);
    assert_eq!(read()["measured_runs"], 1);
}

#[test]
fn limit_of_disk_ends_the_records_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records");
    let mut writer = RecordWriter::create(&path, json!({}), 10 * ROW_BYTES).unwrap();
    (0..25).for_each(|sequence| writer.add(row(sequence)));
    let summary = writer.finish().unwrap();
    assert_eq!((summary.rows, summary.missing_rows), (10, 15));
    assert_eq!(summary.end, RecordEnd::LimitReached);
    assert_eq!(values(&path.join("fate.npy")), [4; 10]);
}

#[test]
fn used_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("notes"), "").unwrap();
    let error = RecordWriter::create(directory.path(), json!({}), 1).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}
