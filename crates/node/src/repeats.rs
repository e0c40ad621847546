//! Limits for log lines that a stranger or a host on the LAN can cause at will.
//!
//! The first [`LOGGED_FIRST`] lines of each kind within [`INTERVAL`] are logged. The following ones
//! are counted, and one line at the end of the interval gives their number and the number of
//! addresses. So a kind writes at most some hundred bytes a minute.
//!
//! Lines below INFO are not counted here: an operator who enables them wants all.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

/// The time for which occurrences are counted before they are summed up.
const INTERVAL: Duration = Duration::from_secs(60);
/// The number of lines that are logged in each interval: enough to see the cause and the sources.
pub(crate) const LOGGED_FIRST: u32 = 5;
/// The number of addresses that are distinguished in an interval; beyond it the summary says "more
/// than".
const SOURCES_MAX: usize = 1_000;

/// A node was refused that is not paired with this one.
pub(crate) static REFUSED_IDENTITY: RepeatCounter =
    RepeatCounter::new("refused a node that is not paired");
/// A pairing was refused.
pub(crate) static REFUSED_PAIRING: RepeatCounter = RepeatCounter::new("refused to pair");
/// No connection could be accepted at the WAN address.
pub(crate) static NO_LINK_ACCEPTED: RepeatCounter = RepeatCounter::new("cannot take a link");
/// No connection of a client could be accepted.
pub(crate) static NO_CLIENT_ACCEPTED: RepeatCounter =
    RepeatCounter::new("cannot take a connection");
/// A handshake had to make room for another.
pub(crate) static CROWDED_OUT: RepeatCounter = RepeatCounter::new("too many unfinished handshakes");
/// A client whose SYN was held could not get its server's outcome.
pub(crate) static HELD_UNTOLD: RepeatCounter =
    RepeatCounter::new("the node could not send a held client the answer of its server");
/// A socket option of a link could not be set.
pub(crate) static NO_OPTION: RepeatCounter =
    RepeatCounter::new("a link's socket option could not be set");
/// A paired node has no section.
pub(crate) static NO_SECTION: RepeatCounter =
    RepeatCounter::new("closed a link of a node that has no [[peer]] section");
/// A limit was reached.
pub(crate) static LIMIT_REACHED: RepeatCounter = RepeatCounter::new("limit reached");
/// A client has its share of the flows.
pub(crate) static SOURCE_AT_SHARE: RepeatCounter =
    RepeatCounter::new("a client has as many flows as its share allows");
/// The lines about a count that fell below its limit again.
pub(crate) static LIMIT_CLEARED: RepeatCounter =
    RepeatCounter::new("the node is below the limit again");

/// Counts one kind of line.
#[derive(Debug)]
pub(crate) struct RepeatCounter {
    what: &'static str,
    interval: Duration,
    counted: Mutex<CountedRepeats>,
}

#[derive(Debug)]
struct CountedRepeats {
    /// The end of the interval; `None` when none has begun.
    until: Option<Instant>,
    logged: u32,
    unlogged: u64,
    sources: BTreeSet<IpAddr>,
}

impl CountedRepeats {
    const NONE: Self = Self {
        until: None,
        logged: 0,
        unlogged: 0,
        sources: BTreeSet::new(),
    };
}

/// The action for one occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepeatVerdict {
    Log,
    /// The first that is not logged: a summary is due at that time.
    CountUntil(Instant),
    Count,
}

/// The summary of the occurrences that were not logged in an interval.
#[derive(Debug, PartialEq, Eq)]
struct RepeatSummary {
    occurrences: u64,
    addresses: usize,
}

