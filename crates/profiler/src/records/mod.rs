//! Records of a measurement: a directory with one NumPy file for each column.
//!
//! ```text
//!   receiver ─► rows ─► batches ─► [bounded channel] ─► writer thread ─► DIR/sent_ns.npy, …
//! ```
//! docs/formats/profile-records.md describes the files. The writer appends the rows of a batch to all
//! columns and only then writes the new number of rows into the files' heads. So a run that is killed
//! at any moment leaves columns of equal length. The receiver waits if the writer is
//! [`BATCHES_WAITING`] batches behind; what the rings then cannot hold is counted as the ports' own
//! loss.

mod column;
mod reader;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use profile::{MeasuredRun, MeasurementPlan, PacketRecord};
use serde_json::Value;
use vocab::Time;

use crate::measurement;
use column::{ColumnFile, ColumnType};

pub use reader::{RUN_ROWS_MAX, RecordDirectory, RecordError, RunBlock};

/// Rows that go to the writer together.
const BATCH_ROWS: usize = 8_192;
/// Batches that wait for the disk: 2 s at 500,000 rows per second.
const BATCHES_WAITING: usize = 128;

/// Writings of the description while a measurement is under way, at most.
const VERDICT_WRITES_MAX: usize = 1_000;

/// Description of the stamps of measurements in virtual time.
const VIRTUAL_STAMPS: &str = "virtual time: an emulated device, and ports without delay or noise";
/// Time at which virtual measurements begin.
const VIRTUAL_START: Duration = Duration::from_secs(1);

/// Version of the format.
pub(crate) const FORMAT: &str = "trunkline profile records, version 1";
/// File that takes the room of the final description, which must be written even if the disk is full.
const RESERVE_FILE: &str = "about.json.reserve";
/// Room for what the measurement adds to its description, beside the verdicts of its runs, which are
/// shorter than their plans.
const RESERVE_BYTES: usize = 64 << 10;
/// File that describes the columns, beside them.
pub(crate) const ABOUT_FILE: &str = "about.json";

/// A row of the columns: a packet, or a further copy of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRow {
    /// Number of the run in its plan.
    pub(crate) run: u32,
    /// Record of the packet.
    pub(crate) packet: PacketRecord,
}

/// Columns with their types and meanings.
const COLUMNS: [(&str, ColumnType, &str); 9] = [
    (
        "run",
        ColumnType::U32,
        "number of the run in its plan, as in about.json",
    ),
    (
        "sequence",
        ColumnType::U32,
        "number of the packet in its run, from 0, in the order of sending",
    ),
    ("flow", ColumnType::U32, "number of the flow in its run"),
    ("size", ColumnType::U16, "length of the IP packet, bytes"),
    (
        "input",
        ColumnType::U16,
        "port of the device that the packet entered",
    ),
    (
        "output",
        ColumnType::U16,
        "port that it left or should have left",
    ),
    ("sent_ns", ColumnType::I64, "time of sending, ns since 1970"),
    (
        "received_ns",
        ColumnType::I64,
        "time of arrival, ns since 1970; 0 if it did not arrive",
    ),
    (
        "fate",
        ColumnType::U8,
        "0 delivered, 1 reordered, 2 further copy, 3 corrupted, 4 lost, 5 lost at our own port",
    ),
];

/// Bytes of a row on the disk.
pub(crate) const ROW_BYTES: u64 = 35;

/// Ends of the recording.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordEnd {
    /// All rows are in the file.
    Complete,
    /// The limit for the disk was reached; later rows are missing.
    LimitReached,
    /// The disk refused; later rows are missing.
    Failed(String),
}

/// Result of the recording.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RecordSummary {
    /// Rows in the columns.
    pub rows: u64,
    /// Rows that came after the end of the recording.
    pub missing_rows: u64,
    /// End of the recording.
    pub end: RecordEnd,
}

/// Records of a measurement that is under way.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    directory: PathBuf,
    about: Value,
    batch: Vec<RecordRow>,
    batches: Option<SyncSender<Vec<RecordRow>>>,
    thread: Option<JoinHandle<RecordSummary>>,
    /// Verdicts of the runs that have ended.
    verdicts: Vec<RunVerdict>,
    /// Rows since the last verdict.
    rows: u64,
    /// Verdicts between two writings of the description.
    write_every: usize,
    /// Runs that the measurement plans.
    planned_runs: usize,
}

