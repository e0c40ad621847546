//! Clock of a run: time since 1970 that no step of the system's clock moves.
//!
//! The kernel stamps frames by CLOCK_REALTIME, which an administrator or a time service may set. A
//! run reads that clock once and then counts on by CLOCK_MONOTONIC. A step shows as a difference
//! between the two.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use host::packets::device::beside;
use vocab::Time;

/// Difference between the clocks that is a step. Reading two clocks takes less, even on a busy host.
const STEP_MIN: Duration = Duration::from_millis(1);
/// Readings of a difference before it counts, since a thread may lose the processor between clocks.
const READINGS: u32 = 3;

/// Clock of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    origin: Instant,
    since_1970: Duration,
}

impl RunClock {
    /// Reads both clocks.
    pub(crate) fn start() -> Self {
        let (real, origin) = beside(SystemTime::now);
        Self {
            origin,
            since_1970: real.duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    fn time(&self, at: Instant) -> Time {
        Time::from_epoch(self.since_1970 + at.duration_since(self.origin))
    }

    /// Step of the system's clock since the run began, if there was one.
    pub(crate) fn step(&self) -> Option<Duration> {
        let difference = || {
            let (real, at) = beside(SystemTime::now);
            let real = Time::from_epoch(real.duration_since(UNIX_EPOCH).unwrap_or_default());
            let expected = self.time(at);
            real.since(expected).max(expected.since(real))
        };
        let smallest = (0..READINGS).map(|_| difference()).min()?;
        (smallest >= STEP_MIN).then_some(smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_nobody_sets_has_no_step() {
        let clock = RunClock::start();
        assert_eq!(clock.step(), None);
        let moved = RunClock {
            since_1970: clock.since_1970 + Duration::from_secs(2),
            ..clock
        };
        assert!(moved.step() > Some(Duration::from_secs(1)));
    }
}
