//! The report of `trunkline node check` about the packet filter of this machine: the intercepted
//! connections that it drops, and the operator's rules that they would skip.

use std::collections::BTreeMap;

use super::firewall_watch::{AddressFamily, PacketDirection};
use super::operator_rules::{DroppingChain, dropping_chains};
use super::probe::{ProbeFinding, ProbeOutcome, ProbePlan, probe};
use super::remedy;
use crate::config::NodeConfig;

/// Examines the packet filter with a probe. Returns each problem with its remedy.
pub(crate) fn examine(config: &NodeConfig) -> Vec<String> {
    let mut problems = Vec::new();
    let plan = ProbePlan::new(config);
    if !plan.destinations.is_empty() {
        match probe(&plan) {
            Ok(findings) => problems.extend(losses(&plan, &findings)),
            Err(error) => problems.push(format!(
                "no probe could be sent through the packet filter ({error}), so it is unknown whether the \
                 packet filter drops intercepted connections; probes need `nft`, `ip` and `tc`, veth \
                 devices, and the kernel modules sch_ingress, cls_u32 and act_mirred"
            )),
        }
    }
    if config.intercept.only_marked.is_none() && config.intercept.rules.is_empty() {
        problems.extend(skipped(&dropping_chains("forward")));
    }
    problems
}

/// One problem for each interface, family and place where SYNs were lost.
fn losses(plan: &ProbePlan, findings: &[ProbeFinding]) -> Vec<String> {
    let mut lost: BTreeMap<(&str, AddressFamily, Option<PacketDirection>), Vec<&ProbeFinding>> =
        BTreeMap::new();
    for finding in findings {
        let way = match finding.outcome {
            ProbeOutcome::Passed => continue,
            ProbeOutcome::NotTaken => None,
            ProbeOutcome::Lost(way) => Some(way),
        };
        let family = match finding.server.is_ipv4() {
            true => AddressFamily::Ipv4,
            false => AddressFamily::Ipv6,
        };
        let key = (finding.interface.as_str(), family, way);
        lost.entry(key).or_default().push(finding);
    }
    lost.into_iter()
        .map(|((interface, family, way), findings)| {
            let (client, server) = (findings[0].client, findings[0].server);
            let probe = format!("a SYN from {client} at `{interface}` to {server}");
            let more = match findings.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            match way {
                None => format!(
                    "{probe}{more} is lost before the node can intercept it: the interface is down, or a \
                     rule at hook prerouting or ingress drops the SYN (look at `nft list ruleset` and \
                     `iptables-legacy -t raw -S`)"
                ),
                Some(way) => blocked(plan, &format!("{probe}{more}"), family, way),
            }
        })
        .collect()
}

fn blocked(plan: &ProbePlan, probe: &str, family: AddressFamily, way: PacketDirection) -> String {
    let chains = dropping_chains(way.hook());
    let suspects = match listed(&chains) {
        None if way.hook() == "input" => {
            "no chain at this hook drops packets, so look at strict reverse \
                                          path filtering (rp_filter = 1) and at `ip rule`"
                .to_owned()
        }
        None => "no chain at this hook drops packets".to_owned(),
        Some(list) => format!("these chains drop packets there: {list}"),
    };
    let places: Vec<String> = chains.iter().filter_map(DroppingChain::nft_place).collect();
    let commands = remedy::commands(way, family, plan.delivery.mark, &plan.destinations, &places);
    format!(
        "{probe}: {} ({}), because this machine drops the packets at hook {}; {suspects}. A running node \
         would stop intercepting {}. One of these commands allows the packets:\n    {}",
        way.what(),
        family.name(),
        way.hook(),
        family.name(),
        commands.join("\n    ")
    )
}

/// Intercepted connections are delivered to this machine and never forwarded.
fn skipped(chains: &[DroppingChain]) -> Option<String> {
    let list = listed(chains)?;
    Some(format!(
        "the kernel does not forward intercepted connections, so the rules at hook forward do not apply to \
         them: {list}; exclude connections from interception with [[intercept.rule]], or let your own rules \
         mark the connections that may be intercepted and write the mark in [intercept] only_marked \
         (docs/guides/node.md, \"Behind a packet filter\")"
    ))
}

fn listed(chains: &[DroppingChain]) -> Option<String> {
    let texts: Vec<String> = chains.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
