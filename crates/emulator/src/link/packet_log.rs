//! Log of packets: a row with its fate for each packet, and a capture of the same packets.
//!
//! ```text
//!   link's thread ──offer──► bounded channel ──► writer's thread ──► FILE.csv, FILE.pcapng
//! ```
//! The link never waits for the writer: what finds no room is counted as lost, and said in the
//! file's last line and in the status. A change of settings is never lost, because no packet behind
//! it could be replayed without: it goes another way, beside the channel, and whoever makes more
//! changes than the writer can follow waits for it. When a file cannot be written (a full disk), that is said
//! once and the link goes on. The CSV is a format (docs/formats/packet-log.md): with the
//! settings in its head, the changes of settings among its rows and the arrivals of all packets
//! it is what `replay.rs` needs to have every fate again.

mod record_file;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use emulate::{DropReason, LinkFraming, PacketOutcome, PacketRecord};
use serde::{Deserialize, Serialize};
use vocab::Time;

use super::pcapng::{self, CaptureInterface, LinkType, PcapngWriter};
use super::record::{LinkRecord, PacketDirection, RecordSink};
use super::settings::{LinkSettings, ResolvedSettings, UsedFile};
use record_file::{RecordFile, WriteFailure, WriteOutcome};

/// The records that wait for the writer: 0.3 s of 100,000 packets per second, some 50 MB if they
/// are of full size.
const WAITING_MAX: usize = 32_768;

/// Changes of settings that wait for the writer; each may be some kilobytes.
const CHANGES_WAITING_MAX: usize = 256;

/// Time limit for a change to wait until the writer has room.
const CHANGE_PATIENCE: Duration = Duration::from_secs(2);

/// Time within which a row is in the file.
const FLUSH_AFTER: Duration = Duration::from_millis(300);

/// Greatest number of records that are lost at once when a disk fills up.
const FLUSH_RECORDS: u64 = 4_096;

/// Number of records per look at the clock.
const LOOK_AT_CLOCK_EVERY: u64 = 64;

/// The first line of a log.
pub(super) const MAGIC: &str = "# trunkline packet log, version 1";

/// The heading of its rows.
pub(super) const COLUMNS: &str = "direction,index,arrived_ns,length_bytes,ecn,fate,at_ns,flags";

/// Files to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// The rows.
    pub csv: Option<PathBuf>,
    /// The capture.
    pub pcapng: Option<PathBuf>,
}

/// Head of a log: the properties of its link.
#[derive(Clone, Debug)]
pub struct LogHead {
    /// The time of day at which the link's own time began.
    pub started: SystemTime,
    /// Names of the ends.
    pub ends: [String; 2],
    /// Kind of packets on the link.
    pub framing: LinkFraming,
    /// Settings with which the link was started.
    pub settings: LinkSettings,
    /// The files among the settings.
    pub files: Vec<UsedFile>,
    /// Forced rates of the link's start that this host was not seen to carry.
    pub forced: Option<String>,
}

/// Reports about the files of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogReports {
    /// The rows.
    pub log: Option<LogReport>,
    /// The capture.
    pub capture: Option<LogReport>,
}

impl LogReports {
    /// The existing files, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &LogReport)> {
        let log = self.log.iter().map(|report| (LOG, report));
        log.chain(self.capture.iter().map(|report| (CAPTURE, report)))
    }
}

/// Report about one file of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogReport {
    /// Records that are whole in the file.
    pub records: u64,
    /// Records that are not, because the writer was too slow or could not write.
    pub lost_records: u64,
    /// Why it could not write.
    pub error: Option<String>,
}

const LOG: &str = "packet log";
const CAPTURE: &str = "capture";

/// A log being written.
#[derive(Debug)]
pub struct PacketLog {
    head: mpsc::Sender<LogHead>,
    shared: Arc<SharedLogState>,
    writer: thread::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SharedLogState {
    log: Option<LogFileCounters>,
    capture: Option<LogFileCounters>,
    /// Records that found no room on their way to the writer.
    missed: AtomicU64,
    changes: Mutex<PendingChanges>,
    /// Condition variable that is notified when changes were written.
    room: Condvar,
}

/// Counts of records that are in a file and of those that are not.
#[derive(Debug)]
struct LogFileCounters {
    name: &'static str,
    path: PathBuf,
    written: AtomicU64,
    lost: AtomicU64,
    error: Mutex<Option<String>>,
}

/// Changes of settings on their way.
#[derive(Debug, Default)]
struct PendingChanges {
    /// Sent to the link and not in force yet.
    announced: VecDeque<SettingsRow>,
    /// Changes that are in force and not written yet.
    in_force: Vec<SettingsRow>,
}

/// A change of settings, in the form of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SettingsRow {
    /// Time from which it is in force, in nanoseconds.
    pub(super) at_ns: u64,
    /// The numbers of the next packets, forward and back.
    pub(super) next: [u64; 2],
    /// All settings from then on.
    pub(super) settings: LinkSettings,
    /// The files among them.
    pub(super) files: Vec<UsedFile>,
    /// Rates that were forced on the link so far, although this host was not seen to carry them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forced: Option<String>,
}

