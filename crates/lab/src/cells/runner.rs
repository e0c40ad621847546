//! Execution of a campaign, series by series.
//!
//! ```text
//! for each series in random order that the journal does not have:
//!   start the link ─► start and pair the nodes ─► warm-up ─► empty dictionaries and caches
//!   for each cell:  pings ─► marker ─► client ─► marker ─► pings      under one pair of captures
//!   stop all ─► read the captures ─► journal
//! ```
//! This is the 2006 report's procedure (section 8.1): the link is configured and the accelerators
//! start with empty caches before each series, and pings before and after each cell show that the
//! link has its delay. A series
//! with more than 1 % foreign or retransmitted packets runs once more, and both attempts are kept.
//! Retransmissions do not count on a link that loses packets, nor as far as the link has dropped data of the
//! workload's direction while the cell ran: a repetition would have them again. The link's packet log tells these
//! drops. Acknowledgements that it dropped explain no retransmission.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::calibration::{self, CalibratedQuantity, CalibrationRow, LinkCalibration};
use super::expansion::{self, CellSelection, CellSeries, PlannedCell};
use super::journal::{CampaignHeader, CampaignJournal, CellPass, SeriesAttempt, now};
use super::lanes::{self, NextSeries, RemainingTime, WaitingSeries};
use super::pass::{self, DOCUMENT_FILE, FinishedCell, WARM_UP_FILE, contents};
use super::plan::{CacheState, CellMode, CellPlan};
use super::rounds::{LaneRounds, RoundMember};
use super::sizes::CellSizes;
use crate::campaign::{PassKind, TestResults, WorkloadRun, last_json};
use crate::mailbox::{MailServer, MailServerProofs, MailboxDescription, MailboxPrograms};
use crate::nodes::{ExtraConfiguration, LabNodes};
use crate::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use crate::recording::{self, MarkerEdge, MarkerPath, PacketRecorder};
use crate::servers::{HTTP_PORT, ServerKind, SiteServers};
use crate::topology::{LabSite, LabTopology, TUN_NEAR};
use crate::workload::{
    FileSet, MailClientSettings, TransferDirection, WorkloadEnvironment, WorkloadKind,
    WorkloadOutcome,
};
use emulator::link::replay::logged_drops;
use host::kernel::ProcessSignal;
use host::machine::{MachineInfo, ProcessorTime};
use host::progress::ProgressReporter;
use host::run::LabRun;
use host::{ProgramEnvironment, kernel, rootless, wait};

/// Greatest share of foreign or retransmitted packets; above it a series is repeated (2006 report,
/// section 6.3).
const UNDESIRED_MOST: f64 = 0.01;
/// Attempts of a series with figures, and attempts in one run of the program in which the lab fails.
const ATTEMPTS_MOST: u32 = 2;
/// Free bytes that the campaign's directory needs.
const FREE_LEAST_BYTES: u64 = 1 << 30;
/// Messages beside the attachments in a mailbox.
const INBOX_MESSAGES: usize = 20;
/// Rate that sizes the transfer over the emulator without any setting.
const UNLIMITED_BIT_S: f64 = 100e6;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Directory of the journal, the captures and the logs.
    pub directory: PathBuf,
    /// Sizes of the documents.
    pub sizes: CellSizes,
    /// Cells that run.
    pub cells: CellSelection,
    /// Series that run at the same time where they do not disturb each other.
    pub jobs: usize,
    /// A Python with smbprotocol, for serial SMB clients.
    pub python: Option<PathBuf>,
    /// A Python with impacket, for the mail server and its clients.
    pub mail_python: Option<PathBuf>,
    /// Sentence that names the certificate of the emulator on this machine.
    pub certificate: Option<String>,
}

