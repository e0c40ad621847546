//! One end of one flow: the stages that its bytes pass, joined.
//!
//! ```text
//!  host ──received──► accelerator ──segments──► encoder ──encoded──► session
//!  host ◄───write──── accelerator ◄──segments── decoder ◄──encoded── session
//! ```
//!
//! Back pressure runs against the arrows. The encoder works only when the session can take its
//! output. The host gets read credit only while few bytes wait for the encoder. The session is read
//! only while the host takes the bytes written to it. So each flow buffers a bounded number of
//! bytes wherever it is stopped.
//!
//! A host that resets its connection ends its direction at the last byte that it had sent, and the reset
//! follows those bytes over the whole chain:
//!
//! ```text
//!  this host resets ─► all it sent is read and encoded ─► the peer has consumed it ─► Reset to the peer
//!  the peer's Reset ─► all it sent is decoded and written ─► the host acknowledged it ─► RST to the host
//! ```
//!
//! If nothing moves for [`DELIVERY_STALL_LIMIT`], both connections are reset at once. The same
//! happens when both hosts have reset, because there is no receiver left.
//!
//! It decides nothing about peers, limits or policy; `engine.rs` does.

mod contents;
mod lan;
mod opening;
mod server_connections;
mod stage;
mod wan;

use std::collections::VecDeque;
use std::net::SocketAddr;

use accelerate::claims::ClaimTable;
use accelerate::detect::{self, DetectedProtocol};
use accelerate::{AcceleratorHalf, AcceleratorInput, WanEnd, registry};
use bytes::Bytes;
use reduce::{Dictionary, FlowDecoder, FlowEncoder};
use tunnel::{ResetReason, Session};
use vocab::{NodeId, Time};

use crate::accelerators::ACCELERATORS;
use crate::bounds::OpenRefusal;
use crate::io::{ArrivalMethod, ConnectFailure, ConnectionId, EngineOutput};
use crate::kept_contents::KeptContents;
use crate::memory::MemoryBudget;
use crate::passthrough_pairs::PassthroughReason;

use self::contents::ContentTransfers;
pub(crate) use self::lan::DELIVERY_STALL_LIMIT;
use self::lan::{HostState, LanSide, StreamFinish};
use self::opening::UnsentBytes;
pub(crate) use self::opening::{FlowRegistration, UnansweredBytes};
use self::server_connections::ServerConnections;
pub(crate) use self::server_connections::{ConnectionEvent, FurtherEnd};
use self::stage::FlowStage;
use self::wan::REPAIR_REQUEST_MEMORY;
pub(crate) use self::wan::message;

/// The state that the engine lends to a flow's stages for one turn.
pub(crate) struct FlowTurn<'a> {
    pub(crate) now: Time,
    pub(crate) session: &'a mut Session,
    pub(crate) dictionary: &'a mut Dictionary,
    pub(crate) claims: &'a mut ClaimTable,
    pub(crate) kept: &'a mut KeptContents,
    pub(crate) outputs: &'a mut VecDeque<EngineOutput>,
    /// The memory that the node holds, and its limit.
    pub(crate) budget: MemoryBudget,
    /// The number of the next connection that this node opens.
    pub(crate) next_opened: &'a mut u64,
    /// The number of further connections to servers that there is room for.
    pub(crate) connections_left: usize,
}

/// The reason why a flow cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowFailure {
    pub(crate) reset: ResetReason,
    pub(crate) text: String,
    /// The reason why the next flow between the same hosts would fail as well.
    pub(crate) recurs: Option<PassthroughReason>,
}

impl FlowFailure {
    /// Returns true if the peer sent something that no encoder sends: data that cannot be restored,
    /// or repairs that were not requested.
    pub(crate) fn is_peers_fault(&self) -> bool {
        self.reset == ResetReason::Reduction
    }
}

/// The progress of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// The client's connection is established.
    Accepted,
    /// The client waits for the outcome of the server's connection.
    Asks,
}

/// The progress of the reset of the peer's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerHost {
    /// There was none.
    Standing,
    /// The peer has reset the flow; its earlier data is in transit to this host.
    Reset,
    /// The shell resets the connection once the host has acknowledged everything.
    ResetPassedOn,
}

