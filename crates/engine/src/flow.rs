//! One end of one flow: the stages that its bytes pass, joined.
//!
//! ```text
//!  host ──received──► accelerator ──segments──► encoder ──encoded──► session
//!  host ◄───write──── accelerator ◄──segments── decoder ◄──encoded── session
//! ```
//!
//! Back pressure runs against the arrows: the encoder works only when the session can take what
//! it makes (DESIGN rule "encode when it can be sent"), the host is given read credit only while
//! little waits for the encoder, and the session is read only while the host takes what was
//! written to it. So each flow buffers a bounded number of bytes wherever it is stopped.
//!
//! A host that resets its connection ends its direction at the last byte that it had sent, and the reset
//! follows those bytes over the whole chain:
//!
//! ```text
//!  this host resets ─► all it sent is read and encoded ─► the peer has consumed it ─► Reset to the peer
//!  the peer's Reset ─► all it sent is decoded and written ─► the host acknowledged it ─► RST to the host
//! ```
//!
//! Where nothing moves for [`DELIVERY_STALL_LIMIT`], both connections are reset at once.
//!
//! It decides nothing about peers, limits or policy; `engine.rs` does.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use accelerate::claims::Claims;
use accelerate::detect::{self, Protocol};
use accelerate::{Accelerator, FrameKind, Half, Input, LetGoReason, LettingGo};
use bytes::Bytes;
use reduce::{Decoded, Decoder, Dictionary, Encoder};
use tunnel::{ResetReason, Session};
use vocab::{FlowId, NodeId, Random, Segment, SegmentKind, Time};

use crate::bounds::Refusal;
use crate::io::{ConnectFailure, ConnectionId, OnBehalf, Output, Via};
use crate::left_alone::Because;
use crate::memory::Budget;

/// Raw bytes that may wait for the encoder, read credit included: what 1 Gbit/s brings in a
/// millisecond, which is more than an engine's loop takes to come round.
const READ_AHEAD: usize = 128 * 1024;
/// Read credit is given in portions of at least this size, so that a fast host costs few turns.
const LEAST_CREDIT: usize = 16 * 1024;
/// Bytes that may wait for a slow host before the session is read no further.
const WRITE_AHEAD: usize = 256 * 1024;
/// Encoded bytes taken from the session at a time.
const SESSION_READ: usize = 64 * 1024;
/// Repairs that the peer may ask for before the first of them is answered: as many as a decoder asks
/// for together.
const REPAIRS_ASKED: usize = reduce::REPAIR_AHEAD_RECORDS;

// A record that was begun can be sent to its end: see `tunnel::credit`.
const _: () = assert!(reduce::MAX_RECORD_BODY as u64 + 16 <= tunnel::credit::RECORD);
/// How long what was sent before a reset may wait without any progress for a receiver that does not read: as
/// long as Linux keeps a connection that its program has closed (tcp_fin_timeout, 60 s).
pub(crate) const DELIVERY_STALL_LIMIT: Duration = Duration::from_secs(60);

/// Memory of a request for a repair, about: most are some dozens of bytes.
const REPAIR_REQUEST_MEMORY: usize = 256;
/// Memory of a piece that waits for a host beside its bytes, about: its places in the lists of the
/// engine and of the shell, and its buffer's own head.
const WRITE_OVERHEAD: usize = 128;
/// Bytes for a host that are fewer are copied, so that they do not keep the record alive that they
/// were part of, and joined to those before them that have not left yet.
const COPY_BELOW: usize = 4 * 1024;

/// The engine's messages between the two ends of a flow, beside its bytes.
pub(crate) mod message {
    /// The decoder asks for a range that it cannot resolve.
    pub(crate) const REPAIR_REQUEST: u8 = 1;
    /// The encoder answers with the bytes.
    pub(crate) const REPAIR_ANSWER: u8 = 2;
    /// The node that was asked to open the flow has as many as it may: the peer is to open no more for
    /// a while. The flow itself goes on. Nodes that do not know it pass over it.
    pub(crate) const NODE_IS_FULL: u8 = 3;
}

/// The client's bytes that are kept in case that they go directly: what a client sends while the link is full.
const UNSENT_MAX: usize = 256 * 1024;

/// What a client has sent to a flow that the peer never heard of.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) bytes: Vec<Bytes>,
    /// It has sent its last byte.
    pub(crate) is_finished: bool,
}

