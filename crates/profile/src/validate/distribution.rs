//! Quantiles of delays, and the distance of two distributions.

use std::time::Duration;

/// Smallest value that this share of the sorted values does not exceed.
pub(super) fn quantile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Greatest distance of two empirical distribution functions; both samples are sorted.
pub(super) fn kolmogorov_smirnov(one: &[Duration], other: &[Duration]) -> f64 {
    let (mut first, mut second) = (0, 0);
    let mut greatest = 0.0_f64;
    while first < one.len() && second < other.len() {
        // Equal values of both samples are passed together.
        let value = one[first].min(other[second]);
        while one.get(first) == Some(&value) {
            first += 1;
        }
        while other.get(second) == Some(&value) {
            second += 1;
        }
        let distance = first as f64 / one.len() as f64 - second as f64 / other.len() as f64;
        greatest = greatest.max(distance.abs());
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
        assert!(kolmogorov_smirnov(&one, &one).abs() < 1e-12);
        // Below 3 ms lie half of the first sample and nothing of the second.
        let other = milliseconds(&[3, 3, 4, 4]);
        assert!((kolmogorov_smirnov(&one, &other) - 0.5).abs() < 1e-12);
        assert!((kolmogorov_smirnov(&one, &milliseconds(&[9])) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn quantile_is_a_sample() {
        let values = milliseconds(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(quantile(&values, 0.5), Some(Duration::from_millis(5)));
        assert_eq!(quantile(&values, 0.95), Some(Duration::from_millis(10)));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
