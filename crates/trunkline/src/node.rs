//! `trunkline node`: runs a node, checks its configuration, queries a running node.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use node::admin::{self, AdminRequest, tables};
use node::config::NodeConfig;
use node::preflight::CheckFindings;

use crate::http_status;

const DEFAULT_CONFIG: &str = "/etc/trunkline/node.toml";

/// Runs a node, checks its configuration, or queries a running node.
#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Runs a node. SIGTERM stops the node, and SIGHUP makes it reload its configuration.
    Run(NodeRunArguments),
    /// Checks a configuration file, and shows how a node on this host would use it.
    Check(CheckArguments),
    /// Shows the state of a running node.
    Status(StatusArguments),
    /// Lists the flows of a running node.
    Flows(NodeTarget),
    /// Explains what the node did with a flow and how many bytes it saved, or why it saved nothing.
    Why(WhyArguments),
    /// Makes a running node reload its configuration and its pins.
    Reload(ReloadArguments),
    /// Empties the dictionary of a running node, or removes the stored content of one of its
    /// accelerators.
    Purge(PurgeArguments),
    /// Removes the interception rules of a node that hangs or has ended. The node itself starts
    /// this hidden command.
    #[command(hide = true)]
    Watchdog(WatchdogArguments),
}

#[derive(Debug, Args)]
struct NodeRunArguments {
    /// Reads the configuration of the node from this file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Lists the times at which a watchdog restarted this node, in seconds since 1970.
    #[arg(long, hide = true, value_delimiter = ',')]
    restarted_at: Vec<u64>,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// Names the configuration file to check.
    #[arg(value_name = "FILE", default_value = DEFAULT_CONFIG)]
    file: PathBuf,
}

/// Running node to query, and the form of its answer.
#[derive(Debug, Args)]
struct NodeTarget {
    /// Reads this configuration file to find the node's administration socket.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Connects to the node at this administration socket, instead of the socket in the
    /// configuration file.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Prints the answer of the node as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct StatusArguments {
    /// Shows the results for HTTP requests: cache hit ratios, saved bytes, and the slowest origin
    /// servers.
    #[arg(long)]
    http: bool,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct ReloadArguments {
    /// Accepts the new configuration even if the configuration removes peers that have flows, or if
    /// the file looks truncated before its [[peer]] sections.
    #[arg(long)]
    remove_peers: bool,
    /// Accepts the new configuration even if the configuration removes restrictions, so that the
    /// node would intercept, serve or store more than before.
    #[arg(long)]
    remove_restrictions: bool,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct PurgeArguments {
    /// Removes the stored content of this accelerator, for example `http`. Without ACCELERATOR, the
    /// node empties its dictionary.
    #[arg(value_name = "ACCELERATOR")]
    accelerator: Option<String>,
    /// Removes only stored content whose name begins with this prefix. For the accelerator `http`,
    /// the name of the content is the URL.
    #[arg(value_name = "PREFIX", requires = "accelerator")]
    prefix: Option<String>,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct WhyArguments {
    /// Gives the number of the flow, as `trunkline node flows` shows it.
    flow: u64,
    #[command(flatten)]
    ask: NodeTarget,
}

#[derive(Debug, Args)]
struct WatchdogArguments {
    /// Names the node whose interception rules are removed.
    #[arg(long)]
    intercepting: Option<String>,
    #[arg(long, value_delimiter = ',')]
    restarted_at: Vec<u64>,
    /// Sets the command that starts the node again. The command is empty if a service manager
    /// starts the node again.
    #[arg(last = true)]
    restart: Vec<OsString>,
}

impl NodeArguments {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            NodeCommand::Run(command) => command.run(),
            NodeCommand::Check(command) => command.run(),
            NodeCommand::Status(command) => command.run(),
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
            say!("\nThe node can start: no problem was found.");
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
            "the node cannot work with this configuration on this machine: {}",
            obstacles.join("; ")
        );
        Ok(())
    }
}

impl StatusArguments {
    fn run(self) -> anyhow::Result<()> {
        if !self.http {
            return self.ask.print(AdminRequest::Status, tables::status);
        }
        let status = admin::ask(&self.ask.socket()?, AdminRequest::Status)?;
        let summary = http_status::summary(&status);
        if self.ask.json {
            say!("{}", serde_json::to_string_pretty(&summary)?);
        } else {
            show!("{}", http_status::table(&summary));
        }
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
            remark!(
                "Removed the peer {peer}, because the configuration has no section for it any more."
            );
        }
        let removed = answer["removed_restrictions"].as_array();
        for restriction in removed.into_iter().flatten() {
            if let Some(restriction) = restriction.as_str() {
                remark!(
                    "Removed the restriction {restriction}, because the configuration does not contain \
                         it any more."
                );
            }
        }
        if answer["is_beginning"] == true {
            remark!(
                "The new configuration file contains only the beginning of the old one. If it was \
                 truncated, correct it and reload again."
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
        let prefix = self.prefix.unwrap_or_default();
        let answer = self.ask.order(AdminRequest::Purge {
            accelerator,
            prefix: prefix.clone(),
        })?;
        if !self.ask.json {
            let count = |key: &str, one: &str, many: &str| match answer[key].as_u64() {
                Some(1) => format!("1 {one}"),
                count => format!("{} {many}", count.unwrap_or_default()),
            };
            let entries = count("entries", "entry", "entries");
            say!(
                "Removed {entries} with {} of content.",
                count("bytes", "byte", "bytes")
            );
            if answer["entries"] == 0 && !prefix.is_empty() {
                remark!(
                    "The name of no stored content begins with {}. For http, the name is the whole URL from its \
                     scheme on, for example http://intranet/news/. The path is case-sensitive.",
                    vocab::printable(&prefix)
                );
            }
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