/// What a flow's stages work on, lent by the engine for one turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Time,
    pub(crate) session: &'a mut Session,
    pub(crate) dictionary: &'a mut Dictionary,
    pub(crate) claims: &'a mut Claims,
    pub(crate) outputs: &'a mut VecDeque<Output>,
    /// What the node holds, and may hold.
    pub(crate) budget: Budget,
}

/// Why a flow cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) reset: ResetReason,
    pub(crate) text: String,
    /// Why the next flow between the same hosts would break, too.
    pub(crate) recurs: Option<Because>,
}

impl Broken {
    /// Whether the peer sent what no encoder sends: data that cannot be restored, or repairs that
    /// nobody asked for.
    pub(crate) fn is_peers_fault(&self) -> bool {
        self.reset == ResetReason::Reduction
    }
}

/// Who handles the bytes between host and reduction.
enum Stage {
    Running(Box<dyn Accelerator>),
    /// Bytes pass untouched, for ever.
    Released,
}

/// How far the client's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// It stands.
    Accepted,
    /// The client waits to hear whether the server's connection stands.
    Asks,
}

/// The LAN side of a flow.
struct Lan {
    connection: ConnectionId,
    connected: bool,
    /// Bytes that the shell may still read.
    credit: usize,
    /// Bytes given to the shell and not yet taken by the operating system.
    queued: usize,
    /// The lengths of the pieces that they are in.
    writes: VecDeque<usize>,
    /// Bytes of the first of these that were taken.
    taken: usize,
    /// Small pieces that are about to be given to the shell together.
    gathered: Vec<u8>,
    /// Bytes for the host from before its connection was open.
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    /// The host has sent its last byte.
    finished: bool,
    finish: Finish,
    host: HostState,
}

/// How far a host's reset, or the failure of its connection, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostState {
    /// The connection stands.
    Standing,
    /// Nothing can be written any more; what arrived before is still being read.
    Failed,
    /// All was read. `finished` says whether the host had ended its stream before the reset.
    Gone { finished: bool },
}

/// How far the reset of the peer's host has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerHost {
    /// There was none.
    Standing,
    /// The peer has reset the flow; what was sent before is on its way to this host.
    Reset,
    /// The shell resets the connection once the host has acknowledged everything.
    ResetPassedOn,
}

/// Where the clean end of a direction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Open,
    /// It follows when what was put out before it has gone.
    Wanted,
    Done,
}

impl Lan {
    /// Bytes of memory that wait for the host, about.
    fn held(&self) -> usize {
        let pieces = self.writes.len() + self.waiting.len();
        self.queued + self.taken + self.waiting_bytes + pieces * WRITE_OVERHEAD
    }

    fn note_written(&mut self, bytes: usize) {
        self.queued = self.queued.saturating_sub(bytes);
        self.taken += bytes;
        while let Some(first) = self.writes.pop_front_if(|first| *first <= self.taken) {
            self.taken -= first;
        }
        if self.writes.is_empty() {
            (self.writes, self.taken) = (VecDeque::new(), 0);
        }
    }
}

