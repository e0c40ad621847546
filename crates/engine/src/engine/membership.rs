//! Peers that are added and removed, and the grace period of a stop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tunnel::congestion::RememberedPath;
use tunnel::{LinkId, ResetReason, Session};
use vocab::{FlowId, NodeId, SeededRandom, Time};

use super::Engine;
use crate::config::{EngineConfig, PeerConfig};
use crate::io::{EngineEvent, EngineOutput};
use crate::peer::{PeerFilter, PeerReachability, PeerState};
use crate::unreachable_servers::FaultOrigin;

/// The number of refused flows that the peer has not confirmed: as many as a busy peer opens in the
/// round trip before it learns of a limit.
const UNACKNOWLEDGED_OPENS: usize = 1_024;

impl Engine {
    pub(super) fn configure(&mut self, now: Time, config: EngineConfig) {
        let gone: Vec<NodeId> = self
            .peers
            .keys()
            .filter(|node| !config.peers.iter().any(|peer| peer.node == **node))
            .copied()
            .collect();
        for node in gone {
            self.remove_peer(now, node);
        }
        for peer in config.peers.clone() {
            match self.peers.get_mut(&peer.node) {
                Some(known) => known.config = peer,
                None => self.add_peer(now, peer),
            }
        }
        // The dictionary's sizes are fixed at the start; the rest holds from here on.
        self.accelerator_states.configure(
            now,
            &config.policy.accelerators,
            config.limits.memory.as_usize(),
        );
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        let outdated = self.unreachable_servers.forget(|server, fault| {
            let server = server.ip();
            fault == FaultOrigin::Peer || new.peer_for(server) != old.peer_for(server)
        });
        self.readmit(outdated);
        self.passthrough_pairs.forget();
        // Whoever changes this may have changed the peer's packet filter, too.
        for peer in self.peers.values_mut() {
            peer.filter.passed();
        }
        // Prefixes that have changed may overlap those that are bypassed.
        if self.asymmetric_routes.clear() {
            self.put_out_bypassed_routes();
        }
        // Prefixes may have changed under an unchanged set of peers.
        self.intercepted = None;
    }

    /// Records that the peer's process was restarted, perhaps with another configuration or packet
    /// filter: the next connection through it may succeed.
    pub(super) fn peer_restarted(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.filter.passed();
        }
        let config = &self.config;
        let outdated = self.unreachable_servers.forget(|server, fault| {
            fault == FaultOrigin::Peer && config.peer_for(server.ip()) == Some(node)
        });
        self.readmit(outdated);
        self.event(EngineEvent::PeerRestarted { peer: node });
    }

    fn readmit(&mut self, servers: Vec<SocketAddr>) {
        let readmitted = servers.into_iter();
        let readmitted = readmitted.map(|server| EngineOutput::Readmit { server });
        self.outputs.extend(readmitted);
    }

    pub(super) fn add_peer(&mut self, now: Time, config: PeerConfig) {
        let node = config.node;
        let slot = self.dictionary.peer(node);
        let random = SeededRandom::from_seed(self.random.next_u64());
        // What it opens beyond its flows is answered; a peer that takes no note of the answers is not
        // given memory for more of them.
        let flow_limit = self.config.limits.flows + UNACKNOWLEDGED_OPENS;
        let settings = tunnel::SessionConfig {
            flow_limit: self.config.tunnel.flow_limit.min(flow_limit),
            ..self.config.tunnel.clone()
        };
        let mut session = Session::new(settings, self.config.local, node, random, now);
        if let Some(generation) = self.generation_told {
            session.set_hello_blob(Bytes::copy_from_slice(&generation));
        }
        self.peers.insert(
            node,
            PeerState {
                config,
                session,
                slot,
                reach: PeerReachability::Down,
                link: None,
                full_until: None,
                filter: PeerFilter::default(),
                is_offered: false,
                fallbacks: 0,
                violations: crate::violations::ViolationCount::default(),
                remembered: None,
                is_at_share: false,
                refused_at_share: 0,
                refused_by_policy: 0,
                refusals_told: 0,
                refusals_tellable_at: None,
                flows: BTreeMap::new(),
                further_connections: 0,
            },
        );
    }

    /// Makes the next datagram path to a peer start from the properties of an earlier one.
    pub fn remember_path(&mut self, node: NodeId, path: RememberedPath) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.remembered = Some(path);
        }
    }

    /// The properties of the present datagram paths, as far as they are known.
    pub fn measured_paths(&self) -> impl Iterator<Item = (NodeId, RememberedPath)> {
        self.peers
            .iter()
            .filter_map(|(node, peer)| Some((*node, peer.session.datagrams_remembered()?)))
    }

    /// The number of flows with a peer.
    #[must_use]
    pub fn flows_of(&self, node: NodeId) -> usize {
        self.peers.get(&node).map_or(0, |peer| peer.flows.len())
    }

    pub(super) fn remove_peer(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // The peer resets its ends of the flows when it reads this. When it cannot be told, it learns from the
        // end of the link, or from this node's refusal when it dials the next.
        let link = peer.link;
        let last = peer.session.take_leave(now, ResetReason::PeerRemoved);
        if let (Some(link), Some(bytes)) = (link, last) {
            self.outputs
                .push_back(EngineOutput::SendLast { link, bytes });
        }
        let of_peer = self.flows.values().filter(|flow| flow.peer == node);
        let numbers: Vec<u64> = of_peer.map(|flow| flow.number).collect();
        for number in numbers {
            self.fail_flow(
                now,
                number,
                "the operator removed the peer from this node's peers",
            );
        }
        // With the session goes what could still be said of its path; the link tells of the end.
        self.peers.remove(&node);
        let links: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, owner)| **owner == node)
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.links.remove(&link);
            self.offers.remove(&link);
            self.outputs.push_back(EngineOutput::CloseLink {
                link,
                reason: "the operator removed the peer from the configuration".to_owned(),
            });
        }
    }

    pub(super) fn stop(&mut self, now: Time, grace: Duration) {
        self.stop_at = Some(now + grace);
        for peer in self.peers.values_mut() {
            peer.session.goaway(now);
            self.touched.insert(peer.config.node);
        }
    }

    /// Ends all datagram paths in good order. Data that was last sent in packets and is unconfirmed
    /// is sent again on the links.
    pub(super) fn close_paths(&mut self, now: Time) {
        for peer in self.peers.values_mut() {
            peer.remember_path();
            peer.session.close_datagrams(now);
            self.touched.insert(peer.config.node);
        }
        self.settle(now);
    }

    pub(super) fn reset_all(&mut self, now: Time) {
        let flows: Vec<(u64, NodeId, Option<FlowId>)> = self
            .flows
            .values()
            .map(|flow| (flow.number, flow.peer, flow.id()))
            .collect();
        for (number, node, id) in flows {
            if let (Some(id), Some(peer)) = (id, self.peers.get_mut(&node)) {
                peer.session.reset(id, ResetReason::Stopping);
                self.touched.insert(node);
            }
            self.fail_flow(now, number, "the node stopped");
        }
        let directs: Vec<u64> = self.directs.keys().copied().collect();
        for number in directs {
            self.fail_direct(now, number, "the node stopped");
        }
    }
}
