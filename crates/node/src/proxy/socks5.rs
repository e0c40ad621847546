//! SOCKS5 (RFC 1928), as far as a client without authentication needs it: CONNECT.
//!
//! The parsers are pure: they return the meaning of the bytes so far, or that more are needed.

use std::net::{Ipv4Addr, Ipv6Addr};

use engine::ConnectFailure;

use super::host::{ProxyTarget, parse_host};

/// The longest message: a request with a name of 255 bytes.
pub const LONGEST_MESSAGE: usize = 4 + 1 + 255 + 2;

/// The answer to a greeting: no authentication (RFC 1928 §3).
pub(crate) const CHOSE_NO_AUTHENTICATION: [u8; 2] = [5, 0];
/// The answer when the client insists on authentication.
pub(crate) const NO_ACCEPTABLE_METHOD: [u8; 2] = [5, 0xff];

/// The parsed part of a message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socks5Parse<T> {
    /// The beginning of a message.
    Incomplete,
    /// A whole one and its length in bytes.
    Whole(T, usize),
    /// Nothing that can be answered with success.
    Invalid(Socks5Refusal),
}

/// The reason why a client is refused; the numbers are the replies of RFC 1928 §6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socks5Refusal {
    /// Not SOCKS5: closed without an answer.
    NotSocks5,
    /// No method but "no authentication" is offered here.
    NoMethod,
    /// BIND or UDP ASSOCIATE.
    Command,
    /// An address type of no known kind.
    AddressType,
    /// A name that cannot be resolved.
    Unresolvable,
}

impl Socks5Refusal {
    /// The bytes to send before closing.
    #[must_use]
    pub fn answer(self) -> Vec<u8> {
        match self {
            Socks5Refusal::NotSocks5 => Vec::new(),
            Socks5Refusal::NoMethod => NO_ACCEPTABLE_METHOD.to_vec(),
            Socks5Refusal::Command => reply(7),
            Socks5Refusal::AddressType => reply(8),
            Socks5Refusal::Unresolvable => reply(4),
        }
    }
}

/// The answer to a CONNECT that is taken up.
#[must_use]
pub fn success() -> Vec<u8> {
    reply(0)
}

/// The answer to a CONNECT whose server's connection could not be opened (RFC 1928 §6).
#[must_use]
pub fn failure(failure: ConnectFailure) -> Vec<u8> {
    reply(match failure {
        // Connection not allowed by ruleset.
        ConnectFailure::NotPermitted => 2,
        // Host unreachable; there is no reply for a server that does not answer.
        ConnectFailure::Unreachable
        | ConnectFailure::TimedOut
        | ConnectFailure::AnswersElsewhere
        | ConnectFailure::Filtered => 4,
        // Connection refused.
        ConnectFailure::Refused => 5,
        // General SOCKS server failure.
        ConnectFailure::Exhausted | ConnectFailure::Other => 1,
    })
}

