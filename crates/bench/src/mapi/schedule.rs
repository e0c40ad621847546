//! Order of the cells, and their distribution over lanes.
//!
//! ```text
//!  peers alone ─► groups (link, delay, mode) ─► light ones, several lanes at once ─┐
//!                                           └─► heavy ones, one after the other ───┴─► Report
//! ```
//! A cell whose round trips are wanted needs the same one without delay; where that one was not
//! asked for it is measured for a third of the time and kept as a reference. Cells of Kerberos have no
//! reference: those of NTLM show the round trips. Light cells of one link and mode are split into
//! several groups, so that no lane is at work long after the others. A cell that fails is named with
//! its reason and the rest goes on; an interrupted run returns what it has.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::cells::{ContentState, MailAction, MailClient, MailMode, MailProtection, MapiCell};
use super::stand::{BASELINE_LIMIT_SECONDS, MapiCellResult, MapiLane, SPAN_SECONDS};
use crate::lanes::{FailedCell, LaneWork, run_on_lanes};
use crate::lines::LinkKind;
use crate::references;
use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};

/// Number of light lanes at once: eight T1 take a fifteenth of one processor's time, and a client that waits
/// for each answer over a long path does not take more than one T1.
const LIGHT_LANES: usize = 12;
/// Approximate duration of a group of light cells, in seconds, beyond which it is split.
const LIGHT_GROUP_SECONDS: f64 = 300.0;
/// Round trips in which a client gets 200 messages without acceleration, measured at OC-1 and 100 ms.
const SYNCHRONISE_ROUND_TRIPS: f64 = 1_370.0;

/// Results of the benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MapiReport {
    /// Cells in the order of the request.
    pub cells: Vec<MapiCellResult>,
    /// Cells without delay that round trips were counted against.
    pub references: Vec<MapiCellResult>,
    /// Clients and the server alone.
    pub peers: Vec<PeerRate>,
    /// Cells that failed, and the reasons.
    pub not_measured: Vec<FailedCell>,
    /// True if somebody ended it early.
    pub is_interrupted: bool,
}

/// The rate of a client and the server alone, beside each other on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerRate {
    /// The client.
    pub client: &'static str,
    /// Its action.
    pub action: &'static str,
    /// Protection of the session.
    pub protection: &'static str,
    /// True if the client compresses and chains its calls.
    pub is_optimised: bool,
    /// Payload over time.
    #[serde(rename = "goodput_kB_s")]
    pub goodput_kb_s: f64,
}

/// Properties of a cell on which the rate of the peers depends.
type PeerKey = (MailClient, MailAction, MailProtection, bool);

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MapiJob {
    Cell(MapiCell),
    Reference(MapiCell),
    Peers(MapiCell),
}

/// Jobs that share a link and nodes.
#[derive(Clone, Debug)]
struct MapiJobGroup {
    link: LinkKind,
    one_way_delay_ms: u32,
    mode: MailMode,
    jobs: Vec<MapiJob>,
}

/// Result of a job.
enum MapiJobResult {
    Measured(MapiJob, Box<MapiCellResult>),
    MeasuredPeers(MapiCell, f64),
}

/// Measures cells.
///
/// # Errors
/// Fails when a requirement of all cells is missing.
pub fn measure(
    environment: &ProgramEnvironment,
    python: &Path,
    cells: &[MapiCell],
    progress: &dyn ProgressReporter,
) -> Result<MapiReport> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![],
        clients: vec!["sha256sum"],
        interception: InterceptionMode::Transparent,
        captures: CaptureMode::None,
    };
    preflight::check(&needs, privileges)?;
    ensure!(!cells.is_empty(), "nothing is to be measured");
    let groups = groups(cells);
    let peers = peer_jobs(cells);
    let mut report = MapiReport::default();
    let (light, heavy): (Vec<MapiJobGroup>, Vec<MapiJobGroup>) =
        groups.into_iter().partition(MapiJobGroup::is_light);
    let stages = vec![
        (vec![peers], 1),
        (split_groups(light), LIGHT_LANES),
        (heavy, 1),
    ];
    let bench = MapiBench {
        environment,
        python,
    };
    run_on_lanes(&bench, stages, progress, |outcome| report.take(outcome));
    report.is_interrupted = kernel::interrupted();
    report.finish(cells);
    Ok(report)
}

fn peer_key(cell: &MapiCell) -> PeerKey {
    let is_optimised = cell.mode == MailMode::Exchange;
    (cell.client, cell.action, cell.protection, is_optimised)
}

