//! Finds the chains in the operator's own rulesets that drop or reject, for messages. Only a probe
//! can tell whether a packet really is dropped ([`super::probe`]).
//!
//! It reads `nft -j list ruleset`, which has the chains of nft, firewalld, iptables-nft and ufw,
//! and `iptables-legacy -S` where the kernel has tables of that kind.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::rules::TABLE_PREFIX;
use super::tool;

/// Chains that a chain may jump to, one after the other.
const JUMPS_MAX: usize = 64;

/// A base chain whose policy or rules drop or reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppingChain {
    kind: RuleSystem,
    /// Family, table and chain as nft has them, or the chain's name.
    place: String,
    has_drop_policy: bool,
    /// Rules that drop or reject, those of chains that it jumps to included.
    rules: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleSystem {
    Nft,
    Legacy,
}

impl DroppingChain {
    /// Family, table and chain, as commands of nft take them.
    pub(crate) fn nft_place(&self) -> Option<String> {
        (self.kind == RuleSystem::Nft).then(|| self.place.clone())
    }
}

impl fmt::Display for DroppingChain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut why = Vec::new();
        if self.has_drop_policy {
            why.push("policy drop".to_owned());
        }
        match self.rules {
            0 => {}
            1 => why.push("1 rule drops or rejects".to_owned()),
            rules => why.push(format!("{rules} rules drop or reject")),
        }
        write!(formatter, "{} ({})", self.place, why.join(", "))
    }
}

/// The chains at a hook that drop or reject; none where they cannot be read.
pub(crate) fn dropping_chains(hook: &str) -> Vec<DroppingChain> {
    let mut chains = Vec::new();
    let listed = tool("nft").args(["-j", "list", "ruleset"]).output();
    if let Ok(output) = listed
        && let Ok(ruleset) = serde_json::from_slice::<Value>(&output.stdout)
    {
        chains.extend(in_ruleset(&ruleset, hook));
    }
    for (file, program) in [
        ("/proc/net/ip_tables_names", "iptables-legacy"),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy"),
    ] {
        let names = std::fs::read_to_string(file).unwrap_or_default();
        if names.lines().any(|name| name == "filter")
            && let Ok(output) = tool(program).arg("-S").output()
        {
            let text = String::from_utf8_lossy(&output.stdout);
            chains.extend(in_legacy(program, &text, hook));
        }
    }
    chains
}

