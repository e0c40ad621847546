//! Servers that refused a connection or did not answer, and for how long their clients go directly.
//!
//! ```text
//!   failure ──► bypassed 60 s ──► tried again ──failure──► bypassed 120 s ──► … ──► 1 h at most
//!                    │                 └──success──► forgotten
//!                    └── a bypassed connection was seen to succeed ──► forgotten, if the server
//!                                                                       itself had failed
//! ```
//! A server that is unreachable only through the peer answers every bypassed connection. Its bypass
//! expires and doubles, because the next connection through the peer would fail again.
//!
//!
//! The table is bounded. A host that scans ports fills its own share and displaces its own entries;
//! when the whole table is full, the host with the most entries loses its oldest one.
//!
//! It does not change any rule: the engine outputs the servers that the shell must bypass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tunnel::ConnectFailure;
use vocab::Time;

/// The time for which a server is bypassed after its first failure. A person who has started the
/// server tries again within that time and is served, only not accelerated.
pub(crate) const FIRST_BYPASS: Duration = Duration::from_secs(60);
/// The longest bypass. DESIGN "A dead node is a wire" names both figures.
pub(crate) const LONGEST_BYPASS: Duration = Duration::from_secs(3600);
/// The time after which the bypass of an unused server starts from [`FIRST_BYPASS`] again.
const REMEMBERED_AFTER: Duration = LONGEST_BYPASS;

/// Servers in the table: 3 MB here and as much in the kernel's set.
const SERVERS_MAX: usize = 16_384;
/// Servers that one client can have in the table: a sixteenth, and more than an ordinary host meets.
const SERVERS_PER_CLIENT: usize = 1_024;

/// The change that a failure causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BypassChange {
    /// The server is bypassed for so long from now; `None` while an earlier bypass is still running.
    pub(crate) lasting: Option<Duration>,
    /// This server had to make room and is no longer bypassed.
    pub(crate) displaced: Option<SocketAddr>,
}

/// The side that caused a connection to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOrigin {
    /// The server refused or did not answer: directly it would have done the same.
    Server,
    /// The peer could not or would not reach the server; a direct connection may still succeed.
    Peer,
}

impl From<ConnectFailure> for FaultOrigin {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::Refused | ConnectFailure::TimedOut => Self::Server,
            ConnectFailure::Unreachable
            | ConnectFailure::NotPermitted
            | ConnectFailure::Exhausted
            | ConnectFailure::AnswersElsewhere
            | ConnectFailure::Filtered
            | ConnectFailure::Other => Self::Peer,
        }
    }
}

#[derive(Clone, Debug)]
struct ServerEntry {
    client: IpAddr,
    fault: FaultOrigin,
    lasting: Duration,
    until: Time,
}

