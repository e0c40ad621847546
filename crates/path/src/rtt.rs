//! Round-trip time of a path: latest, smoothed, variance and minimum (RFC 9002 §5).
//!
//! A sample is the time from sending a packet to its acknowledgement. The peer reports how long it
//! delayed the acknowledgement. The smoothed value subtracts that delay, but never below the
//! minimum, so that a false report cannot make the path look shorter (RFC 9002 §5.3). The minimum
//! covers the last half to whole [`MIN_RTT_WINDOW`]; a longer route is accepted after that.

use std::time::Duration;

use vocab::Time;

/// The round-trip time that is assumed before the first sample (RFC 9002 §6.2.2).
pub const INITIAL_RTT: Duration = Duration::from_millis(333);

/// The grain of the timers that a shell keeps (RFC 9002 §6.1.2, kGranularity).
pub const GRANULARITY: Duration = Duration::from_millis(1);

/// Lifetime of the minimum round-trip time. A controller empties the queue every few seconds, so
/// the true minimum is measured several times within it.
pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(60);

/// Estimator of a path's round-trip time.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    latest: Option<Duration>,
    smoothed: Duration,
    variance: Duration,
    minimum: WindowedMinimum,
}

impl RttEstimator {
    /// An estimator that assumes `initial` until the first sample; [`INITIAL_RTT`] where nothing
    /// better is known, such as the round-trip time of another connection to the same peer.
    #[must_use]
    pub fn new(initial: Duration) -> Self {
        Self {
            latest: None,
            smoothed: initial,
            variance: initial / 2,
            minimum: WindowedMinimum::default(),
        }
    }

    /// Adds a sample: `latest` as measured, and the peer's reported `delay` before it answered. The
    /// caller limits `delay` to the allowed maximum.
    pub fn sample(&mut self, now: Time, latest: Duration, delay: Duration) {
        let is_first = self.latest.is_none();
        self.latest = Some(latest);
        // RFC 9002 §5.2: the least is of the samples as measured, since a delay may be made up.
        self.minimum.add(now, latest);
        if is_first {
            self.smoothed = latest;
            self.variance = latest / 2;
            return;
        }
        let least = self.minimum.get().unwrap_or(latest);
        let adjusted = if latest >= least + delay {
            latest - delay
        } else {
            latest
        };
        // RFC 9002 §5.3: weights of 1/4 and 1/8.
        self.variance = (self.variance * 3 + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
    }

    /// Forgets the least, for a path that is known to have changed (RFC 9002 §5.2).
    pub fn forget_minimum(&mut self) {
        self.minimum = WindowedMinimum::default();
    }

    /// The newest sample; `None` before the first.
    #[must_use]
    pub fn latest(&self) -> Option<Duration> {
        self.latest
    }

    /// The smoothed round-trip time; the initial one before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The mean deviation from the smoothed one.
    #[must_use]
    pub fn variance(&self) -> Duration {
        self.variance
    }

    /// Recent minimum; `None` before the first sample.
    #[must_use]
    pub fn minimum(&self) -> Option<Duration> {
        self.minimum.get()
    }

    /// Returns the probe timeout (RFC 9002 §6.2.1, Computing PTO), without backoff, for a peer that
    /// may delay an acknowledgement by `delay_max`.
    #[must_use]
    pub fn probe_timeout(&self, delay_max: Duration) -> Duration {
        self.smoothed + (self.variance * 4).max(GRANULARITY) + delay_max
    }
}

/// The least of the samples in the current half of the window and in the one before it.
#[derive(Clone, Debug, Default)]
struct WindowedMinimum {
    half_began: Time,
    current: Option<Duration>,
    previous: Option<Duration>,
}

impl WindowedMinimum {
    fn add(&mut self, now: Time, sample: Duration) {
        let half = MIN_RTT_WINDOW / 2;
        let passed = now.since(self.half_began);
        if passed >= half {
            // After a silence of a whole window nothing that was known is of the window.
            self.previous = self.current.filter(|_| passed < MIN_RTT_WINDOW);
            self.current = None;
            self.half_began = now;
        }
        self.current = Some(self.current.map_or(sample, |least| least.min(sample)));
    }

    fn get(&self) -> Option<Duration> {
        match (self.current, self.previous) {
            (Some(current), Some(previous)) => Some(current.min(previous)),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_DELAY: Duration = Duration::ZERO;

    fn at(seconds: u64) -> Time {
        Time::from_epoch(Duration::from_secs(seconds))
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// RFC 9002 §5.3: the first sample replaces the initial assumption.
    #[test]
    fn first_sample_sets_the_estimate() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        assert_eq!((rtt.latest(), rtt.minimum()), (None, None));
        assert_eq!(rtt.probe_timeout(NO_DELAY), ms(333) + ms(666));
        rtt.sample(at(0), ms(100), ms(20));
        assert_eq!((rtt.smoothed(), rtt.variance()), (ms(100), ms(50)));
        assert_eq!(
            (rtt.latest(), rtt.minimum()),
            (Some(ms(100)), Some(ms(100)))
        );
    }

    /// RFC 9002 §5.3: smoothed by 1/8, variance by 1/4, less the delay that the peer confesses.
    #[test]
    fn later_samples_weigh_an_eighth() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        rtt.sample(at(0), ms(100), NO_DELAY);
        rtt.sample(at(1), ms(190), ms(10));
        assert_eq!(rtt.smoothed(), ms(110));
        assert_eq!(rtt.variance(), Duration::from_micros(57_500));
    }

    /// RFC 9002 §5.3: a delay is not taken off where the result would be below the least.
    #[test]
    fn reported_delay_cannot_lower_the_minimum() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        rtt.sample(at(0), ms(100), NO_DELAY);
        rtt.sample(at(1), ms(108), ms(25));
        assert_eq!(rtt.smoothed(), ms(101));
        assert_eq!(rtt.minimum(), Some(ms(100)));
    }

    /// RFC 9002 §6.2.1: smoothed + max(4 × variance, granularity) + the peer's delay.
    #[test]
    fn steady_path_keeps_the_timer_granularity() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        for second in 0..100 {
            rtt.sample(at(second), ms(80), NO_DELAY);
        }
        assert_eq!(rtt.probe_timeout(ms(25)), ms(80) + GRANULARITY + ms(25));
    }

    /// RFC 9002 §5.2: the least follows a route that became longer, after a while.
    #[test]
    fn minimum_rtt_expires() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        rtt.sample(at(0), ms(20), NO_DELAY);
        for second in 1..30 {
            rtt.sample(at(second), ms(90), NO_DELAY);
            assert_eq!(rtt.minimum(), Some(ms(20)));
        }
        for second in 30..=60 {
            rtt.sample(at(second), ms(90), NO_DELAY);
        }
        assert_eq!(rtt.minimum(), Some(ms(90)));
        rtt.forget_minimum();
        assert_eq!(rtt.minimum(), None);
    }

    #[test]
    fn nothing_is_remembered_over_a_long_silence() {
        let mut rtt = RttEstimator::new(INITIAL_RTT);
        rtt.sample(at(0), ms(20), NO_DELAY);
        rtt.sample(at(1_000), ms(50), NO_DELAY);
        assert_eq!(rtt.minimum(), Some(ms(50)));
    }
}
