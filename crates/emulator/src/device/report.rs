//! Report about an emulated device, in the form of a result file.

use emulate::DeviceCounters;
use serde::Serialize;

use crate::lateness::{DeliveryLateness, LatenessReport};

/// The account of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Handed to the model; a frame to all ports counts once for each.
    pub offered_packets: u64,
    /// Their IP length.
    pub offered_bytes: u64,
    /// Left the model through an output.
    pub delivered_packets: u64,
    /// Their IP length.
    pub delivered_bytes: u64,
    /// Dropped by the queue of an input.
    pub dropped_by_input_queue_packets: u64,
    /// Dropped by a policer.
    pub dropped_by_policer_packets: u64,
    /// Dropped by the queue of an output.
    pub dropped_by_output_queue_packets: u64,
    /// Dropped by active queue management.
    pub dropped_by_aqm_packets: u64,
    /// Still in the device.
    pub held_packets: u64,
    /// Outside the model: refused because memory is bounded.
    pub dropped_by_limit_packets: u64,
    /// Outside the model: not forwarded, because too many frames went to all ports. There is a loop.
    pub dropped_by_flood_limit_frames: u64,
    /// Not forwarded, because the destination is behind the port that the frame came from.
    pub returned_frames: u64,
    /// Lateness of deliveries; its fields stand beside the others.
    #[serde(flatten)]
    pub lateness: LatenessReport,
    /// Text of the last deviation from the model; `null` if there was none.
    pub not_held: Option<String>,
    /// Number of seconds with a deviation.
    pub not_held_seconds: u64,
    /// The ports, in the order of the model.
    pub ports: Vec<PortReport>,
}

/// The account of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortReport {
    /// Name of its interface.
    pub interface: String,
    /// Frames read from the interface.
    pub received_frames: u64,
    /// Frames written to the interface.
    pub sent_frames: u64,
    /// Outside the model: dropped by the kernel because the interface was not read in time.
    pub unread_packets: u64,
    /// Outside the model: the kernel did not take them.
    pub failed_writes_packets: u64,
}

impl DeviceReport {
    /// Packets that the host and not the model lost.
    #[must_use]
    pub fn lost_outside_the_model(&self) -> u64 {
        let ports = self.ports.iter();
        let at_ports: u64 = ports
            .map(|port| port.unread_packets + port.failed_writes_packets)
            .sum();
        at_ports + self.dropped_by_limit_packets + self.dropped_by_flood_limit_frames
    }

    pub(super) fn new(counters: &DeviceCounters, lateness: &DeliveryLateness) -> Self {
        Self {
            offered_packets: counters.offered.packets,
            offered_bytes: counters.offered.bytes,
            delivered_packets: counters.delivered.packets,
            delivered_bytes: counters.delivered.bytes,
            dropped_by_input_queue_packets: counters.dropped_by_input.packets,
            dropped_by_policer_packets: counters.dropped_by_policer.packets,
            dropped_by_output_queue_packets: counters.dropped_by_output.packets,
            dropped_by_aqm_packets: counters.dropped_by_aqm.packets,
            held_packets: counters.held.packets,
            dropped_by_limit_packets: counters.dropped_by_limit.packets,
            lateness: lateness.report(),
            ..Self::default()
        }
    }
}
