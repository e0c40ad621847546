//! The lab's addresses, all from the ranges set aside for benchmarks: 198.18.0.0/15 (RFC 2544
//! appendix C.2.2, IP addresses; RFC 5735 §3) and 2001:2::/48 (RFC 5180 §8, IANA considerations).
//!
//! ```text
//! client ──198.18.1.0/24── near ──198.18.11.0/30── WAN ──198.18.12.0/30── far ──198.18.2.0/24── server
//!    .2                   .1    .2              .1     .1             .2     .1                .2
//! ```
//! IPv6 has the same shape: 2001:2:0:1::/64, 2001:2:0:11::/64, 2001:2:0:12::/64, 2001:2:0:2::/64.
//! A third site, where a test asks for one, is 198.18.3.0/24 and 2001:2:0:3::/64 behind
//! 198.18.13.0/30.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A site beside the WAN: its LAN, its node and its host (client or server).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabSite {
    /// Site of the client.
    Near,
    /// Site of the server.
    Far,
    /// A second place with a server, for tests of more than two sites.
    Third,
}

impl LabSite {
    /// Number of the site in all of its prefixes.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            LabSite::Near => 1,
            LabSite::Far => 2,
            LabSite::Third => 3,
        }
    }

    /// The role of the site's node: the namespace's and the configuration's name for it.
    #[must_use]
    pub const fn node(self) -> &'static str {
        match self {
            LabSite::Near => "near",
            LabSite::Far => "far",
            LabSite::Third => "third",
        }
    }

    /// The role of the site's host.
    #[must_use]
    pub const fn host(self) -> &'static str {
        match self {
            LabSite::Near => "client",
            LabSite::Far => "server",
            LabSite::Third => "server3",
        }
    }

    /// The host's address.
    #[must_use]
    pub fn host_address(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number(), 2)
    }

    /// The host's IPv6 address.
    #[must_use]
    pub fn host_address_v6(self) -> Ipv6Addr {
        v6(self.number(), 2)
    }

    /// The node's address on its LAN.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number(), 1)
    }

    /// The node's IPv6 address on its LAN.
    #[must_use]
    pub fn gateway_v6(self) -> Ipv6Addr {
        v6(self.number(), 1)
    }

    /// The node's address towards the WAN.
    #[must_use]
    pub fn wan_address(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 10 + self.number(), 2)
    }

    /// The node's IPv6 address towards the WAN.
    #[must_use]
    pub fn wan_address_v6(self) -> Ipv6Addr {
        v6(0x10 + self.number(), 2)
    }

    /// The WAN's own address towards the node: its next hop.
    #[must_use]
    pub fn wan_gateway(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 10 + self.number(), 1)
    }

    /// The WAN's own IPv6 address towards the node.
    #[must_use]
    pub fn wan_gateway_v6(self) -> Ipv6Addr {
        v6(0x10 + self.number(), 1)
    }

    /// The site's LAN.
    #[must_use]
    pub fn prefix(self) -> String {
        format!("198.18.{}.0/24", self.number())
    }

    /// The site's IPv6 LAN.
    #[must_use]
    pub fn prefix_v6(self) -> String {
        format!("2001:2:0:{}::/64", self.number())
    }
}

fn v6(network: u8, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 2, 0, u16::from(network), 0, 0, 0, host)
}

/// Tells whether a packet's address belongs to a LAN's host rather than to a node.
#[must_use]
pub fn is_host(address: IpAddr) -> bool {
    [LabSite::Near, LabSite::Far, LabSite::Third]
        .into_iter()
        .any(|site| match address {
            IpAddr::V4(address) => address == site.host_address(),
            IpAddr::V6(address) => address == site.host_address_v6(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_in_their_prefix_and_benchmark_ranges() {
        for site in [LabSite::Near, LabSite::Far, LabSite::Third] {
            let [a, b, c, _] = site.host_address().octets();
            assert_eq!([a, b], [198, 18]);
            assert_eq!(format!("{a}.{b}.{c}.0/24"), site.prefix());
            assert_eq!(site.wan_address().octets()[2], 10 + c);
            assert_eq!(site.host_address_v6().segments()[..3], [0x2001, 2, 0]);
            assert!(is_host(site.host_address().into()));
            assert!(!is_host(site.wan_address().into()));
        }
        assert_eq!(LabSite::Far.wan_address_v6().to_string(), "2001:2:0:12::2");
    }
}
