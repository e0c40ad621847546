//! Figures of delays, in the form of published tables: 5th percentile, mean, 95th percentile.

use std::time::Duration;

use serde::Serialize;

/// Delays that are kept for quantiles: a minute at 250,000 packets per second, in 64 MB. The mean
/// counts all.
const DELAYS_MAX: usize = 1 << 24;

/// Delays of packets.
#[derive(Clone, Debug, Default)]
pub struct DelaySamples {
    /// Nanoseconds; 4.29 s stands for everything longer.
    samples: Vec<u32>,
    sum_ns: u128,
    count: u64,
}

/// Figures of delays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DelayFigures {
    /// Number of packets.
    pub packets: u64,
    /// Smallest delay.
    pub min_ns: u32,
    /// 5th percentile.
    pub p5_ns: u32,
    /// Median.
    pub p50_ns: u32,
    /// Mean.
    pub mean_ns: f64,
    /// 95th percentile.
    pub p95_ns: u32,
    /// 99th percentile.
    pub p99_ns: u32,
    /// Largest delay.
    pub max_ns: u32,
}

impl DelaySamples {
    /// Adds a delay.
    pub fn add(&mut self, delay: Duration) {
        let nanoseconds = delay.as_nanos();
        self.sum_ns += nanoseconds;
        self.count += 1;
        if self.samples.len() < DELAYS_MAX {
            self.samples
                .push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
        }
    }

    /// Adds the delays of another run.
    pub fn append(&mut self, other: &Self) {
        self.sum_ns += other.sum_ns;
        self.count += other.count;
        let room = DELAYS_MAX.saturating_sub(self.samples.len());
        let taken = &other.samples[..other.samples.len().min(room)];
        self.samples.extend_from_slice(taken);
    }

    /// Computes the figures; `None` without a delay.
    #[must_use]
    pub fn figures(&self) -> Option<DelayFigures> {
        if self.samples.is_empty() {
            return None;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        // The nearest rank: the smallest sample that at least this share does not exceed.
        let quantile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted[rank - 1]
        };
        Some(DelayFigures {
            packets: self.count,
            min_ns: sorted[0],
            p5_ns: quantile(5),
            p50_ns: quantile(50),
            mean_ns: self.sum_ns as f64 / self.count as f64,
            p95_ns: quantile(95),
            p99_ns: quantile(99),
            max_ns: sorted[sorted.len() - 1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let mut samples = DelaySamples::default();
        assert_eq!(samples.figures(), None);
        let mut second = DelaySamples::default();
        for value in (1..=50).rev() {
            samples.add(Duration::from_nanos(value));
            second.add(Duration::from_nanos(value + 50));
        }
        samples.append(&second);
        let figures = samples.figures().unwrap();
        assert_eq!((figures.min_ns, figures.max_ns), (1, 100));
        assert_eq!((figures.p5_ns, figures.p50_ns, figures.p95_ns), (5, 50, 95));
        assert!((figures.mean_ns - 50.5).abs() < 1e-9);
        samples.add(Duration::from_secs(60));
        assert_eq!(samples.figures().unwrap().max_ns, u32::MAX);
    }
}
