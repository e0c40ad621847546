//! Addresses of a link around a command, chosen so that they hide no network of the host.
//!
//! ```text
//!   command  198.19.0.2 ─────── link ─────── 198.19.0.1  gateway
//!            2001:2:0:8000::2                2001:2:0:8000::1
//! ```
//! Each link takes a piece of four addresses out of the range for benchmarks, 198.18.0.0/15 (RFC
//! 2544 appendix C.2.2; RFC 5735 §3), which nobody routes, and a /64 of 2001:2::/48 (RFC 5180 §8).
//! IPv6's are not unique local ones because programs prefer IPv4 to those (RFC 6724 §2.1), and
//! would choose otherwise behind the link than without it. A piece that overlaps any route of the
//! gateway's side is passed over; if all do, the range of carrier-grade NAT, 100.64.0.0/10 (RFC
//! 6598), is next.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

/// The addresses of both ends of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The gateway's end, which is also where the host's own services are reached.
    pub gateway: Ipv4Addr,
    /// The command's end.
    pub command: Ipv4Addr,
    /// The gateway's end in IPv6.
    pub gateway_v6: Ipv6Addr,
    /// The command's end in IPv6.
    pub command_v6: Ipv6Addr,
}

/// The prefix length of a piece.
pub(super) const PREFIX: u8 = 30;
/// The prefix length of an IPv6 piece.
pub(super) const PREFIX_V6: u8 = 64;

/// Number of pieces tried in each range; a host with so many links at once has no processor time
/// left for any.
const PIECES: u16 = 4096;

const RANGES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 0), Ipv4Addr::new(100, 115, 0, 0)];

/// The first subnet of 2001:2:0::/48 that is used here; the laboratory uses low ones.
const FIRST_SUBNET_V6: u16 = 0x8000;

impl LinkAddresses {
    fn piece(range: Ipv4Addr, number: u16) -> Self {
        let first = u32::from(range) + u32::from(number) * 4;
        let v6 = |host| Ipv6Addr::new(0x2001, 2, 0, FIRST_SUBNET_V6 + number, 0, 0, 0, host);
        Self {
            gateway: Ipv4Addr::from(first + 1),
            command: Ipv4Addr::from(first + 2),
            gateway_v6: v6(1),
            command_v6: v6(2),
        }
    }

    /// Chooses the first piece that overlaps none of the routes, given as the output of `ip route
    /// show table all`, IPv4 and IPv6 together.
    ///
    /// # Errors
    /// Fails when all pieces overlap.
    pub(super) fn choose(routes: &str) -> Result<Self> {
        let mut taken = Vec::new();
        let mut taken_v6 = Vec::new();
        for line in routes.lines() {
            match RoutePrefix::parse(line) {
                Some(RoutePrefix::V4(network, prefix)) => taken.push((network, prefix)),
                Some(RoutePrefix::V6(network, prefix)) => taken_v6.push((network, prefix)),
                None => {}
            }
        }
        let is_free = |piece: &Self| {
            let v4 = u32::from(piece.gateway);
            let v6 = u128::from(piece.gateway_v6);
            !taken.iter().any(|&(network, prefix)| {
                overlap(
                    u128::from(u32::from(network)) << 96,
                    prefix,
                    u128::from(v4) << 96,
                    PREFIX,
                )
            }) && !taken_v6
                .iter()
                .any(|&(network, prefix)| overlap(u128::from(network), prefix, v6, PREFIX_V6))
        };
        RANGES
            .iter()
            .flat_map(|range| (0..PIECES).map(|number| Self::piece(*range, number)))
            .find(is_free)
            .context(
                "this host has routes to all of 198.19.0.0/18 and 100.115.0.0/18, or to all of 2001:2:0:8000::/49, one piece of which the link takes; remove one of these routes (`ip route`), or run in a network namespace",
            )
    }
}

/// Destination of a line of `ip route`, unless it is the default route.
#[derive(Debug, PartialEq, Eq)]
enum RoutePrefix {
    V4(Ipv4Addr, u8),
    V6(Ipv6Addr, u8),
}

