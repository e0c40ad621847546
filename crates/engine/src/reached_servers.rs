//! Servers to which a connection through a peer has succeeded. Only their clients may be accepted
//! before the server has answered.
//!
//! A client that is accepted at once sees an open port, even if the server refuses later. So a
//! server must have answered once before its clients are accepted early; a server that then fails
//! is forgotten.
//!
//! The table is bounded; the entry that was confirmed longest ago is removed first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use vocab::Time;

/// For how long one success counts: a server that is used each working day stays known.
const REACHED_FOR: Duration = Duration::from_secs(4 * 24 * 3600);
/// A success is noted again only after so long, so that a busy server costs one change of the rules an hour.
const CONFIRMED_EVERY: Duration = Duration::from_secs(3600);
/// Servers in the table: 1 MB here and 3 MB in the kernel's set.
const SERVERS_MAX: usize = 16_384;

/// The change that a success causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReachedChange {
    /// Clients of this server are accepted at once for so long from now; `None` when that is known already.
    pub(crate) lasting: Option<Duration>,
    /// Clients of this server are accepted after the server from now on: it had to make room.
    pub(crate) displaced: Option<SocketAddr>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ReachedServers {
    servers: BTreeMap<SocketAddr, Time>,
    by_time: BTreeSet<(Time, SocketAddr)>,
}

impl ReachedServers {
    /// A connection to the server succeeded.
    pub(crate) fn succeeded(&mut self, now: Time, server: SocketAddr) -> ReachedChange {
        if let Some(at) = self.servers.get(&server)
            && now < *at + CONFIRMED_EVERY
        {
            return ReachedChange::default();
        }
        self.failed(server);
        let displaced = if self.servers.len() >= SERVERS_MAX {
            self.by_time.first().map(|(_, oldest)| *oldest)
        } else {
            None
        };
        if let Some(oldest) = displaced {
            self.failed(oldest);
        }
        self.servers.insert(server, now);
        self.by_time.insert((now, server));
        ReachedChange {
            lasting: Some(REACHED_FOR),
            displaced,
        }
    }

    /// A connection to the server failed; returns whether the server was known.
    pub(crate) fn failed(&mut self, server: SocketAddr) -> bool {
        let Some(at) = self.servers.remove(&server) else {
            return false;
        };
        self.by_time.remove(&(at, server));
        true
    }

    /// Returns true if clients of the server may be accepted before it answers.
    pub(crate) fn contains(&self, now: Time, server: SocketAddr) -> bool {
        let at = self.servers.get(&server);
        at.is_some_and(|at| now < *at + REACHED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u32) -> SocketAddr {
        SocketAddr::new(std::net::Ipv4Addr::from_bits(number).into(), 80)
    }

    #[test]
    fn server_is_known_from_success_to_failure() {
        let mut servers = ReachedServers::default();
        assert!(!servers.contains(Time::ZERO, server(1)));
        let reached = servers.succeeded(Time::ZERO, server(1));
        assert_eq!(reached.lasting, Some(REACHED_FOR));
        assert!(servers.contains(Time::ZERO, server(1)));
        assert!(!servers.contains(Time::ZERO + REACHED_FOR, server(1)));
        assert!(servers.failed(server(1)));
        assert!(!servers.contains(Time::ZERO, server(1)));
    }

    #[test]
    fn a_busy_server_is_confirmed_once_an_hour() {
        let mut servers = ReachedServers::default();
        servers.succeeded(Time::ZERO, server(1));
        let soon = Time::ZERO + CONFIRMED_EVERY - Duration::from_secs(1);
        assert_eq!(servers.succeeded(soon, server(1)), ReachedChange::default());
        let later = Time::ZERO + CONFIRMED_EVERY;
        assert_eq!(
            servers.succeeded(later, server(1)).lasting,
            Some(REACHED_FOR)
        );
    }

    #[test]
    fn full_table_drops_the_longest_unconfirmed_server() {
        let mut servers = ReachedServers::default();
        let at = |number: u32| Time::ZERO + Duration::from_millis(number.into());
        let most = SERVERS_MAX as u32;
        for number in 0..most {
            assert_eq!(
                servers.succeeded(at(number), server(number)).displaced,
                None
            );
        }
        let displaced = servers.succeeded(at(most), server(most)).displaced;
        assert_eq!(displaced, Some(server(0)));
        assert_eq!(servers.servers.len(), SERVERS_MAX);
        assert_eq!(servers.by_time.len(), SERVERS_MAX);
    }
}
