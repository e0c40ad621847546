//! A time that depends on the size of a packet, as a piecewise linear table.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{DeviceModelError, TABLE_POINTS_MAX};
use super::exact_text;
use crate::ByteCount;

/// A time by packet size: straight lines between the points, and on beyond the first and the last.
/// With one point the time is the same for all sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<SizeTimePoint>", into = "Vec<SizeTimePoint>")]
pub struct SizeTimeTable {
    /// By rising size; at least one.
    points: Vec<SizeTimePoint>,
}

/// A point of a [`SizeTimeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeTimePoint {
    /// Size of the packet.
    #[serde(with = "exact_text::bytes")]
    pub size: ByteCount,
    /// Time for a packet of this size.
    #[serde(with = "exact_text::duration")]
    pub time: Duration,
}

impl SizeTimeTable {
    /// A table of these points.
    ///
    /// # Errors
    /// When there is no point, when there are more than [`TABLE_POINTS_MAX`], or when the sizes do
    /// not rise.
    pub fn new(points: Vec<SizeTimePoint>) -> Result<Self, DeviceModelError> {
        if points.is_empty() || points.len() > TABLE_POINTS_MAX {
            return Err(DeviceModelError::TableLength {
                points: points.len(),
            });
        }
        for pair in points.windows(2) {
            if pair[1].size <= pair[0].size {
                return Err(DeviceModelError::TableOrder { size: pair[1].size });
            }
        }
        Ok(Self { points })
    }

    /// The same time for all sizes.
    #[must_use]
    pub fn constant(time: Duration) -> Self {
        Self {
            points: vec![SizeTimePoint {
                size: ByteCount::new(0),
                time,
            }],
        }
    }

    /// The points, by rising size.
    #[must_use]
    pub fn points(&self) -> &[SizeTimePoint] {
        &self.points
    }

    /// Time for a packet of `size` bytes, rounded to the nanosecond and not below zero.
    #[must_use]
    pub fn at(&self, size: u64) -> Duration {
        let after = self
            .points
            .partition_point(|point| point.size.bytes() < size);
        let [first, second] = match self.points.as_slice() {
            [only] => return only.time,
            points => {
                let start = after.saturating_sub(1).min(points.len() - 2);
                [points[start], points[start + 1]]
            }
        };
        let (from, to) = (nanoseconds(first.time), nanoseconds(second.time));
        let span = i128::from(second.size.bytes()) - i128::from(first.size.bytes());
        let along = i128::from(size) - i128::from(first.size.bytes());
        let rise = ((to - from) * along * 2 + span).div_euclid(2 * span);
        Duration::from_nanos(u64::try_from((from + rise).max(0)).unwrap_or(u64::MAX))
    }
}

fn nanoseconds(time: Duration) -> i128 {
    i128::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl TryFrom<Vec<SizeTimePoint>> for SizeTimeTable {
    type Error = DeviceModelError;

    fn try_from(points: Vec<SizeTimePoint>) -> Result<Self, DeviceModelError> {
        Self::new(points)
    }
}

impl From<SizeTimeTable> for Vec<SizeTimePoint> {
    fn from(table: SizeTimeTable) -> Self {
        table.points
    }
}
