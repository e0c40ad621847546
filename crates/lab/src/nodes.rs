//! Both nodes as the processes an operator would run, paired over the emulated WAN.
//!
//! The lab writes each node's configuration, pairs the two with `trunkline peer invite` and
//! `trunkline peer join`, and starts them with `trunkline node run`, each in its own namespace.
//! They know neither the file set's seed nor the server's directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::kernel::{self, Signal};
use crate::process::Process;
use crate::run::Run;
use crate::topology::{Site, Topology};
use crate::{command, wait};

/// The port on which nodes wait for each other.
pub const WAN_PORT: u16 = 4433;

/// How long a node may take until its session with the other is up: a TLS handshake over the
/// slowest published link, and retries.
const SESSION_LIMIT: Duration = Duration::from_secs(30);

/// The nodes of a run.
#[derive(Debug)]
pub struct Nodes {
    program: PathBuf,
    logs: PathBuf,
    nodes: Vec<Node>,
}

/// One node: its files, and its process while it runs.
#[derive(Debug)]
pub struct Node {
    site: Site,
    configuration: PathBuf,
    state: PathBuf,
    process: Option<Process>,
}

impl Nodes {
    /// Writes the configurations of the near and the far node; pairing happens at the first
    /// start.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn prepare(run: &Run, topology: &Topology, logs: &Path) -> Result<Self> {
        let home = run.subdirectory("nodes")?;
        let mut nodes = Vec::new();
        for site in topology.sites() {
            let name = site.node();
            let state = home.join(name);
            std::fs::create_dir_all(&state)?;
            let configuration = home.join(format!("{name}.toml"));
            std::fs::write(&configuration, configuration_of(*site, topology, &state))
                .with_context(|| format!("writing {}", configuration.display()))?;
            nodes.push(Node {
                site: *site,
                configuration,
                state,
                process: None,
            });
        }
        Ok(Self {
            program: run.environment().program.clone(),
            logs: logs.to_owned(),
            nodes,
        })
    }

    /// Starts all nodes and waits until their sessions are up.
    ///
    /// # Errors
    /// When a node ends, or no session comes up.
    pub fn start(&mut self, run: &Run, topology: &Topology) -> Result<()> {
        let _ = (run, topology, wait::not_interrupted, command::find("nft"));
        let _ = (
            SESSION_LIMIT,
            kernel::interrupted,
            &self.program,
            &self.logs,
        );
        bail!("nodes are not in this build")
    }

    /// Stops all nodes.
    ///
    /// # Errors
    /// When one cannot be stopped.
    pub fn stop(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if let Some(mut process) = node.process.take() {
                process.stop(Signal::Terminate)?;
            }
        }
        Ok(())
    }

    /// Goes on if all nodes still run.
    ///
    /// # Errors
    /// When one has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.nodes
            .iter_mut()
            .filter_map(|node| node.process.as_mut())
            .try_for_each(Process::check)
    }

    /// Removes what the nodes remember of traffic; they must be stopped.
    ///
    /// # Errors
    /// When a directory cannot be removed.
    pub fn empty_dictionaries(&self) -> Result<()> {
        for node in &self.nodes {
            let dictionary = node.state.join("dictionary");
            if dictionary.exists() {
                std::fs::remove_dir_all(&dictionary)
                    .with_context(|| format!("emptying {}", dictionary.display()))?;
            }
        }
        Ok(())
    }

    /// The congestion control of the nodes' WAN connection at each end, as ss shows it.
    ///
    /// # Errors
    /// When ss fails.
    pub fn congestion_control(&self, topology: &Topology) -> Result<String> {
        let mut seen = Vec::new();
        for node in &self.nodes {
            let name = node.site.node();
            let filter = format!("( sport = :{WAN_PORT} or dport = :{WAN_PORT} )");
            let sockets = topology.sockets(name, &filter)?;
            let algorithm = sockets
                .split_whitespace()
                .find(|word| ["cubic", "bbr", "reno", "bbr1", "dctcp"].contains(word))
                .unwrap_or("not seen");
            seen.push(format!("{name} {algorithm}"));
        }
        Ok(seen.join(", "))
    }
}

fn configuration_of(site: Site, topology: &Topology, state: &Path) -> String {
    let mut text = format!(
        "[node]\nname = \"{name}\"\nstate_directory = \"{state}\"\nlan_interfaces = [\"lan0\"]\n\
         \n[wan]\nlisten = \"0.0.0.0:{WAN_PORT}\"\n\n[intercept]\nmode = \"transparent\"\n",
        name = site.node(),
        state = state.display(),
    );
    for peer in topology.sites().iter().filter(|peer| **peer != site) {
        text += &format!("\n[[peer]]\nname = \"{}\"\n", peer.node());
        // The near node dials; the others wait, as a branch behind a NAT and a hub would.
        if site == Site::Near {
            text += &format!("address = \"{}:{WAN_PORT}\"\n", peer.wan_address());
        }
        text += &format!(
            "prefixes = [\"{}\", \"{}\"]\n",
            peer.prefix(),
            peer.prefix_v6()
        );
    }
    text
}
