//! WAN transport over UDP: one datagram path to the peer, beside the link that provided its keys.
//!
//! ```text
//!             ┌── packet: seal, open, addresses      ┌── recovery: acknowledge, detect loss
//!  datagram ◄─┤   fec: symbols, repairs, policy      ├── congestion: window, rate, pacer
//!             └── session frames ◄── DatagramTransport ── path: packet size, round trips
//! ```
//!
//! Packets carry frames of the layer above. That layer puts them in when asked
//! ([`DatagramTransport::poll_transmit`] calls back for them) and attaches a content `T` to each
//! packet as a record of its frames. It gets the content's outcome
//! ([`DatagramTransport::poll_fate`]): that it is lost, perhaps more than once, as when a probe
//! should carry it again, and that it arrived, even if that is found later. Only the layer above
//! sends data again.
//!
//! ```text
//!             an answer to us            nothing answered for 1 s and 4 probe timeouts,
//!                                            or nothing of the base size
//!  Probing ───────────────────► Carrying ─────────────────────────────────► Suspended
//!                                  ▲                  an answer                  │
//!                                  └────────────────────────────────────────────┘
//! ```
//!
//! While the transport probes or is suspended, frames travel on the link. `sending.rs` makes
//! packets, `receiving.rs` handles received ones, `path_probes.rs` probes the path and the peer's
//! address, `black_hole.rs` detects black holes, `closing.rs` closes it, `status.rs` describes it
//! for operators.

mod black_hole;
mod closing;
mod path_probes;
mod receiving;
mod sending;
mod status;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::BytesMut;
use path::{INITIAL_RTT, MtuConfig, PathMtu, RttEstimator};
use vocab::{Bitrate, ByteWriter, Time};

use crate::congestion::{
    self, CongestionAlgorithm, CongestionController, Pacer, RememberedPath, SendState,
};
use crate::fec::{self, FecDecoder, FecEncoder, RepairPolicy};
use crate::packet::{
    AddressTrust, ChallengeSeed, PacketAck, PacketOpener, PacketSealer, PathAddresses,
};
use crate::recovery::{ReceivedPackets, RecoveryTimeout, SentPackets};
use crate::wire::SessionFrame;

use black_hole::BlackHoleDetector;
use closing::ClosingState;
use path_probes::{IdleProbeTimer, PendingResponse};

pub use crate::recovery::EcnMarking;
pub(crate) use sending::LEAST_FRAMES_ROOM;
pub use status::TransportStatus;

/// A path that has answered nothing for this long, and for [`SUSPEND_PROBES`] probe timeouts, is
/// suspended: a person waits no longer than a second more, and two probes in a row are lost on a
/// poor path now and then.
const SUSPEND_AFTER: Duration = Duration::from_secs(1);
const SUSPEND_PROBES: u32 = 4;

/// Packets sent for one probe timeout (RFC 9002 §6.2.4: one or two).
const PROBE_PACKETS: u32 = 2;

/// Settings of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathSettings {
    /// Mode of forward error correction.
    pub fec: fec::RepairMode,
    /// Congestion control algorithm.
    pub algorithm: CongestionAlgorithm,
    /// The operator's cap.
    pub rate_max: Option<Bitrate>,
    /// Rate and round-trip time of an earlier path to this peer.
    pub remembered: Option<RememberedPath>,
    /// The largest UDP payload to try: the interface's MTU less the IP and UDP headers.
    pub datagram_max: u16,
    /// Seed of the small random waits in congestion control.
    pub seed: u64,
}

impl Default for PathSettings {
    fn default() -> Self {
        Self {
            fec: fec::RepairMode::Auto,
            algorithm: CongestionAlgorithm::Bbr,
            rate_max: None,
            remembered: None,
            datagram_max: 1_452,
            seed: 0,
        }
    }
}

/// Content that the layer above has put into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilledPacket<T> {
    /// Content to keep until the packet is acknowledged or lost.
    pub content: T,
    /// Use of repair symbols for the packet.
    pub protection: RepairProtection,
}

