//! Journal of a campaign: an append-only file with a line of JSON for the campaign and one for each
//! finished attempt of a series.
//!
//! ```text
//! DIR/journal.jsonl   {"campaign": {...}}      first line: plan, sizes, seed
//!                     {"attempt": {...}}       each finished attempt, synced to disk before the next
//! DIR/captures/       two captures for each attempt
//! DIR/logs/           logs of servers, clients, nodes and the emulator
//! ```
//! A campaign that was killed while it wrote leaves half a line, which is cut off when it continues. So is
//! what a failed write leaves, for example on a full disk, before the next line. The journal never changes a
//! line that it has written, and one process at a time has it open for writing (a lock on the directory).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::calibration::LinkCalibration;
use super::plan::CellPlan;
use super::sizes::CellSizes;
use crate::recording::MeasuredFile;
use host::machine::MachineInfo;

/// Name of the journal in a campaign's directory.
pub const FILE_NAME: &str = "journal.jsonl";
/// Version of the journal's format; a reader refuses others.
const FORMAT_VERSION: u32 = 1;
/// The largest journal that is read.
const JOURNAL_MOST_BYTES: u64 = 1 << 30;

/// First line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignHeader {
    /// Version of the format.
    pub format_version: u32,
    /// Text of the plan.
    pub plan: String,
    /// Span of a cell in seconds; `None` for whole documents.
    pub span_s: Option<f64>,
    /// True if the campaign is a short one.
    #[serde(default)]
    pub is_short: bool,
    /// Start time, RFC 3339.
    pub started: String,
    /// The machine and its programs at the start.
    pub machine: MachineInfo,
    /// Sentence that names the certificate of the emulator on this machine.
    pub certificate: Option<String>,
    /// True if the campaign is a simulation in virtual time.
    #[serde(default)]
    pub is_simulation: bool,
}

/// Figures of a real campaign of the same plan, for comparison with a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RealFigures {
    /// Start time of that campaign, RFC 3339.
    pub started: String,
    /// Median throughput in kB/s by the name of the cell; cells of another size are left out.
    pub throughputs_kb_s: BTreeMap<String, f64>,
}

/// One attempt of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesAttempt {
    /// Key of the series.
    pub series: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Start time, RFC 3339.
    pub started: String,
    /// Duration with everything around the transfers, in seconds.
    pub took_s: f64,
    /// Cells in the order in which they ran.
    pub passes: Vec<CellPass>,
    /// Sentences about limits of the host.
    pub host_limits: Vec<String>,
    /// Counters of the emulator, as it printed them.
    pub emulator: serde_json::Value,
    /// Congestion control of both hosts, as read back.
    pub hosts_congestion_control: String,
    /// Text of a failure that left no figures.
    pub failure: Option<String>,
}

impl SeriesAttempt {
    /// An attempt that has just begun.
    #[must_use]
    pub fn begin(series: &str, attempt: u32, started: String) -> Self {
        Self {
            series: series.to_owned(),
            attempt,
            started,
            took_s: 0.0,
            passes: Vec::new(),
            host_limits: Vec::new(),
            emulator: serde_json::Value::Null,
            hosts_congestion_control: String::new(),
            failure: None,
        }
    }
}

/// One cell of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellPass {
    /// Key of the cell.
    pub cell: String,
    /// Label of its markers in the captures.
    pub label: String,
    /// Files.
    pub files: Vec<MeasuredFile>,
    /// Round trips of ICMP echoes before the cell, in milliseconds; lost ones are left out.
    #[serde(default)]
    pub pings_before_ms: Vec<f64>,
    /// Round trips of ICMP echoes after it.
    #[serde(default)]
    pub pings_after_ms: Vec<f64>,
    /// Busy share of all processors' time.
    pub cpu_busy: f64,
    /// Packets at the client's interface.
    pub packets: u64,
    /// Packets of others among them.
    pub foreign_packets: u64,
    /// Retransmitted segments among them.
    pub retransmitted_packets: u64,
    /// Those that the sender of the files sent.
    #[serde(default)]
    pub retransmitted_data_packets: u64,
    /// Packets with data of the workload's direction that the link dropped between the markers, where the hosts'
    /// own TCP crosses the link and sends them again. With nodes it is 0: they send again what the link drops.
    #[serde(default)]
    pub dropped_by_link_packets: u64,
    /// Bytes over the WAN from client to server, IP headers included.
    pub wan_bytes_up: u64,
    /// Bytes over the WAN from server to client, IP headers included.
    pub wan_bytes_down: u64,
    /// Round trips over the WAN, at least.
    pub wan_round_trips: u32,
    /// Text of the client's failure, if there was one.
    pub failure: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalLine {
    Campaign(Box<CampaignHeader>),
    Attempt(Box<SeriesAttempt>),
    Calibration(Box<LinkCalibration>),
    Real(Box<RealFigures>),
}