/// Runs the cells that the journal does not have, and returns the journal.
///
/// # Errors
/// Fails when a requirement is missing, no cell is chosen, the journal cannot be written, or the
/// lab is interrupted. A series that fails is in the journal with its failure, and the rest goes on.
/// The next run of the same campaign measures it again.
pub fn run(
    environment: &ProgramEnvironment,
    plan: &CellPlan,
    text: &str,
    options: &RunOptions,
    progress: &dyn ProgressReporter,
) -> Result<CampaignJournal> {
    let all = expansion::expand(plan);
    let chosen = options.cells.choose(&all)?;
    let series = expansion::series(plan, &chosen, &all);
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = needs(&series);
    preflight::check(&needs, privileges)?;
    check_python(&series, options)?;
    let mut machine = MachineInfo::describe(&preflight::programs_of(&needs));
    machine.privileges = privileges.explain().to_owned();
    let header = CampaignHeader::new(text, options.sizes, machine, options.certificate.clone());
    let mut journal = CampaignJournal::open(&options.directory, &header)?;
    check_space(&options.directory)?;
    let left: Vec<&CellSeries> = series
        .iter()
        .filter(|series| !is_finished(journal.attempts_of(&series.key), series))
        .collect();
    if left.len() < series.len() {
        progress.note(&format!(
            "{} of {} series are finished; {} are left",
            series.len() - left.len(),
            series.len(),
            left.len()
        ));
    }
    if left.is_empty() {
        return Ok(journal);
    }
    if plan.calibrate && !options.cells.is_short && journal.calibration.is_none() {
        let minutes = calibration::expected_time().as_secs_f64() / 60.0;
        progress.step(
            0.0,
            &format!("calibrating the link (about {minutes:.0} min)"),
        );
        let run = LabRun::create(environment)?;
        let mut lane = CampaignLane::prepare(&run, plan, options, &needs, 1, progress)?;
        match lane.calibrate() {
            Ok(calibration) => journal.add_calibration(calibration)?,
            Err(error) if kernel::interrupted() => return Err(error),
            // The next start of the campaign tries again.
            Err(error) => progress.note(&format!("the link is not calibrated: {error:#}")),
        }
    }
    let mut clock = RemainingTime::new(plan, &left, options.sizes, options.jobs);
    for group in lanes::group(&left, options.jobs) {
        let jobs = group.jobs.min(group.series.len());
        let rounds = LaneRounds::new(jobs);
        let lane = |number: usize, waiting: &WaitingSeries<'_, '_>| {
            let member = match group.has_rounds {
                true => rounds.join(),
                false => RoundMember::alone(),
            };
            let run = LabRun::create(environment)?;
            let mut lane = CampaignLane::prepare(&run, plan, options, &needs, number, waiting)?;
            while let Some(next) = waiting.take() {
                lane.run(next, &member, waiting)?;
            }
            Ok(())
        };
        lanes::run(group.series, jobs, &mut journal, &mut clock, progress, lane)?;
        wait::not_interrupted()?;
    }
    Ok(journal)
}

pub(super) fn summary(pass: &CellPass) -> String {
    let note = match &pass.failure {
        Some(failure) => failure.clone(),
        None => match pass.throughput_kb_s() {
            Some(throughput) => format!("{throughput:.1} kB/s"),
            None => "no time in the captures".to_owned(),
        },
    };
    format!("{}: {note}", pass.cell)
}

/// Tells whether these attempts of a series contain a clean one with all its cells, or are all that it may
/// have. An attempt in which the lab failed, or without one of the cells, measures nothing and does not count.
pub(super) fn is_finished<'a>(
    attempts: impl Iterator<Item = &'a SeriesAttempt>,
    series: &CellSeries,
) -> bool {
    let mut count = 0;
    for attempt in attempts {
        let has = |cell: &PlannedCell| attempt.passes.iter().any(|pass| pass.cell == cell.key());
        if attempt.failure.is_some() || !series.cells.iter().all(has) {
            continue;
        }
        count += 1;
        let mut passes = attempt.passes.iter();
        if passes.all(|pass| is_clean(pass, &series.cells[0])) {
            return true;
        }
    }
    count >= ATTEMPTS_MOST
}

/// Tells whether a pass needs no repetition.
pub(super) fn is_clean(pass: &CellPass, cell: &PlannedCell) -> bool {
    let retransmitted = match cell.figures.loss > 0.0 {
        true => 0.0,
        false => pass.unexplained_retransmissions_share(),
    };
    pass.failure.is_none()
        && pass.foreign_share() <= UNDESIRED_MOST
        && retransmitted <= UNDESIRED_MOST
}

