//! One peer: its session, the link under it, and the flows over it.

use std::collections::BTreeMap;
use std::time::Duration;

use reduce::PeerSlot;
use tunnel::congestion::RememberedPath;
use tunnel::transport::{PathCondition, SuspendReason};
use tunnel::{LinkId, Session};
use vocab::{FlowId, NodeId, Time};

use crate::config::{IpPrefix, PeerConfig};
use crate::report::{PathStatus, PeerStatus, UdpStatus};
use crate::violations::ViolationCount;

/// The reachability of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerReachability {
    /// No link.
    Down,
    /// A link that was active lately.
    Up,
    /// A link that has been silent for some seconds.
    Silent,
}

impl PeerReachability {
    fn text(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Silent => "silent",
        }
    }
}

pub(crate) struct PeerState {
    pub(crate) config: PeerConfig,
    pub(crate) session: Session,
    pub(crate) slot: PeerSlot,
    pub(crate) reach: PeerReachability,
    /// The link that the session uses.
    pub(crate) link: Option<LinkId>,
    /// The peer answered that it is at a limit: it is left alone until then.
    pub(crate) full_until: Option<Time>,
    /// The known state of the packet filter on the peer's machine.
    pub(crate) filter: PeerFilter,
    /// True if the peer knows, over the present link, where this node receives packets.
    pub(crate) is_offered: bool,
    /// The number of times that flows fell back from packets to a link.
    pub(crate) fallbacks: u64,
    /// The number of times that it broke the rules of the protocol.
    pub(crate) violations: ViolationCount,
    /// The measured properties of the last datagram path to the peer.
    pub(crate) remembered: Option<RememberedPath>,
    /// It has its share of the flows, and gets no more.
    pub(crate) is_at_share: bool,
    /// Flows it opened beyond its share, since the start.
    pub(crate) refused_at_share: u64,
    /// Flows it opened that the policy forbids, since the start.
    pub(crate) refused_by_policy: u64,
    /// The number of these that were reported.
    pub(crate) refusals_told: u64,
    /// The earliest time of the next report.
    pub(crate) refusals_tellable_at: Option<Time>,
    /// The engine's numbers of the flows, by the session's ids.
    pub(crate) flows: BTreeMap<FlowId, u64>,
    /// The number of their further connections to servers.
    pub(crate) further_connections: usize,
}

/// The time for which intercepted connections bypass a peer whose machine drops them. Each trial
/// costs a client about three seconds, so the pause doubles up to the greatest.
const FILTERED_MIN: Duration = Duration::from_secs(60);
const FILTERED_MAX: Duration = Duration::from_secs(3600);

/// The packet filter of a peer's machine, which passes or drops connections with a client's
/// address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerFilter {
    /// It does not; intercepted connections pass the peer by until then.
    pub(crate) blocked_until: Option<Time>,
    /// The last pause.
    pause: Option<Duration>,
}

impl PeerFilter {
    /// The peer's machine dropped a connection. True when that is news.
    pub(crate) fn dropped(&mut self, now: Time) -> bool {
        // Connections that were opened together fail together.
        if self.blocked_until.is_some() {
            return false;
        }
        let pause = self
            .pause
            .map_or(FILTERED_MIN, |pause| (pause * 2).min(FILTERED_MAX));
        self.pause = Some(pause);
        self.blocked_until = Some(now + pause);
        true
    }

    /// A connection got through.
    pub(crate) fn passed(&mut self) {
        *self = Self::default();
    }

    /// Time has passed.
    pub(crate) fn expire(&mut self, now: Time) {
        self.blocked_until = self.blocked_until.filter(|until| *until > now);
    }
}

impl PeerState {
    /// The connections that count against the peer's share: its flows, and their further
    /// connections.
    pub(crate) fn open(&self) -> usize {
        self.flows.len() + self.further_connections
    }

    /// Keeps the properties that the next datagram path to this peer may start from.
    pub(crate) fn remember_path(&mut self) {
        self.remembered = self.session.datagrams_remembered().or(self.remembered);
    }

