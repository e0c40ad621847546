//! The host's side of a flow: the bytes read from its connection, the bytes that wait for it, and
//! its ends.

use std::collections::VecDeque;
use std::time::Duration;

use accelerate::AcceleratorInput;
use accelerate::detect;
use bytes::Bytes;
use vocab::Time;

use super::stage::FlowStage;
use super::{Flow, FlowFailure, FlowTurn, PeerHost};
use crate::accelerators::ACCELERATORS;
use crate::io::{ConnectionId, ConnectionOwner, EngineOutput};

/// The raw bytes that may wait for the encoder, read credit included: the bytes of a millisecond at
/// 1 Gbit/s, which is longer than a round of an engine's loop.
pub(super) const READ_AHEAD: usize = 128 * 1024;
/// Read credit is given in portions of at least this size, so that a fast host costs few turns.
const LEAST_CREDIT: usize = 16 * 1024;
/// Bytes that may wait for a slow host before the session is read no further.
pub(super) const WRITE_AHEAD: usize = 256 * 1024;
/// The time for which data sent before a reset may wait without progress for a receiver that does
/// not read: as long as Linux keeps a connection that its program has closed (tcp_fin_timeout, 60
/// s).
pub(crate) const DELIVERY_STALL_LIMIT: Duration = Duration::from_secs(60);
/// The memory of a piece that waits for a host beside its bytes, about: its places in the lists of
/// the engine and of the shell, and its buffer's own head.
const WRITE_OVERHEAD: usize = 128;
/// Bytes for a host that are fewer are copied, so that they do not keep the record alive that they
/// were part of, and joined to those before them that have not left yet.
const COPY_BELOW: usize = 4 * 1024;

/// The LAN side of a flow.
pub(super) struct LanSide {
    pub(super) connection: ConnectionId,
    pub(super) connected: bool,
    /// Bytes that the shell may still read.
    pub(super) credit: usize,
    /// Bytes given to the shell and not yet taken by the operating system.
    pub(super) queued: usize,
    /// The lengths of the pieces that they are in.
    pub(super) writes: VecDeque<usize>,
    /// The bytes of the first of these that were taken.
    pub(super) taken: usize,
    /// Small pieces that are about to be given to the shell together.
    pub(super) gathered: Vec<u8>,
    /// Bytes for the host from before its connection was open.
    pub(super) waiting: VecDeque<Bytes>,
    pub(super) waiting_bytes: usize,
    /// The host has sent its last byte.
    pub(super) finished: bool,
    pub(super) finish: StreamFinish,
    pub(super) host: HostState,
}

/// The progress of a host's reset, or of the failure of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostState {
    /// The connection is established.
    Standing,
    /// Nothing can be written any more; data that arrived before is still read.
    Failed,
    /// All data was read. `finished` is true if the host had ended its stream before the reset.
    Gone { finished: bool },
}

/// The progress of a direction's clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFinish {
    Open,
    /// It follows once all earlier output has gone.
    Wanted,
    Done,
}

impl LanSide {
    pub(super) fn new(connection: ConnectionId, connected: bool) -> Self {
        Self {
            connection,
            connected,
            credit: 0,
            queued: 0,
            writes: VecDeque::new(),
            taken: 0,
            gathered: Vec::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            finished: false,
            finish: StreamFinish::Open,
            host: HostState::Standing,
        }
    }

    /// Bytes of memory that wait for the host, about.
    pub(super) fn held(&self) -> usize {
        let pieces = self.writes.len() + self.waiting.len();
        self.queued + self.taken + self.waiting_bytes + pieces * WRITE_OVERHEAD
    }

    /// Returns true if both directions have ended in good order, and all written bytes were taken.
    pub(super) fn is_over(&self) -> bool {
        self.finished && self.finish == StreamFinish::Done && self.queued == 0
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        self.queued = self.queued.saturating_sub(bytes);
        self.taken += bytes;
        while let Some(first) = self.writes.pop_front_if(|first| *first <= self.taken) {
            self.taken -= first;
        }
        if self.writes.is_empty() {
            (self.writes, self.taken) = (VecDeque::new(), 0);
        }
    }

