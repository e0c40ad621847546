//! Execution of a campaign in virtual time: the same cells over two engines and hosts with scripts.
//!
//! ```text
//! for each series that the journal does not have, several at a time:
//!   link and nodes ─► warm-up ─► empty dictionaries and caches
//!   for each cell:  pings ─► marker ─► client ─► marker ─► pings      both captures recorded
//!   read the captures ─► journal
//! ```
//! The steps are those of `runner.rs`, and so are the figures' source and their code. A cell's seed
//! determines everything, so a series runs once, and the order in which series end does not matter.
//! No machine takes part: nothing is calibrated, and no processor limits a cell.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use capture::{CapturedPacket, TransportHeader};
use host::kernel;
use host::progress::ProgressReporter;
use simulation::{
    HostLatency, MailGeneration, NodeCorrection, NodeSettings, SimulatedSite, SimulatedWorkload,
    SiteSettings, TappedHeader, TappedPacket, TransferOutcome,
};
use vocab::Time;

use super::expansion::{self, CellSelection, CellSeries, PlannedCell};
use super::journal::{CampaignHeader, CampaignJournal, RealFigures, SeriesAttempt};
use super::pass::{self, FinishedCell, contents};
use super::plan::{CellMode, CellPlan, FecSetting};
use super::results::{CampaignOutcome, CellStatus};
use super::runner::summary;
use super::sizes::{CellSizes, SeriesEstimate};
use crate::recording::{MarkerEdge, WorkloadMarker};
use crate::workload::{
    FileArrival, FileSet, SERIAL_BLOCK_BYTES, TransferDirection, WorkloadKind, WorkloadOutcome,
    hash,
};

/// Start of virtual time on the calendar: 2026-01-01 00:00 UTC.
const START: Duration = Duration::from_secs(1_767_225_600);

/// Echoes before and after a cell, as in the lab.
const PINGS: usize = 3;

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// Directory of the journal.
    pub directory: PathBuf,
    /// Sizes of the documents.
    pub sizes: CellSizes,
    /// Cells that run.
    pub cells: CellSelection,
    /// Series that run at the same time.
    pub jobs: usize,
    /// Directory of a real campaign of the same plan, for comparison.
    pub real: Option<PathBuf>,
}

/// Simulates the cells that the journal does not have, and returns the journal.
///
/// # Errors
/// Fails when no cell is chosen or the journal cannot be written, or when it is interrupted. A
/// series that fails is in the journal with its failure, and the rest goes on.
pub fn run_simulation(
    plan: &CellPlan,
    text: &str,
    options: &SimulationOptions,
    progress: &dyn ProgressReporter,
) -> Result<CampaignJournal> {
    let all = expansion::expand(plan);
    let chosen = options.cells.choose(&all)?;
    let series: Vec<CellSeries> = expansion::series(plan, &chosen, &all)
        .into_iter()
        .filter(|series| is_simulated(&series.cells[0]))
        .collect();
    // Before the simulation, which takes time.
    let real = match &options.real {
        Some(directory) => Some(real_figures(plan, options.sizes, directory, progress)?),
        None => None,
    };
    let header = CampaignHeader::of_simulation(text, options.sizes);
    let mut journal = CampaignJournal::open(&options.directory, &header)?;
    let mut left: Vec<CellSeries> = series
        .into_iter()
        .filter(|series| journal.attempts_of(&series.key).next().is_none())
        .collect();
    // The longest first, so that no processor waits for one long series at the end.
    left.sort_by_key(|series| {
        std::cmp::Reverse(SeriesEstimate::of(plan, series, options.sizes).total())
    });
    simulate_all(plan, left, options, progress, &mut journal)?;
    if let Some(real) = real {
        journal.add_real(real)?;
    }
    Ok(journal)
}

