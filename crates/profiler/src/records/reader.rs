//! Reads a directory of records back, run by run.
//!
//! ```text
//!  about.json ─► plan and its runs ─┐
//!  run.npy ────► blocks of rows ────┼─► read(block) ─► MeasuredRun with times from the run's start
//!  other columns (rows of a block) ─┘
//! ```
//! Files may be cut, mixed up or written by another program, so nothing in them is trusted: types,
//! numbers of rows, run numbers, ports and fates are checked, and an error names file, column and row.
//! Only the rows of one block are in memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use profile::{
    COLUMN_HEAD_MAX, ColumnHead, MeasuredRun, MeasurementPlan, PacketFate, PacketRecord, RunPlan,
};
use serde::Deserialize;
use thiserror::Error;
use vocab::Time;

use super::column::ColumnType;
use super::{ABOUT_FILE, COLUMNS, FORMAT, RunVerdict};

/// Longest description that is read; that of a plan with all its runs has below 20 MB.
const ABOUT_MAX: u64 = 64 << 20;
/// Rows of one run that are read: 32 million take 2 GB.
pub const RUN_ROWS_MAX: u64 = 1 << 25;
/// Values of a column that are read at once.
const ROWS_AT_ONCE: u64 = 1 << 16;
/// Directories that an error lists.
const LISTED_MAX: usize = 5;

/// Reason why records cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The directory has no description.
    #[error("{path} holds no records of a measurement: it has no file about.json; {hint}")]
    NoRecords {
        /// The directory.
        path: PathBuf,
        /// Directory that was meant, perhaps.
        hint: String,
    },
    /// The system refused.
    #[error("cannot read {path}: {error}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's message.
        error: io::Error,
    },
    /// The description is damaged, or of another format.
    #[error("{path}: {message}")]
    Description {
        /// The file.
        path: PathBuf,
        /// Description of the fault.
        message: String,
    },
    /// A column is damaged, or no column of ours.
    #[error("{path}: {message}")]
    Column {
        /// The file.
        path: PathBuf,
        /// Description of the fault.
        message: String,
    },
    /// A value is one that the profiler never writes.
    #[error("{path}: column {column}, row {row}: {message}")]
    Value {
        /// The directory.
        path: PathBuf,
        /// Name of the column.
        column: &'static str,
        /// Number of the row, from 0.
        row: u64,
        /// Description of the fault.
        message: String,
    },
    /// A run has more rows than are read.
    #[error(
        "{path}: run {run} has {rows} records and at most {RUN_ROWS_MAX} are read; measure it with \
         --packets, or in several repetitions"
    )]
    LongRun {
        /// The directory.
        path: PathBuf,
        /// Number of the run.
        run: u32,
        /// Its rows.
        rows: u64,
    },
}

/// The part of the description that is read; the writer's further keys are for people.
#[derive(Debug, Deserialize)]
struct AboutFile {
    format: String,
    #[serde(default)]
    complete: bool,
    plan: MeasurementPlan,
    #[serde(default)]
    stamps: String,
    #[serde(default)]
    void_runs: Vec<u32>,
    /// Absent in records of earlier releases.
    #[serde(default)]
    verdicts: Option<Vec<RunVerdict>>,
    #[serde(default)]
    records: Option<AboutRecords>,
}

#[derive(Debug, Deserialize)]
struct AboutRecords {
    #[serde(default)]
    missing_rows: u64,
}

/// Rows of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunBlock {
    /// The run.
    pub plan: RunPlan,
    /// Its rows.
    pub rows: Range<u64>,
    /// The run says nothing about its subject: losses of our own ports, a step of the clock, an end
    /// before its time, or rows that are missing.
    pub is_void: bool,
}

/// Records of a measurement that are open for reading.
#[derive(Debug)]
pub struct RecordDirectory {
    path: PathBuf,
    /// The plan of the measurement.
    pub plan: MeasurementPlan,
    /// Description of where the stamps were taken.
    pub stamps: String,
    /// Runs with records, in the order of measuring.
    pub blocks: Vec<RunBlock>,
    /// Sentences about what is missing.
    pub remarks: Vec<String>,
    columns: Vec<ColumnReader>,
}