fn needs(series: &[CellSeries]) -> LabRequirements {
    let workloads: Vec<WorkloadKind> = series
        .iter()
        .map(|series| series.cells[0].workload)
        .collect();
    // nginx is always there: the congestion control is checked on a connection to it.
    let mut servers: Vec<ServerKind> = workloads.iter().map(|each| each.server()).collect();
    servers.push(ServerKind::Http);
    servers.sort_unstable();
    servers.dedup();
    // curl carries the warm-up.
    let mut clients: Vec<&'static str> = workloads.iter().map(|each| each.client()).collect();
    clients.push(WorkloadKind::HttpDownload.client());
    clients.sort_unstable();
    clients.dedup();
    LabRequirements {
        servers,
        clients,
        interception: match series.iter().any(|series| series.cells[0].mode.has_nodes()) {
            true => InterceptionMode::Transparent,
            false => InterceptionMode::None,
        },
        captures: CaptureMode::Taken,
    }
}

fn check_python(series: &[CellSeries], options: &RunOptions) -> Result<()> {
    let is_serial = |series: &CellSeries| {
        let workload = series.cells[0].workload;
        workload == WorkloadKind::SmbSerialDownload || workload == WorkloadKind::SmbOffice
    };
    let is_there = options.python.as_deref().is_some_and(|python| {
        host::command::new(python)
            .args(["-c", "import smbprotocol"])
            .output()
            .is_ok_and(|output| output.status.success())
    });
    ensure!(
        is_there || !series.iter().any(is_serial),
        "{} is not a Python with smbprotocol, which the serial SMB client needs; run scripts/install.sh \
         test, or name a Python in TRUNKLINE_SMB_PYTHON",
        options
            .python
            .as_deref()
            .unwrap_or(Path::new("nothing"))
            .display()
    );
    Ok(())
}

fn check_space(directory: &Path) -> Result<()> {
    let output = host::command::run(
        "df",
        ["--output=avail", "-B1", &directory.display().to_string()],
    )?;
    let free: Option<u64> = output
        .split_whitespace()
        .last()
        .and_then(|word| word.parse().ok());
    ensure!(
        free.is_none_or(|free| free >= FREE_LEAST_BYTES),
        "{} has less than 1 GiB free, and captures need more; choose another directory with --keep",
        directory.display()
    );
    Ok(())
}

/// A network of the lab with its servers, in which series run one after the other.
struct CampaignLane<'a> {
    run: &'a LabRun,
    plan: &'a CellPlan,
    options: &'a RunOptions,
    topology: LabTopology,
    markers: MarkerPath,
    servers: SiteServers,
    /// Kinds of the servers.
    kinds: Vec<ServerKind>,
    /// Programs of the mail server and its clients, where a cell needs them.
    mail: Option<MailboxPrograms>,
    logs: PathBuf,
    captures: PathBuf,
    client_directory: PathBuf,
    progress: &'a dyn ProgressReporter,
}

impl<'a> CampaignLane<'a> {
    fn prepare(
        run: &'a LabRun,
        plan: &'a CellPlan,
        options: &'a RunOptions,
        needs: &LabRequirements,
        number: usize,
        progress: &'a dyn ProgressReporter,
    ) -> Result<Self> {
        let directory = std::path::absolute(&options.directory)?;
        let captures = directory.join("captures");
        let logs = match number {
            1 => directory.join("logs"),
            // Programs of two lanes have the same names.
            _ => directory.join("logs").join(format!("lane-{number}")),
        };
        for path in [&logs, &captures] {
            std::fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
        }
        progress.step(0.0, "building the network");
        let topology = LabTopology::create(run, &[LabSite::Near, LabSite::Far])?;
        progress.step(0.0, "starting the servers");
        let servers = SiteServers::start(run, &topology, LabSite::Far, &logs, &needs.servers)?;
        let mail = match needs.servers.contains(&ServerKind::Mail) {
            true => {
                let python = options.mail_python.as_deref();
                let python = python.context("no Python for the mail server is named")?;
                let programs = run.subdirectory("mailbox")?;
                Some(MailboxPrograms::install(python, &programs)?)
            }
            false => None,
        };
        Ok(Self {
            markers: MarkerPath::open(&topology)?,
            client_directory: run.subdirectory("client")?,
            run,
            plan,
            options,
            topology,
            servers,
            kinds: needs.servers.clone(),
            mail,
            logs,
            captures,
            progress,
        })
    }