/// One end of one flow.
pub(crate) struct Flow {
    pub(crate) number: u64,
    pub(crate) peer: NodeId,
    pub(crate) id: FlowId,
    pub(crate) half: Half,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: Option<Via>,
    /// As it was when the flow began.
    pub(crate) client_state: ClientState,
    /// Why the server's connection could not be opened.
    pub(crate) connect_failure: Option<ConnectFailure>,
    pub(crate) keep_client_address: bool,
    /// The policy forbids its connection to the server, so none is opened.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) started: Time,
    pub(crate) protocol: Protocol,
    pub(crate) accelerator_name: &'static str,
    pub(crate) letting_go: Option<LettingGo>,
    /// What the accelerator had to say beside that.
    letting_go_note: Option<String>,
    pub(crate) carry_only: bool,
    pub(crate) may_store: bool,
    pub(crate) sent_lan_bytes: u64,
    pub(crate) sent_wan_bytes: u64,
    pub(crate) received_lan_bytes: u64,
    pub(crate) received_wan_bytes: u64,
    pub(crate) repairs_asked: u64,
    /// Bytes that the engine's total holds for this flow.
    pub(crate) accounted: usize,
    /// The moment that the engine's timers hold for this flow.
    pub(crate) timer: Option<Time>,
    /// The decoder or the encoder waits for the disk.
    pub(crate) waits_for_disk: bool,
    /// The peer has answered its open, or sent bytes of it.
    is_answered: bool,
    /// All that the client has sent, while the open has not left this node; `None` once that is not all.
    unsent: Option<Vec<Bytes>>,
    unsent_bytes: usize,
    /// The engine is to open the server's connection.
    wants_server: bool,
    stage: Stage,
    lan: Lan,
    encoder: Encoder,
    decoder: Decoder,
    /// Requests for repairs that wait for room among the session's messages.
    unanswered: VecDeque<Bytes>,
    /// Our direction over the WAN.
    finish_wan: Finish,
    /// The peer's direction has ended and all of it can be read.
    wan_finished: bool,
    /// ... and the accelerator was told.
    wan_finish_told: bool,
    /// The session has forgotten the flow: both directions ended and were acknowledged.
    session_closed: bool,
    peer_host: PeerHost,
    /// When the flow ends at the latest unless something moves, after a reset of either host.
    delivery_until: Option<Time>,
    consumed_told: u64,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowEnd {
    /// In good order, both ways.
    Closed,
    /// The host beside this node reset its connection.
    HostReset,
    /// The host beside the peer did.
    PeerHostReset,
}

/// What a flow is born with.
pub(crate) struct Birth {
    pub(crate) number: u64,
    pub(crate) peer: NodeId,
    pub(crate) id: FlowId,
    pub(crate) half: Half,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) via: Option<Via>,
    /// Of a near flow.
    pub(crate) client_state: ClientState,
    pub(crate) keep_client_address: bool,
    /// The policy forbids its connection to the server.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) connection: ConnectionId,
    pub(crate) accelerator: &'static accelerate::registry::Entry,
    pub(crate) settings: accelerate::registry::Settings,
    pub(crate) chance: Random,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
    pub(crate) carry_only: bool,
    pub(crate) may_store: bool,
    /// No accelerator works on it, because one had to close another between the same hosts.
    pub(crate) left_alone: Option<Because>,
}

impl Flow {
    /// Begins a flow; a far one puts out the connection to its server.
    pub(crate) fn start(birth: Birth, turn: &mut Turn<'_>) -> Result<Self, Broken> {
        let mut flow = Self {
            number: birth.number,
            peer: birth.peer,
            id: birth.id,
            half: birth.half,
            client: birth.client,
            server: birth.server,
            via: birth.via,
            client_state: birth.client_state,
            connect_failure: None,
            keep_client_address: birth.keep_client_address,
            refusal: birth.refusal,
            started: turn.now,
            protocol: detect::by_port(birth.server.port()),
            accelerator_name: birth.accelerator.name,
            letting_go: None,
            letting_go_note: None,
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
            unsent: (birth.half == Half::Near).then(Vec::new),
            unsent_bytes: 0,
            wants_server: false,
            stage: Stage::Running((birth.accelerator.build)(
                birth.half,
                &birth.settings,
                birth.chance,
            )),
            lan: Lan {
                connection: birth.connection,
                connected: birth.half == Half::Near && birth.client_state == ClientState::Accepted,
                credit: 0,
                queued: 0,
                writes: VecDeque::new(),
                taken: 0,
                gathered: Vec::new(),
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                finished: false,
                finish: Finish::Open,
                host: HostState::Standing,
            },
            encoder: birth.encoder,
            decoder: birth.decoder,
            unanswered: VecDeque::new(),
            finish_wan: Finish::Open,
            wan_finished: false,
            wan_finish_told: false,
            session_closed: false,
            peer_host: PeerHost::Standing,
            delivery_until: None,
            consumed_told: 0,
        };
        match birth.left_alone {
            None => flow.accelerate(turn, Input::Start)?,
            Some(because) => flow.leave_alone(turn, &because)?,
        }
        flow.pump(turn)?;
        Ok(flow)
    }

    /// Lets go before anything has passed.
    fn leave_alone(&mut self, turn: &mut Turn<'_>, because: &Because) -> Result<(), Broken> {
        if self.half == Half::Far {
            self.wants_server = true;
        }
        self.letting_go_note = Some(because.text());
        let reason = because.reason;
        self.let_go(turn, LettingGo::LetGo { reason })
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        self.lan.connection
    }

    /// Whether the connection on the LAN side stands.
    pub(crate) fn is_connected(&self) -> bool {
        self.lan.connected
    }

    /// Whether the client waits to hear whether the server's connection stands.
    pub(crate) fn asks(&self) -> bool {
        self.client_state == ClientState::Asks && !self.lan.connected && !self.is_host_gone()
    }

