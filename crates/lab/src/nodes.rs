//! Both nodes as processes, as an operator would run them, paired over the emulated WAN.
//!
//! The lab writes each node's configuration, pairs the two with `trunkline peer invite` and
//! `trunkline peer join`, and starts them with `trunkline node run`, each in its own namespace. The
//! nodes know neither the file set's seed nor the server's directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::topology::{LabSite, LabTopology};
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::{self, LabRun};
use host::{command, wait};

/// The port on which nodes wait for each other.
pub const WAN_PORT: u16 = 4433;

/// Time limit for a node to answer on its administration socket.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for a session to come up: the longest back-off between two attempts and a TLS
/// handshake over the slowest published link.
const SESSION_LIMIT: Duration = Duration::from_secs(60);
/// Time after which a dictionary that is not empty is purged again.
const PURGE_AGAIN: Duration = Duration::from_secs(2);
/// Time limit for a node's watchdog to notice that its node has ended.
const WATCHDOG_LIMIT: Duration = Duration::from_secs(10);

/// Lines of a node's configuration beside those that each node of the lab needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraConfiguration {
    /// Lines under `[node]`.
    pub node: Vec<String>,
    /// Lines under `[wan]`.
    pub wan: Vec<String>,
    /// Lines under `[policy]`.
    pub policy: Vec<String>,
    /// Lines under `[credentials]`.
    pub credentials: Vec<String>,
    /// Whole tables of accelerators, with their heads.
    pub accelerators: Vec<String>,
}

/// The nodes of a run.
#[derive(Debug)]
pub struct LabNodes {
    program: PathBuf,
    logs: PathBuf,
    nodes: Vec<LabNode>,
}

/// One node: its files, and its process while it runs.
#[derive(Debug)]
struct LabNode {
    site: LabSite,
    namespace: String,
    configuration: PathBuf,
    state: PathBuf,
    process: Option<RunningProcess>,
}

