//! Quantiles of delays, and the distance of two distributions.

use std::time::Duration;

/// Smallest value that this share of the sorted values does not exceed.
pub(crate) fn quantile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Greatest distance of two empirical distribution functions; both samples are sorted.
///
/// Values that differ by `resolution` or less count as equal: a device without noise has few
/// different delays, and a shift by a rounding would otherwise be a distance.
pub(crate) fn kolmogorov_smirnov(
    one: &[Duration],
    other: &[Duration],
    resolution: Duration,
) -> f64 {
    one_sided_distance(one, other, resolution).max(one_sided_distance(other, one, resolution))
}

/// Greatest excess of the share of `one` up to a value over the share of `other` up to this value
/// and the resolution.
fn one_sided_distance(one: &[Duration], other: &[Duration], resolution: Duration) -> f64 {
    let mut below = 0;
    let mut greatest = 0.0_f64;
    for (index, value) in one.iter().enumerate() {
        while other
            .get(below)
            .is_some_and(|other| *other <= *value + resolution)
        {
            below += 1;
        }
        let distance = (index + 1) as f64 / one.len() as f64 - below as f64 / other.len() as f64;
        greatest = greatest.max(distance);
    }
    greatest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn distance_is_that_of_the_distribution_functions() {
        let one = milliseconds(&[1, 2, 3, 4]);
        let distance = |other: &[Duration]| kolmogorov_smirnov(&one, other, Duration::ZERO);
        assert!(distance(&one).abs() < 1e-12);
        // Below 3 ms lie half of the first sample and nothing of the second.
        let other = milliseconds(&[3, 3, 4, 4]);
        assert!((distance(&other) - 0.5).abs() < 1e-12);
        assert!((distance(&milliseconds(&[9])) - 1.0).abs() < 1e-12);
        assert!((distance(&milliseconds(&[0])) - 1.0).abs() < 1e-12);
        // A shift by the resolution is none.
        let shifted = milliseconds(&[2, 3, 4, 5]);
        let resolution = Duration::from_millis(1);
        assert!((distance(&shifted) - 0.25).abs() < 1e-12);
        assert!(kolmogorov_smirnov(&one, &shifted, resolution).abs() < 1e-12);
    }

    #[test]
    fn quantile_is_a_sample() {
        let values = milliseconds(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(quantile(&values, 0.5), Some(Duration::from_millis(5)));
        assert_eq!(quantile(&values, 0.95), Some(Duration::from_millis(10)));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
