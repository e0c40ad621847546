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
use vocab::SeededRandom;

use super::cells::AccelerationMode;
use super::clients::ClientPython;
use super::fixed_link::{
    self, FixedLinkBench, FixedLinkCell, FixedLinkReport, FixedLinkResult, WARM_UP_BYTES,
};
use super::server::RequestsAtOnce;
use super::stand::SmbLane;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

pub use cells::{OfficeCell, OfficePattern, OfficeProtection};

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

/// Figures of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct OfficeFigures {
    /// Number of actions.
    pub actions: usize,
    /// Number of times that the client waited for answers in one action.
    pub requests_per_action: f64,
    /// Time of one action by the RTT.
    pub round_trips_per_action: f64,
}

/// Result of a cell.
pub type OfficeCellResult = FixedLinkResult<OfficeCell, OfficeFigures>;

/// Results of the benchmark.
pub type OfficeReport = FixedLinkReport<OfficeCell, OfficeFigures>;

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
    let create = || OfficeBench::create(environment, clients, selection.captures.clone());
    fixed_link::measure_each(&selection.cells, create, progress)
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
        fixed_link::set_link(&mut lane)?;
        lane.publish_warm_up(WARM_UP_BYTES)?;
        lane.delegate_key(true);
        Ok(Self {
            lane,
            captures,
            mode: None,
            count: 0,
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

impl FixedLinkBench for OfficeBench {
    type Cell = OfficeCell;
    type Figures = OfficeFigures;

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
        let (outcome, load) = fixed_link::under_load(|| {
            self.lane
                .run_pattern(cell.pattern.name(), cell.protection.client_name(), &paths)
                .with_context(|| format!("in {}", cell.name()))
        })?;
        let accelerate = match cell.mode.consistency() {
            Some(_) => Some(self.lane.why()?),
            None => None,
        };
        for mut capture in captures {
            capture.finish()?;
        }
        let figures = OfficeFigures {
            actions: ACTIONS,
            requests_per_action: outcome.requests as f64 / ACTIONS as f64,
            round_trips_per_action: fixed_link::round_trips(outcome.seconds) / ACTIONS as f64,
        };
        Ok(FixedLinkResult {
            cell: *cell,
            seconds: outcome.seconds,
            figures,
            identical: outcome.is_identical,
            accelerate,
            load,
        })
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
