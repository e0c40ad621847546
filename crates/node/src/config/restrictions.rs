//! Settings that restrict interception, serving or storing.
//!
//! Their defaults allow more. A truncated file may lack them and still be valid, so their loss is
//! reported when a configuration is read again.

use super::NodeConfig;

impl NodeConfig {
    /// The restricting settings: their names in the configuration, and their numbers of entries.
    fn restrictions(&self) -> [(&'static str, usize); 8] {
        let policy = &self.policy;
        [
            ("[[intercept.rule]]", self.intercept.rules.len()),
            (
                "[intercept] only_marked",
                self.intercept.only_marked.iter().count(),
            ),
            // An empty list serves nothing; without a list there is a default.
            ("[policy] serve", self.serve.iter().count()),
            ("[[policy.serve_rule]]", policy.serve_rules.len()),
            ("[policy] bypass_ports", self.bypass_ports.len()),
            ("[policy] carry_only_ports", policy.carry_only_ports.len()),
            ("[policy] never_store", policy.never_store_prefixes.len()),
            ("[policy] never_store_ports", policy.never_store_ports.len()),
        ]
    }

    /// Returns the restrictions that `before` has and this configuration lacks, or, if this is a
    /// prefix of `before`, has fewer of.
    #[must_use]
    pub fn restrictions_lost_from(&self, before: &Self) -> Vec<String> {
        let is_cut = self.is_cut_from(before);
        let pairs = before.restrictions().into_iter().zip(self.restrictions());
        let lost = pairs
            .filter(|((_, before), (_, now))| *before > 0 && *now == 0 || is_cut && now < before);
        lost.map(|((name, before), (_, now))| match (before, now) {
            (0 | 1, _) => name.to_owned(),
            (before, 0) => format!("{name} ({before} entries)"),
            (before, now) => format!("{name} ({} of {before} entries)", before - now),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BEFORE: &str = r#"
        [node]
        name = "near"
        lan_interfaces = ["lan0"]
        [[peer]]
        name = "far"
        address = "192.0.2.1:4433"
        prefixes = ["203.0.113.0/24"]
        [intercept]
        mode = "transparent"
        only_marked = "0x1/0x1"
        [[intercept.rule]]
        ports = [80]
        action = "bypass"
        [[intercept.rule]]
        ports = [81]
        action = "bypass"
        [policy]
        bypass_ports = [22]
        carry_only_ports = [23]
        never_store = ["203.0.113.7"]
        never_store_ports = [5432]
        serve = []
        [[policy.serve_rule]]
        action = "refuse"
    "#;

    fn parse(text: &str) -> NodeConfig {
        NodeConfig::parse(Path::new("near.toml"), text).unwrap()
    }

    fn lost(text: &str) -> Vec<String> {
        parse(text).restrictions_lost_from(&parse(BEFORE))
    }

    /// [`BEFORE`] without this piece.
    fn without(piece: &str) -> String {
        assert!(BEFORE.contains(piece), "{piece}");
        BEFORE.replacen(piece, "", 1)
    }

    #[test]
    fn each_restriction_that_is_gone_is_named() {
        for (piece, name) in [
            ("only_marked = \"0x1/0x1\"", "[intercept] only_marked"),
            ("serve = []", "[policy] serve"),
            (
                "[[policy.serve_rule]]\n        action = \"refuse\"",
                "[[policy.serve_rule]]",
            ),
            ("bypass_ports = [22]", "[policy] bypass_ports"),
            ("carry_only_ports = [23]", "[policy] carry_only_ports"),
            ("never_store = [\"203.0.113.7\"]", "[policy] never_store"),
            ("never_store_ports = [5432]", "[policy] never_store_ports"),
        ] {
            assert_eq!(lost(&without(piece)), [name]);
        }
        let (first, rest) = BEFORE.split_once("[[intercept.rule]]").unwrap();
        let (_, policy) = rest.split_once("[policy]").unwrap();
        let without_rules = format!("{first}[policy]{policy}");
        assert_eq!(lost(&without_rules), ["[[intercept.rule]] (2 entries)"]);
    }

    #[test]
    fn edit_keeps_restrictions_and_truncation_loses_them() {
        assert_eq!(lost(BEFORE), [] as [String; 0]);
        let rule = "[[intercept.rule]]\n        ports = [81]\n        action = \"bypass\"";
        assert_eq!(lost(&without(rule)), [] as [String; 0]);
        let (cut, _) = BEFORE.split_once(rule).unwrap();
        let lost = lost(cut);
        assert_eq!(lost[0], "[[intercept.rule]] (1 of 2 entries)");
        assert!(lost.contains(&"[policy] serve".to_owned()), "{lost:?}");
    }
}