    /// Measures the path without an emulator, and the emulated link at the settings of the published appendix.
    fn calibrate(&mut self) -> Result<LinkCalibration> {
        let started = now();
        let mut rows = Vec::new();
        self.topology
            .lead_past_emulator(LabSite::Near, LabSite::Far)?;
        for quantity in CalibratedQuantity::ALL {
            let near = LabSite::Near.node();
            match self.measure_row(quantity, None, near, calibration::DIRECT_CAPTURE) {
                Ok(row) => rows.push(CalibrationRow {
                    is_without_emulator: true,
                    ..row
                }),
                Err(error) if kernel::interrupted() => return Err(error),
                // The path may be faster than a capture can follow.
                Err(error) => self
                    .progress
                    .note(&format!("not calibrated without emulator: {error:#}")),
            }
        }
        self.topology
            .lead_to_emulator(LabSite::Near, LabSite::Far)?;
        for (quantity, configured) in calibration::settings() {
            let arguments = calibration::arguments(quantity, configured, self.plan.seed);
            let mut emulator = self
                .topology
                .start_emulator(self.run, &self.logs, &arguments)?;
            let name = calibration::capture_name(configured);
            rows.push(self.measure_row(quantity, configured, TUN_NEAR, &name)?);
            emulator.stop(ProcessSignal::Terminate)?;
        }
        Ok(LinkCalibration { started, rows })
    }

    /// Measures a quantity of the path; captures in the WAN's namespace are taken at this device.
    fn measure_row(
        &mut self,
        quantity: CalibratedQuantity,
        configured: Option<f64>,
        wan_device: &str,
        name: &str,
    ) -> Result<CalibrationRow> {
        wait::not_interrupted()?;
        let (measured, expected) = match quantity {
            CalibratedQuantity::Bandwidth => (
                self.measure_bandwidth(configured, wan_device, name)?,
                configured.map(|rate| rate * calibration::PAYLOAD_SHARE),
            ),
            CalibratedQuantity::Delay => {
                let delay = Duration::from_secs_f64(configured.unwrap_or(0.0) / 1e3);
                let measured = calibration::measure_delay(&self.topology, delay)?;
                (measured, configured)
            }
            CalibratedQuantity::Loss => (calibration::measure_loss(&self.topology)?, configured),
        };
        Ok(CalibrationRow {
            quantity,
            configured,
            is_without_emulator: false,
            measured,
            expected,
        })
    }

    /// Payload of a download in bit/s, from a capture.
    fn measure_bandwidth(
        &mut self,
        configured: Option<f64>,
        wan_device: &str,
        name: &str,
    ) -> Result<f64> {
        let rate = configured.unwrap_or(UNLIMITED_BIT_S);
        let bytes = rate / 8.0 * calibration::BANDWIDTH_SPAN.as_secs_f64();
        let files = FileSet::random(self.plan.seed, DOCUMENT_FILE, bytes as u64);
        let label = format!("{name}-{}", CacheState::RandomOnce.name());
        let mut recorder = PacketRecorder::start_at(
            wan_device,
            self.run,
            &self.topology,
            &self.captures,
            &self.logs,
            name,
        )?;
        files.write_to(self.servers.files())?;
        recorder.mark(&self.markers, MarkerEdge::Begin, &label)?;
        let workload = WorkloadKind::HttpDownload;
        let outcome = self
            .bench(CellMode::Baseline)
            .run(workload, &files, &label)?;
        recorder.mark(&self.markers, MarkerEdge::End, &label)?;
        std::fs::remove_file(self.servers.files().join(DOCUMENT_FILE))?;
        let captures = recorder.finish()?;
        if let Some(failure) = outcome.failure {
            anyhow::bail!("calibrating {rate:.0} bit/s: {failure}");
        }
        let client = capture::read(&captures.client)?;
        let wan = capture::read(&captures.wan)?;
        let names = [DOCUMENT_FILE];
        let found = recording::transfers(&client, &wan, workload, &label, &names)?;
        let seconds = found
            .first()
            .map_or(0.0, |each| each.elapsed().as_secs_f64());
        let sent = files.total_bytes() as f64;
        Ok(sent * 8.0 / seconds.max(1e-9))
    }

