//! Quantiles of recent durations: a histogram whose counts are halved as time passes.
//!
//! Buckets grow with the duration, eight to an octave, so a result is at most an eighth too long
//! and never too short. Adding one takes a few instructions, and the memory is fixed. Durations
//! below 64 µs count as zero, which is finer than the timers of any shell, and those above 67 s as
//! 67 s.

use std::time::Duration;

use vocab::Time;

/// Buckets to an octave: an answer is at most 1/8 above the truth.
const PER_OCTAVE_BITS: u32 = 3;
/// Shortest duration above zero: 2^6 µs.
const FIRST_OCTAVE: u32 = 6;
/// The octave that ends at 2^26 µs, 67 s, is the last.
const OCTAVES: u32 = 20;
/// One for none, and all octaves.
const BUCKETS: usize = 1 + ((OCTAVES as usize) << PER_OCTAVE_BITS);

/// A distribution of spans that forgets.
#[derive(Clone, Debug)]
pub struct DurationQuantiles {
    counts: [u32; BUCKETS],
    total: u64,
    halved_at: Time,
}

impl DurationQuantiles {
    /// An empty one.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            halved_at: now,
        }
    }

    /// Halves all counts when `half_life` has passed since the last time, rounding down: a single
    /// sample is forgotten with the next half-life.
    pub fn age(&mut self, now: Time, half_life: Duration) {
        let passed = now.since(self.halved_at);
        if passed < half_life {
            return;
        }
        let halvings = passed.as_nanos() / half_life.as_nanos().max(1);
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        for count in &mut self.counts {
            *count = count.checked_shr(halvings).unwrap_or(0);
        }
        self.total = self.counts.iter().map(|count| u64::from(*count)).sum();
        self.halved_at = now;
    }

    /// Counts a span.
    pub fn add(&mut self, span: Duration) {
        let count = &mut self.counts[bucket(span)];
        if let Some(more) = count.checked_add(1) {
            *count = more;
            self.total += 1;
        }
    }

    /// Returns the number of counted durations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of durations above zero.
    #[must_use]
    pub fn above_zero(&self) -> u64 {
        self.total - u64::from(self.counts[0])
    }

    /// The span that all but the share `beyond` of those counted stay within, or somewhat more;
    /// zero when there are none. With few of them that is the longest.
    #[must_use]
    pub fn all_but(&self, beyond: f64) -> Duration {
        let mut left = (self.total as f64 * beyond) as u64;
        for (index, count) in self.counts.iter().enumerate().rev() {
            let count = u64::from(*count);
            if count > left {
                return upper_end(index);
            }
            left -= count;
        }
        Duration::ZERO
    }
}

fn bucket(span: Duration) -> usize {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let Some(octave) = micros
        .checked_ilog2()
        .and_then(|octave| octave.checked_sub(FIRST_OCTAVE))
    else {
        return 0;
    };
    if octave >= OCTAVES {
        return BUCKETS - 1;
    }
    let within = (micros >> (octave + FIRST_OCTAVE - PER_OCTAVE_BITS)) as usize;
    let within = within & ((1 << PER_OCTAVE_BITS) - 1);
    1 + ((octave as usize) << PER_OCTAVE_BITS) + within
}

/// The first span that is beyond a bucket.
fn upper_end(index: usize) -> Duration {
    let Some(index) = index.checked_sub(1) else {
        return Duration::ZERO;
    };
    let octave = index >> PER_OCTAVE_BITS;
    let within = index & ((1 << PER_OCTAVE_BITS) - 1);
    let eighths = ((1 << PER_OCTAVE_BITS) + within + 1) as u64;
    Duration::from_micros(eighths << (octave + (FIRST_OCTAVE - PER_OCTAVE_BITS) as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Time = Time::ZERO;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn rare_late_spans_exceed_the_quantile() {
        let mut quantiles = DurationQuantiles::new(NOW);
        for _ in 0..1_997 {
            quantiles.add(Duration::ZERO);
        }
        for _ in 0..3 {
            quantiles.add(ms(80));
        }
        assert_eq!(quantiles.all_but(1.0 / 500.0), Duration::ZERO);
        quantiles.add(ms(40));
        quantiles.add(ms(40));
        let found = quantiles.all_but(1.0 / 500.0);
        assert!((ms(40)..=ms(45)).contains(&found), "{found:?}");
        assert_eq!((quantiles.total(), quantiles.above_zero()), (2_002, 5));
    }

    #[test]
    fn few_spans_are_all_within() {
        let mut quantiles = DurationQuantiles::new(NOW);
        assert_eq!(quantiles.all_but(0.002), Duration::ZERO);
        quantiles.add(ms(7));
        assert!(quantiles.all_but(0.002) >= ms(7));
    }

    #[test]
    fn unseen_spans_are_forgotten() {
        let mut quantiles = DurationQuantiles::new(NOW);
        for _ in 0..4 {
            quantiles.add(ms(10));
        }
        let second = Duration::from_secs(1);
        quantiles.age(NOW + second / 2, second);
        assert_eq!(quantiles.total(), 4);
        quantiles.age(NOW + second * 2, second);
        assert_eq!(quantiles.total(), 1);
        quantiles.age(NOW + second * 3, second);
        assert_eq!(quantiles.total(), 0);
        quantiles.add(ms(10));
        quantiles.age(Time::NEVER, second);
        assert_eq!(quantiles.total(), 0);
    }

    proptest! {
        #[test]
        fn quantile_error_is_at_most_an_eighth(
            mut spans in prop::collection::vec(0_u64..60_000_000, 1..300),
            beyond in 0.0_f64..0.5,
        ) {
            let mut quantiles = DurationQuantiles::new(NOW);
            for span in &spans {
                quantiles.add(Duration::from_micros(*span));
            }
            spans.sort_unstable();
            let cut = (spans.len() as f64 * beyond) as usize;
            let exact = Duration::from_micros(spans[spans.len() - 1 - cut]);
            let found = quantiles.all_but(beyond);
            let least = if exact < Duration::from_micros(64) { Duration::ZERO } else { exact };
            prop_assert!(found >= least, "{found:?} for {exact:?}");
            prop_assert!(found <= exact * 9 / 8 + Duration::from_micros(1), "{found:?} for {exact:?}");
        }
    }
}
