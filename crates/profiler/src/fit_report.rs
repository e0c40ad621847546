//! Reports of a fit: a table of parameters with intervals, and the parameters that the records do not
//! determine with what a plan needs for them.

use std::fmt::Write;

use anyhow::{Context, Result};
use host::terminal::write_hanging;
use profile::{CableCalibration, DeviceFit, FittedParameter, ParameterKind, slower_port_pairs};
use serde_json::{Value, json};
use vocab::{DeviceModel, DeviceQueueLimit};

use crate::fitting::CalibratedRuns;

/// Renders the fit for a terminal of 80 columns.
#[must_use]
pub fn text(runs: &CalibratedRuns, fit: &DeviceFit) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "device {}: {} runs through it",
        fit.model.name,
        runs.runs.len()
    );
    write_calibration(&mut out, runs.calibration.as_ref());
    let _ = writeln!(
        out,
        "\n{:<24} {:>16}   {:<36}",
        "parameter", "value", "interval"
    );
    for parameter in fit.parameters.iter().filter(|one| is_identified(one)) {
        let row = parameter_row(parameter, &fit.model);
        let _ = writeln!(out, "{:<24} {:>16}   {}", row.name, row.value, row.interval);
    }
    write_unidentified(&mut out, fit);
    write_port_pairs(&mut out, runs);
    write_remarks(&mut out, &runs.remarks);
    out
}

/// Writes the pairs of ports with a longer transit than others; the model has one transit for all.
fn write_port_pairs(out: &mut String, runs: &CalibratedRuns) {
    let pairs = slower_port_pairs(&runs.runs, runs.resolution());
    if pairs.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<16} {:>9} {:>9} {:>9} {:>12}",
        "slower, bytes", "ports", "packets", "least us", "fastest us"
    );
    for pair in pairs {
        let _ = writeln!(
            out,
            "{:<16} {:>9} {:>9} {:>9.2} {:>12.2}",
            pair.size,
            format!("{} to {}", pair.input, pair.output),
            pair.packets,
            pair.least.as_secs_f64() * 1e6,
            pair.fastest.as_secs_f64() * 1e6,
        );
    }
    let text = "These pairs of ports take longer than the fastest pair. The model has the transit of \
                the fastest pair for all of them.";
    write_hanging(out, "", 0, text.split_whitespace());
}

fn port_pairs_document(runs: &CalibratedRuns) -> Vec<Value> {
    let pairs = slower_port_pairs(&runs.runs, runs.resolution()).into_iter();
    pairs
        .map(|pair| {
            json!({
                "size_bytes": pair.size,
                "input": pair.input,
                "output": pair.output,
                "packets": pair.packets,
                "least_ns": pair.least.as_nanos() as u64,
                "fastest_ns": pair.fastest.as_nanos() as u64,
            })
        })
        .collect()
}

/// Writes the delay and the noise of the cable by size.
pub(crate) fn write_calibration(out: &mut String, calibration: Option<&CableCalibration>) {
    let Some(calibration) = calibration else {
        return;
    };
    let _ = writeln!(
        out,
        "\n{:<16} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "cable, bytes", "packets", "least us", "p5 us", "mean us", "p95 us"
    );
    for delay in calibration.sizes() {
        let _ = writeln!(
            out,
            "{:<16} {:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
            delay.size,
            delay.packets,
            delay.least.as_secs_f64() * 1e6,
            delay.p5.as_secs_f64() * 1e6,
            delay.mean.as_secs_f64() * 1e6,
            delay.p95.as_secs_f64() * 1e6,
        );
    }
    let sentence = format!(
        "The least delay of each size is subtracted from the delays of the device. The noise of the \
         stamps is {:.2} us.",
        calibration.noise().as_secs_f64() * 1e6
    );
    write_hanging(out, "", 0, sentence.split_whitespace());
}

/// Renders a model as the file that `profile validate` and the emulator's devices read.
///
/// # Errors
/// When the model holds a value that TOML cannot.
pub fn model_file(model: &DeviceModel) -> Result<String> {
    toml::to_string(model).context("the model cannot be written as TOML")
}