impl LabNodes {
    /// Writes the configuration of each site's node.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn prepare(run: &LabRun, topology: &LabTopology, logs: &Path) -> Result<Self> {
        let home = run.subdirectory("nodes")?;
        let mut nodes = Vec::new();
        for site in topology.sites() {
            let name = site.node();
            let state = home.join(name);
            std::fs::create_dir_all(&state)?;
            let configuration = home.join(format!("{name}.toml"));
            nodes.push(LabNode {
                site: *site,
                namespace: topology.namespace(name),
                configuration,
                state,
                process: None,
            });
        }
        let nodes = Self {
            program: run.environment().program.clone(),
            logs: logs.to_owned(),
            nodes,
        };
        nodes.configure(topology, &ExtraConfiguration::default())?;
        Ok(nodes)
    }

    /// Writes each node's configuration anew, for when it is started next.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn configure(&self, topology: &LabTopology, extras: &ExtraConfiguration) -> Result<()> {
        for node in &self.nodes {
            let text = configuration_of(node.site, topology, &node.state, extras);
            std::fs::write(&node.configuration, text)
                .with_context(|| format!("writing {}", node.configuration.display()))?;
        }
        Ok(())
    }

    /// Starts all nodes, pairs them if they are not yet, and waits until they serve each other.
    ///
    /// # Errors
    /// When a node ends, cannot be paired, or no session comes up.
    pub fn start(&mut self, run: &LabRun) -> Result<()> {
        for index in 0..self.nodes.len() {
            self.start_node(run, self.nodes[index].site)?;
        }
        self.pair()?;
        self.wait_sessions()
    }

    /// Starts the node of one site and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer.
    pub fn start_node(&mut self, run: &LabRun, site: LabSite) -> Result<()> {
        let program = self.program.clone();
        let logs = self.logs.clone();
        let node = self.node_mut(site)?;
        let launch = LaunchConfig {
            name: &format!("node-{}", site.node()),
            namespace: &node.namespace,
            program: &program,
            logs: &logs,
        };
        let arguments = [
            OsStr::new("node"),
            OsStr::new("run"),
            OsStr::new("--config"),
            node.configuration.as_os_str(),
        ];
        let mut process = RunningProcess::start(run, &launch, arguments)?;
        let configuration = node.configuration.clone();
        process.wait_ready(START_LIMIT, "to answer its administration socket", || {
            Ok(status(&program, &configuration).is_ok())
        })?;
        node.process = Some(process);
        Ok(())
    }

    /// Pairs each node that dials with each node that waits, with a token made for it.
    fn pair(&self) -> Result<()> {
        for joiner in &self.nodes {
            for inviter in &self.nodes {
                let pin = joiner
                    .state
                    .join("peers")
                    .join(format!("{}.json", inviter.site.node()));
                if !dials(joiner.site, inviter.site) || pin.exists() {
                    continue;
                }
                self.pair_two(inviter, joiner).with_context(|| {
                    format!(
                        "pairing {} with {}",
                        joiner.site.node(),
                        inviter.site.node()
                    )
                })?;
            }
        }
        Ok(())
    }

    fn pair_two(&self, inviter: &LabNode, joiner: &LabNode) -> Result<()> {
        let address = format!("{}:{WAN_PORT}", inviter.site.wan_address());
        let mut invite = command::new(&self.program);
        invite
            .args(["peer", "invite", "--name", joiner.site.node()])
            .args(["--address", &address, "--config"])
            .arg(&inviter.configuration);
        let token = command::finish("trunkline peer invite", &mut invite, None)?;
        let mut join = command::new(&self.program);
        join.args(["peer", "join", "--name", inviter.site.node(), "--config"])
            .arg(&joiner.configuration);
        let namespace = run::namespace_path(&joiner.namespace);
        kernel::prepare_child(&mut join, Some(&namespace))?;
        command::finish("trunkline peer join", &mut join, Some(&token)).map(drop)
    }

    /// Waits until every node has a session with each of its peers, intercepts for them, and has
    /// read its dictionary.
    ///
    /// # Errors
    /// Fails when that takes too long; the message has the nodes' statuses.
    pub fn wait_sessions(&mut self) -> Result<()> {
        let program = self.program.clone();
        for node in &mut self.nodes {
            let configuration = node.configuration.clone();
            let what = "to have its sessions up and its rules in place";
            let mut last = String::new();
            let ready = || {
                let status = status(&program, &configuration)?;
                last = status.to_string();
                Ok(is_serving(&status))
            };
            let mut ready = ready;
            let waited = match &mut node.process {
                Some(process) => process.wait_ready(SESSION_LIMIT, what, ready),
                None => wait::until(SESSION_LIMIT, what, || {
                    // Between its end and its new start nobody answers.
                    Ok(ready().unwrap_or(false).then_some(()))
                }),
            };
            waited.with_context(|| format!("its last status: {last}"))?;
        }
        Ok(())
    }

    /// Stops all nodes, and those that their watchdogs may have started in their place.
    ///
    /// # Errors
    /// Fails when one cannot be stopped.
    pub fn stop(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(LabNode::stop)
    }

    /// Stops the node of one site.
    ///
    /// # Errors
    /// When it cannot be stopped.
    pub fn stop_node(&mut self, site: LabSite) -> Result<()> {
        self.node_mut(site)?.stop()
    }

    /// Forgets a node's process if it has ended, because its watchdog has started another; that one
    /// is known only by its administration socket, and is still stopped with the others.
    pub fn forget_if_ended(&mut self, site: LabSite) {
        if let Ok(node) = self.node_mut(site)
            && node
                .process
                .as_mut()
                .is_some_and(|process| process.check().is_err())
        {
            node.process = None;
        }
    }

    /// Checks that all nodes still run.
    ///
    /// # Errors
    /// Fails when one has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.nodes
            .iter_mut()
            .filter_map(|node| node.process.as_mut())
            .try_for_each(RunningProcess::check)
    }

    /// Empties every dictionary, in memory and on disk, and makes sure of it.
    ///
    /// # Errors
    /// When a node does not do so.
    pub fn empty_dictionaries(&self) -> Result<()> {
        for node in &self.nodes {
            self.purge(node)?;
        }
        for node in &self.nodes {
            let what = format!("the dictionary of {} to be empty", node.site.node());
            let mut purged = Instant::now();
            wait::until(START_LIMIT, &what, || {
                let status = status(&self.program, &node.configuration)?;
                if status["dictionary"]["chunks"] == 0 {
                    return Ok(Some(()));
                }
                // The end of a flow that had not ended by then came in behind the purge.
                if purged.elapsed() > PURGE_AGAIN {
                    self.purge(node)?;
                    purged = Instant::now();
                }
                Ok(None)
            })?;
        }
        Ok(())
    }

    /// Removes the stored content of one accelerator on every node.
    ///
    /// # Errors
    /// When a node does not do so.
    pub fn purge_accelerator(&self, accelerator: &str) -> Result<()> {
        for node in &self.nodes {
            let mut purge = command::new(&self.program);
            purge
                .args(["node", "purge", accelerator, "--config"])
                .arg(&node.configuration);
            command::finish("trunkline node purge", &mut purge, None)?;
        }
        Ok(())
    }

    fn purge(&self, node: &LabNode) -> Result<()> {
        let mut purge = command::new(&self.program);
        purge
            .args(["node", "purge", "--config"])
            .arg(&node.configuration);
        command::finish("trunkline node purge", &mut purge, None).map(drop)
    }

    /// Status of a site's node.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self, site: LabSite) -> Result<Value> {
        status(&self.program, &self.node(site)?.configuration)
    }

    /// The flows of a site's node, the oldest first, with those that have ended of late.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn flows(&self, site: LabSite) -> Result<Vec<Value>> {
        let answer = ask(&self.program, &self.node(site)?.configuration, &["flows"])?;
        Ok(answer["flows"].as_array().cloned().unwrap_or_default())
    }

    /// Reasons of each stage of a site's node for its treatment of a flow.
    ///
    /// # Errors
    /// When it does not answer or knows no such flow (any more).
    pub fn why(&self, site: LabSite, flow: u64) -> Result<Value> {
        let number = flow.to_string();
        let node = self.node(site)?;
        ask(&self.program, &node.configuration, &["why", &number])
    }

    /// The node's state directory.
    ///
    /// # Errors
    /// When the lab has no such site.
    pub fn state(&self, site: LabSite) -> Result<&Path> {
        Ok(&self.node(site)?.state)
    }

    /// Tells whether any node runs.
    #[must_use]
    pub fn are_running(&self) -> bool {
        self.nodes.iter().any(|node| node.process.is_some())
    }

    /// The process of a site's node.
    ///
    /// # Errors
    /// When it does not run.
    pub fn process(&mut self, site: LabSite) -> Result<&mut RunningProcess> {
        self.node_mut(site)?
            .process
            .as_mut()
            .with_context(|| format!("the node {} does not run", site.node()))
    }

    /// The congestion control of the nodes' WAN connection at each end, as ss shows it.
    ///
    /// # Errors
    /// When ss fails.
    pub fn congestion_control(&self, topology: &LabTopology) -> Result<String> {
        let mut seen = Vec::new();
        for node in &self.nodes {
            let name = node.site.node();
            let filter = format!("( sport = :{WAN_PORT} or dport = :{WAN_PORT} )");
            let sockets = topology.sockets(name, &filter)?;
            let algorithm = sockets
                .split_whitespace()
                .find(|word| ["cubic", "bbr", "reno", "dctcp"].contains(word))
                .unwrap_or("not seen");
            seen.push(format!("{name} {algorithm}"));
        }
        Ok(seen.join(", "))
    }

    fn node(&self, site: LabSite) -> Result<&LabNode> {
        self.nodes
            .iter()
            .find(|node| node.site == site)
            .with_context(|| format!("the lab has no site {}", site.node()))
    }

    fn node_mut(&mut self, site: LabSite) -> Result<&mut LabNode> {
        self.nodes
            .iter_mut()
            .find(|node| node.site == site)
            .with_context(|| format!("the lab has no site {}", site.node()))
    }
}

