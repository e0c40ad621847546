//! Validation: how well a model predicts runs that the fit has not seen.
//!
//! The packets of a held-out run enter the model at the times at which they entered the device. Of
//! both, delays of delivered packets, loss and goodput are compared. The senders do not react to
//! the model: a run of closed-loop TCP is replayed as the device let it happen.

pub(crate) mod distribution;

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::{DeviceModel, Time};

use crate::fit::FitOptions;
use crate::plan::{ExperimentPurpose, MeasurementSubject};
use crate::record::{MeasuredRun, PacketFate};
use crate::simulator::{DeviceSimulator, SimulatedPacket};
use distribution::{kolmogorov_smirnov, quantile};

/// Delays, loss and goodput of a run, measured or predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferFigures {
    /// Median delay.
    pub delay_p50: Duration,
    /// Delay that 95 % of the delivered packets do not exceed.
    pub delay_p95: Duration,
    /// Delay that 99 % of the delivered packets do not exceed.
    pub delay_p99: Duration,
    /// Share of the packets that were lost.
    pub loss_ratio: f64,
    /// Delivered bits of IP packets per second, from the first transmission to the last arrival.
    pub goodput_bps: f64,
}

/// Prediction of one run by one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunScore {
    /// The run as it was measured.
    pub measured: TransferFigures,
    /// The run as the model predicts it.
    pub predicted: TransferFigures,
    /// Greatest distance between the two distributions of delays (Kolmogorov and Smirnov), 0 to 1.
    pub ks_distance: f64,
    /// Errors of the goodput of single flows.
    pub flows: FlowGoodputErrors,
}

/// Errors of the goodput of single flows, as shares of the measured goodput.
///
/// The packets of a flow that leave one port count together: the data of a TCP connection and its
/// acknowledgements are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowGoodputErrors {
    /// Flows of which packets were delivered.
    pub flows: usize,
    /// Median of the errors.
    pub p50: f64,
    /// Error that 95 % of the flows do not exceed.
    pub p95: f64,
}

/// A packet of a held-out run in truth and by a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPrediction {
    /// Number of its flow.
    pub flow: u32,
    /// The packet as it entered the model.
    pub packet: SimulatedPacket,
    /// Time at which it left the device; `None` if it was lost.
    pub measured: Option<Time>,
    /// Time at which it leaves the model; `None` if the model drops it.
    pub predicted: Option<Time>,
}

impl PacketPrediction {
    /// Delay through the device.
    #[must_use]
    pub fn measured_delay(&self) -> Option<Duration> {
        self.measured.map(|left| left.since(self.packet.sent))
    }

    /// Delay through the model.
    #[must_use]
    pub fn predicted_delay(&self) -> Option<Duration> {
        self.predicted.map(|left| left.since(self.packet.sent))
    }
}

impl RunScore {
    /// Error of the median delay as a share of the measured one.
    #[must_use]
    pub fn p50_error(&self) -> f64 {
        relative(self.predicted.delay_p50, self.measured.delay_p50)
    }

    /// Error of the delay of 95 % as a share of the measured one.
    #[must_use]
    pub fn p95_error(&self) -> f64 {
        relative(self.predicted.delay_p95, self.measured.delay_p95)
    }

    /// Error of the delay of 99 % as a share of the measured one.
    #[must_use]
    pub fn p99_error(&self) -> f64 {
        relative(self.predicted.delay_p99, self.measured.delay_p99)
    }

    /// Difference of the loss ratios.
    #[must_use]
    pub fn loss_error(&self) -> f64 {
        (self.predicted.loss_ratio - self.measured.loss_ratio).abs()
    }

    /// Error of the goodput as a share of the measured one.
    #[must_use]
    pub fn goodput_error(&self) -> f64 {
        (self.predicted.goodput_bps / self.measured.goodput_bps - 1.0).abs()
    }
}

/// Runs that validate: those that the plan holds out, through the device.
pub fn held_out_runs(runs: &[MeasuredRun]) -> impl Iterator<Item = &MeasuredRun> {
    runs.iter().filter(|run| {
        run.plan.purpose == ExperimentPurpose::HeldOut
            && run.plan.subject == MeasurementSubject::Device
    })
}

/// Puts the packets of `run` through `model` and scores the prediction. Of `options`, the cable's
/// delay is taken off the measured delays, and delays that differ by no more than the resolution
/// count as equal. `None` if no packet was delivered, in truth or by the model.
pub fn score_run(
    simulator: &mut dyn DeviceSimulator,
    model: &DeviceModel,
    run: &MeasuredRun,
    options: &FitOptions,
) -> Option<RunScore> {
    let predictions = predict_run(simulator, model, run, options.cable_delay);
    score_predictions(&predictions, options.resolution)
}

/// Puts the packets of `run` through `model`, in the order of transmission. `cable_delay` is taken
/// off the measured arrivals.
pub fn predict_run(
    simulator: &mut dyn DeviceSimulator,
    model: &DeviceModel,
    run: &MeasuredRun,
    cable_delay: Duration,
) -> Vec<PacketPrediction> {
    let mut records: Vec<_> = run
        .records
        .iter()
        .filter(|record| !matches!(record.fate, PacketFate::LostAtPort | PacketFate::Duplicated))
        .collect();
    records.sort_by_key(|record| (record.sent, record.sequence));
    let packets: Vec<SimulatedPacket> = records
        .iter()
        .map(|record| SimulatedPacket {
            sent: record.sent,
            size: record.size,
            input: record.input,
            output: record.output,
        })
        .collect();
    let predicted = simulator.replay(model, &packets);
    records
        .into_iter()
        .zip(packets)
        .zip(predicted)
        .map(|((record, packet), predicted)| PacketPrediction {
            flow: record.flow,
            packet,
            measured: record.received.map(|received| received - cable_delay),
            predicted,
        })
        .collect()
}

