//! The rule and the route that deliver marked packets to this machine, in both families.
//!
//! Setting them twice and removing them when absent is safe. Without packets that carry the mark
//! they have no effect, so the ones that a killed node leaves behind are harmless, and its
//! successor takes them over. Nodes in one network namespace may share them; the last one removes
//! them.

use std::io;

use super::rules::MARK_MASK;
use super::{explain_missing, tool};
use crate::config::NodeConfig;

/// A policy rule and its table.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyRoute {
    pub(super) mark: u32,
    pub(super) mask: u32,
    pub(super) table: u32,
}

impl PolicyRoute {
    /// The policy route of this configuration.
    pub(super) fn new(config: &NodeConfig) -> Self {
        Self {
            mark: u32::from(config.intercept.mark) << 24,
            mask: MARK_MASK,
            table: config.intercept.route_table,
        }
    }

    /// Sets rules and routes.
    ///
    /// # Errors
    /// When IPv4 cannot be set up. A machine without IPv6 is logged and goes without.
    pub(super) fn set_up(&self) -> io::Result<()> {
        self.family("-4", "0.0.0.0/0")?;
        if let Err(error) = self.family("-6", "::/0") {
            tracing::warn!(%error, "the node does not intercept IPv6");
        }
        Ok(())
    }

    /// Removes them.
    pub(super) fn remove(&self) {
        for (family, everything) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
            let _ = ip(family, &self.rule("del"));
            let _ = ip(family, &self.route("del", everything));
        }
    }

    /// Returns true if the IPv4 rule and route are present.
    pub(super) fn is_in_place(&self) -> bool {
        let table = self.table.to_string();
        let shows = |arguments: &[&str]| {
            let output = tool("ip").arg("-4").args(arguments).output();
            output.is_ok_and(|output| !output.stdout.is_empty())
        };
        shows(&["rule", "show", "priority", &table]) && shows(&["route", "show", "table", &table])
    }

    fn family(&self, family: &str, everything: &str) -> io::Result<()> {
        match ip(family, &self.rule("add")) {
            Err(error) if error.to_string().contains("File exists") => {}
            added => added?,
        }
        ip(family, &self.route("replace", everything))
    }

    fn rule(&self, action: &str) -> Vec<String> {
        let mark = format!("{:#x}/{:#x}", self.mark, self.mask);
        let table = self.table.to_string();
        [
            "rule", action, "priority", &table, "fwmark", &mark, "lookup", &table,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn route(&self, action: &str, everything: &str) -> Vec<String> {
        let table = self.table.to_string();
        [
            "route", action, "local", everything, "dev", "lo", "table", &table,
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

fn ip(family: &str, arguments: &[String]) -> io::Result<()> {
    let output = tool("ip")
        .arg(family)
        .args(arguments)
        .output()
        .map_err(|error| explain_missing("ip", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let hint = if said.contains("Network is down") {
        " (is the loopback interface up? `ip link set lo up`)"
    } else {
        ""
    };
    Err(io::Error::other(format!(
        "ip {family} {}: {}{hint}",
        arguments.join(" "),
        said.trim()
    )))
}
