//! Held-out traffic through devices with shared servers, predicted by the full model and by both
//! baselines, which are fitted by the same code to the same records.
//!
//! The service time of these devices bends at 600 bytes, between two sizes of the plan, and their
//! input queues are short.

use std::time::Duration;

use profile::{
    FitOptions, MeasurementPlan, ModelFamily, RunScore, fit_device, held_out_runs, score_run,
};
use vocab::{
    Bitrate, ByteCount, DeviceModel, DeviceQueueLimit, SeededRandom, SharedServers, SizeTimePoint,
    SizeTimeTable,
};

use profiler::EmulatorSimulator;
use profiler::known_devices::draw;

use crate::measure;

/// Uncertainty of a delay in virtual time: several roundings to a nanosecond.
const FIT_RESOLUTION: Duration = Duration::from_nanos(10);
/// Delays that differ by less are equal, as with stamps in microseconds. Without it a line whose
/// rate is wrong by 10⁻⁸ has another delay for each packet.
const SCORE_RESOLUTION: Duration = Duration::from_micros(1);

/// Scores of the three families on one run.
pub(crate) struct RunComparison {
    pub(crate) experiment: String,
    pub(crate) ours: RunScore,
    pub(crate) single_queue: RunScore,
    pub(crate) fluid_queue: RunScore,
}

/// A device whose servers matter: its outputs are as fast as they are, or faster.
pub(crate) fn device(seed: u64) -> DeviceModel {
    let mut random = SeededRandom::for_stream(seed, 34);
    let mut model = draw::device(seed);
    let rate = 50_000_000 + random.below(450_000_000);
    model.output.rate = Some(Bitrate::from_bits_per_second(rate));
    let least = 5_000 + random.below(20_000);
    let points = [(64, least), (600, least * 3 / 2), (1_500, least * 5 / 3)];
    let service = table(&points);
    let count = 1 + random.below(3) as u16;
    let fixed = 5_000 + random.below(50_000);
    let transit: Vec<(u64, u64)> = points
        .iter()
        .map(|(size, service)| {
            let line = model.output.serialisation(*size).as_nanos() as u64;
            (*size, fixed + service + line)
        })
        .collect();
    model.transit = table(&transit);
    model.servers = Some(SharedServers { count, service });
    model.input_queue = Some(DeviceQueueLimit::Packets(20 + random.below(100)));
    model.check().expect("the device is usable");
    model
}

fn table(points: &[(u64, u64)]) -> SizeTimeTable {
    let points = points
        .iter()
        .map(|(size, nanoseconds)| SizeTimePoint {
            size: ByteCount::new(*size),
            time: Duration::from_nanos(*nanoseconds),
        })
        .collect();
    SizeTimeTable::new(points).expect("the sizes rise")
}

/// Bursts of mixed sizes to all outputs, to one output, and closed-loop TCP.
pub(crate) fn plan() -> MeasurementPlan {
    MeasurementPlan::from_toml(
        r#"
        name = "held out"
        ports = 8
        loss_after = "10s"

        [[experiment]]
        name = "bursts to all outputs"
        purpose = "held-out"
        traffic = [{ from = [0, 1, 2, 3, 4, 5, 6, 7], to = [3, 4, 5, 6, 7, 0, 1, 2], packets = 20000,
            sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
            pattern = { kind = "bursts", packets_per_burst = 40, period = "4ms" } }]

        [[experiment]]
        name = "bursts to one output"
        purpose = "held-out"
        traffic = [{ from = [1, 2, 3, 4], to = [0], packets = 20000,
            sizes = [{ size = "64B", share = 5 }, { size = "576B", share = 2 }, { size = "1500B", share = 3 }],
            pattern = { kind = "bursts", packets_per_burst = 60, period = "6ms" } }]

        [[experiment]]
        name = "closed-loop TCP"
        purpose = "held-out"
        traffic = [{ from = [1, 2, 3, 4], to = [0], flows = 20, duration = "2s",
            pattern = { kind = "tcp", segment = "1460B" } }]
        "#,
    )
    .expect("the plan is well formed")
}

/// Fits the three families to the device of this seed, and scores them on held-out runs.
pub(crate) fn compare(seed: u64) -> Vec<RunComparison> {
    let device = device(seed);
    let training = measure(&draw::plan("0s"), &device);
    let held_out = measure(&plan(), &device);
    let options = |family, resolution| FitOptions {
        name: format!("{family:?}"),
        ports: device.ports,
        resolution,
        cable_delay: Duration::ZERO,
        family,
    };
    let fitted = |family| {
        fit_device(&training, &options(family, FIT_RESOLUTION))
            .expect("the device forwards")
            .model
    };
    let models = [
        fitted(ModelFamily::Full),
        fitted(ModelFamily::SingleQueue),
        fitted(ModelFamily::FluidQueue),
    ];
    held_out_runs(&held_out)
        .map(|run| {
            let [ours, single_queue, fluid_queue] = models.each_ref().map(|model| {
                score_run(
                    &mut EmulatorSimulator,
                    model,
                    run,
                    &options(ModelFamily::Full, SCORE_RESOLUTION),
                )
                .expect("device and model deliver packets")
            });
            RunComparison {
                experiment: run.plan.experiment.clone(),
                ours,
                single_queue,
                fluid_queue,
            }
        })
        .collect()
}
