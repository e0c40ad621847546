//! Lateness of deliveries: how long after the model's time packets leave the emulator.
//!
//! Links and devices count each delivery here. The counts are a histogram with steps of 10 µs up to 1 ms and
//! of 1 ms beyond, so memory does not grow with the packets.

use std::time::Duration;

use serde::Serialize;

/// The lateness of deliveries in a result file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatenessReport {
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

    /// The statistics as a report shows them.
    pub(crate) fn report(&self) -> LatenessReport {
        LatenessReport {
            over_200us_late_packets: self.over_200us,
            late_packets: self.late,
            lateness_p50_us: self.quantile_us(0.50),
            lateness_p99_us: self.quantile_us(0.99),
            lateness_max_us: micros(self.max),
        }
    }

    /// The upper edge of the step that holds the quantile, at most the largest of all.
    fn quantile_us(&self, share: f64) -> u64 {
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
        let expected = LatenessReport {
            over_200us_late_packets: 902,
            late_packets: 901,
            lateness_p50_us: 4_000,
            lateness_p99_us: 4_000,
            lateness_max_us: 7_500,
        };
        assert_eq!(lateness.report(), expected);
    }
}
