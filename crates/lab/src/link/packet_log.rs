//! The log of packets: a row for each with its fate, and a capture that shows the same.
//!
//! ```text
//!   link's thread ──offer──► bounded channel ──► writer's thread ──► FILE.csv, FILE.pcapng
//! ```
//! The link never waits for the writer: what finds no room is counted as lost, and said in the
//! file's last line and in the status. When a file cannot be written (a full disk), that is said
//! once and the link goes on. The CSV is a format (docs/formats/packet-log.md): with the
//! settings in its head, the changes of settings among its rows and the arrivals of all packets
//! it is what `replay.rs` needs to have every fate again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use emulate::{DropReason, Ending, Framing, Record};
use serde::{Deserialize, Serialize};
use vocab::Time;

use super::pcapng::{self, Interface, LinkType, Pcapng};
use super::record::{Heading, LinkRecord, RecordSink};
use super::settings::{Resolved, Settings, UsedFile};

/// The records that wait for the writer: 0.3 s of 100,000 packets per second, some 50 MB if they
/// are of full size.
const WAITING_MAX: usize = 32_768;

/// How soon a row is in the file on a quiet link.
const FLUSH_AFTER: Duration = Duration::from_millis(300);

/// How many records may be lost at once with a disk that fills up.
const FLUSH_RECORDS: u64 = 4_096;

/// The first line of a log.
pub(super) const MAGIC: &str = "# trunkline packet log, version 1";

/// The heading of its rows.
pub(super) const COLUMNS: &str = "direction,index,arrived_ns,length_bytes,ecn,fate,at_ns,flags";

/// Where to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// The rows.
    pub csv: Option<PathBuf>,
    /// The capture.
    pub pcapng: Option<PathBuf>,
}

/// What a log says of its link.
#[derive(Clone, Debug)]
pub struct LogHead {
    /// The time of day at which the link's own time began.
    pub started: SystemTime,
    /// What the ends are called.
    pub ends: [String; 2],
    /// What packets begin with.
    pub framing: Framing,
    /// What the link was started with.
    pub settings: Settings,
    /// The files among the settings.
    pub files: Vec<UsedFile>,
}

/// What became of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogReport {
    /// Records written.
    pub records: u64,
    /// Records that were not written, because the writer was too slow or could not write.
    pub lost_records: u64,
    /// Why it could not write.
    pub error: Option<String>,
}

/// A log being written.
#[derive(Debug)]
pub struct PacketLog {
    head: mpsc::Sender<LogHead>,
    shared: Arc<Shared>,
    writer: thread::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    written: AtomicU64,
    lost: AtomicU64,
    error: Mutex<Option<String>>,
    /// Settings that were sent to the link and are not in force yet.
    pending: Mutex<VecDeque<SettingsRow>>,
}

/// A change of settings, as it stands in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SettingsRow {
    /// From when on, nanoseconds.
    pub(super) at_ns: u64,
    /// The numbers of the next packets, forward and back.
    pub(super) next: [u64; 2],
    /// All settings from then on.
    pub(super) settings: Settings,
    /// The files among them.
    pub(super) files: Vec<UsedFile>,
}

enum Entry {
    Packet(LinkRecord),
    Changed(SettingsRow),
}

impl PacketLog {
    /// Creates the files and starts the writer; the sink is for the link.
    ///
    /// # Errors
    /// When a file cannot be created.
    pub fn create(files: &LogFiles) -> Result<(Self, Box<dyn RecordSink>)> {
        let create = |path: &PathBuf| {
            File::create(path)
                .map(|file| BufWriter::with_capacity(1 << 18, file))
                .with_context(|| format!("cannot create {}", path.display()))
        };
        let csv = files.csv.as_ref().map(create).transpose()?;
        let pcapng = files.pcapng.as_ref().map(create).transpose()?;
        let shared = Arc::new(Shared::default());
        let (entries, received) = mpsc::sync_channel(WAITING_MAX);
        let (head, heads) = mpsc::channel();
        let writer = thread::Builder::new()
            .name("packet-log".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || write_all(csv, pcapng, &heads, &received, &shared)
            })
            .context("cannot start the log's thread")?;
        let sink = LogSink {
            entries,
            shared: Arc::clone(&shared),
        };
        let log = Self {
            head,
            shared,
            writer,
        };
        Ok((log, Box::new(sink)))
    }

    /// Says what the link is; rows are written from then on.
    pub fn begin(&self, head: LogHead) {
        // It fails only when the writer has panicked, which `finish` says.
        let _ = self.head.send(head);
    }

    /// Is told of settings that are about to be sent to the link; [`RecordSink::changed`] says
    /// when they are in force.
    pub fn announce(&self, settings: &Settings, resolved: &Resolved) {
        let row = SettingsRow {
            settings: settings.clone(),
            files: resolved.files.clone(),
            ..SettingsRow::default()
        };
        lock(&self.shared.pending).push_back(row);
    }

    /// What was written so far.
    #[must_use]
    pub fn report(&self) -> LogReport {
        self.shared.report()
    }

    /// Waits until all is written; the link must have let go of its sink.
    #[must_use]
    pub fn finish(self) -> LogReport {
        if self.writer.join().is_err() {
            self.shared.fail("the log's thread panicked".to_owned());
        }
        self.shared.report()
    }
}