impl RepeatCounter {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self::every(INTERVAL, what)
    }

    const fn every(interval: Duration, what: &'static str) -> Self {
        Self {
            what,
            interval,
            counted: Mutex::new(CountedRepeats::NONE),
        }
    }

    /// Lets `log` write its line, or counts it. `source` is its cause, where known.
    pub(crate) fn tell(&'static self, source: Option<IpAddr>, log: impl FnOnce()) {
        let now = Instant::now();
        match self.note(now, source) {
            RepeatVerdict::Log => log(),
            RepeatVerdict::Count => {}
            RepeatVerdict::CountUntil(until) => {
                let sums_up = async move {
                    tokio::time::sleep_until(until).await;
                    self.sum_up(until);
                };
                // Without a runtime nothing is served that could be repeated at will.
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(sums_up);
                }
            }
        }
    }

    /// Lines that were logged, and occurrences that were only counted, in the present interval.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (u32, u64) {
        let counted = self.lock();
        (counted.logged, counted.unlogged)
    }

    fn lock(&self) -> MutexGuard<'_, CountedRepeats> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, now: Instant, source: Option<IpAddr>) -> RepeatVerdict {
        let mut counted = self.lock();
        let until = match counted.until {
            Some(until) if now < until => until,
            Some(_) | None => {
                let unlogged = counted.unlogged;
                *counted = CountedRepeats {
                    // What its sum has not been taken of yet.
                    unlogged,
                    until: Some(now + self.interval),
                    ..CountedRepeats::NONE
                };
                now + self.interval
            }
        };
        if counted.logged < LOGGED_FIRST {
            counted.logged += 1;
            return RepeatVerdict::Log;
        }
        counted.unlogged += 1;
        if counted.sources.len() < SOURCES_MAX {
            counted.sources.extend(source);
        }
        match counted.unlogged {
            1 => RepeatVerdict::CountUntil(until),
            _ => RepeatVerdict::Count,
        }
    }

    fn sum_up(&self, now: Instant) {
        if let Some(sum) = self.take_sum(now) {
            tracing::warn!(
                what = self.what,
                times = sum.occurrences,
                addresses = sum.addresses,
                within_s = self.interval.as_secs(),
                "the same event occurred again; the node does not log every occurrence"
            );
        }
    }

    /// The summary of the interval that has ended by now.
    fn take_sum(&self, now: Instant) -> Option<RepeatSummary> {
        let mut counted = self.lock();
        let unlogged = std::mem::take(&mut counted.unlogged);
        let sources = std::mem::take(&mut counted.sources);
        if counted.until.is_some_and(|until| until <= now) {
            counted.until = None;
        }
        (unlogged > 0).then_some(RepeatSummary {
            occurrences: unlogged,
            addresses: sources.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u64) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, number as u8]))
    }

    #[test]
    fn first_lines_are_logged_and_others_summed() {
        let repeats = RepeatCounter::new("a test");
        let begun = Instant::now();
        let verdicts: Vec<RepeatVerdict> = (0..7_563)
            .map(|number| repeats.note(begun, source(number % 20)))
            .collect();
        let logged = verdicts
            .iter()
            .filter(|verdict| **verdict == RepeatVerdict::Log);
        assert_eq!(logged.count(), LOGGED_FIRST as usize);
        let until = begun + INTERVAL;
        assert_eq!(verdicts[5], RepeatVerdict::CountUntil(until));
        assert!(
            verdicts[6..]
                .iter()
                .all(|verdict| *verdict == RepeatVerdict::Count)
        );
        let sum = RepeatSummary {
            occurrences: 7_558,
            addresses: 20,
        };
        assert_eq!(repeats.take_sum(until), Some(sum));
        assert_eq!(repeats.take_sum(until), None);
        assert_eq!(repeats.note(until, source(1)), RepeatVerdict::Log);
    }

    #[test]
    fn rare_lines_are_always_logged() {
        let repeats = RepeatCounter::new("a test");
        let begun = Instant::now();
        for number in 0..100 {
            let now = begun + INTERVAL / 4 * number;
            assert_eq!(repeats.note(now, None), RepeatVerdict::Log);
        }
    }

    #[tokio::test]
    async fn the_sum_is_told_though_nothing_follows() {
        static REPEATS: RepeatCounter = RepeatCounter::every(Duration::from_millis(200), "a test");
        let mut logged = 0;
        for number in 0..50 {
            REPEATS.tell(source(number), || logged += 1);
        }
        assert_eq!(logged, LOGGED_FIRST);
        let summed_up = async {
            while REPEATS.lock().unlogged > 0 {
                tokio::task::yield_now().await;
            }
        };
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, summed_up).await.unwrap();
    }
}