/// Scores the prediction of one run. Delays that differ by no more than `resolution` count as equal.
/// `None` if no packet was delivered, in truth or by the model.
#[must_use]
pub fn score_predictions(
    predictions: &[PacketPrediction],
    resolution: Duration,
) -> Option<RunScore> {
    let (measured_delays, measured) = figures(predictions, |packet| packet.measured)?;
    let (predicted_delays, predicted) = figures(predictions, |packet| packet.predicted)?;
    Some(RunScore {
        measured,
        predicted,
        ks_distance: kolmogorov_smirnov(&measured_delays, &predicted_delays, resolution),
        flows: flow_errors(predictions),
    })
}

/// Sorted delays of the delivered packets, and the figures of the run.
fn figures(
    predictions: &[PacketPrediction],
    left: impl Fn(&PacketPrediction) -> Option<Time>,
) -> Option<(Vec<Duration>, TransferFigures)> {
    let mut delays = Vec::new();
    let mut bytes = 0_u64;
    let mut last = Time::ZERO;
    for prediction in predictions {
        if let Some(left) = left(prediction) {
            delays.push(left.since(prediction.packet.sent));
            bytes += u64::from(prediction.packet.size);
            last = last.max(left);
        }
    }
    delays.sort_unstable();
    let span = last.since(predictions.first()?.packet.sent).as_secs_f64();
    let figures = TransferFigures {
        delay_p50: quantile(&delays, 0.5)?,
        delay_p95: quantile(&delays, 0.95)?,
        delay_p99: quantile(&delays, 0.99)?,
        loss_ratio: 1.0 - delays.len() as f64 / predictions.len() as f64,
        goodput_bps: bytes as f64 * 8.0 / span.max(1e-9),
    };
    Some((delays, figures))
}

/// Bytes of a flow and the time of its last delivery.
#[derive(Clone, Copy, Debug, Default)]
struct FlowTransfer {
    bytes: u64,
    last: Time,
}

impl FlowTransfer {
    fn add(&mut self, size: u32, left: Option<Time>) {
        if let Some(left) = left {
            self.bytes += u64::from(size);
            self.last = self.last.max(left);
        }
    }

    fn goodput(&self, start: Time) -> f64 {
        self.bytes as f64 / self.last.since(start).as_secs_f64().max(1e-9)
    }
}

fn flow_errors(predictions: &[PacketPrediction]) -> FlowGoodputErrors {
    let mut flows: BTreeMap<(u32, u16), (Time, FlowTransfer, FlowTransfer)> = BTreeMap::new();
    for prediction in predictions {
        let packet = &prediction.packet;
        let (_, measured, predicted) = flows
            .entry((prediction.flow, packet.output))
            .or_insert_with(|| {
                (
                    packet.sent,
                    FlowTransfer::default(),
                    FlowTransfer::default(),
                )
            });
        measured.add(packet.size, prediction.measured);
        predicted.add(packet.size, prediction.predicted);
    }
    let mut errors: Vec<f64> = flows
        .values()
        .filter(|(_, measured, _)| measured.bytes > 0)
        .map(|(start, measured, predicted)| {
            (predicted.goodput(*start) / measured.goodput(*start) - 1.0).abs()
        })
        .collect();
    errors.sort_unstable_by(f64::total_cmp);
    let share = |share: f64| {
        let rank = (errors.len() as f64 * share).ceil() as usize;
        errors.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    FlowGoodputErrors {
        flows: errors.len(),
        p50: share(0.5),
        p95: share(0.95),
    }
}

fn relative(predicted: Duration, measured: Duration) -> f64 {
    (predicted.as_secs_f64() / measured.as_secs_f64().max(1e-9) - 1.0).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(flow: u32, at: u64, measured: Option<u64>) -> PacketPrediction {
        PacketPrediction {
            flow,
            packet: SimulatedPacket {
                sent: Time::from_nanos(at),
                size: 1_000,
                input: 0,
                output: 1,
            },
            measured: measured.map(Time::from_nanos),
            predicted: Some(Time::from_nanos(at + 1_000)),
        }
    }

    #[test]
    fn goodput_is_compared_flow_by_flow() {
        // The model delivers both packets of both flows; the device lost one of flow 1.
        let predictions = [
            prediction(0, 0, Some(1_000)),
            prediction(1, 0, Some(1_000)),
            prediction(0, 1_000, Some(2_000)),
            prediction(1, 1_000, None),
        ];
        let flows = flow_errors(&predictions);
        assert_eq!(flows.flows, 2);
        assert!(flows.p50 < 1e-9, "{flows:?}");
        // One packet in 1 us against two in 2 us is the same rate.
        assert!(flows.p95 < 1e-9, "{flows:?}");
        let late = [prediction(0, 0, Some(2_000)), prediction(1, 0, None)];
        let flows = flow_errors(&late);
        assert_eq!(flows.flows, 1);
        assert!((flows.p95 - 1.0).abs() < 1e-9, "{flows:?}");
    }
}
