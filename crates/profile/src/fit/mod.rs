//! Fit: a device model from records, with an interval for each parameter.
//!
//! ```text
//!  lone packets ──────────► transit.rs    minimum transit by size
//!        └────────────────► port_pairs.rs pairs of ports with a longer one, for the report
//!  bursts to k outputs ───► servers.rs    number and service time of shared servers
//!  bursts on one input ───► queue.rs      input queue
//!  overload by size ──────► line.rs       serialisation time: rate and overhead
//!        │  with all above  queue.rs      occupancy at each arrival: unit and limit
//!        ├─ early drops ──► aqm.rs        CoDel, or the wait at which the queue stands
//!        ├────────────────► bucket.rs     rate without serialisation: shaper or policer
//!        └────────────────► search.rs     what the data leaves open, and all of a baseline's output
//! ```
//!
//! Each parameter has an experiment in which it alone decides what is seen, so each is computed
//! directly. docs/decisions/0075-device-parameters-one-by-one.md says why. A search over the overloads
//! then sets the output: of a baseline, which explains no experiment exactly, its rate, overhead and
//! limit; of the full model, a limit on which the sizes do not agree.
//! A parameter that the records do not determine is named with the reason, and the model then
//! holds a neutral value for it.

mod aqm;
mod bucket;
mod line;
mod occupancy;
mod parameter;
mod port_pairs;
mod queue;
mod search;
mod servers;
mod transit;

use std::time::Duration;

use thiserror::Error;
use vocab::{
    ByteCount, DeviceModel, DeviceModelError, DeviceQueueLimit, OutputModel, SizeTimePoint,
    SizeTimeTable,
};

use crate::plan::{ExperimentPurpose, MeasurementSubject};
use crate::record::MeasuredRun;

use bucket::LineKind;
use search::{OutputCandidate, OverloadReplay, SearchBounds};

pub use parameter::{FittedParameter, ParameterKind};
pub use port_pairs::{PortTransit, slower_port_pairs};

/// Limit of a queue that is not known: larger than any that a plan fills.
const UNKNOWN_QUEUE: ByteCount = ByteCount::mebibytes(64);

/// Circumstances of the measurement.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Name of the device.
    pub name: String,
    /// Number of its ports.
    pub ports: u16,
    /// Uncertainty of a delay: the spread of the cable's calibration, and at least a nanosecond.
    pub resolution: Duration,
    /// Delay of the cable and the ports, which is not the device's.
    pub cable_delay: Duration,
    /// Models among which the fit chooses.
    pub family: ModelFamily,
}

/// A family of models. Each is searched by the same code with the same loss on the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelFamily {
    /// Every parameter of [`DeviceModel`].
    #[default]
    Full,
    /// A single FIFO output queue, as simulators have: a constant delay, a rate, and a limit in
    /// packets or in bytes, by which the loss is smaller.
    SingleQueue,
    /// Minimum transit by size and a fluid output queue in bytes, after Hohn, Veitch,
    /// Papagiannaki and Diot ("Bridging router performance and queuing theory", 2004).
    FluidQueue,
}

/// A fitted model.
#[derive(Clone, Debug)]
pub struct DeviceFit {
    /// The model, with neutral values for parameters that are not identified.
    pub model: DeviceModel,
    /// Every parameter with its interval or the reason why it is not identified.
    pub parameters: Vec<FittedParameter>,
}

impl DeviceFit {
    /// The parameter of this kind.
    #[must_use]
    pub fn parameter(&self, kind: ParameterKind) -> Option<&FittedParameter> {
        self.parameters
            .iter()
            .find(|parameter| parameter.kind == kind)
    }

    /// Tells whether the records determine the parameter of this kind.
    #[must_use]
    pub fn is_identified(&self, kind: ParameterKind) -> bool {
        self.parameter(kind)
            .is_some_and(|parameter| parameter.unidentified.is_none())
    }
}

/// Reason why no model can be fitted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FitError {
    /// There are no lone packets.
    #[error(
        "no packet of an experiment with purpose = \"transit\" arrived: add such an experiment to \
         the plan, or check that the device forwards"
    )]
    NoTransit,
    /// The records contradict each other so far that no model holds them.
    #[error("the records lead to no usable model: {error}")]
    NoModel {
        /// The contradiction.
        error: DeviceModelError,
    },
}

/// Runs that count for one part of the fit.
fn runs_for(
    runs: &[MeasuredRun],
    purpose: ExperimentPurpose,
) -> impl Iterator<Item = &MeasuredRun> {
    runs.iter().filter(move |run| {
        run.plan.purpose == purpose && run.plan.subject == MeasurementSubject::Device
    })
}