/// The journal of one campaign.
#[derive(Debug)]
pub struct CampaignJournal {
    path: PathBuf,
    writer: Option<JournalWriter>,
    /// First line.
    pub header: CampaignHeader,
    /// Attempts in the order in which they ended.
    pub attempts: Vec<SeriesAttempt>,
    /// Calibration of the link, where the plan has one.
    pub calibration: Option<LinkCalibration>,
    /// Figures of a real campaign beside this simulation; the last ones that were added.
    pub real: Option<RealFigures>,
}

/// The file of a journal that is written, as long as this process has the lock of its directory.
#[derive(Debug)]
struct JournalWriter {
    file: File,
    /// Length of the whole lines.
    whole_bytes: u64,
    /// The kernel removes the lock when the process ends, however it ends.
    _lock: File,
}

impl JournalWriter {
    /// Appends a line and waits until it is on the disk. A failed write leaves the whole lines.
    fn append(&mut self, line: &str) -> std::io::Result<()> {
        // What an earlier failed write left is not the beginning of this line.
        self.file.set_len(self.whole_bytes)?;
        let written = self
            .file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.whole_bytes += line.len() as u64,
            // If this fails too, the next line or the next start cuts the rest off.
            Err(_) => drop(self.file.set_len(self.whole_bytes)),
        }
        written
    }
}

impl CellPass {
    /// Sum of the files' times, in seconds.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.files.iter().map(|file| file.elapsed_s).sum()
    }

    /// Sum of the files' sizes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Payload over time, in kB/s of 1,000 bytes; 0 where the client's transfer failed, and `None` without a
    /// time.
    #[must_use]
    pub fn throughput_kb_s(&self) -> Option<f64> {
        if self.failure.is_some() {
            return Some(0.0);
        }
        let elapsed = self.elapsed_s();
        (elapsed > 0.0).then(|| self.bytes() as f64 / 1e3 / elapsed)
    }

    /// Tells whether the transfer ended, but not all files arrived as they were sent.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.failure.is_none() && !self.is_identical()
    }

    /// Tells whether all files arrived as they were sent.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        let same = |file: &MeasuredFile| file.found_hash.as_deref() == Some(&file.expected_hash);
        self.failure.is_none() && !self.files.is_empty() && self.files.iter().all(same)
    }

    /// Share of packets of others.
    #[must_use]
    pub fn foreign_share(&self) -> f64 {
        self.share(self.foreign_packets)
    }

    /// Share of retransmitted segments.
    #[must_use]
    pub fn retransmitted_share(&self) -> f64 {
        self.share(self.retransmitted_packets)
    }

    /// Share of retransmitted segments that no drop of the link explains. A dropped packet explains one
    /// retransmission of its direction.
    #[must_use]
    pub fn unexplained_retransmissions_share(&self) -> f64 {
        let explained = self
            .dropped_by_link_packets
            .min(self.retransmitted_data_packets);
        self.share(self.retransmitted_packets.saturating_sub(explained))
    }

    fn share(&self, part: u64) -> f64 {
        match self.packets {
            0 => 0.0,
            whole => part as f64 / whole as f64,
        }
    }
}

impl CampaignHeader {
    /// Header of a new campaign.
    #[must_use]
    pub fn new(
        plan: &str,
        sizes: CellSizes,
        machine: MachineInfo,
        certificate: Option<String>,
    ) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            plan: plan.to_owned(),
            span_s: sizes.span_s(),
            is_short: sizes == CellSizes::Short,
            started: now(),
            machine,
            certificate,
            is_simulation: false,
        }
    }

    /// Header of a new simulation: it depends on no machine.
    #[must_use]
    pub fn of_simulation(plan: &str, sizes: CellSizes) -> Self {
        Self {
            is_simulation: true,
            ..Self::new(plan, sizes, MachineInfo::default(), None)
        }
    }

    /// Sizes of the campaign's cells.
    #[must_use]
    pub fn sizes(&self) -> CellSizes {
        if self.is_short {
            return CellSizes::Short;
        }
        self.span_s
            .and_then(|span| std::time::Duration::try_from_secs_f64(span).ok())
            .map_or(CellSizes::Document, CellSizes::Span)
    }

    /// The campaign's plan.
    ///
    /// # Errors
    /// Fails when this version does not understand the plan.
    pub fn plan(&self) -> Result<CellPlan> {
        CellPlan::parse(&self.plan).context("in the plan that the journal contains")
    }
}

/// The time, RFC 3339.
pub(super) fn now() -> String {
    jiff::Zoned::now()
        .strftime("%Y-%m-%dT%H:%M:%S%:z")
        .to_string()
}

