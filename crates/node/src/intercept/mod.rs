//! Transparent interception: connections from the LAN side to peers' prefixes are intercepted with
//! both addresses kept, and all other traffic passes.
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
mod guard;
mod held;
mod listener;
mod manager;
mod operator_rules;
mod packet_log;
mod probe;
mod remedy;
mod routes;
mod rules;
mod segment;
mod surviving;
mod surviving_flows;
mod syn_packet;
mod withdrawal;

pub(crate) use examine::examine;
pub use held::HoldPorts;
pub(crate) use held::{HeldSyns, HoldSockets, attend};
pub(crate) use listener::{accept_intercepted, bind};
pub(crate) use manager::{
    InterceptChange, InterceptReport, SpoofedBlocked, manage, until_blocked, until_judged,
};
pub use rules::{InterceptRuleset, TableContents, table_name};

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Removes a node's table, even one left by another process. A missing table is no error.
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

/// Runs an nft script, which is applied as a whole or not at all.
///
/// # Errors
/// When nft cannot be run or refuses; with what it said.
pub(crate) fn run_nft(script: &str) -> io::Result<()> {
    let mut nft = tool("nft");
    nft.args(["-f", "-"]);
    feed(nft, script).map_err(|error| explain_missing("nft", error))
}

/// Runs a command with this input. It always waits for the process, which would otherwise remain a
/// zombie.
fn feed(mut command: Command, input: &str) -> io::Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output()?;
    let name = Path::new(command.get_program());
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    if output.status.success() {
        return written.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{name} did not read its input: {error}"),
            )
        });
    }
    // A command that has failed says why; that it did not read to the end is no cause.
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(match said.lines().next() {
        Some(first) => format!("{name}: {first}"),
        None => format!("{name} failed without an error message ({})", output.status),
    }))
}

/// A system tool; services often run without the directories for administrators' tools.
fn tool(name: &str) -> Command {
    let place = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
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

/// Checks that nft and ip are installed. Returns the names of the missing tools.
#[must_use]
pub fn missing_tools() -> Vec<&'static str> {
    ["nft", "ip"]
        .into_iter()
        .filter(|name| tool(name).arg("-V").output().is_err())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]);
        shell
    }

    /// More than a pipe holds.
    fn long_input() -> String {
        "x".repeat(1 << 20)
    }

    #[test]
    fn command_that_dies_early_is_reaped_and_quoted() {
        let dies = shell("exec 0<&-; echo $$ is out of order >&2; exit 3");
        let error = feed(dies, &long_input()).unwrap_err().to_string();
        let words: Vec<&str> = error.split(' ').collect();
        let ["sh:", process, "is", "out", "of", "order"] = words.as_slice() else {
            panic!("{error}");
        };
        assert!(!Path::new("/proc").join(process).exists(), "a zombie");
    }

    #[test]
    fn silent_failing_command_reports_its_status() {
        let error = feed(shell("exec 0<&-; exit 3"), &long_input()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sh failed without an error message (exit status: 3)"
        );
    }

    #[test]
    fn command_that_ignores_its_input_fails() {
        let error = feed(shell("exec 0<&-"), &long_input()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
