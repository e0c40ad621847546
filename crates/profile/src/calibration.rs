//! Calibration: the delay of cable and ports by packet size, and the noise of the stamps.
//!
//! ```text
//!  runs over the cable ─► smallest delay by size ─► subtracted from every arrival behind the device
//!                     └─► p95 less smallest ──────► resolution of the fit
//! ```
//!
//! The smallest delay is subtracted and not the mean: the transit of a device is a smallest delay as
//! well, and the noise of the stamps only adds to both. Lone packets calibrate, where the plan sends
//! them over the cable; bursts would add the time that they wait for our own ports.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{ByteCount, SizeTimePoint, SizeTimeTable, TABLE_POINTS_MAX};

use crate::plan::{ExperimentPurpose, MeasurementSubject};
use crate::record::MeasuredRun;

/// Delays that are kept of each size: enough for a 99th percentile, in 8 MB.
const DELAYS_MAX: usize = 1 << 19;
/// Smallest uncertainty of a delay: the stamps are whole nanoseconds.
const RESOLUTION_LEAST: Duration = Duration::from_nanos(1);

/// Delays of packets of one size over the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableDelay {
    /// Length of the IP packets in bytes.
    pub size: u32,
    /// Number of packets.
    pub packets: usize,
    /// Smallest delay, which is subtracted.
    pub least: Duration,
    /// 5th percentile.
    pub p5: Duration,
    /// Mean.
    pub mean: Duration,
    /// 95th percentile.
    pub p95: Duration,
}

impl CableDelay {
    /// Noise of the stamps: the 95th percentile less the smallest delay.
    #[must_use]
    pub fn noise(&self) -> Duration {
        self.p95.saturating_sub(self.least)
    }
}

/// Delay and noise of the cable, by size.
#[derive(Clone, Debug, PartialEq)]
pub struct CableCalibration {
    sizes: Vec<CableDelay>,
    least: SizeTimeTable,
}

impl CableCalibration {
    /// Computes the calibration from the runs over the cable among `runs`; `None` if no packet came
    /// over the cable.
    #[must_use]
    pub fn of(runs: &[MeasuredRun]) -> Option<Self> {
        let cable = || {
            runs.iter()
                .filter(|run| run.plan.subject == MeasurementSubject::Cable)
        };
        let has_lone = cable().any(|run| run.plan.purpose == ExperimentPurpose::Transit);
        let mut by_size: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
        for run in cable() {
            if has_lone && run.plan.purpose != ExperimentPurpose::Transit {
                continue;
            }
            for record in &run.records {
                let Some(delay) = record.delay() else {
                    continue;
                };
                // Further sizes would not fit into the table.
                if by_size.len() == TABLE_POINTS_MAX && !by_size.contains_key(&record.size) {
                    continue;
                }
                let delays = by_size.entry(record.size).or_default();
                if delays.len() < DELAYS_MAX {
                    delays.push(delay);
                }
            }
        }
        let sizes: Vec<CableDelay> = by_size
            .into_iter()
            .map(|(size, mut delays)| {
                delays.sort_unstable();
                cable_delay(size, &delays)
            })
            .collect();
        let points = sizes.iter().map(|delay| SizeTimePoint {
            size: ByteCount::new(u64::from(delay.size)),
            time: delay.least,
        });
        let least = SizeTimeTable::new(points.collect()).ok()?;
        Some(Self { sizes, least })
    }

    /// The delays, by rising size.
    #[must_use]
    pub fn sizes(&self) -> &[CableDelay] {
        &self.sizes
    }

    /// Smallest delay of a packet of `size` bytes, on a straight line between measured sizes.
    #[must_use]
    pub fn delay(&self, size: u32) -> Duration {
        self.least.at(u64::from(size))
    }

    /// Uncertainty of a delay: the greatest noise of all sizes, and at least a nanosecond.
    #[must_use]
    pub fn noise(&self) -> Duration {
        self.sizes
            .iter()
            .map(CableDelay::noise)
            .max()
            .unwrap_or_default()
            .max(RESOLUTION_LEAST)
    }