/// The measurements of the peers alone, one for each client, action, protection and optimisation.
fn peer_jobs(cells: &[MapiCell]) -> MapiJobGroup {
    let mut jobs: Vec<MapiJob> = Vec::new();
    for cell in cells {
        let is_known = jobs.iter().any(|job| match job {
            MapiJob::Peers(known) => peer_key(known) == peer_key(cell),
            MapiJob::Cell(_) | MapiJob::Reference(_) => false,
        });
        if !is_known {
            jobs.push(MapiJob::Peers(*cell));
        }
    }
    MapiJobGroup {
        link: LinkKind::Oc1,
        one_way_delay_ms: 0,
        mode: MailMode::Baseline,
        jobs,
    }
}

/// The jobs by link and nodes, those that take longest first.
fn groups(cells: &[MapiCell]) -> Vec<MapiJobGroup> {
    let mut jobs: Vec<(MapiCell, MapiJob)> = cells
        .iter()
        .map(|cell| (*cell, MapiJob::Cell(*cell)))
        .collect();
    let first = |cell: &&MapiCell| cell.state == ContentState::First && !cell.is_by_kerberos();
    for reference in references::missing(cells.iter().filter(first), cells) {
        jobs.push((reference, MapiJob::Reference(reference)));
    }
    let mut groups: Vec<MapiJobGroup> = Vec::new();
    for (cell, job) in jobs {
        let found = groups.iter_mut().find(|group| {
            (group.link, group.one_way_delay_ms) == (cell.link, cell.one_way_delay_ms)
                && group.mode == cell.mode
        });
        match found {
            Some(group) => group.jobs.push(job),
            None => groups.push(MapiJobGroup {
                link: cell.link,
                one_way_delay_ms: cell.one_way_delay_ms,
                mode: cell.mode,
                jobs: vec![job],
            }),
        }
    }
    groups.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    groups
}

/// Splits groups that take long, those that take longest first.
fn split_groups(groups: Vec<MapiJobGroup>) -> Vec<MapiJobGroup> {
    let mut split: Vec<MapiJobGroup> = Vec::new();
    for group in groups {
        let mut pieces = vec![MapiJobGroup {
            jobs: Vec::new(),
            ..group
        }];
        for job in group.jobs {
            let last = pieces.last_mut().expect("there is one");
            let is_full = last.seconds() + weight(&job) > LIGHT_GROUP_SECONDS;
            match is_full && !last.jobs.is_empty() {
                false => last.jobs.push(job),
                true => pieces.push(MapiJobGroup {
                    jobs: vec![job],
                    ..group
                }),
            }
        }
        split.append(&mut pieces);
    }
    split.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    split
}

/// The time after which a transfer is ended, if it is not measured to its end.
fn limit_seconds(job: &MapiJob) -> Option<f64> {
    match job {
        MapiJob::Cell(cell) if cell.mode == MailMode::Application => None,
        MapiJob::Cell(_) => Some(BASELINE_LIMIT_SECONDS),
        MapiJob::Reference(_) | MapiJob::Peers(_) => Some(SPAN_SECONDS as f64 / 3.0),
    }
}

/// Approximate duration of a job, in seconds.
fn weight(job: &MapiJob) -> f64 {
    let cell = job.cell();
    let rtt = match job {
        // They are beside each other.
        MapiJob::Peers(_) => 0.0,
        MapiJob::Cell(_) | MapiJob::Reference(_) => 2.0 * f64::from(cell.one_way_delay_ms) / 1e3,
    };
    let span = SPAN_SECONDS as f64;
    let work = match (cell.action.is_bulk(), job, cell.mode) {
        (_, MapiJob::Peers(_), _) => 3.0,
        (true, MapiJob::Reference(_), _) => span / 3.0,
        (true, MapiJob::Cell(_), MailMode::Application) => span,
        (true, MapiJob::Cell(_), _) if cell.one_way_delay_ms == 0 => span,
        (true, MapiJob::Cell(_), _) => BASELINE_LIMIT_SECONDS,
        (false, _, mode) if waits_for_each_message(cell.action, mode) => {
            5.0 + SYNCHRONISE_ROUND_TRIPS * rtt
        }
        (false, _, _) => 5.0,
    };
    let before = match cell.state {
        ContentState::First => 0.0,
        ContentState::Again => span,
    };
    // The log-on, the start of both programs, and the comparison of the content.
    work + before + 30.0 * rtt + 4.0
}