#[derive(Debug)]
struct ColumnReader {
    name: &'static str,
    kind: ColumnType,
    path: PathBuf,
    file: File,
    start: u64,
    rows: u64,
}

impl RecordDirectory {
    /// Opens the records in `path`, and finds the rows of each run.
    ///
    /// # Errors
    /// When a file is missing, damaged or foreign, or when the rows are those of two measurements.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let about = read_about(path)?;
        let columns = COLUMNS
            .iter()
            .map(|(name, kind, _)| ColumnReader::open(path, name, *kind))
            .collect::<Result<Vec<_>, _>>()?;
        let mut remarks = Vec::new();
        let rows = common_rows(&columns, about.complete)?;
        if !about.complete {
            remarks.push(
                "the measurement did not end, or its records did not: later runs are missing"
                    .to_owned(),
            );
        }
        if let Some(missing) = about.records.map(|records| records.missing_rows)
            && missing > 0
        {
            remarks.push(format!(
                "{missing} records were not written, because the disk or its limit was full"
            ));
        }
        let mut blocks = find_blocks(path, &columns[0], rows, &about.plan)?;
        for block in &mut blocks {
            let run = block.plan.number;
            block.is_void = match &about.verdicts {
                None => about.void_runs.contains(&run),
                Some(verdicts) => !verdicts.iter().any(|verdict| {
                    verdict.run == run
                        && verdict.is_valid
                        && verdict.rows == block.rows.end - block.rows.start
                }),
            };
        }
        Ok(Self {
            path: path.to_owned(),
            plan: about.plan,
            stamps: about.stamps,
            blocks,
            remarks,
            columns,
        })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the records of one run, with times from the first packet's transmission.
    ///
    /// # Errors
    /// When a value is one that the profiler never writes, or the run is too long.
    pub fn read(&self, block: &RunBlock) -> Result<MeasuredRun, RecordError> {
        let rows = block.rows.end - block.rows.start;
        if rows > RUN_ROWS_MAX {
            return Err(RecordError::LongRun {
                path: self.path.clone(),
                run: block.plan.number,
                rows,
            });
        }
        let mut records: Vec<PacketRecord> = Vec::with_capacity(rows as usize);
        let mut from = block.rows.start;
        while from < block.rows.end {
            let to = block.rows.end.min(from + ROWS_AT_ONCE);
            self.read_rows(from..to, &mut records)?;
            from = to;
        }
        let start = records
            .iter()
            .map(|record| record.sent)
            .min()
            .unwrap_or(Time::ZERO);
        for record in &mut records {
            record.sent = Time::ZERO + record.sent.since(start);
            record.received = record
                .received
                .map(|received| Time::ZERO + received.since(start));
        }
        Ok(MeasuredRun {
            plan: block.plan.clone(),
            records,
        })
    }

