//! Test bed for sessions in real time: the lab's two sites, their nodes, and the emulator or a
//! plain pair of devices between them.
//!
//! ```text
//!  client ── near ══ emulator ══ far ── server         flows on two ports: carried, and reduced
//!            near ── emulator ── far                   a rival, which passes by both nodes
//! ```
//! Segmentation offloads stay as the kernel has them: nothing is counted in captures here.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tunnel::fec::RepairMode;

use super::super::cells::PathCell;
use super::super::mode_name;
use super::hosts::{AnswerContent, HostClient, HostServer};
use emulator::link::control::{self, ControlRequest};
use host::kernel::ProcessSignal;
use host::process::RunningProcess;
use host::run::LabRun;
use host::{ProgramEnvironment, wait};
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::topology::{LabSite, LabTopology, LinkArguments, OffloadMode};

/// Flows to this port are carried as they are.
const CARRIED_PORT: u16 = 5_201;
/// Flows to this port are reduced.
const REDUCED_PORT: u16 = 5_202;
/// Port of a rival's server, at the far node's gateway address.
const RIVAL_PORT: u16 = 5_203;

/// Time limit for sessions to find out whether UDP gets through: some round trips of the longest
/// path, and the wait until an unanswered path is given up.
const PATH_LIMIT: Duration = Duration::from_secs(4);

/// Interval at which a long measurement checks whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Both sites.
pub(super) struct SessionTestBed {
    // In the order in which they have to go.
    nodes: LabNodes,
    servers: [HostServer; 2],
    rival: Option<HostServer>,
    emulator: Option<RunningProcess>,
    topology: LabTopology,
    logs: PathBuf,
    run: LabRun,
    /// A pair of devices joins the nodes, for good.
    is_direct: bool,
}

/// A port of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowMode {
    /// Carried as it is.
    Carried,
    /// Reduced.
    Reduced,
}

impl FlowMode {
    /// Name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Carried => "carried",
            Self::Reduced => "reduced",
        }
    }
}

