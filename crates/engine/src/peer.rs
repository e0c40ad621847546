//! One peer: its session, the link under it, and the flows over it.

use std::collections::BTreeMap;

use reduce::PeerSlot;
use tunnel::{LinkId, Session};
use vocab::{FlowId, NodeId, Time};

use crate::config::{PeerConfig, Prefix};
use crate::report::PeerStatus;

/// Whether a peer can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No link.
    Down,
    /// A link, and something heard on it lately.
    Up,
    /// A link, but nothing heard for some seconds.
    Silent,
}

impl Reach {
    fn text(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Silent => "silent",
        }
    }
}

pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    pub(crate) session: Session,
    pub(crate) slot: PeerSlot,
    pub(crate) reach: Reach,
    /// The link that the session uses.
    pub(crate) link: Option<LinkId>,
    /// The peer answered that it is at a limit: it is left alone until then.
    pub(crate) full_until: Option<Time>,
    /// Which dictionary the peer said it has.
    pub(crate) generation: Option<[u8; 16]>,
    /// Engine numbers of the flows, by what the session calls them.
    pub(crate) flows: BTreeMap<FlowId, u64>,
}

impl Peer {
    /// The length of the longest prefix of this peer that holds the address.
    pub(crate) fn serves(&self, address: std::net::IpAddr) -> Option<u8> {
        self.config
            .prefixes
            .iter()
            .filter(|prefix| prefix.contains(address))
            .map(Prefix::length)
            .max()
    }

    /// Whether new flows may go to it.
    pub(crate) fn takes_flows(&self) -> bool {
        self.reach == Reach::Up && self.full_until.is_none()
    }

    pub(crate) fn status(&self, intercepted: &[NodeId]) -> PeerStatus {
        let statistics = self.session.statistics();
        let milliseconds = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        PeerStatus {
            name: self.config.name.clone(),
            node: self.config.node.to_string(),
            state: self.reach.text().to_owned(),
            intercepted: intercepted.contains(&self.config.node),
            prefixes: self.config.prefixes.iter().map(Prefix::to_string).collect(),
            flows: self.flows.len(),
            rtt_ms: statistics.round_trip_latest.map(milliseconds),
            rtt_min_ms: statistics.round_trip_minimum.map(milliseconds),
            sent_bytes: statistics.sent_bytes,
            received_bytes: statistics.received_bytes,
            retransmitted_bytes: statistics.retransmitted_bytes,
            link_changes: statistics.link_changes,
        }
    }
}