impl PacketLog {
    /// Creates the files and starts the writer; the sink is for the link.
    ///
    /// # Errors
    /// When a file cannot be created.
    pub fn create(files: &LogFiles) -> Result<(Self, Box<dyn RecordSink>)> {
        let create = |path: &Option<PathBuf>| -> Result<Option<RecordFile<File>>> {
            let Some(path) = path else {
                return Ok(None);
            };
            let file =
                File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            Ok(Some(RecordFile::new(file)))
        };
        let outs = [create(&files.csv)?, create(&files.pcapng)?];
        let account = |name, path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| LogFileCounters::new(name, path.clone()))
        };
        let shared = Arc::new(SharedLogState {
            log: account(LOG, &files.csv),
            capture: account(CAPTURE, &files.pcapng),
            ..SharedLogState::default()
        });
        let (records, received) = mpsc::sync_channel(WAITING_MAX);
        let (head, heads) = mpsc::channel();
        let writer = thread::Builder::new()
            .name("packet-log".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || write_all(outs, &heads, &received, &shared)
            })
            .context("cannot start the log's thread")?;
        let sink = LogSink {
            records,
            shared: Arc::clone(&shared),
        };
        let log = Self {
            head,
            shared,
            writer,
        };
        Ok((log, Box::new(sink)))
    }

    /// Sets the properties of the link; rows are written from then on.
    pub fn begin(&self, head: LogHead) {
        // It fails only when the writer has panicked, which `finish` says.
        let _ = self.head.send(head);
    }

    /// Announces settings before they are sent to the link; [`RecordSink::changed`] tells when they
    /// are in force.
    ///
    /// # Errors
    /// Fails when so many changes wait for the writer that it cannot accept another.
    pub fn announce(
        &self,
        settings: &LinkSettings,
        resolved: &ResolvedSettings,
        forced: Option<&str>,
    ) -> Result<()> {
        // A capture shows no settings.
        if self.shared.log.is_none() {
            return Ok(());
        }
        let row = SettingsRow {
            settings: settings.clone(),
            files: resolved.files.clone(),
            forced: forced.map(str::to_owned),
            ..SettingsRow::default()
        };
        let is_full = |changes: &mut PendingChanges| {
            changes.announced.len() + changes.in_force.len() >= CHANGES_WAITING_MAX
        };
        let (mut changes, waited) = self
            .shared
            .room
            .wait_timeout_while(lock(&self.shared.changes), CHANGE_PATIENCE, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            bail!(
                "the packet log is {CHANGES_WAITING_MAX} changes of settings behind and no packet could be replayed without them; is its disk too slow? Try again"
            );
        }
        changes.announced.push_back(row);
        Ok(())
    }

    /// Reports about the files as written so far.
    #[must_use]
    pub fn report(&self) -> LogReports {
        self.shared.report()
    }

    /// Waits until all is written; the link must have let go of its sink.
    #[must_use]
    pub fn finish(self) -> LogReports {
        if self.writer.join().is_err() {
            for account in self.shared.accounts() {
                account.fail("the log's thread panicked".to_owned());
            }
        }
        self.shared.report()
    }
}

impl SharedLogState {
    fn accounts(&self) -> impl Iterator<Item = &LogFileCounters> {
        self.log.iter().chain(&self.capture)
    }

    fn report(&self) -> LogReports {
        let missed = self.missed.load(Ordering::Relaxed);
        let report = |account: &LogFileCounters| account.report(missed);
        LogReports {
            log: self.log.as_ref().map(report),
            capture: self.capture.as_ref().map(report),
        }
    }
}

impl LogFileCounters {
    fn new(name: &'static str, path: PathBuf) -> Self {
        Self {
            name,
            path,
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            error: Mutex::new(None),
        }
    }

