//! The place of a cell: two sites, one link at a time, nginx, and nodes or none.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::client::ClientPlace;
use super::origin::{OriginServer, SITE_NAME};
use host::ProgramEnvironment;
use host::command;
use host::kernel::ProcessSignal;
use host::process::RunningProcess;
use host::run::LabRun;
use lab::browser::BrowserPlace;
use lab::campaign::LabLink;
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::recording::{self, MarkerEdge, MarkerPath, PacketRecorder, WanCrossings};
use lab::servers::HTTP_PORT;
use lab::topology::{LabSite, LabTopology, OffloadMode};

/// The WAN of the bars: 20 Mbit/s, 100 ms there and back, and one bandwidth-delay product of queue.
pub(super) const WAN_LINK: &str = "rate=20Mbit,delay=50ms,queue=250kB,loss=0%";
/// Its round-trip time.
pub(super) const WAN_ROUND_TRIP: Duration = Duration::from_millis(100);
/// What stands for a LAN: no delay, and a rate that the emulator carries on any machine.
pub(super) const LAN_LINK: &str = "rate=100Mbit,delay=0ms,queue=1MB,loss=0%";

/// What makes a path known to new nodes: four seconds of its line.
const WARM_UP_BYTES: usize = 10_000_000;

/// The seed of links; without loss nothing depends on it.
const LINK_SEED: u64 = 1;

/// Setting of HTTP at the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeHttpMode {
    /// They carry and reduce it like any other.
    Off,
    /// They follow messages, and store.
    On,
}

/// Both sites; dropping it removes them. What runs goes before what it runs in.
pub(super) struct HttpStand {
    nodes: LabNodes,
    recorder: Option<PacketRecorder>,
    markers: MarkerPath,
    origin: OriginServer,
    emulator: Option<RunningProcess>,
    topology: LabTopology,
    client: ClientPlace,
    logs: PathBuf,
    captures: PathBuf,
    browser_directory: PathBuf,
    run: LabRun,
}

