//! Statistics over many seeds: the configured loss lies inside its own confidence interval as often
//! as that interval promises, and runs of losses have the lengths of their model.

use bytes::Bytes;
use emulate::{DirectionConfig, GilbertElliott, LinkDirection, LossModel};
use vocab::{Probability, Time};

/// The packets out of `count` that a link with this loss does not deliver.
fn lost(loss: LossModel, seed: u64, count: u64) -> Vec<bool> {
    let config = DirectionConfig {
        loss,
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, seed);
    let packet = Bytes::from_static(b"packet");
    let mut lost = vec![true; count as usize];
    for number in 0..count {
        direction.handle(Time::from_nanos(number), packet.clone());
        while let Some(delivery) = direction.poll_output(Time::from_nanos(number)) {
            lost[delivery.index as usize] = false;
        }
    }
    lost
}

fn probability(fraction: f64) -> Probability {
    Probability::from_fraction(fraction).unwrap_or(Probability::ZERO)
}

#[test]
fn configured_share_lies_in_its_interval_as_promised() {
    for rate in [0.02, 0.1] {
        let count = (200.0 / rate) as u64;
        let inside = (0..200)
            .filter(|seed| {
                let loss = LossModel::Random(probability(rate));
                let losses = lost(loss, *seed, count)
                    .iter()
                    .filter(|lost| **lost)
                    .count();
                // The normal approximation is good to a percent or two at 200 expected losses.
                let mean = count as f64 * rate;
                let deviation = (mean * (1.0 - rate)).sqrt();
                (losses as f64 - mean).abs() <= 1.96 * deviation
            })
            .count();
        // 90 to 99 of 100; five standard deviations are 7.7 of 100.
        assert!((180..=198).contains(&inside), "{rate}: {inside} of 200");
    }
}

#[test]
fn runs_of_losses_are_geometric() {
    for (loss, stays) in [
        (LossModel::Random(probability(0.1)), 0.1),
        (
            GilbertElliott::from_rate_and_burst(probability(0.05), 5.0)
                .map_or(LossModel::None, LossModel::GilbertElliott),
            0.8,
        ),
    ] {
        let lost = lost(loss, 11, 100_000);
        let runs: Vec<usize> = lost
            .split(|lost| !lost)
            .map(<[bool]>::len)
            .filter(|length| *length > 0)
            .collect();
        // Lengths 1, 2, 3, 4 and more, against P(n) = (1 − stays)·stays^(n−1).
        let mut seen = [0.0; 5];
        for length in &runs {
            seen[(*length).min(5) - 1] += 1.0;
        }
        let total = runs.len() as f64;
        let mut statistic = 0.0;
        for (index, seen) in seen.iter().enumerate() {
            let share = match index {
                4 => f64::powi(stays, 4),
                index => (1.0 - stays) * f64::powi(stays, index as i32),
            };
            let expected = total * share;
            statistic += (seen - expected).powi(2) / expected.max(1e-9);
        }
        // The upper 0.001 quantile of chi-square with four degrees of freedom.
        assert!(statistic < 18.47, "{statistic}: {seen:?} of {total}");
    }
}