impl LabNode {
    fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop(ProcessSignal::Terminate)?;
        }
        let what = format!("the namespace {} to be empty", self.namespace);
        wait::until_removed(WATCHDOG_LIMIT, &what, || {
            // Nothing but this node and its watchdog ever runs there.
            let rest = run::processes_in(&self.namespace);
            for pid in &rest {
                let _ = kernel::send_signal(*pid, ProcessSignal::Terminate);
            }
            Ok(rest.is_empty().then_some(()))
        })
    }
}

impl Drop for LabNodes {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the nodes could not be stopped");
        }
    }
}

/// Tells whether `from` opens the connection to `to`: the near node dials, as a branch behind a NAT
/// does, and the others wait, as hubs do.
fn dials(from: LabSite, to: LabSite) -> bool {
    from == LabSite::Near && to != LabSite::Near
}

/// Tells whether all sessions are up and the kernel's rules, not only the node's intended ones,
/// cover every prefix behind them. Until then a connection would be bypassed.
fn is_serving(status: &Value) -> bool {
    let rules = &status["interception"];
    let taken = rules["destinations"].as_array();
    let is_taken = |prefix: &Value| taken.is_some_and(|taken| taken.contains(prefix));
    let serves = |peer: &Value| {
        peer["state"] == "up"
            && peer["prefixes"]
                .as_array()
                .is_some_and(|prefixes| prefixes.iter().all(is_taken))
    };
    status["dictionary"]["ready"] == true
        && rules["state"] == "in place"
        && status["peers"]
            .as_array()
            .is_some_and(|peers| !peers.is_empty() && peers.iter().all(serves))
}