    fn report(&self, missed: u64) -> LogReport {
        LogReport {
            records: self.written.load(Ordering::Relaxed),
            lost_records: self.lost.load(Ordering::Relaxed) + missed,
            error: lock(&self.error).clone(),
        }
    }

    /// Records the first write error.
    fn fail(&self, error: String) {
        let mut place = lock(&self.error);
        if place.is_none() {
            let (name, file) = (self.name, self.path.display());
            tracing::warn!(%file, error, "the {name} ends here; the link goes on");
            *place = Some(error);
        }
    }
}

/// Locks a mutex, even one that a panicking thread held: all data under these locks is changed in
/// one step, so it stays consistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LogSink {
    records: mpsc::SyncSender<LinkRecord>,
    shared: Arc<SharedLogState>,
}

impl RecordSink for LogSink {
    fn offer(&mut self, record: LinkRecord) -> bool {
        let taken = self.records.try_send(record).is_ok();
        if !taken {
            self.shared.missed.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    fn offer_last(&mut self, record: LinkRecord) -> bool {
        self.records.send(record).is_ok()
    }

    fn changed(&mut self, at: Time, next: [u64; 2]) {
        let mut changes = lock(&self.shared.changes);
        let Some(mut row) = changes.announced.pop_front() else {
            return;
        };
        row.at_ns = at.as_nanos();
        row.next = next;
        changes.in_force.push(row);
    }
}

fn write_all(
    [log, capture]: [Option<RecordFile<File>>; 2],
    heads: &mpsc::Receiver<LogHead>,
    records: &mpsc::Receiver<LinkRecord>,
    shared: &SharedLogState,
) {
    // Without a head the link did not start, and there is nothing to write.
    let Ok(head) = heads.recv() else {
        return;
    };
    let log = log.map(|file| LogOutput::rows(file, &head));
    let capture = capture.map(|file| LogOutput::capture(file, &head));
    let files = [(log, &shared.log), (capture, &shared.capture)]
        .into_iter()
        .filter_map(|(form, account)| Some((form?, account.as_ref()?)))
        .map(|(form, account)| LogFile::begin(form, account));
    let mut writer = LogWriter {
        files: files.collect(),
        shared,
        unflushed: 0,
        flush_at: None,
    };
    loop {
        let left = writer.flush_at.map_or(FLUSH_AFTER, |at| {
            at.saturating_duration_since(Instant::now())
        });
        let received = records.recv_timeout(left);
        writer.write_changes();
        match received {
            Ok(record) => writer.write(&record),
            Err(mpsc::RecvTimeoutError::Timeout) => writer.flush(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    writer.flush();
    let missed = shared.missed.load(Ordering::Relaxed);
    for file in &mut writer.files {
        file.end(missed);
    }
}

/// State of the writer's thread: the files, and the number of records that are not flushed yet.
struct LogWriter<'a> {
    files: Vec<LogFile<'a>>,
    shared: &'a SharedLogState,
    unflushed: u64,
    /// Time at which the oldest of those must be flushed.
    flush_at: Option<Instant>,
}

impl LogWriter<'_> {
    fn write(&mut self, record: &LinkRecord) {
        for file in &mut self.files {
            file.write(record);
        }
        self.unflushed += 1;
        let flush_at = *self
            .flush_at
            .get_or_insert_with(|| Instant::now() + FLUSH_AFTER);
        if self.unflushed >= FLUSH_RECORDS
            || (self.unflushed.is_multiple_of(LOOK_AT_CLOCK_EVERY) && flush_at <= Instant::now())
        {
            self.flush();
        }
    }

    fn write_changes(&mut self) {
        let rows = std::mem::take(&mut lock(&self.shared.changes).in_force);
        if rows.is_empty() {
            return;
        }
        self.shared.room.notify_all();
        for file in &mut self.files {
            for row in &rows {
                file.changed(row);
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        for file in &mut self.files {
            file.flush();
        }
        self.unflushed = 0;
        self.flush_at = None;
    }
}

/// One of the files, until it cannot be written.
struct LogFile<'a> {
    form: Option<LogOutput>,
    account: &'a LogFileCounters,
}

impl<'a> LogFile<'a> {
    fn begin(form: io::Result<LogOutput>, account: &'a LogFileCounters) -> Self {
        let form = form
            .inspect_err(|error| account.fail(error.to_string()))
            .ok();
        let mut file = Self { form, account };
        file.flush();
        file
    }

    fn write(&mut self, record: &LinkRecord) {
        let Some(form) = &mut self.form else {
            self.account.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let written = form.packet(record);
        let is_full = form.file().is_full();
        self.held(written);
        if is_full {
            self.flush();
        }
    }

    fn changed(&mut self, row: &SettingsRow) {
        if let Some(form) = &mut self.form {
            let written = form.changed(row);
            self.held(written);
        }
    }

    /// Writes the final counts after the last record.
    fn end(&mut self, missed: u64) {
        let report = self.account.report(missed);
        if let Some(form) = &mut self.form {
            let written = form.end(&report);
            self.held(written);
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(form) = &mut self.form else {
            return;
        };
        let WriteOutcome { records, failure } = form.file().write_out();
        self.account.written.fetch_add(records, Ordering::Relaxed);
        if let Some(WriteFailure { error, lost, whole }) = failure {
            self.account.lost.fetch_add(lost, Ordering::Relaxed);
            // What cannot be cut, as a pipe, ends in the middle of a record.
            let _ = form.file().out().set_len(whole);
            self.account.fail(error.to_string());
            self.form = None;
        }
    }

    fn held(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.flush();
            self.account.fail(error.to_string());
            self.form = None;
        }
    }
}

/// Format and destination of the records.
enum LogOutput {
    Rows(RecordFile<File>),
    Capture {
        capture: PcapngWriter<RecordFile<File>>,
        /// Nanoseconds from 1970 to the link's start.
        epoch: u64,
    },
}

impl LogOutput {
    fn rows(mut file: RecordFile<File>, head: &LogHead) -> io::Result<Self> {
        write_head(&mut file, head)?;
        file.end_part();
        Ok(LogOutput::Rows(file))
    }

    fn capture(file: RecordFile<File>, head: &LogHead) -> io::Result<Self> {
        let mut settings = serde_json::to_string(&head.settings).unwrap_or_default();
        if let Some(forced) = &head.forced {
            settings.push_str("; ");
            settings.push_str(forced);
        }
        let link_type = match head.framing {
            LinkFraming::Ip => LinkType::Raw,
            LinkFraming::Ethernet => LinkType::Ethernet,
        };
        let [a, b] = &head.ends;
        let end = |name: &String, end: &str| CaptureInterface {
            name: name.clone(),
            description: format!("end {end} of an emulated link"),
            link_type,
        };
        let ends = [end(a, "A"), end(b, "B")];
        let mut capture = PcapngWriter::begin(file, PROGRAM, &settings, &ends)?;
        capture.out().end_part();
        let since = head.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(LogOutput::Capture {
            capture,
            epoch: u64::try_from(since.as_nanos()).unwrap_or(0),
        })
    }

    fn file(&mut self) -> &mut RecordFile<File> {
        match self {
            LogOutput::Rows(file) => file,
            LogOutput::Capture { capture, .. } => capture.out(),
        }
    }

    fn packet(&mut self, LinkRecord { heading, record }: &LinkRecord) -> io::Result<()> {
        match self {
            LogOutput::Rows(file) => write_row(file, *heading, record)?,
            LogOutput::Capture { capture, epoch } => {
                capture_record(capture, *epoch, *heading, record)?
            }
        }
        self.file().end_record();
        Ok(())
    }

    fn changed(&mut self, row: &SettingsRow) -> io::Result<()> {
        if let LogOutput::Rows(file) = self {
            writeln!(file, "# set: {}", serde_json::to_string(row)?)?;
            file.end_part();
        }
        Ok(())
    }

    fn end(&mut self, report: &LogReport) -> io::Result<()> {
        if let LogOutput::Rows(file) = self {
            writeln!(file, "# end: {}", serde_json::to_string(report)?)?;
            file.end_part();
        }
        Ok(())
    }
}

const PROGRAM: &str = concat!("trunkline ", env!("CARGO_PKG_VERSION"));

fn write_head(out: &mut impl Write, head: &LogHead) -> io::Result<()> {
    let started = jiff::Timestamp::try_from(head.started).unwrap_or_default();
    let [a, b] = &head.ends;
    writeln!(out, "{MAGIC}")?;
    writeln!(out, "# program: {PROGRAM}")?;
    writeln!(out, "# started: {started}")?;
    writeln!(out, "# ends: {a}, {b}")?;
    writeln!(out, "# framing: {}", framing_name(head.framing))?;
    writeln!(out, "# seed: {}", head.settings.seed())?;
    let first = SettingsRow {
        settings: head.settings.clone(),
        files: head.files.clone(),
        forced: head.forced.clone(),
        ..SettingsRow::default()
    };
    writeln!(out, "# set: {}", serde_json::to_string(&first)?)?;
    writeln!(out, "{COLUMNS}")
}

pub(super) fn framing_name(framing: LinkFraming) -> &'static str {
    match framing {
        LinkFraming::Ip => "ip",
        LinkFraming::Ethernet => "ethernet",
    }
}

fn write_row(
    out: &mut impl Write,
    heading: PacketDirection,
    record: &PacketRecord,
) -> io::Result<()> {
    let (fate, at, flags) = fate(&record.ending);
    writeln!(
        out,
        "{},{},{},{},{},{fate},{},{flags}",
        heading_name(heading),
        record.index,
        record.arrived.as_nanos(),
        record.packet.len(),
        record.ecn,
        at.as_nanos()
    )
}

pub(super) fn heading_name(heading: PacketDirection) -> &'static str {
    match heading {
        PacketDirection::Forward => "forward",
        PacketDirection::Back => "back",
    }
}

/// Name of a fate, the time at which it was certain, and its flags.
pub(super) fn fate(ending: &PacketOutcome) -> (&'static str, Time, &'static str) {
    match ending {
        PacketOutcome::Delivered {
            at,
            corrupted,
            marked,
            is_copy,
        } => {
            let place =
                usize::from(*corrupted) | usize::from(*marked) << 1 | usize::from(*is_copy) << 2;
            (DELIVERED, *at, FLAGS[place])
        }
        PacketOutcome::Dropped { at, reason } => (reason_name(*reason), *at, ""),
        PacketOutcome::Held { at, is_copy } => (HELD, *at, FLAGS[usize::from(*is_copy) << 2]),
    }
}

/// Flags of a delivered packet: corrupted, marked and copy, one bit each.
pub(super) const FLAGS: [&str; 8] = [
    "",
    "corrupted",
    "marked",
    "corrupted+marked",
    "copy",
    "corrupted+copy",
    "marked+copy",
    "corrupted+marked+copy",
];

/// The fate of a packet that arrived.
pub(super) const DELIVERED: &str = "delivered";

/// All fates by index: delivered, those of `reason_name`, and held.
pub(super) const FATES: [&str; 11] = [
    DELIVERED,
    "policed",
    "queue_full",
    "head_of_queue",
    "aqm",
    "too_long_for_bucket",
    "lost",
    "outage",
    "memory_limit",
    UNTAKEN,
    HELD,
];

/// Fate of a packet that had no fate yet when the log ended.
pub(super) const HELD: &str = "held";

/// The fate of a packet that arrived in the model and was never taken out of it.
pub(super) const UNTAKEN: &str = "untaken";

fn reason_name(reason: DropReason) -> &'static str {
    let place = match reason {
        DropReason::Policed => 1,
        DropReason::QueueFull => 2,
        DropReason::HeadOfQueue => 3,
        DropReason::Aqm => 4,
        DropReason::TooLongForBucket => 5,
        DropReason::Lost => 6,
        DropReason::Outage => 7,
        DropReason::MemoryLimit => 8,
        DropReason::Untaken => 9,
    };
    FATES[place]
}

/// The packet where it came in, with its fate, and where it went out.
fn capture_record(
    capture: &mut PcapngWriter<impl Write>,
    epoch: u64,
    heading: PacketDirection,
    record: &PacketRecord,
) -> io::Result<()> {
    let (near, far) = match heading {
        PacketDirection::Forward => (0, 1),
        PacketDirection::Back => (1, 0),
    };
    let (fate, at, flags) = fate(&record.ending);
    let number = record.index;
    let took = at.since(record.arrived).as_nanos();
    if !flags.ends_with("copy") {
        let comment = format!(
            "{} {number}: {fate} {took} ns later {flags}",
            heading_name(heading)
        );
        capture.packet(
            near,
            epoch.saturating_add(record.arrived.as_nanos()),
            pcapng::CaptureDirection::Inbound,
            &record.packet,
            comment.trim_end(),
        )?;
    }
    if matches!(record.ending, PacketOutcome::Delivered { .. }) {
        let comment = format!(
            "{} {number}: came in {took} ns before {flags}",
            heading_name(heading)
        );
        capture.packet(
            far,
            epoch.saturating_add(at.as_nanos()),
            pcapng::CaptureDirection::Outbound,
            &record.packet,
            comment.trim_end(),
        )?;
    }
    Ok(())
}
