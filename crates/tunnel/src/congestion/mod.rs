//! Congestion control: the controllers, and the pacer that spaces packets.
//!
//! ```text
//!  transport ── sent(packet) ─────────────────► controller ── window ──────► may a packet go?
//!            ◄─ SendState (kept with the packet)   │  ├────── pacing_rate ─► pacer: and when?
//!            ── event(acked, lost, spurious, …) ──►┘  └────── telemetry ───► status, FEC policy
//! ```
//!
//! A [`CongestionController`] is told of every packet that counts on the path (data, repair,
//! probes) when it is sent, and of its outcome. It attaches a small [`SendState`] to each packet,
//! which returns with the outcome; the delivery-rate sample is made from the two. The algorithms
//! are [`CongestionAlgorithm::Bbr`], by draft-ietf-ccwg-bbr with departures (docs/decisions/0017),
//! and [`CongestionAlgorithm::Cubic`], by RFC 9438 and RFC 9406. A third one exists for comparison
//! in the lab.
//!
//! Bytes are those of IP packets: the UDP payload with the UDP and IP headers around it.
//!
//! This module does not detect losses, resend, or keep packets. It reads no clock and takes random
//! numbers only from the seed in its [`ControllerConfig`].

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

/// Congestion control algorithm of a path.
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

/// Fixed settings of a controller.
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

/// Rate and round-trip time of the path to this peer in an earlier session.
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
    /// Records a packet that is sent now and counts as in flight. The returned state is kept with
    /// it. `in_flight_before` does not include the packet.
    fn sent(&mut self, now: Time, number: u64, bytes: u64, in_flight_before: u64) -> SendState;

    /// Learns from an acknowledgement, from losses, or from both.
    fn event(&mut self, event: &DeliveryEvent<'_>);

    /// Records that the sender has no more data although `in_flight` is below the window. From here
    /// on the rate is no measure of the path. Also called when the peer's credits, not the network,
    /// hold the sender back (draft-ietf-ccwg-bbr, "Considerations Related to Receiver Flow Control
    /// Limits").
    fn limited_by_application(&mut self, now: Time, in_flight: u64);

    /// Takes note of another size of full packets, as the path's MTU becomes known.
    fn set_packet_bytes(&mut self, bytes: u64);

    /// The most bytes that may be in flight.
    fn window(&self) -> u64;

    /// Returns the rate for the [`Pacer`].
    fn pacing_rate(&self) -> Bitrate;

    /// Bytes that may be sent back to back at this rate. At low rates it is one packet. The draft
    /// has two because of the receiver's delayed acknowledgements, which do not apply here.
    fn send_quantum(&self) -> u64;

    /// Returns the rate and round-trip time to remember for the next session, once they are known.
    fn remembered(&self) -> Option<RememberedPath>;

    /// Returns the controller's view of the path, for operators and for the FEC policy.
    fn telemetry(&self) -> ControllerTelemetry;
}

/// A controller's view of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerTelemetry {
    /// The state's name: `"startup"`, `"cruise"`, `"slow start"`, …
    pub state: &'static str,
    /// The path's estimated rate.
    pub bandwidth: Bitrate,
    /// Shortest recent round-trip time; `None` before the first sample.
    pub rtt_min: Option<Duration>,
    /// The most bytes that may be in flight now.
    pub window: u64,
    /// The bound that losses or marks have set on the bytes in flight, if they have.
    pub in_flight_bound: Option<u64>,
    /// The share of packets that the path loses whatever is sent, as far as is known.
    pub loss_floor: Probability,
    /// True if the path's queue is filling or was just found full. Repair packets should then be
    /// avoided.
    pub is_congested: bool,
    /// True if other senders keep a queue on the path: this sender does not exceed the path's rate.
    /// `None` while the controller probes, and for a controller that always keeps a queue.
    pub is_shared: Option<bool>,
}

/// Makes the controller of this algorithm for a new path, from the remembered values.
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

/// Largest amount that one system call hands over for segmentation, in bytes.
const QUANTUM_MAX: u64 = 64 << 10;

/// The bytes that may leave back to back at this rate. At low rates it is one packet, where the
/// draft has two: its reason is the receiver's delayed acknowledgement, which is not ours.
fn quantum(rate: Bitrate, packet_bytes: u64) -> u64 {
    let bytes = rate.bytes_in(QUANTUM).bytes();
    bytes.min(QUANTUM_MAX).max(packet_bytes)
}
