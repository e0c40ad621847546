//! `trunkline node`: run a node, check its configuration, ask a running one.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use node::admin::{self, AdminRequest, tables};
use node::config::NodeConfig;
use node::preflight::CheckFindings;

const DEFAULT_CONFIG: &str = "/etc/trunkline/node.toml";

/// Runs a node, checks its configuration, asks a running one.
#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Runs a node until it is told to stop (SIGTERM; SIGHUP reads the configuration again).
    Run(NodeRunArguments),
    /// Checks a configuration and says what a node would do with it, here and now.
    Check(CheckArguments),
    /// Shows the state of a running node.
    Status(NodeTarget),
    /// Lists the flows of a running node.
    Flows(NodeTarget),
    /// Says what was done with a flow, what that saved, and if nothing, why not.
    Why(WhyArguments),
    /// Tells a running node to read its configuration and its pins again.
    Reload(ReloadArguments),
    /// Empties the dictionary of a running node, or removes what one of its accelerators keeps.
    Purge(PurgeArguments),
    /// Watches a node and takes its rules away when it cannot. Started by the node itself.
    #[command(hide = true)]
    Watchdog(WatchdogArguments),
}

#[derive(Debug, Args)]
struct NodeRunArguments {
    /// The node's configuration.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// When a watchdog started this node again, in seconds since 1970.
    #[arg(long, hide = true, value_delimiter = ',')]
    restarted_at: Vec<u64>,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// The configuration.
    #[arg(value_name = "FILE", default_value = DEFAULT_CONFIG)]
    file: PathBuf,
}

/// Which running node, and how it answers.
#[derive(Debug, Args)]
struct NodeTarget {
    /// The node's configuration, which names its administration socket.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Its administration socket, instead of its configuration.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ReloadArguments {
    /// Takes the configuration even if it removes peers that have flows, or seems to be cut off in front of peers.
    #[arg(long)]
    remove_peers: bool,
    /// Takes the configuration even if it lacks settings without which more is intercepted, served or stored.
    #[arg(long)]
    remove_restrictions: bool,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct PurgeArguments {
    /// The accelerator whose content is removed, such as `http`; without it the dictionary is emptied.
    #[arg(value_name = "ACCELERATOR")]
    accelerator: Option<String>,
    /// Removes only what is kept under names that begin so.
    #[arg(value_name = "PREFIX", requires = "accelerator")]
    prefix: Option<String>,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct WhyArguments {
    /// The flow's number, as `trunkline node flows` shows it.
    flow: u64,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct WatchdogArguments {
    /// The node whose rules are to be taken away.
    #[arg(long)]
    intercepting: Option<String>,
    #[arg(long, value_delimiter = ',')]
    restarted_at: Vec<u64>,
    /// How to start the node again; nothing when a service manager does that.
    #[arg(last = true)]
    restart: Vec<OsString>,
}

impl NodeArguments {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            NodeCommand::Run(command) => command.run(),
            NodeCommand::Check(command) => command.run(),
            NodeCommand::Status(ask) => ask.print(AdminRequest::Status, tables::status),
            NodeCommand::Flows(ask) => ask.print(AdminRequest::Flows, tables::flows),
            NodeCommand::Why(WhyArguments { flow, ask }) => {
                ask.print(AdminRequest::Why { flow }, tables::why)
            }
            NodeCommand::Reload(command) => command.run(),
            NodeCommand::Purge(command) => command.run(),
            NodeCommand::Watchdog(command) => command.run(),
        }
    }
}

impl NodeRunArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = self.config.clone();
        let watchdog_arguments = move |intercepting: Option<&str>| {
            let mut arguments: Vec<OsString> = ["node", "watchdog"].map(OsString::from).to_vec();
            if let Some(name) = intercepting {
                arguments.extend(["--intercepting", name].map(OsString::from));
            }
            if !self.restarted_at.is_empty() {
                arguments.push(restarted_at(&self.restarted_at));
            }
            if !node::restarts_us() {
                arguments.push("--".into());
                // The same command line, without what an earlier watchdog added to it.
                let same = env::args_os().skip(1);
                arguments.extend(same.filter(|argument| !is_restarted_at(argument)));
            }
            arguments
        };
        node::run(&node::RunOptions {
            config,
            watchdog_arguments: Box::new(watchdog_arguments),
        })?;
        Ok(())
    }
}

