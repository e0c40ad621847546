//! Order of the cells, and their distribution over lanes.
//!
//! ```text
//!  cells ─► groups (link, delay, mode) ─► light ones, several lanes at once ─┐
//!                                     └─► heavy ones, one after the other ───┴─► Report
//! ```
//! A cell whose round trips are wanted needs the same one without delay; where that one was not
//! asked for it is measured for a third of the time and kept as a reference. A cell that fails is
//! named with its reason and the rest goes on; an interrupted run returns what it has.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::cells::{
    AccelerationMode, SMALL_FILES, SMALL_FILES_OF_DEFAULT, SmbCell, SmbClientKind, SmbProtection,
};
use super::clients::ClientPython;
use super::stand::{DocumentTimes, OfficeDocument, SmbCellResult, SmbLane};
use crate::lanes::{FailedCell, LaneWork, run_on_lanes};
use crate::lines::LinkKind;
use crate::references;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use lab::report::published;

/// Number of light lanes at once: six T1 take a twentieth of one processor's time.
const LIGHT_LANES: usize = 6;

/// Documents are opened and saved over this link and delay: the nearest of ours to the published
/// one, whose RTT was 146 to 156 ms.
const DOCUMENT_LINK: (LinkKind, u32) = (LinkKind::T1, 75);

/// The documents of a run without options.
const DEFAULT_DOCUMENTS: [&str; 3] = ["50K.doc", "500K.doc", "2M.doc"];

/// The signed cell that is measured once more without the key.
const WITHOUT_KEY: SmbCell = SmbCell {
    client: SmbClientKind::SerialGet,
    link: LinkKind::Oc1,
    one_way_delay_ms: 100,
    protection: SmbProtection::Hmac,
    mode: AccelerationMode::Application,
};

/// Selection of cells to measure.
#[derive(Clone, Debug)]
pub struct SmbSelection {
    /// Cells to measure.
    pub cells: Vec<SmbCell>,
    /// Modes in which documents are opened and saved; empty for none.
    pub document_modes: Vec<AccelerationMode>,
    /// Every document and every small file, instead of some.
    pub is_full: bool,
    /// True if the signed cell is also measured without the key.
    pub with_withheld_key: bool,
}

/// Results of the benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SmbReport {
    /// Cells in the order of the request.
    pub cells: Vec<SmbCellResult>,
    /// Cells without delay that round trips were counted against.
    pub references: Vec<SmbCellResult>,
    /// Documents opened and saved.
    pub documents: Vec<DocumentTimes>,
    /// The signed cell without the key.
    pub without_key: Option<SmbCellResult>,
    /// Cells that failed, and the reasons.
    pub not_measured: Vec<FailedCell>,
    /// True if somebody ended it early.
    pub is_interrupted: bool,
}

/// One thing to measure.
#[derive(Clone, Debug, PartialEq)]
enum SmbJob {
    Cell(SmbCell),
    Reference(SmbCell),
    WithoutKey(SmbCell),
    Document(OfficeDocument),
}

/// Jobs that share a link and nodes.
#[derive(Clone, Debug)]
struct JobGroup {
    link: LinkKind,
    one_way_delay_ms: u32,
    mode: AccelerationMode,
    is_light: bool,
    has_key: bool,
    jobs: Vec<SmbJob>,
}

/// Result of a job.
enum SmbJobResult {
    Measured(SmbJob, Box<SmbCellResult>),
    Opened(Vec<DocumentTimes>),
}