/// The end of a run, and whether its records can be used. A run without a verdict is void: the
/// measurement was killed before its end.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct RunVerdict {
    /// Number of the run in its plan.
    pub(crate) run: u32,
    /// Reason of its end.
    pub(crate) end: String,
    /// Set if the run says something about its subject.
    pub(crate) is_valid: bool,
    /// Its rows; a run with fewer rows in the files has been cut.
    #[serde(default)]
    pub(crate) rows: u64,
}

impl RecordWriter {
    /// Makes the directory and its files, and starts the writer. `about` is an object that describes
    /// the measurement; the files take at most `limit_bytes`.
    ///
    /// # Errors
    /// When the directory exists and is not empty, or cannot be written.
    pub(crate) fn create(directory: &Path, mut about: Value, limit_bytes: u64) -> Result<Self> {
        let planned_runs = about["runs"].as_array().map_or(0, Vec::len);
        let named = || format!("the records in {}", directory.display());
        fs::create_dir_all(directory).with_context(named)?;
        if fs::read_dir(directory)
            .with_context(named)?
            .next()
            .is_some()
        {
            return Err(anyhow!(
                "the directory {} is not empty; name a new one for the records",
                directory.display()
            ));
        }
        about["format"] = FORMAT.into();
        about["complete"] = false.into();
        about["verdicts"] = Value::Array(Vec::new());
        about["columns"] = COLUMNS
            .iter()
            .map(|(name, kind, meaning)| {
                serde_json::json!({"name": name, "type": kind.name(), "meaning": meaning})
            })
            .collect();
        let about_bytes = write_about(directory, &about).with_context(named)?;
        fs::write(
            directory.join(RESERVE_FILE),
            vec![0; 2 * about_bytes + RESERVE_BYTES],
        )
        .with_context(named)?;
        let columns = COLUMNS
            .iter()
            .map(|(name, kind, _)| {
                ColumnFile::create(&directory.join(format!("{name}.npy")), *kind)
            })
            .collect::<io::Result<Vec<_>>>()
            .with_context(named)?;
        let (batches, received) = mpsc::sync_channel(BATCHES_WAITING);
        let rows_max = limit_bytes / ROW_BYTES;
        let thread = thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || write_batches(columns, &received, rows_max))?;
        Ok(Self {
            directory: directory.to_owned(),
            about,
            batch: Vec::with_capacity(BATCH_ROWS),
            batches: Some(batches),
            thread: Some(thread),
            verdicts: Vec::new(),
            rows: 0,
            write_every: planned_runs.div_ceil(VERDICT_WRITES_MAX).max(1),
            planned_runs,
        })
    }

    /// Adds a row; waits while the writer is far behind.
    pub(crate) fn add(&mut self, row: RecordRow) {
        self.rows += 1;
        self.batch.push(row);
        if self.batch.len() == BATCH_ROWS {
            self.hand_over();
        }
    }

    /// Hands all rows to the writer, so that a reader sees them soon.
    pub(crate) fn hand_over(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_ROWS));
        if let Some(batches) = &self.batches {
            // The writer ends only after this sender, or in a panic that `finish` reports.
            let _ = batches.send(batch);
        }
    }

    /// Enters the verdict of the run whose rows have been added, and writes the description, so that a
    /// measurement that is killed later keeps it.
    pub(crate) fn end_run(&mut self, run: u32, end: &str, is_valid: bool) {
        self.verdicts.push(RunVerdict {
            run,
            end: end.to_owned(),
            is_valid,
            rows: std::mem::take(&mut self.rows),
        });
        if self.verdicts.len().is_multiple_of(self.write_every) {
            self.describe_verdicts();
            // A full disk has room for the description at the end.
            if let Err(error) = write_about(&self.directory, &self.about) {
                tracing::warn!(%error, "the verdict of a run is written at the end only");
            }
        }
    }

    fn describe_verdicts(&mut self) {
        self.about["measured_runs"] = self.verdicts.len().into();
        let void = self.verdicts.iter().filter(|one| !one.is_valid);
        self.about["void_runs"] = void.map(|one| one.run).collect();
        self.about["verdicts"] = serde_json::json!(self.verdicts);
    }

    /// Writes the last rows and the final description.
    ///
    /// # Errors
    /// When the description cannot be written.
    pub(crate) fn finish(mut self) -> Result<RecordSummary> {
        self.hand_over();
        let summary = self.end();
        self.describe_verdicts();
        let has_all = self.verdicts.len() == self.planned_runs;
        self.about["complete"] = (summary.end == RecordEnd::Complete && has_all).into();
        self.about["records"] = serde_json::to_value(&summary)?;
        // A full disk has room for the description then.
        let _ = fs::remove_file(self.directory.join(RESERVE_FILE));
        write_about(&self.directory, &self.about)
            .with_context(|| format!("the description in {}", self.directory.display()))?;
        Ok(summary)
    }

    fn end(&mut self) -> RecordSummary {
        self.batches = None;
        let outcome = self.thread.take().map(JoinHandle::join);
        match outcome {
            Some(Ok(summary)) => summary,
            _ => RecordSummary {
                rows: 0,
                missing_rows: 0,
                end: RecordEnd::Failed("the writer panicked".to_owned()),
            },
        }
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.directory.join(RESERVE_FILE));
        if self.thread.is_some() {
            self.hand_over();
            self.end();
        }
    }
}

