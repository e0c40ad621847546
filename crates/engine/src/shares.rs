//! The share of the node's flows that one client, or one peer, may have.
//!
//! A source takes at most a share of the places that the others leave. With a share of one half,
//! the first source has half of all places, the next one half of the other half, and so on. So a
//! new source finds a place even when several sources take all they get. The same rule applies to
//! peers, where there are several.
//!
//! A source is an IPv4 address, or the /64 that an IPv6 host can fill by itself.
//!
//! A source at its share has its new connections go to their servers directly, as without a node.
//! The node carries some of them itself, up to half of the places left to others; beyond that they
//! are reset. Long before, interception is asked to bypass the source.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::config::{EngineLimits, IpPrefix};

/// The time for which a source at its share is bypassed: its new connections then pass by in the
/// kernel. Afterwards the next one shows whether there is room again.
pub(crate) const SOURCE_PASSES_FOR: Duration = Duration::from_secs(10);
/// Connections beyond the limit of flows that may still go directly while interception is being
/// taken away; past it they are reset.
pub(crate) const DIRECT_BEYOND_LIMIT: usize = 1_000;
/// The least share: a browser opens so many connections at once, and a nearly full node should
/// serve sources that need little.
const LEAST_SHARE: usize = 8;
/// Sources at their share that `status` names.
const SOURCES_NAMED: usize = 8;

/// The source that an address belongs to, by its first address: itself in IPv4, its /64 in IPv6.
#[must_use]
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

/// The addresses of a source.
pub(crate) fn network_of(source: IpAddr) -> IpPrefix {
    let length = if source.is_ipv4() { 32 } else { 64 };
    IpPrefix::around(source, length).expect("no address has fewer bits")
}

/// The connections that a source has open at this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SourceCount {
    flows: usize,
    directs: usize,
}

/// The kind of a connection: a flow, or a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Flow,
    Direct,
}

/// The connections that clients have open at this node.
#[derive(Debug, Default)]
pub(crate) struct SourceShares {
    counts: BTreeMap<IpAddr, SourceCount>,
    /// Connections that went directly, or were reset, because their source was at its share.
    pub(crate) at_share_total: u64,
}

impl SourceShares {
    pub(crate) fn opened(&mut self, client: IpAddr, kind: ConnectionKind) {
        let count = self.counts.entry(source_of(client)).or_default();
        *count.of(kind) += 1;
    }

    pub(crate) fn closed(&mut self, client: IpAddr, kind: ConnectionKind) {
        let source = source_of(client);
        let Some(count) = self.counts.get_mut(&source) else {
            return;
        };
        let open = count.of(kind);
        *open = open.saturating_sub(1);
        if *count == SourceCount::default() {
            self.counts.remove(&source);
        }
    }

    /// Returns true if another connection of this kind would exceed the source's share, when so
    /// many connections are open in total.
    pub(crate) fn is_at_share(
        &self,
        limits: &EngineLimits,
        open: usize,
        client: IpAddr,
        kind: ConnectionKind,
    ) -> bool {
        let own = self.open_of(client);
        // At its limit the node carries some more directly, while interception is taken away.
        let places = match kind {
            ConnectionKind::Direct if open >= limits.flows => limits.flows + DIRECT_BEYOND_LIMIT,
            ConnectionKind::Flow | ConnectionKind::Direct => limits.flows,
        };
        let percent = match kind {
            ConnectionKind::Flow => usize::from(limits.source_flows_percent),
            // Half of what is left to others.
            ConnectionKind::Direct => (100 + usize::from(limits.source_flows_percent)) / 2,
        };
        own >= share(percent, places, open.saturating_sub(own))
    }

    /// The sources that have reached their share, with the numbers of their open connections: the
    /// largest first.
    pub(crate) fn at_share(&self, limits: &EngineLimits, open: usize) -> Vec<(IpPrefix, usize)> {
        let mut at_share: Vec<_> = self
            .counts
            .iter()
            .filter(|(source, _)| self.is_at_share(limits, open, **source, ConnectionKind::Flow))
            .map(|(source, count)| (network_of(*source), count.flows + count.directs))
            .collect();
        at_share.sort_by_key(|(_, open)| std::cmp::Reverse(*open));
        at_share.truncate(SOURCES_NAMED);
        at_share
    }

