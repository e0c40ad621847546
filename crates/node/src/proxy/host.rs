//! The target of a proxy's client, for every proxy protocol.

use std::net::IpAddr;

/// The target of a proxy's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyTarget {
    /// An address.
    Address(IpAddr),
    /// A name, to be resolved on this side.
    Name(String),
}

/// A host as either protocol writes it: an address, or a name of characters that names have.
pub(super) fn parse_host(bytes: &[u8]) -> Option<ProxyTarget> {
    let text = std::str::from_utf8(bytes).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(ProxyTarget::Address(address));
    }
    let fits = (1..=253).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    fits.then(|| ProxyTarget::Name(text.to_owned()))
}