/// Writes the runs of a measurement in virtual time to the new directory `path`; the files take at most
/// `limit_bytes`.
///
/// # Errors
/// When the directory is not empty or cannot be written.
pub fn write_virtual_records(
    path: &Path,
    plan: &MeasurementPlan,
    limit_bytes: u64,
    runs: impl IntoIterator<Item = MeasuredRun>,
) -> Result<RecordSummary> {
    let about = measurement::describe(plan, &plan.runs(), VIRTUAL_STAMPS);
    let mut writer = RecordWriter::create(path, about, limit_bytes)?;
    for run in runs {
        for packet in &run.records {
            writer.add(RecordRow {
                run: run.plan.number,
                packet: PacketRecord {
                    // Zero stands for no arrival, so that no run begins at zero.
                    sent: packet.sent + VIRTUAL_START,
                    received: packet.received.map(|received| received + VIRTUAL_START),
                    ..*packet
                },
            });
        }
        writer.end_run(run.plan.number, "complete", true);
    }
    writer.finish()
}

/// Replaces the description at once, so that no reader sees half of it.
/// Returns its length in bytes.
fn write_about(directory: &Path, about: &Value) -> io::Result<usize> {
    let fresh = directory.join("about.json.new");
    let mut text = serde_json::to_vec_pretty(about)?;
    text.push(b'\n');
    let bytes = text.len();
    fs::write(&fresh, text)?;
    fs::rename(fresh, directory.join(ABOUT_FILE))?;
    Ok(bytes)
}

fn write_batches(
    mut columns: Vec<ColumnFile>,
    batches: &mpsc::Receiver<Vec<RecordRow>>,
    rows_max: u64,
) -> RecordSummary {
    let mut summary = RecordSummary {
        rows: 0,
        missing_rows: 0,
        end: RecordEnd::Complete,
    };
    for mut batch in batches {
        let room = rows_max.saturating_sub(summary.rows);
        if summary.end == RecordEnd::Complete && batch.len() as u64 > room {
            summary.end = RecordEnd::LimitReached;
            summary.missing_rows += batch.len() as u64 - room;
            batch.truncate(room as usize);
        } else if summary.end != RecordEnd::Complete {
            summary.missing_rows += batch.len() as u64;
            continue;
        }
        match write_batch(&mut columns, &batch, summary.rows) {
            Ok(()) => summary.rows += batch.len() as u64,
            Err(error) => {
                tracing::error!(%error, "the records end here; the measurement continues without them");
                summary.missing_rows += batch.len() as u64;
                summary.end = RecordEnd::Failed(error.to_string());
            }
        }
    }
    summary
}

fn write_batch(columns: &mut [ColumnFile], batch: &[RecordRow], rows: u64) -> io::Result<()> {
    let [
        run,
        sequence,
        flow,
        size,
        input,
        output,
        sent,
        received,
        fate,
    ] = columns
    else {
        unreachable!("there is a file for each column");
    };
    // Sequence, size and times are within the columns' ranges: the ports made them so.
    run.append(batch, |row| row.run.to_le_bytes())?;
    sequence.append(batch, |row| (row.packet.sequence as u32).to_le_bytes())?;
    flow.append(batch, |row| row.packet.flow.to_le_bytes())?;
    size.append(batch, |row| (row.packet.size as u16).to_le_bytes())?;
    input.append(batch, |row| row.packet.input.to_le_bytes())?;
    output.append(batch, |row| row.packet.output.to_le_bytes())?;
    sent.append(batch, |row| row.packet.sent.as_nanos().to_le_bytes())?;
    received.append(batch, |row| {
        row.packet.received.map_or(0, Time::as_nanos).to_le_bytes()
    })?;
    fate.append(batch, |row| [row.packet.fate as u8])?;
    let rows = rows + batch.len() as u64;
    columns
        .iter_mut()
        .try_for_each(|column| column.set_rows(rows))
}

#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod tests;
