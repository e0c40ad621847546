//! Status of a path as operators see it.

use std::time::Duration;

use vocab::{Bitrate, Time};

use super::{DatagramTransport, PathCondition, headers};

/// Counts since the path began. Bytes are those of IP packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathCounters {
    pub(super) sent_packets: u64,
    pub(super) sent_bytes: u64,
    pub(super) sent_repairs: u64,
    pub(super) received_packets: u64,
    pub(super) received_bytes: u64,
    pub(super) received_repairs: u64,
    pub(super) recovered_packets: u64,
    pub(super) suspensions: u64,
}

/// Status and measured properties of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportStatus {
    /// Condition of the path: carrying frames, or the reason why not.
    pub condition: PathCondition,
    /// Times that it stopped carrying.
    pub suspensions: u64,
    /// The controller's state, such as `"cruise"`.
    pub congestion: &'static str,
    /// The rate at which packets leave at most.
    pub pacing_rate: Bitrate,
    /// The rate that the controller takes the path for.
    pub bandwidth: Bitrate,
    /// Shortest recent round-trip time.
    pub rtt_minimum: Option<Duration>,
    /// The last one.
    pub rtt_latest: Option<Duration>,
    /// Smoothed.
    pub rtt_smoothed: Duration,
    /// Bytes that may be in flight, and are.
    pub window_bytes: u64,
    /// Bytes that are.
    pub in_flight_bytes: u64,
    /// UDP payload of a full packet.
    pub packet_size: u16,
    /// MTU including the headers of IP and UDP.
    pub mtu_bytes: u64,
    /// Packets sent, repairs and acknowledgements included.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets of repair symbols among them.
    pub sent_repairs: u64,
    /// Packets that the network lost, whether or not repairs restored them.
    pub lost_packets: u64,
    /// Lost packets that the peer restored from repair symbols.
    pub recovered_by_peer_packets: u64,
    /// Packets taken for lost that came late.
    pub spurious_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Repairs among them.
    pub received_repairs: u64,
    /// Lost packets of the peer's that were restored here.
    pub recovered_packets: u64,
    /// Datagrams refused: forged, replayed, too old, or none of ours.
    pub refused_packets: u64,
    /// True if congestion marks were tested and do not get through.
    pub marks_failed: bool,
}

impl<T: Clone> DatagramTransport<T> {
    /// Returns `true` if other senders keep a queue on the path
    /// ([`ControllerTelemetry::is_shared`]).
    ///
    /// [`ControllerTelemetry::is_shared`]: crate::congestion::ControllerTelemetry::is_shared
    #[must_use]
    pub fn is_shared(&self) -> Option<bool> {
        self.controller.telemetry().is_shared
    }

    /// Bytes sent in packets since the path began, with the headers of IP and UDP.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.counters.sent_bytes
    }

    /// Bytes received in authenticated packets since the path began, with the headers of IP and UDP.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.counters.received_bytes
    }

    /// The path as it is now.
    #[must_use]
    pub fn status(&self, _now: Time) -> TransportStatus {
        let telemetry = self.controller.telemetry();
        let recovery = self.sent.statistics();
        let opener = self.opener.statistics();
        let counters = self.counters;
        TransportStatus {
            condition: self.condition,
            suspensions: counters.suspensions,
            congestion: telemetry.state,
            pacing_rate: self.controller.pacing_rate(),
            bandwidth: telemetry.bandwidth,
            rtt_minimum: self.sent.rtt().minimum(),
            rtt_latest: self.sent.rtt().latest(),
            rtt_smoothed: self.sent.rtt().smoothed(),
            window_bytes: telemetry.window,
            in_flight_bytes: self.sent.bytes_in_flight(),
            packet_size: self.mtu.size(),
            mtu_bytes: u64::from(self.mtu.size()) + headers(self.addresses.current()),
            sent_packets: counters.sent_packets,
            sent_bytes: counters.sent_bytes,
            sent_repairs: counters.sent_repairs,
            lost_packets: recovery.lost,
            recovered_by_peer_packets: recovery.recovered,
            spurious_packets: recovery.spurious,
            received_packets: counters.received_packets,
            received_bytes: counters.received_bytes,
            received_repairs: counters.received_repairs,
            recovered_packets: counters.recovered_packets,
            refused_packets: opener.not_ours
                + opener.forged
                + opener.old_key
                + opener.replayed
                + opener.too_old
                + opener.malformed,
            marks_failed: self.sent.marks_failed(),
        }
    }
}
