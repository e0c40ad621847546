//! Round-trip time, retransmission time-out, and the least RTT.
//!
//! RFC 6298 §2 with the differences of Linux: the variance shrinks once in a round trip and not with
//! each of many samples of one window (RFC 7323 appendix G names the problem), and the least
//! time-out is an addition to the smoothed RTT.

use std::time::Duration;

use vocab::Time;

/// RFC 6298 §2.1: the time-out before the first sample.
pub(crate) const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);
/// RFC 6298 §2.5 allows a maximum of 60 s or more; Linux has 120 s (TCP_RTO_MAX).
pub(crate) const TIMEOUT_MOST: Duration = Duration::from_secs(120);
/// Time after which the least RTT is measured again; Linux's tcp_min_rtt_wlen is 300 s.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// Estimator of a connection's round-trip time.
#[derive(Clone, Debug)]
pub(crate) struct RoundTripEstimator {
    smoothed: Option<Duration>,
    deviation: Duration,
    /// Largest deviation of this round trip, and the value in use.
    deviation_most: Duration,
    variance: Duration,
    round_end: u64,
    least_variance: Duration,
    least: Option<(Duration, Time)>,
}

impl RoundTripEstimator {
    pub(crate) fn new(least_variance: Duration) -> Self {
        Self {
            smoothed: None,
            deviation: Duration::ZERO,
            deviation_most: Duration::ZERO,
            variance: Duration::ZERO,
            round_end: 0,
            least_variance,
            least: None,
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn deviation(&self) -> Duration {
        self.deviation
    }

    pub(crate) fn least(&self) -> Option<Duration> {
        self.least.map(|(least, _)| least)
    }

    /// Takes a sample of an acknowledgement up to `acknowledged`, with `next` to be sent next.
    pub(crate) fn sample(&mut self, rtt: Duration, acknowledged: u64, next: u64) {
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt / 2;
            self.variance = (self.deviation * 4).max(self.least_variance);
            self.deviation_most = self.variance;
            self.round_end = next;
            return;
        };
        let (error, falls) = match rtt.checked_sub(smoothed) {
            Some(error) => (error, false),
            None => (smoothed - rtt, true),
        };
        self.smoothed = Some(if falls {
            smoothed - error / 8
        } else {
            smoothed + error / 8
        });
        match error.checked_sub(self.deviation) {
            // An RTT that falls does not make the time-out longer at once.
            Some(more) => self.deviation += more / if falls { 32 } else { 4 },
            None => self.deviation -= (self.deviation - error) / 4,
        }
        self.deviation_most = self.deviation_most.max(self.deviation * 4);
        self.variance = self.variance.max(self.deviation_most);
        if acknowledged > self.round_end {
            self.variance -= (self.variance.saturating_sub(self.deviation_most)) / 4;
            self.round_end = next;
            self.deviation_most = self.least_variance;
        }
    }

    /// Takes a sample for the least RTT alone.
    pub(crate) fn sample_least(&mut self, now: Time, rtt: Duration) {
        let expired = self
            .least
            .is_some_and(|(_, since)| now.since(since) > MIN_RTT_WINDOW);
        if expired || self.least.is_none_or(|(least, _)| rtt <= least) {
            self.least = Some((rtt, now));
        }
    }

    /// Retransmission time-out without back-off.
    pub(crate) fn timeout(&self) -> Duration {
        match self.smoothed {
            Some(smoothed) => (smoothed + self.variance).min(TIMEOUT_MOST),
            None => TIMEOUT_INITIAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn first_sample_sets_both_estimates() {
        // RFC 6298 §2.2: SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 * RTTVAR.
        let mut estimator = RoundTripEstimator::new(200 * MILLISECOND);
        assert_eq!(estimator.timeout(), TIMEOUT_INITIAL);
        estimator.sample(100 * MILLISECOND, 0, 0);
        assert_eq!(estimator.smoothed(), Some(100 * MILLISECOND));
        assert_eq!(estimator.timeout(), 300 * MILLISECOND);
    }

    #[test]
    fn steady_rtt_leaves_the_least_addition() {
        let mut estimator = RoundTripEstimator::new(200 * MILLISECOND);
        for round in 0..200 {
            estimator.sample(100 * MILLISECOND, round + 1, round + 1);
        }
        let timeout = estimator.timeout().as_secs_f64();
        assert!((0.3..0.301).contains(&timeout), "{timeout}");
    }

    #[test]
    fn many_samples_of_one_round_keep_the_variance() {
        let mut estimator = RoundTripEstimator::new(MILLISECOND);
        estimator.sample(100 * MILLISECOND, 0, 1_000);
        for _ in 0..100 {
            estimator.sample(100 * MILLISECOND, 500, 1_000);
        }
        assert_eq!(estimator.timeout(), 300 * MILLISECOND);
    }

    #[test]
    fn least_rtt_is_forgotten_after_its_window() {
        let mut estimator = RoundTripEstimator::new(MILLISECOND);
        estimator.sample_least(Time::ZERO, 10 * MILLISECOND);
        estimator.sample_least(Time::ZERO + Duration::from_secs(299), 20 * MILLISECOND);
        assert_eq!(estimator.least(), Some(10 * MILLISECOND));
        estimator.sample_least(Time::ZERO + Duration::from_secs(301), 20 * MILLISECOND);
        assert_eq!(estimator.least(), Some(20 * MILLISECOND));
    }
}