    /// Runs a series until an attempt of it is clean, or the lab has failed too often.
    fn run(
        &mut self,
        next: NextSeries<'_>,
        member: &RoundMember<'_>,
        waiting: &WaitingSeries<'_, '_>,
    ) -> Result<()> {
        let NextSeries {
            series,
            mut attempts,
        } = next;
        let mut failures = 0;
        while failures < ATTEMPTS_MOST && !is_finished(attempts.iter(), series) {
            waiting.begin(series);
            let attempt = self.attempt(series, attempts.len() as u32 + 1, member)?;
            for pass in &attempt.passes {
                self.progress.note(&summary(pass));
            }
            if let Some(failure) = &attempt.failure {
                self.progress.note(&format!("{}: {failure}", series.key));
                failures += 1;
            }
            attempts.push(attempt.clone());
            waiting.add(attempt);
            self.replace_dead_servers()?;
        }
        waiting.pass(series);
        Ok(())
    }

    /// Starts the servers again if one of them has ended: without it every later series would fail.
    ///
    /// # Errors
    /// Fails when they do not start, which ends the lane and the campaign.
    fn replace_dead_servers(&mut self) -> Result<()> {
        let Err(error) = self.servers.check() else {
            return Ok(());
        };
        self.progress
            .note(&format!("the servers start again: {error:#}"));
        self.servers.stop()?;
        self.servers = SiteServers::start(
            self.run,
            &self.topology,
            LabSite::Far,
            &self.logs,
            &self.kinds,
        )
        .context("starting the servers again")?;
        Ok(())
    }

    /// Runs a series once.
    ///
    /// # Errors
    /// Fails when the lab is interrupted; any other failure is part of the attempt.
    fn attempt(
        &mut self,
        series: &CellSeries,
        number: u32,
        member: &RoundMember<'_>,
    ) -> Result<SeriesAttempt> {
        let began = Instant::now();
        let mut attempt = SeriesAttempt::begin(&series.key, number, now());
        let outcome = self.measure(series, number, member, &mut attempt);
        if let Err(error) = outcome {
            if kernel::interrupted() {
                return Err(error);
            }
            attempt.failure = Some(format!("{error:#}"));
        }
        attempt.took_s = began.elapsed().as_secs_f64();
        Ok(attempt)
    }

    fn measure(
        &mut self,
        series: &CellSeries,
        number: u32,
        member: &RoundMember<'_>,
        attempt: &mut SeriesAttempt,
    ) -> Result<()> {
        let first = &series.cells[0];
        let name = pass::attempt_name(series, number);
        let mut link = first.settings.arguments(first.seed);
        let packet_log = self.captures.join(format!("{name}-link.csv"));
        if !first.mode.has_nodes() {
            let file = packet_log.display().to_string();
            link.0.extend(["--log".to_owned(), file]);
        }
        let mut emulator = self.topology.start_emulator(self.run, &self.logs, &link)?;
        let (client, server) = self.topology.verify_congestion_control(HTTP_PORT)?;
        attempt.hosts_congestion_control =
            format!("client {client}, server {server} (route attribute congctl, read back)");
        let mut nodes = match first.mode.has_nodes() {
            true => Some(self.start_nodes(first, member)?),
            false => None,
        };
        let turn = member.measure();
        wait::not_interrupted()?;
        let mut recorder =
            PacketRecorder::start(self.run, &self.topology, &self.captures, &self.logs, &name)?;
        let mut finished = Vec::new();
        for cell in &series.cells {
            wait::not_interrupted()?;
            let files = contents(self.plan, self.options.sizes, cell)?;
            let label = format!("{name}-{}", cell.cache.name());
            let round_trip = cell.figures.round_trip;
            let pings_before_ms = recording::ping(&self.topology, round_trip)?;
            let (outcome, cpu_busy) = self.transfer(cell, &files, &label, &mut recorder)?;
            let pings_after_ms = recording::ping(&self.topology, round_trip)?;
            finished.push(FinishedCell {
                cell,
                label,
                files,
                outcome,
                cpu_busy,
                pings_before_ms,
                pings_after_ms,
            });
            if let Some(nodes) = &mut nodes {
                nodes.check()?;
            }
        }
        let captures = recorder.finish()?;
        drop(turn);
        if let Some(mut nodes) = nodes {
            nodes.stop()?;
        }
        emulator.stop(ProcessSignal::Terminate)?;
        attempt.emulator = last_json(emulator.log());
        let client = capture::read(&captures.client)?;
        let wan = capture::read(&captures.wan)?;
        let drops = match first.mode.has_nodes() {
            true => Vec::new(),
            false => logged_drops(&packet_log)?,
        };
        for cell in finished {
            let way = cell.cell.workload.way();
            let mut pass = cell.read(&client, &wan)?;
            pass.dropped_by_link_packets =
                recording::dropped_data(&client, &pass.label, &drops, way)?;
            attempt.passes.push(pass);
        }
        attempt.host_limits = host_limits(series, attempt);
        for limit in &attempt.host_limits {
            self.progress.note(limit);
        }
        Ok(())
    }