/// One end of one flow.
pub(crate) struct Flow {
    pub(crate) number: u64,
    pub(crate) peer: NodeId,
    registration: FlowRegistration,
    pub(crate) half: WanEnd,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: Option<ArrivalMethod>,
    /// As it was when the flow began.
    pub(crate) client_state: ClientState,
    /// The reason why the server's connection could not be opened.
    pub(crate) connect_failure: Option<ConnectFailure>,
    pub(crate) keep_client_address: bool,
    /// The policy forbids its connection to the server, so none is opened.
    pub(crate) refusal: Option<OpenRefusal>,
    pub(crate) started: Time,
    pub(crate) protocol: DetectedProtocol,
    pub(crate) accelerator: &'static registry::AcceleratorEntry,
    /// The reason why the flow has no accelerator, if it has none.
    unserved: registry::AcceleratorReason,
    /// The reason that a half gave when it stopped accelerating.
    letting_go: Option<stage::GivenReason>,
    /// The accelerator's note beside that reason.
    letting_go_note: Option<String>,
    /// Bytes of the half's output that waited for the WAN when it was last told; `None` after new output.
    backlog_told: Option<u64>,
    pub(crate) carry_only: bool,
    pub(crate) may_store: bool,
    pub(crate) sent_lan_bytes: u64,
    pub(crate) sent_wan_bytes: u64,
    pub(crate) received_lan_bytes: u64,
    pub(crate) received_wan_bytes: u64,
    pub(crate) repairs_asked: u64,
    /// The bytes that the engine's total contains for this flow.
    pub(crate) accounted: usize,
    /// The timer that the engine holds for this flow.
    pub(crate) timer: Option<Time>,
    /// The decoder or the encoder waits for the disk.
    pub(crate) waits_for_disk: bool,
    /// The peer has answered its open, or sent bytes of it.
    is_answered: bool,
    unsent: UnsentBytes,
    /// True if the near half has put out something for the far half, or requested the open, while
    /// the flow was not open.
    wants_opening: bool,
    /// The engine is to open the server's connection.
    wants_server: bool,
    stage: FlowStage,
    /// The bodies that the accelerator stores and reads.
    contents: ContentTransfers,
    lan: LanSide,
    server_connections: ServerConnections,
    encoder: FlowEncoder,
    decoder: FlowDecoder,
    /// Requests for repairs that wait for room among the session's messages.
    unanswered: VecDeque<Bytes>,
    /// Our direction over the WAN.
    finish_wan: StreamFinish,
    /// The peer's direction has ended and all of it can be read.
    wan_finished: bool,
    /// ... and the accelerator knows it.
    wan_finish_told: bool,
    /// The session has forgotten the flow: both directions ended and were acknowledged.
    session_closed: bool,
    peer_host: PeerHost,
    /// The latest end of the flow after a reset of either host, unless bytes move.
    delivery_until: Option<Time>,
    consumed_told: u64,
}

/// The end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowEnd {
    /// In good order, both ways.
    Closed,
    /// The host beside this node reset its connection.
    HostReset,
    /// The host beside the peer reset its connection.
    PeerHostReset,
}

/// The parameters of a new flow.
pub(crate) struct FlowParameters {
    pub(crate) number: u64,
    pub(crate) peer: NodeId,
    pub(crate) registration: FlowRegistration,
    pub(crate) half: WanEnd,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: Option<ArrivalMethod>,
    /// The client's state, for a near flow.
    pub(crate) client_state: ClientState,
    pub(crate) keep_client_address: bool,
    /// The policy forbids its connection to the server.
    pub(crate) refusal: Option<OpenRefusal>,
    pub(crate) connection: ConnectionId,
    pub(crate) accelerator: &'static registry::AcceleratorEntry,
    /// The reason why the flow has no accelerator, if it has none.
    pub(crate) unserved: registry::AcceleratorReason,
    /// The accelerator's half.
    pub(crate) machine: Box<dyn AcceleratorHalf>,
    pub(crate) encoder: FlowEncoder,
    pub(crate) decoder: FlowDecoder,
    pub(crate) carry_only: bool,
    pub(crate) may_store: bool,
    /// No accelerator works on it, because one had to close another between the same hosts.
    pub(crate) passthrough: Option<PassthroughReason>,
}

impl Flow {
    /// Begins a flow; a far one puts out the connection to its server.
    pub(crate) fn start(
        birth: FlowParameters,
        turn: &mut FlowTurn<'_>,
    ) -> Result<Self, FlowFailure> {
        let mut flow = Self {
            number: birth.number,
            peer: birth.peer,
            registration: birth.registration,
            half: birth.half,
            client: birth.client,
            server: birth.server,
            via: birth.via,
            client_state: birth.client_state,
            connect_failure: None,
            keep_client_address: birth.keep_client_address,
            refusal: birth.refusal,
            started: turn.now,
            protocol: detect::by_port(ACCELERATORS, birth.server.port()),
            accelerator: birth.accelerator,
            unserved: birth.unserved,
            letting_go: None,
            letting_go_note: None,
            backlog_told: None,
            carry_only: birth.carry_only,
            may_store: birth.may_store,
            sent_lan_bytes: 0,
            sent_wan_bytes: 0,
            received_lan_bytes: 0,
            received_wan_bytes: 0,
            repairs_asked: 0,
            accounted: 0,
            timer: None,
            waits_for_disk: false,
            is_answered: false,
            unsent: UnsentBytes::new(birth.half),
            wants_opening: false,
            wants_server: false,
            stage: FlowStage::Running(birth.machine),
            contents: ContentTransfers::default(),
            lan: LanSide::new(
                birth.connection,
                birth.half == WanEnd::Near && birth.client_state == ClientState::Accepted,
            ),
            server_connections: ServerConnections::default(),
            encoder: birth.encoder,
            decoder: birth.decoder,
            unanswered: VecDeque::new(),
            finish_wan: StreamFinish::Open,
            wan_finished: false,
            wan_finish_told: false,
            session_closed: false,
            peer_host: PeerHost::Standing,
            delivery_until: None,
            consumed_told: 0,
        };
        match birth.passthrough {
            None => flow.accelerate(turn, AcceleratorInput::Start)?,
            Some(reason) => flow.pass_unaccelerated(turn, &reason)?,
        }
        flow.pump(turn)?;
        Ok(flow)
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        self.lan.connection
    }