fn status(program: &Path, configuration: &Path) -> Result<Value> {
    ask(program, configuration, &["status"])
}

/// Answer of `trunkline node QUESTION --json`.
fn ask(program: &Path, configuration: &Path, question: &[&str]) -> Result<Value> {
    let mut ask = command::new(program);
    ask.arg("node")
        .args(question)
        .args(["--json", "--config"])
        .arg(configuration);
    let text = command::finish("trunkline node", &mut ask, None)?;
    serde_json::from_str(&text).context("reading what a node says")
}

fn configuration_of(
    site: LabSite,
    topology: &LabTopology,
    state: &Path,
    extras: &ExtraConfiguration,
) -> String {
    let lines =
        |lines: &[String]| -> String { lines.iter().map(|line| format!("{line}\n")).collect() };
    let mut text = format!(
        "[node]\nname = \"{name}\"\nstate_directory = \"{state}\"\nlan_interfaces = [\"lan0\"]\n\
         metrics = \"127.0.0.1:9100\"\n{node}\
         \n[wan]\nlisten = \"0.0.0.0:{WAN_PORT}\"\n{wan}\n[intercept]\nmode = \"transparent\"\n\
         \n[policy]\n{policy}\n[credentials]\n{credentials}\n{accelerators}",
        name = site.node(),
        state = state.display(),
        node = lines(&extras.node),
        wan = lines(&extras.wan),
        policy = lines(&extras.policy),
        credentials = lines(&extras.credentials),
        accelerators = lines(&extras.accelerators),
    );
    for peer in topology.sites().iter().filter(|peer| {
        // Two servers' sites have nothing to say to each other.
        dials(site, **peer) || dials(**peer, site)
    }) {
        text += &format!("\n[[peer]]\nname = \"{}\"\n", peer.node());
        if dials(site, *peer) {
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
