//! Connections to servers that are being opened for peers: few at a time to one server.
//!
//! A server that does not answer keeps each attempt for ten seconds. A peer that opens thousands of
//! flows to it would otherwise hold a socket for each of them. Here the other flows wait in order
//! of arrival, without a socket, and fail after the same wait. A far half's further connections to
//! the server wait among them.
//!
//! When one attempt finds a server unreachable, all connections to it that have no answer yet fail.
//! A shell detects this with few probes at a time, while the other attempts would time out, and a
//! peer could tell from the difference whether the server's address is served. If the server then
//! answers another attempt, the result no longer applies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use crate::io::ConnectionId;

/// The limit of simultaneous attempts to one server. A server that answers does so within a
/// millisecond, which allows hundreds of thousands a second.
pub(crate) const ATTEMPTS_PER_SERVER: usize = 256;
/// A flow that has not had its turn by then fails as if its server had not answered: as long as an
/// attempt takes at most.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);

/// The attempts and the connections that wait for one; connections by their ids, which follow the
/// order of the requests.
#[derive(Debug, Default)]
pub(crate) struct ConnectionAttempts {
    servers: BTreeMap<IpAddr, ServerAttempts>,
}

#[derive(Debug, Default)]
struct ServerAttempts {
    under_way: BTreeSet<ConnectionId>,
    waiting: BTreeSet<ConnectionId>,
    /// The server was found out of reach when this was the last connection to it that was wanted.
    out_of_reach_for: Option<ConnectionId>,
}

/// The state of a connection that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptState {
    UnderWay,
    Waiting,
    /// It has failed, or was never to be made.
    None,
}

impl ConnectionAttempts {
    /// A connection to the server is wanted: whether it is to be opened now, or later.
    pub(crate) fn begin(&mut self, server: IpAddr, connection: ConnectionId) -> AttemptState {
        let attempts = self.servers.entry(server).or_default();
        if attempts.under_way.len() < ATTEMPTS_PER_SERVER {
            attempts.under_way.insert(connection);
            return AttemptState::UnderWay;
        }
        attempts.waiting.insert(connection);
        AttemptState::Waiting
    }

    pub(crate) fn state(&self, server: IpAddr, connection: ConnectionId) -> AttemptState {
        match self.servers.get(&server) {
            Some(attempts) if attempts.under_way.contains(&connection) => AttemptState::UnderWay,
            Some(attempts) if attempts.waiting.contains(&connection) => AttemptState::Waiting,
            Some(_) | None => AttemptState::None,
        }
    }

    /// Records that an attempt has found the server unreachable. Returns the unanswered connections
    /// to it for which that is new.
    pub(crate) fn found_out_of_reach(&mut self, server: IpAddr) -> Vec<ConnectionId> {
        let Some(attempts) = self.servers.get_mut(&server) else {
            return Vec::new();
        };
        let known = attempts.out_of_reach_for;
        let news = (
            known.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let under_way = attempts.under_way.range(news);
        let unanswered: Vec<ConnectionId> = under_way
            .chain(attempts.waiting.range(news))
            .copied()
            .collect();
        attempts.out_of_reach_for = unanswered.iter().copied().max().or(known);
        unanswered
    }

    /// An attempt was answered by the server itself.
    pub(crate) fn answered(&mut self, server: IpAddr) {
        if let Some(attempts) = self.servers.get_mut(&server) {
            attempts.out_of_reach_for = None;
        }
    }

    /// Returns true if the server was found unreachable after the connection was requested.
    pub(crate) fn is_out_of_reach(&self, server: IpAddr, connection: ConnectionId) -> bool {
        let attempts = self.servers.get(&server);
        let last = attempts.and_then(|attempts| attempts.out_of_reach_for);
        last.is_some_and(|last| connection <= last)
    }

    /// Records that the attempt has ended, or that the connection is no longer wanted. Returns the
    /// next one in order.
    pub(crate) fn end(&mut self, server: IpAddr, connection: ConnectionId) -> Option<ConnectionId> {
        let attempts = self.servers.get_mut(&server)?;
        let has_room = attempts.under_way.remove(&connection);
        attempts.waiting.remove(&connection);
        let next = has_room.then(|| attempts.waiting.pop_first()).flatten();
        attempts.under_way.extend(next);
        if attempts.under_way.is_empty() {
            self.servers.remove(&server);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_connect_in_order_of_their_opens() {
        let server: IpAddr = "198.18.2.2".parse().unwrap();
        let other: IpAddr = "198.18.2.3".parse().unwrap();
        let mut connecting = ConnectionAttempts::default();
        let most = ATTEMPTS_PER_SERVER as u64;
        let id = ConnectionId::Opened;
        for flow in 0..most {
            assert_eq!(connecting.begin(server, id(flow)), AttemptState::UnderWay);
        }
        for flow in most..most + 3 {
            assert_eq!(connecting.begin(server, id(flow)), AttemptState::Waiting);
        }
        assert_eq!(connecting.begin(other, id(900)), AttemptState::UnderWay);
        // One that waits may end, and is nobody's turn.
        assert_eq!(connecting.end(server, id(most)), None);
        assert_eq!(connecting.end(server, id(7)), Some(id(most + 1)));
        assert_eq!(
            connecting.state(server, id(most + 1)),
            AttemptState::UnderWay
        );
        assert_eq!(connecting.state(server, id(most)), AttemptState::None);
        assert_eq!(connecting.end(server, id(7)), None, "it has ended already");
        for flow in 0..most + 3 {
            connecting.end(server, id(flow));
        }
        connecting.end(other, id(900));
        assert!(connecting.servers.is_empty());
    }

    #[test]
    fn attempt_result_applies_to_earlier_waiting_flows() {
        let server: IpAddr = "198.18.2.2".parse().unwrap();
        let mut connecting = ConnectionAttempts::default();
        let id = ConnectionId::Opened;
        let last = ATTEMPTS_PER_SERVER as u64 + 5;
        for flow in 0..=last {
            connecting.begin(server, id(flow));
        }
        connecting.end(server, id(3));
        let told = connecting.found_out_of_reach(server);
        assert_eq!(told.len() as u64, last);
        assert!(connecting.is_out_of_reach(server, id(0)), "under way");
        assert!(connecting.is_out_of_reach(server, id(last)), "waiting");
        connecting.begin(server, id(last + 1));
        assert!(!connecting.is_out_of_reach(server, id(last + 1)), "later");
        assert_eq!(connecting.found_out_of_reach(server), [id(last + 1)]);
        assert_eq!(connecting.found_out_of_reach(server), []);
        connecting.answered(server);
        assert!(!connecting.is_out_of_reach(server, id(0)));
    }
}
