//! Connections to servers for peers: their order, their failures, and their number.

use std::net::IpAddr;

use vocab::{NodeId, Time};

use super::{Engine, UNREACHABLE_AFTER};
use crate::connecting::{AttemptState, WAIT_MAX};
use crate::flow::{ConnectionEvent, Flow, FurtherEnd};
use crate::io::{ConnectFailure, ConnectionId};
use crate::why;

impl Engine {
    /// Makes a connection fail as if its server were unreachable, at the time at which its flow's
    /// peer learns it.
    pub(super) fn look_out_of_reach(&mut self, now: Time, connection: ConnectionId) {
        let number = self.connections.get(&connection);
        if let Some(flow) = number.and_then(|number| self.flows.get(number)) {
            let at = flow.started + UNREACHABLE_AFTER;
            self.unreachable.insert((at.max(now), connection));
        }
    }

    /// Fails the connections whose servers are out of reach, or are to look so, and when that is due.
    pub(super) fn fail_unreachable(&mut self, now: Time) {
        while let Some((at, connection)) = self.unreachable.first().copied()
            && at <= now
        {
            self.unreachable.pop_first();
            let number = self.connections.get(&connection).copied();
            let Some((number, flow)) =
                number.zip(number.and_then(|number| self.flows.get(&number)))
            else {
                continue;
            };
            let (server, refusal) = (flow.server.ip(), flow.refusal);
            let is_further = flow.connection() != connection;
            let (is_connected, wanted_at) = flow.attempt(connection);
            let failure = match self.connecting.state(server, connection) {
                _ if is_connected => continue,
                AttemptState::None => ConnectFailure::Unreachable,
                _ if self.connecting.is_out_of_reach(server, connection) => {
                    ConnectFailure::Unreachable
                }
                AttemptState::UnderWay => continue,
                AttemptState::Waiting if now < wanted_at + WAIT_MAX => continue,
                AttemptState::Waiting => ConnectFailure::TimedOut,
            };
            if is_further {
                let happened = ConnectionEvent::Connected(Err(failure));
                self.turn(now, number, |flow, turn| {
                    flow.further_happened(turn, connection, happened)
                });
                continue;
            }
            let reason = match refusal {
                Some(refusal) => refusal.text(),
                None => why::failure_text(failure),
            };
            self.fail_connect(now, number, failure, reason);
        }
    }

    /// Opens the connection to a peer's flow's server, or has the flow wait for its turn.
    pub(super) fn open_server(&mut self, now: Time, number: u64) {
        if let Some(connection) = self.flows.get(&number).map(|flow| flow.connection()) {
            self.open_connection(now, number, connection);
        }
    }

    fn open_connection(&mut self, now: Time, number: u64, connection: ConnectionId) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        // The peer is answered in the time that a server out of reach would have taken.
        if flow.refusal.is_some() {
            return;
        }
        match self.connecting.begin(flow.server.ip(), connection) {
            AttemptState::UnderWay => self.outputs.push_back(flow.connect(connection)),
            AttemptState::Waiting | AttemptState::None => {
                self.unreachable.insert((now + WAIT_MAX, connection));
            }
        }
    }

    /// Ends an attempt, so that the next one may begin.
    pub(super) fn attempt_ended(&mut self, server: IpAddr, connection: ConnectionId) {
        let Some(next) = self.connecting.end(server, connection) else {
            return;
        };
        let number = self.connections.get(&next);
        if let Some(flow) = number.and_then(|number| self.flows.get(number)) {
            self.outputs.push_back(flow.connect(next));
        }
    }

    /// The number of further connections to servers that this peer's flows may open now. With the
    /// open ones they use half of the places that flows leave in the node's limit and the peer's
    /// share, so that as many flows find room.
    pub(super) fn connections_left(&self, node: NodeId) -> usize {
        let limits = &self.config.limits;
        let further = self.further_connections;
        let flows = self.open_in_all() - further;
        let limit = limits.flows.min(limits.comfortable_flows);
        let in_node = (limit.saturating_sub(flows) / 2).saturating_sub(further);
        let of_peer = self.peers.get(&node).map_or(0, |peer| {
            let free = self.share_of(peer).saturating_sub(peer.flows.len());
            (free / 2).saturating_sub(peer.further_connections)
        });
        match self.memory_limit_reached {
            true => 0,
            false => in_node.min(of_peer),
        }
    }

    /// Opens the further connections that a flow requests, and forgets its ended ones.
    pub(super) fn follow_further_connections(&mut self, now: Time, number: u64) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let (new, gone) = (flow.take_new_connections(), flow.take_gone_connections());
        let (node, server) = (flow.peer, flow.server.ip());
        self.count_further_connections(node, new.len(), 0);
        for connection in &new {
            self.connections.insert(*connection, number);
        }
        // One may have been given up in the turn in which it was wanted.
        for connection in new.iter().filter(|connection| !gone.contains(connection)) {
            self.open_connection(now, number, *connection);
        }
        self.forget_connections(node, server, &gone);
    }

    /// Resets the remaining further connections of an ended flow, and forgets them.
    pub(super) fn forget_further_connections(&mut self, flow: &mut Flow) {
        let (node, server) = (flow.peer, flow.server.ip());
        flow.end_further_connections(&mut self.outputs, FurtherEnd::Reset);
        // Those that were wanted in its last turn are not counted yet, and never opened.
        self.count_further_connections(node, flow.take_new_connections().len(), 0);
        self.forget_connections(node, server, &flow.take_gone_connections());
    }

    fn forget_connections(&mut self, node: NodeId, server: IpAddr, gone: &[ConnectionId]) {
        for connection in gone {
            self.connections.remove(connection);
            self.attempt_ended(server, *connection);
        }
        self.count_further_connections(node, 0, gone.len());
    }

    fn count_further_connections(&mut self, node: NodeId, new: usize, gone: usize) {
        self.further_connections = self.further_connections + new - gone;
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.further_connections = peer.further_connections + new - gone;
        }
    }
}