    /// Runs the client of a cell between two markers.
    fn transfer(
        &mut self,
        cell: &PlannedCell,
        files: &FileSet,
        label: &str,
        recorder: &mut PacketRecorder,
    ) -> Result<(WorkloadOutcome, f64)> {
        let workload = cell.workload;
        if workload.way() == TransferDirection::Download {
            files.write_to(self.servers.files())?;
        }
        let mail_server = match workload.server() {
            ServerKind::Mail => Some(self.start_mail_server(files)?),
            ServerKind::Http | ServerKind::Ftp | ServerKind::Smb => None,
        };
        recorder.mark(&self.markers, MarkerEdge::Begin, label)?;
        let before = ProcessorTime::now()?;
        let outcome = self.bench(cell.mode).run(workload, files, label)?;
        let cpu_busy = ProcessorTime::now()?.busy_since(before);
        recorder.mark(&self.markers, MarkerEdge::End, label)?;
        self.servers.check()?;
        if let Some(mut server) = mail_server {
            server.check()?;
            server.stop()?;
        }
        for (name, _) in files.iter() {
            let _ = std::fs::remove_file(self.servers.files().join(name));
        }
        Ok((outcome, cpu_busy))
    }

    /// Starts a mail server with a message for each file, which is its attachment.
    fn start_mail_server(&self, files: &FileSet) -> Result<MailServer> {
        let programs = self.mail.as_ref().context("no mail program is installed")?;
        let mut content = MailboxDescription::default().with_folder("Inbox", INBOX_MESSAGES, None);
        for (name, _) in files.iter() {
            content = content.with_attachment(name, &self.servers.files().join(name));
        }
        MailServer::start(
            self.run,
            &self.topology,
            &self.logs,
            programs,
            &content,
            MailServerProofs::default(),
        )
    }

    fn bench(&self, mode: CellMode) -> WorkloadEnvironment<'_> {
        WorkloadEnvironment {
            topology: &self.topology,
            server_files: self.servers.files(),
            client_directory: &self.client_directory,
            logs: &self.logs,
            python: self.options.python.as_deref(),
            mail: self.mail.as_ref().map(|programs| MailClientSettings {
                programs,
                is_optimised: mode == CellMode::Exchange,
            }),
        }
    }

    /// Starts both nodes for a cell's mode, with a path that they know and nothing stored.
    fn start_nodes(&self, cell: &PlannedCell, member: &RoundMember<'_>) -> Result<LabNodes> {
        let mut nodes = LabNodes::prepare(self.run, &self.topology, &self.logs)?;
        for site in [LabSite::Near, LabSite::Far] {
            // What nodes know of another link must not help or harm on this one.
            let _ = std::fs::remove_file(nodes.state(site)?.join("paths.json"));
        }
        nodes.configure(&self.topology, &configuration(cell))?;
        nodes.start(self.run)?;
        let turn = member.warm_up();
        wait::not_interrupted()?;
        for way in pass::warm_up_ways(self.plan, cell) {
            let workload = match way {
                TransferDirection::Download => WorkloadKind::HttpDownload,
                TransferDirection::Upload => WorkloadKind::FtpUpload,
            };
            let files = pass::warm_up(self.plan, cell, way);
            files.write_to(self.servers.files())?;
            self.bench(cell.mode).run(workload, &files, "warm-up")?;
            std::fs::remove_file(self.servers.files().join(WARM_UP_FILE))?;
        }
        drop(turn);
        nodes.empty_dictionaries()?;
        if cell.mode == CellMode::Application && cell.workload.server() == ServerKind::Http {
            nodes.purge_accelerator("http")?;
        }
        Ok(nodes)
    }
}

/// Mode of each accelerator.
const fn accelerator_modes(is_on: bool) -> [(&'static str, &'static str); 3] {
    match is_on {
        true => [("smb", "strict"), ("http", "on"), ("mapi", "on")],
        false => [("smb", "off"), ("http", "off"), ("mapi", "off")],
    }
}

