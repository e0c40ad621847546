//! The key of a stored response: the server that was asked, the scheme, host and target.
//!
//! The server's address is part of the key. A client can name any Host to any server, and would otherwise
//! put its own server's answer in the place of another host's.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::http::wire::RequestHead;

/// The scheme of a connection's URLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UrlScheme {
    /// Over TCP alone.
    #[default]
    Http,
    /// Inside TLS.
    Https,
}

impl UrlScheme {
    /// The beginning of its URLs.
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Http => b"http://",
            Self::Https => b"https://",
        }
    }

    /// The port that need not be written.
    fn default_port(self) -> &'static [u8] {
        match self {
            Self::Http => b":80",
            Self::Https => b":443",
        }
    }

    /// The scheme of a key's URL.
    fn of(url: &[u8]) -> Self {
        match url.starts_with(b"https://") {
            true => Self::Https,
            false => Self::Http,
        }
    }
}

/// The key of a response, without what Vary adds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheKey {
    /// Where the request went.
    pub(crate) server: SocketAddr,
    /// `http://host/path?query` or with `https`, the host in lower case and without the default port.
    pub(crate) url: Bytes,
}

impl CacheKey {
    /// The key of a request to this server; `None` where its URL has two readings, so that neither the
    /// request nor its response takes part in caching.
    pub(crate) fn of(server: SocketAddr, scheme: UrlScheme, head: &RequestHead) -> Option<Self> {
        let host = head.fields.single("host").unwrap_or_default();
        let host = authority(scheme, host)?;
        let target = head.target();
        let path = match target.strip_prefix(b"/") {
            Some(_) => target,
            None => {
                // Absolute form (RFC 9112 §3.2.2): servers differ in whether it or Host counts.
                let prefix = scheme.prefix();
                let (named, rest) = target.split_at_checked(prefix.len())?;
                named.eq_ignore_ascii_case(prefix).then_some(())?;
                let end = rest.iter().position(|byte| *byte == b'/')?;
                (authority(scheme, &rest[..end])? == host).then_some(())?;
                &rest[end..]
            }
        };
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && *byte != b'#';
        if host.is_empty() || !path.iter().all(is_plain) {
            return None;
        }
        let url = [scheme.prefix(), &host[..], path].concat();
        Some(Self {
            server,
            url: url.into(),
        })
    }

    /// The key of a URL that a response to this request names, if it is of the same origin (RFC 9111 §4.4,
    /// Invalidating Stored Responses).
    pub(crate) fn of_same_origin(&self, reference: &[u8]) -> Option<Self> {
        let url = &self.url[..];
        let scheme = UrlScheme::of(url);
        let prefix = scheme.prefix().len();
        let host = prefix + url[prefix..].iter().position(|byte| *byte == b'/')?;
        let url = match reference {
            [b'/', b'/', ..] => return None,
            [b'/', ..] => [&url[..host], reference].concat(),
            _ if reference.to_ascii_lowercase().starts_with(scheme.prefix()) => {
                let behind = &reference[prefix..];
                let end = prefix + behind.iter().position(|byte| *byte == b'/')?;
                let named = authority(scheme, &reference[prefix..end])?;
                (named == url[prefix..host]).then(|| [&url[..host], &reference[end..]].concat())?
            }
            // Relative to the last segment of the path.
            _ if !reference.is_empty() && !reference.contains(&b':') => {
                let path = url
                    .iter()
                    .position(|byte| *byte == b'?')
                    .unwrap_or(url.len());
                let slash = url[..path].iter().rposition(|byte| *byte == b'/')?;
                [&url[..=slash], reference].concat()
            }
            _ => return None,
        };
        let end = url
            .iter()
            .position(|byte| *byte == b'#')
            .unwrap_or(url.len());
        Some(Self {
            server: self.server,
            url: url[..end].to_vec().into(),
        })
    }

    /// True if the URL has a query.
    pub(crate) fn has_query(&self) -> bool {
        self.url.contains(&b'?')
    }
}

/// A prefix of URLs as an operator writes it, in the form of [`CacheKey::url`]: scheme and host in lower case, without the
/// default port.
pub(crate) fn key_prefix(written: &str) -> Vec<u8> {
    let written = written.as_bytes();
    for scheme in [UrlScheme::Http, UrlScheme::Https] {
        let start = scheme.prefix();
        let Some((named, rest)) = written.split_at_checked(start.len()) else {
            continue;
        };
        if !named.eq_ignore_ascii_case(start) {
            continue;
        }
        let end = rest.iter().position(|byte| *byte == b'/');
        let (host, path) = rest.split_at(end.unwrap_or(rest.len()));
        let host = host.to_ascii_lowercase();
        return match host.strip_suffix(scheme.default_port()) {
            // A port ends the host, so a host that only begins like it is not meant.
            Some(bare) if path.is_empty() => [start, bare, b"/"].concat(),
            Some(bare) => [start, bare, path].concat(),
            None => [start, &host[..], path].concat(),
        };
    }
    written.to_vec()
}

/// An authority in lower case, without the default port.
fn authority(scheme: UrlScheme, text: &[u8]) -> Option<Vec<u8>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(byte);
    if !text.iter().all(is_part) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let bare = lower
        .strip_suffix(scheme.default_port())
        .or_else(|| lower.strip_suffix(b":"));
    Some(bare.unwrap_or(&lower).to_vec())
}
