//! Sizes of transfers, and the time that cells take.
//!
//! A cell transfers its document, or what its expected rate moves in the plan's span if that is
//! less; never less than the expected rate moves in 5 s and in 20 round trips. The expected rate is
//! a rule of thumb that only sizes the transfer; no figure of a report depends on it.

use std::time::Duration;

use super::calibration;
use super::expansion::{CellLoad, CellSelection, CellSeries, PlannedCell};
use super::lanes;
use super::pass;
use super::plan::{CacheState, CellMode, CellPlan};
use crate::campaign::LabLink;
use crate::report::published;
use crate::workload::{SERIAL_BLOCK_BYTES, TransferDirection, WorkloadKind};
use emulator::link::settings::SettingDirection;

/// Payload of a full TCP segment with timestamps, of 1,500 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// Payload of a segment.
const SEGMENT_BYTES: f64 = 1448.0;
/// Constant of Mathis' formula for the rate of a loss-limited TCP flow.
const MATHIS: f64 = 1.22;
/// A cell transfers at least this long; shorter transfers are unreliable (2006 report, section 6.3).
const SPAN_LEAST: Duration = Duration::from_secs(5);
/// A cell transfers at least this many round trips.
const ROUND_TRIPS_LEAST: f64 = 20.0;
/// Time to start and stop the link and the captures, and to read the captures, and round trips of it. These
/// figures are from a campaign on two processors.
const SETUP: Duration = Duration::from_secs(2);
const SETUP_ROUND_TRIPS: u32 = 12;
/// Time to start, pair and stop the nodes, and round trips of it. Those of the warm-up's transfer are not among them.
const NODES: Duration = Duration::from_secs(2);
const NODES_ROUND_TRIPS: u32 = 12;
/// Round trips in which a mail client logs on and finds its message.
const MAIL_ROUND_TRIPS: u32 = 24;
/// The longest estimate of one cell; the sums of 20,000 of them stay within a `Duration`.
const ESTIMATE_MOST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Time in which the baseline of a short campaign transfers its files of a set.
const SHORT_FILES: Duration = Duration::from_secs(20);
/// Share of a file set's bytes that crosses the link with cold caches, at most: compression saves the rest. It was
/// 0.13 to 0.69 in a campaign.
const COLD_SHARE: f64 = 0.7;
/// Share with warm caches or edited files, at most.
const WARM_SHARE: f64 = 0.1;
/// Share of the payload rate that is assumed where the protocol does not limit it.
const REACHED: f64 = 0.9;

/// Bytes of one RopReadStream of the lab's mail clients (`clients.py`).
const MAIL_READ_BYTES: f64 = 32_512.0;
/// Bytes of one RopReadStream with the server's own optimisation.
const OPTIMISED_READ_BYTES: f64 = 98_000.0;

/// Figures of a link that a plan's arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFigures {
    /// Rate from client to server, bit/s; `None` without a limit.
    pub up_bit_s: Option<u64>,
    /// Rate from server to client, bit/s; `None` without a limit.
    pub down_bit_s: Option<u64>,
    /// One-way delay from client to server.
    pub one_way_delay: Duration,
    /// Both delays.
    pub round_trip: Duration,
    /// Chance of loss from client to server.
    pub loss: f64,
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellSizes {
    /// Documents whole.
    Document,
    /// As the plan's span shortens them; file sets whole.
    Span(Duration),
    /// Documents for the shortest span, and the smallest files of a set.
    Short,
}

/// Time that a series is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesEstimate {
    /// Time of the warm-up, which may need the processors for itself.
    pub alone: Duration,
    /// Time of everything else.
    pub beside: Duration,
}

impl LinkFigures {
    /// Reads the figures of a link.
    pub(super) fn of(link: &LabLink) -> Self {
        let forward = link.direction(SettingDirection::Forward);
        let back = link.direction(SettingDirection::Back);
        let delay = |way: &Option<crate::campaign::DirectionSummary>| {
            way.map_or(Duration::ZERO, |way| way.delay)
        };
        Self {
            up_bit_s: forward
                .and_then(|way| way.rate)
                .map(vocab::Bitrate::bits_per_second),
            down_bit_s: back
                .and_then(|way| way.rate)
                .map(vocab::Bitrate::bits_per_second),
            one_way_delay: delay(&forward),
            round_trip: delay(&forward) + delay(&back),
            loss: forward.and_then(|way| way.loss).unwrap_or(0.0),
        }
    }

