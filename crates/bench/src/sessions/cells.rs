//! Kinds of paths on which a session is measured.
//!
//! Loss acts behind the queue and in both directions. The steady part of a transfer is that of the
//! seconds 5 to 35, on the longest paths 20 to 80.

use std::sync::Arc;
use std::time::Duration;

use emulate::{
    DirectionConfig, GilbertElliott, JitterConfig, JitterDistribution, LineConfig, LinkConfig,
    LinkSchedule, LossModel, PacketOrder, ScheduleStep, SettingsChange, TokenBucket,
};
use serde::Serialize;
use vocab::{Bitrate, ByteCount, Probability, SeededRandom};

/// Special property of a path, beside rate, delay, loss and jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathShape {
    /// No special property: a drop-tail queue of one BDP.
    #[default]
    Plain,
    /// The rate changes each half second, to anything from a quarter of it to all of it.
    Trace,
    /// A policer of half the line's rate, with a bucket of 50 ms of it.
    Policer,
    /// A queue of a tenth of the BDP.
    ShallowQueue,
}

/// One path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PathCell {
    /// The line's rate.
    pub rate_mbit_s: f64,
    /// Round-trip time without queues.
    pub rtt_ms: f64,
    /// The share of packets lost, each way.
    pub loss: f64,
    /// Packets lost in a row, on average.
    pub burst: f64,
    /// Half the width of a uniform jitter that reorders, each way.
    pub jitter_ms: f64,
    /// Special property of the path.
    pub shape: PathShape,
}

/// The path that most others are a variation of.
pub const PLAIN: PathCell = PathCell {
    rate_mbit_s: 20.0,
    rtt_ms: 100.0,
    loss: 0.0,
    burst: 1.0,
    jitter_ms: 0.0,
    shape: PathShape::Plain,
};

const OC_1_MBIT_S: f64 = 51.84;

/// Every path of the benchmark. A path without loss has no variant with bursts.
#[must_use]
pub fn all_cells() -> Vec<PathCell> {
    let losses = [0.0, 0.01, 0.05, 0.10];
    let random = losses.map(|loss| PathCell { loss, ..PLAIN });
    let bursts = [0.01, 0.05, 0.10].map(|loss| PathCell {
        loss,
        burst: 8.0,
        ..PLAIN
    });
    let jitter = losses.map(|loss| PathCell {
        loss,
        jitter_ms: 50.0,
        ..PLAIN
    });
    let far = [0.0, 30.0, 100.0, 250.0].map(|one_way: f64| PathCell {
        rate_mbit_s: OC_1_MBIT_S,
        rtt_ms: 2.0 * one_way,
        ..PLAIN
    });
    let fat = [0.0, 0.01].map(|loss| PathCell {
        rate_mbit_s: 500.0,
        loss,
        ..PLAIN
    });
    let shapes = [
        PathShape::Trace,
        PathShape::Policer,
        PathShape::ShallowQueue,
    ]
    .map(|shape| PathCell { shape, ..PLAIN });
    [&random[..], &bursts, &jitter, &far, &fat, &shapes].concat()
}

/// A queue holds at least this: of a path without delay a BDP is nothing.
const QUEUE_MIN: u64 = 64 << 10;

/// Interval between the changes of a trace's rate.
const TRACE_STEP: Duration = Duration::from_millis(500);

/// Steps until it begins anew: 30 s, so that a steady part of 30 s holds each step once wherever
/// in the trace it begins, and all seeds have the same rate on average.
const TRACE_STEPS: u32 = 60;

/// The seed of the trace's rates. A path's own seed says where in the trace it begins.
const TRACE_SEED: u64 = 99;