/// Figures of the real campaign in a directory.
///
/// # Errors
/// Fails when it contains no campaign, a simulation, or no measured cell of this plan.
fn real_figures(
    plan: &CellPlan,
    sizes: CellSizes,
    directory: &Path,
    progress: &dyn ProgressReporter,
) -> Result<RealFigures> {
    let place = directory.display();
    let real = CampaignOutcome::read(directory)
        .with_context(|| format!("reading the real campaign in {place}"))?;
    ensure!(
        !real.journal.header.is_simulation,
        "{place} contains a simulation; name the directory of a real campaign with --real"
    );
    let figures = real.real_figures(plan, sizes);
    ensure!(
        !figures.throughputs_kb_s.is_empty(),
        "the campaign in {place} has measured no cell of this plan with these sizes; name the directory of \
         another one with --real"
    );
    let left = real.count(CellStatus::Measured) - figures.throughputs_kb_s.len();
    if left > 0 {
        progress.note(&format!(
            "{left} cells of the real campaign in {place} are not compared: they are not in this plan, or \
             differ from it in the link, the workload, the warm-up or the size"
        ));
    }
    Ok(figures)
}

/// Tells whether the simulation has a script for a cell.
pub(super) fn is_simulated(cell: &PlannedCell) -> bool {
    simulated_workload(cell).is_some()
}

fn simulated_workload(cell: &PlannedCell) -> Option<SimulatedWorkload> {
    match cell.workload {
        WorkloadKind::HttpDownload => Some(SimulatedWorkload::HttpDownload),
        WorkloadKind::FtpDownload => Some(SimulatedWorkload::FtpDownload),
        WorkloadKind::FtpUpload => Some(SimulatedWorkload::FtpUpload),
        WorkloadKind::SmbSerialDownload => Some(SimulatedWorkload::SmbSerialDownload {
            block: SERIAL_BLOCK_BYTES as u32,
        }),
        WorkloadKind::SmbDownload | WorkloadKind::SmbUpload | WorkloadKind::SmbOffice => None,
        WorkloadKind::MapiXp => Some(mail(MailGeneration::Xp)),
        WorkloadKind::Mapi2003 => Some(mail(match cell.mode {
            CellMode::Exchange => MailGeneration::Optimised2003,
            CellMode::Baseline | CellMode::Transport | CellMode::Application => {
                MailGeneration::Plain2003
            }
        })),
    }
}

const fn mail(generation: MailGeneration) -> SimulatedWorkload {
    SimulatedWorkload::MailDownload { generation }
}

/// Response times of the lab's programs. Those of SMB are the medians in captures of a real campaign:
/// smbprotocol needs 1.1 ms from the last segment of an answer to the next READ, and smbd 0.6 ms from a
/// READ to the first segment of its answer, both with the time in the kernel. Other clients do not wait for
/// answers, or their times are not measured.
const fn latency(workload: SimulatedWorkload) -> HostLatency {
    match workload {
        SimulatedWorkload::SmbSerialDownload { .. } => HostLatency {
            client: Duration::from_micros(1_100),
            server: Duration::from_micros(600),
        },
        SimulatedWorkload::HttpDownload
        | SimulatedWorkload::FtpDownload
        | SimulatedWorkload::FtpUpload
        | SimulatedWorkload::MailDownload { .. } => HostLatency {
            client: Duration::ZERO,
            server: Duration::ZERO,
        },
    }
}