/// Use of repair symbols for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairProtection {
    /// The application waits for its content.
    Repair,
    /// Its content is repeated before it is needed, such as a sign of life.
    Nothing,
}

/// Outcome of a packet's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The peer has it.
    Arrived,
    /// It counts as lost; it may still turn out to have arrived.
    Lost,
}

/// Condition of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathCondition {
    /// No answer has arrived yet.
    Probing,
    /// The path carries frames.
    Carrying,
    /// The path no longer answers; it is probed occasionally.
    Suspended(SuspendReason),
}

/// Reason for not using a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SuspendReason {
    /// Packets are sent and nothing comes back.
    NoAnswer,
    /// The peer does not answer at the address that its packets come from.
    AddressUnproved,
    /// The peer has closed it.
    ClosedByPeer,
    /// This node has closed it.
    ClosedHere,
    /// Too many forged packets came, or the keys are used up.
    KeysUsedUp,
    /// The path answers short packets, and carries none of the size that every path should
    /// ([`path::BASE_SIZE`]).
    TooNarrow,
    /// Packets get through, but the link delivers more: the network limits UDP.
    SlowerThanLink,
}

impl SuspendReason {
    /// Returns `true` if the path will never carry anything again.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::NoAnswer | Self::AddressUnproved | Self::TooNarrow | Self::SlowerThanLink => {
                false
            }
            Self::ClosedByPeer | Self::ClosedHere | Self::KeysUsedUp => true,
        }
    }
}

/// A change that the layer above has to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Frames may be sent here.
    Carrying,
    /// They have to go another way; the fates of all packets under way have been told.
    Suspended(SuspendReason),
}

/// Packets of one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitBatch {
    /// Destination address.
    pub to: SocketAddr,
    /// True if the packets are sent as ECN-capable.
    pub is_marked: bool,
    /// The length of each packet but the last, which may be shorter.
    pub segment: usize,
    /// All bytes, at the end of the caller's buffer.
    pub bytes: usize,
}

/// The parts of a path that come from its keys.
pub struct PathKeys {
    /// Seals what goes out.
    pub sealer: PacketSealer,
    /// Opens what comes in.
    pub opener: PacketOpener,
    /// For challenges to new addresses.
    pub challenges: ChallengeSeed,
}

impl fmt::Debug for PathKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keys")
            .field("sealer", &self.sealer)
            .field("opener", &self.opener)
            .finish_non_exhaustive()
    }
}

/// One datagram path to the peer.
#[derive(Debug)]
pub struct DatagramTransport<T> {
    settings: PathSettings,
    condition: PathCondition,
    sealer: PacketSealer,
    opener: PacketOpener,
    addresses: PathAddresses,
    sent: SentPackets<PacketContent<T>>,
    received: ReceivedPackets,
    controller: Box<dyn CongestionController>,
    pacer: Pacer,
    mtu: PathMtu,
    encoder: FecEncoder,
    decoder: FecDecoder,
    policy: RepairPolicy,
    responses: VecDeque<PendingResponse>,
    /// Probes that are to be sent whatever the window says.
    probes_due: u32,
    /// Largest size of probes: longer ones may be the reason for the silence.
    probe_max: u16,
    /// Detector of a path that no longer carries the minimum packet size.
    black_hole_detector: BlackHoleDetector,
    /// Timer for probes of a path that carries nothing.
    idle_probe_timer: IdleProbeTimer,
    /// Time of the last packet, or of the last keep-alive request.
    quiet_since: Time,
    /// Close that still has to be sent for a path that was closed here.
    closing: Option<ClosingState>,
    /// Start of the time without an answer although one was requested.
    unanswered_since: Option<Time>,
    /// Time at which the pacer allows the next packet.
    paced_until: Option<Time>,
    /// A sealed packet that is longer than those it was to be sent with.
    held: Option<HeldDatagram>,
    /// Room for a frame of ours, and for those of the layer above, on their way into a packet.
    scratch: ByteWriter,
    filled: ByteWriter,
    frames: VecDeque<SessionFrame>,
    fates: VecDeque<(DeliveryOutcome, T)>,
    changes: VecDeque<PathChange>,
    counters: status::PathCounters,
}

