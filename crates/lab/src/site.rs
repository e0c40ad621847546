//! A standing lab: both sites, servers, link and nodes, until somebody ends it.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::campaign::LabLink;
use crate::nodes::LabNodes;
use crate::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use crate::servers::{SMB_SHARE, ServerKind, SiteServers};
use crate::topology::{LabSite, LabTopology};
use host::process::RunningProcess;
use host::progress::ProgressReporter;
use host::rootless::UserNamespaceMembership;
use host::run::LabRun;
use host::{ProgramEnvironment, kernel, rootless};

/// Interval at which the standing lab checks whether it should end or a program in it has.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The seed of the standing lab's link; losses repeat from one day to the next.
const LINK_SEED: u64 = 1;

/// Use of nodes in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithNodes {
    /// The nodes run.
    Yes,
    /// The two sites are joined by the link alone.
    No,
}

/// A standing lab; dropping it removes it. Fields are dropped in this order: processes before the
/// places that they run in.
#[derive(Debug)]
pub struct Lab {
    nodes: Option<LabNodes>,
    servers: SiteServers,
    emulator: RunningProcess,
    topology: LabTopology,
    logs: PathBuf,
    run: LabRun,
}

impl Lab {
    /// Builds a lab.
    ///
    /// # Errors
    /// When something is missing or does not start.
    pub fn up(
        environment: &ProgramEnvironment,
        link: &LabLink,
        with: WithNodes,
        progress: &dyn ProgressReporter,
    ) -> Result<Self> {
        let privileges = rootless::obtain(environment)?;
        progress.note(privileges.explain());
        let servers = vec![ServerKind::Http, ServerKind::Ftp, ServerKind::Smb];
        let needs = LabRequirements {
            servers: servers.clone(),
            clients: vec![],
            interception: match with {
                WithNodes::Yes => InterceptionMode::Transparent,
                WithNodes::No => InterceptionMode::None,
            },
            captures: CaptureMode::None,
        };
        preflight::check(&needs, privileges)?;
        let run = LabRun::create(environment)?;
        Self::build(
            run,
            link,
            with,
            &servers,
            &[LabSite::Near, LabSite::Far],
            progress,
        )
    }

    /// Builds a lab of these sites in `run`; tests use it with more than two.
    ///
    /// # Errors
    /// When something does not start.
    pub fn build(
        run: LabRun,
        link: &LabLink,
        with: WithNodes,
        kinds: &[ServerKind],
        sites: &[LabSite],
        progress: &dyn ProgressReporter,
    ) -> Result<Self> {
        let logs = run.subdirectory("logs")?;
        progress.step(0.1, "building the network");
        let topology = LabTopology::create(&run, sites)?;
        progress.step(0.3, "starting the emulator");
        let emulator = topology.start_emulator(&run, &logs, &link.arguments(LINK_SEED))?;
        progress.step(0.5, "starting the servers");
        let servers = SiteServers::start(&run, &topology, LabSite::Far, &logs, kinds)?;
        let mut lab = Self {
            nodes: None,
            servers,
            emulator,
            topology,
            logs,
            run,
        };
        if with == WithNodes::Yes {
            progress.step(0.7, "starting the nodes");
            let mut nodes = LabNodes::prepare(&lab.run, &lab.topology, &lab.logs)?;
            nodes.start(&lab.run)?;
            lab.nodes = Some(nodes);
        }
        Ok(lab)
    }

    /// The lab's network.
    #[must_use]
    pub fn topology(&self) -> &LabTopology {
        &self.topology
    }

    /// The lab's run.
    #[must_use]
    pub fn run(&self) -> &LabRun {
        &self.run
    }

    /// The far site's servers.
    #[must_use]
    pub fn servers(&mut self) -> &mut SiteServers {
        &mut self.servers
    }

    /// The nodes, where they run.
    #[must_use]
    pub fn nodes(&mut self) -> Option<&mut LabNodes> {
        self.nodes.as_mut()
    }

    /// Starts the node of one site again after it was stopped.
    ///
    /// # Errors
    /// When it does not start, or the lab has no nodes.
    pub fn start_node(&mut self, site: LabSite) -> Result<()> {
        match &mut self.nodes {
            Some(nodes) => nodes.start_node(&self.run, site),
            None => anyhow::bail!("this lab has no nodes"),
        }
    }

    /// The emulator's process.
    #[must_use]
    pub fn emulator(&mut self) -> &mut RunningProcess {
        &mut self.emulator
    }

    /// Directory of all logs.
    #[must_use]
    pub fn logs(&self) -> &std::path::Path {
        &self.logs
    }

    /// Instructions for using the lab, as text.
    #[must_use]
    pub fn directions(&self) -> String {
        let mut text = String::new();
        let server = LabSite::Far.host_address();
        let _ = writeln!(
            text,
            "The lab stands; its files are in {}",
            self.run.directory().display()
        );
        if self.run.environment().user_namespace == UserNamespaceMembership::Yes {
            let _ = writeln!(
                text,
                "enter its namespaces first, from another terminal of the same user:\n  \
                 nsenter --preserve-credentials --user --mount --pid --target \
                 $(pgrep -n -f 'trunkline lab up')"
            );
        }
        for (role, what) in [
            ("client", "the client's host"),
            ("near", "its node"),
            ("wan", "the emulated link"),
            ("far", "the server's node"),
            ("server", "the server's host"),
        ] {
            let _ = writeln!(
                text,
                "  ip netns exec {:16} sh     # {what}",
                self.topology.namespace(role)
            );
        }
        let _ = writeln!(text, "from the client:");
        let _ = writeln!(text, "  curl http://{server}/");
        let _ = writeln!(text, "  curl http://[{}]/", LabSite::Far.host_address_v6());
        let _ = writeln!(text, "  curl ftp://{server}/");
        let _ = writeln!(text, "  smbclient //{server}/{SMB_SHARE} -N -s /dev/null");
        let _ = write!(
            text,
            "files to serve go into {}",
            self.servers.files().display()
        );
        text
    }

    /// Stands until the lab is interrupted or something in it ends.
    ///
    /// # Errors
    /// When something in it ends by itself.
    pub fn wait(mut self) -> Result<()> {
        while !kernel::interrupted() {
            self.emulator.check()?;
            self.servers.check()?;
            if let Some(nodes) = &mut self.nodes {
                nodes.check()?;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}
