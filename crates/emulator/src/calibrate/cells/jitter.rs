//! Jitter: the distribution of the one-way delay where packets may overtake each other.
//!
//! A kept order would change the distribution (a packet waits for the one before it), so the cell
//! sets `reorder` and evaluates each packet alone.

use std::time::Duration;

use anyhow::{Result, bail};

use super::super::certificate::{CertificateCell, MeasuredQuantity};
use super::super::stand::{CellDirection, StampMode};
use super::super::statistics::{
    CONFIDENCE, SampleMoments, kolmogorov_bar, kolmogorov_distance, kolmogorov_p, normal_share,
};
use super::super::traffic::{
    self, LoadOutcome, ReceiverRecording, SendMode, SendingPace, TrafficLoad,
};
use super::delay::{rows, spans_us};
use super::{MeasurementBench, words};

/// Delay that the jitter varies; ten deviations from zero, so that no value is cut off.
const DELAY_MS: f64 = 50.0;

/// Configured spread: the deviation of the normal distribution, and half of the width of the
/// uniform one.
const SPREAD_MS: f64 = 5.0;

/// Packets in a second; few enough that each is alone in the emulator.
const PACKETS_PER_SECOND: f64 = 1_000.0;

/// Greatest distance of the mean from the interval, as for every delay.
const MEAN_BAR_MS: f64 = 0.05;

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::calibrate) enum JitterShape {
    /// Normal.
    Normal,
    /// Uniform.
    Uniform,
}

impl JitterShape {
    fn name(self) -> &'static str {
        match self {
            JitterShape::Normal => "normal",
            JitterShape::Uniform => "uniform",
        }
    }

    fn deviation_ms(self) -> f64 {
        match self {
            JitterShape::Normal => SPREAD_MS,
            JitterShape::Uniform => SPREAD_MS / 3.0_f64.sqrt(),
        }
    }

    /// The share of packets with at most this delay.
    fn share(self, delay_ms: f64) -> f64 {
        let beyond = (delay_ms - DELAY_MS) / SPREAD_MS;
        match self {
            JitterShape::Normal => normal_share(beyond),
            JitterShape::Uniform => ((beyond + 1.0) / 2.0).clamp(0.0, 1.0),
        }
    }
}

/// A distribution to be measured with so many packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::calibrate) struct JitterCell {
    pub(in crate::calibrate) shape: JitterShape,
    pub(in crate::calibrate) packets: u64,
}

impl JitterCell {
    pub(super) fn title(&self) -> String {
        format!("jitter, {}", self.shape.name())
    }

    pub(super) fn expected_s(&self) -> f64 {
        self.packets as f64 / PACKETS_PER_SECOND + 0.5
    }

    pub(super) fn measure(&self, bench: &mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>> {
        let jitter = format!("{SPREAD_MS}ms,{},reorder", self.shape.name());
        let delay = format!("{DELAY_MS}ms");
        let settings = bench.start(&words(&["--delay", &delay, "--jitter", &jitter]))?;
        let (sender, receiver) = bench
            .stand
            .sockets(CellDirection::Forward, StampMode::Both)?;
        let load = TrafficLoad {
            packets: self.packets,
            ip_length: 100,
            pace: SendingPace::Even {
                per_second: PACKETS_PER_SECOND,
                head_start: 1,
                debt_max: 100,
                together: 1,
            },
            sending: SendMode::Plain,
        };
        let patience = Duration::from_millis(500);
        let outcome = traffic::run(
            &sender,
            &receiver,
            &load,
            ReceiverRecording::Arrivals,
            patience,
        )?;
        let mut cell = self.judge(&outcome)?;
        cell.settings = settings;
        cell.emulator = bench.stand.stop()?;
        let mut cells = [cell];
        bench.keep(
            &mut cells,
            "number,left_ns,received_after_ns",
            rows(&outcome),
        )?;
        Ok(cells.into())
    }

    fn judge(&self, outcome: &LoadOutcome) -> Result<CertificateCell> {
        let mut delays: Vec<f64> = spans_us(outcome).iter().map(|span| span / 1e3).collect();
        if delays.len() < 2 {
            bail!("no packets arrived with both stamps");
        }
        delays.sort_by(f64::total_cmp);
        let moments = SampleMoments::of(&delays);
        let set = self.shape.deviation_ms();
        let interval = moments.deviation_interval(CONFIDENCE);
        let [low, high] = moments.mean_interval(CONFIDENCE);
        let distance = kolmogorov_distance(&delays, |delay| self.shape.share(delay));
        let bar = kolmogorov_bar(delays.len());
        Ok(CertificateCell::new(
            MeasuredQuantity::Jitter,
            (set, "ms"),
            moments.deviation,
            interval,
            delays.len() as u64,
        )
        .under(format!("deviation, {}", self.shape.name()))
        .must_by_chance(
            "the set deviation inside the 99.9 % interval",
            (interval[0]..=interval[1]).contains(&set),
            moments.deviation_p(set),
        )
        .must_by_chance(
            format!("mean within {MEAN_BAR_MS} ms of its 99.9 % interval"),
            low - MEAN_BAR_MS <= DELAY_MS && DELAY_MS <= high + MEAN_BAR_MS,
            moments.mean_p(DELAY_MS, MEAN_BAR_MS),
        )
        .must_by_chance(
            "distance from the distribution below Kolmogorov's bar for 99.9 %",
            distance <= bar,
            kolmogorov_p(distance, delays.len()),
        )
        .figure("mean_ms", moments.mean)
        .figure("mean_low_ms", low)
        .figure("mean_high_ms", high)
        .figure("kolmogorov_distance_share", distance)
        .figure("kolmogorov_bar_share", bar))
    }
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;
    use host::stamped_sockets::ReceivedDatagram;

    fn outcome(delay_ms: impl Fn(&mut SeededRandom) -> f64) -> LoadOutcome {
        let mut random = SeededRandom::from_seed(11);
        let left = |number: u64| 1_000_000_000 + number * 1_000_000;
        LoadOutcome {
            left_ns: (0..5_000).map(left).collect(),
            arrivals: (0..5_000)
                .map(|number| ReceivedDatagram {
                    number,
                    length: 72,
                    stamp_ns: left(number) + (delay_ms(&mut random) * 1e6) as u64,
                })
                .collect(),
            ..LoadOutcome::default()
        }
    }

    #[test]
    fn each_distribution_passes_as_itself_only() {
        let uniform = outcome(|random| 45.0 + 10.0 * random.next_f64());
        // The sum of twelve uniforms is normal enough for 5,000 samples.
        let normal = outcome(|random| {
            let sum: f64 = (0..12).map(|_| random.next_f64()).sum();
            50.0 + 5.0 * (sum - 6.0)
        });
        for (shape, outcome, good) in [
            (JitterShape::Uniform, &uniform, true),
            (JitterShape::Normal, &normal, true),
            (JitterShape::Normal, &uniform, false),
            (JitterShape::Uniform, &normal, false),
        ] {
            let cell = JitterCell {
                shape,
                packets: 5_000,
            };
            let judged = cell.judge(outcome).unwrap();
            assert_eq!(judged.within_bars, good, "{shape:?} {:?}", judged.bars);
        }
    }
}