impl Shared {
    fn report(&self) -> LogReport {
        LogReport {
            records: self.written.load(Ordering::Relaxed),
            lost_records: self.lost.load(Ordering::Relaxed),
            error: lock(&self.error).clone(),
        }
    }

    /// Says once that nothing is written from here on.
    fn fail(&self, error: String) {
        let mut place = lock(&self.error);
        if place.is_none() {
            tracing::warn!(error, "the packet log ends here; the link goes on");
            *place = Some(error);
        }
    }
}

/// What a panicking thread leaves is whole, because all that is kept under these locks is set in
/// one step.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LogSink {
    entries: mpsc::SyncSender<Entry>,
    shared: Arc<Shared>,
}

impl RecordSink for LogSink {
    fn offer(&mut self, record: LinkRecord) -> bool {
        let taken = self.entries.try_send(Entry::Packet(record)).is_ok();
        if !taken {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    fn offer_last(&mut self, record: LinkRecord) -> bool {
        self.entries.send(Entry::Packet(record)).is_ok()
    }

    fn changed(&mut self, at: Time, next: [u64; 2]) {
        let Some(mut row) = lock(&self.shared.pending).pop_front() else {
            return;
        };
        row.at_ns = at.as_nanos();
        row.next = next;
        if self.entries.try_send(Entry::Changed(row)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_all(
    csv: Option<BufWriter<File>>,
    pcapng: Option<BufWriter<File>>,
    heads: &mpsc::Receiver<LogHead>,
    entries: &mpsc::Receiver<Entry>,
    shared: &Shared,
) {
    // Without a head the link did not start, and there is nothing to write.
    let Ok(head) = heads.recv() else {
        return;
    };
    let mut files = match Files::begin(csv, pcapng, &head) {
        Ok(files) => Some(files),
        Err(error) => {
            shared.fail(error.to_string());
            None
        }
    };
    // Records that are in no file for certain yet.
    let mut unflushed = 0;
    loop {
        let is_over = match entries.recv_timeout(FLUSH_AFTER) {
            Ok(entry) => {
                if files.is_none() {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                unflushed += u64::from(matches!(entry, Entry::Packet(_)));
                let written = files.as_mut().map_or(Ok(()), |files| files.entry(&entry));
                if written.is_ok() && unflushed < FLUSH_RECORDS {
                    continue;
                }
                if let Err(error) = written {
                    shared.fail(error.to_string());
                    files = None;
                }
                false
            }
            Err(mpsc::RecvTimeoutError::Timeout) => false,
            Err(mpsc::RecvTimeoutError::Disconnected) => true,
        };
        if let Some(Err(error)) = files.as_mut().map(Files::flush) {
            shared.fail(error.to_string());
            files = None;
        }
        let counter = match files {
            Some(_) => &shared.written,
            None => &shared.lost,
        };
        counter.fetch_add(std::mem::take(&mut unflushed), Ordering::Relaxed);
        if is_over {
            break;
        }
    }
    if let Some(Err(error)) = files.map(|files| files.end(&shared.report())) {
        shared.fail(error.to_string());
    }
}

/// The files behind their heads.
struct Files {
    csv: Option<BufWriter<File>>,
    pcapng: Option<Pcapng<BufWriter<File>>>,
    /// Nanoseconds from 1970 to the link's start.
    epoch: u64,
}

impl Files {
    fn begin(
        mut csv: Option<BufWriter<File>>,
        pcapng: Option<BufWriter<File>>,
        head: &LogHead,
    ) -> io::Result<Self> {
        if let Some(csv) = &mut csv {
            write_head(csv, head)?;
        }
        let pcapng = pcapng.map(|out| {
            let settings = serde_json::to_string(&head.settings).unwrap_or_default();
            let link_type = match head.framing {
                Framing::Ip => LinkType::Raw,
                Framing::Ethernet => LinkType::Ethernet,
            };
            let [a, b] = &head.ends;
            let end = |name: &String, end: &str| Interface {
                name: name.clone(),
                description: format!("end {end} of an emulated link"),
                link_type,
            };
            Pcapng::begin(out, PROGRAM, &settings, &[end(a, "A"), end(b, "B")])
        });
        let since = head.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            csv,
            pcapng: pcapng.transpose()?,
            epoch: u64::try_from(since.as_nanos()).unwrap_or(0),
        })
    }

    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        match entry {
            Entry::Packet(record) => self.packet(record),
            Entry::Changed(row) => self.changed(row),
        }
    }

    fn packet(&mut self, LinkRecord { heading, record }: &LinkRecord) -> io::Result<()> {
        if let Some(csv) = &mut self.csv {
            write_row(csv, *heading, record)?;
        }
        if let Some(capture) = &mut self.pcapng {
            capture_record(capture, self.epoch, *heading, record)?;
        }
        Ok(())
    }

    fn changed(&mut self, row: &SettingsRow) -> io::Result<()> {
        match &mut self.csv {
            Some(csv) => writeln!(csv, "# set: {}", serde_json::to_string(row)?),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(csv) = &mut self.csv {
            csv.flush()?;
        }
        self.pcapng.as_mut().map_or(Ok(()), Pcapng::flush)
    }

    fn end(mut self, report: &LogReport) -> io::Result<()> {
        if let Some(csv) = &mut self.csv {
            writeln!(csv, "# end: {}", serde_json::to_string(report)?)?;
        }
        self.flush()
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
        ..SettingsRow::default()
    };
    writeln!(out, "# set: {}", serde_json::to_string(&first)?)?;
    writeln!(out, "{COLUMNS}")
}

pub(super) fn framing_name(framing: Framing) -> &'static str {
    match framing {
        Framing::Ip => "ip",
        Framing::Ethernet => "ethernet",
    }
}

fn write_row(out: &mut impl Write, heading: Heading, record: &Record) -> io::Result<()> {
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

pub(super) fn heading_name(heading: Heading) -> &'static str {
    match heading {
        Heading::Forward => "forward",
        Heading::Back => "back",
    }
}

/// What a fate is called, when it was certain, and what else is to be said of it.
pub(super) fn fate(ending: &Ending) -> (&'static str, Time, &'static str) {
    match ending {
        Ending::Delivered {
            at,
            corrupted,
            marked,
            is_copy,
        } => {
            let flags = match (corrupted, marked, is_copy) {
                (false, false, false) => "",
                (true, false, false) => "corrupted",
                (false, true, false) => "marked",
                (false, false, true) => "copy",
                (true, true, false) => "corrupted+marked",
                (true, false, true) => "corrupted+copy",
                (false, true, true) => "marked+copy",
                (true, true, true) => "corrupted+marked+copy",
            };
            ("delivered", *at, flags)
        }
        Ending::Dropped { at, reason } => (reason_name(*reason), *at, ""),
    }
}

fn reason_name(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Policed => "policed",
        DropReason::QueueFull => "queue_full",
        DropReason::HeadOfQueue => "head_of_queue",
        DropReason::Aqm => "aqm",
        DropReason::TooLongForBucket => "too_long_for_bucket",
        DropReason::Lost => "lost",
        DropReason::MemoryLimit => "memory_limit",
    }
}

/// The packet where it came in, with its fate, and where it went out.
fn capture_record(
    capture: &mut Pcapng<impl Write>,
    epoch: u64,
    heading: Heading,
    record: &Record,
) -> io::Result<()> {
    let (near, far) = match heading {
        Heading::Forward => (0, 1),
        Heading::Back => (1, 0),
    };
    let (fate, at, flags) = fate(&record.ending);
    let number = record.index;
    let took = at.since(record.arrived).as_nanos();
    let is_copy = matches!(record.ending, Ending::Delivered { is_copy: true, .. });
    if !is_copy {
        let comment = format!(
            "{} {number}: {fate} {took} ns later {flags}",
            heading_name(heading)
        );
        capture.packet(
            near,
            epoch.saturating_add(record.arrived.as_nanos()),
            pcapng::Heading::Inbound,
            &record.packet,
            comment.trim_end(),
        )?;
    }
    if matches!(record.ending, Ending::Delivered { .. }) {
        let comment = format!(
            "{} {number}: came in {took} ns before {flags}",
            heading_name(heading)
        );
        capture.packet(
            far,
            epoch.saturating_add(at.as_nanos()),
            pcapng::Heading::Outbound,
            &record.packet,
            comment.trim_end(),
        )?;
    }
    Ok(())
}
