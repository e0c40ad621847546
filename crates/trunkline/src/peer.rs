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

/// Pairs two nodes with a one-time token, and lists or removes paired nodes.
#[derive(Debug, Args)]
pub(crate) struct PeerArguments {
    #[command(subcommand)]
    command: PeerCommand,
}

#[derive(Debug, Subcommand)]
enum PeerCommand {
    /// Prints a one-time token. The node that joins with this token within 15 minutes becomes a
    /// peer.
    Invite(InviteArguments),
    /// Pairs this node with the node that printed the token. The command reads the token from
    /// standard input.
    Join(JoinArguments),
    /// Lists the nodes that are paired with this node.
    List(ListArguments),
    /// Removes a paired node. If this node runs, it closes the session with the removed node
    /// immediately.
    Remove(RemoveArguments),
}

#[derive(Debug, Args)]
struct InviteArguments {
    /// Reads the configuration of this node from this file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Sets the address at which the other node can reach this node. The option --address is
    /// required if `listen` under [wan] names no address.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Sets the name of the [[peer]] section for the joining node [default: the name that the
    /// joining node has in its own configuration].
    #[arg(long, value_name = "PEER")]
    name: Option<String>,
}

#[derive(Debug, Args)]
struct JoinArguments {
    /// Reads the configuration of this node from this file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Sets the name of the [[peer]] section for the inviting node.
    #[arg(long, value_name = "PEER")]
    name: String,
}

#[derive(Debug, Args)]
struct ListArguments {
    /// Reads the configuration of this node from this file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Prints the list of peers as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RemoveArguments {
    /// Names the peer.
    name: String,
    /// Reads the configuration of this node from this file.
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
                "no node can join this node, because it has no [wan] listen; run `trunkline peer invite` on \
                 the other node, or write listen = \"0.0.0.0:4433\" under [wan]"
            );
        };
        let address = match self.address {
            Some(address) => address,
            None if listen.ip().is_unspecified() => bail!(
                "this node listens on all its addresses ({listen}); name the address that the other node \
                 can reach with --address HOST:{}",
                listen.port()
            ),
            None => listen.to_string(),
        };
        ensure!(
            node::config::is_host_and_port(&address),
            "`{address}` is not an address with a port; write an address such as \"198.51.100.7:4433\" or \
             \"[2001:db8::7]:4433\""
        );
        let identity = NodeIdentity::load_or_create(&config.state_directory)?;
        if let Some(name) = &self.name {
            warn_unless_configured(&config, name);
            let pins = PinDirectory::new(&config.state_directory).load()?;
            ensure!(
                !pins.contains_key(name),
                "`{name}` is paired already; to pair it again, run `trunkline peer remove {name}` first"
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
            "The token is valid once, for 15 minutes. Run this command on the other node: trunkline peer \
             join --name {} --config FILE",
            config.name
        );
        match admin::ask(&config.admin_socket, AdminRequest::Status) {
            Ok(_) => {}
            Err(AskError::NotRunning { .. }) => {
                remark!("This node is not running; start it before the other node joins.");
            }
            Err(error) => remark!(
                "The command could not find out if this node is running ({error}); the node must run before \
                 the other node joins."
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
            "Paired with {} ({}); the name in its own configuration is {}.",
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
                    "no: the configuration has no [[peer]] section for it, so it gets no session"
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
            "{} has no [[peer]] with the name `{name}`; the peer gets no session until you write this section.",
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
        Ok((None, None)) => remark!("The running node has applied this change."),
        Ok((None, Some(refused))) => {
            remark!(
                "The running node has applied this change, but there is a problem with its configuration: {refused}"
            );
        }
        Ok((Some(_), Some(refused))) => {
            remark!("The running node has not applied this change: {refused}")
        }
        Ok((Some(why_not), None)) => {
            remark!("The running node has not applied this change: {why_not}")
        }
        Err(AskError::NotRunning { .. }) => {
            remark!("No node is running now; the change takes effect when the node is started.");
        }
        Err(error) => remark!(
            "The running node could not be informed ({error}); correct this problem, and run `trunkline node reload`."
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
            "the node reports \"{error}\"; correct this problem, and run `trunkline node reload`"
        ));
    }
    Some(match expected {
        None => "the node still has the peer; `trunkline node status` and the node's log show why".to_owned(),
        Some(_) if entries("unpaired_peers").iter().any(|peer| peer == name) => {
            "the node found no pin; check that the node uses the state directory of this configuration".to_owned()
        }
        Some(_) if known.is_some() => {
            "the node has another identity under this name; the node's log shows why".to_owned()
        }
        Some(_) => format!(
            "the node's configuration has no [[peer]] with the name `{name}`; write this section, and run \
             `trunkline node reload`"
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
        assert!(paired.unwrap().contains("no [[peer]] with the name `far`"));
        let [paired, _] = with(far(NodeId([8; 32])), json!([]), json!([]));
        assert!(paired.unwrap().contains("another identity"));
        let damaged = json!([{ "peer": "far", "error": "cannot read far.json" }]);
        let [paired, _] = with(json!([]), json!(["far"]), damaged);
        assert!(paired.unwrap().contains("cannot read far.json"));
    }
}