    /// Payload bytes per second that the link carries in this direction; 1 Gbit/s without a limit.
    #[must_use]
    pub fn payload_bytes_per_second(&self, way: TransferDirection) -> f64 {
        let rate = match way {
            TransferDirection::Download => self.down_bit_s,
            TransferDirection::Upload => self.up_bit_s,
        };
        rate.map_or(1e9, |rate| rate as f64) / 8.0 * PAYLOAD_SHARE
    }
}

impl CellSizes {
    /// Sizes of a plan's run: `--document-sizes`, `--short`, or neither.
    #[must_use]
    pub fn of(plan: &CellPlan, document_sizes: bool, short: bool) -> Self {
        match (document_sizes, short) {
            (true, _) => Self::Document,
            (false, true) => Self::Short,
            (false, false) => Self::Span(*plan.span.get_ref()),
        }
    }

    /// Bytes that the cell transfers, where it transfers a document; 0 for files.
    #[must_use]
    pub fn bytes(self, cell: &PlannedCell) -> u64 {
        let CellLoad::Document { bytes: document } = cell.load else {
            return 0;
        };
        let span = match self {
            Self::Document => return document,
            Self::Span(span) => span,
            Self::Short => SPAN_LEAST,
        };
        let rate = expected_rate(cell);
        let round_trips = cell.figures.round_trip.as_secs_f64() * ROUND_TRIPS_LEAST;
        let seconds = span.max(SPAN_LEAST).as_secs_f64().max(round_trips);
        document.min((rate * seconds).ceil().max(1.0) as u64)
    }

    /// Span of the sizes in seconds; `None` for whole documents.
    #[must_use]
    pub fn span_s(self) -> Option<f64> {
        match self {
            Self::Document => None,
            Self::Span(span) => Some(span.as_secs_f64()),
            Self::Short => Some(SPAN_LEAST.as_secs_f64()),
        }
    }

    /// Names of the files that the cell transfers, where it transfers files; all of the set when empty.
    ///
    /// A short campaign takes the smallest files, as many as the baseline transfers in some seconds, and at least
    /// one. All modes and cache states transfer the same ones.
    #[must_use]
    pub fn files(self, cell: &PlannedCell) -> Vec<String> {
        let CellLoad::Files(names) = &cell.load else {
            return Vec::new();
        };
        match self {
            Self::Document | Self::Span(_) => names.clone(),
            Self::Short => {
                let mut files = file_sizes(cell.workload, names);
                files.sort_by_key(|(_, bytes)| *bytes);
                let names: Vec<String> = files.into_iter().map(|(name, _)| name).collect();
                let mut baseline = PlannedCell {
                    mode: CellMode::Baseline,
                    fec: None,
                    cache: CacheState::None,
                    ..cell.clone()
                };
                let mut count = 1;
                while count < names.len() {
                    baseline.load = CellLoad::Files(names[..=count].to_vec());
                    if transfer_time(&baseline, Self::Document) > SHORT_FILES {
                        break;
                    }
                    count += 1;
                }
                names.into_iter().take(count).collect()
            }
        }
    }
}

/// Names and sizes of files of the published set for a workload; all when no name is given.
fn file_sizes(workload: WorkloadKind, names: &[String]) -> Vec<(String, u64)> {
    let all: Vec<(String, u64)> = match workload {
        WorkloadKind::SmbOffice => {
            let documents = published::documents().into_iter();
            let size = |each: published::PublishedDocument| (each.file.clone(), each.bytes());
            documents.map(size).collect()
        }
        _ => {
            let files = published::files().into_iter();
            files.map(|each| (each.name, each.bytes)).collect()
        }
    };
    let is_chosen = |(name, _): &(String, u64)| names.is_empty() || names.contains(name);
    all.into_iter().filter(is_chosen).collect()
}

impl SeriesEstimate {
    /// Estimates a series.
    #[must_use]
    pub fn of(plan: &CellPlan, series: &CellSeries, sizes: CellSizes) -> Self {
        let first = &series.cells[0];
        let round_trip = first.figures.round_trip;
        let mut alone = Duration::ZERO;
        let mut beside = SETUP.saturating_add(round_trip.saturating_mul(SETUP_ROUND_TRIPS));
        if first.mode.has_nodes() {
            let pairing = NODES.saturating_add(round_trip.saturating_mul(NODES_ROUND_TRIPS));
            beside = beside.saturating_add(pairing);
            let ways = pass::warm_up_ways(plan, first).len() as u32;
            alone = pass::warm_up_span(plan, first).saturating_mul(ways);
        }
        for cell in &series.cells {
            if matches!(cell.workload, WorkloadKind::MapiXp | WorkloadKind::Mapi2003) {
                beside = beside.saturating_add(round_trip.saturating_mul(MAIL_ROUND_TRIPS));
            }
            beside = beside.saturating_add(transfer_time(cell, sizes));
        }
        Self { alone, beside }
    }