    /// Bytes in flight that fill the path to the peer without a queue; 0 before anything was measured.
    /// While the path's rate is still searched, the rate delivered so far fills a part of the path.
    pub(crate) fn path_bytes(&self) -> u64 {
        let path = self.session.datagrams_remembered().or(self.remembered);
        let so_far = || {
            let status = self.session.datagram_status()?;
            Some((status.bandwidth, status.rtt_minimum?))
        };
        path.map(|path| (path.rate, path.rtt))
            .or_else(so_far)
            .map_or(0, |(rate, rtt)| {
                let bits = rate.bits_per_second() as f64 * rtt.as_secs_f64();
                (bits / 8.0) as u64
            })
    }

    /// Returns true if the peer accepts new flows.
    pub(crate) fn takes_flows(&self) -> bool {
        self.reach == PeerReachability::Up && self.full_until.is_none()
    }

    /// Returns true if new connections to the peer may be intercepted.
    pub(crate) fn takes_intercepted(&self) -> bool {
        self.takes_flows() && self.filter.blocked_until.is_none()
    }

    pub(crate) fn status(&self, intercepted: &[NodeId]) -> PeerStatus {
        let statistics = self.session.statistics();
        let milliseconds = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        PeerStatus {
            name: self.config.name.clone(),
            node: self.config.node.to_string(),
            state: self.reach.text().to_owned(),
            intercepted: intercepted.contains(&self.config.node),
            filtered: self.filter.blocked_until.is_some(),
            prefixes: self
                .config
                .prefixes
                .iter()
                .map(IpPrefix::to_string)
                .collect(),
            flows: self.flows.len(),
            refused_at_share_total: self.refused_at_share,
            refused_by_policy_total: self.refused_by_policy,
            rtt_ms: statistics.round_trip_latest.map(milliseconds),
            rtt_min_ms: statistics.round_trip_minimum.map(milliseconds),
            sent_bytes: statistics.sent_bytes + statistics.sent_packet_bytes,
            received_bytes: statistics.received_bytes + statistics.received_packet_bytes,
            link_sent_bytes: statistics.sent_bytes,
            link_received_bytes: statistics.received_bytes,
            violations_total: self.violations.total(),
            retransmitted_bytes: statistics.retransmitted_bytes,
            link_changes: statistics.link_changes,
            path: self.path_status(),
        }
    }

    /// The reason why flows do not travel by UDP; `None` when they do, or when there is no link.
    pub(crate) fn fallback(&self) -> Option<TlsFallback> {
        self.link?;
        match self
            .session
            .datagram_status()
            .map(|status| status.condition)
        {
            Some(PathCondition::Carrying) if self.session.prefers_link() => {
                Some(TlsFallback::Suspended(SuspendReason::SlowerThanLink))
            }
            Some(PathCondition::Carrying) => None,
            Some(PathCondition::Probing) => Some(TlsFallback::Unanswered),
            Some(PathCondition::Suspended(reason)) => Some(TlsFallback::Suspended(reason)),
            None if self.is_offered => Some(TlsFallback::NotTakenThere),
            None => Some(TlsFallback::NotTakenHere),
        }
    }

    fn path_status(&self) -> PathStatus {
        let fallback = self.fallback();
        PathStatus {
            carries: match (self.link, fallback) {
                (None, _) => "none",
                (Some(_), None) => "udp",
                (Some(_), Some(_)) => "tls",
            },
            fallback: fallback.map(TlsFallback::text),
            fallbacks_total: self.fallbacks,
            udp: self.session.datagram_status().as_ref().map(udp_status),
        }
    }
}

/// The reason why flows travel by TLS although UDP may be faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsFallback {
    /// By the configuration, or this node has no socket for it.
    NotTakenHere,
    /// The peer has offered none, or not yet.
    NotTakenThere,
    /// It was not answered yet.
    Unanswered,
    /// UDP carried the flows, and no longer does.
    Suspended(SuspendReason),
}

