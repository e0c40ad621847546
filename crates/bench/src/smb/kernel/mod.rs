//! Benchmark of the Linux kernel's SMB client (cifs.ko) in a virtual machine, with and without
//! Trunkline.
//!
//! ```text
//!  machine (cifs.ko) ── client ── near ══ 20 Mbit/s, 100 ms RTT ══ far ── server (smbd)
//! ```
//! Each [`KernelCell`] mounts the share anew, so that the client knows nothing of it, carries out its
//! action, and unmounts it. Times are taken in the machine, beside the system calls; what was read,
//! written or listed is compared with the server's own files. Round trips are the time divided by the
//! RTT: they contain the time that data need on the link.

mod cells;
mod exchange;
pub mod trial;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::cells::AccelerationMode;
use super::fixed_link::{
    self, FixedLinkBench, FixedLinkCell, FixedLinkReport, FixedLinkResult, RATE, WARM_UP_BYTES,
};
use super::server::RequestsAtOnce;
use super::stand::SmbLane;
use exchange::{ShareFiles, ShareMount};
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, rootless};
use lab::machine::{self, MachineImage, VirtualMachine};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

pub use cells::{KernelCell, KernelClientKind, KernelDialect, KernelProtection};

/// Time limit for one action: the slowest takes a minute directly.
const ACTION_LIMIT: Duration = Duration::from_secs(600);

/// Files of 10 kB that one cell reads or writes.
const FILES: usize = 40;
/// Bytes of a file that is read or written in blocks: 3.4 s at the link's rate.
const BULK_BYTES: u64 = 8 << 20;
/// Size of a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// Size of the reads and writes that make the path known.
const WARM_UP_BLOCK_BYTES: u64 = 1 << 20;

/// Figures of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFigures {
    /// Files, directories or blocks.
    pub items: u64,
    /// Payload.
    pub bytes: u64,
    /// Time of one item by the RTT.
    pub round_trips_per_item: f64,
    /// Payload over time; 1 kB is 1,000 bytes.
    #[serde(rename = "goodput_kB_s")]
    pub goodput_kb_s: f64,
}

/// Result of a cell.
pub type KernelCellResult = FixedLinkResult<KernelCell, KernelFigures>;

/// Results of the benchmark.
#[derive(Clone, Debug, Default)]
pub struct KernelReport {
    /// Results of the cells.
    pub measured: FixedLinkReport<KernelCell, KernelFigures>,
    /// The machine's kernel.
    pub kernel: String,
}

/// Cells to measure, and places for what the benchmark needs and makes.
#[derive(Clone, Debug)]
pub struct KernelSelection {
    /// The cells.
    pub cells: Vec<KernelCell>,
    /// The project's cache directory, which has the machine's packages.
    pub cache: PathBuf,
    /// Directory for captures of each cell's packets.
    pub captures: Option<PathBuf>,
}

/// Measures the selected cells.
///
/// # Errors
/// Fails when a requirement of all cells is missing, or the machine does not boot.
pub fn measure(
    environment: &ProgramEnvironment,
    selection: &KernelSelection,
    progress: &dyn ProgressReporter,
) -> Result<KernelReport> {
    ensure!(!selection.cells.is_empty(), "nothing is to be measured");
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![lab::servers::ServerKind::Smb],
        clients: vec![machine::PROGRAM],
        interception: InterceptionMode::Transparent,
        captures: match selection.captures {
            Some(_) => CaptureMode::Taken,
            None => CaptureMode::None,
        },
    };
    preflight::check(&needs, privileges)?;
    let image = MachineImage::prepare(&selection.cache, progress)?;
    let mut kernel = String::new();
    let create = || {
        let mut bench = KernelBench::create(environment, &image, selection.captures.clone())?;
        kernel = bench.kernel_release()?;
        Ok(bench)
    };
    let measured = fixed_link::measure_each(&selection.cells, create, progress)?;
    Ok(KernelReport { measured, kernel })
}

