//! Further connections of a far half to its flow's server: each a stream of its own beside the flow's.
//!
//! ```text
//!  half ──ServerCommand──► here ──Connect, Write …──► shell
//!  half ◄──ServerEvent──── here ◄──Connected, Received …── shell
//! ```
//! [`Flow::take_new_connections`] hands a new connection to the engine, which decides when it may
//! be opened. [`Flow::take_gone_connections`] hands over the ended ones. Events wait until the half
//! has put out everything.

use std::collections::{BTreeMap, VecDeque};

use accelerate::{
    AcceleratorInput, ServerCommand, ServerConnection, ServerEvent, ServerFailure, WanEnd,
};
use bytes::Bytes;
use vocab::Time;

use super::lan::{HostState, LanSide, StreamFinish};
use super::stage::FlowStage;
use super::{Flow, FlowFailure, FlowTurn};
use crate::io::{ConnectFailure, ConnectionId, EngineOutput};

/// The memory of one connection beside its bytes, about.
const CONNECTION_MEMORY: usize = 512;

/// The further connections of one flow.
#[derive(Default)]
pub(super) struct ServerConnections {
    open: BTreeMap<ServerConnection, FurtherConnection>,
    /// The events for the half, in this order.
    events: VecDeque<(ServerConnection, ServerEvent)>,
    /// The engine is to have these opened.
    new: Vec<ConnectionId>,
    /// The engine is to forget these.
    gone: Vec<ConnectionId>,
    opened_total: u64,
}

struct FurtherConnection {
    lan: LanSide,
    wanted_at: Time,
    is_paused: bool,
}

impl FurtherConnection {
    fn can_be_written(&self) -> bool {
        self.lan.host == HostState::Standing && self.lan.finish == StreamFinish::Open
    }

    /// Sends the end of our direction once the connection is open.
    fn finish_when_possible(&mut self, outputs: &mut VecDeque<EngineOutput>) {
        let stands = self.lan.connected && self.lan.host == HostState::Standing;
        if stands && self.lan.finish == StreamFinish::Wanted {
            self.lan.flush(outputs);
            self.lan.finish = StreamFinish::Done;
            outputs.push_back(EngineOutput::FinishWrite {
                connection: self.lan.connection,
            });
        }
    }
}

impl ServerConnections {
    /// Bytes of memory that they hold, about.
    pub(super) fn held(&self) -> usize {
        let held = self.open.values().map(|further| further.lan.held());
        held.sum::<usize>() + self.open.len() * CONNECTION_MEMORY
    }

    pub(super) fn flush(&mut self, outputs: &mut VecDeque<EngineOutput>) {
        for further in self.open.values_mut() {
            further.lan.flush(outputs);
        }
    }

    /// Lets the shell read of each, as long as the encoder has room for `ahead` more bytes.
    pub(super) fn grant(&mut self, outputs: &mut VecDeque<EngineOutput>, ahead: usize) {
        let ahead = ahead.min(ServerConnection::READ_AHEAD);
        for further in self.open.values_mut() {
            let lan = &mut further.lan;
            if lan.connected && !lan.finished && !further.is_paused {
                lan.grant(outputs, ahead);
            }
        }
    }

    /// Resets all of them without a report.
    pub(super) fn reset_all(&mut self, outputs: &mut VecDeque<EngineOutput>) {
        for (_, further) in std::mem::take(&mut self.open) {
            self.reset(outputs, &further.lan);
        }
        self.events.clear();
    }

    fn reset(&mut self, outputs: &mut VecDeque<EngineOutput>, lan: &LanSide) {
        let connection = lan.connection;
        outputs.push_back(EngineOutput::Reset { connection });
        self.gone.push(connection);
    }

    fn by_id(&self, connection: ConnectionId) -> Option<ServerConnection> {
        let mut open = self.open.iter();
        let found = open.find(|(_, further)| further.lan.connection == connection);
        found.map(|(which, _)| *which)
    }

    fn tell(&mut self, which: ServerConnection, event: ServerEvent) {
        self.events.push_back((which, event));
    }

