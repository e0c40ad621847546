//! The key of a stored response: the server that was asked, the scheme, host and target.
//!
//! The server's address is part of the key. A client can name any Host to any server, and would otherwise
//! put its own server's answer in the place of another host's.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::http::wire::RequestHead;

/// The key of a response, without what Vary adds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// Where the request went.
    pub(crate) server: SocketAddr,
    /// `http://host/path?query`, the host in lower case and without the default port.
    pub(crate) url: Bytes,
}

impl Key {
    /// The key of a request to this server; `None` where its URL has two readings, so that neither the
    /// request nor its response takes part in caching.
    pub(crate) fn of(server: SocketAddr, head: &RequestHead) -> Option<Self> {
        let host = head.fields.single("host").unwrap_or_default();
        let host = authority(host)?;
        let target = head.target();
        let path = match target.strip_prefix(b"/") {
            Some(_) => target,
            None => {
                // Absolute form (RFC 9112 §3.2.2): servers differ in whether it or Host counts.
                let (scheme, rest) = target.split_at_checked(7)?;
                scheme.eq_ignore_ascii_case(b"http://").then_some(())?;
                let end = rest.iter().position(|byte| *byte == b'/')?;
                (authority(&rest[..end])? == host).then_some(())?;
                &rest[end..]
            }
        };
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && *byte != b'#';
        if host.is_empty() || !path.iter().all(is_plain) {
            return None;
        }
        let url = [b"http://", &host[..], path].concat();
        Some(Self {
            server,
            url: url.into(),
        })
    }

    /// The key of a URL that a response to this request names, if it is of the same origin (RFC 9111 §4.4,
    /// Invalidating Stored Responses).
    pub(crate) fn of_same_origin(&self, reference: &[u8]) -> Option<Self> {
        let url = &self.url[..];
        let host = 7 + url[7..].iter().position(|byte| *byte == b'/')?;
        let url = match reference {
            [b'/', b'/', ..] => return None,
            [b'/', ..] => [&url[..host], reference].concat(),
            _ if reference.to_ascii_lowercase().starts_with(b"http://") => {
                let end = 7 + reference[7..].iter().position(|byte| *byte == b'/')?;
                let named = authority(&reference[7..end])?;
                (named == url[7..host]).then(|| [&url[..host], &reference[end..]].concat())?
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

/// An authority in lower case, without the default port.
fn authority(text: &[u8]) -> Option<Vec<u8>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(byte);
    if !text.iter().all(is_part) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let bare = lower
        .strip_suffix(b":80")
        .or_else(|| lower.strip_suffix(b":"));
    Some(bare.unwrap_or(&lower).to_vec())
}