/// The lab with its machine.
struct KernelBench {
    // Dropped before the lane that it runs in.
    machine: VirtualMachine,
    lane: SmbLane,
    files: ShareFiles,
    captures: Option<PathBuf>,
    /// Mode in which the nodes run, once it is set.
    mode: Option<AccelerationMode>,
}

impl KernelBench {
    fn create(
        environment: &ProgramEnvironment,
        image: &MachineImage,
        captures: Option<PathBuf>,
    ) -> Result<Self> {
        let mut lane = SmbLane::create_serving(environment, None, RequestsAtOnce::Usual)?;
        fixed_link::set_link(&mut lane)?;
        lane.delegate_key(true);
        let files = ShareFiles::create(&lane)?;
        let machine = lane.boot_machine(image)?;
        Ok(Self {
            machine,
            lane,
            files,
            captures,
            mode: None,
        })
    }

    fn kernel_release(&mut self) -> Result<String> {
        let release = self
            .machine
            .shell(ACTION_LIMIT, "cat /proc/sys/kernel/osrelease")?;
        Ok(release.trim().to_owned())
    }

    /// Starts the nodes for a mode, and makes the path known to them.
    fn set_mode(&mut self, mode: AccelerationMode) -> Result<()> {
        if self.mode == Some(mode) {
            return Ok(());
        }
        if mode != AccelerationMode::Baseline {
            self.lane.start_nodes_alone(mode)?;
            self.warm_up().context("making the path known")?;
        }
        self.mode = Some(mode);
        Ok(())
    }

    fn warm_up(&mut self) -> Result<()> {
        let cell = KernelCell::warm_up();
        let mut mount = ShareMount::mount(&mut self.machine, &cell.mount_options())?;
        for (action, name) in [
            ("read-blocks", exchange::BULK),
            ("write-blocks", exchange::BULK_UPLOAD),
        ] {
            let fields = json!({ "block": WARM_UP_BLOCK_BYTES, "bytes": WARM_UP_BYTES });
            mount.request(action, name, fields)?;
        }
        mount.unmount()?;
        self.files.clear()
    }
}

impl FixedLinkBench for KernelBench {
    type Cell = KernelCell;
    type Figures = KernelFigures;

    fn measure(&mut self, cell: &KernelCell) -> Result<KernelCellResult> {
        self.set_mode(cell.mode)?;
        if cell.mode != AccelerationMode::Baseline {
            self.lane.empty_dictionaries()?;
        }
        let captures = match &self.captures {
            Some(directory) => self.lane.capture_smb(directory, &cell.file_stem())?,
            None => Vec::new(),
        };
        let mut mount = ShareMount::mount(&mut self.machine, &cell.mount_options())?;
        let (outcome, load) = fixed_link::under_load(|| exchange::run(&mut mount, cell.client))?;
        let accelerate = match cell.mode.consistency() {
            Some(_) => Some(self.lane.why()?),
            None => None,
        };
        mount.unmount()?;
        self.machine.check()?;
        self.lane.check()?;
        for mut capture in captures {
            capture.finish()?;
        }
        let identical = self.files.has_what_the_client_has(cell.client, &outcome)?;
        self.files.clear()?;
        let items = outcome.items.max(1) as f64;
        let figures = KernelFigures {
            items: outcome.items,
            bytes: outcome.bytes,
            round_trips_per_item: fixed_link::round_trips(outcome.seconds) / items,
            goodput_kb_s: outcome.bytes as f64 / 1e3 / outcome.seconds.max(1e-9),
        };
        Ok(FixedLinkResult {
            cell: *cell,
            seconds: outcome.seconds,
            figures,
            identical,
            accelerate,
            load,
        })
    }
}

/// Rate left for a TCP connection's payload, in kB/s: 1448 of 1500 bytes.
#[must_use]
pub fn payload_kb_s() -> f64 {
    RATE.bits_per_second() as f64 / 8e3 * 1448.0 / 1500.0
}
