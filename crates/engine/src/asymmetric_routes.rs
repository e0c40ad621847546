//! Pairs of networks between which servers' answers do not come back through the far node.
//!
//! ```text
//!   client ── near node ══ far node ─── SYN from the client's address ───► server
//!      ▲                                                                     │
//!      └──────────────── SYN-ACK by another route ───────────────────────────┘
//! ```
//!
//! The far node detects this case: the server answers the node's own address and does not answer
//! the client's. No connection from those clients to those servers can then be accelerated. All of
//! them are bypassed with a back-off, so that they do not each wait for a time-out.
//!
//! The sizes of the networks are not known. The engine assumes the /24 (IPv6: /64) around the
//! client and around the server, or the peer's configured prefix where that is narrower.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use vocab::Time;

use crate::config::IpPrefix;
use crate::unreachable_servers::{FIRST_BYPASS, LONGEST_BYPASS};

/// The limit of remembered pairs: each is a line of the kernel's rules, and an operator who sees
/// more than a few repairs the routes.
const PAIRS_MAX: usize = 256;

/// The clients' network and the servers'.
pub(crate) type NetworkPair = (IpPrefix, IpPrefix);

#[derive(Clone, Debug)]
struct RouteEntry {
    lasting: Duration,
    until: Time,
    /// The rules bypass the pair.
    is_bypassed: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct AsymmetricRoutes {
    pairs: BTreeMap<NetworkPair, RouteEntry>,
}

impl AsymmetricRoutes {
    /// Records that a server's answers to a client took another route. Returns the networks to
    /// bypass and the duration; `None` if they are bypassed already.
    pub(crate) fn found(
        &mut self,
        now: Time,
        client: IpAddr,
        server: IpAddr,
        configured: Option<IpPrefix>,
    ) -> Option<(NetworkPair, Duration)> {
        let pair = networks(client, server, configured)?;
        let before = self.pairs.get(&pair);
        if before.is_some_and(|entry| entry.is_bypassed) {
            return None;
        }
        let lasting = before.map_or(FIRST_BYPASS, |entry| {
            (entry.lasting * 2).min(LONGEST_BYPASS)
        });
        self.pairs
            .retain(|_, entry| now < entry.until + LONGEST_BYPASS);
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&pair) {
            let oldest = self.pairs.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(oldest) = oldest.map(|(pair, _)| *pair) {
                self.pairs.remove(&oldest);
            }
        }
        let entry = RouteEntry {
            lasting,
            until: now + lasting,
            is_bypassed: true,
        };
        self.pairs.insert(pair, entry);
        Some((pair, lasting))
    }

    /// Records that a connection through the peer succeeded. Returns true if the bypassed networks
    /// change.
    pub(crate) fn succeeded(&mut self, client: IpAddr, server: IpAddr) -> bool {
        let mut changes = false;
        self.pairs.retain(|(clients, servers), entry| {
            let is_meant = clients.contains(client) && servers.contains(server);
            changes |= is_meant && entry.is_bypassed;
            !is_meant
        });
        changes
    }

    /// Forgets all entries. Returns true if the bypassed networks change.
    pub(crate) fn clear(&mut self) -> bool {
        let changes = self.pairs.values().any(|entry| entry.is_bypassed);
        self.pairs.clear();
        changes
    }

    /// The pairs of networks that the rules must bypass.
    pub(crate) fn bypassed(&self) -> Vec<NetworkPair> {
        let pairs = self.pairs.iter().filter(|(_, entry)| entry.is_bypassed);
        pairs.map(|(pair, _)| *pair).collect()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let bypassed = self.pairs.values().filter(|entry| entry.is_bypassed);
        bypassed.map(|entry| entry.until).min()
    }

    /// Ends the expired entries. Returns true if the bypassed networks change.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        let mut changes = false;
        for entry in self.pairs.values_mut() {
            if entry.is_bypassed && entry.until <= now {
                entry.is_bypassed = false;
                changes = true;
            }
        }
        changes
    }
}

fn networks(client: IpAddr, server: IpAddr, configured: Option<IpPrefix>) -> Option<NetworkPair> {
    let length = |address: IpAddr| if address.is_ipv4() { 24 } else { 64 };
    let clients = IpPrefix::around(client, length(client))?;
    let servers = IpPrefix::around(server, length(server))?;
    let narrower = configured.filter(|configured| configured.length() > servers.length());
    Some((clients, narrower.unwrap_or(servers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    fn found(routes: &mut AsymmetricRoutes, now: Time) -> Option<(NetworkPair, Duration)> {
        let (client, server) = (address("198.18.1.2"), address("198.18.2.2"));
        routes.found(now, client, server, Some(prefix("198.18.0.0/15")))
    }

    #[test]
    fn both_networks_are_bypassed_with_backoff() {
        let mut routes = AsymmetricRoutes::default();
        let networks = (prefix("198.18.1.0/24"), prefix("198.18.2.0/24"));
        let mut now = Time::ZERO;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let lasting = minutes * MINUTE;
            assert_eq!(found(&mut routes, now), Some((networks, lasting)));
            assert_eq!(found(&mut routes, now), None);
            assert_eq!(routes.bypassed(), [networks]);
            now += lasting;
            assert_eq!(routes.poll_timeout(), Some(now));
            assert!(routes.handle_timeout(now));
            assert!(routes.bypassed().is_empty());
            assert_eq!(routes.poll_timeout(), None);
        }
        // The route was repaired.
        assert!(!routes.succeeded(address("198.18.1.9"), address("198.18.2.9")));
        assert_eq!(found(&mut routes, now), Some((networks, MINUTE)));
        assert!(!routes.succeeded(address("198.18.3.9"), address("198.18.2.9")));
        assert!(routes.succeeded(address("198.18.1.9"), address("198.18.2.9")));
    }

    #[test]
    fn a_narrower_configured_prefix_is_bypassed_alone() {
        let mut routes = AsymmetricRoutes::default();
        let (client, server) = (address("2001:db8:1::2"), address("2001:db8:2::2"));
        let configured = prefix("2001:db8:2::2");
        let found = routes.found(Time::ZERO, client, server, Some(configured));
        let networks = (prefix("2001:db8:1::/64"), configured);
        assert_eq!(found, Some((networks, MINUTE)));
    }

    #[test]
    fn the_pair_whose_bypass_ends_first_makes_room() {
        let mut routes = AsymmetricRoutes::default();
        let server = address("198.18.2.2");
        for number in 0..=PAIRS_MAX as u32 {
            let client = IpAddr::V4((0x0a00_0000 + (number << 8)).into());
            let now = Time::ZERO + Duration::from_millis(number.into());
            routes.found(now, client, server, None);
        }
        assert_eq!(routes.bypassed().len(), PAIRS_MAX);
        assert!(
            !routes
                .bypassed()
                .contains(&(prefix("10.0.0.0/24"), prefix("198.18.2.0/24")))
        );
    }
}