    fn read_rows(
        &self,
        rows: Range<u64>,
        records: &mut Vec<PacketRecord>,
    ) -> Result<(), RecordError> {
        let values = self
            .columns
            .iter()
            .map(|column| column.read(rows.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let [_, sequence, flow, size, input, output, sent, received, fate] = values.as_slice()
        else {
            unreachable!("there is a reader for each column");
        };
        for (index, row) in rows.enumerate() {
            let fault = |column, message| RecordError::Value {
                path: self.path.clone(),
                column,
                row,
                message,
            };
            let fate = u8::try_from(fate[index])
                .ok()
                .and_then(PacketFate::from_number)
                .ok_or_else(|| fault("fate", format!("{} is no fate; 0 to 5 are", fate[index])))?;
            let record = PacketRecord {
                sequence: sequence[index],
                flow: flow[index] as u32,
                size: size[index] as u32,
                input: input[index] as u16,
                output: output[index] as u16,
                sent: Time::from_nanos(sent[index]),
                received: (received[index] != 0).then(|| Time::from_nanos(received[index])),
                fate,
            };
            self.check(&record, records.last())
                .map_err(|(column, message)| fault(column, message))?;
            records.push(record);
        }
        Ok(())
    }

    /// Checks a record against the plan and the record before it in its run.
    fn check(
        &self,
        record: &PacketRecord,
        before: Option<&PacketRecord>,
    ) -> Result<(), (&'static str, String)> {
        for (column, port) in [("input", record.input), ("output", record.output)] {
            if port >= self.plan.ports {
                return Err((
                    column,
                    format!("port {port}, but the plan has {} ports", self.plan.ports),
                ));
            }
        }
        for (column, at) in [
            ("sent_ns", Some(record.sent)),
            ("received_ns", record.received),
        ] {
            if at.is_some_and(|at| i64::try_from(at.as_nanos()).is_err()) {
                return Err((column, "the time is negative".to_owned()));
            }
        }
        let is_lost = matches!(record.fate, PacketFate::Lost | PacketFate::LostAtPort);
        if is_lost != record.received.is_none() {
            return Err((
                "fate",
                format!(
                    "the packet is {}, but received_ns {}",
                    record.fate.name(),
                    if is_lost { "is not 0" } else { "is 0" }
                ),
            ));
        }
        let Some(before) = before else {
            return Ok(());
        };
        let is_in_order = match record.fate {
            PacketFate::Duplicated => record.sequence == before.sequence,
            PacketFate::Delivered
            | PacketFate::Reordered
            | PacketFate::Corrupted
            | PacketFate::Lost
            | PacketFate::LostAtPort => record.sequence > before.sequence,
        };
        if !is_in_order {
            return Err((
                "sequence",
                format!(
                    "packet {} follows packet {} of the same run: the rows of two measurements are \
                     mixed; keep each measurement in a directory of its own",
                    record.sequence, before.sequence
                ),
            ));
        }
        Ok(())
    }
}

impl ColumnReader {
    fn open(directory: &Path, name: &'static str, kind: ColumnType) -> Result<Self, RecordError> {
        let path = directory.join(format!("{name}.npy"));
        let io = |error| RecordError::Io {
            path: path.clone(),
            error,
        };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RecordError::Column {
                    path,
                    message: format!(
                        "the column {name} is missing; a measurement writes {} columns",
                        COLUMNS.len()
                    ),
                });
            }
            file => file.map_err(io)?,
        };
        let bytes = file.metadata().map_err(io)?.len();
        let damaged = |message| RecordError::Column {
            path: path.clone(),
            message,
        };
        let mut first = Vec::new();
        (&file)
            .take(COLUMN_HEAD_MAX as u64)
            .read_to_end(&mut first)
            .map_err(io)?;
        let head = ColumnHead::parse(&first).map_err(|error| damaged(error.message))?;
        let start = head.start as u64;
        if head.kind != kind.name() {
            return Err(damaged(format!(
                "its type is {}, and that of column {name} is {}",
                vocab::printable(&head.kind),
                kind.name()
            )));
        }
        let present = bytes.saturating_sub(start) / kind.width();
        if present < head.rows {
            return Err(damaged(format!(
                "the file is cut: column {name} ends before row {present}, and its head names {} \
                 rows",
                head.rows
            )));
        }
        Ok(Self {
            name,
            kind,
            start,
            rows: head.rows,
            path,
            file,
        })
    }

    /// Reads the values of these rows; negative ones become large.
    fn read(&self, rows: Range<u64>) -> Result<Vec<u64>, RecordError> {
        let width = self.kind.width();
        let count = rows.end.saturating_sub(rows.start);
        let mut bytes = vec![0; (count * width) as usize];
        self.file
            .read_exact_at(&mut bytes, self.start + rows.start * width)
            .map_err(|error| RecordError::Io {
                path: self.path.clone(),
                error,
            })?;
        Ok(bytes
            .chunks_exact(width as usize)
            .map(|value| {
                let mut wide = [0; 8];
                wide[..value.len()].copy_from_slice(value);
                u64::from_le_bytes(wide)
            })
            .collect())
    }
}

