//! A connection that goes to its server without the WAN session, as a last resort.
//!
//! It serves connections that were accepted just before interception ended (the peer fell silent, a
//! limit was reached), flows that were never opened at a silent peer, and clients of the explicit
//! proxies whose destination no peer serves. Bytes pass from one side to the other as they arrive,
//! with at most [`WINDOW`] of them in flight in each direction; a former flow also keeps the read
//! credit that it had granted. When one host resets its connection, its earlier data is delivered
//! to the other host first, and then the other's connection is reset. If nothing moves for
//! [`DELIVERY_STALL_LIMIT`], it is reset at once.

use std::net::SocketAddr;

use bytes::Bytes;
use vocab::Time;

use crate::engine::connections::PendingClient;
use crate::flow::{ClientState, DELIVERY_STALL_LIMIT};
use crate::io::{ArrivalMethod, ConnectFailure, ConnectionId, ConnectionOwner, EngineOutput};

/// The limit of bytes in flight in one direction: enough for 1 Gbit/s over a 2 ms path.
const WINDOW: usize = 256 * 1024;

/// The reason why a connection goes directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectReason {
    NoPeerServes,
    PeerNotUp,
    PeerSilent,
    PeerFiltered,
    FlowLimit,
    MemoryLimit,
    SourceShare,
    PeerShare,
    Stopping,
}

impl DirectReason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NoPeerServes => "no peer serves this destination",
            Self::PeerNotUp => "the peer that serves this destination could not be reached",
            Self::PeerSilent => {
                "the peer that serves this destination fell silent before this node asked it to connect"
            }
            Self::PeerFiltered => {
                "the packet filter of the peer's machine drops the peer's connections to the servers"
            }
            Self::FlowLimit => "the node reached its limit of flows",
            Self::MemoryLimit => "the node reached its limit of buffered bytes",
            Self::SourceShare => "the client's address had as many flows as its share allows",
            Self::PeerShare => {
                "the peer that serves this destination had as many flows as its share allows"
            }
            Self::Stopping => "the node was stopping",
        }
    }

    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::NoPeerServes => "add the destination's prefix to the [[peer]] that can reach it",
            Self::PeerNotUp | Self::PeerSilent => {
                "run `trunkline node status`; it shows why the peer is down"
            }
            Self::PeerFiltered => {
                "change the packet filter of the peer's machine; `trunkline node check` on that machine \
                 prints the commands"
            }
            Self::FlowLimit => "raise flows in [limits]",
            Self::MemoryLimit => "raise memory in [limits]",
            Self::SourceShare => "raise source_flows_percent, or flows, in [limits]",
            Self::PeerShare => "raise peer_flows_percent, or flows, in [limits]",
            Self::Stopping => "open the connection again",
        }
    }
}

/// One end of a direct connection.
#[derive(Debug)]
struct DirectEnd {
    connection: ConnectionId,
    /// Bytes written to this end and not yet taken by the operating system.
    queued: usize,
    /// Its host has sent its last byte.
    finished: bool,
    state: EndState,
}

/// The state of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndState {
    /// The connection to the server is being opened.
    Opening,
    Standing,
    /// Nothing can be written any more; data that arrived before is still read.
    Failed,
    /// The shell resets it once its host has acknowledged everything.
    BeingReset,
    Gone,
}

impl EndState {
    fn takes_bytes(self) -> bool {
        match self {
            Self::Opening | Self::Standing => true,
            Self::Failed | Self::BeingReset | Self::Gone => false,
        }
    }
}

/// A client's connection and the one to its server, joined.
#[derive(Debug)]
pub(crate) struct DirectConnection {
    pub(crate) number: u64,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: ArrivalMethod,
    client_state: ClientState,
    pub(crate) reason: DirectReason,
    pub(crate) started: Time,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// The timer that the engine holds for it.
    pub(crate) timer: Option<Time>,
    /// The latest end of the connection after a reset of either host, unless bytes move.
    delivery_until: Option<Time>,
    accepted: DirectEnd,
    opened: DirectEnd,
    /// The server's connection is established.
    is_connected: bool,
    /// The client's earlier bytes; at most as many as a flow holds.
    waiting: Vec<Bytes>,
    end: Option<&'static str>,
}

