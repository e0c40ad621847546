//! HTTP CONNECT (RFC 9110 §9.3.6, RFC 9112 §3.2.3), and no other method.
//!
//! The parser is pure: it returns the meaning of the bytes so far, or that more are needed. It
//! skips header fields, because none changes the behaviour of a tunnel.

use engine::ConnectFailure;

use super::host::{ProxyTarget, parse_host};

/// The longest request head; browsers send some 500 bytes.
pub const LONGEST_HEAD: usize = 8 * 1024;

/// The parsed part of a request so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectHead {
    /// The beginning of a head.
    Incomplete,
    /// A whole one: where to, and its length in bytes.
    Connect(ProxyTarget, u16, usize),
    /// Something that is answered with this status and closed.
    Refused(ConnectStatus),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStatus {
    /// Not a request, or one whose target cannot be read.
    BadRequest,
    /// Another method.
    MethodNotAllowed,
    /// A head beyond [`LONGEST_HEAD`].
    TooLarge,
    /// A name that cannot be resolved.
    BadGateway,
}

impl ConnectStatus {
    /// The bytes to send before closing.
    #[must_use]
    pub fn answer(self) -> Vec<u8> {
        let (line, why) = match self {
            ConnectStatus::BadRequest => (
                "400 Bad Request",
                "the request is not valid; send CONNECT \
                HOST:PORT HTTP/1.1",
            ),
            ConnectStatus::MethodNotAllowed => (
                "405 Method Not Allowed",
                "this proxy accepts only CONNECT; configure the client to use CONNECT (curl: --proxytunnel)",
            ),
            ConnectStatus::TooLarge => (
                "431 Request Header Fields Too Large",
                "the head of the request is \
                longer than 8 KiB",
            ),
            ConnectStatus::BadGateway => {
                ("502 Bad Gateway", "the server's name cannot be resolved")
            }
        };
        let allow = match self {
            ConnectStatus::MethodNotAllowed => "Allow: CONNECT\r\n",
            ConnectStatus::BadRequest | ConnectStatus::TooLarge | ConnectStatus::BadGateway => "",
        };
        answer(line, allow, why)
    }
}

fn answer(line: &str, fields: &str, why: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {line}\r\n{fields}Content-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    )
    .into_bytes()
}

/// The answer to a CONNECT whose server's connection could not be opened (RFC 9110 §15.6).
#[must_use]
pub fn failure(failure: ConnectFailure) -> Vec<u8> {
    let (line, why) = match failure {
        ConnectFailure::Refused => ("502 Bad Gateway", "the server refused the connection"),
        ConnectFailure::Unreachable => ("502 Bad Gateway", "there is no route to the server"),
        ConnectFailure::TimedOut | ConnectFailure::AnswersElsewhere | ConnectFailure::Filtered => {
            ("504 Gateway Timeout", "the server did not answer")
        }
        ConnectFailure::NotPermitted => (
            "403 Forbidden",
            "the far node may not connect to the server",
        ),
        ConnectFailure::Exhausted => (
            "503 Service Unavailable",
            "the far node has reached a limit",
        ),
        ConnectFailure::Other => (
            "502 Bad Gateway",
            "the far node could not connect to the server",
        ),
    };
    answer(line, "", why)
}

/// The answer to a CONNECT that is taken up.
pub(crate) const SUCCESS: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// Reads a request's head.
#[must_use]
pub fn parse_head(bytes: &[u8]) -> ConnectHead {
    let considered = &bytes[..bytes.len().min(LONGEST_HEAD)];
    let Some(end) = considered.windows(4).position(|four| four == b"\r\n\r\n") else {
        if bytes.len() >= LONGEST_HEAD {
            return ConnectHead::Refused(ConnectStatus::TooLarge);
        }
        return ConnectHead::Incomplete;
    };
    let line_end = considered
        .windows(2)
        .position(|two| two == b"\r\n")
        .unwrap_or(end);
    let Ok(line) = std::str::from_utf8(&considered[..line_end]) else {
        return ConnectHead::Refused(ConnectStatus::BadRequest);
    };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return ConnectHead::Refused(ConnectStatus::BadRequest);
    };
    if !version.starts_with("HTTP/1.") {
        return ConnectHead::Refused(ConnectStatus::BadRequest);
    }
    if method != "CONNECT" {
        return ConnectHead::Refused(ConnectStatus::MethodNotAllowed);
    }
    match target_of(target) {
        Some((host, port)) => ConnectHead::Connect(host, port, end + 4),
        None => ConnectHead::Refused(ConnectStatus::BadRequest),
    }
}

/// The authority form: HOST:PORT, an IPv6 address in brackets.
fn target_of(target: &str) -> Option<(ProxyTarget, u16)> {
    let (host, port) = target.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    if let Some(inside) = host.strip_prefix('[') {
        let address = inside.strip_suffix(']')?.parse().ok()?;
        return Some((ProxyTarget::Address(address), port));
    }
    Some((parse_host(host.as_bytes())?, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_connect_names_its_target_and_its_length() {
        let head = b"CONNECT example.net:443 HTTP/1.1\r\nHost: example.net:443\r\n\r\nTLS";
        let host = ProxyTarget::Name("example.net".to_owned());
        assert_eq!(
            parse_head(head),
            ConnectHead::Connect(host, 443, head.len() - 3)
        );
        assert_eq!(parse_head(&head[..50]), ConnectHead::Incomplete);
        let six = b"CONNECT [2001:2::9]:80 HTTP/1.0\r\n\r\n";
        let address = ProxyTarget::Address("2001:2::9".parse().unwrap());
        assert_eq!(
            parse_head(six),
            ConnectHead::Connect(address, 80, six.len())
        );
    }

    #[test]
    fn invalid_requests_get_a_helpful_answer() {
        let get = b"GET http://example.net/ HTTP/1.1\r\n\r\n";
        assert_eq!(
            parse_head(get),
            ConnectHead::Refused(ConnectStatus::MethodNotAllowed)
        );
        for bad in [
            "CONNECT example.net HTTP/1.1\r\n\r\n",
            "CONNECT example.net:0 HTTP/1.1\r\n\r\n",
            "CONNECT [::1:80 HTTP/1.1\r\n\r\n",
            "CONNECT a:80\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert_eq!(
                parse_head(bad.as_bytes()),
                ConnectHead::Refused(ConnectStatus::BadRequest),
                "{bad}"
            );
        }
    }

    #[test]
    fn an_endless_head_is_cut_off() {
        let head = vec![b'a'; LONGEST_HEAD];
        assert_eq!(
            parse_head(&head),
            ConnectHead::Refused(ConnectStatus::TooLarge)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            line in "CONNECT [a-z:\\[\\]0-9. ]{0,40}HTTP/1.1\r\n\r\n",
        ) {
            let _ = parse_head(&bytes);
            let _ = parse_head(line.as_bytes());
        }
    }
}