    /// Bytes that the flow holds in memory, by its own count.
    pub(crate) fn buffered(&self) -> usize {
        self.encoder.pending()
            + self.encoder.retained()
            + self.decoder.buffered()
            + self.unsent_bytes
            + self.encoder.pending_overhead()
            + self.encoder.retained_overhead()
            + self.lan.held()
            + self.unanswered.len() * REPAIR_REQUEST_MEMORY
            + match &self.stage {
                Stage::Running(accelerator) => accelerator.buffered(),
                Stage::Released => 0,
            }
    }

    /// Requests of its host that the accelerator has answered on this side.
    pub(crate) fn answered_here(&self) -> u64 {
        match &self.stage {
            Stage::Running(accelerator) => accelerator.answered(),
            Stage::Released => 0,
        }
    }

    /// What the accelerator has, or had, to say to the operator.
    pub(crate) fn note(&self) -> Option<String> {
        match &self.stage {
            Stage::Running(accelerator) => accelerator.note(),
            Stage::Released => self.letting_go_note.clone(),
        }
    }

    /// When a stage wants to be woken.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let accelerator = match &self.stage {
            Stage::Running(accelerator) => accelerator.poll_timeout(),
            Stage::Released => None,
        };
        let encoder = match self.peer_host {
            PeerHost::Standing => self.encoder.poll_timeout(),
            // Nothing is encoded any more.
            PeerHost::Reset | PeerHost::ResetPassedOn => None,
        };
        [encoder, accelerator, self.delivery_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// How the flow has ended; `None` while it goes on.
    pub(crate) fn end(&self, session: &Session) -> Option<FlowEnd> {
        if self.is_host_gone() {
            let is_known_to_peer = self.session_closed
                || self.is_reset_by_peer()
                || (self.finish_wan == Finish::Done && session.is_delivered(self.id));
            return is_known_to_peer.then_some(match self.is_reset_by_peer() {
                true => FlowEnd::PeerHostReset,
                false => FlowEnd::HostReset,
            });
        }
        let is_over = self.session_closed
            && self.lan.finished
            && self.lan.finish == Finish::Done
            && self.lan.queued == 0;
        is_over.then_some(FlowEnd::Closed)
    }

    fn is_host_gone(&self) -> bool {
        matches!(self.lan.host, HostState::Gone { .. })
    }

    fn is_reset_by_peer(&self) -> bool {
        self.peer_host != PeerHost::Standing
    }

    pub(crate) fn reduction(&self) -> reduce::FlowReduction {
        self.encoder.statistics()
    }

    // What happens on the LAN side.

    pub(crate) fn connected(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.lan.connected = true;
        self.lan.waiting_bytes = 0;
        for bytes in std::mem::take(&mut self.lan.waiting) {
            self.write_lan(turn, bytes);
        }
        self.flush_lan(turn);
        self.pump(turn)
    }

    pub(crate) fn received(&mut self, turn: &mut Turn<'_>, bytes: Bytes) -> Result<(), Broken> {
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
        self.accelerate(turn, Input::Lan(bytes))?;
        self.pump(turn)
    }

    pub(crate) fn lan_finished(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.lan.finished = true;
        if self.is_reset_by_peer() {
            return Ok(());
        }
        self.accelerate(turn, Input::LanFinished)?;
        self.pump(turn)
    }

    pub(crate) fn written(&mut self, turn: &mut Turn<'_>, bytes: usize) -> Result<(), Broken> {
        self.lan.note_written(bytes);
        self.note_progress(turn.now);
        self.pump(turn)
    }

    /// Keeps what the client sends as long as the peer cannot have heard of the flow.
    fn keep_unsent(&mut self, session: &Session, bytes: &Bytes) {
        let Some(unsent) = &mut self.unsent else {
            return;
        };
        let fits = self.unsent_bytes + bytes.len() <= UNSENT_MAX;
        if fits && !session.is_open_sent(self.id) {
            unsent.push(bytes.clone());
            self.unsent_bytes += bytes.len();
        } else {
            self.forget_unsent();
        }
    }

    fn forget_unsent(&mut self) {
        self.unsent = None;
        self.unsent_bytes = 0;
    }

    /// The host's connection has failed: nothing can be written to it, and there is still something to
    /// read of it.
    pub(crate) fn lan_failed(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        if self.lan.host == HostState::Standing {
            self.lan.host = HostState::Failed;
            self.drop_writes();
            self.expect_delivery(turn.now);
        }
        self.pump(turn)
    }

    /// The host's connection is gone, and all that it sent was read.
    pub(crate) fn lan_aborted(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        if self.is_host_gone() {
            return Ok(());
        }
        self.lan.host = HostState::Gone {
            finished: self.lan.finished,
        };
        self.lan.credit = 0;
        self.drop_writes();
        self.expect_delivery(turn.now);
        if self.is_reset_by_peer() {
            return Ok(());
        }
        if !self.lan.finished {
            self.lan.finished = true;
            self.accelerate(turn, Input::LanFinished)?;
        }
        self.pump(turn)
    }

    fn drop_writes(&mut self) {
        self.lan.queued = 0;
        self.lan.taken = 0;
        self.lan.writes = VecDeque::new();
        self.lan.gathered = Vec::new();
        self.lan.waiting = VecDeque::new();
        self.lan.waiting_bytes = 0;
    }

    fn expect_delivery(&mut self, now: Time) {
        self.delivery_until = Some(now + DELIVERY_STALL_LIMIT);
    }

    fn note_progress(&mut self, now: Time) {
        if self.delivery_until.is_some() {
            self.expect_delivery(now);
        }
    }

    // What happens on the WAN side.

    /// The peer has opened the server's connection.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
        self.forget_unsent();
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// All that the client has sent, if it was told nothing and the peer cannot have heard of the flow.
    pub(crate) fn take_unsent(&mut self, session: &Session) -> Option<Unsent> {
        let is_untouched = !session.is_open_sent(self.id)
            && self.received_lan_bytes == 0
            && self.lan.host == HostState::Standing
            && self.lan.finish == Finish::Open;
        let bytes = self.unsent.take().filter(|_| is_untouched);
        self.unsent_bytes = 0;
        Some(Unsent {
            bytes: bytes?,
            is_finished: self.lan.finished,
        })
    }

    pub(crate) fn consumed(&mut self, turn: &mut Turn<'_>, offset: u64) -> Result<(), Broken> {
        self.encoder.acknowledged(offset, turn.dictionary);
        self.note_progress(turn.now);
        self.pump(turn)
    }

    /// The peer's host has reset its connection, and the session has forgotten the flow. What arrived of
    /// it is delivered, then this host's connection is reset.
    pub(crate) fn wan_reset(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.peer_host = PeerHost::Reset;
        self.wan_finished = true;
        self.unanswered.clear();
        self.expect_delivery(turn.now);
        self.pump(turn)
    }

    pub(crate) fn wan_finished(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.wan_finished = true;
        self.pump(turn)
    }

    /// The peer may not be there any more.
    pub(crate) fn wan_silent(
        &mut self,
        turn: &mut Turn<'_>,
        since: Duration,
    ) -> Result<(), Broken> {
        self.accelerate(turn, Input::WanSilent(since))?;
        self.flush_lan(turn);
        Ok(())
    }

    /// The flow's claim was granted, revoked or denied.
    pub(crate) fn claim_decided(
        &mut self,
        turn: &mut Turn<'_>,
        decision: Input,
    ) -> Result<(), Broken> {
        self.accelerate(turn, decision)?;
        self.pump(turn)
    }

    pub(crate) fn session_closed(&mut self) {
        self.session_closed = true;
    }

    pub(crate) fn message(
        &mut self,
        turn: &mut Turn<'_>,
        kind: u8,
        bytes: Bytes,
    ) -> Result<(), Broken> {
        match kind {
            message::REPAIR_REQUEST => {
                let is_long = bytes.len() > reduce::MAX_REPAIR_REQUEST;
                if is_long || self.unanswered.len() >= REPAIRS_ASKED {
                    return Err(Broken {
                        recurs: None,
                        reset: ResetReason::Reduction,
                        text: "the peer asks for more repairs than it can use".to_owned(),
                    });
                }
                // Without the packet that it came in.
                self.unanswered.push_back(Bytes::copy_from_slice(&bytes));
                // The encoder notes what the peer lacks at its next turn; without one, requests
                // that come again and again would pile that up.
                self.pump(turn)
            }
            message::REPAIR_ANSWER => {
                self.decoder.handle_repair(&bytes).map_err(failed_repair)?;
                self.pump(turn)
            }
            // A later release may have messages that this one need not understand.
            _ => Ok(()),
        }
    }

    pub(crate) fn timer_fired(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        if self.delivery_until.is_some_and(|until| until <= turn.now) {
            return Err(Broken {
                recurs: None,
                // Unlike a host's reset, this one does not wait over there.
                reset: ResetReason::Limit,
                text: "a host was reset, and what it sent before was not taken in time".to_owned(),
            });
        }
        let due = match &self.stage {
            Stage::Running(accelerator) => {
                accelerator.poll_timeout().is_some_and(|at| at <= turn.now)
            }
            Stage::Released => false,
        };
        if due {
            self.accelerate(turn, Input::Timeout)?;
        }
        self.pump(turn)
    }

    /// Moves what can be moved, in both directions, until nothing more can.
    pub(crate) fn pump(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.restore(turn)?;
        self.repair(turn)?;
        self.encode(turn);
        self.grant_read_credit(turn);
        Ok(())
    }

    /// Answers requests for repairs while answers have room.
    fn repair(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        while !self.unanswered.is_empty() && turn.session.has_message_room(self.id) {
            if let Some(request) = self.unanswered.pop_front() {
                let answer = self.encoder.repair(&request).map_err(failed_repair)?;
                turn.session
                    .send_message(self.id, message::REPAIR_ANSWER, answer);
            }
        }
        Ok(())
    }

    /// LAN to WAN: encodes as much as the session can take.
    fn encode(&mut self, turn: &mut Turn<'_>) {
        if self.is_reset_by_peer() {
            return;
        }
        loop {
            // Asked even without room: that a held tail is due must stop its timer, or the
            // timer would fire for ever while the peer gives no credit.
            let room = turn.session.writable(self.id);
            self.encoder.limit_record(turn.session.record_room(self.id));
            self.encoder
                .limit_retained(turn.budget.share(), turn.budget.spare());
            let Some(encoded) = self.encoder.poll_encoded(turn.now, turn.dictionary, room) else {
                break;
            };
            // The peer can consume whole records only, so a record that was begun is written to
            // its end.
            let rest = self.encoder.rest_of_record();
            for bytes in std::iter::once(encoded).chain(rest) {
                self.sent_wan_bytes += bytes.len() as u64;
                turn.session.write(self.id, bytes);
            }
        }
        self.waits_for_disk |= self.encoder.waits_for_disk();
        if self.finish_wan == Finish::Wanted && self.encoder.pending() == 0 {
            self.finish_wan = Finish::Done;
            // A reset is no end in good order; the peer is told of it once it has consumed all bytes.
            if self.lan.host != (HostState::Gone { finished: false }) {
                turn.session.finish(self.id);
            }
        }
    }

    /// WAN to LAN: decodes as much as the host takes.
    fn restore(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        self.waits_for_disk = false;
        let share = turn.budget.share();
        self.decoder.limit_ahead(share);
        while self.lan.held() < WRITE_AHEAD.min(share) {
            match self.decoder.poll(turn.dictionary) {
                Ok(Decoded::Segment(segment)) => self.deliver(turn, segment)?,
                Ok(Decoded::NeedMore) => {
                    let Some(encoded) = turn.session.read(self.id, SESSION_READ) else {
                        self.end_of_wan(turn)?;
                        break;
                    };
                    self.received_wan_bytes += encoded.len() as u64;
                    self.is_answered = true;
                    self.decoder.push(encoded);
                }
                Ok(Decoded::WaitForDisk) => {
                    self.waits_for_disk = true;
                    break;
                }
                Ok(Decoded::NeedRepair(request)) => {
                    self.repairs_asked += 1;
                    turn.session
                        .send_message(self.id, message::REPAIR_REQUEST, request);
                }
                Ok(Decoded::WaitForRepair) => {
                    if self.is_reset_by_peer() {
                        // No repair comes of a flow that the session has forgotten.
                        self.end_of_wan(turn)?;
                    }
                    break;
                }
                Err(error) => {
                    return Err(Broken {
                        recurs: None,
                        reset: ResetReason::Reduction,
                        text: format!("the peer's data cannot be restored: {error}"),
                    });
                }
            }
        }
        self.flush_lan(turn);
        let consumed = self.decoder.consumed();
        if consumed > self.consumed_told {
            self.consumed_told = consumed;
            turn.session.consumed(self.id, consumed);
        }
        Ok(())
    }

    /// Ends the stream towards the host once the peer's has ended and all of it was delivered.
    fn end_of_wan(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        if !self.wan_finished || self.wan_finish_told {
            return Ok(());
        }
        self.wan_finish_told = true;
        if !self.decoder.is_at_boundary() && !self.is_reset_by_peer() {
            return Err(Broken {
                recurs: None,
                reset: ResetReason::Reduction,
                text: "the peer's data ends in the middle of a record".to_owned(),
            });
        }
        self.accelerate(turn, Input::WanFinished)
    }

    fn deliver(&mut self, turn: &mut Turn<'_>, segment: Segment) -> Result<(), Broken> {
        let released = segment.kind == SegmentKind::Frame
            && FrameKind::of(&segment.bytes) == Some(FrameKind::Released);
        if !released {
            return self.accelerate(turn, Input::Wan(segment));
        }
        // The other half has let go; this one puts out what it still holds and goes too.
        self.drain_accelerator(turn)?;
        self.stage = Stage::Released;
        turn.claims.released(self.number);
        if let Some(reason) = segment
            .bytes
            .get(1)
            .copied()
            .and_then(LetGoReason::from_byte)
        {
            self.letting_go = Some(LettingGo::LetGo { reason });
        }
        Ok(())
    }

    fn accelerate(&mut self, turn: &mut Turn<'_>, input: Input) -> Result<(), Broken> {
        match &mut self.stage {
            Stage::Running(accelerator) => {
                accelerator.handle(turn.now, input);
                self.drain_accelerator(turn)
            }
            Stage::Released => {
                self.pass(turn, input);
                Ok(())
            }
        }
    }

    fn drain_accelerator(&mut self, turn: &mut Turn<'_>) -> Result<(), Broken> {
        use accelerate::Output as Wish;
        while let Stage::Running(accelerator) = &mut self.stage {
            let Some(wish) = accelerator.poll_output() else {
                break;
            };
            match wish {
                Wish::OpenServer => self.wants_server = true,
                Wish::ToLan(bytes) => self.write_lan(turn, bytes),
                Wish::FinishLan => self.finish_lan(turn),
                // Nobody would take it any more.
                Wish::ToWan(_) | Wish::FinishWan if self.peer_host != PeerHost::Standing => {}
                Wish::ToWan(segment) => self.encoder.push(turn.now, segment),
                Wish::FinishWan => self.finish_wan(),
                Wish::Claim(key) => turn.claims.claim(self.number, key),
                Wish::ClaimReleased => turn.claims.released(self.number),
                Wish::LettingGo(letting_go) => {
                    self.letting_go_note = accelerator.note();
                    self.let_go(turn, letting_go)?;
                }
            }
        }
        Ok(())
    }

    fn let_go(&mut self, turn: &mut Turn<'_>, letting_go: LettingGo) -> Result<(), Broken> {
        self.letting_go = Some(letting_go);
        match letting_go {
            LettingGo::LetGo { reason } => {
                let released = [FrameKind::Released.to_byte(), reason.to_byte()];
                let frame = Bytes::copy_from_slice(&released);
                self.encoder.push(turn.now, Segment::frame(frame));
                self.stage = Stage::Released;
                turn.claims.released(self.number);
                Ok(())
            }
            LettingGo::Translate { .. } => Ok(()),
            LettingGo::Close { reason } => Err(Broken {
                recurs: reason.recurs().then(|| Because {
                    reason,
                    note: self.letting_go_note.clone(),
                }),
                reset: ResetReason::Accelerator,
                text: format!("the accelerator closed the flow: {}", reason.text()),
            }),
        }
    }

    /// What happens to bytes that no accelerator handles any more.
    fn pass(&mut self, turn: &mut Turn<'_>, input: Input) {
        match input {
            Input::Lan(bytes) => self.encoder.push(turn.now, Segment::payload(bytes)),
            Input::LanFinished => self.finish_wan(),
            Input::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => self.write_lan(turn, segment.bytes),
                SegmentKind::Frame => {}
            },
            Input::WanFinished => self.finish_lan(turn),
            Input::ClaimRevoked => turn.claims.released(self.number),
            Input::Start
            | Input::WanSilent(_)
            | Input::Timeout
            | Input::ClaimGranted
            | Input::ClaimDenied => {}
        }
    }

    /// Whether an accelerator has asked for the server's connection since this was last called.
    pub(crate) fn take_wish_for_server(&mut self) -> bool {
        std::mem::take(&mut self.wants_server)
    }

    /// What opens the server's connection.
    pub(crate) fn connect(&self) -> Output {
        Output::Connect {
            connection: self.lan.connection,
            client: self.keep_client_address.then_some(self.client),
            server: self.server,
            on_behalf: OnBehalf::Peer,
        }
    }

    fn write_lan(&mut self, turn: &mut Turn<'_>, bytes: Bytes) {
        if bytes.is_empty() || self.lan.host != HostState::Standing {
            return;
        }
        if self.received_lan_bytes == 0 {
            self.look(&bytes);
        }
        if !self.lan.connected {
            self.lan.waiting_bytes += bytes.len();
            let bytes = match bytes.len() < COPY_BELOW {
                true => Bytes::copy_from_slice(&bytes),
                false => bytes,
            };
            self.lan.waiting.push_back(bytes);
            return;
        }
        self.received_lan_bytes += bytes.len() as u64;
        self.lan.queued += bytes.len();
        if bytes.len() >= COPY_BELOW {
            self.flush_lan(turn);
            return self.put_write(turn, bytes);
        }
        self.lan.gathered.extend_from_slice(&bytes);
        if self.lan.gathered.len() >= COPY_BELOW {
            self.flush_lan(turn);
        }
    }

    /// Gives the shell the small pieces that were gathered: before anything else is told about the
    /// host, and at the end of a turn.
    fn flush_lan(&mut self, turn: &mut Turn<'_>) {
        if !self.lan.gathered.is_empty() {
            let bytes = Bytes::from(std::mem::take(&mut self.lan.gathered));
            self.put_write(turn, bytes);
        }
    }

    fn put_write(&mut self, turn: &mut Turn<'_>, bytes: Bytes) {
        self.lan.writes.push_back(bytes.len());
        turn.outputs.push_back(Output::Write {
            connection: self.lan.connection,
            bytes,
        });
    }

    fn finish_lan(&mut self, turn: &mut Turn<'_>) {
        if self.lan.finish == Finish::Open {
            self.lan.finish = Finish::Wanted;
        }
        self.end_lan_when_possible(turn);
    }

    /// Ends the stream towards the host, by a FIN or by a reset behind what was written.
    fn end_lan_when_possible(&mut self, turn: &mut Turn<'_>) {
        if !self.lan.connected || self.lan.host != HostState::Standing {
            return;
        }
        self.flush_lan(turn);
        let connection = self.lan.connection;
        match self.peer_host {
            PeerHost::Standing => {
                if self.lan.finish == Finish::Wanted {
                    self.lan.finish = Finish::Done;
                    turn.outputs.push_back(Output::FinishWrite { connection });
                }
            }
            PeerHost::Reset => {
                if self.lan.finish != Finish::Open && self.lan.queued == 0 {
                    self.peer_host = PeerHost::ResetPassedOn;
                    turn.outputs
                        .push_back(Output::ResetWhenDelivered { connection });
                }
            }
            PeerHost::ResetPassedOn => {}
        }
    }

    fn finish_wan(&mut self) {
        if self.finish_wan == Finish::Open {
            self.finish_wan = Finish::Wanted;
            self.encoder.finish();
        }
    }

    fn grant_read_credit(&mut self, turn: &mut Turn<'_>) {
        self.end_lan_when_possible(turn);
        if !self.lan.connected || self.lan.finished || self.is_reset_by_peer() {
            return;
        }
        let ahead = READ_AHEAD.min(turn.budget.share().max(LEAST_CREDIT));
        let waiting = self.encoder.pending() + self.encoder.pending_overhead();
        let room = ahead.saturating_sub(waiting + self.lan.credit);
        if room < LEAST_CREDIT {
            return;
        }
        self.lan.credit += room;
        turn.outputs.push_back(Output::ReadCredit {
            connection: self.lan.connection,
            bytes: room,
        });
    }

    /// Names the protocol from the first bytes of either direction.
    fn look(&mut self, bytes: &[u8]) {
        let first = &bytes[..bytes.len().min(detect::LOOK_LIMIT)];
        if let Some(protocol) = detect::by_first_bytes(first) {
            self.protocol = protocol;
        }
    }

    /// Why the accelerate stage does nothing (more), if so.
    pub(crate) fn letting_go_reason(&self) -> Option<LetGoReason> {
        match self.letting_go {
            Some(
                LettingGo::LetGo { reason }
                | LettingGo::Translate { reason }
                | LettingGo::Close { reason },
            ) => Some(reason),
            None if self.accelerator_name == accelerate::registry::ENTRIES[0].name => {
                Some(LetGoReason::NoAccelerator)
            }
            None => None,
        }
    }
}

fn failed_repair(error: reduce::Error) -> Broken {
    Broken {
        recurs: None,
        reset: ResetReason::Reduction,
        text: format!("repair failed: {error}"),
    }
}
