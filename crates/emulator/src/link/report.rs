//! Report about a link, in the form of a result file.

use std::time::Duration;

use emulate::DirectionCounters;
use serde::Serialize;

use super::watch::WatchCounters;

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
    /// Packets delivered more than 0.2 ms after the model's time, those over 1 ms included.
    pub over_200us_late_packets: u64,
    /// Packets delivered more than 1 ms after the model's time.
    pub late_packets: u64,
    /// Half of the packets were delivered within this of their moment (in 10 µs steps, beyond 1 ms in whole
    /// milliseconds).
    pub lateness_p50_us: u64,
    /// 99 of 100 packets were delivered within this of their moment.
    pub lateness_p99_us: u64,
    /// The latest packet.
    pub lateness_max_us: u64,
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
            over_200us_late_packets: lateness.over_200us,
            late_packets: lateness.late(),
            lateness_p50_us: lateness.quantile_us(0.50),
            lateness_p99_us: lateness.quantile_us(0.99),
            lateness_max_us: lateness.max_us(),
            ..Self::default()
        }
    }
}

/// A packet delivered this long after its moment is counted as late.
const LATE_AFTER: Duration = Duration::from_millis(1);

/// Greatest lateness that the link promises for 99 of 100 departures.
const PROMISED: Duration = Duration::from_micros(200);

/// The width of the histogram's steps below [`LATE_AFTER`], and beyond.
const FINE: Duration = Duration::from_micros(10);
const COARSE: Duration = Duration::from_millis(1);
/// 1 ms in fine steps, then 100 ms in coarse ones; the last holds all beyond.
const FINE_STEPS: usize = 100;
const STEPS: usize = FINE_STEPS + 100;

/// Statistics of the lateness of deliveries.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryLateness {
    steps: [u64; STEPS],
    count: u64,
    over_200us: u64,
    late: u64,
    max: Duration,
}

impl DeliveryLateness {
    pub(crate) fn new() -> Self {
        Self {
            steps: [0; STEPS],
            count: 0,
            over_200us: 0,
            late: 0,
            max: Duration::ZERO,
        }
    }

    pub(crate) fn add(&mut self, lateness: Duration) {
        let step = if lateness < LATE_AFTER {
            lateness.as_nanos() / FINE.as_nanos()
        } else {
            FINE_STEPS as u128 - 1 + lateness.as_nanos() / COARSE.as_nanos()
        };
        self.steps[usize::try_from(step).map_or(STEPS - 1, |step| step.min(STEPS - 1))] += 1;
        self.count += 1;
        self.over_200us += u64::from(lateness > PROMISED);
        self.late += u64::from(lateness > LATE_AFTER);
        self.max = self.max.max(lateness);
    }

    /// Number of delivered packets.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Number of packets that were over 0.2 ms late.
    pub(crate) fn over_200us(&self) -> u64 {
        self.over_200us
    }

    /// Number of packets that were over 1 ms late.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// The latest packet, in microseconds.
    pub(crate) fn max_us(&self) -> u64 {
        micros(self.max)
    }

    /// The upper edge of the step that holds the quantile, at most the largest of all.
    pub(crate) fn quantile_us(&self, share: f64) -> u64 {
        let rank = (self.count as f64 * share).ceil() as u64;
        let mut below = 0;
        for (index, count) in self.steps.iter().enumerate().take(STEPS - 1) {
            below += count;
            if below >= rank {
                return micros(upper_edge(index)).min(micros(self.max));
            }
        }
        micros(self.max)
    }
}

fn upper_edge(step: usize) -> Duration {
    match step.checked_sub(FINE_STEPS) {
        None => FINE * (step as u32 + 1),
        Some(coarse) => LATE_AFTER + COARSE * (coarse as u32 + 1),
    }
}

/// Whole microseconds, rounded up.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_edges_and_late_packets_count() {
        let mut lateness = DeliveryLateness::new();
        for _ in 0..98 {
            lateness.add(Duration::from_micros(15));
        }
        lateness.add(Duration::from_micros(500));
        lateness.add(Duration::from_micros(7_500));
        assert_eq!(lateness.quantile_us(0.5), 20);
        assert_eq!(lateness.quantile_us(0.99), 510);
        assert_eq!(lateness.quantile_us(1.0), 7_500);
        for _ in 0..900 {
            lateness.add(Duration::from_micros(3_200));
        }
        assert_eq!(lateness.quantile_us(0.5), 4_000);
        assert_eq!(lateness.late, 901);
        assert_eq!(lateness.over_200us, 902);
    }
}
