//! Protocol violations of one peer: all are counted, few are logged.
//!
//! A hostile peer can break the rules thousands of times a second. The first violation is logged at
//! once. After that, at most one violation per [`TELL_EVERY`] is logged, with the number of those that
//! were left out. The total is in `status` and in the metrics.

use std::time::Duration;

use vocab::Time;

/// At most one violation of a peer is logged in this time: 1,440 lines a day and peer, about 300 kB.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The count of a peer's violations, and when the next one may be logged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ViolationCount {
    total: u64,
    /// Violations since the last one that was logged.
    unlogged: u64,
    quiet_until: Option<Time>,
}

impl ViolationCount {
    /// Counts a violation. Returns the number of violations left out of the log since the last one
    /// that was logged if this one is to be logged, else `None`.
    pub(crate) fn add(&mut self, now: Time) -> Option<u64> {
        self.total += 1;
        if self.quiet_until.is_some_and(|until| now < until) {
            self.unlogged += 1;
            return None;
        }
        self.quiet_until = Some(now + TELL_EVERY);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Violations since the start.
    pub(crate) fn total(self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_logged_at_most_once_a_minute() {
        let mut violations = ViolationCount::default();
        let start = Time::ZERO;
        assert_eq!(violations.add(start), Some(0));
        for _ in 0..10_000 {
            assert_eq!(violations.add(start + TELL_EVERY / 2), None);
        }
        assert_eq!(violations.add(start + TELL_EVERY), Some(10_000));
        assert_eq!(violations.total(), 10_002);
    }
}
