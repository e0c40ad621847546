//! One turn of one flow, and its consequences: accounts, timers, the end.

use tunnel::ResetReason;
use vocab::{FlowId, NodeId, Time};

use std::collections::VecDeque;

use super::{CLOSED_KEPT, Engine};
use crate::direct::DirectConnection;
use crate::flow::{Flow, FlowEnd, FlowFailure, FlowTurn, FurtherEnd};
use crate::io::{EngineEvent, EngineOutput};
use crate::report::FlowExplanation;
use crate::shares::ConnectionKind;
use crate::why;

impl Engine {
    pub(super) fn flow_number(&self, node: NodeId, id: FlowId) -> Option<u64> {
        self.peers.get(&node)?.flows.get(&id).copied()
    }

    pub(super) fn turn_of(
        &mut self,
        now: Time,
        node: NodeId,
        id: FlowId,
        work: impl FnOnce(&mut Flow, &mut FlowTurn<'_>) -> Result<(), FlowFailure>,
    ) {
        if let Some(number) = self.flow_number(node, id) {
            self.turn(now, number, work);
        }
    }

    /// Runs `work` on one flow and ends the flow if it is over or broken.
    pub(super) fn turn(
        &mut self,
        now: Time,
        number: u64,
        work: impl FnOnce(&mut Flow, &mut FlowTurn<'_>) -> Result<(), FlowFailure>,
    ) {
        let budget = self.budget();
        let Some(peer) = self.flows.get(&number).map(|flow| flow.peer) else {
            return;
        };
        let connections_left = self.connections_left(peer);
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&flow.peer) else {
            return;
        };
        let mut turn = FlowTurn {
            now,
            session: &mut peer.session,
            dictionary: &mut self.dictionary,
            claims: &mut self.claims,
            kept: &mut self.kept_contents,
            outputs: &mut self.outputs,
            budget,
            next_opened: &mut self.next_opened,
            connections_left,
        };
        let result = work(flow, &mut turn);
        let wants_server = flow.take_wish_for_server();
        let wants_opening = flow.take_wish_for_opening();
        let id = flow.id();
        self.touched.insert(flow.peer);
        match result {
            Ok(()) => match flow.end(&peer.session) {
                None => {
                    self.account(number);
                    if wants_server {
                        self.open_server(now, number);
                    }
                    self.follow_further_connections(now, number);
                    if wants_opening {
                        self.open_late(now, number);
                    }
                }
                Some(FlowEnd::Closed) => {
                    let connection = flow.connection();
                    self.outputs.push_back(EngineOutput::Close { connection });
                    flow.end_further_connections(&mut self.outputs, FurtherEnd::Close);
                    self.forget_flow(now, number, "closed");
                }
                Some(FlowEnd::HostReset) => {
                    if let Some(id) = id {
                        peer.session.reset(id, ResetReason::HostReset);
                    }
                    self.forget_flow(
                        now,
                        number,
                        "a host on this node's LAN side reset the connection",
                    );
                }
                Some(FlowEnd::PeerHostReset) => {
                    let reason = why::reset_text(ResetReason::HostReset);
                    match flow.is_host_gone() {
                        true => self.forget_failed_flow(now, number, reason),
                        false => self.fail_flow(now, number, reason),
                    }
                }
            },
            Err(broken) => {
                if let Some(id) = id {
                    peer.session.reset(id, broken.reset);
                }
                let (node, is_peers_fault) = (flow.peer, broken.is_peers_fault());
                if let Some(cause) = broken.recurs {
                    let (client, server) = (flow.client.ip(), flow.server);
                    self.passthrough_pairs.closed(now, client, server, cause);
                }
                if is_peers_fault {
                    self.misbehaved(now, node, broken.text.clone());
                }
                self.fail_flow(now, number, &broken.text);
            }
        }
    }

    /// Brings the totals and timers up to date with a flow that had a turn.
    pub(super) fn account(&mut self, number: u64) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let buffered = flow.buffered();
        self.buffered = self.buffered + buffered - flow.accounted;
        flow.accounted = buffered;
        let timeout = flow.timeout();
        if flow.timer != timeout {
            if let Some(at) = flow.timer {
                self.timers.remove(&(at, number));
            }
            if let Some(at) = timeout {
                self.timers.insert((at, number));
            }
            flow.timer = timeout;
        }
    }