    /// Keeps bytes for the host until its connection is open.
    pub(super) fn hold(&mut self, bytes: Bytes) {
        self.waiting_bytes += bytes.len();
        let bytes = match bytes.len() < COPY_BELOW {
            true => Bytes::copy_from_slice(&bytes),
            false => bytes,
        };
        self.waiting.push_back(bytes);
    }

    /// Records that the connection is open. Returns the data that waited for it.
    pub(super) fn connected(&mut self) -> VecDeque<Bytes> {
        self.connected = true;
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Gives bytes to the shell; small pieces are joined with the following ones.
    pub(super) fn write(&mut self, outputs: &mut VecDeque<EngineOutput>, bytes: Bytes) {
        self.queued += bytes.len();
        if bytes.len() >= COPY_BELOW {
            self.flush(outputs);
            return self.put_write(outputs, bytes);
        }
        self.gathered.extend_from_slice(&bytes);
        if self.gathered.len() >= COPY_BELOW {
            self.flush(outputs);
        }
    }

    /// Gives the gathered small pieces to the shell: before any other event of the host, and at the
    /// end of a turn.
    pub(super) fn flush(&mut self, outputs: &mut VecDeque<EngineOutput>) {
        if !self.gathered.is_empty() {
            let bytes = Bytes::from(std::mem::take(&mut self.gathered));
            self.put_write(outputs, bytes);
        }
    }

    fn put_write(&mut self, outputs: &mut VecDeque<EngineOutput>, bytes: Bytes) {
        self.writes.push_back(bytes.len());
        outputs.push_back(EngineOutput::Write {
            connection: self.connection,
            bytes,
        });
    }

    pub(super) fn drop_writes(&mut self) {
        self.queued = 0;
        self.taken = 0;
        self.writes = VecDeque::new();
        self.gathered = Vec::new();
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }

    /// Lets the shell read, so that it may read `ahead` bytes in all.
    pub(super) fn grant(&mut self, outputs: &mut VecDeque<EngineOutput>, ahead: usize) {
        let room = ahead.saturating_sub(self.credit);
        if room < LEAST_CREDIT {
            return;
        }
        self.credit += room;
        outputs.push_back(EngineOutput::ReadCredit {
            connection: self.connection,
            bytes: room,
        });
    }
}

impl Flow {
    pub(crate) fn connected(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        for bytes in self.lan.connected() {
            self.write_lan(turn, bytes);
        }
        self.flush_lan(turn);
        self.pump(turn)
    }

    pub(crate) fn received(
        &mut self,
        turn: &mut FlowTurn<'_>,
        bytes: Bytes,
    ) -> Result<(), FlowFailure> {
        self.lan.credit = self.lan.credit.saturating_sub(bytes.len());
        if self.is_reset_by_peer() {
            // The host that these bytes are for is gone.
            return Ok(());
        }
        self.keep_unsent(turn.session, &bytes);
        self.note_progress(turn.now);
        if self.sent_lan_bytes == 0 {
            self.look(&bytes);
        }
        self.sent_lan_bytes += bytes.len() as u64;
        self.accelerate(turn, AcceleratorInput::Lan(bytes))?;
        self.pump(turn)
    }

    pub(crate) fn lan_finished(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.lan.finished = true;
        if self.is_reset_by_peer() {
            return Ok(());
        }
        self.accelerate(turn, AcceleratorInput::LanFinished)?;
        self.pump(turn)
    }

    pub(crate) fn written(
        &mut self,
        turn: &mut FlowTurn<'_>,
        bytes: usize,
    ) -> Result<(), FlowFailure> {
        self.lan.note_written(bytes);
        self.note_progress(turn.now);
        self.pump(turn)
    }

    /// Handles the failure of the host's connection: nothing can be written to it, while data of it
    /// can still be read.
    pub(crate) fn lan_failed(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        if self.lan.host == HostState::Standing {
            self.lan.host = HostState::Failed;
            self.lan.drop_writes();
            self.expect_delivery(turn.now);
        }
        self.pump(turn)
    }