impl ServerEntry {
    fn forgotten_at(&self) -> Time {
        self.until + REMEMBERED_AFTER
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct UnreachableServers {
    servers: BTreeMap<SocketAddr, ServerEntry>,
    /// In the order in which they are forgotten.
    ends: BTreeSet<(Time, SocketAddr)>,
    /// The same for each client.
    by_client: BTreeMap<IpAddr, BTreeSet<(Time, SocketAddr)>>,
}

impl UnreachableServers {
    /// A connection of `client` to `server` failed.
    pub(crate) fn failed(
        &mut self,
        now: Time,
        client: IpAddr,
        server: SocketAddr,
        fault: FaultOrigin,
    ) -> BypassChange {
        self.forget_old(now);
        let before = self.remove(server);
        let mut bypass = BypassChange::default();
        let entry = match before {
            // Connections that were opened together fail together; that is one failure.
            Some(entry) if now < entry.until => ServerEntry { fault, ..entry },
            Some(entry) => {
                let lasting = (entry.lasting * 2).min(LONGEST_BYPASS);
                bypass.lasting = Some(lasting);
                ServerEntry {
                    client: share_holder(client),
                    fault,
                    lasting,
                    until: now + lasting,
                }
            }
            None => {
                bypass.lasting = Some(FIRST_BYPASS);
                ServerEntry {
                    client: share_holder(client),
                    fault,
                    lasting: FIRST_BYPASS,
                    until: now + FIRST_BYPASS,
                }
            }
        };
        bypass.displaced = self.make_room(entry.client);
        self.insert(server, entry);
        bypass
    }

    /// A connection to `server` succeeded; returns whether the server was in the table.
    pub(crate) fn succeeded(&mut self, server: SocketAddr) -> bool {
        self.remove(server).is_some()
    }

    /// A direct connection to `server` succeeded; returns whether the bypass ends for it.
    pub(crate) fn answered_directly(&mut self, server: SocketAddr) -> bool {
        let entry = self.servers.get(&server);
        entry.is_some_and(|entry| entry.fault == FaultOrigin::Server) && self.succeeded(server)
    }

    /// Forgets the servers for which `is_outdated` holds; returns them.
    pub(crate) fn forget(
        &mut self,
        is_outdated: impl Fn(SocketAddr, FaultOrigin) -> bool,
    ) -> Vec<SocketAddr> {
        let servers = self.servers.iter();
        let outdated = servers.filter(|(server, entry)| is_outdated(**server, entry.fault));
        let outdated: Vec<SocketAddr> = outdated.map(|(server, _)| *server).collect();
        for server in &outdated {
            self.remove(*server);
        }
        outdated
    }

    /// Removes an entry if there is no room for another one of this client.
    fn make_room(&mut self, client: IpAddr) -> Option<SocketAddr> {
        let own = self.by_client.get(&client).map_or(0, BTreeSet::len);
        let loser = if own >= SERVERS_PER_CLIENT {
            client
        } else if self.servers.len() >= SERVERS_MAX {
            let most = self.by_client.iter().max_by_key(|(_, own)| own.len());
            *most?.0
        } else {
            return None;
        };
        let (_, displaced) = self.by_client.get(&loser)?.first().copied()?;
        self.remove(displaced);
        Some(displaced)
    }

    fn forget_old(&mut self, now: Time) {
        while let Some((at, server)) = self.ends.first().copied()
            && at <= now
        {
            self.remove(server);
        }
    }

    fn insert(&mut self, server: SocketAddr, entry: ServerEntry) {
        let end = (entry.forgotten_at(), server);
        self.ends.insert(end);
        self.by_client.entry(entry.client).or_default().insert(end);
        self.servers.insert(server, entry);
    }

    fn remove(&mut self, server: SocketAddr) -> Option<ServerEntry> {
        let entry = self.servers.remove(&server)?;
        let end = (entry.forgotten_at(), server);
        self.ends.remove(&end);
        if let Some(own) = self.by_client.get_mut(&entry.client) {
            own.remove(&end);
            if own.is_empty() {
                self.by_client.remove(&entry.client);
            }
        }
        Some(entry)
    }
}

/// The owner of a share: an IPv4 address, or the /64 network that one IPv6 host can fill at will.
fn share_holder(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn client(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    fn server(number: u32) -> SocketAddr {
        SocketAddr::new(IpAddr::V4((0xc612_0000 + number).into()), 80)
    }

    fn lasting(servers: &mut UnreachableServers, now: Time) -> Option<Duration> {
        servers
            .failed(now, client(1), server(1), FaultOrigin::Server)
            .lasting
    }

    #[test]
    fn bypass_doubles_up_to_an_hour_and_resets() {
        let mut servers = UnreachableServers::default();
        let mut now = Time::ZERO;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            let expected = minutes * MINUTE;
            assert_eq!(lasting(&mut servers, now), Some(expected));
            now += expected;
        }
        assert!(servers.succeeded(server(1)));
        assert!(!servers.succeeded(server(1)));
        assert_eq!(lasting(&mut servers, now), Some(MINUTE));
    }

    #[test]
    fn direct_answer_ends_only_server_fault_bypasses() {
        let mut servers = UnreachableServers::default();
        servers.failed(Time::ZERO, client(1), server(1), FaultOrigin::Server);
        assert!(servers.answered_directly(server(1)));
        servers.failed(Time::ZERO, client(1), server(1), FaultOrigin::Peer);
        assert!(!servers.answered_directly(server(1)));
        let next = servers.failed(Time::ZERO + MINUTE, client(1), server(1), FaultOrigin::Peer);
        assert_eq!(next.lasting, Some(2 * MINUTE));
    }

    #[test]
    fn failures_during_a_bypass_do_not_extend_it() {
        let mut servers = UnreachableServers::default();
        assert_eq!(lasting(&mut servers, Time::ZERO), Some(MINUTE));
        let soon = Time::ZERO + Duration::from_secs(59);
        assert_eq!(lasting(&mut servers, soon), None);
        assert_eq!(lasting(&mut servers, Time::ZERO + MINUTE), Some(2 * MINUTE));
    }

    #[test]
    fn a_server_that_nobody_tries_is_forgotten() {
        let mut servers = UnreachableServers::default();
        lasting(&mut servers, Time::ZERO);
        let later = Time::ZERO + MINUTE + REMEMBERED_AFTER;
        assert_eq!(lasting(&mut servers, later), Some(MINUTE));
        assert_eq!(servers.servers.len(), 1);
    }

    #[test]
    fn scanning_client_displaces_only_its_own_entries() {
        let mut servers = UnreachableServers::default();
        servers.failed(Time::ZERO, client(2), server(0), FaultOrigin::Server);
        let scanned = SERVERS_PER_CLIENT as u32 + 100;
        for number in 1..=scanned {
            let now = Time::ZERO + Duration::from_millis(number.into());
            let displaced = servers
                .failed(now, client(1), server(number), FaultOrigin::Server)
                .displaced;
            let expected = number
                .checked_sub(SERVERS_PER_CLIENT as u32)
                .filter(|oldest| *oldest > 0);
            assert_eq!(displaced, expected.map(server));
        }
        assert_eq!(servers.servers.len(), SERVERS_PER_CLIENT + 1);
        assert!(servers.succeeded(server(0)), "the other client's entry");
    }

    #[test]
    fn ipv6_network_has_one_share() {
        let mut servers = UnreachableServers::default();
        for number in 0..SERVERS_PER_CLIENT as u32 + 10 {
            let client = format!("2001:db8::{number:x}").parse().unwrap();
            servers.failed(Time::ZERO, client, server(number), FaultOrigin::Server);
        }
        assert_eq!(servers.servers.len(), SERVERS_PER_CLIENT);
    }

    #[test]
    fn full_table_takes_from_the_largest_client() {
        let mut servers = UnreachableServers::default();
        let mut number = 0;
        for host in 0..SERVERS_MAX as u32 / 1_000 {
            for _ in 0..1_000 {
                number += 1;
                servers.failed(
                    Time::ZERO,
                    client(host),
                    server(number),
                    FaultOrigin::Server,
                );
            }
        }
        while servers.servers.len() < SERVERS_MAX {
            number += 1;
            servers.failed(Time::ZERO, client(999), server(number), FaultOrigin::Server);
        }
        let small = server(number + 1);
        let displaced = servers
            .failed(Time::ZERO, client(1_000), small, FaultOrigin::Server)
            .displaced;
        assert!(displaced.is_some());
        assert!(servers.succeeded(small));
        assert_eq!(servers.by_client[&client(999)].len(), SERVERS_MAX % 1_000);
        assert_eq!(servers.ends.len(), servers.servers.len());
    }
}
