//! Memory of keep-alive connections that have had an answer of the origin's and say nothing more.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::HttpChoice;
use super::report::CellFigures;
use super::stand::{HttpStand, LAN_LINK, NodeHttpMode};
use host::ProgramEnvironment;
use lab::topology::{LabSite, OffloadMode};

/// Connections that are opened and asked on before others are.
const AT_ONCE: usize = 250;
/// Connections before those that count: what a node allocates once is there then.
const BEFORE: usize = 250;
/// How long a node may take to give back what it needed for the answers.
const SETTLING: Duration = Duration::from_secs(5);

/// Room for that many flows of one client.
const LIMITS: [&str; 4] = [
    "[limits]",
    "flows = 20000",
    "source_flows_percent = 90",
    "peer_flows_percent = 90",
];

/// Measures the cell: the greater growth of the two nodes' resident memory by connection.
///
/// # Errors
/// When a connection fails.
pub(super) fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    step: &dyn Fn(&str),
) -> Result<CellFigures> {
    let mut stand = HttpStand::create(environment, OffloadMode::Kept, false)?;
    stand.set_link(&LAN_LINK.parse()?)?;
    stand.start_nodes(NodeHttpMode::On, &LIMITS.map(str::to_owned))?;
    let content = stand.origin().publish("/once/small", 1_000, 1)?;
    let mut connections = Vec::new();
    let mut open = |stand: &HttpStand, count: usize| -> Result<()> {
        let until = connections.len() + count;
        while connections.len() < until {
            let more = AT_ONCE.min(until - connections.len());
            let mut opened = stand.client().connect(more)?;
            for connection in &mut opened {
                connection.ask("/once/small")?;
            }
            for connection in &mut opened {
                connection.read(&content)?;
            }
            connections.append(&mut opened);
            step(&format!("{} connections", connections.len()));
        }
        thread::sleep(SETTLING);
        Ok(())
    };
    open(&stand, BEFORE)?;
    let before = resident(&mut stand)?;
    open(&stand, choice.connections)?;
    let after = resident(&mut stand)?;
    stand.check()?;
    let flows = stand.nodes().status(LabSite::Near)?["flows"].clone();
    let each = |at: usize| after[at].saturating_sub(before[at]) as f64 / choice.connections as f64;
    let mut figures = CellFigures::default();
    figures.add("idle_connection_bytes", each(0).max(each(1)));
    figures.raw = json!({
        "connections": choice.connections,
        "near_bytes_each": each(0),
        "far_bytes_each": each(1),
        "flows_at_near": flows,
        "before_bytes": before,
        "after_bytes": after,
    });
    Ok(figures)
}

/// Resident memory of the near and the far node, in bytes.
fn resident(stand: &mut HttpStand) -> Result<[u64; 2]> {
    let mut resident = [0; 2];
    for (bytes, site) in resident.iter_mut().zip([LabSite::Near, LabSite::Far]) {
        let process = stand.nodes().process(site)?.pid();
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        // proc_pid_status(5): VmRSS in kB.
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kibibytes: u64 = kibibytes
            .and_then(|number| number.parse().ok())
            .context("the kernel does not say what a node holds")?;
        *bytes = kibibytes * 1_024;
    }
    Ok(resident)
}