    /// The host's connection is gone, and all that it sent was read.
    pub(crate) fn lan_aborted(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        if self.is_host_gone() {
            return Ok(());
        }
        self.lan.host = HostState::Gone {
            finished: self.lan.finished,
        };
        self.lan.credit = 0;
        self.lan.drop_writes();
        self.expect_delivery(turn.now);
        if self.is_reset_by_peer() {
            return Ok(());
        }
        if !self.lan.finished {
            self.lan.finished = true;
            self.accelerate(turn, AcceleratorInput::LanFinished)?;
        }
        self.pump(turn)
    }

    pub(super) fn expect_delivery(&mut self, now: Time) {
        self.delivery_until = Some(now + DELIVERY_STALL_LIMIT);
    }

    pub(super) fn note_progress(&mut self, now: Time) {
        if self.delivery_until.is_some() {
            self.expect_delivery(now);
        }
    }

    /// Builds the output that opens this connection to the server: the flow's own, or a further
    /// one.
    pub(crate) fn connect(&self, connection: ConnectionId) -> EngineOutput {
        let mut client = self.client;
        if connection != self.lan.connection {
            // The port belongs to the flow's own connection.
            client.set_port(0);
        }
        EngineOutput::Connect {
            connection,
            client: self.keep_client_address.then_some(client),
            server: self.server,
            on_behalf: ConnectionOwner::Peer,
        }
    }

    pub(super) fn write_lan(&mut self, turn: &mut FlowTurn<'_>, bytes: Bytes) {
        if bytes.is_empty() || self.lan.host != HostState::Standing {
            return;
        }
        self.unsent.note_answer();
        if self.received_lan_bytes == 0 {
            self.look(&bytes);
        }
        if !self.lan.connected {
            return self.lan.hold(bytes);
        }
        self.received_lan_bytes += bytes.len() as u64;
        self.lan.write(turn.outputs, bytes);
    }

    /// See [`LanSide::flush`].
    pub(super) fn flush_lan(&mut self, turn: &mut FlowTurn<'_>) {
        self.lan.flush(turn.outputs);
        self.server_connections.flush(turn.outputs);
    }

    pub(super) fn finish_lan(&mut self, turn: &mut FlowTurn<'_>) {
        if self.lan.finish == StreamFinish::Open {
            self.lan.finish = StreamFinish::Wanted;
        }
        self.end_lan_when_possible(turn);
    }

    /// Ends the stream towards the host, by a FIN or by a reset behind the written data.
    pub(super) fn end_lan_when_possible(&mut self, turn: &mut FlowTurn<'_>) {
        if !self.lan.connected || self.lan.host != HostState::Standing {
            return;
        }
        self.flush_lan(turn);
        let connection = self.lan.connection;
        match self.peer_host {
            PeerHost::Standing => {
                if self.lan.finish == StreamFinish::Wanted {
                    self.lan.finish = StreamFinish::Done;
                    turn.outputs
                        .push_back(EngineOutput::FinishWrite { connection });
                }
            }
            PeerHost::Reset => {
                if self.lan.finish != StreamFinish::Open && self.lan.queued == 0 {
                    self.peer_host = PeerHost::ResetPassedOn;
                    turn.outputs
                        .push_back(EngineOutput::ResetWhenDelivered { connection });
                }
            }
            PeerHost::ResetPassedOn => {}
        }
    }

    pub(super) fn grant_read_credit(&mut self, turn: &mut FlowTurn<'_>) {
        self.end_lan_when_possible(turn);
        if self.is_reset_by_peer() {
            return;
        }
        let share = turn.budget.share().max(LEAST_CREDIT);
        let held = match &self.stage {
            FlowStage::Running(accelerator) => accelerator.waiting_host_bytes(),
            FlowStage::Released => 0,
        };
        let waiting = self.encoder.pending() + self.encoder.pending_overhead() + held;
        let ahead = READ_AHEAD.min(share).saturating_sub(waiting);
        if self.lan.connected && !self.lan.finished {
            self.lan.grant(turn.outputs, ahead);
        }
        self.server_connections.grant(turn.outputs, ahead);
    }

    /// Names the protocol from the first bytes of either direction.
    pub(super) fn look(&mut self, bytes: &[u8]) {
        let first = &bytes[..bytes.len().min(detect::LOOK_LIMIT)];
        if let Some(protocol) = detect::by_first_bytes(ACCELERATORS, first) {
            self.protocol = protocol;
        }
    }
}
