//! The freshness of the near half's licences.
//!
//! It sends numbered beats along with the client's messages. The far half repeats each number as
//! long as it has nothing to revoke before it. A repeated number proves that licences which were
//! not revoked by then were held when the beat left here. They may therefore be relied on for
//! [`FRESH_FOR`] from that moment, by this clock alone.

use std::collections::VecDeque;

use vocab::Time;

use super::super::config::{BEAT_EVERY, FRESH_FOR};

/// The limit of unanswered beats; a path that answers none needs no more of them.
const BEATS_MAX: usize = 64;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct LicenceFreshness {
    sent: u64,
    last: Option<Time>,
    unanswered: VecDeque<(u64, Time)>,
    until: Option<Time>,
}

impl LicenceFreshness {
    /// The number of a beat to send now, if one is due.
    pub(crate) fn beat(&mut self, now: Time) -> Option<u64> {
        let is_due = self.last.is_none_or(|last| now.since(last) >= BEAT_EVERY);
        if !is_due || self.unanswered.len() == BEATS_MAX {
            return None;
        }
        self.sent += 1;
        self.last = Some(now);
        self.unanswered.push_back((self.sent, now));
        Some(self.sent)
    }

    /// Handles a repeated number.
    pub(crate) fn heard(&mut self, number: u64) {
        while let Some((sent, at)) = self.unanswered.front().copied() {
            if sent > number {
                return;
            }
            self.unanswered.pop_front();
            self.until = Some(at + FRESH_FOR);
        }
    }

    /// Ends the freshness until the next repeated number.
    pub(crate) fn expire(&mut self) {
        self.until = None;
        self.unanswered.clear();
    }

    /// Returns true if licences may be relied on.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn freshness_counts_from_when_the_beat_left() {
        let mut fresh = LicenceFreshness::default();
        let start = Time::ZERO + Duration::from_secs(1);
        let number = fresh.beat(start).unwrap();
        assert_eq!(fresh.beat(start + Duration::from_millis(100)), None);
        assert!(!fresh.is_fresh(start));
        fresh.heard(number);
        assert!(fresh.is_fresh(start + FRESH_FOR - Duration::from_millis(1)));
        assert!(!fresh.is_fresh(start + FRESH_FOR));
    }

    #[test]
    fn numbers_that_were_never_sent_prove_nothing() {
        let mut fresh = LicenceFreshness::default();
        fresh.heard(99);
        assert!(!fresh.is_fresh(Time::ZERO));
        let number = fresh.beat(Time::ZERO).unwrap();
        fresh.expire();
        fresh.heard(number);
        assert!(!fresh.is_fresh(Time::ZERO));
    }
}
