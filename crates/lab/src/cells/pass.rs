//! Pass of a cell: the contents that it transfers, and its figures in the captures. Real and simulated
//! campaigns share both.

use std::time::Duration;

use anyhow::Result;
use capture::CapturedPacket;

use super::expansion::{self, CellLoad, CellSeries, PlannedCell};
use super::journal::CellPass;
use super::plan::{CacheState, CellPlan};
use super::sizes::CellSizes;
use crate::recording;
use crate::workload::{FileSet, TransferDirection, WorkloadKind, WorkloadOutcome};

/// Payload of a packet that can be waited for; smaller ones are acknowledgements.
const ANSWER_BYTES: u64 = 80;
/// Name of a cell's document.
pub(super) const DOCUMENT_FILE: &str = "document.bin";

/// Name of the file that warms a path up.
pub(super) const WARM_UP_FILE: &str = "warm-up.bin";
/// Round trips of data at the link's rate beside the plan's time. With them the nodes end their search for
/// the rate, which fills the link and its queue for some round trips, before the cell begins.
const WARM_UP_ROUND_TRIPS: u32 = 6;
/// Most bytes of this file: it is in memory.
const WARM_UP_MOST_BYTES: u64 = 64 << 20;

/// Contents that a cell transfers.
pub(super) fn contents(plan: &CellPlan, sizes: CellSizes, cell: &PlannedCell) -> Result<FileSet> {
    let names = match &cell.load {
        CellLoad::Document { .. } => {
            let bytes = sizes.bytes(cell);
            return Ok(FileSet::random(cell.seed, DOCUMENT_FILE, bytes));
        }
        CellLoad::Files(_) => &sizes.files(cell),
    };
    // All cells of a repeat transfer the same files, so that they can be compared.
    let seed = expansion::seed_of(plan.seed, &format!("files {}", cell.repeat));
    let workload = cell.workload;
    let set = match workload.way() {
        TransferDirection::Download if workload == WorkloadKind::SmbOffice => {
            FileSet::documents(seed, names)
        }
        TransferDirection::Download => FileSet::generate(seed, names)?,
        // Uploads share nothing with downloads.
        TransferDirection::Upload => FileSet::generate(seed.wrapping_add(1), names)?,
    };
    Ok(match cell.cache {
        CacheState::Edited => set.edited(cell.seed),
        CacheState::None | CacheState::Cold | CacheState::Warm | CacheState::RandomOnce => set,
    })
}

/// Directions in which the path of a cell is warmed up.
pub(super) fn warm_up_ways(plan: &CellPlan, cell: &PlannedCell) -> Vec<TransferDirection> {
    match (plan.warm_up.get_ref().is_zero(), cell.workload.way()) {
        (true, _) => Vec::new(),
        (false, TransferDirection::Download) => vec![TransferDirection::Download],
        (false, TransferDirection::Upload) => {
            vec![TransferDirection::Download, TransferDirection::Upload]
        }
    }
}

/// Name of an attempt's captures.
pub(super) fn attempt_name(series: &CellSeries, attempt: u32) -> String {
    let first = &series.cells[0];
    format!("c{}-r{}-a{attempt}", first.index, first.repeat)
}

/// Time for which data at the link's rate warm the path of a cell up in one direction.
pub(super) fn warm_up_span(plan: &CellPlan, cell: &PlannedCell) -> Duration {
    let search = cell.figures.round_trip.saturating_mul(WARM_UP_ROUND_TRIPS);
    plan.warm_up.get_ref().saturating_add(search)
}

/// Contents that warm the path of a cell up in one direction.
pub(super) fn warm_up(plan: &CellPlan, cell: &PlannedCell, way: TransferDirection) -> FileSet {
    let rate = cell.figures.payload_bytes_per_second(way);
    let bytes = (rate * warm_up_span(plan, cell).as_secs_f64()) as u64;
    let seed = expansion::seed_of(cell.seed, "warm-up");
    FileSet::random(seed, WARM_UP_FILE, bytes.min(WARM_UP_MOST_BYTES))
}

/// A cell that has run: its figures are still in the captures.
pub(super) struct FinishedCell<'a> {
    pub(super) cell: &'a PlannedCell,
    /// Label of its markers.
    pub(super) label: String,
    pub(super) files: FileSet,
    pub(super) outcome: WorkloadOutcome,
    /// Busy share of all processors' time.
    pub(super) cpu_busy: f64,
    pub(super) pings_before_ms: Vec<f64>,
    pub(super) pings_after_ms: Vec<f64>,
}

impl FinishedCell<'_> {
    /// Reads the figures out of the captures at the client and at the link.
    pub(super) fn read(
        self,
        client: &[CapturedPacket],
        wan: &[CapturedPacket],
    ) -> Result<CellPass> {
        let Self {
            cell,
            label,
            files,
            outcome,
            ..
        } = self;
        let workload = cell.workload;
        let counts = recording::traffic(client, &label)?;
        let crossings = recording::crossings(wan, &label)?;
        let measured = recording::measured_files(client, wan, workload, &label, &files, &outcome)?;
        let (up, down): (Vec<_>, Vec<_>) = crossings
            .packets
            .iter()
            .partition(|packet| packet.is_outward);
        let bytes =
            |packets: &[&recording::WanCrossing]| packets.iter().map(|each| each.ip_bytes).sum();
        let round_trip = cell.figures.round_trip;
        Ok(CellPass {
            cell: cell.key(),
            label,
            files: measured,
            pings_before_ms: self.pings_before_ms,
            pings_after_ms: self.pings_after_ms,
            cpu_busy: self.cpu_busy,
            packets: counts.packets,
            foreign_packets: counts.foreign,
            retransmitted_packets: counts.retransmitted,
            retransmitted_data_packets: match workload.way() {
                TransferDirection::Download => counts.retransmitted_by_server,
                TransferDirection::Upload => counts.retransmitted - counts.retransmitted_by_server,
            },
            dropped_by_link_packets: 0,
            wan_bytes_up: bytes(&up),
            wan_bytes_down: bytes(&down),
            wan_round_trips: match round_trip.is_zero() {
                true => 0,
                false => crossings.round_trips(round_trip, ANSWER_BYTES),
            },
            failure: outcome.failure,
        })
    }
}
