//! Minimum transit by size, from lone packets and from those of short bursts.
//!
//! No packet passes faster than a lone one. On a machine that sleeps between lone packets, some of a
//! burst show a smaller delay.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{ByteCount, SizeTimePoint, SizeTimeTable, TABLE_POINTS_MAX};

use super::{FitOptions, FittedParameter, ParameterKind};
use crate::record::MeasuredRun;

/// Share of the delays below the upper end of the interval: the noise adds to a delay, so the
/// minimum lies below most of them.
const UPPER_SHARE: f64 = 0.25;

/// Delays of lone packets.
#[derive(Clone, Debug)]
pub(super) struct LoneTransit {
    /// Smallest delay of each size.
    pub(super) least: SizeTimeTable,
    /// Mean by which delays exceed the smallest of their size, in ns.
    noise: f64,
}

impl LoneTransit {
    /// Mean delay of a lone packet of `size` bytes, in ns: noise adds to the delays that it is
    /// compared with as well.
    pub(super) fn usual(&self, size: u32) -> f64 {
        self.least.at(u64::from(size)).as_nanos() as f64 + self.noise
    }
}

/// The smallest delay of each size, less that of the cable. `bursts` count for sizes of the lone
/// packets.
pub(super) fn fit<'a>(
    runs: impl Iterator<Item = &'a MeasuredRun>,
    bursts: impl Iterator<Item = &'a MeasuredRun>,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<LoneTransit> {
    let mut by_size: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
    for record in runs.flat_map(|run| &run.records) {
        if let Some(delay) = record.delay() {
            let delay = delay.saturating_sub(options.cable_delay);
            by_size.entry(record.size).or_default().push(delay);
        }
    }
    let mut burst_least: BTreeMap<u32, Duration> = BTreeMap::new();
    for record in bursts.flat_map(|run| &run.records) {
        if let Some(delay) = record.delay() {
            let delay = delay.saturating_sub(options.cable_delay);
            let least = burst_least.entry(record.size).or_insert(delay);
            *least = delay.min(*least);
        }
    }
    let mut points = Vec::new();
    let (mut noise, mut packets) = (0.0, 0.0_f64);
    for (size, mut delays) in by_size.into_iter().take(TABLE_POINTS_MAX) {
        delays.sort_unstable();
        let lone = *delays.first()?;
        let least = burst_least
            .get(&size)
            .map_or(lone, |least| lone.min(*least));
        let upper = delays[((delays.len() - 1) as f64 * UPPER_SHARE) as usize];
        parameters.push(FittedParameter::identified(
            ParameterKind::Transit { size },
            least.as_nanos() as f64,
            (
                least.saturating_sub(options.resolution).as_nanos() as f64,
                (upper + options.resolution).as_nanos() as f64,
            ),
        ));
        points.push(SizeTimePoint {
            size: ByteCount::new(u64::from(size)),
            time: least,
        });
        // A delay far beyond the others is no noise of the stamps.
        for delay in delays
            .iter()
            .filter(|delay| **delay <= least + options.resolution)
        {
            noise += (*delay - least).as_nanos() as f64;
            packets += 1.0;
        }
    }
    Some(LoneTransit {
        least: SizeTimeTable::new(points).ok()?,
        noise: noise / packets.max(1.0),
    })
}
