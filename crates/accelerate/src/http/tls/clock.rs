//! The time on the calendar, for a TLS library that wants to ask for it.
//!
//! rustls asks a `TimeProvider` when it verifies a certificate. This one answers with the moment of the input that is
//! being handled: the halves tell it each time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use vocab::Time;

/// The calendar as the engine tells it.
#[derive(Debug, Default)]
pub(crate) struct WallClock {
    /// Seconds since 1970 at the engine's time zero; 0 while the calendar is unknown.
    offset: AtomicI64,
    /// Seconds on the engine's clock.
    now: AtomicU64,
}

impl WallClock {
    /// Takes which moment since 1970 a moment of the engine's clock is.
    pub(crate) fn set_calendar(&self, now: Time, since_1970: Duration) {
        let elapsed = now.since(Time::ZERO).as_secs();
        let offset = since_1970.as_secs().cast_signed() - elapsed.cast_signed();
        self.offset.store(offset, Ordering::Relaxed);
        self.now.store(elapsed, Ordering::Relaxed);
    }

    /// Takes the engine's time.
    pub(crate) fn observe(&self, now: Time) {
        let elapsed = now.since(Time::ZERO).as_secs();
        self.now.store(elapsed, Ordering::Relaxed);
    }

    /// Seconds since 1970; `None` while the calendar is unknown.
    pub(crate) fn since_1970(&self) -> Option<i64> {
        let offset = self.offset.load(Ordering::Relaxed);
        let now = self.now.load(Ordering::Relaxed).cast_signed();
        (offset != 0).then_some(offset + now)
    }
}

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.since_1970()?).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_goes_on_with_the_engine() {
        let clock = WallClock::default();
        assert_eq!(clock.current_time(), None);
        let start = Time::ZERO + Duration::from_secs(100);
        clock.set_calendar(start, Duration::from_secs(1_000_100));
        clock.observe(start + Duration::from_secs(5));
        assert_eq!(clock.since_1970(), Some(1_000_105));
    }
}