    /// Closes a connection whose directions have both ended.
    fn close_if_over(&mut self, outputs: &mut VecDeque<EngineOutput>, which: ServerConnection) {
        let Some(connection) = self
            .open
            .get(&which)
            .filter(|further| further.lan.is_over())
            .map(|further| further.lan.connection)
        else {
            return;
        };
        self.open.remove(&which);
        outputs.push_back(EngineOutput::Close { connection });
        self.gone.push(connection);
        self.tell(which, ServerEvent::Closed);
    }
}

/// The treatment of further connections at the end of their flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FurtherEnd {
    /// Open ones are closed behind the written data.
    Close,
    Reset,
}

/// The shell's events of a further connection.
pub(crate) enum ConnectionEvent {
    Connected(Result<(), ConnectFailure>),
    Received(Bytes),
    Finished,
    /// See [`crate::EngineInput::Failed`].
    Failing,
    /// See [`crate::EngineInput::Aborted`].
    Gone,
    Written(usize),
}

impl Flow {
    /// Connections that wait to be opened since this was last called.
    pub(crate) fn take_new_connections(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.server_connections.new)
    }

    /// Connections that the flow has no more since this was last called.
    pub(crate) fn take_gone_connections(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.server_connections.gone)
    }

    /// Further connections to the server since the flow began.
    pub(crate) fn further_connections(&self) -> u64 {
        self.server_connections.opened_total
    }

    /// Returns whether a connection to the server is established, the flow's own or a further one,
    /// and when it was requested.
    pub(crate) fn attempt(&self, connection: ConnectionId) -> (bool, Time) {
        let connections = &self.server_connections;
        let which = connections.by_id(connection);
        match which.and_then(|which| connections.open.get(&which)) {
            Some(further) => (further.lan.connected, further.wanted_at),
            None => (self.lan.connected, self.started),
        }
    }

    /// Ends all further connections.
    pub(crate) fn end_further_connections(
        &mut self,
        outputs: &mut VecDeque<EngineOutput>,
        end: FurtherEnd,
    ) {
        let connections = &mut self.server_connections;
        if end == FurtherEnd::Close {
            let standing = |_: &ServerConnection, further: &mut FurtherConnection| {
                further.lan.connected && further.lan.host == HostState::Standing
            };
            connections.flush(outputs);
            for (_, further) in connections.open.extract_if(.., standing) {
                let connection = further.lan.connection;
                outputs.push_back(EngineOutput::Close { connection });
                connections.gone.push(connection);
            }
        }
        connections.reset_all(outputs);
    }

    pub(super) fn command_server(
        &mut self,
        turn: &mut FlowTurn<'_>,
        which: ServerConnection,
        command: ServerCommand,
    ) {
        if let ServerCommand::Open = command {
            return self.open_further(turn, which);
        }
        let connections = &mut self.server_connections;
        // It may have failed in the same moment.
        let Some(further) = connections.open.get_mut(&which) else {
            return;
        };
        match command {
            ServerCommand::Open => {}
            ServerCommand::Write(bytes) => {
                if bytes.is_empty() || !further.can_be_written() {
                    return;
                }
                let lan = &mut further.lan;
                if lan.queued + lan.waiting_bytes + bytes.len() > ServerConnection::UNTAKEN_MAX {
                    if let Some(further) = connections.open.remove(&which) {
                        connections.reset(turn.outputs, &further.lan);
                    }
                    return connections.tell(which, ServerEvent::Failed);
                }
                self.received_lan_bytes += bytes.len() as u64;
                match lan.connected {
                    true => lan.write(turn.outputs, bytes),
                    false => lan.hold(bytes),
                }
            }
            ServerCommand::Finish => {
                if further.lan.finish == StreamFinish::Open {
                    further.lan.finish = StreamFinish::Wanted;
                }
                further.finish_when_possible(turn.outputs);
                connections.close_if_over(turn.outputs, which);
            }
            ServerCommand::PauseReading => further.is_paused = true,
            ServerCommand::ResumeReading => further.is_paused = false,
            ServerCommand::Reset => {
                if let Some(further) = connections.open.remove(&which) {
                    connections.reset(turn.outputs, &further.lan);
                }
                connections.events.retain(|(of, _)| *of != which);
            }
        }
    }

    fn open_further(&mut self, turn: &mut FlowTurn<'_>, which: ServerConnection) {
        let connections = &mut self.server_connections;
        // The half has lost count: it may use the number again after this.
        let former = connections.open.remove(&which);
        if let Some(former) = &former {
            connections.reset(turn.outputs, &former.lan);
        }
        let is_refused = self.half == WanEnd::Near
            || former.is_some()
            || connections.open.len() >= ServerConnection::MAX_PER_FLOW
            || turn.connections_left == 0;
        if is_refused {
            let failure = ServerEvent::ConnectFailed(ServerFailure::Limit);
            return connections.tell(which, failure);
        }
        turn.connections_left -= 1;
        let connection = ConnectionId::Opened(*turn.next_opened);
        *turn.next_opened += 1;
        let further = FurtherConnection {
            lan: LanSide::new(connection, false),
            wanted_at: turn.now,
            is_paused: false,
        };
        connections.open.insert(which, further);
        connections.new.push(connection);
        connections.opened_total += 1;
    }

    /// Something happened to a further connection.
    pub(crate) fn further_happened(
        &mut self,
        turn: &mut FlowTurn<'_>,
        connection: ConnectionId,
        happened: ConnectionEvent,
    ) -> Result<(), FlowFailure> {
        let connections = &mut self.server_connections;
        let Some(which) = connections.by_id(connection) else {
            return Ok(());
        };
        let Some(further) = connections.open.get_mut(&which) else {
            return Ok(());
        };
        let lan = &mut further.lan;
        match happened {
            ConnectionEvent::Connected(Ok(())) => {
                for bytes in lan.connected() {
                    lan.write(turn.outputs, bytes);
                }
                further.finish_when_possible(turn.outputs);
                connections.tell(which, ServerEvent::Connected);
            }
            ConnectionEvent::Connected(Err(failure)) => {
                connections.open.remove(&which);
                connections.gone.push(connection);
                connections.tell(which, ServerEvent::ConnectFailed(server_failure(failure)));
            }
            ConnectionEvent::Received(bytes) => {
                lan.credit = lan.credit.saturating_sub(bytes.len());
                self.sent_lan_bytes += bytes.len() as u64;
                connections.tell(which, ServerEvent::Received(bytes));
            }
            ConnectionEvent::Finished => {
                lan.finished = true;
                connections.tell(which, ServerEvent::Finished);
                connections.close_if_over(turn.outputs, which);
            }
            ConnectionEvent::Failing => {
                lan.host = HostState::Failed;
                lan.drop_writes();
            }
            ConnectionEvent::Gone => {
                connections.open.remove(&which);
                connections.gone.push(connection);
                connections.tell(which, ServerEvent::Failed);
            }
            ConnectionEvent::Written(bytes) => {
                lan.note_written(bytes);
                connections.tell(which, ServerEvent::Taken(bytes));
                connections.close_if_over(turn.outputs, which);
            }
        }
        self.note_progress(turn.now);
        self.tell_server_events(turn)?;
        self.pump(turn)
    }

    /// Reports the events of its further connections to the half, in order.
    pub(super) fn tell_server_events(
        &mut self,
        turn: &mut FlowTurn<'_>,
    ) -> Result<(), FlowFailure> {
        while let Some((which, event)) = self.server_connections.events.pop_front() {
            let FlowStage::Running(accelerator) = &mut self.stage else {
                self.server_connections.events.clear();
                break;
            };
            accelerator.handle(turn.now, AcceleratorInput::Server(which, event));
            self.drain_accelerator(turn)?;
        }
        Ok(())
    }
}

/// Maps a connect failure to the shorter list that a half receives.
fn server_failure(failure: ConnectFailure) -> ServerFailure {
    match failure {
        ConnectFailure::Refused => ServerFailure::Refused,
        ConnectFailure::TimedOut | ConnectFailure::AnswersElsewhere => ServerFailure::TimedOut,
        ConnectFailure::Exhausted => ServerFailure::Limit,
        ConnectFailure::Unreachable
        | ConnectFailure::NotPermitted
        | ConnectFailure::Filtered
        | ConnectFailure::Other => ServerFailure::Unreachable,
    }
}