impl SessionTestBed {
    /// Builds both sites; no node runs yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn create(environment: &ProgramEnvironment) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let logs = run.subdirectory("logs")?;
        let topology =
            LabTopology::create_with(&run, &[LabSite::Near, LabSite::Far], OffloadMode::Kept)?;
        let server = topology.namespace_file(LabSite::Far.host());
        let servers = [
            HostServer::start(Some(&server), CARRIED_PORT, AnswerContent::Repeated)?,
            HostServer::start(Some(&server), REDUCED_PORT, AnswerContent::Fresh)?,
        ];
        let nodes = LabNodes::prepare(&run, &topology, &logs)?;
        Ok(Self {
            nodes,
            servers,
            rival: None,
            emulator: None,
            topology,
            logs,
            run,
            is_direct: false,
        })
    }

    /// Makes a link between the sites, in place of the previous one. Nodes are stopped, because
    /// they know another path.
    ///
    /// # Errors
    /// Fails when the emulator does not start.
    pub(super) fn set_link(&mut self, cell: &PathCell, queue_bdp: f64, seed: u64) -> Result<()> {
        self.nodes.stop()?;
        if let Some(mut emulator) = self.emulator.take() {
            emulator.stop(ProcessSignal::Terminate)?;
        }
        let mut link = cell.words(queue_bdp, seed);
        if let Some(schedule) = cell.schedule(seed) {
            let path = self.run.directory().join("trace.csv");
            std::fs::write(&path, schedule)?;
            link.extend(["--schedule".to_owned(), path.display().to_string()]);
        }
        let control = self.control().display().to_string();
        link.extend(["--control".to_owned(), control]);
        let emulator = self
            .topology
            .start_emulator(&self.run, &self.logs, &LinkArguments(link))?;
        self.emulator = Some(emulator);
        Ok(())
    }

    /// Takes the link away and joins both nodes by a pair of devices; for good.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn join_directly(&mut self) -> Result<()> {
        if !self.is_direct {
            self.nodes.stop()?;
            self.emulator = None;
            self.topology.join_directly(LabSite::Near, LabSite::Far)?;
            self.is_direct = true;
        }
        Ok(())
    }

    /// Starts the nodes anew, and waits until they serve each other and have settled on a path.
    ///
    /// # Errors
    /// When they do not.
    pub(super) fn start_nodes(&mut self, fec: RepairMode) -> Result<()> {
        self.nodes.stop()?;
        let extras = ExtraConfiguration {
            // A flow that ended a moment before its nodes keeps the one that goes last waiting for a
            // word from the other, and nothing here is owed the usual ten seconds.
            node: vec!["grace = \"1s\"".to_owned()],
            wan: vec![format!("fec = \"{}\"", mode_name(fec))],
            policy: vec![format!("carry_only_ports = [{CARRIED_PORT}]")],
            ..ExtraConfiguration::default()
        };
        self.nodes.configure(&self.topology, &extras)?;
        self.nodes.start(&self.run)?;
        self.settle()
    }

    /// Starts the near node anew, so that the far one meets a path that it knows.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn restart_near_node(&mut self) -> Result<()> {
        self.nodes.stop_node(LabSite::Near)?;
        self.nodes.start_node(&self.run, LabSite::Near)?;
        self.nodes.wait_sessions()?;
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < PATH_LIMIT && self.path()? != "udp" {
            self.pause(LOOK_EVERY)?;
        }
        Ok(())
    }

    /// Path of flows from the server, in the words of `trunkline node status`.
    ///
    /// # Errors
    /// When the far node does not answer.
    pub(super) fn path(&self) -> Result<String> {
        let status = self.status(LabSite::Far)?;
        let carries = status["peers"][0]["path"]["carries"].as_str();
        // A node that knows no other path does not name the one there is.
        Ok(carries.unwrap_or("tls").to_owned())
    }

    /// Status of a node.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn status(&self, site: LabSite) -> Result<Value> {
        self.nodes.status(site)
    }

    /// Processor time of a node so far.
    ///
    /// # Errors
    /// Fails when it does not run.
    pub(super) fn processor_time(&mut self, site: LabSite) -> Result<Duration> {
        let pid = self.nodes.process(site)?.pid();
        processor_time(pid)
    }

    /// Processor time of a server's connections that have ended.
    pub(super) fn server_processor_time(&self, flow: FlowMode) -> Duration {
        self.servers[flow as usize].processor_time()
    }

    /// Connects from the client to a server, through the nodes.
    ///
    /// # Errors
    /// Fails when there is no answer.
    pub(super) fn connect(&self, flow: FlowMode) -> Result<HostClient> {
        let port = match flow {
            FlowMode::Carried => CARRIED_PORT,
            FlowMode::Reduced => REDUCED_PORT,
        };
        let client = self.topology.namespace_file(LabSite::Near.host());
        let server = SocketAddr::from((LabSite::Far.host_address(), port));
        HostClient::connect(Some(&client), server)
    }

    /// Connects across the link, bypassing both nodes; the server's side uses this congestion
    /// control, which is read back.
    ///
    /// # Errors
    /// Fails when the kernel does not have it, or there is no answer.
    pub(super) fn connect_rival(&mut self, congestion_control: &str) -> Result<HostClient> {
        self.topology
            .pass_by(LabSite::Far, LabSite::Near, congestion_control)?;
        self.topology
            .pass_by(LabSite::Near, LabSite::Far, congestion_control)?;
        if self.rival.is_none() {
            let far = self.topology.namespace_file(LabSite::Far.node());
            let server = HostServer::start(Some(&far), RIVAL_PORT, AnswerContent::Repeated)?;
            self.rival = Some(server);
        }
        let near = self.topology.namespace_file(LabSite::Near.node());
        let server = SocketAddr::from((LabSite::Far.gateway(), RIVAL_PORT));
        let client = HostClient::connect(Some(&near), server)?;
        let port = client.port()?;
        let what = format!("the rival's socket to use {congestion_control}");
        wait::until(Duration::from_secs(5), &what, || {
            Ok(self
                .rival_socket(port)?
                .split_whitespace()
                .any(|word| word == congestion_control)
                .then_some(()))
        })?;
        Ok(client)
    }

    /// Output of `ss` for the rival's connection to this port of the near node.
    ///
    /// # Errors
    /// When ss fails.
    pub(super) fn rival_socket(&self, port: u16) -> Result<String> {
        let filter = format!("( sport = :{RIVAL_PORT} and dport = :{port} )");
        self.topology.sockets(LabSite::Far.node(), &filter)
    }

    /// Packets from the far side to the near that the link's queue has dropped.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn dropped_by_queue(&self) -> Result<u64> {
        let status = control::ask(&self.control(), &ControlRequest::Status)?;
        let dropped = status["back"]["dropped_by_queue_packets"].as_u64();
        dropped.with_context(|| format!("the link does not say what it dropped: {status}"))
    }

    /// Counters of the link from the far side to the near: packets taken in, and packets dropped by
    /// the model.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn offered_and_dropped(&self) -> Result<(u64, u64)> {
        let status = control::ask(&self.control(), &ControlRequest::Status)?;
        let back = &status["back"];
        let count = |key: &str| -> Result<u64> {
            back[key]
                .as_u64()
                .with_context(|| format!("the link does not say {key}: {status}"))
        };
        let dropped = count("dropped_by_queue_packets")?
            + count("dropped_by_policer_packets")?
            + count("dropped_by_loss_packets")?;
        Ok((count("offered_packets")?, dropped))
    }

    /// Waits while everything runs.
    ///
    /// # Errors
    /// Fails when a process ends by itself, or the lab is interrupted.
    pub(super) fn pause(&mut self, span: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            wait::not_interrupted()?;
            self.nodes.check()?;
            if let Some(emulator) = &mut self.emulator {
                emulator.check()?;
            }
            let left = span.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn control(&self) -> PathBuf {
        self.run.directory().join("link.sock")
    }
}