impl TlsFallback {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NotTakenHere => "this node does not use UDP",
            Self::NotTakenThere => "the peer does not use UDP",
            Self::Unanswered => "the peer has not answered by UDP yet",
            Self::Suspended(reason) => match reason {
                SuspendReason::NoAnswer => "the peer does not answer by UDP any more",
                SuspendReason::AddressUnproved => {
                    "the peer does not answer at the source address of its UDP packets"
                }
                SuspendReason::TooNarrow => {
                    "the path carries only UDP packets shorter than 1,200 bytes"
                }
                SuspendReason::ClosedByPeer => "the peer has closed its UDP path",
                SuspendReason::ClosedHere => "this node has closed its UDP path",
                SuspendReason::SlowerThanLink => {
                    "the network slows UDP down, and TLS over TCP is faster"
                }
                SuspendReason::KeysUsedUp => {
                    "the UDP keys are used up, or too many forged packets arrived"
                }
            },
        }
    }

    /// The operator's action that would let flows travel by UDP.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::NotTakenHere => "write udp = \"auto\" under [wan] and restart the node",
            Self::NotTakenThere => {
                "write udp = \"auto\" under [wan] of the peer's configuration, or upgrade the peer"
            }
            Self::Unanswered | Self::Suspended(SuspendReason::NoAnswer) => {
                "if this continues, a firewall blocks UDP or the path is broken: allow UDP to the WAN port \
                 ([wan] listen) of the node that listens"
            }
            Self::Suspended(SuspendReason::TooNarrow) => {
                "allow IP packets of 1,248 bytes on the path to the peer, or correct the path's MTU"
            }
            Self::Suspended(SuspendReason::SlowerThanLink) => {
                "configure the network to treat UDP to the peer like TCP"
            }
            Self::Suspended(
                SuspendReason::AddressUnproved
                | SuspendReason::ClosedByPeer
                | SuspendReason::ClosedHere
                | SuspendReason::KeysUsedUp,
            ) => "no action is needed: the node tries UDP again on the next link",
        }
    }
}

fn udp_status(status: &tunnel::transport::TransportStatus) -> UdpStatus {
    let milliseconds = |span: Duration| span.as_secs_f64() * 1e3;
    let percent = |part: u64| 100.0 * part as f64 / status.sent_packets.max(1) as f64;
    let still_missing = status
        .lost_packets
        .saturating_sub(status.recovered_by_peer_packets);
    UdpStatus {
        rate_bit_s: status.bandwidth.bits_per_second(),
        pacing_bit_s: status.pacing_rate.bits_per_second(),
        delivered_packets: status.sent_packets.saturating_sub(status.lost_packets),
        sent_packets: status.sent_packets,
        sent_bytes: status.sent_bytes,
        received_bytes: status.received_bytes,
        loss_percent: percent(status.lost_packets),
        loss_after_repair_percent: percent(still_missing),
        repair_percent: percent(status.sent_repairs),
        rtt_min_ms: status.rtt_minimum.map(milliseconds),
        rtt_ms: status.rtt_latest.map(milliseconds),
        queueing_ms: status
            .rtt_minimum
            .map(|least| milliseconds(status.rtt_smoothed.saturating_sub(least))),
        congestion: status.congestion,
        window_bytes: status.window_bytes,
        in_flight_bytes: status.in_flight_bytes,
        mtu_bytes: status.mtu_bytes,
        refused_packets: status.refused_packets,
    }
}

#[cfg(test)]
mod filter_tests {
    use super::*;

    #[test]
    fn pause_doubles_and_resets_when_a_connection_passes() {
        let mut filter = PeerFilter::default();
        let mut now = Time::ZERO;
        let mut pause = FILTERED_MIN;
        for _ in 0..10 {
            assert!(filter.dropped(now));
            assert!(!filter.dropped(now), "told once");
            now = now + pause - Duration::from_millis(1);
            filter.expire(now);
            assert!(filter.blocked_until.is_some());
            now += Duration::from_millis(1);
            filter.expire(now);
            assert_eq!(filter.blocked_until, None);
            pause = (pause * 2).min(FILTERED_MAX);
        }
        filter.passed();
        filter.dropped(now);
        filter.expire(now + FILTERED_MIN);
        assert_eq!(filter.blocked_until, None);
    }
}
