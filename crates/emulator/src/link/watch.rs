//! Check, once a second while packets pass, of whether one direction keeps its settings.
//!
//! A link does not keep its settings when the host is too slow for it: when departures are late,
//! when packets are lost outside the model, or when the model's memory is full. It warns at once,
//! and then at most every ten seconds, and notes it in the report. When the link ends, the last
//! part of a second is judged as well, so that the report of a short run is complete.

use std::fmt::Write;
use std::time::Duration;

use vocab::Time;

/// Departures later than 0.2 ms that are borne: one of a hundred.
const LATE_ONE_OF: u64 = 100;

/// Least number of departures for a share. On a link with fewer per second, they are gathered over
/// more than one second.
const DEPARTURES_MIN: u64 = 100;

/// Time after a warning in which there is no other.
const SILENCE: Duration = Duration::from_secs(10);

/// Counts from the start of the link on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchCounters {
    /// Packets written.
    pub(crate) departures: u64,
    /// Packets written more than 0.2 ms after their time.
    pub(crate) late_departures: u64,
    /// Dropped by the kernel before they were read.
    pub(crate) unread: u64,
    /// Packets that the kernel did not take at the far device.
    pub(crate) refused: u64,
    /// Refused by the model because its memory is bounded.
    pub(crate) over_memory: u64,
}

/// State of the watch.
#[derive(Debug, Default)]
pub(crate) struct LinkWatch {
    last: WatchCounters,
    reason: Option<String>,
    seconds: u64,
    warned_at: Option<Time>,
}

impl LinkWatch {
    /// Interval of the checks.
    pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

    /// Text of the last deviation from the link's settings, if there was one.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Number of checks that found a deviation.
    pub(crate) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Checks the time since the last check; `from` is the device that packets came from.
    pub(crate) fn look(&mut self, now: Time, observed: WatchCounters, from: &str) {
        let Some(reason) = self.judge(observed, DEPARTURES_MIN) else {
            return;
        };
        if self.warned_at.is_none_or(|at| now.since(at) >= SILENCE) {
            tracing::warn!(from, reason, "the link does not follow its settings");
            self.warned_at = Some(now);
        }
    }

    /// Checks the remaining departures, however few they are. It gives no warning, because the
    /// report that follows has it.
    pub(crate) fn look_last(&mut self, observed: WatchCounters) {
        self.judge(observed, 0);
    }

    /// Deviation from the link's settings since the last check, if there was one.
    fn judge(&mut self, observed: WatchCounters, departures_min: u64) -> Option<String> {
        let last = self.last;
        let departures = observed.departures - last.departures;
        let late = observed.late_departures - last.late_departures;
        self.last = observed;
        let is_enough = departures >= departures_min;
        if !is_enough {
            self.last.departures = last.departures;
            self.last.late_departures = last.late_departures;
        }
        let mut reason = String::new();
        // Of fewer than a hundred one is borne: it alone says nothing about one of a hundred.
        if is_enough && late * LATE_ONE_OF > departures.max(DEPARTURES_MIN) {
            say(
                &mut reason,
                late,
                &format!("of {departures} packets left more than 0.2 ms late"),
            );
        }
        let lost = [
            (
                observed.unread.saturating_sub(last.unread),
                "packets were dropped by the kernel before they could be read",
            ),
            (
                observed.refused - last.refused,
                "packets were not taken by the kernel at the far device",
            ),
            (
                observed.over_memory - last.over_memory,
                "packets were dropped because the model holds as many as memory allows",
            ),
        ];
        for (count, what) in lost {
            if count > 0 {
                say(&mut reason, count, what);
            }
        }
        if reason.is_empty() {
            return None;
        }
        self.seconds += 1;
        self.reason = Some(reason.clone());
        Some(reason)
    }
}

fn say(reason: &mut String, count: u64, what: &str) {
    let separator = if reason.is_empty() { "" } else { "; " };
    // Writing to a string does not fail.
    let _ = write!(reason, "{separator}{count} {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_epoch(Duration::from_secs(seconds))
    }

    fn departures(departures: u64, late_departures: u64) -> WatchCounters {
        WatchCounters {
            departures,
            late_departures,
            ..WatchCounters::default()
        }
    }

    #[test]
    fn more_than_one_percent_late_fails() {
        let mut watch = LinkWatch::default();
        watch.look(at(1), departures(10_000, 100), "a");
        assert_eq!(watch.reason(), None);
        watch.look(at(2), departures(20_000, 201), "a");
        assert_eq!(
            watch.reason(),
            Some("101 of 10000 packets left more than 0.2 ms late")
        );
        watch.look(at(3), departures(30_000, 201), "a");
        assert_eq!(watch.seconds(), 1);
    }

    #[test]
    fn few_departures_are_gathered() {
        let mut watch = LinkWatch::default();
        watch.look(at(1), departures(60, 1), "a");
        assert_eq!(watch.reason(), None);
        watch.look(at(2), departures(120, 2), "a");
        assert_eq!(
            watch.reason(),
            Some("2 of 120 packets left more than 0.2 ms late")
        );
    }

    #[test]
    fn last_check_judges_the_remaining_departures() {
        let mut watch = LinkWatch::default();
        watch.look(at(1), departures(60, 2), "a");
        assert_eq!(watch.reason(), None);
        watch.look_last(departures(70, 2));
        assert_eq!(
            watch.reason(),
            Some("2 of 70 packets left more than 0.2 ms late")
        );
        assert_eq!(watch.seconds(), 1);

        let mut watch = LinkWatch::default();
        watch.look_last(departures(5, 1));
        assert_eq!(watch.reason(), None, "one of a few");
        watch.look_last(departures(5, 1));
        watch.look_last(departures(5, 1));
        assert_eq!(watch.reason(), None, "nothing is judged twice");
    }

    #[test]
    fn each_loss_outside_the_model_is_named() {
        let mut watch = LinkWatch::default();
        let lost = WatchCounters {
            unread: 3,
            refused: 1,
            over_memory: 2,
            ..WatchCounters::default()
        };
        watch.look(at(1), lost, "a");
        assert_eq!(
            watch.reason(),
            Some(
                "3 packets were dropped by the kernel before they could be read; 1 packets were not taken by the kernel at the far device; 2 packets were dropped because the model holds as many as memory allows"
            )
        );
        watch.look(at(2), lost, "a");
        assert_eq!(watch.seconds(), 1);
    }
}
