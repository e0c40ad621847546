//! Fuzz entries of `node` for input from proxy clients: SOCKS5 and HTTP CONNECT.
//!
//! Both parsers are called again with every piece that arrives, so their results must not depend on
//! how a message was split: a complete message was incomplete before its last byte, and stays the
//! same whatever follows it.

use node::proxy::http_connect::{self, ConnectHead};
use node::proxy::socks5::{self, Socks5Parse};

use crate::seed::{CorpusSeed, seed};

/// A greeting and a request of SOCKS5.
pub(crate) fn socks5(bytes: &[u8]) {
    cut_anywhere(bytes, socks5::parse_greeting);
    cut_anywhere(bytes, socks5::parse_request);
}

fn cut_anywhere<T: PartialEq + std::fmt::Debug>(bytes: &[u8], parse: fn(&[u8]) -> Socks5Parse<T>) {
    let parsed = parse(bytes);
    match &parsed {
        Socks5Parse::Whole(_, length) => {
            assert!((1..=bytes.len()).contains(length));
            assert_eq!(parse(&bytes[..*length]), parsed);
            assert_eq!(parse(&bytes[..length - 1]), Socks5Parse::Incomplete);
        }
        Socks5Parse::Incomplete => {
            assert!(
                bytes.len() < socks5::LONGEST_MESSAGE,
                "a client could send for ever"
            );
        }
        Socks5Parse::Invalid(refusal) => drop(refusal.answer()),
    }
}

/// The head of a request for a tunnel.
pub(crate) fn http_connect(bytes: &[u8]) {
    let head = http_connect::parse_head(bytes);
    match &head {
        ConnectHead::Connect(_, port, length) => {
            assert_ne!(*port, 0);
            assert!((1..=bytes.len().min(http_connect::LONGEST_HEAD)).contains(length));
            assert_eq!(http_connect::parse_head(&bytes[..*length]), head);
            assert_eq!(
                http_connect::parse_head(&bytes[..length - 1]),
                ConnectHead::Incomplete
            );
        }
        ConnectHead::Incomplete => {
            assert!(
                bytes.len() < http_connect::LONGEST_HEAD,
                "a client could send for ever"
            );
        }
        ConnectHead::Refused(status) => assert!(status.answer().ends_with(b"\n")),
    }
}

/// Good inputs for [`socks5`].
pub(crate) fn socks5_seeds() -> Vec<CorpusSeed> {
    let name: &[u8] = &[5, 1, 0, 3, 9];
    let six: &[u8] = &[
        5, 1, 0, 4, 0x20, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1,
    ];
    vec![
        seed("greeting", [5, 1, 0]),
        seed("greeting-three-methods", [5, 3, 0, 1, 2]),
        seed("greeting-with-password", [5, 1, 2]),
        seed("connect-ipv4", [5, 1, 0, 1, 198, 18, 2, 2, 0, 80]),
        seed("connect-ipv6", [six, &[1, 187]].concat()),
        seed("connect-name", [name, b"localhost", &[0, 80]].concat()),
        seed("bind", [5, 2, 0, 1, 198, 18, 2, 2, 0, 80]),
        seed("socks4", [4, 1, 0, 80, 198, 18, 2, 2, 0]),
    ]
}

/// Good inputs for [`http_connect`].
pub(crate) fn http_connect_seeds() -> Vec<CorpusSeed> {
    let connect = "CONNECT files.example:443 HTTP/1.1\r\nHost: files.example:443\r\n\r\n";
    vec![
        seed("connect", connect),
        seed("connect-and-more", format!("{connect}\u{16}\u{3}\u{1}")),
        seed("address", "CONNECT 198.18.2.2:80 HTTP/1.0\r\n\r\n"),
        seed("ipv6", "CONNECT [2001:2:0:2::1]:80 HTTP/1.1\r\n\r\n"),
        seed("get", "GET http://files.example/ HTTP/1.1\r\n\r\n"),
        seed("no-port", "CONNECT files.example HTTP/1.1\r\n\r\n"),
        seed("cut", &connect.as_bytes()[..40]),
    ]
}