/// Measures the selected cells.
///
/// # Errors
/// Fails when a requirement of all cells is missing.
pub fn measure(
    environment: &ProgramEnvironment,
    clients: &ClientPython,
    choice: &SmbSelection,
    progress: &dyn ProgressReporter,
) -> Result<SmbReport> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![lab::servers::ServerKind::Smb],
        clients: programs(&choice.cells),
        interception: InterceptionMode::Transparent,
        captures: CaptureMode::None,
    };
    preflight::check(&needs, privileges)?;
    ensure!(
        !choice.cells.is_empty() || !choice.document_modes.is_empty(),
        "nothing is to be measured"
    );
    let groups = groups(choice);
    let mut report = SmbReport::default();
    let (light, heavy): (Vec<JobGroup>, Vec<JobGroup>) =
        groups.into_iter().partition(|group| group.is_light);
    let bench = SmbBench {
        environment,
        clients,
        choice,
    };
    let stages = vec![(light, LIGHT_LANES), (heavy, 1)];
    run_on_lanes(&bench, stages, progress, |outcome| report.take(outcome));
    report.is_interrupted = kernel::interrupted();
    report.finish(&choice.cells);
    Ok(report)
}

fn programs(cells: &[SmbCell]) -> Vec<&'static str> {
    // A path is made known by it.
    let mut programs = vec!["smbclient"];
    if cells
        .iter()
        .any(|cell| cell.client == SmbClientKind::Smbnetfs)
    {
        programs.push("smbnetfs");
    }
    programs
}

/// The jobs of a choice by link and nodes, those that take longest first.
fn groups(choice: &SmbSelection) -> Vec<JobGroup> {
    let mut groups: Vec<JobGroup> = Vec::new();
    let mut add = |link, one_way_delay_ms, mode, is_light, job| {
        let has_key = !matches!(job, SmbJob::WithoutKey(_));
        let found = groups.iter_mut().find(|group| {
            (group.link, group.one_way_delay_ms) == (link, one_way_delay_ms)
                && (group.mode, group.is_light, group.has_key) == (mode, is_light, has_key)
        });
        match found {
            Some(group) => group.jobs.push(job),
            None => groups.push(JobGroup {
                link,
                one_way_delay_ms,
                mode,
                is_light,
                has_key,
                jobs: vec![job],
            }),
        }
    };
    let mut add_cell = |cell: SmbCell, job| {
        add(
            cell.link,
            cell.one_way_delay_ms,
            cell.mode,
            cell.is_light(),
            job,
        );
    };
    for cell in &choice.cells {
        add_cell(*cell, SmbJob::Cell(*cell));
    }
    for reference in references::missing(choice.cells.iter(), &choice.cells) {
        add_cell(reference, SmbJob::Reference(reference));
    }
    if choice.with_withheld_key {
        add_cell(WITHOUT_KEY, SmbJob::WithoutKey(WITHOUT_KEY));
    }
    let (link, delay) = DOCUMENT_LINK;
    for mode in &choice.document_modes {
        for document in documents(choice.is_full) {
            add(link, delay, *mode, true, SmbJob::Document(document));
        }
    }
    groups.sort_by(|a, b| {
        let seconds = |group: &JobGroup| -> f64 {
            group
                .jobs
                .iter()
                .map(|job| weight(job, choice, group))
                .sum()
        };
        seconds(b).total_cmp(&seconds(a))
    });
    groups
}

fn documents(is_full: bool) -> Vec<OfficeDocument> {
    published::documents()
        .into_iter()
        .filter(|document| is_full || DEFAULT_DOCUMENTS.contains(&document.file.as_str()))
        .map(|document| OfficeDocument {
            file: document.file,
            bytes: (document.size_kb * 1e3) as u64,
        })
        .collect()
}

/// Duration of a transfer, in seconds.
fn span(job: &SmbJob, link: LinkKind) -> f64 {
    let whole = link.span().as_secs_f64();
    match job {
        SmbJob::Cell(_) | SmbJob::WithoutKey(_) | SmbJob::Document(_) => whole,
        SmbJob::Reference(_) => whole / 3.0,
    }
}

fn files(client: SmbClientKind, is_full: bool) -> usize {
    match client {
        SmbClientKind::SmallRead | SmbClientKind::SmallWrite if !is_full => SMALL_FILES_OF_DEFAULT,
        _ => SMALL_FILES,
    }
}