impl DirectConnection {
    /// Begins one. `queued` bytes were given to the shell for the client before.
    pub(crate) fn open(
        now: Time,
        number: u64,
        caller: PendingClient,
        queued: usize,
        opened: ConnectionId,
        reason: DirectReason,
        outputs: &mut impl Extend<EngineOutput>,
    ) -> Self {
        let end = |connection, state| DirectEnd {
            connection,
            queued: 0,
            finished: false,
            state,
        };
        let PendingClient {
            connection: accepted,
            client,
            server,
            via,
            state,
        } = caller;
        outputs.extend([EngineOutput::Connect {
            connection: opened,
            client: (via == ArrivalMethod::Transparent).then_some(client),
            server,
            on_behalf: ConnectionOwner::Client { accepted },
        }]);
        Self {
            number,
            client,
            server,
            via,
            client_state: state,
            reason,
            started: now,
            bytes_up: 0,
            bytes_down: 0,
            timer: None,
            delivery_until: None,
            accepted: DirectEnd {
                queued,
                ..end(accepted, EndState::Standing)
            },
            opened: end(opened, EndState::Opening),
            end: None,
            is_connected: false,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn connections(&self) -> [ConnectionId; 2] {
        [self.accepted.connection, self.opened.connection]
    }

    pub(crate) fn buffered(&self) -> usize {
        self.accepted.queued + self.opened.queued
    }

    /// Returns how the connection has ended; `None` while it is open.
    pub(crate) fn end(&self) -> Option<&'static str> {
        self.end
    }

    /// The time of the reset if no bytes move until then.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.delivery_until
    }

    /// Returns true if the client waits for the outcome of the server's connection.
    pub(crate) fn asks(&self) -> bool {
        self.client_state == ClientState::Asks && self.accepted.state.takes_bytes()
    }

    pub(crate) fn connected(&mut self, outputs: &mut impl Extend<EngineOutput>) {
        if self.opened.state == EndState::Opening {
            self.opened.state = EndState::Standing;
        }
        if self.asks() {
            self.client_state = ClientState::Accepted;
            let connection = self.accepted.connection;
            outputs.extend([EngineOutput::Admit { connection }]);
        }
        self.is_connected = true;
        let connection = self.opened.connection;
        let waiting = std::mem::take(&mut self.waiting);
        outputs.extend(
            waiting
                .into_iter()
                .map(|bytes| EngineOutput::Write { connection, bytes }),
        );
        if self.accepted.finished {
            outputs.extend([EngineOutput::FinishWrite { connection }]);
        }
        // What waited comes back as credit when it is written.
        let credits = [
            (
                self.accepted.connection,
                WINDOW.saturating_sub(self.opened.queued),
            ),
            (
                self.opened.connection,
                WINDOW.saturating_sub(self.accepted.queued),
            ),
        ];
        outputs.extend(
            credits.map(|(connection, bytes)| EngineOutput::ReadCredit { connection, bytes }),
        );
        self.go_on(outputs);
    }

    pub(crate) fn received(
        &mut self,
        now: Time,
        from: ConnectionId,
        bytes: Bytes,
        outputs: &mut impl Extend<EngineOutput>,
    ) {
        self.note_progress(now);
        let to = if from == self.accepted.connection {
            self.bytes_up += bytes.len() as u64;
            &mut self.opened
        } else {
            self.bytes_down += bytes.len() as u64;
            &mut self.accepted
        };
        if !to.state.takes_bytes() {
            return;
        }
        to.queued += bytes.len();
        let connection = to.connection;
        if self.is_connected {
            outputs.extend([EngineOutput::Write { connection, bytes }]);
        } else {
            self.waiting.push(bytes);
        }
    }

    pub(crate) fn written(
        &mut self,
        now: Time,
        to: ConnectionId,
        bytes: usize,
        outputs: &mut impl Extend<EngineOutput>,
    ) {
        self.note_progress(now);
        let (to, from) = self.ends(to);
        to.queued = to.queued.saturating_sub(bytes);
        if bytes > 0 && from.state != EndState::Gone {
            outputs.extend([EngineOutput::ReadCredit {
                connection: from.connection,
                bytes,
            }]);
        }
        self.go_on(outputs);
    }