impl CampaignJournal {
    /// Opens the journal of `directory` for reading.
    ///
    /// # Errors
    /// Fails when there is none or it is damaged before its last line.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE_NAME);
        let found = read_lines(&path)?;
        let header = found
            .header
            .with_context(|| format!("{} has no first line", path.display()))?;
        Ok(Self {
            path,
            writer: None,
            header,
            attempts: found.attempts,
            calibration: found.calibration,
            real: found.real,
        })
    }

    /// Continues the campaign of `directory`, or begins it with `header`.
    ///
    /// # Errors
    /// Fails when the directory contains another campaign, another process runs the campaign, or the journal
    /// cannot be written.
    pub fn open(directory: &Path, header: &CampaignHeader) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        let lock = lock(directory)?;
        let path = directory.join(FILE_NAME);
        let lines = match path.exists() {
            true => read_lines(&path)?,
            false => JournalLines::default(),
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        let mut journal = Self {
            path,
            writer: Some(JournalWriter {
                file,
                whole_bytes: lines.whole_bytes,
                _lock: lock,
            }),
            header: header.clone(),
            attempts: lines.attempts,
            calibration: lines.calibration,
            real: lines.real,
        };
        match lines.header {
            Some(found) => {
                let is_same = found.plan == header.plan
                    && found.sizes() == header.sizes()
                    && found.is_simulation == header.is_simulation;
                ensure!(
                    is_same,
                    "{} contains a campaign of another plan, with other sizes, or of the other kind (real or \
                     virtual); select another directory with --keep, or remove this directory",
                    directory.display()
                );
                journal.header = found;
            }
            None => {
                journal.append(&JournalLine::Campaign(Box::new(header.clone())))?;
                // The new name must be as durable as the line.
                File::open(directory)?.sync_all()?;
            }
        }
        Ok(journal)
    }

    /// Writes a finished attempt and waits until it is on the disk.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub fn add(&mut self, attempt: SeriesAttempt) -> Result<()> {
        self.append(&JournalLine::Attempt(Box::new(attempt.clone())))?;
        self.attempts.push(attempt);
        Ok(())
    }

    /// Writes the calibration, as [`Self::add`] does an attempt.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub fn add_calibration(&mut self, calibration: LinkCalibration) -> Result<()> {
        self.append(&JournalLine::Calibration(Box::new(calibration.clone())))?;
        self.calibration = Some(calibration);
        Ok(())
    }

    /// Writes the figures of a real campaign, unless they are there.
    ///
    /// # Errors
    /// Fails when they cannot be written.
    pub fn add_real(&mut self, real: RealFigures) -> Result<()> {
        if self.real.as_ref() != Some(&real) {
            self.append(&JournalLine::Real(Box::new(real.clone())))?;
            self.real = Some(real);
        }
        Ok(())
    }

    /// Attempts of a series, in order.
    pub fn attempts_of(&self, series: &str) -> impl Iterator<Item = &SeriesAttempt> {
        self.attempts
            .iter()
            .filter(move |attempt| attempt.series == series)
    }

    fn append(&mut self, line: &JournalLine) -> Result<()> {
        let Some(writer) = &mut self.writer else {
            bail!("{} is open for reading only", self.path.display());
        };
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        writer
            .append(&text)
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

/// Takes the lock of a campaign's directory.
fn lock(directory: &Path) -> Result<File> {
    let file = File::open(directory).with_context(|| format!("opening {}", directory.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "another process runs the campaign in {}; wait for its end, or select another directory with \
             --keep",
            directory.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("locking {}", directory.display()))
        }
    }
}

/// Content of a journal file.
#[derive(Default)]
struct JournalLines {
    header: Option<CampaignHeader>,
    attempts: Vec<SeriesAttempt>,
    calibration: Option<LinkCalibration>,
    real: Option<RealFigures>,
    /// Bytes of its whole lines.
    whole_bytes: u64,
}