fn restarted_at(times: &[u64]) -> OsString {
    let times: Vec<String> = times.iter().map(u64::to_string).collect();
    format!("{RESTARTED_AT}={}", times.join(",")).into()
}

fn is_restarted_at(argument: &OsString) -> bool {
    argument
        .to_str()
        .is_some_and(|text| text.starts_with(RESTARTED_AT))
}

const RESTARTED_AT: &str = "--restarted-at";

impl CheckArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.file)?;
        show!("{}", node::preflight::describe(&config));
        let CheckFindings {
            mut obstacles,
            warnings,
        } = node::preflight::look(&config);
        if let Err(error) = node::preflight::look_at_secrets(&config) {
            obstacles.push(error.to_string());
        }
        if obstacles.is_empty() && warnings.is_empty() {
            say!("\nNothing stands in the way.");
            return Ok(());
        }
        say!("");
        for warning in &warnings {
            say!("warning: {warning}");
        }
        for obstacle in &obstacles {
            say!("error: {obstacle}");
        }
        // A check before `run`, as ExecStartPre makes it, must not pass then.
        ensure!(
            obstacles.is_empty(),
            "the node would not work: {}",
            obstacles.join("; ")
        );
        Ok(())
    }
}

impl NodeTarget {
    fn socket(&self) -> anyhow::Result<PathBuf> {
        match &self.socket {
            Some(socket) => Ok(socket.clone()),
            None => Ok(NodeConfig::load(&self.config)?.admin_socket),
        }
    }

    fn print(
        &self,
        request: AdminRequest,
        table: fn(&serde_json::Value) -> String,
    ) -> anyhow::Result<()> {
        let answer = admin::ask(&self.socket()?, request)?;
        if self.json {
            say!("{}", serde_json::to_string_pretty(&answer)?);
        } else {
            show!("{}", table(&answer));
        }
        Ok(())
    }

    fn order(&self, request: AdminRequest) -> anyhow::Result<serde_json::Value> {
        let answer = admin::ask(&self.socket()?, request)?;
        if self.json {
            say!("{answer}");
        }
        Ok(answer)
    }
}

impl ReloadArguments {
    fn run(self) -> anyhow::Result<()> {
        let answer = self.ask.order(AdminRequest::Reload {
            remove_peers: self.remove_peers,
            remove_restrictions: self.remove_restrictions,
        })?;
        let removed = answer["removed_peers"].as_array().into_iter().flatten();
        for peer in removed.filter_map(serde_json::Value::as_str) {
            remark!("Removed the peer {peer}: the configuration names it no more.");
        }
        let removed = answer["removed_restrictions"].as_array();
        for restriction in removed.into_iter().flatten() {
            if let Some(restriction) = restriction.as_str() {
                remark!("Removed {restriction}: the configuration does not have it any more.");
            }
        }
        if answer["is_beginning"] == true {
            remark!(
                "The configuration is the beginning of the one before. If it was cut off, put it right and reload again."
            );
        }
        Ok(())
    }
}

impl PurgeArguments {
    fn run(self) -> anyhow::Result<()> {
        let Some(accelerator) = self.accelerator else {
            return self.ask.order(AdminRequest::ClearDictionary).map(drop);
        };
        let answer = self.ask.order(AdminRequest::Purge {
            accelerator,
            prefix: self.prefix.unwrap_or_default(),
        })?;
        if !self.ask.json {
            let (entries, bytes) = (&answer["entries"], &answer["bytes"]);
            say!("Removed {entries} entries with {bytes} bytes of content.");
        }
        Ok(())
    }
}

impl WatchdogArguments {
    fn run(self) -> anyhow::Result<()> {
        node::watch(node::WatchdogOptions {
            intercepting_node: self.intercepting,
            restart: self.restart,
            restarts: self.restarted_at,
            restarts_option: RESTARTED_AT,
        })
        .context("the node cannot be started again")
    }
}