/// Runs the series on several threads and writes each finished one to the journal.
fn simulate_all(
    plan: &CellPlan,
    left: Vec<CellSeries>,
    options: &SimulationOptions,
    progress: &dyn ProgressReporter,
    journal: &mut CampaignJournal,
) -> Result<()> {
    let total = left.len().max(1) as f64;
    let waiting = Mutex::new(VecDeque::from(left));
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front().filter(|_| !kernel::interrupted())
    };
    let (finished, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            let finished = finished.clone();
            scope.spawn(move || {
                while let Some(series) = next() {
                    let attempt = simulate(plan, &series, options.sizes);
                    if finished.send(attempt).is_err() {
                        return;
                    }
                }
            });
        }
        drop(finished);
        let mut done = 0.0;
        for attempt in results {
            done += 1.0;
            progress.step(done / total, &attempt.series);
            for pass in &attempt.passes {
                progress.note(&summary(pass));
            }
            if let Some(failure) = &attempt.failure {
                progress.note(&format!("{}: {failure}", attempt.series));
            }
            journal.add(attempt)?;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    if kernel::interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Runs a series once. The duration of the attempt is virtual time.
fn simulate(plan: &CellPlan, series: &CellSeries, sizes: CellSizes) -> SeriesAttempt {
    let mut attempt = SeriesAttempt::begin(&series.key, 1, String::new());
    attempt.hosts_congestion_control = "client cubic, server cubic (simulated)".to_owned();
    if let Err(error) = measure(plan, series, sizes, &mut attempt) {
        attempt.failure = Some(format!("{error:#}"));
    }
    attempt
}

fn measure(
    plan: &CellPlan,
    series: &CellSeries,
    sizes: CellSizes,
    attempt: &mut SeriesAttempt,
) -> Result<()> {
    let first = &series.cells[0];
    let name = pass::attempt_name(series, attempt.attempt);
    let workload = simulated_workload(first)
        .with_context(|| format!("there is no script for {}", first.workload.name()))?;
    let mut site = SimulatedSite::new(SiteSettings {
        link: first.settings.config(first.seed)?,
        nodes: nodes(first),
        hosts: latency(workload),
        seed: first.seed,
    })?;
    if first.mode.has_nodes() {
        warm_up(plan, first, &mut site)?;
        site.empty_caches();
    }
    site.start_recording();
    let mut finished = Vec::new();
    for cell in &series.cells {
        let files = contents(plan, sizes, cell)?;
        let label = format!("{name}-{}", cell.cache.name());
        let mark = |edge| {
            let label = label.clone();
            WorkloadMarker { edge, label }.payload()
        };
        let pings_before_ms = pings(&mut site);
        site.mark(&mark(MarkerEdge::Begin));
        let outcome = site.transfer(workload, &shared(&files));
        site.mark(&mark(MarkerEdge::End));
        finished.push(FinishedCell {
            cell,
            label,
            outcome: judged(&files, outcome),
            files,
            cpu_busy: 0.0,
            pings_before_ms,
            pings_after_ms: pings(&mut site),
        });
    }
    attempt.took_s = site.now().since(Time::ZERO).as_secs_f64();
    let recording = site.take_recording();
    drop(site);
    let [client, link] = [recording.client, recording.link]
        .map(|packets| packets.into_iter().map(captured).collect::<Vec<_>>());
    for cell in finished {
        attempt.passes.push(cell.read(&client, &link)?);
    }
    Ok(())
}

/// Round trips of the echoes that come back, in milliseconds.
fn pings(site: &mut SimulatedSite) -> Vec<f64> {
    let answered = (0..PINGS).filter_map(|_| site.ping());
    answered
        .map(|round_trip| round_trip.as_secs_f64() * 1e3)
        .collect()
}

/// Nodes of a cell's mode.
fn nodes(cell: &PlannedCell) -> Option<NodeSettings> {
    cell.mode.has_nodes().then(|| NodeSettings {
        is_accelerated: cell.mode == CellMode::Application,
        correction: match cell.fec {
            Some(FecSetting::Off) => NodeCorrection::Off,
            Some(FecSetting::Auto) | None => NodeCorrection::Auto,
        },
    })
}

fn warm_up(plan: &CellPlan, cell: &PlannedCell, site: &mut SimulatedSite) -> Result<()> {
    for way in pass::warm_up_ways(plan, cell) {
        let workload = match way {
            TransferDirection::Download => SimulatedWorkload::HttpDownload,
            TransferDirection::Upload => SimulatedWorkload::FtpUpload,
        };
        let files = pass::warm_up(plan, cell, way);
        let outcome = site.transfer(workload, &shared(&files));
        if let Some(failure) = outcome.failure {
            bail!("the warm-up failed: {failure}");
        }
    }
    Ok(())
}

/// The files as the simulation takes them.
fn shared(files: &FileSet) -> Vec<(String, Bytes)> {
    let files = files.shared();
    files
        .map(|(name, content)| (name.to_owned(), content))
        .collect()
}

/// The outcome with the hashes of what was sent and of what arrived.
fn judged(files: &FileSet, outcome: TransferOutcome) -> WorkloadOutcome {
    let arrivals = files.iter().zip(outcome.arrivals);
    WorkloadOutcome {
        arrivals: arrivals
            .map(|((name, content), arrived)| {
                let expected = hash(content);
                // Equal bytes have equal hashes, and are compared faster.
                let found = arrived.map(|arrived| match arrived == content {
                    true => expected.clone(),
                    false => hash(&arrived),
                });
                FileArrival {
                    file: name.to_owned(),
                    expected,
                    found,
                }
            })
            .collect(),
        failure: outcome.failure,
    }
}

/// A packet as a capture file gives it.
fn captured(packet: TappedPacket) -> CapturedPacket {
    CapturedPacket {
        at: START + packet.at.since(Time::ZERO),
        source: packet.source,
        destination: packet.destination,
        ip_bytes: packet.ip_bytes,
        transport: match packet.header {
            TappedHeader::Tcp {
                sequence,
                acknowledgement,
                flags,
                payload_bytes,
            } => TransportHeader::Tcp {
                sequence,
                acknowledgement,
                flags,
                payload_bytes,
            },
            TappedHeader::Udp => TransportHeader::Udp,
        },
        is_fragment: false,
        payload: packet.payload.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{outcome_of, sample_outcome};
    use super::*;
    use crate::report;
    use host::progress::SilentProgress;

    const PLAN: &str = r#"
        title = "small"
        seed = 5
        warm_up = "1s"
        span = "5s"
        [[link]]
        name = "line"
        settings = "rate=2Mbit"
        document = "2MB"
        [[group]]
        protocol = "CIFS"
        workload = "smb-serial-download"
        links = ["line"]
        one_way_delays = ["30ms"]
        losses = ["0%", "1%"]
        modes = ["baseline", "transport", "application"]
        [[group]]
        protocol = "HTTP"
        workload = "http-download"
        links = ["line"]
        one_way_delays = ["30ms"]
        modes = ["baseline", "application"]
        [[group]]
        protocol = "FTP"
        workload = "ftp-upload"
        links = ["line"]
        one_way_delays = ["30ms"]
        modes = ["baseline", "transport"]
    "#;

    fn simulated(text: &str, directory: &Path, jobs: usize) -> CampaignOutcome {
        let plan = CellPlan::parse(text).unwrap();
        let options = SimulationOptions {
            directory: directory.to_owned(),
            sizes: CellSizes::of(&plan, false, false),
            cells: CellSelection::default(),
            jobs,
            real: None,
        };
        let journal = run_simulation(&plan, text, &options, &SilentProgress).unwrap();
        CampaignOutcome::of(journal).unwrap()
    }

    #[test]
    fn one_seed_gives_equal_json() {
        let [one, two] = [1, 2].map(|jobs| {
            let directory = tempfile::tempdir().unwrap();
            let outcome = simulated(PLAN, directory.path(), jobs);
            assert_eq!(outcome.faults(), Vec::<String>::new());
            serde_json::to_string_pretty(&report::campaign_json(&outcome)).unwrap()
        });
        assert!(one == two, "two runs with one seed differ");
        let directory = tempfile::tempdir().unwrap();
        let other = PLAN.replace("seed = 5", "seed = 6");
        let other = report::campaign_json(&simulated(&other, directory.path(), 2));
        assert_ne!(other.to_string(), one);
    }

    #[test]
    fn word_without_a_cell_is_refused_and_named() {
        let plan = CellPlan::parse(PLAN).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = SimulationOptions {
            directory: directory.path().to_owned(),
            sizes: CellSizes::of(&plan, false, false),
            cells: CellSelection {
                words: vec!["CIFS".to_owned(), "htpp".to_owned()],
                is_short: false,
            },
            jobs: 1,
            real: None,
        };
        let error = run_simulation(&plan, PLAN, &options, &SilentProgress).unwrap_err();
        assert!(error.to_string().contains("`htpp`"), "{error:#}");
    }

    #[test]
    fn only_a_real_campaign_of_the_same_cells_is_compared() {
        let plan = CellPlan::parse(PLAN).unwrap();
        let sizes = CellSizes::of(&plan, false, false);
        let figures = |text: &str, is_simulation: bool| {
            let directory = tempfile::tempdir().unwrap();
            let outcome = outcome_of(text, |_| Some(100.0));
            let mut header = outcome.journal.header.clone();
            header.is_simulation = is_simulation;
            let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
            for attempt in outcome.journal.attempts {
                journal.add(attempt).unwrap();
            }
            real_figures(&plan, sizes, directory.path(), &SilentProgress)
                .map(|figures| figures.throughputs_kb_s.len())
        };
        assert_eq!(figures(PLAN, false).unwrap(), 10);
        let error = figures(PLAN, true).unwrap_err();
        assert!(error.to_string().contains("a simulation"), "{error:#}");
        // Baselines have no warm-up.
        let other = PLAN.replace("warm_up = \"1s\"", "warm_up = \"2s\"");
        assert_eq!(figures(&other, false).unwrap(), 4);
        let other = PLAN.replace("rate=2Mbit", "rate=3Mbit");
        let error = figures(&other, false).unwrap_err();
        assert!(
            error.to_string().contains("no cell of this plan"),
            "{error:#}"
        );
    }

    #[test]
    fn order_of_finished_series_does_not_matter() {
        let document = |is_reversed: bool| {
            let mut journal = sample_outcome(1, "none").journal;
            journal.header.is_simulation = true;
            for (index, attempt) in journal.attempts.iter_mut().enumerate() {
                attempt.took_s = 0.1 + 0.7 * index as f64;
            }
            if is_reversed {
                journal.attempts.reverse();
            }
            report::campaign_json(&CampaignOutcome::of(journal).unwrap()).to_string()
        };
        assert_eq!(document(false), document(true));
    }

    #[test]
    fn modes_differ_as_the_path_tells() {
        let directory = tempfile::tempdir().unwrap();
        let outcome = simulated(PLAN, directory.path(), 2);
        let figure = |name: &str| {
            let cell = outcome
                .cells
                .iter()
                .find(|cell| cell.cell.name().starts_with(name));
            cell.and_then(|cell| cell.throughput).unwrap().median
        };
        // One block of 61,440 bytes in a round trip of 60 ms, its time on the line, and the 1.7 ms in
        // which both programs react.
        let line = 2e6 / 8.0 * 1448.0 / 1500.0;
        let serial = 61_440.0 / (0.06 + 0.0017 + 61_440.0 / line) / 1e3;
        for mode in ["B", "T"] {
            let found = figure(&format!("CIFS/line/30ms/loss=0%/{mode}"));
            // A node's packets have larger headers than TCP.
            assert!(
                (found / serial - 1.0).abs() < 0.09,
                "{mode}: {found} for {serial}"
            );
        }
        let accelerated = figure("CIFS/line/30ms/loss=0%/A");
        assert!(accelerated > 0.9 * line / 1e3, "{accelerated}");
        assert!(figure("CIFS/line/30ms/loss=1%/A") > figure("CIFS/line/30ms/loss=1%/B"));
    }
}