    /// The number of connections that the client's source has open.
    pub(crate) fn open_of(&self, client: IpAddr) -> usize {
        let count = self.count(client);
        count.flows + count.directs
    }

    fn count(&self, client: IpAddr) -> SourceCount {
        let count = self.counts.get(&source_of(client));
        count.copied().unwrap_or_default()
    }
}

impl SourceCount {
    fn of(&mut self, kind: ConnectionKind) -> &mut usize {
        match kind {
            ConnectionKind::Flow => &mut self.flows,
            ConnectionKind::Direct => &mut self.directs,
        }
    }
}

/// Returns the percentage of the places that others leave of a limit, at least [`LEAST_SHARE`].
pub(crate) fn share(percent: usize, limit: usize, others: usize) -> usize {
    (limit.saturating_sub(others) * percent / 100).max(LEAST_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(flows: usize, source_flows_percent: u8) -> EngineLimits {
        EngineLimits {
            flows,
            source_flows_percent,
            ..EngineLimits::default()
        }
    }

    fn client(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, 10, high, low])
    }

    /// Opens as many flows as the source gets.
    fn fill(
        sources: &mut SourceShares,
        limits: &EngineLimits,
        open: &mut usize,
        client: IpAddr,
    ) -> usize {
        let before = *open;
        while *open < limits.flows
            && !sources.is_at_share(limits, *open, client, ConnectionKind::Flow)
        {
            sources.opened(client, ConnectionKind::Flow);
            *open += 1;
        }
        *open - before
    }

    #[test]
    fn each_source_gets_a_share_of_the_rest() {
        let limits = limits(10_000, 50);
        let (mut sources, mut open) = (SourceShares::default(), 0);
        let got: Vec<usize> = (0..4)
            .map(|number| fill(&mut sources, &limits, &mut open, client(number)))
            .collect();
        assert_eq!(got, [5_000, 2_500, 1_250, 625]);
    }

    #[test]
    fn tenth_greedy_source_still_gets_a_place() {
        let limits = limits(9_872, 50);
        let (mut sources, mut open) = (SourceShares::default(), 0);
        for number in 0..9 {
            fill(&mut sources, &limits, &mut open, client(number));
        }
        assert_eq!(fill(&mut sources, &limits, &mut open, client(99)), 10);
        assert!(open < limits.flows);
    }

    #[test]
    fn full_share_is_bounded_only_by_the_node() {
        let limits = limits(100, 100);
        let (mut sources, mut open) = (SourceShares::default(), 0);
        assert_eq!(fill(&mut sources, &limits, &mut open, client(1)), 100);
    }

    #[test]
    fn direct_connections_exceed_the_flow_share() {
        let limits = limits(100, 50);
        let (mut sources, mut open) = (SourceShares::default(), 0);
        assert_eq!(fill(&mut sources, &limits, &mut open, client(1)), 50);
        while !sources.is_at_share(&limits, open, client(1), ConnectionKind::Direct) {
            sources.opened(client(1), ConnectionKind::Direct);
            open += 1;
        }
        assert_eq!(open, 75);
        assert_eq!(fill(&mut sources, &limits, &mut open, client(2)), 12);
    }

    #[test]
    fn ipv6_network_is_one_source_and_closing_releases() {
        let limits = limits(16, 50);
        let mut sources = SourceShares::default();
        let [one, other]: [IpAddr; 2] =
            ["2001:2::1", "2001:2::ffff:1"].map(|text| text.parse().unwrap());
        for _ in 0..4 {
            sources.opened(one, ConnectionKind::Flow);
            sources.opened(other, ConnectionKind::Flow);
        }
        assert!(sources.is_at_share(&limits, 8, one, ConnectionKind::Flow));
        let named = sources.at_share(&limits, 8);
        assert_eq!(named, [("2001:2::/64".parse().unwrap(), 8)]);
        for _ in 0..4 {
            sources.closed(one, ConnectionKind::Flow);
            sources.closed(other, ConnectionKind::Flow);
        }
        assert!(sources.counts.is_empty());
    }
}