    /// Time of the series by itself.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.alone.saturating_add(self.beside)
    }
}

/// Time that a campaign of these series is expected to take in so many lanes, its calibration included
/// unless it is short.
#[must_use]
pub fn expected_time(
    plan: &CellPlan,
    series: &[CellSeries],
    sizes: CellSizes,
    selection: &CellSelection,
    jobs: usize,
) -> Duration {
    let calibration = match plan.calibrate && !selection.is_short && !series.is_empty() {
        true => calibration::expected_time(),
        false => Duration::ZERO,
    };
    let series: Vec<&CellSeries> = series.iter().collect();
    let groups = lanes::group(&series, jobs);
    groups.iter().fold(calibration, |total, group| {
        total.saturating_add(group.expected_time(plan, sizes))
    })
}

/// Payload bytes per second of the warm-up of a cell's nodes; 0 without nodes.
pub(super) fn warm_up_rate(cell: &PlannedCell) -> f64 {
    if !cell.mode.has_nodes() {
        return 0.0;
    }
    let ways = [TransferDirection::Download, TransferDirection::Upload];
    let rates = ways.map(|way| cell.figures.payload_bytes_per_second(way));
    rates[0].max(rates[1])
}

fn transfer_time(cell: &PlannedCell, sizes: CellSizes) -> Duration {
    if cell.workload == WorkloadKind::SmbOffice {
        return office_time(cell, &sizes.files(cell));
    }
    let bytes = match &cell.load {
        CellLoad::Document { .. } => sizes.bytes(cell) as f64,
        CellLoad::Files(_) => file_sizes(cell.workload, &sizes.files(cell))
            .iter()
            .map(|(_, bytes)| *bytes as f64)
            .sum(),
    };
    let share = match cell.cache {
        CacheState::None | CacheState::RandomOnce => 1.0,
        CacheState::Cold => COLD_SHARE,
        CacheState::Warm | CacheState::Edited => WARM_SHARE,
    };
    Duration::try_from_secs_f64(bytes * share / expected_rate(cell).max(1.0))
        .unwrap_or(ESTIMATE_MOST)
        .min(ESTIMATE_MOST)
}

/// Time to open and save documents: serial requests in pieces, down and up.
fn office_time(cell: &PlannedCell, names: &[String]) -> Duration {
    const PIECE_BYTES: f64 = 8192.0;
    const ROUND_TRIPS_EACH: f64 = 20.0;
    let documents = file_sizes(cell.workload, names);
    let count = documents.len() as f64;
    let bytes: f64 = documents.iter().map(|(_, bytes)| *bytes as f64).sum();
    let pieces = match cell.mode {
        CellMode::Application => 0.0,
        CellMode::Baseline | CellMode::Transport | CellMode::Exchange => 2.0 * bytes / PIECE_BYTES,
    };
    let waits = (pieces + count * ROUND_TRIPS_EACH) * cell.figures.round_trip.as_secs_f64();
    let lines = [TransferDirection::Download, TransferDirection::Upload]
        .map(|way| bytes / cell.figures.payload_bytes_per_second(way).max(1.0));
    Duration::try_from_secs_f64(waits + lines[0] + lines[1])
        .unwrap_or(ESTIMATE_MOST)
        .min(ESTIMATE_MOST)
}

/// Payload bytes per second that the cell is expected to reach.
pub(super) fn expected_rate(cell: &PlannedCell) -> f64 {
    let payload = cell.figures.payload_bytes_per_second(cell.workload.way()) * REACHED;
    let rtt = cell.figures.round_trip.as_secs_f64();
    let mut rate = payload;
    if !cell.mode.has_nodes() && cell.figures.loss > 0.0 && rtt > 0.0 {
        rate = rate.min(SEGMENT_BYTES * MATHIS / (rtt * cell.figures.loss.sqrt()));
    }
    if let Some(block) = serial_block(cell)
        && cell.mode != CellMode::Application
    {
        rate = block / (rtt + block / rate);
    }
    rate
}

