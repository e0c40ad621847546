//! Reports of a validation as text and as JSON.

use std::fmt::Write;

use host::terminal::write_hanging;
use profile::TransferFigures;
use serde_json::{Value, json};

use crate::fit_report::{
    calibration_document, parameters_document, write_calibration, write_remarks,
};
use crate::validation::{ModelPrediction, ModelValidation, RunComparison, ValidatedModel};

/// Renders the validation for a terminal of 80 columns.
#[must_use]
pub fn text(validation: &ModelValidation) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "model {}: {} held-out runs; delays within {:.2} us count as equal",
        validation.model.name,
        validation.runs.len(),
        validation.resolution.as_secs_f64() * 1e6
    );
    write_calibration(&mut out, validation.calibration.as_ref());
    for run in &validation.runs {
        write_run(&mut out, run);
    }
    out.push('\n');
    write_hanging(&mut out, "", 0, verdict(validation).split_whitespace());
    write_hanging(&mut out, "", 0, METHOD.split_whitespace());
    write_remarks(&mut out, &validation.remarks);
    out
}

/// Description of the columns.
const METHOD: &str = "KS is the greatest distance of the two distributions of delays. p50, p95 and p99 are \
    errors of these delays, goodput that of all bytes, flow p95 the error of a flow's goodput that 95 % of \
    the flows do not exceed; all as shares of the measured value. fifo is a single FIFO output queue, hohn \
    the minimum transit with a fluid queue (Hohn et al.); both are fitted to the same records.";

/// Sentence that counts the runs in which our model is best.
pub(crate) fn verdict(validation: &ModelValidation) -> String {
    if validation.baselines.is_empty() {
        return "No baseline was fitted, because the measurement has no runs for a fit.".to_owned();
    }
    let best = validation
        .runs
        .iter()
        .filter(|run| run.is_ours_best())
        .count();
    format!(
        "The model has the smallest KS distance and the smallest p95 error in {best} of {} runs.",
        validation.runs.len()
    )
}

fn write_run(out: &mut String, run: &RunComparison) {
    let _ = writeln!(
        out,
        "\nrun {} ({}): {} packets",
        run.plan.number, run.plan.experiment, run.packets
    );
    let _ = writeln!(
        out,
        "{:<8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "", "KS", "p50 %", "p95 %", "p99 %", "loss %", "goodput %", "flow p95"
    );
    if let Some(first) = run.predictions.first() {
        let measured = &first.score.measured;
        let _ = writeln!(
            out,
            "{:<8} {:>7} {:>8} {:>8} {:>8} {:>8.4}   (us; {:.3} Mbit/s)",
            "device",
            "-",
            micros(measured.delay_p50),
            micros(measured.delay_p95),
            micros(measured.delay_p99),
            measured.loss_ratio * 100.0,
            measured.goodput_bps / 1e6,
        );
    }
    for prediction in &run.predictions {
        let score = &prediction.score;
        let _ = writeln!(
            out,
            "{:<8} {:>7.4} {:>8.2} {:>8.2} {:>8.2} {:>8.4} {:>9.3} {:>7.2}%",
            prediction.model.name(),
            score.ks_distance,
            score.p50_error() * 100.0,
            score.p95_error() * 100.0,
            score.p99_error() * 100.0,
            score.predicted.loss_ratio * 100.0,
            score.goodput_error() * 100.0,
            score.flows.p95 * 100.0,
        );
    }
}

fn micros(span: std::time::Duration) -> String {
    format!("{:.1}", span.as_secs_f64() * 1e6)
}

/// Renders the validation as one JSON object.
#[must_use]
pub fn document(validation: &ModelValidation) -> Value {
    let best = validation
        .runs
        .iter()
        .filter(|run| run.is_ours_best())
        .count();
    json!({
        "model": validation.model,
        "resolution_ns": validation.resolution.as_nanos() as u64,
        "calibration": calibration_document(validation.calibration.as_ref()),
        "parameters": validation.fit.as_ref().map(parameters_document),
        "baselines": validation
            .baselines
            .iter()
            .map(|(which, model)| json!({"name": which.name(), "model": model}))
            .collect::<Vec<_>>(),
        "runs_best": best,
        "runs": validation.runs.iter().map(run_document).collect::<Vec<_>>(),
        "remarks": validation.remarks,
    })
}

fn run_document(run: &RunComparison) -> Value {
    let measured = run.predictions.first().map(|first| first.score.measured);
    let predictions: serde_json::Map<String, Value> = run
        .predictions
        .iter()
        .map(|prediction| {
            (
                prediction.model.name().to_owned(),
                prediction_document(prediction),
            )
        })
        .collect();
    json!({
        "run": run.plan.number,
        "experiment": run.plan.experiment,
        "repetition": run.plan.repetition,
        "packets": run.packets,
        "measured": measured.as_ref().map(figures_document),
        "predictions": predictions,
        "model_is_best": run.is_ours_best(),
    })
}

fn prediction_document(prediction: &ModelPrediction) -> Value {
    let score = &prediction.score;
    json!({
        "ks_distance": score.ks_distance,
        "p50_error": score.p50_error(),
        "p95_error": score.p95_error(),
        "p99_error": score.p99_error(),
        "loss_error": score.loss_error(),
        "goodput_error": score.goodput_error(),
        "flows": score.flows.flows,
        "flow_goodput_error_p50": score.flows.p50,
        "flow_goodput_error_p95": score.flows.p95,
        "predicted": figures_document(&score.predicted),
    })
}

fn figures_document(figures: &TransferFigures) -> Value {
    json!({
        "delay_p50_ns": figures.delay_p50.as_nanos() as u64,
        "delay_p95_ns": figures.delay_p95.as_nanos() as u64,
        "delay_p99_ns": figures.delay_p99.as_nanos() as u64,
        "loss_ratio": figures.loss_ratio,
        "goodput_bps": figures.goodput_bps,
    })
}

/// Names of the models in legends.
pub(crate) const fn legend(model: ValidatedModel) -> &'static str {
    match model {
        ValidatedModel::Ours => "our model",
        ValidatedModel::SingleQueue => "single FIFO output queue",
        ValidatedModel::FluidQueue => "Hohn et al., fluid queue",
    }
}
