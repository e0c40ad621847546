//! Statistics of repeated measurements: the median with an interval, and comparisons.
//!
//! | repeats | interval of the median |
//! | --- | --- |
//! | 1 | none |
//! | 2 to 5 | least to greatest value; its coverage is below 95 % and stated |
//! | 6 to 24 | exact: the narrowest symmetric pair of order statistics with at least 95 % |
//! | 25 and more | percentile bootstrap with a seed |
//!
//! The exact interval assumes nothing about the distribution: the median lies between the k-th
//! smallest and the k-th greatest of n values with probability 1 − 2·P(X < k), X ~ Binomial(n, ½).

use host::median::median;
use vocab::SeededRandom;

/// Wanted coverage of intervals.
pub const COVERAGE: f64 = 0.95;
/// From so many values on the interval is that of a bootstrap.
const BOOTSTRAP_FROM: usize = 25;
/// Resamples of a bootstrap: the 2.5 % point rests on 50 of them.
const RESAMPLES: usize = 2_000;

/// Median of repeated measurements, with an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianEstimate {
    /// Median.
    pub median: f64,
    /// Number of values.
    pub count: usize,
    /// Interval; `None` for one value.
    pub interval: Option<MedianInterval>,
}

/// Interval of a median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that it contains the median.
    pub coverage: f64,
}

/// Comparison of two medians.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonVerdict {
    /// The second one is higher, and the intervals do not overlap.
    Higher,
    /// The second one is lower, and the intervals do not overlap.
    Lower,
    /// The intervals overlap: no difference is shown.
    NoDifference,
    /// One of them has no interval of 95 %, for want of repeats.
    NotTested,
}

/// Estimates the median of values; `None` without values.
#[must_use]
pub fn estimate(values: &[f64], seed: u64) -> Option<MedianEstimate> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let interval = match sorted.len() {
        0 | 1 => None,
        count if count < BOOTSTRAP_FROM => Some(order_statistics(&sorted)),
        _ => Some(bootstrap(&sorted, seed)),
    };
    Some(MedianEstimate {
        median: median(sorted.iter().copied())?,
        count: sorted.len(),
        interval,
    })
}

/// The narrowest pair of order statistics with the wanted coverage, or the outermost pair.
fn order_statistics(sorted: &[f64]) -> MedianInterval {
    let count = sorted.len();
    let mut best = (1, outermost_coverage(count));
    let mut below = 0.0;
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    for k in 1..=count / 2 {
        below += term;
        term *= (count - k + 1) as f64 / k as f64;
        let coverage = 1.0 - 2.0 * below;
        if coverage >= COVERAGE {
            best = (k, coverage);
        }
    }
    MedianInterval {
        low: sorted[best.0 - 1],
        high: sorted[count - best.0],
        coverage: best.1,
    }
}

/// Probability that the median lies between the least and the greatest of so many values.
fn outermost_coverage(count: usize) -> f64 {
    1.0 - 2.0 * 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

fn bootstrap(sorted: &[f64], seed: u64) -> MedianInterval {
    let mut random = SeededRandom::from_seed(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            median((0..sorted.len()).map(|_| {
                let place = random.below(sorted.len() as u64);
                sorted[usize::try_from(place).unwrap_or_default()]
            }))
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = ((1.0 - COVERAGE) / 2.0 * RESAMPLES as f64) as usize;
    MedianInterval {
        low: medians[tail],
        high: medians[RESAMPLES - 1 - tail],
        coverage: COVERAGE,
    }
}

/// Compares a second median with a first one.
#[must_use]
pub fn compare(first: &MedianEstimate, second: &MedianEstimate) -> ComparisonVerdict {
    let (Some(one), Some(two)) = (first.interval, second.interval) else {
        return ComparisonVerdict::NotTested;
    };
    if one.coverage < COVERAGE || two.coverage < COVERAGE {
        return ComparisonVerdict::NotTested;
    }
    if two.low > one.high {
        ComparisonVerdict::Higher
    } else if two.high < one.low {
        ComparisonVerdict::Lower
    } else {
        ComparisonVerdict::NoDifference
    }
}

/// Benefit over a baseline in percent, as the 2006 report computes it: 100 × (x / baseline − 1).
#[must_use]
pub fn benefit_percent(baseline: f64, accelerated: f64) -> Option<f64> {
    (baseline > 0.0).then(|| (accelerated / baseline - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f64> {
        (1..=count).map(|number| number as f64).collect()
    }

    #[test]
    fn exact_intervals_match_published_tables() {
        // Conover, Practical Nonparametric Statistics: ranks and coverage for the median.
        for (count, ranks, coverage) in [
            (6, (1.0, 6.0), 0.96875),
            (9, (2.0, 8.0), 0.9609375),
            (10, (2.0, 9.0), 0.978515625),
            (15, (4.0, 12.0), 0.96484375),
            (20, (6.0, 15.0), 0.958610534667969),
        ] {
            let found = estimate(&numbers(count), 1).unwrap().interval.unwrap();
            assert_eq!((found.low, found.high), ranks, "{count}");
            assert!(
                (found.coverage - coverage).abs() < 1e-9,
                "{count}: {found:?}"
            );
        }
    }

    #[test]
    fn few_values_have_a_range_of_known_coverage() {
        assert_eq!(estimate(&[], 1), None);
        let one = estimate(&[4.0], 1).unwrap();
        assert_eq!((one.median, one.interval), (4.0, None));
        let five = estimate(&[3.0, 1.0, 5.0, 2.0, 4.0], 1).unwrap();
        let interval = five.interval.unwrap();
        assert_eq!((five.median, interval.low, interval.high), (3.0, 1.0, 5.0));
        assert!((interval.coverage - 0.9375).abs() < 1e-12);
    }

    #[test]
    fn bootstrap_is_seeded_and_covers_the_median() {
        let values = numbers(101);
        let one = estimate(&values, 7).unwrap();
        assert_eq!(one, estimate(&values, 7).unwrap());
        assert_ne!(one, estimate(&values, 8).unwrap());
        let interval = one.interval.unwrap();
        // The exact interval for 101 values is that of ranks 41 and 61.
        assert!((interval.low - 41.0).abs() <= 3.0 && (interval.high - 61.0).abs() <= 3.0);
    }

    #[test]
    fn overlapping_intervals_show_no_difference() {
        let of = |from: f64| {
            let values: Vec<f64> = (0..9).map(|number| from + f64::from(number)).collect();
            estimate(&values, 1).unwrap()
        };
        assert_eq!(compare(&of(0.0), &of(20.0)), ComparisonVerdict::Higher);
        assert_eq!(compare(&of(20.0), &of(0.0)), ComparisonVerdict::Lower);
        assert_eq!(compare(&of(0.0), &of(2.0)), ComparisonVerdict::NoDifference);
        let single = estimate(&[1.0], 1).unwrap();
        assert_eq!(compare(&single, &of(20.0)), ComparisonVerdict::NotTested);
    }

    #[test]
    fn benefit_is_that_of_the_documents() {
        // Table 11, OC-1 at 30 ms: 425.4 to 1373.4 is 222.8 %.
        let benefit = benefit_percent(425.4, 1373.4).unwrap();
        assert!((benefit - 222.8).abs() < 0.1, "{benefit}");
        assert_eq!(benefit_percent(0.0, 1.0), None);
    }
}