fn waits_for_each_message(action: MailAction, mode: MailMode) -> bool {
    action == MailAction::Synchronise && mode != MailMode::Application
}

impl MapiJobGroup {
    /// Approximate duration of its jobs.
    fn seconds(&self) -> f64 {
        self.jobs.iter().map(weight).sum()
    }

    fn is_light(&self) -> bool {
        self.jobs.iter().all(|job| job.cell().is_light())
    }
}

impl MapiJob {
    const fn cell(&self) -> &MapiCell {
        match self {
            Self::Cell(cell) | Self::Reference(cell) | Self::Peers(cell) => cell,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Cell(cell) => cell.name(),
            Self::Reference(cell) => format!("{} (reference)", cell.name()),
            Self::Peers(cell) => format!("{} (peers alone)", cell.name()),
        }
    }
}

struct MapiBench<'a> {
    environment: &'a ProgramEnvironment,
    python: &'a Path,
}

impl LaneWork for MapiBench<'_> {
    type Group = MapiJobGroup;
    type Job = MapiJob;
    type Lane = MapiLane;
    type Outcome = MapiJobResult;

    fn jobs<'g>(&self, group: &'g MapiJobGroup) -> &'g [MapiJob] {
        &group.jobs
    }

    fn name(&self, job: &MapiJob) -> String {
        job.name()
    }

    fn seconds(&self, _group: &MapiJobGroup, job: &MapiJob) -> f64 {
        weight(job)
    }

    fn create_lane(&self) -> Result<MapiLane> {
        MapiLane::create(self.environment, self.python)
    }

    fn prepare(
        &self,
        group: &MapiJobGroup,
        job: &MapiJob,
        lane: &mut MapiLane,
        mut is_ready: bool,
    ) -> Result<()> {
        let needs_realm = |job: &MapiJob| job.cell().is_by_kerberos();
        if !is_ready && group.jobs.iter().any(needs_realm) {
            // The nodes get the keytab when they start. A failure is that of the cells in question.
            drop(lane.create_realm());
        }
        if needs_realm(job) && lane.create_realm()? {
            is_ready = false;
        }
        if is_ready {
            return Ok(());
        }
        match job {
            MapiJob::Peers(_) => lane.set_peer_content(),
            MapiJob::Cell(_) | MapiJob::Reference(_) => {
                lane.set_link(group.link, group.one_way_delay_ms)?;
                lane.start_nodes(group.mode)?;
                match group.mode.has_nodes() {
                    true => lane.warm_up(),
                    false => Ok(()),
                }
            }
        }
    }

    fn run(
        &self,
        _group: &MapiJobGroup,
        job: &MapiJob,
        lane: &mut MapiLane,
    ) -> Result<MapiJobResult> {
        match job {
            MapiJob::Cell(cell) | MapiJob::Reference(cell) => {
                lane.start_server()?;
                let result = lane.measure(cell, limit_seconds(job))?;
                Ok(MapiJobResult::Measured(*job, Box::new(result)))
            }
            MapiJob::Peers(cell) => {
                let rate = lane.measure_peers(cell)?;
                Ok(MapiJobResult::MeasuredPeers(*cell, rate))
            }
        }
    }
}

impl MapiReport {
    fn take(&mut self, outcome: Result<MapiJobResult, FailedCell>) {
        match outcome {
            Ok(MapiJobResult::Measured(MapiJob::Reference(_), result)) => {
                self.references.push(*result);
            }
            Ok(MapiJobResult::Measured(MapiJob::Cell(_) | MapiJob::Peers(_), result)) => {
                self.cells.push(*result);
            }
            Ok(MapiJobResult::MeasuredPeers(cell, goodput_kb_s)) => self.peers.push(PeerRate {
                client: cell.client.name(),
                action: cell.action.name(),
                protection: cell.protection.name(),
                is_optimised: cell.mode == MailMode::Exchange,
                goodput_kb_s,
            }),
            Err(failed) => self.not_measured.push(failed),
        }
    }