/// Approximate duration of a job, in seconds.
fn weight(job: &SmbJob, choice: &SmbSelection, group: &JobGroup) -> f64 {
    let rtt = 2.0 * f64::from(group.one_way_delay_ms) / 1e3;
    match job {
        SmbJob::Cell(cell) | SmbJob::Reference(cell) | SmbJob::WithoutKey(cell) => {
            let work = match cell.client {
                client if client.is_bulk() => span(job, cell.link),
                SmbClientKind::Listing => 8.0 * rtt,
                client => {
                    // What the modes are held to is 0.2 and 2.1 at most.
                    let round_trips = match cell.mode {
                        AccelerationMode::Relaxed => 1.0,
                        AccelerationMode::Application => 2.2,
                        AccelerationMode::Baseline | AccelerationMode::Tcp => 3.0,
                    };
                    files(client, choice.is_full) as f64 * (round_trips * rtt + 0.01)
                }
            };
            work + 10.0 * rtt + 3.0
        }
        SmbJob::Document(document) => 2.0 * document.bytes as f64 / 8_192.0 * rtt,
    }
}

impl SmbJob {
    fn name(&self) -> String {
        match self {
            Self::Cell(cell) => cell.name(),
            Self::Reference(cell) => format!("{} (reference)", cell.name()),
            Self::WithoutKey(cell) => format!("{} (without key)", cell.name()),
            Self::Document(document) => format!("open and save {}", document.file),
        }
    }
}

struct SmbBench<'a> {
    environment: &'a ProgramEnvironment,
    clients: &'a ClientPython,
    choice: &'a SmbSelection,
}

impl LaneWork for SmbBench<'_> {
    type Group = JobGroup;
    type Job = SmbJob;
    type Lane = SmbLane;
    type Outcome = SmbJobResult;

    fn jobs<'g>(&self, group: &'g JobGroup) -> &'g [SmbJob] {
        &group.jobs
    }

    fn name(&self, job: &SmbJob) -> String {
        job.name()
    }

    fn seconds(&self, group: &JobGroup, job: &SmbJob) -> f64 {
        weight(job, self.choice, group)
    }

    fn create_lane(&self) -> Result<SmbLane> {
        SmbLane::create(self.environment, Some(self.clients))
    }

    fn prepare(
        &self,
        group: &JobGroup,
        _job: &SmbJob,
        lane: &mut SmbLane,
        is_ready: bool,
    ) -> Result<()> {
        if is_ready {
            return Ok(());
        }
        lane.set_link(group.link, group.one_way_delay_ms)?;
        if group.mode != AccelerationMode::Baseline {
            lane.delegate_key(group.has_key);
            lane.start_nodes(group.mode)?;
        }
        Ok(())
    }

    fn run(&self, group: &JobGroup, job: &SmbJob, lane: &mut SmbLane) -> Result<SmbJobResult> {
        match job {
            SmbJob::Cell(cell) | SmbJob::Reference(cell) | SmbJob::WithoutKey(cell) => {
                let files = files(cell.client, self.choice.is_full);
                let result = lane.measure(cell, span(job, cell.link), files)?;
                Ok(SmbJobResult::Measured(job.clone(), Box::new(result)))
            }
            SmbJob::Document(document) => {
                let times = lane.open_and_save(document, group.mode)?;
                Ok(SmbJobResult::Opened(times))
            }
        }
    }
}

impl SmbReport {
    fn take(&mut self, outcome: Result<SmbJobResult, FailedCell>) {
        match outcome {
            Ok(SmbJobResult::Measured(SmbJob::Reference(_), result)) => {
                self.references.push(*result);
            }
            Ok(SmbJobResult::Measured(SmbJob::WithoutKey(_), result)) => {
                self.without_key = Some(*result);
            }
            Ok(SmbJobResult::Measured(SmbJob::Cell(_) | SmbJob::Document(_), result)) => {
                self.cells.push(*result);
            }
            Ok(SmbJobResult::Opened(times)) => self.documents.extend(times),
            Err(failed) => self.not_measured.push(failed),
        }
    }

