//! Relation between the sender's timestamps and the capture's clock.

use super::{ConnectionDirection, EventContent};

/// Relation of the two clocks.
pub(super) struct TimestampClock {
    first: u32,
    tick: f64,
    least: f64,
}

impl TimestampClock {
    /// Estimates the relation; `None` when there are no timestamps, or they do not run like a
    /// clock.
    pub(super) fn of(half: &ConnectionDirection) -> Option<Self> {
        /// RFC 7323 §5.4: between 1 ms and 1 s; Linux 1 ms, others 10 ms or 4 ms.
        const TICKS: [f64; 4] = [0.001, 0.004, 0.01, 0.000_001];
        let stamped = || {
            half.events.iter().filter_map(|event| match &event.what {
                EventContent::Data { stamps, .. } => stamps.map(|(stamp, _)| (event.at, stamp)),
                EventContent::Ack { .. } => None,
            })
        };
        let (first_at, first) = stamped().next()?;
        let (last_at, last) = stamped().next_back()?;
        let measured = (last_at - first_at) / f64::from(last.wrapping_sub(first));
        let tick = TICKS
            .into_iter()
            .find(|tick| (measured / tick - 1.0).abs() < 0.25)?;
        let took =
            |(at, stamp): (f64, u32)| at - f64::from(stamp.wrapping_sub(first) as i32) * tick;
        let least = stamped().map(took).min_by(f64::total_cmp)?;
        Some(Self { first, tick, least })
    }

    pub(super) fn wait(&self, at: f64, stamp: u32) -> f64 {
        at - f64::from(stamp.wrapping_sub(self.first) as i32) * self.tick - self.least
    }
}
