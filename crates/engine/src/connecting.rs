//! Connections to servers that are being opened for peers: few at a time to one server.
//!
//! A server that does not answer keeps each attempt for ten seconds. A peer that opens thousands of
//! flows to it would otherwise have a socket for each of them wait so long. Here the others wait in
//! the order in which they came, without a socket, and fail when they have waited as long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// Attempts under way to one server. A server that answers does so within a millisecond, and takes
/// hundreds of thousands a second this way.
pub(crate) const ATTEMPTS_PER_SERVER: usize = 256;
/// A flow that has not had its turn by then fails as if its server had not answered: as long as an
/// attempt takes at most.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);

/// The attempts and who waits for one; flows by their numbers, which follow the order of their opens.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    servers: BTreeMap<IpAddr, Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    under_way: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

/// Where a flow without a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    UnderWay,
    Waiting,
    /// It has failed, or was never to be made.
    None,
}

impl Connecting {
    /// A flow wants its server's connection: whether it is to be opened now, or later.
    pub(crate) fn begin(&mut self, server: IpAddr, flow: u64) -> Attempt {
        let attempts = self.servers.entry(server).or_default();
        if attempts.under_way.len() < ATTEMPTS_PER_SERVER {
            attempts.under_way.insert(flow);
            return Attempt::UnderWay;
        }
        attempts.waiting.insert(flow);
        Attempt::Waiting
    }

    pub(crate) fn state(&self, server: IpAddr, flow: u64) -> Attempt {
        match self.servers.get(&server) {
            Some(attempts) if attempts.under_way.contains(&flow) => Attempt::UnderWay,
            Some(attempts) if attempts.waiting.contains(&flow) => Attempt::Waiting,
            Some(_) | None => Attempt::None,
        }
    }

    /// The flow's attempt has ended, or the flow itself; returns the flow whose turn it is now.
    pub(crate) fn end(&mut self, server: IpAddr, flow: u64) -> Option<u64> {
        let attempts = self.servers.get_mut(&server)?;
        let has_room = attempts.under_way.remove(&flow);
        attempts.waiting.remove(&flow);
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
    fn flows_wait_for_their_turn_in_the_order_of_their_opens() {
        let server: IpAddr = "198.18.2.2".parse().unwrap();
        let other: IpAddr = "198.18.2.3".parse().unwrap();
        let mut connecting = Connecting::default();
        let most = ATTEMPTS_PER_SERVER as u64;
        for flow in 0..most {
            assert_eq!(connecting.begin(server, flow), Attempt::UnderWay);
        }
        for flow in most..most + 3 {
            assert_eq!(connecting.begin(server, flow), Attempt::Waiting);
        }
        assert_eq!(connecting.begin(other, 900), Attempt::UnderWay);
        // One that waits may end, and is nobody's turn.
        assert_eq!(connecting.end(server, most), None);
        assert_eq!(connecting.end(server, 7), Some(most + 1));
        assert_eq!(connecting.state(server, most + 1), Attempt::UnderWay);
        assert_eq!(connecting.state(server, most), Attempt::None);
        assert_eq!(connecting.end(server, 7), None, "it has ended already");
        for flow in 0..most + 3 {
            connecting.end(server, flow);
        }
        connecting.end(other, 900);
        assert!(connecting.servers.is_empty());
    }
}
