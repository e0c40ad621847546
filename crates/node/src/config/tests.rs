//! The meaning of valid files, and the errors for invalid ones.

use engine::{AcceptMode, ServeAction};

use super::*;

const SMALL: &str = r#"
[node]
name = "near"
state_directory = "/var/lib/near"
lan_interfaces = ["lan0"]

[wan]
listen = "0.0.0.0:4433"

[intercept]
mode = "transparent"

[[peer]]
name = "far"
address = "198.18.12.2:4433"
prefixes = ["198.18.2.0/24", "2001:2:0:2::/64"]
"#;

fn parse(text: &str) -> Result<NodeConfig, ConfigError> {
    NodeConfig::parse(Path::new("near.toml"), text)
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_small_file_gets_the_documented_defaults() {
    let config = parse(SMALL).unwrap();
    assert_eq!(config.admin_socket, Path::new("/var/lib/near/admin.sock"));
    assert_eq!(config.grace, Duration::from_secs(10));
    assert_eq!(config.intercept.port, 4434);
    assert_eq!(config.wan.unsent, ByteCount::kibibytes(128));
    assert_eq!(config.dictionary.disk.to_string(), "4GiB");
    assert_eq!(config.peers[0].prefixes.len(), 2);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest() {
    let text = SMALL.replace("listen =", "listn =");
    let error = error(&text);
    assert!(
        error.starts_with(
            "near.toml:8:1: the key `listn` does not exist in this section; did you mean `listen`?"
        ),
        "{error}"
    );
    assert!(
        error.contains("8 | listn = \"0.0.0.0:4433\"\n  | ^^^^^"),
        "{error}"
    );
}

#[test]
fn credentials_are_files() {
    let text = format!("{SMALL}\n[credentials]\naccounts = \"/a\"\nkeytab = \"/k\"\n");
    let config = parse(&text).expect("a right file");
    assert_eq!(config.credentials.accounts, Some(PathBuf::from("/a")));
    assert_eq!(config.credentials.keytab, Some(PathBuf::from("/k")));
    let config = parse(SMALL).expect("a right file");
    assert_eq!(config.credentials, CredentialFiles::default());
}

#[test]
fn key_in_the_wrong_section_is_reported() {
    let error = error(&SMALL.replace("listen =", "metrics ="));
    assert!(
        error.contains("the key `metrics` belongs to another section"),
        "{error}"
    );
}

#[test]
fn size_without_unit_names_the_correction() {
    let error = error(&format!("{SMALL}\n[dictionary]\nmemory = \"12 parsec\"\n"));
    assert!(error.contains(":19:10:"), "{error}");
    assert!(error.contains("write it as \"1500B\""), "{error}");
}

#[test]
fn bare_number_for_a_time_is_refused() {
    let error = error(&SMALL.replace("lan_interfaces", "grace = \"10\"\nlan_interfaces"));
    assert!(
        error.contains("near.toml:5:9: `10` is not a time; write it as"),
        "{error}"
    );
}

#[test]
fn overlapping_prefixes_of_two_peers_are_refused() {
    let text = format!("{SMALL}\n[[peer]]\nname = \"third\"\nprefixes = [\"198.18.2.128/25\"]\n");
    let error = error(&text);
    assert!(
        error.contains("`198.18.2.128/25` overlaps `198.18.2.0/24` of peer `far`"),
        "{error}"
    );
    assert!(error.contains(":20:13:"), "{error}");
}

#[test]
fn host_bits_suggest_the_intended_prefix() {
    let error = error(&SMALL.replace("198.18.2.0/24", "198.18.2.7/24"));
    assert!(error.contains("did you mean `198.18.2.0/24`?"), "{error}");
}

#[test]
fn two_peers_of_one_name_are_refused() {
    let error = error(&format!("{SMALL}\n[[peer]]\nname = \"far\"\n"));
    assert!(
        error.contains("two [[peer]] sections have the name `far`"),
        "{error}"
    );
}

#[test]
fn peer_without_address_or_listener_is_refused() {
    let text = SMALL
        .replace("listen = \"0.0.0.0:4433\"", "")
        .replace("address = \"198.18.12.2:4433\"", "");
    assert!(error(&text).contains("no link to this peer is possible"));
}

#[test]
fn interception_without_a_lan_side_is_refused() {
    let text = SMALL.replace("lan_interfaces = [\"lan0\"]", "");
    assert!(error(&text).contains("lan_interfaces = [\"eth1\"]"));
}

#[test]
fn names_that_could_leave_their_directory_are_refused() {
    for name in ["../far", "", "Far", "7far", "a b", &"x".repeat(33)] {
        let text = SMALL.replace("name = \"far\"", &format!("name = \"{name}\""));
        assert!(error(&text).contains("a name must have 1 to 32"), "{name}");
    }
}

#[test]
fn addresses_need_host_and_port() {
    for address in ["198.18.12.2", "host:0", "ho st:1", ":4433", "host:65536"] {
        let text = SMALL.replace("198.18.12.2:4433", address);
        assert!(
            error(&text).contains("not an address with a port"),
            "{address}"
        );
    }
    assert!(is_host_and_port("[2001:db8::7]:4433"));
    assert!(is_host_and_port("hub.example.net:4433"));
}

#[test]
fn missing_name_and_broken_file_are_located() {
    assert!(error("[node]\n").contains("`name` is missing"));
    assert!(
        error("[node\n").contains("near.toml:1:6"),
        "{}",
        error("[node\n")
    );
}

/// The settings of an accelerator after SMALL with these lines, as they are printed.
fn printed(name: &str, lines: &str) -> Vec<String> {
    let config = parse(&format!("{SMALL}\n{lines}")).expect("a right file");
    let accelerators = config.policy.accelerators;
    let registered = accelerators.iter().find(|one| one.entry.name == name);
    let lines = registered.expect("it is registered").settings.lines();
    let lines = lines.iter().map(|(key, value)| format!("{key} = {value}"));
    lines.collect()
}

#[test]
fn an_accelerator_reads_its_own_table() {
    let lines = printed(
        "smb",
        "[smb]\nmode = \"relaxed\"\nrelaxed_staleness = \"250ms\"\n",
    );
    assert_eq!(lines[0], "mode = \"relaxed\"");
    assert_eq!(lines[1], "relaxed_staleness = \"250ms\"");
    assert_eq!(printed("smb", "")[0], "mode = \"off\"");
}

#[test]
fn wrong_accelerator_setting_is_located() {
    for (lines, place, said) in [
        ("[smb]\nmode = \"fast\"\n", ":19:8:", "\"strict\""),
        ("[smb]\nmode = 7\n", ":19:8:", "\"strict\""),
        ("[smb]\nmoed = \"off\"\n", ":19:1:", "did you mean `mode`?"),
        (
            "[smb]\nresign_gmac = \"yes\"\n",
            ":19:15:",
            "must be true or false",
        ),
        (
            "[smb]\nrelaxed_staleness = \"11s\"\n",
            ":19:21:",
            "write \"10s\" or less",
        ),
        ("[[smb]]\n", ":18:", "must be a table"),
        ("[sbm]\n", ":18:2:", "did you mean `smb`?"),
        ("[passthrough]\n", ":18:2:", "its keys are: node"),
    ] {
        let error = error(&format!("{SMALL}\n{lines}"));
        assert!(
            error.contains(place) && error.contains(said),
            "{lines}{error}"
        );
    }
}

#[test]
fn renamed_keys_are_refused_with_their_new_name() {
    for (was, section, is) in [
        ("smb", "smb", "mode"),
        ("smb_relaxed_staleness", "smb", "relaxed_staleness"),
        ("smb_channels", "smb", "channels"),
        ("smb_store_decrypted", "smb", "store_decrypted"),
        ("smb_resign_gmac", "smb", "resign_gmac"),
        ("smb_accounts", "credentials", "accounts"),
        ("smb_keytab", "credentials", "keytab"),
    ] {
        let error = error(&format!("{SMALL}\n[policy]\nserve = []\n{was} = \"x\"\n"));
        assert!(error.contains(":20:1:"), "{error}");
        let said = format!(
            "`{was}` is not a key of [policy] any more; write `{is}` under [{section}] instead"
        );
        assert!(error.contains(&said), "{error}");
    }
}

#[test]
fn accept_rules_say_when_whose_connections_are_accepted() {
    let text = format!(
        "{SMALL}\n[policy]\naccept = \"after-server\"\n[[policy.accept_rule]]\nclients = [\"198.18.1.0/25\", \"198.18.1.7\"]\nports = [\"8050-8099\", 443, \"8000-8060\"]\naccept = \"at-once\"\n"
    );
    let policy = parse(&text).unwrap().policy;
    assert_eq!(policy.accept, AcceptMode::AfterServer);
    let rule = &policy.accept_rules[0];
    // What nft would refuse as an overlap is made one.
    assert_eq!(rule.clients, ["198.18.1.0/25".parse().unwrap()]);
    assert_eq!(rule.ports, [443..=443, 8000..=8099]);
    assert_eq!(rule.mode, AcceptMode::AtOnce);
    assert_eq!(parse(SMALL).unwrap().policy.accept, AcceptMode::Learned);
}

#[test]
fn wrong_accept_rule_is_located() {
    let rule = |lines: &str| error(&format!("{SMALL}\n[[policy.accept_rule]]\n{lines}\n"));
    let text = rule("ports = [\"90-80\"]\naccept = \"at-once\"");
    assert!(text.contains("near.toml:19:10"), "{text}");
    assert!(text.contains("write 443 or \"8000-8099\""), "{text}");
    let text = rule("accept = \"after\"");
    assert!(text.contains("after-server"), "{text}");
    let text = rule("ports = [443]");
    assert!(text.contains("accept"), "{text}");
}

#[test]
fn serve_rules_have_the_grammar_of_intercept_rules() {
    let text = format!(
        "{SMALL}\n[policy]\nserve = [\"198.18.2.0/24\"]\n[[policy.serve_rule]]\nservers = [\"198.18.2.0/25\", \"198.18.2.7\"]\nports = [443, \"8000-8099\", \"8050-9000\"]\naction = \"accept\"\n[[policy.serve_rule]]\naction = \"refuse\"\n"
    );
    let rules = parse(&text).unwrap().policy.serve_rules;
    let [first, last] = rules.as_slice() else {
        panic!("{rules:?}");
    };
    assert_eq!(first.servers, ["198.18.2.0/25".parse().unwrap()]);
    assert_eq!(first.ports, [443..=443, 8000..=9000]);
    assert_eq!(first.action, ServeAction::Accept);
    assert!(first.clients.is_empty() && last.ports.is_empty());
    assert_eq!(last.action, ServeAction::Refuse);

    let wrong = |lines: &str| error(&format!("{SMALL}\n[[policy.serve_rule]]\n{lines}\n"));
    let text = wrong("action = \"bypass\"");
    assert!(
        text.contains("near.toml:19:10") && text.contains("refuse"),
        "{text}"
    );
    let text = wrong("ports = []\naction = \"refuse\"");
    assert!(text.contains("remove ports"), "{text}");
    let text = wrong("action = \"refuse\"\n[[policy.serve_rule]]\naction = \"accept\"");
    assert!(text.contains("this rule has no effect"), "{text}");
}

/// SMALL with this behind the mode of `[intercept]`, whose first line is the file's 13th.
fn with_interception(lines: &str) -> String {
    SMALL.replace(
        "mode = \"transparent\"\n",
        &format!("mode = \"transparent\"\n{lines}"),
    )
}

#[test]
fn surviving_connections_are_reset_only_if_named() {
    let config = parse(&with_interception("")).unwrap();
    assert_eq!(config.intercept.reset_surviving, None);
    let ports = "[intercept.reset_surviving]\nports = [445, \"139\", 446]\n";
    let config = parse(&with_interception(ports)).unwrap();
    let resets = config.intercept.reset_surviving.unwrap();
    assert_eq!(resets.idle, Duration::from_secs(15));
    assert_eq!(resets.after, Duration::from_secs(120));
    let expected = [(138, false), (139, true), (445, true), (446, true)];
    for (port, is_reset) in expected {
        assert_eq!(resets.has_port(port), is_reset, "{port}");
    }
    for (line, said) in [
        ("ports = []\n", "matches no connection"),
        ("ports = [445]\nidle = \"1s\"\n", "too short"),
        ("ports = [445]\nidle = \"2h\"\n", "watched"),
        ("ports = [445]\nafter = \"2h\"\n", "1800s"),
    ] {
        let section = format!("[intercept.reset_surviving]\n{line}");
        let error = error(&with_interception(&section));
        assert!(error.contains(said), "{line}{error}");
    }
}

#[test]
fn rules_about_interception_are_read_in_order() {
    let config = parse(&with_interception(
        "only_marked = \"0x1/0x1\"\n[[intercept.rule]]\nclients = [\"10.1.0.0/16\", \"10.0.0.0/8\"]\nports = [\"90-99\", 80, 100]\naction = \"bypass\"\n[[intercept.rule]]\naction = \"accept\"\n",
    ))
    .unwrap();
    let mark = config.intercept.only_marked.unwrap();
    assert_eq!((mark.value, mark.mask), (1, 1));
    let [first, last] = config.intercept.rules.as_slice() else {
        panic!("{:?}", config.intercept.rules);
    };
    assert_eq!(first.clients, ["10.0.0.0/8".parse().unwrap()]);
    let ports: Vec<String> = first.ports.iter().map(PortRange::to_string).collect();
    assert_eq!(ports, ["80", "90-100"]);
    assert_eq!(first.action, RuleAction::Bypass);
    assert_eq!(last.action, RuleAction::Accept);
    assert!(last.clients.is_empty() && last.servers.is_empty() && last.ports.is_empty());
}

#[test]
fn wrong_interception_rules_are_located() {
    for (lines, place, said) in [
        (
            "[[intercept.rule]]\naction = \"drop\"\n",
            ":13:10:",
            "`bypass`",
        ),
        (
            "[[intercept.rule]]\nports = [80]\n",
            ":12:1:",
            "`action` is missing",
        ),
        (
            "[[intercept.rule]]\naction = \"bypass\"\nports = [\"90-80\"]\n",
            ":14:10:",
            "neither a port nor a range",
        ),
        (
            "[[intercept.rule]]\naction = \"bypass\"\nclients = []\n",
            ":14:11:",
            "remove clients",
        ),
        (
            "[[intercept.rule]]\naction = \"bypass\"\nclient = [\"10.0.0.0/8\"]\n",
            ":14:1:",
            "did you mean `clients`?",
        ),
        (
            "[[intercept.rule]]\naction = \"bypass\"\nservers = [\"10.0.0.1/8\"]\n",
            ":14:11:",
            "did you mean `10.0.0.0/8`?",
        ),
        (
            "[[intercept.rule]]\naction = \"bypass\"\n[[intercept.rule]]\naction = \"accept\"\n",
            ":14:1:",
            "rule 1 above it matches every connection",
        ),
        (
            "only_marked = \"0x01000000/0xff000000\"\n",
            ":12:15:",
            "top byte",
        ),
    ] {
        let error = error(&with_interception(lines));
        assert!(
            error.contains(place) && error.contains(said),
            "{lines}{error}"
        );
    }
}

#[test]
fn lists_of_ports_take_ranges_everywhere() {
    let ports = "[22, \"8100-8199\"]";
    let text = format!(
        "{SMALL}\n[policy]\nbypass_ports = {ports}\ncarry_only_ports = {ports}\nnever_store_ports = {ports}\n"
    );
    let config = parse(&text).unwrap();
    let ranges = [22..=22, 8100..=8199];
    assert_eq!(config.bypass_ports, ranges);
    assert_eq!(config.policy.carry_only_ports, ranges);
    assert_eq!(config.policy.never_store_ports, ranges);
    let wrong = parse(&text.replace("8100-8199", "8199-8100")).unwrap_err();
    let text = wrong.to_string();
    assert!(
        text.contains("neither a port nor a range of ports"),
        "{text}"
    );
}