    /// Returns true if the connection on the LAN side is established.
    pub(crate) fn is_connected(&self) -> bool {
        self.lan.connected
    }

    /// Returns true if the client waits for the outcome of the server's connection.
    pub(crate) fn asks(&self) -> bool {
        self.client_state == ClientState::Asks && !self.lan.connected && !self.is_host_gone()
    }

    /// The bytes that the flow holds in memory, by its own count.
    pub(crate) fn buffered(&self) -> usize {
        self.encoder.pending()
            + self.encoder.retained()
            + self.decoder.buffered()
            + self.unsent.held()
            + self.encoder.pending_overhead()
            + self.encoder.retained_overhead()
            + self.lan.held()
            + self.contents.held()
            + self.server_connections.held()
            + self.unanswered.len() * REPAIR_REQUEST_MEMORY
            + match &self.stage {
                FlowStage::Running(accelerator) => accelerator.buffered(),
                FlowStage::Released => 0,
            }
    }

    /// The time at which a stage wants to be woken.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let accelerator = match &self.stage {
            FlowStage::Running(accelerator) => accelerator.poll_timeout(),
            FlowStage::Released => None,
        };
        let encoder = match self.peer_host {
            PeerHost::Standing => self.encoder.poll_timeout(),
            // Nothing is encoded any more.
            PeerHost::Reset | PeerHost::ResetPassedOn => None,
        };
        let contents = self.contents.poll_timeout();
        [encoder, accelerator, contents, self.delivery_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns how the flow has ended; `None` while it is open.
    pub(crate) fn end(&self, session: &Session) -> Option<FlowEnd> {
        let Some(id) = self.id() else {
            return self.end_unopened();
        };
        // Neither host takes anything any more; what is unread of a failed connection has no receiver.
        if self.is_reset_by_peer() && self.lan.host != HostState::Standing {
            return Some(FlowEnd::PeerHostReset);
        }
        if self.is_host_gone() {
            let is_known_to_peer = self.session_closed
                || (self.finish_wan == StreamFinish::Done && session.is_delivered(id));
            return is_known_to_peer.then_some(FlowEnd::HostReset);
        }
        (self.session_closed && self.lan.is_over()).then_some(FlowEnd::Closed)
    }

    /// Returns true if the shell has no connection to the host any more.
    pub(crate) fn is_host_gone(&self) -> bool {
        matches!(self.lan.host, HostState::Gone { .. })
    }

    fn is_reset_by_peer(&self) -> bool {
        self.peer_host != PeerHost::Standing
    }

    pub(crate) fn reduction(&self) -> reduce::FlowReduction {
        self.encoder.statistics()
    }

    pub(crate) fn timer_fired(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        if self.delivery_until.is_some_and(|until| until <= turn.now) {
            return Err(FlowFailure {
                recurs: None,
                // Unlike a host's reset, this one does not wait over there.
                reset: ResetReason::Limit,
                text: "a host reset its connection, and the receiver did not accept its last data in time".to_owned(),
            });
        }
        let due = match &self.stage {
            FlowStage::Running(accelerator) => {
                accelerator.poll_timeout().is_some_and(|at| at <= turn.now)
            }
            FlowStage::Released => false,
        };
        if due {
            self.accelerate(turn, AcceleratorInput::Timeout)?;
        }
        self.pump(turn)
    }

    /// Moves all data that can move, in both directions.
    pub(crate) fn pump(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.restore(turn)?;
        self.read_contents(turn)?;
        self.flush_lan(turn);
        self.repair(turn)?;
        self.encode(turn);
        if self.tell_backlog(turn)? {
            self.flush_lan(turn);
            self.encode(turn);
        }
        self.grant_read_credit(turn);
        Ok(())
    }
}
