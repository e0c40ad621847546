//! `trunkline peer`: pairs two nodes with a one-time token, lists and removes paired nodes.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use node::admin::{self, AdminRequest, AskError};
use node::config::NodeConfig;
use node::identity::NodeIdentity;
use node::pairing::{self, InvitationDirectory, InvitationToken, LoadedPins, PinDirectory};
use serde_json::Value;
use vocab::NodeId;

const DEFAULT_CONFIG: &str = "/etc/trunkline/node.toml";
/// Greatest length of the input; a token has about 170 characters.
const LONGEST_INPUT: u64 = 4096;

/// Pairs two nodes with a one-time token, lists and removes paired nodes.
#[derive(Debug, Args)]
pub(crate) struct PeerArguments {
    #[command(subcommand)]
    command: PeerCommand,
}

#[derive(Debug, Subcommand)]
enum PeerCommand {
    /// Prints a one-time token; the node that joins with it within 15 minutes becomes a peer.
    Invite(InviteArguments),
    /// Joins the node that printed the token; the token is read from standard input.
    Join(JoinArguments),
    /// Lists the paired nodes.
    List(ListArguments),
    /// Removes a paired node; a running node closes its session at once.
    Remove(RemoveArguments),
}

#[derive(Debug, Args)]
struct InviteArguments {
    /// Configuration file of this node.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Address at which the other node can reach this one; needed when [wan] listen names no
    /// address.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Name of the [[peer]] that will join; otherwise it is pinned under its own node name.
    #[arg(long, value_name = "PEER")]
    name: Option<String>,
}

#[derive(Debug, Args)]
struct JoinArguments {
    /// Configuration file of this node.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Name of the [[peer]] that invites.
    #[arg(long, value_name = "PEER")]
    name: String,
}

#[derive(Debug, Args)]
struct ListArguments {
    /// Configuration file of this node.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RemoveArguments {
    /// Name of the peer.
    name: String,
    /// Configuration file of this node.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

impl PeerArguments {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            PeerCommand::Invite(command) => command.run(),
            PeerCommand::Join(command) => command.run(),
            PeerCommand::List(command) => command.run(),
            PeerCommand::Remove(command) => command.run(),
        }
    }
}

impl InviteArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        let Some(listen) = config.wan.listen else {
            bail!(
                "this node listens nowhere, so nobody can join it; invite on the other node, or write listen = \"0.0.0.0:4433\" under [wan]"
            );
        };
        let address = match self.address {
            Some(address) => address,
            None if listen.ip().is_unspecified() => bail!(
                "this node listens on all its addresses ({listen}); say which one the other node can reach, with --address HOST:{}",
                listen.port()
            ),
            None => listen.to_string(),
        };
        ensure!(
            node::config::is_host_and_port(&address),
            "`{address}` is not HOST:PORT; write \"198.51.100.7:4433\" or \"[2001:db8::7]:4433\""
        );
        let identity = NodeIdentity::load_or_create(&config.state_directory)?;
        if let Some(name) = &self.name {
            warn_unless_configured(&config, name);
            let pins = PinDirectory::new(&config.state_directory).load()?;
            ensure!(
                !pins.contains_key(name),
                "`{name}` is paired already; run `trunkline peer remove {name}` first to pair it anew"
            );
        }
        let token = InvitationDirectory::new(&config.state_directory).invite(
            SystemTime::now(),
            identity.node(),
            &config.name,
            &address,
            self.name.as_deref(),
        )?;
        say!("{token}");
        remark!(
            "Good once, for 15 minutes. On the other node: trunkline peer join --name {} --config FILE",
            config.name
        );
        match admin::ask(&config.admin_socket, AdminRequest::Status) {
            Ok(_) => {}
            Err(AskError::NotRunning { .. }) => {
                remark!("This node is not running; start it before the other one joins.");
            }
            Err(error) => remark!(
                "Whether this node is running is not known ({error}); it must run before the other one joins."
            ),
        }
        Ok(())
    }
}

impl JoinArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        warn_unless_configured(&config, &self.name);
        let mut text = String::new();
        io::stdin()
            .take(LONGEST_INPUT)
            .read_to_string(&mut text)
            .context("cannot read the token from standard input")?;
        let token = InvitationToken::parse(&text)?;
        let identity = NodeIdentity::load_or_create(&config.state_directory)?;
        let pins = PinDirectory::new(&config.state_directory);
        let paired = pairing::join_blocking(&identity, &pins, &config.name, &self.name, &token)?;
        say!(
            "Paired with {} ({}), which calls itself {}.",
            paired.pin.name,
            paired.pin.node.short(),
            paired.calls_itself
        );
        let pin = &paired.pin;
        tell_running_node(&config.admin_socket, &pin.name, Some(pin.node));
        Ok(())
    }
}