/// Processor time of a process and its threads (proc(5): utime and stime, fields 14 and 15).
fn processor_time(pid: u32) -> Result<Duration> {
    /// Ticks of a second in /proc, on every machine that Linux runs on today.
    const TICKS: u64 = 100;
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let Some((_, fields)) = stat.rsplit_once(')') else {
        bail!("{path} is not as proc(5) says");
    };
    let ticks: Vec<u64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(ticks.len() == 2, "{path} is not as proc(5) says");
    Ok(Duration::from_millis(
        ticks.iter().sum::<u64>() * 1_000 / TICKS,
    ))
}

impl PathCell {
    /// Model of the path as arguments of `trunkline emulate run`, without a trace.
    fn words(&self, queue_bdp: f64, seed: u64) -> Vec<String> {
        let config = self.link_with_queue(queue_bdp, seed).forward;
        let queue = config.queue.limit.bytes.unwrap_or_default();
        let mut words = vec![
            ("--rate", format!("{}bit", self.rate().bits_per_second())),
            ("--delay", format!("{}ns", config.delay.as_nanos())),
            ("--queue", format!("{}B", queue.bytes())),
            ("--seed", seed.to_string()),
        ];
        if self.loss > 0.0 {
            let burst = match self.burst > 1.0 {
                true => format!(",burst={}", self.burst),
                false => String::new(),
            };
            words.push(("--loss", format!("{}%{burst}", self.loss * 100.0)));
        }
        if self.jitter_ms > 0.0 {
            words.push(("--jitter", format!("{}ms,reorder", self.jitter_ms)));
        }
        if let Some(policer) = &config.policer {
            let (rate, burst) = (policer.rate.bits_per_second(), policer.burst.bytes());
            words.push(("--police", format!("rate={rate}bit,burst={burst}B")));
        }
        words
            .into_iter()
            .flat_map(|(name, word)| [name.to_owned(), word])
            .collect()
    }

    /// A trace, as the emulator reads it.
    fn schedule(&self, seed: u64) -> Option<String> {
        let schedule = self.link(seed).forward.schedule?;
        let mut text = String::new();
        if let Some(repeat) = schedule.repeat() {
            let _ = writeln!(text, "# repeat {}ms", repeat.as_millis());
        }
        text += "time,rate\n";
        for step in schedule.steps() {
            if let Some(rate) = step.change.rate {
                let _ = writeln!(
                    text,
                    "{}ms,{}bit",
                    step.at.as_millis(),
                    rate.bits_per_second()
                );
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use emulate::LinkSchedule;

    use super::super::super::cells::all_cells;
    use super::*;
    use emulator::link::settings::LinkSettings;

    #[test]
    fn emulator_arguments_match_the_simulated_path() {
        for cell in all_cells() {
            let model = cell.link(7);
            let mut settings = LinkSettings::default();
            for pair in cell.words(cell.queue_bdp(), 7).chunks(2) {
                settings
                    .set_by_name(pair[0].trim_start_matches("--"), &pair[1])
                    .unwrap();
            }
            let mut told = settings.resolve().unwrap().config;
            let schedule = cell
                .schedule(7)
                .map(|text| LinkSchedule::from_csv(&text).unwrap());
            for way in [&mut told.forward, &mut told.back] {
                way.schedule = schedule.clone().map(Into::into);
            }
            assert_eq!(told, model, "{}", cell.name());
        }
    }

    #[test]
    fn this_process_has_used_some_processor_time() {
        let began = processor_time(std::process::id()).unwrap();
        while processor_time(std::process::id()).unwrap() == began {}
    }
}
