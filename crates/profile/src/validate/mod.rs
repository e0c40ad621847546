//! Validation: how well a model predicts runs that the fit has not seen.
//!
//! The packets of a held-out run enter the model at the times at which they entered the device. Of
//! both, delays of delivered packets, loss and goodput are compared. The senders do not react to
//! the model: a run of closed-loop TCP is replayed as the device let it happen.

mod distribution;

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

/// Puts the packets of `run` through `model`. Of `options`, the cable's delay is taken off the
/// measured delays, and delays that differ by no more than the resolution count as equal. `None` if
/// no packet was delivered, in truth or by the model.
pub fn score_run(
    simulator: &mut dyn DeviceSimulator,
    model: &DeviceModel,
    run: &MeasuredRun,
    options: &FitOptions,
) -> Option<RunScore> {
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
    let measured: Vec<Option<Time>> = records
        .iter()
        .map(|record| {
            record
                .received
                .map(|received| received - options.cable_delay)
        })
        .collect();
    let (measured_delays, measured) = figures(&packets, &measured)?;
    let (predicted_delays, predicted) = figures(&packets, &predicted)?;
    Some(RunScore {
        measured,
        predicted,
        ks_distance: kolmogorov_smirnov(&measured_delays, &predicted_delays, options.resolution),
    })
}

/// Sorted delays of the delivered packets, and the figures of the run.
fn figures(
    packets: &[SimulatedPacket],
    left: &[Option<Time>],
) -> Option<(Vec<Duration>, TransferFigures)> {
    let mut delays = Vec::new();
    let mut bytes = 0_u64;
    let mut last = Time::ZERO;
    for (packet, left) in packets.iter().zip(left) {
        if let Some(left) = left {
            delays.push(left.since(packet.sent));
            bytes += u64::from(packet.size);
            last = last.max(*left);
        }
    }
    delays.sort_unstable();
    let span = last.since(packets.first()?.sent).as_secs_f64();
    let figures = TransferFigures {
        delay_p50: quantile(&delays, 0.5)?,
        delay_p95: quantile(&delays, 0.95)?,
        delay_p99: quantile(&delays, 0.99)?,
        loss_ratio: 1.0 - delays.len() as f64 / packets.len() as f64,
        goodput_bps: bytes as f64 * 8.0 / span.max(1e-9),
    };
    Some((delays, figures))
}

fn relative(predicted: Duration, measured: Duration) -> f64 {
    (predicted.as_secs_f64() / measured.as_secs_f64().max(1e-9) - 1.0).abs()
}
