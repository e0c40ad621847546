//! A moment, as the cores know it: nanoseconds since an epoch that the shell chose.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Moment on the clock of a core's driver, in nanoseconds since that clock's epoch.
///
/// A shell derives it from a monotonic clock, a test counts it up by hand. Two moments can be
/// compared only if they come from the same driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The epoch itself.
    pub const ZERO: Time = Time(0);
    /// A moment that never comes; for timers that are not set.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment this many nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// The moment this long after the epoch; saturates after 584 years.
    #[must_use]
    pub fn from_epoch(since: Duration) -> Self {
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that passed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, after: Duration) -> Time {
        let nanoseconds = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanoseconds))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, before: Duration) -> Time {
        let nanoseconds = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanoseconds))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO.since(Time::from_nanos(5)), Duration::ZERO);
        assert_eq!(Time::from_nanos(1_500_000_000).to_string(), "1.500000000s");
    }
}
