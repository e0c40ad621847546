//! Benchmark of the requests of office programs and file managers, with and without Trunkline.
//!
//! ```text
//!  smb_patterns.py ── client ── near ══ 20 Mbit/s, 100 ms RTT ══ far ── server (smbd)
//! ```
//! Each [`OfficeCell`] repeats one action of a user's in a session of its own, by SMB 3.1.1, each time on other
//! files, which are new, and with empty dictionaries. The share grants leases and durable handles, and has named streams. What was read and
//! written is compared with the server's own files. Round trips are the time divided by the RTT: they contain
//! the time that data need on the link.

mod cells;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use vocab::{Bitrate, SeededRandom};

use super::cells::AccelerationMode;
use super::clients::ClientPython;
use super::server::RequestsAtOnce;
use super::stand::SmbLane;
use crate::lanes::FailedCell;
use crate::reasons::{AccelerationReason, load_average};
use host::machine::ProcessorTime;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

pub use cells::{OfficeCell, OfficePattern, OfficeProtection};

/// Rate of the link.
pub const RATE: Bitrate = Bitrate::from_bits_per_second(20_000_000);
/// Delay each way, in milliseconds.
pub const ONE_WAY_DELAY_MS: u32 = 50;
/// Queue in front of the link: one BDP.
const QUEUE: &str = "250000B";

/// Bytes that make the path known in each direction: 3 s at the link's rate.
const WARM_UP_BYTES: u64 = 7 << 20;

/// Number of times that an action is repeated: what a node learns of the first one helps the others.
const ACTIONS: usize = 5;
/// Size of a document.
const DOCUMENT_BYTES: usize = 200_000;
/// Number of pictures in a folder, and the size of each.
const PICTURE_COUNT: usize = 8;
/// See above.
const PICTURE_BYTES: usize = 150_000;
/// Size of Finder's state of a folder, as in the capture.
const FINDER_STATE_BYTES: usize = 6_148;

/// Result of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct OfficeCellResult {
    /// The cell.
    #[serde(flatten)]
    pub cell: OfficeCell,
    /// Time of all actions.
    pub seconds: f64,
    /// Number of actions.
    pub actions: usize,
    /// Number of times that the client waited for answers in one action.
    pub requests_per_action: f64,
    /// Time of one action by the RTT.
    pub round_trips_per_action: f64,
    /// True if both ends have the same bytes or names.
    pub identical: bool,
    /// Accelerate stage of the near node for the flow; `None` without nodes.
    pub accelerate: Option<AccelerationReason>,
    /// The share of time in which this machine's processors were busy, in percent.
    pub cpu_busy_percent: f64,
    /// Processes that waited for a processor, on average over the minute before.
    pub load_average: f64,
}

/// Results of the benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OfficeReport {
    /// Cells in the order of the request.
    pub cells: Vec<OfficeCellResult>,
    /// Cells that failed, and the reasons.
    pub not_measured: Vec<FailedCell>,
    /// True if somebody ended it early.
    pub is_interrupted: bool,
}

/// Cells to measure, and the place of their captures.
#[derive(Clone, Debug)]
pub struct OfficeSelection {
    /// The cells.
    pub cells: Vec<OfficeCell>,
    /// Directory for captures of each cell's packets.
    pub captures: Option<PathBuf>,
}

/// Measures the selected cells.
///
/// # Errors
/// Fails when a requirement of all cells is missing.
pub fn measure(
    environment: &ProgramEnvironment,
    clients: &ClientPython,
    selection: &OfficeSelection,
    progress: &dyn ProgressReporter,
) -> Result<OfficeReport> {
    ensure!(!selection.cells.is_empty(), "nothing is to be measured");
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![lab::servers::ServerKind::Smb],
        // A path is made known by it.
        clients: vec!["smbclient"],
        interception: InterceptionMode::Transparent,
        captures: match selection.captures {
            Some(_) => CaptureMode::Taken,
            None => CaptureMode::None,
        },
    };
    preflight::check(&needs, privileges)?;
    let mut bench = OfficeBench::create(environment, clients, selection.captures.clone())?;
    let mut report = OfficeReport::default();
    let mut order = selection.cells.clone();
    // Nodes are started once for each mode.
    order.sort_by_key(|cell| cell.mode);
    for (number, cell) in order.iter().enumerate() {
        progress.step(number as f64 / order.len() as f64, &cell.name());
        match bench.measure(cell) {
            Ok(result) => report.cells.push(result),
            Err(_) if kernel::interrupted() => break,
            Err(error) => {
                let (cell, reason) = (cell.name(), format!("{error:#}"));
                report.not_measured.push(FailedCell { cell, reason });
                // Whatever broke shall not break the next.
                drop(bench);
                bench = OfficeBench::create(environment, clients, selection.captures.clone())?;
            }
        }
    }
    report.is_interrupted = kernel::interrupted();
    let place = |cell: &OfficeCell| selection.cells.iter().position(|each| each == cell);
    report.cells.sort_by_key(|result| place(&result.cell));
    Ok(report)
}