    /// Puts cells into the order in which they were asked for, and counts their round trips.
    fn finish(&mut self, asked: &[SmbCell]) {
        references::sort_as_asked(&mut self.cells, asked);
        let without_delay = references::without_delay(&self.cells, &self.references);
        for result in self.cells.iter_mut().chain(&mut self.without_key) {
            references::compare(result, &without_delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::ClientOutcome;
    use super::super::stand::result_of;
    use super::*;
    use crate::references::DelayedCell;

    fn choice(cells: Vec<SmbCell>) -> SmbSelection {
        SmbSelection {
            cells,
            document_modes: vec![],
            is_full: false,
            with_withheld_key: false,
        }
    }

    /// A measured cell of so many seconds for a megabyte, or for so many files.
    fn result(cell: SmbCell, seconds: f64, files: usize) -> SmbCellResult {
        let outcome = ClientOutcome {
            bytes: 1_000_000,
            seconds,
            files,
            requests: 0,
            opens: 1,
            closes: 1,
            is_identical: true,
            open_seconds: 0.0,
            save_seconds: 0.0,
        };
        result_of(cell, &outcome)
    }

    #[test]
    fn the_default_run_fits_its_limit() {
        let mut choice = choice(SmbCell::of_default());
        choice.document_modes = vec![AccelerationMode::Baseline, AccelerationMode::Application];
        choice.with_withheld_key = true;
        let (mut light, mut heavy, mut starts) = (0.0, 0.0, 0.0);
        for group in groups(&choice) {
            let seconds: f64 = group
                .jobs
                .iter()
                .map(|job| weight(job, &choice, &group))
                .sum();
            match group.is_light {
                true => light += seconds,
                false => {
                    heavy += seconds;
                    // Nodes that find each other, and bulk data both ways.
                    starts += 15.0;
                }
            }
        }
        let minutes = (light / LIGHT_LANES as f64 + heavy + starts) / 60.0;
        assert!(minutes < 38.0, "{minutes} minutes");
    }

    #[test]
    fn cell_without_undelayed_counterpart_gets_a_reference() {
        let with_delay = SmbCell {
            one_way_delay_ms: 100,
            ..WITHOUT_KEY
        };
        let jobs = |cells: Vec<SmbCell>| -> Vec<SmbJob> {
            let groups = groups(&choice(cells));
            groups.into_iter().flat_map(|group| group.jobs).collect()
        };
        let alone = jobs(vec![with_delay]);
        assert!(alone.contains(&SmbJob::Reference(with_delay.without_delay())));
        let both = jobs(vec![with_delay, with_delay.without_delay()]);
        assert!(both.iter().all(|job| matches!(job, SmbJob::Cell(_))));
    }

    #[test]
    fn round_trips_are_added_delay_over_rtt() {
        let cell = SmbCell {
            one_way_delay_ms: 100,
            ..WITHOUT_KEY
        };
        let small = SmbCell {
            client: SmbClientKind::SmallRead,
            ..cell
        };
        let mut report = SmbReport {
            cells: vec![result(cell, 5.0, 0), result(small, 62.0, 100)],
            references: vec![
                result(cell.without_delay(), 1.0, 0),
                result(small.without_delay(), 20.0, 1_000),
            ],
            ..SmbReport::default()
        };
        report.finish(&[small, cell]);
        let [first, second] = &report.cells[..] else {
            panic!("two cells");
        };
        assert_eq!(first.cell, small);
        assert!((first.wan_round_trips.unwrap() - 300.0).abs() < 1e-6);
        assert!((first.wan_round_trips_per_file.unwrap() - 3.0).abs() < 1e-6);
        assert!((second.wan_round_trips.unwrap() - 20.0).abs() < 1e-6);
    }
}