    /// Subtracts the cable's delay from every arrival; no packet arrives before it was sent.
    pub fn subtract(&self, run: &mut MeasuredRun) {
        for record in &mut run.records {
            let delay = self.delay(record.size);
            record.received = record.received.map(|received| {
                let own = received.since(record.sent).min(delay);
                received - own
            });
        }
    }
}

/// Figures of delays, which are sorted and not empty.
fn cable_delay(size: u32, delays: &[Duration]) -> CableDelay {
    let quantile = |percent: usize| {
        let rank = (delays.len() * percent).div_ceil(100).max(1);
        delays.get(rank - 1).copied().unwrap_or_default()
    };
    let nanoseconds: u128 = delays.iter().map(Duration::as_nanos).sum();
    let mean = nanoseconds / delays.len().max(1) as u128;
    CableDelay {
        size,
        packets: delays.len(),
        least: quantile(0),
        p5: quantile(5),
        mean: Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)),
        p95: quantile(95),
    }
}

#[cfg(test)]
mod tests {
    use vocab::Time;

    use super::*;
    use crate::plan::MeasurementPlan;
    use crate::record::{PacketFate, PacketRecord};

    fn runs(purpose: &str) -> Vec<MeasuredRun> {
        let plan = MeasurementPlan::from_toml(&format!(
            r#"
            name = "cable"
            ports = 2
            [[experiment]]
            name = "cable"
            purpose = "{purpose}"
            subjects = ["cable", "device"]
            for_each_size = ["100B", "300B"]
            traffic = [{{ from = [0], to = [1], packets = 100,
                pattern = {{ kind = "constant", packets_per_second = 5.0 }} }}]
            "#
        ))
        .unwrap();
        plan.runs()
            .into_iter()
            .map(|plan| {
                let size = plan.size.unwrap().bytes() as u32;
                let records = (0..100).map(|number| PacketRecord {
                    sequence: number,
                    flow: 0,
                    size,
                    input: 0,
                    output: 1,
                    sent: Time::from_nanos(number * 1_000_000),
                    received: Some(Time::from_nanos(
                        number * 1_000_000 + u64::from(size) + number,
                    )),
                    fate: PacketFate::Delivered,
                });
                MeasuredRun {
                    records: records.collect(),
                    plan,
                }
            })
            .collect()
    }

    #[test]
    fn smallest_delay_is_subtracted_by_size() {
        let mut runs = runs("transit");
        let calibration = CableCalibration::of(&runs).unwrap();
        assert_eq!(calibration.delay(100), Duration::from_nanos(100));
        assert_eq!(calibration.delay(200), Duration::from_nanos(200));
        assert_eq!(calibration.noise(), Duration::from_nanos(94));
        let hundred = calibration.sizes()[0];
        assert_eq!((hundred.size, hundred.packets), (100, 100));
        assert_eq!(hundred.p5, Duration::from_nanos(104));
        assert_eq!(hundred.mean, Duration::from_nanos(149));
        calibration.subtract(&mut runs[3]);
        let delays: Vec<Duration> = runs[3]
            .records
            .iter()
            .filter_map(PacketRecord::delay)
            .collect();
        assert_eq!(delays[7], Duration::from_nanos(7));
        // A packet that was faster than the cable keeps a delay of zero.
        runs[3].records[0].received = Some(runs[3].records[0].sent + Duration::from_nanos(5));
        calibration.subtract(&mut runs[3]);
        assert_eq!(runs[3].records[0].delay(), Some(Duration::ZERO));
    }

    #[test]
    fn lone_packets_calibrate_before_other_traffic() {
        let mut both = runs("held-out");
        assert!(CableCalibration::of(&both).is_some());
        let mut lone = runs("transit");
        lone.retain(|run| run.plan.size == Some(ByteCount::new(100)));
        both.extend(lone);
        let calibration = CableCalibration::of(&both).unwrap();
        assert_eq!(calibration.sizes().len(), 1);
        both.retain(|run| run.plan.subject == MeasurementSubject::Device);
        assert_eq!(CableCalibration::of(&both), None);
    }
}
