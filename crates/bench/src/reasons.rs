//! A node's own account of its acceleration of a flow, and the load of this machine.

use std::fs;

use anyhow::{Context, Result};
use lab::nodes::LabNodes;
use lab::topology::LabSite;
use serde::Serialize;
use serde_json::Value;

/// The accelerate stage of `trunkline node why`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccelerationReason {
    /// The accelerator, in the node's words.
    pub did: String,
    /// Number of requests that it has answered on this side of the WAN.
    pub answered: u64,
    /// Reason why it did nothing, or no more.
    pub why_not: Option<String>,
    /// Change that would help.
    pub remedy: Option<String>,
}

/// Accelerate stage of the near node for the newest flow to a port of a server.
///
/// # Errors
/// Fails when the node does not answer or has seen no such flow.
pub(crate) fn newest_why(nodes: &LabNodes, port: u16) -> Result<AccelerationReason> {
    let flow = flows_to_port(nodes, port)?.into_iter().max();
    let flow =
        flow.with_context(|| format!("no flow to port {port} went through the near node"))?;
    why_of(nodes, flow)
}

/// Numbers of the near node's flows to a port of a server.
///
/// # Errors
/// Fails when the node does not answer.
pub(crate) fn flows_to_port(nodes: &LabNodes, port: u16) -> Result<Vec<u64>> {
    let port = format!(":{port}");
    let flows = nodes.flows(LabSite::Near)?;
    Ok(flows
        .iter()
        .filter(|flow| {
            flow["server"]
                .as_str()
                .is_some_and(|server| server.ends_with(&port))
        })
        .filter_map(|flow| flow["flow"].as_u64())
        .collect())
}

/// Accelerate stage of the near node for a flow.
///
/// # Errors
/// Fails when the node does not answer.
pub(crate) fn why_of(nodes: &LabNodes, flow: u64) -> Result<AccelerationReason> {
    let why = nodes.why(LabSite::Near, flow)?;
    let stages = why["stages"].as_array();
    let stage = stages
        .into_iter()
        .flatten()
        .find(|stage| stage["stage"] == "accelerate");
    Ok(stage.map(AccelerationReason::of).unwrap_or_default())
}

impl AccelerationReason {
    /// Reads the stage: `smb: 12 requests answered on this side of the WAN`, or a name alone.
    fn of(stage: &Value) -> Self {
        let text = |key: &str| stage[key].as_str().map(str::to_owned);
        let did = text("did").unwrap_or_default();
        let (name, answered) = did.split_once(": ").unwrap_or((&did, ""));
        let count = answered.split(' ').next().unwrap_or_default();
        Self {
            did: name.to_owned(),
            answered: count.parse().unwrap_or_default(),
            why_not: text("why_not"),
            remedy: text("remedy"),
        }
    }
}

/// proc_loadavg(5): the first field is the minute's.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_stage_tells_what_was_answered() {
        let stage = json!({ "did": "smb: 12 requests answered on this side of the WAN" });
        let why = AccelerationReason::of(&stage);
        assert_eq!((&why.did[..], why.answered), ("smb", 12));
        let why = AccelerationReason::of(&json!({ "did": "passthrough", "why_not": "signed" }));
        assert_eq!((&why.did[..], why.answered), ("passthrough", 0));
        assert_eq!(why.why_not.as_deref(), Some("signed"));
    }
}
