//! Statistics for judging a certificate, each with the source of its formula.
//!
//! Intervals are exact where an exact one exists (Clopper and Pearson 1934 for a share, its
//! inverse-sampling form for the length of bursts, order statistics for a median); tests are
//! Pearson's chi-square and Kolmogorov and Smirnov's. The special functions behind them are
//! computed to about ten digits, far more than a measurement needs.
//!
//! It does not know links; the cells define the counts.

/// An interval, lower end first.
pub(super) type ConfidenceInterval = [f64; 2];

/// Confidence of a certificate's intervals.
pub(super) const CONFIDENCE: f64 = 0.999;

/// Sums and continued fractions are broken off here; the largest sample (10^8) needs some 10^4.
const TERMS_MAX: u32 = 200_000;

/// The logarithm of the gamma function for `x` above zero (Lanczos 1964, g = 7, nine terms).
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum = TERMS
        .iter()
        .enumerate()
        .fold(0.999_999_999_999_809_9, |sum, (at, term)| {
            sum + term / (x + at as f64 + 1.0)
        });
    let t = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularised incomplete beta function (NIST DLMF §8.17), by its continued fraction 8.17.22
/// with Lentz's method.
fn beta_share(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on this side of the mean only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_share(b, a, 1.0 - x);
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..TERMS_MAX {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * fraction
}

/// Argument in 0 to 1 at which an increasing function reaches `target`.
fn inverse(target: f64, function: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    // 200 halvings exhaust the digits of any share that is not zero.
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if function(middle) < target {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// Exact interval for a share after `hits` in `trials` (Clopper and Pearson 1934).
pub(super) fn share_interval(hits: u64, trials: u64, confidence: f64) -> ConfidenceInterval {
    let tail = (1.0 - confidence) / 2.0;
    let (k, n) = (hits as f64, trials as f64);
    let low = match hits {
        0 => 0.0,
        _ => inverse(tail, |p| beta_share(k, n - k + 1.0, p)),
    };
    let high = match hits {
        _ if hits == trials => 1.0,
        _ => inverse(1.0 - tail, |p| beta_share(k + 1.0, n - k, p)),
    };
    [low, high]
}

/// Probability that a true share of `set` gives hits at least this far from it, from the tails of
/// the interval above: it exceeds 1 − confidence exactly where that interval holds `set`.
pub(super) fn share_p(hits: u64, trials: u64, set: f64) -> f64 {
    let at_most = 1.0 - at_least_p(hits + 1, trials, set);
    two_sided(at_least_p(hits, trials, set), at_most)
}

/// Probability of at least so many hits, each with this probability.
pub(super) fn at_least_p(hits: u64, trials: u64, share: f64) -> f64 {
    match hits {
        0 => 1.0,
        _ if hits > trials => 0.0,
        _ => beta_share(hits as f64, (trials - hits) as f64 + 1.0, share),
    }
}

/// Probability of a value at least this far out on either side, from those on each.
fn two_sided(one: f64, other: f64) -> f64 {
    (2.0 * one.min(other)).clamp(0.0, 1.0)
}

/// Exact interval for the mean of a geometric distribution from one up, of which `runs` values add
/// up to `total`: sampling continued until the `runs`-th end of a run, so the share of ends has the
/// inverse-sampling form of the interval above.
pub(super) fn mean_run_interval(runs: u64, total: u64, confidence: f64) -> ConfidenceInterval {
    let tail = (1.0 - confidence) / 2.0;
    let (k, n) = (runs as f64, total as f64);
    let low = inverse(tail, |p| beta_share(k, n - k + 1.0, p));
    let high = match total {
        _ if total <= runs => 1.0,
        _ => inverse(1.0 - tail, |p| beta_share(k, n - k, p)),
    };
    [
        1.0 / high.max(f64::MIN_POSITIVE),
        1.0 / low.max(f64::MIN_POSITIVE),
    ]
}

/// Probability that runs with a true mean of `set` have a mean at least this far from it, from the
/// tails of the interval above.
pub(super) fn mean_run_p(runs: u64, total: u64, set: f64) -> f64 {
    let (k, n) = (runs as f64, total as f64);
    let end = 1.0 / set;
    let shorter = beta_share(k, n - k + 1.0, end);
    let longer = match total {
        _ if total <= runs => 1.0,
        _ => 1.0 - beta_share(k, n - k, end),
    };
    two_sided(shorter, longer)
}

/// The interval for the share of packets lost by a two-state chain whose next state keeps
/// `memory` (the second eigenvalue, 0 for independent losses) of the present one: normal, with
/// the variance of a mean over the chain, p(1−p)/n·(1+memory)/(1−memory).
pub(super) fn chain_share_interval(
    share: f64,
    trials: u64,
    memory: f64,
    confidence: f64,
) -> ConfidenceInterval {
    let half =
        normal_quantile(0.5 + confidence / 2.0) * chain_share_deviation(share, trials, memory);
    [(share - half).max(0.0), (share + half).min(1.0)]
}

fn chain_share_deviation(share: f64, trials: u64, memory: f64) -> f64 {
    (share * (1.0 - share) / trials as f64 * (1.0 + memory) / (1.0 - memory)).sqrt()
}

/// Probability that a true share of `set` gives one at least this far from it, by the interval
/// above.
pub(super) fn chain_share_p(share: f64, trials: u64, memory: f64, set: f64) -> f64 {
    normal_p((share - set) / chain_share_deviation(share, trials, memory))
}

/// The lower regularised incomplete gamma function (NIST DLMF §8.2): series 8.7.1 below the
/// mean, continued fraction 8.9.2 above.
fn gamma_share(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let mut term = 1.0 / a;
        let mut sum = term;
        for n in 1..TERMS_MAX {
            term *= x / (a + f64::from(n));
            sum += term;
            if term < sum * 1e-15 {
                break;
            }
        }
        return front * sum;
    }
    let mut b = x + 1.0 - a;
    let mut c = 1e300;
    let mut d = 1.0 / b;
    let mut fraction = d;
    for n in 1..TERMS_MAX {
        let n = f64::from(n);
        let numerator = -n * (n - a);
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    1.0 - front * fraction
}

/// Probability of a chi-square value at least this large.
pub(super) fn chi_square_p(value: f64, degrees: u32) -> f64 {
    1.0 - gamma_share(f64::from(degrees) / 2.0, value / 2.0)
}

/// Probability of counts at least this far from a geometric distribution from one up, whose runs
/// end with probability `end` after each step; `None` when there are too few runs to form two
/// classes.
///
/// Classes are joined until each expects at least [`CLASS_LEAST`]; the parameter is given and not
/// fitted, so one degree of freedom is lost.
pub(super) fn geometric_p(runs: &[u64], end: f64) -> Option<f64> {
    let total = runs.len() as f64;
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    let beyond = |length: u64| (1.0 - end).powf(length as f64);
    // The classes' upper edges: each the shortest length that makes the class large enough, and
    // not finer than some twenty classes.
    let share = (CLASS_LEAST / total).max(0.05);
    let mut edges = Vec::new();
    let mut from = 0_u64;
    loop {
        let left = beyond(from);
        if left < 2.0 * share {
            break;
        }
        // Smallest length with beyond(from) - beyond(length) >= share.
        let length = ((left - share).ln() / (1.0 - end).ln()).ceil() as u64;
        let length = length.max(from + 1);
        if beyond(length) < share {
            break;
        }
        edges.push(length);
        from = length;
    }
    if edges.is_empty() {
        return None;
    }
    let mut statistic = 0.0;
    let mut below = 0_u64;
    let mut lower = 0_usize;
    for edge in edges.iter().copied().map(Some).chain([None]) {
        let upper = edge.map_or(sorted.len(), |edge| {
            sorted.partition_point(|run| *run <= edge)
        });
        let expected = total * (beyond(below) - edge.map_or(0.0, beyond));
        let seen = (upper - lower) as f64;
        statistic += (seen - expected).powi(2) / expected;
        below = edge.unwrap_or(below);
        lower = upper;
    }
    Some(chi_square_p(statistic, edges.len() as u32))
}

/// Pearson's test is sound from some five expected in each class (Cochran 1954); ten leaves room.
const CLASS_LEAST: f64 = 10.0;

/// The standard normal distribution function.
pub(super) fn normal_share(z: f64) -> f64 {
    let half = 0.5 * gamma_share(0.5, z * z / 2.0);
    if z < 0.0 { 0.5 - half } else { 0.5 + half }
}

/// Probability of a standard normal value at least this far from zero.
fn normal_p(z: f64) -> f64 {
    // Without any spread, all that is not exact is impossible.
    if !z.is_finite() {
        return 0.0;
    }
    1.0 - gamma_share(0.5, z * z / 2.0)
}

/// Value at which the standard normal distribution function reaches `share`.
pub(super) fn normal_quantile(share: f64) -> f64 {
    // ±40 is beyond any share that a double can hold.
    80.0 * inverse(share, |x| normal_share(80.0 * x - 40.0)) - 40.0
}

/// The largest distance between the samples' distribution and `expected` (Kolmogorov 1933).
pub(super) fn kolmogorov_distance(sorted: &[f64], expected: impl Fn(f64) -> f64) -> f64 {
    let count = sorted.len() as f64;
    sorted
        .iter()
        .enumerate()
        .map(|(rank, value)| {
            let share = expected(*value);
            let below = share - rank as f64 / count;
            let above = (rank + 1) as f64 / count - share;
            below.max(above)
        })
        .fold(0.0, f64::max)
}

/// Distance that is exceeded by chance once in a thousand (Smirnov 1948, asymptotic).
pub(super) fn kolmogorov_bar(count: usize) -> f64 {
    ((2.0 / (1.0 - CONFIDENCE)).ln() / 2.0).sqrt() / (count as f64).sqrt()
}

/// Probability of a distance at least this large (the series of which the bar above takes the first
/// term).
pub(super) fn kolmogorov_p(distance: f64, count: usize) -> f64 {
    let exponent = -2.0 * count as f64 * distance * distance;
    // Near zero the series does not converge, and the chance is one to any number of digits.
    if exponent > -0.1 {
        return 1.0;
    }
    let sum: f64 = (1..=20)
        .map(|k| {
            let k = f64::from(k);
            let sign = if k % 2.0 == 0.0 { -1.0 } else { 1.0 };
            sign * (exponent * k * k).exp()
        })
        .sum();
    (2.0 * sum).clamp(0.0, 1.0)
}

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleMoments {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    count: f64,
    /// The fourth central moment over the squared variance; 3 for a normal distribution.
    kurtosis: f64,
}

impl SampleMoments {
    /// Moments of at least two samples.
    pub(super) fn of(samples: &[f64]) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let central = |power: i32| {
            samples
                .iter()
                .map(|value| (value - mean).powi(power))
                .sum::<f64>()
        };
        let variance = central(2) / (count - 1.0).max(1.0);
        let kurtosis = if variance > 0.0 {
            central(4) / count / variance.powi(2)
        } else {
            3.0
        };
        Self {
            mean,
            deviation: variance.sqrt(),
            count,
            kurtosis,
        }
    }

    /// Interval for the mean, assuming a normal distribution: the cells have thousands of samples.
    pub(super) fn mean_interval(&self, confidence: f64) -> ConfidenceInterval {
        let half = normal_quantile(0.5 + confidence / 2.0) * self.deviation / self.count.sqrt();
        [self.mean - half, self.mean + half]
    }

    /// Probability that a mean within `tolerance` of `set` gives one at least this far from it.
    pub(super) fn mean_p(&self, set: f64, tolerance: f64) -> f64 {
        let beyond = ((self.mean - set).abs() - tolerance).max(0.0);
        if beyond == 0.0 {
            return 1.0;
        }
        normal_p(beyond * self.count.sqrt() / self.deviation)
    }

    /// Probability that a deviation of `set` gives one at least this far from it, by the interval
    /// below.
    pub(super) fn deviation_p(&self, set: f64) -> f64 {
        let relative = (set / self.deviation).powi(2) - 1.0;
        if relative == 0.0 {
            return 1.0;
        }
        normal_p(relative * (self.count / (self.kurtosis - 1.0).max(0.0)).sqrt())
    }

    /// Interval for the deviation, by the large-sample variance of a variance, (kurtosis − 1)/n.
    pub(super) fn deviation_interval(&self, confidence: f64) -> ConfidenceInterval {
        let z = normal_quantile(0.5 + confidence / 2.0);
        let relative = z * ((self.kurtosis - 1.0).max(0.0) / self.count).sqrt();
        [
            self.deviation * (1.0 - relative).max(0.0).sqrt(),
            self.deviation * (1.0 + relative).sqrt(),
        ]
    }
}

/// The interval of a mean from ten batches: Student's t with nine degrees of freedom, two-sided
/// 99.9 %.
pub(super) fn batch_mean_interval(batches: &[f64; 10]) -> ConfidenceInterval {
    const T_NINE: f64 = 4.780_913;
    let moments = SampleMoments::of(batches);
    let half = T_NINE * moments.deviation / 10.0_f64.sqrt();
    [moments.mean - half, moments.mean + half]
}

/// Value that `share` of the sorted samples do not exceed; zero without samples.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// The interval for the median between two order statistics, by the normal approximation of the
/// binomial.
pub(super) fn median_interval(sorted: &[f64], confidence: f64) -> ConfidenceInterval {
    let count = sorted.len() as f64;
    let half = normal_quantile(0.5 + confidence / 2.0) * count.sqrt() / 2.0;
    let at = |rank: f64| quantile(sorted, (rank / count).clamp(0.0, 1.0));
    [at(count / 2.0 - half), at(count / 2.0 + half + 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::SeededRandom;

    fn near(found: f64, expected: f64, within: f64) {
        assert!(
            (found - expected).abs() <= within,
            "{found} is not {expected}"
        );
    }

    #[test]
    fn clopper_and_pearson_agrees_with_tables() {
        // R: binom.test(10, 100)$conf.int
        let [low, high] = share_interval(10, 100, 0.95);
        near(low, 0.049_004_69, 1e-7);
        near(high, 0.176_222_60, 1e-7);
        // The closed forms at the edges: (α/2)^(1/n).
        near(
            share_interval(0, 20, 0.95)[1],
            1.0 - 0.025_f64.powf(0.05),
            1e-9,
        );
        near(share_interval(20, 20, 0.95)[0], 0.025_f64.powf(0.05), 1e-9);
        // Large samples approach the normal interval.
        let [low, high] = share_interval(2_000, 4_000_000, 0.95);
        near((low + high) / 2.0, 0.000_5, 1e-6);
        near((high - low) / 2.0, 1.96 * (0.000_5_f64 / 4e6).sqrt(), 2e-7);
    }

    #[test]
    fn exact_tests_agree_with_tables() {
        // The closed forms 0.95^n and 0.95^20 + 20·0.05·0.95^19.
        near(at_least_p(20, 20, 0.95), 0.95_f64.powi(20), 1e-12);
        near(at_least_p(0, 20, 0.95), 1.0, 0.0);
        near(at_least_p(21, 20, 0.95), 0.0, 0.0);
        // 0.95^20 + 20 · 0.05 · 0.95^19.
        near(at_least_p(19, 20, 0.95), 0.735_839_5, 1e-6);
        near(share_p(200, 200, 0.95), 2.0 * 0.95_f64.powi(200), 1e-12);
        near(share_p(190, 200, 0.95), 1.0, 0.1);
        // Smirnov's table has 1.36 for 5 % and 1.63 for 1 %.
        near(kolmogorov_p(0.013_6, 10_000), 0.05, 6e-4);
        near(kolmogorov_p(0.016_3, 10_000), 0.01, 2e-4);
        near(kolmogorov_p(0.001, 10_000), 1.0, 1e-12);
        near(normal_p(-1.959_963_985), 0.05, 1e-9);
        near(normal_p(f64::INFINITY), 0.0, 0.0);
    }

    #[test]
    fn p_value_matches_the_end_of_the_interval() {
        let agree = |interval: ConfidenceInterval, p: f64, set: f64| {
            let inside = (interval[0]..=interval[1]).contains(&set);
            assert_eq!(inside, p > 1.0 - CONFIDENCE, "{set} in {interval:?}, p {p}");
        };
        let wave: Vec<f64> = (0..10_000).map(|at| f64::from(at % 100)).collect();
        let moments = SampleMoments::of(&wave);
        for step in 0..400 {
            let set = 0.03 + f64::from(step) * 0.000_1;
            agree(
                share_interval(500, 10_000, CONFIDENCE),
                share_p(500, 10_000, set),
                set,
            );
            let chain = chain_share_interval(0.05, 40_000, 0.7, CONFIDENCE);
            agree(chain, chain_share_p(0.05, 40_000, 0.7, set), set);
            let mean = 4.0 + f64::from(step) * 0.005;
            agree(
                mean_run_interval(2_000, 10_000, CONFIDENCE),
                mean_run_p(2_000, 10_000, mean),
                mean,
            );
            let deviation = 28.0 + f64::from(step) * 0.005;
            agree(
                moments.deviation_interval(CONFIDENCE),
                moments.deviation_p(deviation),
                deviation,
            );
            let [low, high] = moments.mean_interval(CONFIDENCE);
            let mean = 45.0 + f64::from(step) * 0.025;
            agree([low - 1.0, high + 1.0], moments.mean_p(mean, 1.0), mean);
        }
    }

    #[test]
    fn chi_square_and_normal_agree_with_tables() {
        near(chi_square_p(3.841_458_8, 1), 0.05, 1e-8);
        near(chi_square_p(29.588_298, 10), 0.001, 1e-8);
        near(chi_square_p(10.0, 10), 0.440_493_285, 1e-8);
        near(normal_share(1.959_963_985), 0.975, 1e-9);
        near(normal_quantile(0.999_5), 3.290_526_731, 1e-7);
        near(kolmogorov_bar(10_000), 0.019_495, 1e-5);
    }

    #[test]
    fn mean_run_interval_has_the_stated_coverage() {
        let mut random = SeededRandom::from_seed(3);
        let mut inside = 0;
        for _ in 0..400 {
            let total: u64 = (0..50).map(|_| geometric(&mut random, 0.2)).sum();
            let [low, high] = mean_run_interval(50, total, 0.95);
            inside += u32::from((low..=high).contains(&5.0));
        }
        assert!((368..=396).contains(&inside), "{inside} of 400");
    }

    #[test]
    fn geometric_runs_pass_and_others_do_not() {
        let mut random = SeededRandom::from_seed(5);
        let runs: Vec<u64> = (0..2_000).map(|_| geometric(&mut random, 0.2)).collect();
        assert!(geometric_p(&runs, 0.2).unwrap() > 0.001);
        assert!(geometric_p(&runs, 0.25).unwrap() < 0.001);
        // The same mean, and every run the same.
        assert!(geometric_p(&[5; 2_000], 0.2).unwrap() < 0.001);
        // Nothing but runs of one tells nothing when hardly any other is expected.
        assert_eq!(geometric_p(&[1; 2_000], 0.999_9), None);
        let gaps: Vec<u64> = (0..2_000).map(|_| geometric(&mut random, 0.0005)).collect();
        assert!(geometric_p(&gaps, 0.000_5).unwrap() > 0.001);
    }

    #[test]
    fn kolmogorov_tells_a_uniform_from_a_normal() {
        let mut random = SeededRandom::from_seed(9);
        let mut samples: Vec<f64> = (0..5_000).map(|_| random.next_f64()).collect();
        samples.sort_by(f64::total_cmp);
        assert!(kolmogorov_distance(&samples, |x| x) < kolmogorov_bar(5_000));
        let normal = |x: f64| normal_share((x - 0.5) / 0.29);
        assert!(kolmogorov_distance(&samples, normal) > kolmogorov_bar(5_000));
    }

    #[test]
    fn quantiles_are_samples_and_bracket_the_median() {
        let sorted: Vec<f64> = (1..=1_000).map(f64::from).collect();
        near(quantile(&sorted, 0.5), 500.0, 0.0);
        near(quantile(&sorted, 0.99), 990.0, 0.0);
        near(quantile(&sorted, 1.0), 1_000.0, 0.0);
        near(quantile(&[], 0.5), 0.0, 0.0);
        let [low, high] = median_interval(&sorted, 0.999);
        near(low, 448.0, 1.0);
        near(high, 554.0, 1.0);
    }

    #[test]
    fn moments_and_their_intervals() {
        let samples: Vec<f64> = (0..10_000).map(|at| f64::from(at % 100)).collect();
        let moments = SampleMoments::of(&samples);
        near(moments.mean, 49.5, 1e-9);
        near(moments.deviation, 28.867_513, 1e-2);
        let [low, high] = moments.mean_interval(0.999);
        assert!(low < 49.5 && 49.5 < high && high - low < 2.0);
        let [low, high] = moments.deviation_interval(0.999);
        assert!(low < 28.87 && 28.87 < high && high - low < 2.0);
        let [low, high] = batch_mean_interval(&[1.0; 10]);
        near(low, 1.0, 1e-12);
        near(high, 1.0, 1e-12);
    }

    fn geometric(random: &mut SeededRandom, end: f64) -> u64 {
        1 + ((1.0 - random.next_f64()).ln() / (1.0 - end).ln()) as u64
    }
}
