//! How fast a path may be sent on: the controllers, and the pacer that spaces packets by them.
//!
//! ```text
//!  transport ── sent(packet) ─────────────────► Controller ── window ──────► may a packet go?
//!            ◄─ SendState (kept with the packet)   │  ├────── pacing_rate ─► Pacer: and when?
//!            ── event(acked, lost, spurious, …) ──►┘  └────── telemetry ───► status, FEC policy
//! ```
//!
//! A [`CongestionController`] is told of every packet that counts on the path (data, repair, probes) when it
//! goes out, and of what became of it. It hands back a small [`SendState`] with each packet, which
//! comes home with the packet's fate: the delivery-rate sample is made from the two. Two
//! algorithms stand behind the trait: [`CongestionAlgorithm::Bbr`], by draft-ietf-ccwg-bbr with departures
//! (docs/decisions/0029), and [`CongestionAlgorithm::Cubic`], by RFC 9438 and RFC 9406; a third is a rival for the
//! lab.
//!
//! Bytes are those of IP packets: the UDP payload with the UDP and IP headers around it.
//!
//! Nothing here detects losses, resends, or keeps packets; it reads no clock and draws chance only
//! from the seed in its [`ControllerConfig`].

mod bbr;
mod bbr_v1;
mod cubic;
mod event;
mod pacer;
mod sample;

use std::fmt;
use std::time::Duration;

use vocab::{Bitrate, Probability, Time};

pub use event::{AckedPacket, DeliveryEvent, LostPacket, SendState};
pub use pacer::Pacer;

/// Which controller a path is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// A model of the path by draft-ietf-ccwg-bbr ("BBRv3"): the default.
    #[default]
    Bbr,
    /// RFC 9438, started by RFC 9406; for those who must share a path with CUBIC and nothing else.
    Cubic,
    /// BBR version 1 as Linux has it, which answers neither loss nor delay: a rival for the lab, which
    /// nodes do not offer.
    BbrV1,
}

/// What a controller is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// A full packet's bytes, headers included.
    pub packet_bytes: u64,
    /// The operator's cap; the path is never paced faster.
    pub rate_max: Option<Bitrate>,
    /// Seed of the small random waits that keep senders from probing in step.
    pub seed: u64,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            packet_bytes: 1500,
            rate_max: None,
            seed: 0,
        }
    }
}

/// What an earlier session knew of the path to this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedPath {
    /// The rate at which the path delivered.
    pub rate: Bitrate,
    /// The round-trip time without queues: the shortest, or where packets overtake each other the
    /// usual one.
    pub rtt: Duration,
}

/// Decides how much may be in flight on one path, and how fast it is sent.
pub trait CongestionController: fmt::Debug + Send {
    /// Takes note of a packet that goes out now and counts as in flight; what is handed back is
    /// kept with it. `in_flight_before` does not include the packet.
    fn sent(&mut self, now: Time, number: u64, bytes: u64, in_flight_before: u64) -> SendState;

    /// Learns from an acknowledgement, from losses, or from both.
    fn event(&mut self, event: &DeliveryEvent<'_>);

    /// Takes note that nothing more is to be sent although `in_flight` is below the window: from
    /// here on the rate says nothing about the path. Also to be called when the peer's credits,
    /// not the network, hold the sender back (draft-ietf-ccwg-bbr, "Considerations Related to
    /// Receiver Flow Control Limits").
    fn limited_by_application(&mut self, now: Time, in_flight: u64);

    /// Takes note of another size of full packets, as the path's MTU becomes known.
    fn set_packet_bytes(&mut self, bytes: u64);

    /// The most bytes that may be in flight.
    fn window(&self) -> u64;

    /// How fast packets may leave, for the [`Pacer`].
    fn pacing_rate(&self) -> Bitrate;

    /// The bytes that may leave back to back, at least one packet.
    fn send_quantum(&self) -> u64;

    /// What is worth remembering for the next session, once the path is known.
    fn remembered(&self) -> Option<RememberedPath>;

    /// What an operator, and the FEC policy, may want to know.
    fn telemetry(&self) -> ControllerTelemetry;
}

/// A controller's view of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerTelemetry {
    /// The state's name: `"startup"`, `"cruise"`, `"slow start"`, …
    pub state: &'static str,
    /// The path's estimated rate.
    pub bandwidth: Bitrate,
    /// The shortest round-trip time of late; `None` before the first sample.
    pub rtt_min: Option<Duration>,
    /// The most bytes that may be in flight now.
    pub window: u64,
    /// The bound that losses or marks have set on the bytes in flight, if they have.
    pub in_flight_bound: Option<u64>,
    /// The share of packets that the path loses whatever is sent, as far as is known.
    pub loss_floor: Probability,
    /// Whether the path's queue is being filled, or was just found full: the wrong time for
    /// repair packets that nobody needs.
    pub is_congested: bool,
    /// Whether a queue stands that this sender does not keep up: it sends no more than the path
    /// carries, and others fill it. `None` while it probes, and of a controller that lives with a queue.
    pub is_shared: Option<bool>,
}

/// The controller of this algorithm for a new path, with what is remembered of it.
#[must_use]
pub fn controller(
    now: Time,
    algorithm: CongestionAlgorithm,
    config: ControllerConfig,
    remembered: Option<RememberedPath>,
) -> Box<dyn CongestionController> {
    match algorithm {
        CongestionAlgorithm::Bbr => Box::new(bbr::BbrController::new(config, remembered, now)),
        CongestionAlgorithm::Cubic => {
            Box::new(cubic::CubicController::new(config, remembered, now))
        }
        CongestionAlgorithm::BbrV1 => Box::new(bbr_v1::BbrV1::new(config, now)),
    }
}

/// The time whose bytes may leave back to back: a wake-up each millisecond costs a host little
/// (draft-ietf-ccwg-bbr, "Send Quantum").
const QUANTUM: Duration = Duration::from_millis(1);

/// What one system call can hand over for segmentation, at most.
const QUANTUM_MAX: u64 = 64 << 10;

/// The bytes that may leave back to back at this rate. At low rates it is one packet, where the
/// draft has two: its reason is the receiver's delayed acknowledgement, which is not ours.
fn quantum(rate: Bitrate, packet_bytes: u64) -> u64 {
    let bytes = rate.bytes_in(QUANTUM).bytes();
    bytes.min(QUANTUM_MAX).max(packet_bytes)
}