/// Reads a model from the text of a file.
///
/// # Errors
/// When it is no TOML, or no model.
pub fn model_from_file(text: &str) -> Result<DeviceModel> {
    toml::from_str(text).context("it is no device model")
}

fn write_unidentified(out: &mut String, fit: &DeviceFit) {
    let mut first = true;
    for parameter in &fit.parameters {
        let Some(reason) = &parameter.unidentified else {
            continue;
        };
        if first {
            *out += "\nnot identified:\n";
            first = false;
        }
        let interval = plain_interval(parameter);
        let sentence = format!("{} ({interval}): {reason}.", short_name(parameter.kind));
        write_hanging(out, "- ", 2, sentence.split_whitespace());
        let remedy = match parameter.remedy {
            Some(remedy) => format!("To identify it: {remedy}."),
            None => "No plan is known that identifies it.".to_owned(),
        };
        write_hanging(out, "  ", 2, remedy.split_whitespace());
    }
}

pub(crate) fn write_remarks(out: &mut String, remarks: &[String]) {
    if !remarks.is_empty() {
        out.push('\n');
    }
    for remark in remarks {
        write_hanging(out, "note: ", 6, remark.split_whitespace());
    }
}

/// A parameter in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParameterRow {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) interval: String,
}

pub(crate) fn is_identified(parameter: &FittedParameter) -> bool {
    parameter.unidentified.is_none()
}

pub(crate) fn parameter_row(parameter: &FittedParameter, model: &DeviceModel) -> ParameterRow {
    let shown = |value: f64| with_unit(parameter.kind, value, model);
    ParameterRow {
        name: short_name(parameter.kind),
        value: shown(parameter.value),
        interval: if parameter.high.is_infinite() {
            format!("at least {}", shown(parameter.low))
        } else {
            format!("{} to {}", shown(parameter.low), shown(parameter.high))
        },
    }
}

/// The interval without a unit, which the reason names.
fn plain_interval(parameter: &FittedParameter) -> String {
    if parameter.high.is_infinite() && parameter.low <= 0.0 {
        "any value".to_owned()
    } else if parameter.high.is_infinite() {
        format!("at least {:.0}", parameter.low)
    } else {
        format!("{:.0} to {:.0}", parameter.low, parameter.high)
    }
}

fn short_name(kind: ParameterKind) -> String {
    match kind {
        ParameterKind::Transit { size } => format!("transit, {size} bytes"),
        ParameterKind::ServerCount => "shared servers".to_owned(),
        ParameterKind::ServiceTime { size } => format!("service, {size} bytes"),
        ParameterKind::OutputRate => "output rate".to_owned(),
        ParameterKind::OutputOverhead => "output overhead".to_owned(),
        ParameterKind::OutputQueue => "output queue".to_owned(),
        ParameterKind::OutputSlot => "slot of the queue".to_owned(),
        ParameterKind::EarlyDrops => "early drops".to_owned(),
        ParameterKind::CodelTarget => "target of CoDel".to_owned(),
        ParameterKind::CodelInterval => "interval of CoDel".to_owned(),
        ParameterKind::StandingDelay => "standing delay".to_owned(),
        ParameterKind::InputQueue => "input queue".to_owned(),
        ParameterKind::PolicerRate => "policer rate".to_owned(),
        ParameterKind::PolicerBurst => "burst of the policer".to_owned(),
        ParameterKind::ShaperBurst => "burst of the shaper".to_owned(),
    }
}

fn with_unit(kind: ParameterKind, value: f64, model: &DeviceModel) -> String {
    match kind {
        ParameterKind::Transit { .. }
        | ParameterKind::ServiceTime { .. }
        | ParameterKind::CodelTarget
        | ParameterKind::CodelInterval
        | ParameterKind::StandingDelay => format!("{:.2} us", value / 1e3),
        ParameterKind::ServerCount => format!("{value:.0}"),
        ParameterKind::EarlyDrops => format!("{:.1} % of the drops", value * 100.0),
        ParameterKind::OutputRate | ParameterKind::PolicerRate => {
            format!("{:.4} Mbit/s", value / 1e6)
        }
        ParameterKind::OutputOverhead
        | ParameterKind::OutputSlot
        | ParameterKind::PolicerBurst
        | ParameterKind::ShaperBurst => format!("{value:.0} bytes"),
        ParameterKind::OutputQueue => {
            format!("{value:.0} {}", queue_unit(Some(model.output.queue)))
        }
        ParameterKind::InputQueue => format!("{value:.0} {}", queue_unit(model.input_queue)),
    }
}