fn in_ruleset(ruleset: &Value, hook: &str) -> Vec<DroppingChain> {
    let entries = ruleset["nftables"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let chains = entries.iter().filter_map(|entry| entry.get("chain"));
    let mut found = Vec::new();
    for chain in chains.filter(|chain| chain["hook"] == hook && chain["type"] == "filter") {
        let table = chain["table"].as_str().unwrap_or("");
        let family = chain["family"].as_str().unwrap_or("");
        if table.starts_with(TABLE_PREFIX) || !["ip", "ip6", "inet"].contains(&family) {
            continue;
        }
        let name = chain["name"].as_str().unwrap_or("");
        let mut seen = BTreeSet::new();
        let rules = dropping_rules(entries, (family, table), name, &mut seen);
        let has_drop_policy = chain["policy"] == "drop";
        if has_drop_policy || rules > 0 {
            found.push(DroppingChain {
                kind: RuleSystem::Nft,
                place: format!("{family} {table} {name}"),
                has_drop_policy,
                rules,
            });
        }
    }
    found
}

/// Counts the rules that drop or reject in a chain and in the chains that it jumps to.
fn dropping_rules(
    entries: &[Value],
    (family, table): (&str, &str),
    chain: &str,
    seen: &mut BTreeSet<String>,
) -> usize {
    if seen.len() >= JUMPS_MAX || !seen.insert(chain.to_owned()) {
        return 0;
    }
    let is_ours = |entry: &&Value| entry["family"] == family && entry["table"] == table;
    let rules = entries.iter().filter_map(|entry| entry.get("rule"));
    let mut count = 0;
    for rule in rules
        .filter(is_ours)
        .filter(|rule| rule["chain"] == chain && !matches_invalid(&rule["expr"]))
    {
        let mut verdicts = RuleVerdicts::default();
        verdicts.collect(&rule["expr"]);
        // The verdicts of a named map.
        let maps = entries.iter().filter_map(|entry| entry.get("map"));
        for map in maps.filter(is_ours) {
            let name = map["name"].as_str().unwrap_or("");
            if verdicts.maps.contains(&format!("@{name}")) {
                verdicts.collect(&map["elem"]);
            }
        }
        count += usize::from(verdicts.drops);
        for target in verdicts.targets {
            count += dropping_rules(entries, (family, table), &target, seen);
        }
    }
    count
}

/// `ct state invalid drop` is no policy about connections: every ruleset has it.
fn matches_invalid(expressions: &Value) -> bool {
    let mut expressions = expressions.as_array().into_iter().flatten();
    expressions.any(|expression| {
        let matched = &expression["match"];
        matched["left"]["ct"]["key"] == "state"
            && (matched["right"] == "invalid" || matched["right"] == serde_json::json!(["invalid"]))
    })
}

/// The verdicts that the expressions of a rule can reach.
#[derive(Debug, Default)]
struct RuleVerdicts {
    drops: bool,
    targets: BTreeSet<String>,
    maps: BTreeSet<String>,
}

impl RuleVerdicts {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.collect(value)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    match key.as_str() {
                        "drop" | "reject" => self.drops = true,
                        "jump" | "goto" => {
                            self.targets
                                .extend(value["target"].as_str().map(str::to_owned));
                        }
                        // A target of iptables that nft has no words for.
                        "xt" => {
                            let name = value["name"].as_str().unwrap_or("");
                            self.drops |= ["DROP", "REJECT"].contains(&name);
                        }
                        _ => self.collect(value),
                    }
                }
            }
            Value::String(text) if text.starts_with('@') => {
                self.maps.insert(text.clone());
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Does the same for the output of `iptables-legacy -S`.
fn in_legacy(program: &str, text: &str, hook: &str) -> Option<DroppingChain> {
    let chain = hook.to_uppercase();
    let has_drop_policy = text.lines().any(|line| line == format!("-P {chain} DROP"));
    let mut chains = vec![chain.as_str()];
    let mut rules = 0;
    let mut next = 0;
    while next < chains.len().min(JUMPS_MAX) {
        let prefix = format!("-A {} ", chains[next]);
        next += 1;
        for rule in text.lines().filter_map(|line| line.strip_prefix(&prefix)) {
            let words: Vec<&str> = rule.split_whitespace().collect();
            if words.windows(2).any(|two| two == ["--ctstate", "INVALID"]) {
                continue;
            }
            let target = words
                .windows(2)
                .find(|two| two[0] == "-j" || two[0] == "-g")
                .map_or("", |two| two[1]);
            match target {
                "DROP" | "REJECT" => rules += 1,
                "" => {}
                target if !chains.contains(&target) => chains.push(target),
                _ => {}
            }
        }
    }
    (has_drop_policy || rules > 0).then(|| DroppingChain {
        kind: RuleSystem::Legacy,
        place: format!("{program} {chain}"),
        has_drop_policy,
        rules,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chain(table: &str, name: &str, hook: &str, policy: &str) -> Value {
        json!({ "chain": { "family": "inet", "table": table, "name": name, "type": "filter",
            "hook": hook, "prio": 0, "policy": policy } })
    }

    fn rule(table: &str, chain: &str, expressions: &Value) -> Value {
        json!({ "rule": { "family": "inet", "table": table, "chain": chain, "expr": expressions } })
    }

    fn found(entries: Vec<Value>, hook: &str) -> Vec<String> {
        let chains = in_ruleset(&json!({ "nftables": entries }), hook);
        chains.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn dropping_rules_are_found_at_their_hook() {
        let entries = vec![
            chain("fw", "forward", "forward", "drop"),
            chain("fw", "input", "input", "accept"),
            rule("fw", "input", &json!([{ "drop": null }])),
            rule(
                "fw",
                "forward",
                &json!([{ "reject": { "type": "tcp reset" } }]),
            ),
            chain("trunkline_hub", "input", "input", "drop"),
        ];
        assert_eq!(
            found(entries.clone(), "forward"),
            ["inet fw forward (policy drop, 1 rule drops or rejects)"]
        );
        assert_eq!(
            found(entries, "input"),
            ["inet fw input (1 rule drops or rejects)"]
        );
    }

    #[test]
    fn drops_behind_jumps_and_maps_are_found() {
        let entries = vec![
            chain("fw", "forward", "forward", "accept"),
            rule("fw", "forward", &json!([{ "jump": { "target": "zones" } }])),
            rule(
                "fw",
                "zones",
                &json!([{ "vmap": { "key": { "meta": { "key": "iifname" } }, "data": "@zone" } }]),
            ),
            rule("fw", "zones", &json!([{ "goto": { "target": "forward" } }])),
            json!({ "map": { "family": "inet", "table": "fw", "name": "zone",
                "elem": [["eth0", { "jump": { "target": "outside" } }]] } }),
            rule(
                "fw",
                "outside",
                &json!([{ "xt": { "type": "target", "name": "REJECT" } }]),
            ),
        ];
        assert_eq!(
            found(entries, "forward"),
            ["inet fw forward (1 rule drops or rejects)"]
        );
    }

    #[test]
    fn dropping_invalid_packets_is_no_policy() {
        let invalid = json!([
            { "match": { "op": "in", "left": { "ct": { "key": "state" } }, "right": "invalid" } },
            { "drop": null }
        ]);
        let entries = vec![
            chain("fw", "forward", "forward", "accept"),
            rule("fw", "forward", &invalid),
        ];
        assert!(found(entries, "forward").is_empty());
        let legacy = "-P FORWARD ACCEPT\n-A FORWARD -m conntrack --ctstate INVALID -j DROP\n";
        assert_eq!(in_legacy("iptables-legacy", legacy, "forward"), None);
    }

    #[test]
    fn legacy_rules_are_read_through_their_chains() {
        let text = "-P INPUT ACCEPT\n-P FORWARD DROP\n-N mine\n-A FORWARD -i eth1 -j mine\n-A mine -p tcp --dport 80 -j REJECT --reject-with tcp-reset\n-A mine -j FORWARD\n";
        let found = in_legacy("iptables-legacy", text, "forward").unwrap();
        assert_eq!(
            found.to_string(),
            "iptables-legacy FORWARD (policy drop, 1 rule drops or rejects)"
        );
        assert_eq!(in_legacy("iptables-legacy", text, "input"), None);
    }
}