    pub(crate) fn finished(&mut self, from: ConnectionId, outputs: &mut impl Extend<EngineOutput>) {
        let (from, to) = self.ends(from);
        from.finished = true;
        let (connection, takes_bytes) = (to.connection, to.state.takes_bytes());
        if self.is_connected && takes_bytes {
            outputs.extend([EngineOutput::FinishWrite { connection }]);
        }
        self.go_on(outputs);
    }

    /// The server's connection could not be opened.
    pub(crate) fn failed(
        &mut self,
        failure: ConnectFailure,
        outputs: &mut impl Extend<EngineOutput>,
    ) {
        let connection = self.accepted.connection;
        outputs.extend([match self.client_state {
            ClientState::Asks => EngineOutput::Decline {
                connection,
                failure,
            },
            ClientState::Accepted => EngineOutput::Reset { connection },
        }]);
    }

    /// Records that one end accepts nothing more, while data of it can still be read.
    pub(crate) fn connection_failed(
        &mut self,
        now: Time,
        failed: ConnectionId,
        outputs: &mut impl Extend<EngineOutput>,
    ) {
        let (end, _) = self.ends(failed);
        if end.state.takes_bytes() {
            end.state = EndState::Failed;
            end.queued = 0;
        }
        self.expect_delivery(now);
        self.go_on(outputs);
    }

    /// One end is gone, and all that its host sent was read. The other is reset behind that, so that a
    /// failure never looks like a clean end.
    pub(crate) fn aborted(
        &mut self,
        now: Time,
        gone: ConnectionId,
        outputs: &mut impl Extend<EngineOutput>,
    ) {
        let (gone, _) = self.ends(gone);
        gone.state = EndState::Gone;
        gone.queued = 0;
        self.expect_delivery(now);
        self.go_on(outputs);
    }

    /// Resets both ends, even if data waits for them.
    pub(crate) fn reset_at_once(&self, outputs: &mut impl Extend<EngineOutput>) {
        outputs.extend(
            self.connections()
                .map(|connection| EngineOutput::Reset { connection }),
        );
    }

    fn ends(&mut self, this: ConnectionId) -> (&mut DirectEnd, &mut DirectEnd) {
        if this == self.accepted.connection {
            (&mut self.accepted, &mut self.opened)
        } else {
            (&mut self.opened, &mut self.accepted)
        }
    }

    fn expect_delivery(&mut self, now: Time) {
        self.delivery_until = Some(now + DELIVERY_STALL_LIMIT);
    }

    fn note_progress(&mut self, now: Time) {
        if self.delivery_until.is_some() {
            self.expect_delivery(now);
        }
    }

    /// Performs the actions that follow from the states of the ends.
    fn go_on(&mut self, outputs: &mut impl Extend<EngineOutput>) {
        use EndState::{BeingReset, Failed, Gone, Opening, Standing};
        match [self.accepted.state, self.opened.state] {
            [Gone, Standing] => self.opened.reset_when_written(outputs),
            [Standing, Gone] => self.accepted.reset_when_written(outputs),
            // Neither host takes anything any more; what is unread of a failed one has no receiver.
            [Failed | Gone, Failed | Gone] => {
                let left = [&self.accepted, &self.opened];
                let left = left.into_iter().filter(|end| end.state == Failed);
                outputs.extend(left.map(|end| EngineOutput::Reset {
                    connection: end.connection,
                }));
                self.end = Some("reset by a host");
            }
            // One end is being reset behind the other, which is gone: the shell says when it is.
            [BeingReset, _] | [_, BeingReset] => {}
            // The server takes what comes, or the connection to it fails, before the client's end counts.
            [_, Opening] | [Opening, _] => {}
            [Standing, Standing | Failed] | [Failed, Standing] => {
                if self.accepted.finished && self.opened.finished && self.buffered() == 0 {
                    let connections = self.connections();
                    outputs
                        .extend(connections.map(|connection| EngineOutput::Close { connection }));
                    self.end = Some("closed");
                }
            }
        }
    }
}

impl DirectEnd {
    fn reset_when_written(&mut self, outputs: &mut impl Extend<EngineOutput>) {
        if self.queued == 0 {
            self.state = EndState::BeingReset;
            outputs.extend([EngineOutput::ResetWhenDelivered {
                connection: self.connection,
            }]);
        }
    }
}