fn queue_unit(limit: Option<DeviceQueueLimit>) -> &'static str {
    match limit {
        Some(DeviceQueueLimit::Bytes(_)) => "bytes",
        Some(DeviceQueueLimit::Packets(_)) | None => "packets",
        Some(DeviceQueueLimit::Slots { .. }) => "slots",
    }
}

/// Renders the fit as one JSON object.
#[must_use]
pub fn document(runs: &CalibratedRuns, fit: &DeviceFit) -> Value {
    json!({
        "device": fit.model.name,
        "runs": runs.runs.len(),
        "calibration": calibration_document(runs.calibration.as_ref()),
        "parameters": parameters_document(fit),
        "slower_port_pairs": port_pairs_document(runs),
        "model": fit.model,
        "remarks": runs.remarks,
    })
}

pub(crate) fn parameters_document(fit: &DeviceFit) -> Vec<Value> {
    fit.parameters
        .iter()
        .map(|parameter| {
            let unit = match parameter.kind {
                ParameterKind::OutputQueue if is_identified(parameter) => {
                    Some(queue_unit(Some(fit.model.output.queue)))
                }
                ParameterKind::InputQueue if is_identified(parameter) => {
                    Some(queue_unit(fit.model.input_queue))
                }
                _ => None,
            };
            json!({
                "parameter": parameter.kind.to_string(),
                "value": finite(parameter.value),
                "low": finite(parameter.low),
                "high": finite(parameter.high),
                "unit": unit,
                "unidentified": parameter.unidentified,
                "remedy": parameter.remedy,
            })
        })
        .collect()
}

pub(crate) fn calibration_document(calibration: Option<&CableCalibration>) -> Value {
    let Some(calibration) = calibration else {
        return Value::Null;
    };
    let sizes = calibration.sizes().iter().map(|delay| {
        json!({
            "size_bytes": delay.size,
            "packets": delay.packets,
            "least_ns": delay.least.as_nanos() as u64,
            "p5_ns": delay.p5.as_nanos() as u64,
            "mean_ns": delay.mean.as_nanos() as u64,
            "p95_ns": delay.p95.as_nanos() as u64,
        })
    });
    json!({
        "noise_ns": calibration.noise().as_nanos() as u64,
        "sizes": sizes.collect::<Vec<_>>(),
    })
}

/// JSON has neither infinities nor other values that are no number.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vocab::{ByteCount, OutputModel, SizeTimeTable};

    use super::*;

    #[test]
    fn parameter_without_a_remedy_is_not_said_to_be_outside_the_model() {
        let model = DeviceModel {
            name: "router".to_owned(),
            ports: 2,
            transit: SizeTimeTable::constant(Duration::from_micros(1)),
            input_queue: None,
            servers: None,
            output: OutputModel {
                rate: None,
                burst: None,
                overhead: ByteCount::new(0),
                queue: DeviceQueueLimit::Packets(1),
                aqm: None,
                policer: None,
            },
            port_outputs: Vec::new(),
        };
        // The model has active queue management, which early drops may come from.
        let parameter = FittedParameter {
            kind: ParameterKind::OutputQueue,
            value: f64::NAN,
            low: 0.0,
            high: f64::INFINITY,
            unidentified: Some("drops met a queue that was not full".to_owned()),
            remedy: None,
        };
        let fit = DeviceFit {
            model,
            parameters: vec![parameter],
        };
        let runs = CalibratedRuns::new(Vec::new(), 2);
        let text = text(&runs, &fit);
        assert!(text.contains("not identified"), "{text}");
        assert!(!text.contains("outside the model"), "{text}");
    }
}