/// The nodes' configuration for a cell.
fn configuration(cell: &PlannedCell) -> ExtraConfiguration {
    let fec = cell.fec.map_or("auto", super::plan::FecSetting::name);
    let modes = accelerator_modes(cell.mode == CellMode::Application);
    let accelerators = modes.map(|(name, mode)| format!("[{name}]\nmode = \"{mode}\""));
    ExtraConfiguration {
        // A flow that ended a moment before its nodes keeps the one that goes last waiting.
        node: vec!["grace = \"1s\"".to_owned()],
        wan: vec![format!("fec = \"{fec}\"")],
        accelerators: accelerators.to_vec(),
        ..ExtraConfiguration::default()
    }
}

/// Sentences about limits of the host during an attempt.
fn host_limits(series: &CellSeries, attempt: &SeriesAttempt) -> Vec<String> {
    let runs = attempt.passes.iter().map(|pass| WorkloadRun {
        pass: match series.cells[0].mode.has_nodes() {
            true => PassKind::Cold,
            false => PassKind::Baseline,
        },
        workload: pass.cell.clone(),
        repeat: 1,
        label: pass.label.clone(),
        cpu_busy: pass.cpu_busy,
        failure: None,
    });
    TestResults {
        link: series.cells[0].settings.clone(),
        nodes: None,
        emulator: attempt.emulator.clone(),
        runs: runs.collect(),
        samples: Vec::new(),
    }
    .host_limits()
}

#[cfg(test)]
mod tests {
    use super::super::expansion::expand;
    use super::super::journal::tests::{attempt, pass};
    use super::*;

    fn cell(name: &str) -> PlannedCell {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let (plan, _) = CellPlan::read(&directory.join("wx-2006.toml")).unwrap();
        let cells = expand(&plan);
        let found = cells.into_iter().find(|cell| cell.name().starts_with(name));
        found.expect(name)
    }

    #[test]
    fn attempts_in_which_the_lab_failed_are_measured_again() {
        let cell = cell("CIFS/T1/0s/loss=0%/B");
        let series = CellSeries {
            key: "series".to_owned(),
            cells: vec![cell.clone()],
        };
        let failed = SeriesAttempt {
            failure: Some("nginx has ended".to_owned()),
            ..attempt("series", vec![])
        };
        let [failed, other] = [failed, attempt("series", vec![])];
        let is_over = |attempts: &[&SeriesAttempt]| {
            let attempts = attempts.iter().copied();
            is_finished(attempts, &series)
        };
        assert!(!is_over(&[&failed, &failed, &failed]));
        // Without the cell, as after a run of other cells of the series.
        assert!(!is_over(&[&other, &other]));
        let clean = attempt("series", vec![pass(&cell.key(), 1_000_000, 100.0)]);
        assert!(is_over(&[&failed, &clean]));
        let mut noisy = clean.clone();
        noisy.passes[0].foreign_packets = 100;
        assert!(!is_over(&[&noisy, &failed]));
        assert!(is_over(&[&noisy, &failed, &noisy]));
        // A transfer that the client gave up is a result.
        let mut given_up = clean;
        given_up.passes[0].failure = Some("timed out".to_owned());
        assert!(is_over(&[&given_up, &given_up]));
    }

    #[test]
    fn drops_of_the_link_explain_retransmissions() {
        let cell = cell("MAPI-2003/T1/100ms/loss=0%/E");
        let mut pass = pass(&cell.key(), 1_000_000, 100.0);
        (pass.packets, pass.retransmitted_packets) = (8_242, 92);
        assert!(!is_clean(&pass, &cell));
        // 40 of them are data that the link dropped, and 52 are not: 0.6 %.
        pass.retransmitted_data_packets = 92;
        pass.dropped_by_link_packets = 40;
        assert!(is_clean(&pass, &cell));
        pass.retransmitted_packets += 50;
        assert!(!is_clean(&pass, &cell), "102 are not explained");
        pass.dropped_by_link_packets = 500;
        assert!(is_clean(&pass, &cell));
        pass.retransmitted_data_packets = 40;
        assert!(
            !is_clean(&pass, &cell),
            "those of the other direction are not explained"
        );
        pass.foreign_packets = 100;
        pass.retransmitted_packets = 0;
        assert!(!is_clean(&pass, &cell), "foreign traffic is not explained");
    }
}