    /// Resets the host's connection and forgets the flow.
    pub(super) fn fail_flow(&mut self, now: Time, number: u64, reason: &str) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let connection = flow.connection();
        self.outputs.push_back(EngineOutput::Reset { connection });
        self.forget_failed_flow(now, number, reason);
    }

    /// Forgets a flow whose host has received its end.
    pub(super) fn forget_failed_flow(&mut self, now: Time, number: u64, reason: &str) {
        self.totals.failed += 1;
        self.event(EngineEvent::FlowFailed {
            flow: number,
            reason: reason.to_owned(),
        });
        self.forget_flow(now, number, reason);
    }

    pub(super) fn forget_flow(&mut self, now: Time, number: u64, state: &str) {
        let Some(mut flow) = self.flows.remove(&number) else {
            return;
        };
        self.claims.ended(number);
        self.accelerator_states.flow_ended(now, number);
        self.attempt_ended(flow.server.ip(), flow.connection());
        self.forget_further_connections(&mut flow);
        if flow.via.is_some() {
            self.sources.closed(flow.client.ip(), ConnectionKind::Flow);
        }
        self.buffered -= flow.accounted;
        if let Some(at) = flow.timer {
            self.timers.remove(&(at, number));
        }
        self.connections.remove(&flow.connection());
        self.totals.lan_bytes += flow.sent_lan_bytes + flow.received_lan_bytes;
        self.totals.wan_bytes += flow.sent_wan_bytes + flow.received_wan_bytes;
        if let Some(peer) = self.peers.get_mut(&flow.peer) {
            if let Some(id) = flow.id() {
                peer.flows.remove(&id);
            }
            let why = why::explain(now, &flow, peer, state);
            self.remember_closed(why);
        }
    }

    /// Runs `work` on a direct connection, and forgets it when it is over.
    pub(super) fn turn_direct(
        &mut self,
        now: Time,
        number: u64,
        work: impl FnOnce(&mut DirectConnection, &mut VecDeque<EngineOutput>),
    ) {
        let Some(direct) = self.directs.get_mut(&number) else {
            return;
        };
        work(direct, &mut self.outputs);
        if let Some(end) = direct.end() {
            return self.forget_direct(now, number, end);
        }
        let timeout = direct.timeout();
        if direct.timer != timeout {
            if let Some(at) = direct.timer {
                self.timers.remove(&(at, number));
            }
            if let Some(at) = timeout {
                self.timers.insert((at, number));
            }
            direct.timer = timeout;
        }
    }

    /// Resets the remaining ends of a direct connection at once, and forgets it.
    pub(super) fn fail_direct(&mut self, now: Time, number: u64, reason: &str) {
        if let Some(direct) = self.directs.get(&number) {
            direct.reset_at_once(&mut self.outputs);
            self.forget_direct(now, number, reason);
        }
    }

    pub(super) fn forget_direct(&mut self, now: Time, number: u64, state: &str) {
        let Some(direct) = self.directs.remove(&number) else {
            return;
        };
        self.sources
            .closed(direct.client.ip(), ConnectionKind::Direct);
        if let Some(at) = direct.timer {
            self.timers.remove(&(at, number));
        }
        for connection in direct.connections() {
            self.connections.remove(&connection);
        }
        let why = why::explain_direct(now, &direct, state);
        self.remember_closed(why);
    }

    pub(super) fn remember_closed(&mut self, why: FlowExplanation) {
        if self.closed.len() == CLOSED_KEPT {
            self.closed.pop_front();
        }
        self.closed.push_back(why);
    }
}