    /// Puts cells into the order in which they were asked for, and compares them with the cells
    /// without delay and with the peers alone.
    fn finish(&mut self, asked: &[MapiCell]) {
        references::sort_as_asked(&mut self.cells, asked);
        let without_delay = references::without_delay(&self.cells, &self.references);
        for result in &mut self.cells {
            references::compare(result, &without_delay);
            let (client, action, protection, is_optimised) = peer_key(&result.cell);
            let peers = self.peers.iter().find(|peers| {
                (peers.client, peers.action) == (client.name(), action.name())
                    && (peers.protection, peers.is_optimised) == (protection.name(), is_optimised)
            });
            if let Some(peers) = peers {
                result.set_peer_limit(peers.goodput_kb_s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::references::DelayedCell;

    /// Approximate time for nodes to find each other and to carry attachments both ways.
    const NODE_START_SECONDS: f64 = 20.0;

    fn cell() -> MapiCell {
        MapiCell {
            client: MailClient::OutlookXp,
            action: MailAction::SaveAttachment,
            link: LinkKind::Oc1,
            one_way_delay_ms: 100,
            protection: MailProtection::None,
            mode: MailMode::Application,
            state: ContentState::First,
        }
    }

    fn result(cell: MapiCell, seconds: f64, bytes: u64) -> MapiCellResult {
        MapiCellResult {
            cell,
            goodput_kb_s: bytes as f64 / 1e3 / seconds,
            peer_limit_kb_s: None,
            of_target_rate: None,
            is_held_by_peer: false,
            seconds,
            submit_seconds: None,
            bytes,
            calls: 10,
            all_calls: 0,
            wan_round_trips: None,
            wan_bytes: bytes,
            identical: Some(true),
            is_complete: true,
            accelerate: None,
            cpu_busy_percent: 0.0,
            load_average: 0.0,
            faults: Vec::new(),
        }
    }

    #[test]
    fn the_default_run_fits_its_limit() {
        let cells = MapiCell::of_default();
        let (light, heavy): (Vec<MapiJobGroup>, Vec<MapiJobGroup>) =
            groups(&cells).into_iter().partition(MapiJobGroup::is_light);
        let seconds = |group: &MapiJobGroup| group.seconds() + NODE_START_SECONDS;
        // Each lane takes the next group when it has nothing to do.
        let mut lanes = [0.0; LIGHT_LANES];
        for group in split_groups(light) {
            lanes.sort_by(f64::total_cmp);
            lanes[0] += seconds(&group);
        }
        let longest = lanes.into_iter().fold(0.0, f64::max);
        let heavy: f64 = heavy.iter().map(seconds).sum();
        let minutes = (peer_jobs(&cells).seconds() + longest + heavy) / 60.0;
        assert!(minutes < 43.5, "{minutes} minutes");
    }

    #[test]
    fn cell_without_undelayed_counterpart_gets_a_reference() {
        let jobs = |cells: &[MapiCell]| -> Vec<MapiJob> {
            let groups = groups(cells);
            groups.into_iter().flat_map(|group| group.jobs).collect()
        };
        let alone = jobs(&[cell()]);
        assert!(alone.contains(&MapiJob::Reference(cell().without_delay())));
        let both = jobs(&[cell(), cell().without_delay()]);
        assert!(both.iter().all(|job| matches!(job, MapiJob::Cell(_))));
    }

    #[test]
    fn light_groups_are_split_and_lose_no_job() {
        let light: Vec<MapiJobGroup> = groups(&MapiCell::of_default())
            .into_iter()
            .filter(MapiJobGroup::is_light)
            .collect();
        let count = |groups: &[MapiJobGroup]| groups.iter().map(|of| of.jobs.len()).sum::<usize>();
        let before = count(&light);
        let split = split_groups(light);
        assert_eq!(count(&split), before);
        assert!(split.len() >= LIGHT_LANES);
        for group in &split {
            assert!(group.seconds() <= LIGHT_GROUP_SECONDS, "{group:?}");
        }
    }

    #[test]
    fn peers_are_measured_once_for_each_kind() {
        let other = MapiCell {
            protection: MailProtection::NtlmPrivacy,
            ..cell()
        };
        let jobs = peer_jobs(&[cell(), cell().without_delay(), other]).jobs;
        assert_eq!(jobs, [MapiJob::Peers(cell()), MapiJob::Peers(other)]);
    }

    #[test]
    fn results_are_compared_with_references_and_peers() {
        let mut report = MapiReport {
            cells: vec![result(cell(), 5.0, 2_000_000)],
            references: vec![result(cell().without_delay(), 0.5, 1_000_000)],
            ..MapiReport::default()
        };
        report.take(Ok(MapiJobResult::MeasuredPeers(cell(), 800.0)));
        report.finish(&[cell()]);
        let measured = &report.cells[0];
        assert!((measured.wan_round_trips.unwrap() - 20.0).abs() < 1e-6);
        assert!(measured.is_held_by_peer);
        assert!((measured.of_target_rate.unwrap() - 0.5).abs() < 1e-6);
    }
}
