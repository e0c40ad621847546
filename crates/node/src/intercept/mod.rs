//! Transparent interception: connections from the LAN side to peers' prefixes are taken from
//! their way, with both addresses kept, and everything else is left alone.
//!
//! ```text
//!   LAN ─► prerouting: socket transparent ─► ours already: mark, deliver locally
//!                      own addresses, bypassed ports, avoided servers ─► pass
//!                      SYN to a destination ─► tproxy to the listener, mark; or held before that until
//!                                              the server has answered (`held.rs`)
//!          ip rule: mark ─► table: everything is local
//! ```
//!
//! The rules live in one nftables table named after the node. They go with the node: it removes
//! them when it stops, the watchdog when it hangs or dies, and without a listener the kernel's
//! tproxy does not match anyway. One task makes all changes, each one atomic.

mod counters;
mod examine;
mod firewall_watch;
mod frame;
mod held;
mod listener;
mod manager;
mod operator_rules;
mod packet_log;
mod probe;
mod remedy;
mod routes;
mod rules;
mod syn_packet;
mod withdrawal;

pub(crate) use examine::examine;
pub use held::HoldPorts;
pub(crate) use held::{HeldSyns, Hold, attend};
pub(crate) use listener::{accept_intercepted, bind};
pub(crate) use manager::{Change, Report, SpoofedBlocked, manage, until_blocked};
pub use rules::{Contents, Ruleset, table_name};

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Removes a node's table, whoever left it there. Nothing happens if there is none.
///
/// # Errors
/// When nft cannot be run or refuses.
pub fn remove_table(node: &str) -> io::Result<()> {
    run_nft(&rules::removal(&table_name(node)))
}

/// The tables that nodes of this program have in place in this network namespace.
///
/// # Errors
/// When nft cannot be run or refuses.
pub(crate) fn tables_in_place() -> io::Result<Vec<String>> {
    let output = tool("nft")
        .args(["list", "tables", "inet"])
        .output()
        .map_err(|error| explain_missing("nft", error))?;
    if !output.status.success() {
        return Err(io::Error::other("nft cannot list its tables"));
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let names = listed.split_whitespace();
    Ok(names
        .filter(|name| name.starts_with(rules::TABLE_PREFIX))
        .map(str::to_owned)
        .collect())
}

/// Feeds nft a script, which it carries out as a whole or not at all.
///
/// # Errors
/// When nft cannot be run or refuses; with what it said.
pub(crate) fn run_nft(script: &str) -> io::Result<()> {
    let mut child = tool("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| explain_missing("nft", error))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "nft: {}",
        said.lines().next().unwrap_or("it failed without a word")
    )))
}

/// A system tool; services often run without the directories for administrators' tools.
fn tool(name: &str) -> Command {
    let place = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| std::path::Path::new(directory).join(name))
        .find(|path| path.exists());
    Command::new(place.unwrap_or_else(|| name.into()))
}

fn explain_missing(tool: &str, error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        let package = match tool {
            "nft" => "nftables",
            "iptables-legacy" => "iptables",
            _ => "iproute2",
        };
        return io::Error::new(
            error.kind(),
            format!("`{tool}` is not installed; install the package {package}"),
        );
    }
    error
}

/// Whether nft and ip are there; the names of those that are not.
#[must_use]
pub fn missing_tools() -> Vec<&'static str> {
    ["nft", "ip"]
        .into_iter()
        .filter(|name| tool(name).arg("-V").output().is_err())
        .collect()
}
