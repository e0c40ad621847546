//! Report about a link, in the form of a result file.

use emulate::DirectionCounters;
use serde::Serialize;

use super::watch::WatchCounters;
use crate::lateness::{DeliveryLateness, LatenessReport};

/// The account of a whole link.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// Direction from device A to device B.
    pub forward: DirectionReport,
    /// Direction from device B to device A.
    pub back: DirectionReport,
    /// Rates that the link was forced to although this host was not seen to carry them, as text;
    /// `null` if nothing was forced.
    pub forced: Option<String>,
}

impl LinkReport {
    /// Packets that the host and not the model lost, both ways. A measurement over a link where
    /// this is not zero says something about the host.
    #[must_use]
    pub fn lost_outside_the_model(&self) -> u64 {
        self.forward.lost_outside_the_model() + self.back.lost_outside_the_model()
    }
}

/// The account of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DirectionReport {
    /// Read from the device.
    pub offered_packets: u64,
    /// Their IP length.
    pub offered_bytes: u64,
    /// Written to the other device.
    pub delivered_packets: u64,
    /// Their IP length.
    pub delivered_bytes: u64,
    /// Dropped because the model's queue was full.
    pub dropped_by_queue_packets: u64,
    /// Their IP length.
    pub dropped_by_queue_bytes: u64,
    /// Packets lost by the loss model, at random or by list.
    pub dropped_by_loss_packets: u64,
    /// Their IP length.
    pub dropped_by_loss_bytes: u64,
    /// Lost while everything is lost: in an outage.
    pub dropped_by_outage_packets: u64,
    /// Their IP length.
    pub dropped_by_outage_bytes: u64,
    /// Dropped before the queue because they came faster than the policer allows.
    pub dropped_by_policer_packets: u64,
    /// Their IP length.
    pub dropped_by_policer_bytes: u64,
    /// Dropped by active queue management before the queue was full.
    pub dropped_by_aqm_packets: u64,
    /// Their IP length.
    pub dropped_by_aqm_bytes: u64,
    /// Copies that the model made; delivered ones are in `delivered_packets` too.
    pub duplicated_packets: u64,
    /// Sent on with a flipped bit.
    pub corrupted_packets: u64,
    /// Marked "congestion experienced" by active queue management.
    pub marked_packets: u64,
    /// Sent on to arrive later than those around them.
    pub reordered_packets: u64,
    /// Still in the queue or under way.
    pub held_packets: u64,
    /// Their IP length.
    pub held_bytes: u64,
    /// Outside the model: refused, or thrown away when they were due, because memory is bounded.
    pub dropped_by_limit_packets: u64,
    /// Outside the model: thrown away when they were due, because this host had not taken out those
    /// that were due before.
    pub untaken_packets: u64,
    /// Outside the model: dropped by the kernel because the device was not read in time. A run of
    /// packets that came as one counts once.
    pub unread_packets: u64,
    /// Outside the model: the kernel did not take them at the far device.
    pub failed_writes_packets: u64,
    /// Packets that are not in the log, because its writer was too slow.
    pub unrecorded_packets: u64,
    /// Lateness of deliveries; its fields stand beside the others.
    #[serde(flatten)]
    pub lateness: LatenessReport,
    /// Text of the last deviation from the link's settings; `null` if there was none.
    pub not_held: Option<String>,
    /// Number of seconds with a deviation.
    pub not_held_seconds: u64,
}

impl DirectionReport {
    /// Packets that the host and not the model lost this way.
    #[must_use]
    pub fn lost_outside_the_model(&self) -> u64 {
        self.unread_packets
            + self.dropped_by_limit_packets
            + self.untaken_packets
            + self.failed_writes_packets
    }

    pub(crate) fn new(
        counters: &DirectionCounters,
        lateness: &DeliveryLateness,
        observed: &WatchCounters,
    ) -> Self {
        Self {
            offered_packets: counters.offered.packets,
            offered_bytes: counters.offered.bytes,
            delivered_packets: counters.delivered.packets.saturating_sub(observed.refused),
            delivered_bytes: counters.delivered.bytes,
            dropped_by_queue_packets: counters.dropped_by_queue.packets,
            dropped_by_queue_bytes: counters.dropped_by_queue.bytes,
            dropped_by_loss_packets: counters.dropped_by_loss.packets,
            dropped_by_loss_bytes: counters.dropped_by_loss.bytes,
            dropped_by_outage_packets: counters.dropped_by_outage.packets,
            dropped_by_outage_bytes: counters.dropped_by_outage.bytes,
            dropped_by_policer_packets: counters.dropped_by_policer.packets,
            dropped_by_policer_bytes: counters.dropped_by_policer.bytes,
            dropped_by_aqm_packets: counters.dropped_by_aqm.packets,
            dropped_by_aqm_bytes: counters.dropped_by_aqm.bytes,
            duplicated_packets: counters.duplicated.packets,
            corrupted_packets: counters.corrupted.packets,
            marked_packets: counters.marked.packets,
            reordered_packets: counters.reordered.packets,
            held_packets: counters.queued.packets + counters.in_flight.packets,
            held_bytes: counters.queued.bytes + counters.in_flight.bytes,
            dropped_by_limit_packets: counters.dropped_by_limit.packets,
            untaken_packets: counters.dropped_untaken.packets,
            unread_packets: observed.unread,
            failed_writes_packets: observed.refused,
            lateness: lateness.report(),
            ..Self::default()
        }
    }
}
