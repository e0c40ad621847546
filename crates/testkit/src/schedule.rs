//! Selection of the next moment, and a clock that jumps to it.

use std::time::Duration;

use vocab::Time;

/// Returns the earliest of several timers; timers may be unset.
#[must_use]
pub fn earliest(timers: impl IntoIterator<Item = Option<Time>>) -> Option<Time> {
    timers.into_iter().flatten().min()
}

/// Largest number of jumps to the same moment. More means that a machine is always due and does
/// nothing.
const JUMPS_AT_ONE_MOMENT_MAX: u32 = 100_000;

/// Virtual clock: it advances only when told to, and never goes back.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now: Time,
    jumps_here: u32,
}

impl VirtualClock {
    /// A clock at its epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The moment it is.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Advances to `next`, or stays if that is in the past.
    ///
    /// # Panics
    /// When time has not moved for 100,000 calls: a machine's `poll_timeout` is always due.
    pub fn jump_to(&mut self, next: Time) -> Time {
        if next > self.now {
            self.now = next;
            self.jumps_here = 0;
        } else {
            self.jumps_here += 1;
            assert!(
                self.jumps_here < JUMPS_AT_ONE_MOMENT_MAX,
                "time stands still at {}: a timer stays due after it was handled",
                self.now
            );
        }
        self.now
    }

    /// Advances by `span`.
    pub fn advance(&mut self, span: Duration) -> Time {
        self.jump_to(self.now + span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_that_are_not_set_do_not_count() {
        let (one, two) = (Time::from_nanos(1), Time::from_nanos(2));
        assert_eq!(earliest([None, Some(two), Some(one)]), Some(one));
        assert_eq!(earliest([None, None]), None);
    }

    #[test]
    fn a_clock_never_goes_back() {
        let mut clock = VirtualClock::new();
        clock.jump_to(Time::from_nanos(5));
        assert_eq!(clock.jump_to(Time::from_nanos(3)), Time::from_nanos(5));
    }

    #[test]
    #[should_panic(expected = "time stands still")]
    fn a_timer_that_stays_due_is_a_fault() {
        let mut clock = VirtualClock::new();
        loop {
            clock.jump_to(Time::ZERO);
        }
    }
}