/// The lab of the bench.
struct OfficeBench {
    lane: SmbLane,
    captures: Option<PathBuf>,
    /// Mode in which the nodes run, once it is set.
    mode: Option<AccelerationMode>,
    /// Number of cells so far: each has other bytes.
    count: u64,
}

impl OfficeBench {
    fn create(
        environment: &ProgramEnvironment,
        clients: &ClientPython,
        captures: Option<PathBuf>,
    ) -> Result<Self> {
        let mut lane = SmbLane::create_serving(environment, Some(clients), RequestsAtOnce::Usual)?;
        let words = [
            ("--rate", format!("{}bit", RATE.bits_per_second())),
            ("--delay", format!("{ONE_WAY_DELAY_MS}ms")),
            ("--queue", QUEUE.to_owned()),
            ("--seed", "1".to_owned()),
        ];
        let words = words.into_iter();
        lane.set_words(
            words
                .flat_map(|(name, word)| [name.to_owned(), word])
                .collect(),
        )?;
        lane.publish_warm_up(WARM_UP_BYTES)?;
        lane.delegate_key(true);
        Ok(Self {
            lane,
            captures,
            mode: None,
            count: 0,
        })
    }

    /// Measures one cell.
    fn measure(&mut self, cell: &OfficeCell) -> Result<OfficeCellResult> {
        if self.mode != Some(cell.mode) {
            if cell.mode != AccelerationMode::Baseline {
                self.lane.start_nodes(cell.mode)?;
            }
            self.mode = Some(cell.mode);
        }
        self.publish()?;
        if cell.mode != AccelerationMode::Baseline {
            self.lane.empty_dictionaries()?;
        }
        let captures = match &self.captures {
            Some(directory) => self.lane.capture_smb(directory, &cell.file_stem())?,
            None => Vec::new(),
        };
        let path = match cell.pattern.browses() {
            true => folder,
            false => document,
        };
        let paths: Vec<String> = (0..ACTIONS).map(path).collect();
        let load_average = load_average();
        let before = ProcessorTime::now()?;
        let outcome = self
            .lane
            .run_pattern(cell.pattern.name(), cell.protection.client_name(), &paths)
            .with_context(|| format!("in {}", cell.name()))?;
        let cpu_busy_percent = ProcessorTime::now()?.busy_since(before) * 100.0;
        let accelerate = match cell.mode.consistency() {
            Some(_) => Some(self.lane.why()?),
            None => None,
        };
        for mut capture in captures {
            capture.finish()?;
        }
        let rtt = 2.0 * f64::from(ONE_WAY_DELAY_MS) / 1e3;
        Ok(OfficeCellResult {
            cell: *cell,
            seconds: outcome.seconds,
            actions: ACTIONS,
            requests_per_action: outcome.requests as f64 / ACTIONS as f64,
            round_trips_per_action: outcome.seconds / rtt / ACTIONS as f64,
            identical: outcome.is_identical,
            accelerate,
            cpu_busy_percent,
            load_average,
        })
    }

    /// Makes the share anew.
    fn publish(&mut self) -> Result<()> {
        self.count += 1;
        let mut random = SeededRandom::for_stream(u64::from(std::process::id()), self.count);
        let mut files = Vec::new();
        for action in 0..ACTIONS {
            files.push((document(action), DOCUMENT_BYTES));
            files.push((format!("{}/.DS_Store", folder(action)), FINDER_STATE_BYTES));
            for number in 0..PICTURE_COUNT {
                files.push((format!("{}/{number}.jpg", folder(action)), PICTURE_BYTES));
            }
        }
        let root = self.lane.office_files().to_owned();
        for name in files.iter().filter_map(|(name, _)| name.split_once('/')) {
            let directory = root.join(name.0);
            fs::create_dir_all(&directory)?;
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        }
        for (name, bytes) in files {
            let mut content = vec![0; bytes];
            random.fill(&mut content);
            let path = root.join(name);
            // A new file, without the streams of the last cell.
            let _ = fs::remove_file(&path);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        }
        Ok(())
    }
}

/// Path of an action's document.
fn document(action: usize) -> String {
    format!("documents/report-{action}.docx")
}

/// Path of an action's folder.
fn folder(action: usize) -> String {
    format!("pictures-{action}")
}