fn read_lines(path: &Path) -> Result<JournalLines> {
    let length = fs::metadata(path)
        .with_context(|| format!("reading {}", path.display()))?
        .len();
    ensure!(
        length <= JOURNAL_MOST_BYTES,
        "{} is larger than any campaign's journal",
        path.display()
    );
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |last| last + 1);
    let mut lines = JournalLines {
        whole_bytes: whole as u64,
        ..JournalLines::default()
    };
    for (number, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let line: JournalLine = serde_json::from_slice(line)
            .with_context(|| format!("line {} of {} is damaged", number + 1, path.display()))?;
        match line {
            JournalLine::Campaign(found) => {
                ensure!(
                    found.format_version == FORMAT_VERSION,
                    "{} is of format {}, this program reads {FORMAT_VERSION}",
                    path.display(),
                    found.format_version
                );
                lines.header = Some(*found);
            }
            JournalLine::Attempt(attempt) => lines.attempts.push(*attempt),
            JournalLine::Calibration(found) => lines.calibration = Some(*found),
            JournalLine::Real(found) => lines.real = Some(*found),
        }
    }
    Ok(lines)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn attempt(series: &str, passes: Vec<CellPass>) -> SeriesAttempt {
        SeriesAttempt {
            series: series.to_owned(),
            attempt: 1,
            started: "2026-11-27T04:00:00+00:00".to_owned(),
            took_s: 9.5,
            passes,
            host_limits: Vec::new(),
            emulator: serde_json::Value::Null,
            hosts_congestion_control: "client cubic, server cubic".to_owned(),
            failure: None,
        }
    }

    /// A pass of one random file, at this throughput.
    pub(crate) fn pass(cell: &str, bytes: u64, kb_s: f64) -> CellPass {
        CellPass {
            cell: cell.to_owned(),
            label: "c0-r1-a1-random-once".to_owned(),
            files: vec![MeasuredFile {
                file: "document.bin".to_owned(),
                bytes,
                requested_unix_s: 1.0,
                elapsed_s: bytes as f64 / 1e3 / kb_s,
                window_s: 9.0,
                wan_bytes: bytes,
                open_s: None,
                save_s: None,
                expected_hash: "a".to_owned(),
                found_hash: Some("a".to_owned()),
            }],
            pings_before_ms: vec![60.1, 60.3, 60.2],
            pings_after_ms: vec![60.2],
            cpu_busy: 0.2,
            packets: 1_000,
            foreign_packets: 0,
            retransmitted_packets: 0,
            retransmitted_data_packets: 0,
            dropped_by_link_packets: 0,
            wan_bytes_up: 1_000,
            wan_bytes_down: bytes,
            wan_round_trips: 20,
            failure: None,
        }
    }

    fn header(plan: &str) -> CampaignHeader {
        CampaignHeader::new(plan, CellSizes::Document, MachineInfo::default(), None)
    }

    #[test]
    fn killed_campaign_continues_after_its_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let header = header("title = 'x'");
        let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
        journal.add(attempt("one", vec![])).unwrap();
        journal.add(attempt("two", vec![])).unwrap();
        drop(journal);
        let path = directory.path().join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        for cut in 1..text.lines().last().unwrap().len() {
            fs::write(&path, &text[..text.len() - cut]).unwrap();
            let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
            assert_eq!(journal.attempts_of("one").count(), 1);
            assert_eq!(journal.attempts_of("two").count(), 0, "cut {cut}");
            journal.add(attempt("two", vec![])).unwrap();
            drop(journal);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn failed_write_leaves_whole_lines() {
        let directory = tempfile::tempdir().unwrap();
        let header = header("title = 'x'");
        let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
        journal.add(attempt("one", vec![])).unwrap();
        let path = directory.path().join(FILE_NAME);
        let whole = fs::read_to_string(&path).unwrap();
        // A full disk takes a part of a line.
        let mut disk = OpenOptions::new().append(true).open(&path).unwrap();
        disk.write_all(b"{\"attempt\": {\"series\": \"tw").unwrap();
        journal.add(attempt("three", vec![])).unwrap();
        drop(journal);
        assert!(fs::read_to_string(&path).unwrap().starts_with(&whole));
        let journal = CampaignJournal::read(directory.path()).unwrap();
        assert_eq!(journal.attempts_of("one").count(), 1);
        assert_eq!(journal.attempts_of("three").count(), 1);
    }

    #[test]
    fn second_run_in_one_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let header = header("title = 'x'");
        let first = CampaignJournal::open(directory.path(), &header).unwrap();
        let error = CampaignJournal::open(directory.path(), &header).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        // A report of a running campaign can be made.
        CampaignJournal::read(directory.path()).unwrap();
        drop(first);
        CampaignJournal::open(directory.path(), &header).unwrap();
    }

    #[test]
    fn other_plan_does_not_continue_a_campaign() {
        let directory = tempfile::tempdir().unwrap();
        drop(CampaignJournal::open(directory.path(), &header("one")).unwrap());
        let error = CampaignJournal::open(directory.path(), &header("two")).unwrap_err();
        assert!(error.to_string().contains("--keep"), "{error}");
        let journal = CampaignJournal::read(directory.path()).unwrap();
        assert_eq!(journal.header.plan, "one");
    }

    #[test]
    fn damage_before_the_end_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        fs::write(&path, "{\"campaign\": 1}\n{}\n").unwrap();
        let error = CampaignJournal::read(directory.path()).unwrap_err();
        assert!(format!("{error:#}").contains("line 1"), "{error:#}");
    }
}
