//! The operator's rules for interception: by client, server and port, and by a packet mark that the
//! operator's own ruleset sets.
//!
//! ```toml
//! [intercept]
//! mode = "transparent"
//! only_marked = "0x1/0x1"
//!
//! [[intercept.rule]]
//! clients = ["198.51.100.0/25"]
//! servers = ["203.0.113.0/24"]
//! ports = [80, "8000-8099"]
//! action = "bypass"
//!
//! [intercept.reset_surviving]
//! ports = [445]
//! idle = "15s"
//! after = "120s"
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use engine::IpPrefix;
use serde::{Deserialize, Deserializer, de};

/// The bits of the packet mark that the node itself uses.
const OWN_MARK_BITS: u32 = 0xff00_0000;
/// The shortest time without a packet after which a connection counts as idle: twice the time in which a lost packet
/// of an ordinary connection is repeated.
pub(super) const LEAST_IDLE: Duration = Duration::from_secs(2);
/// The longest times of [`SurvivingResets`]: a connection without a packet for longer is forgotten.
pub(super) const GREATEST_IDLE: Duration = Duration::from_secs(1_800);
/// Each rule is one rule of the kernel's for every new connection.
pub(super) const RULES_MAX: usize = 256;

/// The action for new connections that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// They are intercepted.
    Accept,
    /// They pass this machine as if there were no node.
    Bypass,
}

impl RuleAction {
    /// As it is written in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Bypass => "bypass",
        }
    }
}

/// A rule by client, server and port. An empty list matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRule<Action> {
    /// The clients of the connection.
    pub clients: Vec<IpPrefix>,
    /// The servers of the connection.
    pub servers: Vec<IpPrefix>,
    /// The server's ports, in order and without overlaps.
    pub ports: Vec<PortRange>,
    /// The action for connections that match.
    pub action: Action,
}

/// One `[[intercept.rule]]`.
pub type InterceptRule = ConnectionRule<RuleAction>;

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The least.
    pub first: u16,
    /// The greatest.
    pub last: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(formatter, "{}", self.first),
            false => write!(formatter, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "`{text}` is neither a port nor a range of ports; write 443 or \"8000-8099\", with ports \
                 from 1 to 65535 and the lower port first"
            )
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(wrong()),
        }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortRangeVisitor;
        impl de::Visitor<'_> for PortRangeVisitor {
            type Value = PortRange;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a port such as 443 or a range such as \"8000-8099\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(PortRangeVisitor)
    }
}

/// The connections that are reset once if they pass by although new ones are intercepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivingResets {
    /// The server's ports, in order and without overlaps.
    pub ports: Vec<PortRange>,
    /// The time without a packet after which a connection is checked.
    pub idle: Duration,
    /// The time for which a connection is watched first.
    pub after: Duration,
}

impl SurvivingResets {
    /// Returns true if connections to this port are reset.
    #[must_use]
    pub fn has_port(&self, port: u16) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|range| (range.first..=range.last).contains(&port))
    }
}

/// The same ports in order, with ranges that touch or overlap made one: nft refuses overlaps.
pub(super) fn merged(mut ports: Vec<PortRange>) -> Vec<PortRange> {
    ports.sort_unstable();
    let mut merged: Vec<PortRange> = Vec::with_capacity(ports.len());
    for range in ports {
        match merged.last_mut() {
            Some(last) if u32::from(range.first) <= u32::from(last.last) + 1 => {
                last.last = last.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the same prefixes without those inside another one: nft refuses overlaps.
pub(super) fn widest(prefixes: &[IpPrefix]) -> Vec<IpPrefix> {
    let mut widest: Vec<IpPrefix> = Vec::with_capacity(prefixes.len());
    let mut by_length = prefixes.to_vec();
    by_length.sort_by_key(IpPrefix::length);
    for prefix in by_length {
        if !widest.iter().any(|wider| wider.overlaps(&prefix)) {
            widest.push(prefix);
        }
    }
    widest
}

/// The bits of the packet mark that the operator's ruleset sets on packets to intercept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkMatch {
    /// The required value of the bits under the mask.
    pub value: u32,
    /// The bits of the mark that are compared.
    pub mask: u32,
}

impl fmt::Display for MarkMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}/{:#x}", self.value, self.mask)
    }
}

impl FromStr for MarkMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let text = text.trim();
            match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
        };
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (number(value), number(mask)),
            None => (number(text), number(text)),
        };
        let (Some(value), Some(mask)) = (value, mask) else {
            return Err(format!(
                "`{text}` is not a packet mark; write a value and a mask, such as \"0x1/0x1\""
            ));
        };
        if value == 0 || value & !mask != 0 {
            return Err(format!(
                "`{text}` matches no packet, or matches packets without a mark; write a value above 0 whose \
                 bits are all in the mask, such as \"0x1/0x1\""
            ));
        }
        if mask & OWN_MARK_BITS != 0 {
            return Err(format!(
                "`{text}` uses the top byte of the packet mark, which the node sets itself; use only bits \
                 of 0x00ffffff, for example \"0x1/0x1\""
            ));
        }
        Ok(Self { value, mask })
    }
}

impl<'de> Deserialize<'de> for MarkMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(texts: &[&str]) -> Vec<PortRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn port_ranges_that_touch_or_overlap_become_one() {
        let merged = merged(ports(&["8050-8200", "80", "8000-8099", "81", "443", "443"]));
        let texts: Vec<String> = merged.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["80-81", "443", "8000-8200"]);
    }

    #[test]
    fn invalid_port_range_is_refused() {
        for text in ["0", "65536", "90-80", "80-", "http", "-1", ""] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_inside_others_are_left_out() {
        let prefixes = ["10.1.0.0/16", "10.0.0.0/8", "2001:db8::/32", "10.0.0.0/8"];
        let prefixes: Vec<IpPrefix> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        let texts: Vec<String> = widest(&prefixes).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.0/8", "2001:db8::/32"]);
    }

    #[test]
    fn mark_needs_a_value_within_its_mask() {
        let mark = |text: &str| text.parse::<MarkMatch>();
        let (value, mask) = (0x10, 0x10);
        assert_eq!(mark("0x10"), Ok(MarkMatch { value, mask }));
        assert_eq!(mark("16/16"), Ok(MarkMatch { value, mask }));
        for wrong in [
            "",
            "0",
            "0x1/0x2",
            "0/0xff",
            "0x1000000",
            "x",
            "0x1/0x01000001",
        ] {
            assert!(mark(wrong).is_err(), "{wrong}");
        }
    }
}