/// Content that is kept with each packet.
#[derive(Clone, Debug)]
struct PacketContent<T> {
    above: Option<T>,
    state: SendState,
    symbol: Option<u64>,
    acknowledgement: Option<Box<PacketAck>>,
    /// The UDP payload.
    datagram: u16,
}

#[derive(Debug)]
struct HeldDatagram {
    to: SocketAddr,
    bytes: BytesMut,
    is_marked: bool,
}

impl HeldDatagram {
    fn transmit(&self) -> TransmitBatch {
        TransmitBatch {
            to: self.to,
            is_marked: self.is_marked,
            segment: self.bytes.len(),
            bytes: self.bytes.len(),
        }
    }
}

impl<T: Clone> DatagramTransport<T> {
    /// A path with keys of its own. The side that knows where the peer is sends first.
    #[must_use]
    pub fn new(
        now: Time,
        keys: PathKeys,
        peer: Option<SocketAddr>,
        settings: PathSettings,
    ) -> Self {
        let PathKeys {
            sealer,
            opener,
            challenges,
        } = keys;
        // The operator or the link has named the address of whom is dialled.
        let known = peer.map(|address| (address, AddressTrust::Validated));
        let initial = settings
            .remembered
            .map_or(INITIAL_RTT, |remembered| remembered.rtt);
        let controller = new_controller(now, peer, &settings, settings.remembered);
        let sent = SentPackets::new(now, RttEstimator::new(initial));
        Self {
            idle_probe_timer: IdleProbeTimer::new(peer.map(|_| now), sent.probe_timeout()),
            settings,
            condition: PathCondition::Probing,
            sealer,
            opener,
            addresses: PathAddresses::new(now, challenges, known),
            sent,
            received: ReceivedPackets::new(now, initial),
            pacer: Pacer::new(now, controller.pacing_rate(), controller.send_quantum()),
            controller,
            mtu: new_search(now, &settings),
            encoder: FecEncoder::default(),
            decoder: FecDecoder::default(),
            policy: RepairPolicy::new(settings.fec),
            responses: VecDeque::new(),
            probes_due: 0,
            probe_max: u16::MAX,
            black_hole_detector: BlackHoleDetector::default(),
            quiet_since: now,
            closing: None,
            unanswered_since: None,
            paced_until: None,
            held: None,
            scratch: ByteWriter::with_capacity(2_048),
            filled: ByteWriter::with_capacity(2_048),
            frames: VecDeque::new(),
            fates: VecDeque::new(),
            changes: VecDeque::new(),
            counters: status::PathCounters::default(),
        }
    }

    /// The next frame of the peer's; to be called until there is none.
    pub fn poll_frame(&mut self) -> Option<SessionFrame> {
        self.frames.pop_front()
    }

    /// Takes the outcome of a packet's content. Call until it returns `None`.
    pub fn poll_fate(&mut self) -> Option<(DeliveryOutcome, T)> {
        self.fates.pop_front()
    }

    /// Takes a change that the layer above has to follow, after the outcomes. Call until it returns
    /// `None`.
    pub fn poll_change(&mut self) -> Option<PathChange> {
        self.changes.pop_front()
    }

    /// Condition of the path.
    #[must_use]
    pub fn condition(&self) -> PathCondition {
        self.condition
    }