/// Fits a model to the records of a plan's runs, in any order; runs for validation are ignored.
///
/// # Errors
/// When there are no lone packets, or no model holds what was found.
pub fn fit_device(runs: &[MeasuredRun], options: &FitOptions) -> Result<DeviceFit, FitError> {
    let mut parameters = Vec::new();
    let lone = transit::fit(
        runs_for(runs, ExperimentPurpose::Transit),
        runs_for(runs, ExperimentPurpose::Contention),
        options,
        &mut parameters,
    )
    .ok_or(FitError::NoTransit)?;
    let servers = match options.family {
        ModelFamily::Full => servers::fit(
            runs_for(runs, ExperimentPurpose::Contention),
            &lone,
            options,
            &mut parameters,
        ),
        ModelFamily::SingleQueue | ModelFamily::FluidQueue => None,
    };
    let input_overloads: Vec<&MeasuredRun> =
        runs_for(runs, ExperimentPurpose::InputOverload).collect();
    let overloads: Vec<&MeasuredRun> = runs_for(runs, ExperimentPurpose::Overload).collect();
    let servers = servers.map(|servers| {
        // The servers of short bursts are enough to see the line, and the line shows which long bursts
        // are of the servers.
        let parts = (&lone, Some(&servers));
        let line = line::fit(&overloads, parts, options, &mut Vec::new());
        let long_bursts = input_overloads.iter().copied();
        servers::refine(&servers, long_bursts, line, &mut parameters)
    });
    let line = line::fit(
        &overloads,
        (&lone, servers.as_ref()),
        options,
        &mut parameters,
    );
    let mut model = DeviceModel {
        name: options.name.clone(),
        ports: options.ports,
        transit: lone.least.clone(),
        input_queue: None,
        servers,
        output: OutputModel {
            rate: None,
            burst: None,
            overhead: ByteCount::new(0),
            queue: DeviceQueueLimit::Bytes(UNKNOWN_QUEUE),
            aqm: None,
            policer: None,
        },
        port_outputs: Vec::new(),
    };
    if let Some(line) = line {
        model.output.overhead = line.overhead;
        let kind = match options.family {
            ModelFamily::Full => bucket::fit(&overloads, line, &model, options, &mut parameters),
            ModelFamily::SingleQueue | ModelFamily::FluidQueue => LineKind::Line,
        };
        match kind {
            LineKind::Line => model.output.rate = Some(line.rate),
            LineKind::Shaper { burst } => {
                model.output.rate = Some(line.rate);
                model.output.burst = Some(burst);
            }
            LineKind::Policer { policer, overhead } => {
                model.output.policer = Some(policer);
                model.output.overhead = overhead;
            }
        }
    }
    model = with_transit(model, &lone.least, options.family);
    match options.family {
        ModelFamily::Full => {
            model.input_queue = input_queue(
                &input_overloads,
                &overloads,
                &model,
                options,
                &mut parameters,
            );
            if model.output.policer.is_none() {
                let arrivals = occupancy::at_arrivals(&overloads, &model, options);
                if let Some(limit) = queue::fit(&arrivals, &model, &mut parameters) {
                    model.output.queue = limit;
                }
                let has_early_drops = parameters
                    .iter()
                    .any(|one| one.kind == ParameterKind::EarlyDrops);
                if has_early_drops && model.output.rate.is_some() {
                    model.output.aqm = aqm::fit(&overloads, &model, options, &mut parameters);
                }
                if model.output.aqm.is_some() {
                    // It keeps the queue from being full.
                    model.output.queue = DeviceQueueLimit::Bytes(UNKNOWN_QUEUE);
                } else {
                    refine_limit(&mut model, (&overloads, &lone.least), options, &parameters);
                }
            }
        }
        ModelFamily::SingleQueue | ModelFamily::FluidQueue => {
            // The search moves these within no interval.
            parameters.retain(|one| matches!(one.kind, ParameterKind::Transit { .. }));
            search_baseline(&mut model, (&overloads, &lone.least), options);
        }
    }
    model.check().map_err(|error| FitError::NoModel { error })?;
    Ok(DeviceFit { model, parameters })
}

/// Searches the limit of the full model's queue where it is not identified, within the interval that the records
/// allow. A mean over all runs must not leave it: the largest packets fill a queue for the longest time, and are
/// a few runs of many. Early drops bound no limit from above or below.
fn refine_limit(
    model: &mut DeviceModel,
    (overloads, lone): (&[&MeasuredRun], &SizeTimeTable),
    options: &FitOptions,
    parameters: &[FittedParameter],
) {
    let Some(rate) = model.output.rate.filter(|_| model.output.burst.is_none()) else {
        return;
    };
    let of_kind = |kind| parameters.iter().find(|one| one.kind == kind);
    let open = of_kind(ParameterKind::OutputQueue).filter(|one| one.unidentified.is_some());
    // A queue that was never full has no limit to search for.
    let Some(open) = open.filter(|_| model.output.queue != DeviceQueueLimit::Bytes(UNKNOWN_QUEUE))
    else {
        return;
    };
    let limit = match of_kind(ParameterKind::EarlyDrops) {
        Some(_) => SearchBounds::FREE,
        None => (open.low, open.high),
    };
    let start = OutputCandidate {
        rate,
        overhead: model.output.overhead,
        queue: model.output.queue,
    };
    let rate = rate.bits_per_second() as f64;
    let overhead = start.overhead.bytes() as f64;
    let bounds = SearchBounds {
        rate: (rate, rate),
        overhead: (overhead, overhead),
        limit,
    };
    let best = OverloadReplay::new(overloads, (&*model, lone), options)
        .map(|replay| replay.search(start, bounds).0);
    if let Some(best) = best {
        *model = with_output(model.clone(), best, lone, options.family);
    }
}