fn read_about(directory: &Path) -> Result<AboutFile, RecordError> {
    let path = directory.join(ABOUT_FILE);
    let bytes = match fs::metadata(&path) {
        Ok(data) if data.len() > ABOUT_MAX => {
            return Err(RecordError::Description {
                path,
                message: format!("it has {} bytes; at most {ABOUT_MAX} are read", data.len()),
            });
        }
        Ok(_) => fs::read(&path),
        Err(error) => Err(error),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(no_records(directory)?);
        }
        Err(error) => return Err(RecordError::Io { path, error }),
    };
    let fault = |message: String| RecordError::Description {
        path: path.clone(),
        message,
    };
    let about: AboutFile = serde_json::from_slice(&bytes)
        .map_err(|error| fault(format!("it does not describe records: {error}")))?;
    if about.format != FORMAT {
        return Err(fault(format!(
            "its format is \"{}\", and this release reads \"{FORMAT}\"",
            vocab::printable(&about.format)
        )));
    }
    about
        .plan
        .check()
        .map_err(|error| fault(format!("its plan is none: {error}")))?;
    Ok(about)
}

/// The error for a directory without a description: it names directories inside that have one.
fn no_records(directory: &Path) -> Result<RecordError, RecordError> {
    let io = |error| RecordError::Io {
        path: directory.to_owned(),
        error,
    };
    let mut inside = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.join(ABOUT_FILE).is_file() {
            inside.insert(path);
        }
    }
    let names: Vec<String> = inside
        .iter()
        .take(LISTED_MAX)
        .map(|path| path.display().to_string())
        .collect();
    let hint = match inside.len() {
        0 => "name a directory that profile run --records wrote".to_owned(),
        1 => format!("name {}", names.join(", ")),
        count => format!(
            "it contains {count} measurements, of which one is read at a time: name one of {}",
            names.join(", ")
        ),
    };
    Ok(RecordError::NoRecords {
        path: directory.to_owned(),
        hint,
    })
}

/// The number of rows that all columns have. The writer of a measurement that was killed may have
/// named a batch in some columns and not yet in the others.
fn common_rows(columns: &[ColumnReader], is_complete: bool) -> Result<u64, RecordError> {
    let fewest = columns.iter().min_by_key(|column| column.rows);
    let most = columns.iter().max_by_key(|column| column.rows);
    match (fewest, most) {
        (Some(fewest), Some(most)) if is_complete && fewest.rows != most.rows => {
            Err(RecordError::Column {
                path: fewest.path.clone(),
                message: format!(
                    "column {} has {} rows and column {} has {}: the columns are not of one \
                     measurement",
                    fewest.name, fewest.rows, most.name, most.rows
                ),
            })
        }
        (Some(fewest), _) => Ok(fewest.rows),
        (None, _) => Ok(0),
    }
}

/// The rows of each run: every run is one block of rows.
fn find_blocks(
    directory: &Path,
    column: &ColumnReader,
    rows: u64,
    plan: &MeasurementPlan,
) -> Result<Vec<RunBlock>, RecordError> {
    let plans = plan.runs();
    let mut seen = BTreeSet::new();
    let mut blocks: Vec<RunBlock> = Vec::new();
    let mut from = 0;
    while from < rows {
        let to = rows.min(from + ROWS_AT_ONCE);
        for (row, run) in (from..to).zip(column.read(from..to)?) {
            if let Some(block) = blocks.last_mut()
                && u64::from(block.plan.number) == run
            {
                block.rows.end = row + 1;
                continue;
            }
            let fault = |message| RecordError::Value {
                path: directory.to_owned(),
                column: column.name,
                row,
                message,
            };
            let plan = usize::try_from(run).ok().and_then(|run| plans.get(run));
            let Some(plan) = plan else {
                return Err(fault(format!(
                    "run {run}, but the plan has {} runs",
                    plans.len()
                )));
            };
            if !seen.insert(plan.number) {
                return Err(fault(format!(
                    "run {run} begins again: the rows of two measurements are in one directory; \
                     keep each measurement in a directory of its own"
                )));
            }
            blocks.push(RunBlock {
                plan: plan.clone(),
                rows: row..row + 1,
                is_void: false,
            });
        }
        from = to;
    }
    Ok(blocks)
}