impl HttpStand {
    /// Builds both sites and starts nginx; neither link nor nodes run yet.
    ///
    /// # Errors
    /// When the kernel refuses, or nginx does not start.
    pub(super) fn create(
        environment: &ProgramEnvironment,
        offloads: OffloadMode,
        has_tls: bool,
    ) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let logs = run.subdirectory("logs")?;
        let captures = run.subdirectory("captures")?;
        let browser_directory = run.subdirectory("browser")?;
        let sites = [LabSite::Near, LabSite::Far];
        let topology = LabTopology::create_with(&run, &sites, offloads)?;
        let origin = OriginServer::start(&run, &topology, &logs, has_tls)?;
        let markers = MarkerPath::open(&topology)?;
        let nodes = LabNodes::prepare(&run, &topology, &logs)?;
        let client = ClientPlace::new(topology.namespace_file(LabSite::Near.host()));
        Ok(Self {
            nodes,
            recorder: None,
            markers,
            origin,
            emulator: None,
            topology,
            client,
            logs,
            captures,
            browser_directory,
            run,
        })
    }

    /// Puts a link between the sites in place of the one before, and takes the nodes away.
    ///
    /// # Errors
    /// When the emulator does not start, or hosts do not use CUBIC.
    pub(super) fn set_link(&mut self, link: &LabLink) -> Result<()> {
        self.nodes.stop()?;
        if let Some(mut emulator) = self.emulator.take() {
            emulator.stop(ProcessSignal::Terminate)?;
        }
        let arguments = link.arguments(LINK_SEED);
        let emulator = self
            .topology
            .start_emulator(&self.run, &self.logs, &arguments)?;
        self.emulator = Some(emulator);
        self.topology.verify_congestion_control(HTTP_PORT)?;
        Ok(())
    }

    /// Joins the nodes by a pair of devices in place of a link, for good.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn join_directly(&self) -> Result<()> {
        self.topology.join_directly(LabSite::Near, LabSite::Far)
    }

    /// Starts the nodes anew, with these tables beside that of HTTP, and makes path and server known to them.
    ///
    /// # Errors
    /// When they do not start, or the data that warm them up do not arrive.
    pub(super) fn start_nodes(&mut self, mode: NodeHttpMode, tables: &[String]) -> Result<()> {
        self.nodes.stop()?;
        let mode = match mode {
            NodeHttpMode::Off => "off",
            NodeHttpMode::On => "on",
        };
        let mut accelerators = vec!["[http]".to_owned(), format!("mode = \"{mode}\"")];
        accelerators.extend_from_slice(tables);
        let extras = ExtraConfiguration {
            // A flow that ended a moment before its nodes keeps the one that goes last waiting.
            node: vec!["grace = \"1s\"".to_owned()],
            accelerators,
            ..ExtraConfiguration::default()
        };
        self.nodes.configure(&self.topology, &extras)?;
        self.nodes.start(&self.run)?;
        let content = self.origin.publish("/once/warm-up", WARM_UP_BYTES, 0)?;
        let client = &self.client;
        client
            .fetch("/once/warm-up", &content)
            .context("making the path known")
    }

    /// Makes an authority of the operator's for the site's domain; gives its directory.
    ///
    /// # Errors
    /// When the program does not make one.
    pub(super) fn make_authority(&self) -> Result<PathBuf> {
        let directory = self.run.directory().join("authority");
        let mut make = command::new(&self.run.environment().program);
        let (_, domain) = SITE_NAME.split_once('.').context("the site has a domain")?;
        make.args(["http", "ca", "--name", "bench", "--permit", domain, "--out"])
            .arg(&directory);
        command::finish("trunkline http ca", &mut make, None)?;
        Ok(directory)
    }

    /// Empties the dictionaries, and what is stored of HTTP.
    ///
    /// # Errors
    /// When a node does not do so.
    pub(super) fn empty(&self) -> Result<()> {
        self.nodes.purge_accelerator("http")?;
        self.nodes.empty_dictionaries()
    }

    /// Runs `work` between two markers of a capture.
    ///
    /// # Errors
    /// When the capture or `work` fails.
    pub(super) fn record<T>(
        &mut self,
        label: &str,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, WanCrossings)> {
        let recorder =
            PacketRecorder::start(&self.run, &self.topology, &self.captures, &self.logs, label)?;
        let mut recorder = self.recorder.insert(recorder);
        recorder.mark(&self.markers, MarkerEdge::Begin, label)?;
        let done = work(self)?;
        recorder = self.recorder.as_mut().context("it was started above")?;
        recorder.mark(&self.markers, MarkerEdge::End, label)?;
        self.check()?;
        let recorder = self.recorder.take().context("it was started above")?;
        let files = recorder.finish()?;
        let crossings = recording::crossings(&capture::read(&files.wan)?, label)?;
        for file in [&files.wan, &files.client] {
            std::fs::remove_file(file)?;
        }
        Ok((done, crossings))
    }

    /// Where browsers run.
    pub(super) fn browser_place(&self, takes_any_certificate: bool) -> BrowserPlace<'_> {
        BrowserPlace {
            namespace: self.client.namespace(),
            directory: &self.browser_directory,
            site: (SITE_NAME, LabSite::Far.host_address()),
            takes_any_certificate,
        }
    }

    /// Where clients run that are no browsers.
    pub(super) fn client(&self) -> &ClientPlace {
        &self.client
    }

    /// nginx.
    pub(super) fn origin(&self) -> &OriginServer {
        &self.origin
    }

    /// The nodes.
    pub(super) fn nodes(&mut self) -> &mut LabNodes {
        &mut self.nodes
    }

    /// Goes on if everything still runs.
    ///
    /// # Errors
    /// When something has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.origin.check()?;
        self.nodes.check()?;
        match &mut self.emulator {
            Some(emulator) => emulator.check(),
            None => Ok(()),
        }
    }
}
