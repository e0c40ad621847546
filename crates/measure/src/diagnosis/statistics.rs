//! Statistics that detectors share.

/// Value below which `fraction` of `values` lie; `None` without values. It reorders `values`.
pub(super) fn quantile(values: &mut [f64], fraction: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let index = ((values.len() - 1) as f64 * fraction).round() as usize;
    let (_, value, _) = values.select_nth_unstable_by(index, f64::total_cmp);
    Some(*value)
}

/// A straight line, `y = at_zero + slope × x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinearFit {
    pub(super) slope: f64,
    pub(super) at_zero: f64,
}

impl LinearFit {
    /// Least-squares line through `points`; `None` when they have no extent in x.
    pub(super) fn of(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<Self> {
        let (mut count, mut mean_x, mut mean_y) = (0.0, 0.0, 0.0);
        for (x, y) in points.clone() {
            count += 1.0;
            mean_x += x;
            mean_y += y;
        }
        mean_x /= count;
        mean_y /= count;
        let (mut square, mut product) = (0.0, 0.0);
        for (x, y) in points {
            square += (x - mean_x) * (x - mean_x);
            product += (x - mean_x) * (y - mean_y);
        }
        let slope = product / square;
        slope.is_finite().then_some(Self {
            slope,
            at_zero: mean_y - slope * mean_x,
        })
    }

    pub(super) fn at(&self, x: f64) -> f64 {
        self.at_zero + self.slope * x
    }
}

/// Turns how far evidence lies beyond a threshold (1 is on it) into a confidence of 0.5 to 0.99.
pub(super) fn confidence(margin: f64) -> f64 {
    let margin = margin.max(1.0);
    1.0 - 0.5 / (margin * margin)
}

/// Counts, in tests, how often searches look at a packet.
#[cfg(test)]
pub(super) mod looks {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(in super::super) fn add(packets: usize) {
        COUNT.set(COUNT.get() + packets as u64);
    }

    pub(in super::super) fn take() -> u64 {
        COUNT.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_lines_are_those_of_the_values() {
        let mut values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&mut values, 0.5), Some(3.0));
        assert_eq!(quantile(&mut values, 1.0), Some(5.0));
        assert_eq!(quantile(&mut [], 0.5), None);
        let fit = LinearFit::of((0..10).map(|x| (f64::from(x), 3.0 + 2.0 * f64::from(x)))).unwrap();
        assert!((fit.slope - 2.0).abs() < 1e-9 && (fit.at(10.0) - 23.0).abs() < 1e-9);
        assert_eq!(LinearFit::of([(1.0, 1.0), (1.0, 2.0)].into_iter()), None);
    }
}