/// A reply (RFC 1928 §6) with an empty bound address, which clients of CONNECT do not use.
fn reply(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Reads a greeting (RFC 1928 §3): whether it offers to go without authentication.
#[must_use]
pub fn parse_greeting(bytes: &[u8]) -> Socks5Parse<()> {
    let Some(version) = bytes.first() else {
        return Socks5Parse::Incomplete;
    };
    if *version != 5 {
        return Socks5Parse::Invalid(Socks5Refusal::NotSocks5);
    }
    let Some(count) = bytes.get(1) else {
        return Socks5Parse::Incomplete;
    };
    let length = 2 + usize::from(*count);
    match bytes.get(2..length) {
        None => Socks5Parse::Incomplete,
        Some(methods) if methods.contains(&0) => Socks5Parse::Whole((), length),
        Some(_) => Socks5Parse::Invalid(Socks5Refusal::NoMethod),
    }
}

/// Reads a request (RFC 1928 §4).
#[must_use]
pub fn parse_request(bytes: &[u8]) -> Socks5Parse<(ProxyTarget, u16)> {
    let &[version, command, _, kind, ref rest @ ..] = bytes else {
        return match bytes.first() {
            Some(version) if *version != 5 => Socks5Parse::Invalid(Socks5Refusal::NotSocks5),
            Some(_) | None => Socks5Parse::Incomplete,
        };
    };
    if version != 5 {
        return Socks5Parse::Invalid(Socks5Refusal::NotSocks5);
    }
    if command != 1 {
        return Socks5Parse::Invalid(Socks5Refusal::Command);
    }
    let host = match kind {
        1 => rest
            .first_chunk::<4>()
            .map(|bytes| (ProxyTarget::Address(Ipv4Addr::from(*bytes).into()), 4)),
        4 => rest
            .first_chunk::<16>()
            .map(|bytes| (ProxyTarget::Address(Ipv6Addr::from(*bytes).into()), 16)),
        3 => match name(rest) {
            Ok(name) => name,
            Err(refusal) => return Socks5Parse::Invalid(refusal),
        },
        _ => return Socks5Parse::Invalid(Socks5Refusal::AddressType),
    };
    let Some((host, length)) = host else {
        return Socks5Parse::Incomplete;
    };
    match rest[length..].first_chunk::<2>() {
        Some(port) => Socks5Parse::Whole((host, u16::from_be_bytes(*port)), 4 + length + 2),
        None => Socks5Parse::Incomplete,
    }
}

/// A name with its length before it; an address written as a name is an address.
fn name(rest: &[u8]) -> Result<Option<(ProxyTarget, usize)>, Socks5Refusal> {
    let Some(length) = rest.first().map(|length| usize::from(*length)) else {
        return Ok(None);
    };
    let Some(bytes) = rest.get(1..=length) else {
        return Ok(None);
    };
    let host = parse_host(bytes).ok_or(Socks5Refusal::Unresolvable)?;
    Ok(Some((host, 1 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_needs_the_method_without_authentication() {
        assert_eq!(parse_greeting(&[5, 2, 2, 0]), Socks5Parse::Whole((), 4));
        assert_eq!(parse_greeting(&[5, 2, 2]), Socks5Parse::Incomplete);
        assert_eq!(
            parse_greeting(&[5, 1, 2]),
            Socks5Parse::Invalid(Socks5Refusal::NoMethod)
        );
        assert_eq!(
            parse_greeting(b"GET / HTTP/1.1"),
            Socks5Parse::Invalid(Socks5Refusal::NotSocks5)
        );
    }

    #[test]
    fn requests_name_a_host_in_three_ways() {
        let v4 = [5, 1, 0, 1, 198, 18, 2, 2, 0, 80];
        let address = ProxyTarget::Address("198.18.2.2".parse().unwrap());
        assert_eq!(parse_request(&v4), Socks5Parse::Whole((address, 80), 10));

        let mut v6 = vec![5, 1, 0, 4];
        v6.extend("2001:2::9".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([1, 189]);
        let address = ProxyTarget::Address("2001:2::9".parse().unwrap());
        assert_eq!(parse_request(&v6), Socks5Parse::Whole((address, 445), 22));

        let mut named = vec![5, 1, 0, 3, 7];
        named.extend(b"example");
        named.extend([0, 80, 99]);
        let name = ProxyTarget::Name("example".to_owned());
        assert_eq!(parse_request(&named), Socks5Parse::Whole((name, 80), 14));
        assert_eq!(parse_request(&named[..9]), Socks5Parse::Incomplete);
    }

    #[test]
    fn unsupported_requests_get_the_specified_reply() {
        let bind = [5, 2, 0, 1, 0, 0, 0, 0, 0, 0];
        let Socks5Parse::Invalid(refusal) = parse_request(&bind) else {
            panic!("BIND was taken");
        };
        assert_eq!(refusal.answer()[1], 7);
        assert_eq!(
            parse_request(&[5, 1, 0, 9, 0]),
            Socks5Parse::Invalid(Socks5Refusal::AddressType)
        );
        assert_eq!(
            parse_request(&[5, 1, 0, 3, 2, b'a', b'\n', 0, 80]),
            Socks5Parse::Invalid(Socks5Refusal::Unresolvable)
        );
    }

    #[test]
    fn refusal_and_timeout_have_different_replies() {
        assert_eq!(failure(ConnectFailure::Refused)[1], 5);
        assert_eq!(failure(ConnectFailure::TimedOut)[1], 4);
        assert_eq!(failure(ConnectFailure::NotPermitted)[1], 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Socks5Parse::Whole(_, length) = parse_greeting(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            if let Socks5Parse::Whole(_, length) = parse_request(&bytes) {
                prop_assert!(length <= bytes.len() && length <= LONGEST_MESSAGE);
            }
        }
    }
}
