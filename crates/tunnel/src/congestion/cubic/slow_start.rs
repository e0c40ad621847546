//! HyStart++ (RFC 9406): leaves slow start before the queue overflows.
//!
//! A round whose shortest round-trip times exceed the last round's by an eighth shows that a queue
//! builds. The window then grows at a quarter of the pace for five rounds. If the times shrink
//! again meanwhile, it was noise and slow start continues.

use std::time::Duration;

/// RFC 9406 §4.3 (Tuning Constants and Other Considerations).
const THRESHOLD_MIN: Duration = Duration::from_millis(4);
const THRESHOLD_MAX: Duration = Duration::from_millis(16);
const RTT_DIVISOR: u32 = 8;
const SAMPLES: u32 = 8;
const CONSERVATIVE_DIVISOR: f64 = 4.0;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// Decision of the slow-start exit check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlowStartDecision {
    /// Stay in slow start.
    GoOn,
    /// Enter congestion avoidance.
    Leave,
}

/// Watches round-trip times in slow start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HyStart {
    ends_at_delivered: u64,
    this_round: Option<Duration>,
    last_round: Option<Duration>,
    samples: u32,
    conservative: Option<ConservativeSlowStart>,
}

/// Conservative slow start.
#[derive(Clone, Copy, Debug)]
struct ConservativeSlowStart {
    baseline: Duration,
    rounds: u32,
}

impl HyStart {
    /// Divisor for the growth of slow start.
    pub(super) fn divisor(&self) -> f64 {
        match self.conservative {
            Some(_) => CONSERVATIVE_DIVISOR,
            None => 1.0,
        }
    }

    /// Takes in an acknowledgement whose newest packet left when `prior_delivered` bytes had been
    /// delivered, of which there are `delivered` now.
    pub(super) fn acknowledged(
        &mut self,
        prior_delivered: u64,
        delivered: u64,
        rtt: Option<Duration>,
    ) -> SlowStartDecision {
        if prior_delivered >= self.ends_at_delivered {
            self.ends_at_delivered = delivered;
            self.last_round = self.this_round.take();
            self.samples = 0;
            if let Some(conservative) = &mut self.conservative {
                conservative.rounds += 1;
                if conservative.rounds >= CONSERVATIVE_ROUNDS {
                    return SlowStartDecision::Leave;
                }
            }
        }
        let Some(rtt) = rtt else {
            return SlowStartDecision::GoOn;
        };
        let shortest = self.this_round.map_or(rtt, |shortest| shortest.min(rtt));
        self.this_round = Some(shortest);
        self.samples += 1;
        let Some(last) = self.last_round else {
            return SlowStartDecision::GoOn;
        };
        if self.samples < SAMPLES {
            return SlowStartDecision::GoOn;
        }
        match self.conservative {
            None => {
                let threshold = (last / RTT_DIVISOR).clamp(THRESHOLD_MIN, THRESHOLD_MAX);
                if shortest >= last + threshold {
                    self.conservative = Some(ConservativeSlowStart {
                        baseline: shortest,
                        rounds: 0,
                    });
                }
            }
            Some(conservative) if shortest < conservative.baseline => self.conservative = None,
            Some(_) => {}
        }
        SlowStartDecision::GoOn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of ten packets, each with its round-trip time in milliseconds; says after how many
    /// rounds slow start was left, and whether it was conservative at the end.
    fn rounds(times: &[u64]) -> (Option<usize>, bool) {
        let mut hystart = HyStart::default();
        for (round, time) in times.iter().enumerate() {
            for packet in 0..10 {
                let delivered = 10 * round as u64 + packet + 1;
                let prior = delivered.saturating_sub(10);
                let rtt = Some(Duration::from_millis(*time));
                if hystart.acknowledged(prior, delivered, rtt) == SlowStartDecision::Leave {
                    return (Some(round), true);
                }
            }
        }
        (None, hystart.conservative.is_some())
    }

    #[test]
    fn rfc_9406_growing_rtt_ends_slow_start() {
        assert_eq!(rounds(&[100, 100, 100]), (None, false));
        assert_eq!(rounds(&[100, 100, 113]), (None, true));
        let (left, _) = rounds(&[100, 100, 113, 120, 120, 120, 120, 120, 120]);
        assert_eq!(left, Some(7));
    }

    #[test]
    fn rfc_9406_shrinking_rtt_resumes_slow_start() {
        assert_eq!(rounds(&[100, 100, 113, 105]), (None, false));
    }

    #[test]
    fn rfc_9406_small_rtt_growth_is_ignored() {
        // An eighth of 20 ms is below the least threshold, 4 ms.
        assert_eq!(rounds(&[20, 20, 23]), (None, false));
        assert_eq!(rounds(&[20, 20, 24]), (None, true));
    }
}