impl ListArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        let LoadedPins { pins, damaged } = PinDirectory::new(&config.state_directory).load_all()?;
        for error in damaged.values() {
            remark!("warning: {error}");
        }
        if self.json {
            let pins: Vec<_> = pins.values().collect();
            say!("{}", serde_json::to_string_pretty(&pins)?);
            return Ok(());
        }
        say!("{:<32} {:<10} CONFIGURED", "PEER", "NODE");
        for pin in pins.values() {
            let configured = config.peers.iter().any(|peer| peer.name == pin.name);
            say!(
                "{:<32} {:<10} {}",
                pin.name,
                pin.node.short(),
                if configured {
                    "yes"
                } else {
                    "no: it has no [[peer]] section and gets no session"
                }
            );
        }
        for peer in &config.peers {
            if !pins.contains_key(&peer.name) {
                say!("{:<32} {:<10} yes, but not paired", peer.name, "-");
            }
        }
        Ok(())
    }
}

impl RemoveArguments {
    fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        PinDirectory::new(&config.state_directory).remove(&self.name)?;
        say!("Removed {}.", self.name);
        tell_running_node(&config.admin_socket, &self.name, None);
        Ok(())
    }
}

fn warn_unless_configured(config: &NodeConfig, name: &str) {
    if !config.peers.iter().any(|peer| peer.name == name) {
        remark!(
            "{} has no [[peer]] called `{name}`; it gets no session until you write one.",
            config.file.display()
        );
    }
}

/// Makes a running node reload its pins, and checks that this peer then has the expected identity,
/// or is gone.
fn tell_running_node(socket: &Path, name: &str, expected: Option<NodeId>) {
    let reload = AdminRequest::Reload {
        remove_peers: false,
        remove_restrictions: false,
    };
    // It reads its pins even where it refuses its configuration.
    let refused = match admin::ask(socket, reload) {
        Err(AskError::Refused(refused)) => Ok(Some(refused)),
        reloaded => reloaded.map(|_| None),
    };
    let told = refused.and_then(|refused| {
        let status = admin::ask(socket, AdminRequest::Status)?;
        Ok((what_it_knows(&status, name, expected), refused))
    });
    match told {
        Ok((None, None)) => remark!("The running node knows it now."),
        Ok((None, Some(refused))) => {
            remark!(
                "The running node knows it now. Its configuration is another matter: {refused}"
            );
        }
        Ok((Some(_), Some(refused))) => remark!("The running node does not know it: {refused}"),
        Ok((Some(why_not), None)) => remark!("The running node does not know it: {why_not}"),
        Err(AskError::NotRunning { .. }) => {
            remark!("No node runs here now; it will know when it is started.");
        }
        Err(error) => remark!(
            "The running node could not be told ({error}); run `trunkline node reload` when that is put right."
        ),
    }
}

/// Reason why a running node does not know about a pairing or its end, from its status; `None` if
/// it does.
fn what_it_knows(status: &Value, name: &str, expected: Option<NodeId>) -> Option<String> {
    let entries = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let peers = entries("peers");
    let known = peers.iter().find(|peer| peer["name"] == name);
    let known = known.and_then(|peer| peer["node"].as_str());
    if known == expected.map(|node| node.to_string()).as_deref() {
        return None;
    }
    let damaged = entries("damaged_pins");
    let damaged = damaged.iter().find(|pin| pin["peer"] == name);
    if let Some(error) = damaged.and_then(|pin| pin["error"].as_str()) {
        return Some(format!(
            "it says \"{error}\"; run `trunkline node reload` when that is put right"
        ));
    }
    Some(match expected {
        None => "it still has the peer; `trunkline node status` and its log say why".to_owned(),
        Some(_) if entries("unpaired_peers").iter().any(|peer| peer == name) => {
            "it found no pin; is its state directory the one of this configuration?".to_owned()
        }
        Some(_) if known.is_some() => {
            "it has another identity under this name; its log says why".to_owned()
        }
        Some(_) => format!(
            "its configuration has no [[peer]] called `{name}`; write one and run `trunkline node reload`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_running_node_knows_what_it_says_itself() {
        let node = NodeId([7; 32]);
        let with = |peers: Value, unpaired: Value, damaged: Value| {
            let status = json!({
                "peers": peers, "unpaired_peers": unpaired, "damaged_pins": damaged,
            });
            [Some(node), None].map(|expected| what_it_knows(&status, "far", expected))
        };
        let far = |node: NodeId| json!([{ "name": "far", "node": node.to_string() }]);
        let [paired, removed] = with(far(node), json!([]), json!([]));
        assert_eq!(paired, None);
        assert!(removed.unwrap().contains("still has the peer"));
        let [paired, removed] = with(json!([]), json!(["far"]), json!([]));
        assert!(paired.unwrap().contains("found no pin"));
        assert_eq!(removed, None);
        let [paired, _] = with(json!([]), json!([]), json!([]));
        assert!(paired.unwrap().contains("no [[peer]] called `far`"));
        let [paired, _] = with(far(NodeId([8; 32])), json!([]), json!([]));
        assert!(paired.unwrap().contains("another identity"));
        let damaged = json!([{ "peer": "far", "error": "cannot read far.json" }]);
        let [paired, _] = with(json!([]), json!(["far"]), damaged);
        assert!(paired.unwrap().contains("cannot read far.json"));
    }
}