/// Bytes of one request where a client waits for each answer.
fn serial_block(cell: &PlannedCell) -> Option<f64> {
    match cell.workload {
        WorkloadKind::SmbSerialDownload => Some(SERIAL_BLOCK_BYTES as f64),
        WorkloadKind::MapiXp | WorkloadKind::Mapi2003 => Some(match cell.mode {
            CellMode::Exchange => OPTIMISED_READ_BYTES,
            CellMode::Baseline | CellMode::Transport | CellMode::Application => MAIL_READ_BYTES,
        }),
        WorkloadKind::HttpDownload
        | WorkloadKind::FtpDownload
        | WorkloadKind::FtpUpload
        | WorkloadKind::SmbDownload
        | WorkloadKind::SmbUpload
        | WorkloadKind::SmbOffice => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::expansion::{expand, series};
    use super::*;
    use std::path::Path;

    fn scenario(name: &str) -> CellPlan {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        CellPlan::read(&directory.join(name)).unwrap().0
    }

    fn plan() -> CellPlan {
        scenario("wx-2006.toml")
    }

    fn bytes(name: &str, sizes: CellSizes) -> u64 {
        let cells = expand(&plan());
        let cell = cells.iter().find(|cell| cell.name().starts_with(name));
        sizes.bytes(cell.unwrap())
    }

    #[test]
    fn documents_shrink_to_the_span() {
        let span = CellSizes::of(&plan(), false, false);
        assert_eq!(
            bytes("CIFS/T1/0s/loss=0%/A", CellSizes::Document),
            10_000_000
        );
        // T1 moves less than 10 MB of payload in a minute.
        let size = bytes("CIFS/T1/0s/loss=0%/A", span);
        assert!((9_000_000..10_000_001).contains(&size), "{size}");
        // One block in each round trip of half a second.
        let size = bytes("CIFS/OC-1/250ms/loss=0%/B", span);
        assert!((6_000_000..7_400_000).contains(&size), "{size}");
        assert_eq!(bytes("CIFS/OC-1/0s/loss=0%/B", span), 100_000_000);
    }

    #[test]
    fn short_transfers_keep_20_round_trips() {
        let short = CellSizes::of(&plan(), false, true);
        let size = bytes("CIFS/OC-1/250ms/loss=0%/B", short);
        assert!(size >= 19 * SERIAL_BLOCK_BYTES, "{size}");
        let at_0 = bytes("CIFS/T1/0s/loss=0%/A", short);
        let per_second = 1_544_000.0 / 8.0 * PAYLOAD_SHARE * REACHED;
        assert!((at_0 as f64 - 5.0 * per_second).abs() < per_second);
    }

    /// Expected time of a campaign.
    fn expected(plan: &CellPlan, is_short: bool) -> Duration {
        let selection = CellSelection {
            is_short,
            ..CellSelection::default()
        };
        let all = expand(plan);
        let chosen = selection.choose(&all).unwrap();
        let sizes = CellSizes::of(plan, false, is_short);
        let series = series(plan, &chosen, &all);
        expected_time(plan, &series, sizes, &selection, lanes::DEFAULT_JOBS)
    }

    #[test]
    fn calibration_is_part_of_the_expected_time() {
        let plan = plan();
        let mut without = plan.clone();
        without.calibrate = false;
        let more = expected(&plan, false) - expected(&without, false);
        assert_eq!(more, calibration::expected_time());
        // Eight bandwidths of 5 s are 40 s; the guide says about two minutes.
        assert!((100..180).contains(&more.as_secs()), "{more:?}");
        assert_eq!(expected(&plan, true), expected(&without, true));
    }

    #[test]
    fn campaigns_are_expected_within_their_limits() {
        let minutes = |name: &str, is_short| {
            let plan = scenario(name);
            expected(&plan, is_short).as_secs_f64() / 60.0
        };
        let whole = minutes("wx-2006.toml", false);
        assert!(whole < 100.0, "{whole}");
        for name in ["wx-2006.toml", "waas-3g.toml", "access-lines.toml"] {
            let short = minutes(name, true);
            assert!(short < 10.0, "{name}: {short}");
        }
        // No lane ends before its longest series: the documents take 26 minutes without nodes.
        let whole = minutes("waas-3g.toml", false);
        assert!((30.0..60.0).contains(&whole), "{whole}");
    }

    #[test]
    fn short_campaigns_transfer_the_same_few_files_in_all_modes() {
        let cells = expand(&scenario("waas-3g.toml"));
        let mut short = 0;
        for cell in &cells {
            let files = CellSizes::Short.files(cell);
            let mut others = cells.iter().filter(|other| other.protocol == cell.protocol);
            assert!(!files.is_empty());
            assert!(others.all(|other| CellSizes::Short.files(other) == files));
            short += usize::from(files != CellSizes::Document.files(cell));
        }
        assert_eq!(short, cells.len());
        let uploads = cells.iter().find(|cell| cell.protocol == "FTP-up").unwrap();
        assert_eq!(CellSizes::Short.files(uploads), ["200K.ppt"]);
        assert_eq!(CellSizes::Document.files(uploads).len(), 12);
    }
}