    /// A typical round-trip time, once there was one.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.sent.rtt().latest()?;
        Some(self.sent.typical_rtt())
    }

    /// Returns the rate and round-trip time to remember for the next path to this peer.
    #[must_use]
    pub fn remembered(&self) -> Option<RememberedPath> {
        self.controller.remembered()
    }

    /// Returns the time at which to call [`Self::handle_timeout`], or at which
    /// [`Self::poll_transmit`] has packets, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.has_ended() {
            return self.closing.as_ref().map(ClosingState::poll_timeout);
        }
        let fixed = [
            self.opener.poll_timeout(),
            self.addresses.poll_timeout(path_probes::LEAST_CHALLENGE),
        ]
        .map(|at| (at != Time::NEVER).then_some(at));
        let mut next = [
            self.sent.poll_timeout(),
            self.paced_until,
            self.suspend_at(),
            self.idle_probe_timer.poll_timeout(),
            self.keep_alive_at(),
            fixed[0],
            fixed[1],
            None,
            None,
            None,
        ];
        // What may not leave before something arrives, or the pacer lets it, is not waited for.
        if let Some(size) = self.packet_room() {
            next[7] = self.received.poll_timeout();
            if self.carries() && self.window_has_room(size as u64) {
                let least = self.paced_until.unwrap_or(Time::ZERO);
                next[8] = self.policy.poll_timeout().map(|at| at.max(least));
                if self.addresses.trust() == AddressTrust::Validated {
                    next[9] = self.mtu.poll_timeout().map(|at| at.max(least));
                }
            }
        }
        next.into_iter().flatten().min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.has_ended() {
            (self.closing).take_if(|closing| !closing.handle_timeout(now));
            return;
        }
        self.opener.handle_timeout(now);
        self.mtu.handle_timeout(now);
        if self.addresses.handle_timeout(now).is_some() && self.addresses.current().is_none() {
            self.suspend(now, SuspendReason::AddressUnproved);
        }
        while let Some(timeout) = self.sent.handle_timeout(now) {
            match timeout {
                RecoveryTimeout::Lost(lost) => self.on_lost(now, lost),
                RecoveryTimeout::Probe { count } => self.probe_what_is_under_way(count),
            }
        }
        if self.suspend_at().is_some_and(|at| at <= now) {
            self.suspend(now, SuspendReason::NoAnswer);
        }
        if self.idle_probe_timer.is_due(now) {
            self.probes_due = PROBE_PACKETS;
        }
        self.keep_alive(now);
    }

    /// Lets a probe carry data that may be missing (RFC 9002 §6.2.4), in a packet of the base size
    /// from the second probe in a row on: the path's MTU may have fallen, and it then still
    /// answers.
    fn probe_what_is_under_way(&mut self, count: u32) {
        self.probes_due = PROBE_PACKETS;
        self.probe_max = if count > 1 { path::BASE_SIZE } else { u16::MAX };
        let oldest = self.sent.oldest_in_flight();
        if let Some(above) = oldest.and_then(|packet| packet.content.above.clone()) {
            self.fates.push_back((DeliveryOutcome::Lost, above));
        }
    }

    /// Returns the content in flight to the layer above, to be sent again on either path.
    fn abandon(&mut self) {
        for packet in self.sent.abandon() {
            if let Some(above) = packet.content.above {
                self.fates.push_back((DeliveryOutcome::Lost, above));
            }
        }
        // Its symbols are of no more use to the peer.
        self.encoder.acknowledged(self.encoder.outstanding());
        self.unanswered_since = None;
        self.black_hole_detector = BlackHoleDetector::default();
    }

    /// Starts over after the peer moved to another host, on an unknown path (RFC 9000 §9.4).
    /// Packets in flight on the old path are abandoned, so that their acknowledgements are not
    /// attributed to the new one.
    fn start_over(&mut self, now: Time) {
        self.abandon();
        self.sent.forget_path(now, RttEstimator::new(INITIAL_RTT));
        let peer = self.addresses.current();
        self.controller = new_controller(now, peer, &self.settings, None);
        self.mtu = new_search(now, &self.settings);
        let rate = self.controller.pacing_rate();
        self.pacer = Pacer::new(now, rate, self.controller.send_quantum());
    }

    /// Returns `true` if frames may be sent to the present address. They are not sent to a host
    /// that is not validated, since their losses would be attributed to the path that was left.
    fn carries(&self) -> bool {
        self.condition == PathCondition::Carrying && !self.addresses.is_elsewhere()
    }

    /// Returns the largest size of a packet to the peer now, if one may be sent.
    fn packet_room(&self) -> Option<usize> {
        let longest = match self.probes_due {
            0 => self.mtu.size(),
            _ => self.mtu.size().min(self.probe_max),
        };
        let size = u64::from(longest).min(self.addresses.allowance());
        let may_go = size >= sending::LEAST_ROOM as u64
            && self.sent.has_room()
            && (self.probes_due > 0 || !self.sealer.is_far_ahead());
        may_go.then_some(size as usize)
    }

    /// Returns `true` if the window allows a packet with a payload of this size.
    fn window_has_room(&self, size: u64) -> bool {
        let bytes = size + headers(self.addresses.current());
        self.sent.bytes_in_flight() + bytes <= self.controller.window()
    }

    /// Returns the time at which the path is suspended without an answer.
    fn suspend_at(&self) -> Option<Time> {
        let since = self
            .unanswered_since
            .filter(|_| self.sent.bytes_in_flight() > 0)?;
        (self.condition == PathCondition::Carrying).then_some(since + self.suspicion_wait())
    }

    /// Returns the time without an answer after which a path counts as dead.
    fn suspicion_wait(&self) -> Duration {
        SUSPEND_AFTER.max(self.sent.probe_timeout() * SUSPEND_PROBES)
    }

    /// Returns the content in flight to the layer above, and stops carrying frames, for now or
    /// permanently.
    fn suspend(&mut self, now: Time, reason: SuspendReason) {
        if let PathCondition::Suspended(before) = self.condition
            && (before.is_final() || !reason.is_final())
        {
            return;
        }
        let was_carrying = self.condition == PathCondition::Carrying;
        self.condition = PathCondition::Suspended(reason);
        self.abandon();
        self.held = None;
        self.probes_due = 0;
        self.paced_until = None;
        self.idle_probe_timer = IdleProbeTimer::new(Some(now), self.sent.probe_timeout());
        if was_carrying {
            self.counters.suspensions += 1;
        }
        // Whoever hopes for the path must hear that it is gone for good.
        if was_carrying || reason.is_final() {
            self.changes.push_back(PathChange::Suspended(reason));
        }
    }

    /// Returns `true` if the path will never carry anything again.
    fn has_ended(&self) -> bool {
        matches!(self.condition, PathCondition::Suspended(reason) if reason.is_final())
    }

    /// Something that was asked was answered.
    fn answered(&mut self, now: Time) {
        let is_waiting = self.sent.bytes_in_flight() > 0;
        self.unanswered_since = is_waiting.then_some(now);
        if self.condition != PathCondition::Carrying
            && self.addresses.trust() == AddressTrust::Validated
        {
            self.condition = PathCondition::Carrying;
            self.idle_probe_timer.stop();
            self.changes.push_back(PathChange::Carrying);
        }
    }
}

fn new_controller(
    now: Time,
    peer: Option<SocketAddr>,
    settings: &PathSettings,
    remembered: Option<RememberedPath>,
) -> Box<dyn CongestionController> {
    let config = congestion::ControllerConfig {
        packet_bytes: u64::from(path::BASE_SIZE) + headers(peer),
        rate_max: settings.rate_max,
        seed: settings.seed,
    };
    congestion::controller(now, settings.algorithm, config, remembered)
}

fn new_search(now: Time, settings: &PathSettings) -> PathMtu {
    let base = path::BASE_SIZE;
    let config = MtuConfig {
        base,
        max: settings.datagram_max.max(base),
        grain: path::SEARCH_GRAIN,
    };
    PathMtu::new(now, config)
}

/// Bytes that IP and UDP add to a payload for this address.
fn headers(to: Option<SocketAddr>) -> u64 {
    // A socket for both families names an IPv4 host by an IPv6 address.
    match to.map(|to| to.ip().to_canonical()) {
        Some(IpAddr::V4(_)) => 28,
        Some(IpAddr::V6(_)) | None => 48,
    }
}
