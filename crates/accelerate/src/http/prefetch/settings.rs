//! Settings of prefetches: on or off, and the excluded hosts.

use std::fmt;
use std::str::FromStr;

/// The operator's settings of prefetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchSettings {
    /// True if the far half fetches ahead, and the near half takes what it fetches.
    pub is_on: bool,
    /// Hosts that are left alone.
    pub excluded: Vec<HostPattern>,
}

impl Default for PrefetchSettings {
    /// On, for all hosts.
    fn default() -> Self {
        Self {
            is_on: true,
            excluded: Vec::new(),
        }
    }
}

impl PrefetchSettings {
    /// No prefetches at all.
    pub const OFF: Self = Self {
        is_on: false,
        excluded: Vec::new(),
    };

    /// True if the host in an origin (`http://host:port`) is not left alone.
    pub(super) fn allows(&self, origin: &[u8]) -> bool {
        let host = origin.rsplit(|byte| *byte == b'/').next();
        let host = host.unwrap_or_default();
        self.is_on && !self.excluded.iter().any(|pattern| pattern.matches(host))
    }
}

/// A host's name, or `*.` before the end of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(String);

impl HostPattern {
    /// True if an authority, in lower case, is that of this host on any port.
    fn matches(&self, authority: &[u8]) -> bool {
        let host = match authority.iter().rposition(|byte| *byte == b':') {
            // The colons of an IPv6 address are in brackets.
            Some(colon) if !authority[colon..].contains(&b']') => &authority[..colon],
            _ => authority,
        };
        match self.0.strip_prefix('*') {
            Some(end) => host.ends_with(end.as_bytes()) && host.len() > end.len(),
            None => host == self.0.as_bytes(),
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHostPattern;

    fn from_str(text: &str) -> Result<Self, InvalidHostPattern> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(&byte);
        let is_address = name.starts_with('[') && name.ends_with(']');
        let is_valid =
            !name.is_empty() && name.bytes().all(is_part) && (is_address || !name.contains(':'));
        match is_valid {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(InvalidHostPattern),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

/// A text is not a [`HostPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a host as \"intranet.example\", or all hosts of a domain as \"*.example\"; do not write a port"
)]
pub struct InvalidHostPattern;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_hosts_are_left_alone() {
        let settings = PrefetchSettings {
            is_on: true,
            excluded: vec![
                "Shop.example".parse().unwrap(),
                "*.b.example".parse().unwrap(),
            ],
        };
        for (origin, allows) in [
            ("http://shop.example", false),
            ("http://shop.example:8080", false),
            ("http://a.shop.example", true),
            ("http://a.b.example", false),
            ("http://b.example", true),
            ("http://[2001:db8::1]", true),
        ] {
            assert_eq!(settings.allows(origin.as_bytes()), allows, "{origin}");
        }
        assert!(!PrefetchSettings::OFF.allows(b"http://a"));
    }

    #[test]
    fn malformed_hosts_are_refused() {
        for text in ["", "*.", "a:80", "http://a", "a b", "*a", "a/b", "ä"] {
            assert_eq!(
                text.parse::<HostPattern>(),
                Err(InvalidHostPattern),
                "{text}"
            );
        }
        assert!("[2001:db8::1]".parse::<HostPattern>().is_ok());
    }
}
