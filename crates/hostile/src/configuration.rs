//! Entries of `node` for what people hand it as text, configuration and tokens, and for what a node
//! that wants to be paired says first.

use std::path::Path;

use node::config::NodeConfig;
use node::pairing::{InvitationToken, PairingRequest};
use vocab::{ByteWriter, NodeId};

use crate::seed::{CorpusSeed, seed};

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
    if let Ok(token) = InvitationToken::parse(text) {
        let shown = token.to_string();
        assert!(InvitationToken::parse(&shown).is_ok_and(|again| again == token));
    }
}

/// Pairing: the first message of an unknown node is either refused, or equal after it is read and
/// written again.
pub(crate) fn pairing(bytes: &[u8]) {
    if let Ok(request) = PairingRequest::parse(bytes) {
        let written = request.emit();
        assert!(PairingRequest::parse(&written).is_ok_and(|again| again == request));
    }
}

/// Good inputs for [`pairing`].
pub(crate) fn pairing_seeds() -> Vec<CorpusSeed> {
    let request = |version: u8, name: &str| {
        let mut writer = ByteWriter::new();
        writer
            .u8(version)
            .bytes(&[1; 16])
            .bytes(&[2; 32])
            .prefixed(name.as_bytes());
        writer.finish()
    };
    vec![
        seed("request", request(1, "near")),
        seed("later-version", request(9, "near")),
        seed("no-name", request(1, "")),
        seed("name-of-a-path", request(1, "../near")),
    ]
}

/// Good inputs for [`configuration`].
pub(crate) fn configuration_seeds() -> Vec<CorpusSeed> {
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
bypass_ports = [22, "8100-8199"]
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
pub(crate) fn token_seeds() -> Vec<CorpusSeed> {
    let token = InvitationToken {
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