impl PathCell {
    /// A name for a person and for `--cells`.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = format!("{}Mbit-{}ms", self.rate_mbit_s, self.rtt_ms);
        if self.loss > 0.0 {
            name += &format!("-{}%", self.loss * 100.0);
        }
        if self.burst > 1.0 {
            name += &format!("-bursts{}", self.burst);
        }
        if self.jitter_ms > 0.0 {
            name += &format!("-jitter{}ms", self.jitter_ms);
        }
        match self.shape {
            PathShape::Plain => {}
            PathShape::Trace => name += "-trace",
            PathShape::Policer => name += "-policer",
            PathShape::ShallowQueue => name += "-shallow",
        }
        name
    }

    /// The line's rate.
    #[must_use]
    pub fn rate(&self) -> Bitrate {
        Bitrate::from_bits_per_second((self.rate_mbit_s * 1e6) as u64)
    }

    /// Round-trip time without queues.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 1e3)
    }

    /// Rate that the policer lets through, where there is one.
    #[must_use]
    pub fn policed_mbit_s(&self) -> Option<f64> {
        (self.shape == PathShape::Policer).then_some(self.rate_mbit_s / 2.0)
    }

    /// Time span for goodput, from the transfer's start.
    #[must_use]
    pub fn steady(&self) -> (Duration, Duration) {
        let (from, to) = if self.rtt_ms >= 500.0 {
            (20, 80)
        } else {
            (5, 35)
        };
        (Duration::from_secs(from), Duration::from_secs(to))
    }

    /// Data that the line carries in the steady part; a trace leaves less than its rate.
    #[must_use]
    pub fn rate_integral_mbit(&self) -> f64 {
        let (from, to) = self.steady();
        let rate = match self.shape {
            PathShape::Trace => self.trace_rates().iter().sum::<f64>() / f64::from(TRACE_STEPS),
            PathShape::Plain | PathShape::Policer | PathShape::ShallowQueue => self.rate_mbit_s,
        };
        rate * (to - from).as_secs_f64()
    }

    /// The model of the path with this seed.
    #[must_use]
    pub fn link(&self, seed: u64) -> LinkConfig {
        self.link_with_queue(self.queue_bdp(), seed)
    }

    /// Its queue.
    pub(super) fn queue_bdp(&self) -> f64 {
        match self.shape {
            PathShape::ShallowQueue => 0.1,
            PathShape::Plain | PathShape::Trace | PathShape::Policer => 1.0,
        }
    }

    /// Model of the path with a queue of so many BDP.
    #[must_use]
    pub fn link_with_queue(&self, queue_bdp: f64, seed: u64) -> LinkConfig {
        let rate = self.rate();
        let queue = (rate.bytes_in(self.rtt()).bytes() as f64 * queue_bdp) as u64;
        let queue = match self.shape {
            PathShape::ShallowQueue => queue,
            PathShape::Plain | PathShape::Trace | PathShape::Policer => queue.max(QUEUE_MIN),
        };
        let probability = Probability::from_fraction(self.loss).unwrap_or_default();
        let loss = if self.burst > 1.0 && self.loss > 0.0 {
            GilbertElliott::from_rate_and_burst(probability, self.burst)
                .map_or(LossModel::None, LossModel::GilbertElliott)
        } else {
            LossModel::from(probability)
        };
        let spread = Duration::from_secs_f64(self.jitter_ms / 1e3);
        let direction = DirectionConfig {
            line: LineConfig::Rate(rate),
            queue: ByteCount::new(queue).into(),
            loss,
            delay: self.rtt() / 2,
            jitter: (self.jitter_ms > 0.0).then_some(JitterConfig {
                distribution: JitterDistribution::Uniform { spread },
                order: PacketOrder::Free,
            }),
            policer: self.policed_mbit_s().map(|rate| {
                let rate = Bitrate::from_bits_per_second((rate * 1e6) as u64);
                TokenBucket {
                    rate,
                    burst: rate.bytes_in(Duration::from_millis(50)),
                    peak: None,
                }
            }),
            schedule: (self.shape == PathShape::Trace).then(|| Arc::new(self.trace(seed))),
            ..DirectionConfig::default()
        };
        LinkConfig::symmetric(direction, seed)
    }

    /// The trace's rates, in Mbit/s.
    fn trace_rates(&self) -> Vec<f64> {
        let mut random = SeededRandom::from_seed(TRACE_SEED);
        (0..TRACE_STEPS)
            .map(|_| self.rate_mbit_s * (0.25 + 0.75 * random.next_f64()))
            .collect()
    }

    /// The changing rate, from a place in it that depends on the seed.
    fn trace(&self, seed: u64) -> LinkSchedule {
        let mut rates = self.trace_rates();
        rates.rotate_left((seed % u64::from(TRACE_STEPS)) as usize);
        let steps = (0..).zip(rates).map(|(index, rate)| ScheduleStep {
            at: index * TRACE_STEP,
            change: SettingsChange {
                rate: Some(Bitrate::from_bits_per_second((rate * 1e6) as u64)),
                ..SettingsChange::default()
            },
        });
        LinkSchedule::new(steps.collect(), Some(TRACE_STEPS * TRACE_STEP))
            .expect("steps rise and end before they repeat")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_path_has_a_name_of_its_own() {
        let names: BTreeSet<String> = all_cells().iter().map(PathCell::name).collect();
        assert_eq!(names.len(), all_cells().len());
    }

    #[test]
    fn trace_carries_the_same_data_for_every_seed() {
        let cell = PathCell {
            shape: PathShape::Trace,
            ..PLAIN
        };
        let (from, to) = cell.steady();
        for seed in [1, 17, 60] {
            let link = cell.link(seed);
            let schedule = link.forward.schedule.unwrap();
            let steps = schedule.steps();
            let bits: u64 = (from.as_millis() / 500..to.as_millis() / 500)
                .filter_map(|half_second| steps[half_second as usize % steps.len()].change.rate)
                .map(|rate| rate.bits_per_second() / 2)
                .sum();
            let error = bits as f64 / 1e6 - cell.rate_integral_mbit();
            assert!(error.abs() < 1e-3, "{error}");
        }
    }
}
