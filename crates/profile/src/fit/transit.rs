//! Minimum transit by size, from lone packets.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{ByteCount, SizeTimePoint, SizeTimeTable, TABLE_POINTS_MAX};

use super::{FitOptions, FittedParameter, ParameterKind};
use crate::record::MeasuredRun;

/// Share of the delays below the upper end of the interval: the noise adds to a delay, so the
/// minimum lies below most of them.
const UPPER_SHARE: f64 = 0.25;

/// The smallest delay of each size, less that of the cable.
pub(super) fn fit<'a>(
    runs: impl Iterator<Item = &'a MeasuredRun>,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<SizeTimeTable> {
    let mut by_size: BTreeMap<u32, Vec<Duration>> = BTreeMap::new();
    for record in runs.flat_map(|run| &run.records) {
        if let Some(delay) = record.delay() {
            let delay = delay.saturating_sub(options.cable_delay);
            by_size.entry(record.size).or_default().push(delay);
        }
    }
    let mut points = Vec::new();
    for (size, mut delays) in by_size.into_iter().take(TABLE_POINTS_MAX) {
        delays.sort_unstable();
        let least = *delays.first()?;
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
    }
    SizeTimeTable::new(points).ok()
}