impl RoutePrefix {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().peekable();
        // "local 127.0.0.1 dev lo ...", "unreachable 10.0.0.0/8 ..."; a plain one has no type.
        words.next_if(|word| word.chars().all(|letter| letter.is_ascii_alphabetic()));
        let word = words.next()?;
        let (address, prefix) = match word.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
            None => (word, None),
        };
        // A prefix of zero, like the word "default", is where everything else goes.
        if prefix == Some(0) {
            return None;
        }
        if let Ok(address) = address.parse() {
            return Some(Self::V4(address, prefix.unwrap_or(32)));
        }
        let address = address.parse().ok()?;
        Some(Self::V6(address, prefix.unwrap_or(128)))
    }
}

/// Tells whether two networks, given by their leading bits, have an address in common.
fn overlap(a: u128, a_prefix: u8, b: u128, b_prefix: u8) -> bool {
    let shared = a_prefix.min(b_prefix);
    shared == 0 || (a ^ b) >> (128 - u32::from(shared)) == 0
}

/// Tells whether the routes lead anywhere in IPv6 beyond the host and its links.
pub(super) fn leads_somewhere_v6(routes: &str) -> bool {
    routes.lines().any(|line| {
        line.starts_with("default ")
            || matches!(
                RoutePrefix::parse(line),
                Some(RoutePrefix::V6(network, prefix))
                    if prefix < 128
                        && line.starts_with(|letter: char| letter.is_ascii_hexdigit())
                        // Link-local and multicast are no way to anywhere.
                        && network.segments()[0] & 0xffc0 != 0xfe80
                        && network.segments()[0] & 0xff00 != 0xff00
            )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_piece_is_used_on_an_ordinary_host() {
        let routes = "default via 192.0.2.1 dev eth0 \n192.0.2.0/24 dev eth0 proto kernel\n\
                      local 127.0.0.1 dev lo table local\nbroadcast 192.0.2.255 dev eth0\n\
                      default via fe80::1 dev eth0 metric 1024 pref medium\n::1 dev lo\n";
        let chosen = LinkAddresses::choose(routes).unwrap();
        assert_eq!(chosen.gateway, Ipv4Addr::new(198, 19, 0, 1));
        assert_eq!(chosen.command, Ipv4Addr::new(198, 19, 0, 2));
        assert_eq!(chosen.command_v6.to_string(), "2001:2:0:8000::2");
    }

    #[test]
    fn routed_networks_are_skipped() {
        let one = LinkAddresses::choose("198.19.0.0/30 dev tlw-1 proto kernel").unwrap();
        assert_eq!(one.gateway, Ipv4Addr::new(198, 19, 0, 5));
        assert_eq!(one.gateway_v6.to_string(), "2001:2:0:8001::1");
        let six = LinkAddresses::choose("2001:2:0:8000::/63 dev x metric 256").unwrap();
        assert_eq!(six.gateway, Ipv4Addr::new(198, 19, 0, 9));
        let host = LinkAddresses::choose("local 198.19.0.6 dev x table local").unwrap();
        assert_eq!(host.gateway, Ipv4Addr::new(198, 19, 0, 1));
        let range = LinkAddresses::choose("unreachable 198.18.0.0/15 metric 1").unwrap();
        assert_eq!(range.gateway, Ipv4Addr::new(100, 115, 0, 1));
        assert!(LinkAddresses::choose("198.18.0.0/15 dev a\n100.64.0.0/10 dev b").is_err());
        assert!(LinkAddresses::choose("2001:2::/48 dev a").is_err());
    }

    #[test]
    fn ipv6_leads_somewhere_only_beyond_the_link() {
        assert!(leads_somewhere_v6("default via fe80::1 dev eth0"));
        assert!(leads_somewhere_v6("2001:db8::/32 via fe80::1 dev eth0"));
        assert!(!leads_somewhere_v6(
            "::1 dev lo\nfe80::/64 dev eth0\nlocal 2001:db8::1 dev eth0\nmulticast ff00::/8 dev eth0\nunreachable default dev lo"
        ));
    }
}
