//! Entries of `node` for what people and other nodes hand it as text: configuration and tokens.

use std::path::Path;

use node::config::NodeConfig;
use node::pairing::Token;
use vocab::NodeId;

use crate::seed::{Seed, seed};

/// A configuration file with anything in it is understood or refused with a message.
pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = NodeConfig::parse(Path::new("node.toml"), text) {
        let shown = error.to_string();
        assert!(shown.contains("node.toml"), "{shown:?} does not say where");
    }
}

/// A token is read or refused; one that is read is shown and read again equal.
pub(crate) fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(token) = Token::parse(text) {
        let shown = token.to_string();
        assert!(Token::parse(&shown).is_ok_and(|again| again == token));
    }
}

/// Good inputs for [`configuration`].
pub(crate) fn configuration_seeds() -> Vec<Seed> {
    let small = r#"[node]
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
    let more = r#"
[proxy]
socks5 = "127.0.0.1:1080"

[dictionary]
memory = "256MiB"
disk = "4GiB"

[policy]
bypass_ports = [22]
"#;
    vec![
        seed("small", small),
        seed("larger", format!("{small}{more}")),
        seed("unknown-key", small.replace("listen", "listn")),
        seed("wrong-type", small.replace("\"transparent\"", "7")),
        seed("no-toml", "[node\n= é\n"),
        seed(
            "two-errors",
            small.replace("/24", "/240").replace("4433", "0"),
        ),
    ]
}

/// Good inputs for [`token`]; the checksum keeps a fuzzer from most others.
pub(crate) fn token_seeds() -> Vec<Seed> {
    let token = Token {
        secret: [7; 16],
        inviter: NodeId([9; 32]),
        inviter_name: "far".to_owned(),
        address: "198.18.12.2:4433".to_owned(),
        expires: 1_800_000_000,
    };
    let shown = token.to_string();
    vec![
        seed("whole", shown.clone()),
        seed("upper-case", shown.to_uppercase()),
        seed("in-two-lines", shown.replacen('a', "\n a", 1)),
        seed("cut", &shown.as_bytes()[..shown.len() - 3]),
    ]
}