/// Searches the output of a baseline: in each unit that its family has, from the start with the smallest
/// loss. Without a rate there is nothing to search.
fn search_baseline(
    model: &mut DeviceModel,
    (overloads, lone): (&[&MeasuredRun], &SizeTimeTable),
    options: &FitOptions,
) {
    let Some(rate) = model.output.rate else {
        return;
    };
    let bytes = DeviceQueueLimit::Bytes(ByteCount::new(0));
    let units: &[DeviceQueueLimit] = match options.family {
        ModelFamily::SingleQueue => &[DeviceQueueLimit::Packets(0), bytes],
        ModelFamily::FluidQueue | ModelFamily::Full => &[bytes],
    };
    let arrivals = occupancy::at_arrivals(overloads, model, options);
    let Some(replay) = OverloadReplay::new(overloads, (&*model, lone), options) else {
        return;
    };
    let free = SearchBounds {
        rate: SearchBounds::FREE,
        overhead: SearchBounds::FREE,
        limit: SearchBounds::FREE,
    };
    let overhead = model.output.overhead;
    let best = units
        .iter()
        .filter_map(|unit| {
            let mut limits = queue::search_starts(&arrivals, *unit, overhead);
            if limits.is_empty() {
                limits.push(model.output.queue);
            }
            let start = |queue| {
                let candidate = OutputCandidate {
                    rate,
                    overhead,
                    queue,
                };
                (candidate, replay.loss(candidate))
            };
            limits
                .into_iter()
                .map(start)
                .min_by(|one, other| one.1.total_cmp(&other.1))
        })
        .map(|(start, _)| replay.search(start, free))
        .min_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((best, _)) = best {
        *model = with_output(model.clone(), best, lone, options.family);
    }
}

fn with_output(
    mut model: DeviceModel,
    output: OutputCandidate,
    lone: &SizeTimeTable,
    family: ModelFamily,
) -> DeviceModel {
    model.output.rate = Some(output.rate);
    model.output.overhead = output.overhead;
    model.output.queue = output.queue;
    with_transit(model, lone, family)
}

/// The model with the transit that its family gives to the lone packets.
fn with_transit(mut model: DeviceModel, lone: &SizeTimeTable, family: ModelFamily) -> DeviceModel {
    model.transit = lone.clone();
    if family == ModelFamily::SingleQueue {
        model.transit = constant_delay_transit(&model);
    }
    model.transit = feasible_transit(&model);
    model
}

/// The input queue, unless the queues of the outputs explain the same drops: where slow outputs fill
/// one after the other, as few packets pass as through a short input queue.
fn input_queue(
    input_overloads: &[&MeasuredRun],
    overloads: &[&MeasuredRun],
    model: &DeviceModel,
    options: &FitOptions,
    parameters: &mut Vec<FittedParameter>,
) -> Option<DeviceQueueLimit> {
    let inputs = occupancy::at_inputs(input_overloads, model);
    let outputs = occupancy::at_arrivals(overloads, model, options);
    let mut found = Vec::new();
    let output_limit = queue::fit(&outputs, model, &mut found);
    let has_early_drops = found
        .iter()
        .any(|parameter| parameter.kind == ParameterKind::EarlyDrops);
    if let Some(limit) = output_limit.filter(|_| !has_early_drops) {
        let arrivals = occupancy::at_arrivals(input_overloads, model, options);
        if queue::explains_drops(&arrivals, limit, model.output.overhead.bytes()) {
            parameters.push(FittedParameter::unidentified(
                ParameterKind::InputQueue,
                (0.0, f64::INFINITY),
                "the output queues explain the packets that were dropped in runs of input overload",
                Some(queue::SPREAD_OUTPUTS),
            ));
            return None;
        }
    }
    queue::fit_input(&inputs, parameters)
}

/// The transit of a line behind a constant delay: the mean of what the sizes leave for it.
fn constant_delay_transit(model: &DeviceModel) -> SizeTimeTable {
    let points = model.transit.points();
    let rests: Duration = points
        .iter()
        .map(|point| model.fixed_delay(0, point.size.bytes()))
        .sum();
    let delay = rests / u32::try_from(points.len()).unwrap_or(1);
    let points = points
        .iter()
        .map(|point| SizeTimePoint {
            size: point.size,
            time: delay + model.output.serialisation(point.size.bytes()),
        })
        .collect();
    SizeTimeTable::new(points).unwrap_or_else(|_| model.transit.clone())
}

/// The transit, raised where noise has made it shorter than service and serialisation.
fn feasible_transit(model: &DeviceModel) -> SizeTimeTable {
    let points = model
        .transit
        .points()
        .iter()
        .map(|point| {
            let size = point.size.bytes();
            let least = model.service_time(size) + model.output.serialisation(size);
            SizeTimePoint {
                size: point.size,
                time: point.time.max(least),
            }
        })
        .collect();
    SizeTimeTable::new(points).unwrap_or_else(|_| model.transit.clone())
}
