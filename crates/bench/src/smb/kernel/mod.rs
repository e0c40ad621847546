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
use vocab::Bitrate;

use super::cells::AccelerationMode;
use super::server::RequestsAtOnce;
use super::stand::SmbLane;
use crate::lanes::FailedCell;
use crate::reasons::{AccelerationReason, load_average};
use exchange::{ShareFiles, ShareMount};
use host::machine::ProcessorTime;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::machine::{self, MachineImage, VirtualMachine};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

pub use cells::{KernelCell, KernelClientKind, KernelDialect, KernelProtection};

/// Rate of the link.
pub const RATE: Bitrate = Bitrate::from_bits_per_second(20_000_000);
/// Delay each way, in milliseconds.
pub const ONE_WAY_DELAY_MS: u32 = 50;
/// Queue in front of the link: one BDP.
const QUEUE: &str = "250000B";

/// Time limit for one action: the slowest takes a minute directly.
const ACTION_LIMIT: Duration = Duration::from_secs(600);

/// Files of 10 kB that one cell reads or writes.
const FILES: usize = 40;
/// Bytes of a file that is read or written in blocks: 3.4 s at the link's rate.
const BULK_BYTES: u64 = 8 << 20;
/// Size of a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// Bytes that make the path known in each direction: 3 s at the link's rate.
const WARM_UP_BYTES: u64 = 7 << 20;
/// Size of the reads and writes that make the path known.
const WARM_UP_BLOCK_BYTES: u64 = 1 << 20;

/// Result of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct KernelCellResult {
    /// The cell.
    #[serde(flatten)]
    pub cell: KernelCell,
    /// Time for all items.
    pub seconds: f64,
    /// Files, directories or blocks.
    pub items: u64,
    /// Payload.
    pub bytes: u64,
    /// Time of one item by the RTT.
    pub round_trips_per_item: f64,
    /// Payload over time; 1 kB is 1,000 bytes.
    #[serde(rename = "goodput_kB_s")]
    pub goodput_kb_s: f64,
    /// True if the other end has the same bytes, names and sizes.
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
pub struct KernelReport {
    /// Cells in the order of the request.
    pub cells: Vec<KernelCellResult>,
    /// Cells that failed, and the reasons.
    pub not_measured: Vec<FailedCell>,
    /// The machine's kernel.
    pub kernel: String,
    /// True if somebody ended it early.
    pub is_interrupted: bool,
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
    let mut bench = KernelBench::create(environment, &image, selection.captures.clone())?;
    let mut report = KernelReport {
        kernel: bench.kernel_release()?,
        ..KernelReport::default()
    };
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
                bench = KernelBench::create(environment, &image, selection.captures.clone())?;
            }
        }
    }
    report.is_interrupted = kernel::interrupted();
    let place = |cell: &KernelCell| selection.cells.iter().position(|each| each == cell);
    report.cells.sort_by_key(|result| place(&result.cell));
    Ok(report)
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

    /// Measures one cell.
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
        let load_average = load_average();
        let before = ProcessorTime::now()?;
        let outcome = exchange::run(&mut mount, cell.client)?;
        let cpu_busy_percent = ProcessorTime::now()?.busy_since(before) * 100.0;
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
        let rtt = 2.0 * f64::from(ONE_WAY_DELAY_MS) / 1e3;
        Ok(KernelCellResult {
            cell: *cell,
            seconds: outcome.seconds,
            items: outcome.items,
            bytes: outcome.bytes,
            round_trips_per_item: outcome.seconds / rtt / outcome.items.max(1) as f64,
            goodput_kb_s: outcome.bytes as f64 / 1e3 / outcome.seconds.max(1e-9),
            identical,
            accelerate,
            cpu_busy_percent,
            load_average,
        })
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

/// Rate left for a TCP connection's payload, in kB/s: 1448 of 1500 bytes.
#[must_use]
pub fn payload_kb_s() -> f64 {
    RATE.bits_per_second() as f64 / 8e3 * 1448.0 / 1500.0
}
