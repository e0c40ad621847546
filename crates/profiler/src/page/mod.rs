//! Self-contained HTML report of a validation: verdict, figures of each held-out run, plots of delays,
//! residuals and loss, parameters with intervals, calibration and method.

mod measurement;
mod plots;

use std::fmt::Write;

use anyhow::Result;
use host::html::{STYLE, escape};

use crate::fit_report::{is_identified, parameter_row};
use crate::validation::{ModelPrediction, ModelValidation, RunComparison, ValidatedModel};
use crate::validation_report::{legend, verdict};
pub use measurement::measurement_html;
use plots::{BarGroup, CurveStyle, LOGARITHM_LEAST, PlotAxis, PlotCurve, bars, curves};

/// Style of this report beside that of all reports.
const PAGE_STYLE: &str = "
svg.narrow { display: none; }
h2, h3 { break-after: avoid; } figure { margin: 0.6rem 0; break-inside: avoid; }
td.text, th.text { text-align: left; overflow-wrap: break-word; min-width: 6.5em; }
td.name, th.name { text-align: left; white-space: nowrap; }
.scroll { overflow-x: auto; }
@media (max-width: 760px) { table { font-size: 0.72rem; } th, td { padding: 0.15rem 0.2rem; } }
.key { display: inline-block; width: 1.2em; height: 0.7em; margin: 0 0.3em 0 0.9em; }
.key:first-child { margin-left: 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; }
@media (max-width: 639px) {
  body { margin: 0.6rem auto; padding: 0 0.5rem; }
  svg.wide { display: none; } svg.narrow { display: block; }
}
@media print { :root { color-scheme: light; } body { max-width: none; margin: 0; font-size: 10pt; } }
";
/// Runs with plots of their own; the table has all.
const PLOTTED_RUNS_MAX: usize = 12;
/// Groups of bars that fit beside each other on a narrow screen.
const BAR_GROUPS_MAX: usize = 6;
/// Share of the residuals at each end that a plot leaves out: single packets would set its scale.
const RESIDUAL_TAIL: f64 = 0.01;

/// The whole page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(validation: &ModelValidation) -> Result<String> {
    let title = match validation.model.name.as_str() {
        "" => "Device model on held-out traffic".to_owned(),
        name => format!("Model of {} on held-out traffic", escape(name)),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{PAGE_STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"note\">{}</p>\n",
        escape(&verdict(validation))
    );
    write_summary(&mut out, validation)?;
    write_loss(&mut out, validation)?;
    for run in validation.runs.iter().take(PLOTTED_RUNS_MAX) {
        write_run(&mut out, run)?;
    }
    if validation.runs.len() > PLOTTED_RUNS_MAX {
        writeln!(
            out,
            "<p>The other {} runs are in the table above.</p>",
            validation.runs.len() - PLOTTED_RUNS_MAX
        )?;
    }
    write_parameters(&mut out, validation)?;
    write_calibration(&mut out, validation)?;
    write_method(&mut out, validation)?;
    out += "</body></html>\n";
    Ok(out)
}

fn style_of(model: ValidatedModel) -> CurveStyle {
    match model {
        ValidatedModel::Ours => CurveStyle::Ours,
        ValidatedModel::SingleQueue => CurveStyle::SingleQueue,
        ValidatedModel::FluidQueue => CurveStyle::FluidQueue,
    }
}

fn write_legend(out: &mut String, predictions: &[ModelPrediction]) -> Result<()> {
    let mut keys = vec![(CurveStyle::Measured, "device")];
    keys.extend(
        predictions
            .iter()
            .map(|one| (style_of(one.model), legend(one.model))),
    );
    *out += "<p>";
    for (style, name) in keys {
        write!(
            out,
            "<span class=\"key\" style=\"background:{}\"></span>{name}",
            style.css()
        )?;
    }
    *out += "</p>\n";
    Ok(())
}

fn write_summary(out: &mut String, validation: &ModelValidation) -> Result<()> {
    *out += "<h2>Held-out runs</h2>\n<table><thead><tr><th>run</th><th class=\"text\">model</th>\
             <th>KS distance</th><th>p50 error %</th><th>p95 error %</th><th>p99 error %</th>\
             <th>loss %</th><th>goodput error %</th><th>flow error %</th></tr></thead><tbody>\n";
    for run in &validation.runs {
        if let Some(first) = run.predictions.first() {
            let measured = &first.score.measured;
            writeln!(
                out,
                "<tr class=\"sum\"><td>{}</td><td class=\"text\">{}</td><td></td><td>{:.1} µs</td>\
                 <td>{:.1} µs</td><td>{:.1} µs</td><td>{:.4}</td><td>{:.2} Mbit/s</td><td></td></tr>",
                run.plan.number,
                escape(&run.plan.experiment),
                micros(measured.delay_p50),
                micros(measured.delay_p95),
                micros(measured.delay_p99),
                measured.loss_ratio * 100.0,
                measured.goodput_bps / 1e6,
            )?;
        }
        for prediction in &run.predictions {
            let score = &prediction.score;
            writeln!(
                out,
                "<tr><td></td><td class=\"text\">{}</td><td>{:.4}</td><td>{:.2}</td><td>{:.2}</td>\
                 <td>{:.2}</td><td>{:.4}</td><td>{:.3}</td><td>{:.2}</td></tr>",
                legend(prediction.model),
                score.ks_distance,
                score.p50_error() * 100.0,
                score.p95_error() * 100.0,
                score.p99_error() * 100.0,
                score.predicted.loss_ratio * 100.0,
                score.goodput_error() * 100.0,
                score.flows.p95 * 100.0,
            )?;
        }
    }
    *out += "</tbody></table>\n";
    Ok(())
}

fn write_loss(out: &mut String, validation: &ModelValidation) -> Result<()> {
    *out += "<h2>Loss</h2>\n";
    let loss = |run: &RunComparison| -> Vec<(CurveStyle, f64)> {
        let measured = run.predictions.first().map(|first| {
            (
                CurveStyle::Measured,
                first.score.measured.loss_ratio * 100.0,
            )
        });
        let predicted = run
            .predictions
            .iter()
            .map(|one| (style_of(one.model), one.score.predicted.loss_ratio * 100.0));
        measured.into_iter().chain(predicted).collect()
    };
    let groups: Vec<BarGroup> = validation
        .runs
        .iter()
        .map(|run| BarGroup {
            name: format!("run {}", run.plan.number),
            bars: loss(run),
        })
        .collect();
    let highest = groups
        .iter()
        .flat_map(|group| &group.bars)
        .map(|(_, value)| *value)
        .fold(0.0, f64::max);
    if highest <= 0.0 {
        *out += "<p>Neither the device nor a model lost a packet.</p>\n";
        return Ok(());
    }
    if let Some(first) = validation.runs.first() {
        write_legend(out, &first.predictions)?;
    }
    let axis = PlotAxis::linear("loss, % of packets", 0.0, highest * 1.05);
    for groups in groups.chunks(BAR_GROUPS_MAX) {
        writeln!(out, "<figure>{}</figure>", bars(&axis, groups)?)?;
    }
    Ok(())
}

fn write_run(out: &mut String, run: &RunComparison) -> Result<()> {
    writeln!(
        out,
        "<h2>Run {}: {}</h2>\n<p>{} packets.</p>",
        run.plan.number,
        escape(&run.plan.experiment),
        run.packets
    )?;
    write_legend(out, &run.predictions)?;
    write_delays(out, run)?;
    write_residuals(out, run)
}

/// Points of a distribution: each value of the curve with its share.
fn shares(curve: &[f64]) -> impl Iterator<Item = (f64, f64)> + '_ {
    let last = curve.len().saturating_sub(1).max(1) as f64;
    curve
        .iter()
        .enumerate()
        .map(move |(index, value)| (*value, index as f64 / last))
}

fn write_delays(out: &mut String, run: &RunComparison) -> Result<()> {
    *out += "<h3>Delays</h3>\n";
    let all = || {
        let predicted = run.predictions.iter().flat_map(|one| &one.delays_us);
        run.measured_us.iter().chain(predicted).copied()
    };
    let (low, high) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(0.0, f64::max),
    );
    let x = PlotAxis::logarithmic("delay, µs", low * 0.9, high * 1.1);
    let y = PlotAxis::linear("share of packets", 0.0, 1.0);
    let line = |style, curve: &[f64]| PlotCurve {
        style,
        points: shares(curve)
            .map(|(value, share)| (value.max(LOGARITHM_LEAST).log10(), share))
            .collect(),
    };
    let mut lines = vec![line(CurveStyle::Measured, &run.measured_us)];
    // Ours is drawn last, above the baselines.
    lines.extend(
        run.predictions
            .iter()
            .rev()
            .map(|one| line(style_of(one.model), &one.delays_us)),
    );
    writeln!(out, "<figure>{}</figure>", curves(&x, &y, &lines)?)?;
    Ok(())
}

fn write_residuals(out: &mut String, run: &RunComparison) -> Result<()> {
    *out += "<h3>Residuals</h3>\n<p>Predicted less measured delay of packets that the device and the \
             model deliver, from the 1st to the 99th percentile.</p>\n";
    let lines: Vec<PlotCurve> = run
        .predictions
        .iter()
        .rev()
        .map(|one| PlotCurve {
            style: style_of(one.model),
            points: shares(&one.residuals_us)
                .filter(|(_, share)| (RESIDUAL_TAIL..=1.0 - RESIDUAL_TAIL).contains(share))
                .map(|(value, share)| (share * 100.0, value))
                .collect(),
        })
        .collect();
    let all = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.1)
    };
    let (low, high) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
    let room = ((high - low) * 0.05).max(0.01);
    let x = PlotAxis::linear("packets with a smaller residual, %", 0.0, 100.0);
    let y = PlotAxis::linear("residual, µs", low - room, high + room);
    writeln!(out, "<figure>{}</figure>", curves(&x, &y, &lines)?)?;
    Ok(())
}

fn write_parameters(out: &mut String, validation: &ModelValidation) -> Result<()> {
    let Some(fit) = &validation.fit else {
        return Ok(());
    };
    *out += "<h2>Parameters of this measurement</h2>\n<p>The fit of the whole model to the records of \
             this measurement.</p>\n<table><thead><tr><th>parameter</th><th>value</th>\
             <th>interval</th></tr></thead><tbody>\n";
    for parameter in fit.parameters.iter().filter(|one| is_identified(one)) {
        let row = parameter_row(parameter, &fit.model);
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            row.name, row.value, row.interval
        )?;
    }
    *out += "</tbody></table>\n";
    let mut unidentified = fit
        .parameters
        .iter()
        .filter_map(|one| Some((one, one.unidentified.as_ref()?)))
        .peekable();
    if unidentified.peek().is_some() {
        *out += "<p>The records do not determine these parameters:</p>\n<ul>\n";
        for (parameter, reason) in unidentified {
            let remedy = parameter
                .remedy
                .map(|remedy| format!(" To identify it: {}.", escape(remedy)));
            writeln!(
                out,
                "<li>{}: {}.{}</li>",
                parameter.kind,
                escape(reason),
                remedy.unwrap_or_default()
            )?;
        }
        *out += "</ul>\n";
    }
    Ok(())
}

fn write_calibration(out: &mut String, validation: &ModelValidation) -> Result<()> {
    let Some(calibration) = &validation.calibration else {
        return Ok(());
    };
    write!(
        out,
        "<h2>Calibration</h2>\n<p>Delays over a cable between the same ports. The least delay of each \
         size is subtracted from the delays of the device. The noise of the stamps is {:.2} µs.</p>\n\
         <table><thead><tr><th>bytes</th><th>packets</th><th>least µs</th><th>p5 µs</th>\
         <th>mean µs</th><th>p95 µs</th></tr></thead><tbody>\n",
        micros(calibration.noise())
    )?;
    for delay in calibration.sizes() {
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td></tr>",
            delay.size,
            delay.packets,
            micros(delay.least),
            micros(delay.p5),
            micros(delay.mean),
            micros(delay.p95)
        )?;
    }
    *out += "</tbody></table>\n";
    Ok(())
}

fn write_method(out: &mut String, validation: &ModelValidation) -> Result<()> {
    writeln!(
        out,
        "<h2>How it was measured</h2>\n<p>The packets of a held-out run enter each model at the times \
         at which they entered the device, so the senders do not react to the model. KS is the \
         greatest distance of the two distributions of delays (Kolmogorov and Smirnov); delays that \
         differ by {:.2} µs or less count as equal. The flow error is the error of a flow&rsquo;s \
         goodput that 95 % of the flows do not exceed. The single FIFO output queue has a constant \
         delay, a rate and a limit in packets or in bytes. The model after Hohn, Veitch, Papagiannaki and Diot \
         has a minimum transit by size and a fluid output queue in bytes. One search fits the \
         outputs of both to the same records.</p>",
        micros(validation.resolution)
    )?;
    if !validation.remarks.is_empty() {
        *out += "<ul>\n";
        for remark in &validation.remarks {
            writeln!(out, "<li>{}</li>", escape(remark))?;
        }
        *out += "</ul>\n";
    }
    *out += "<h2>The model</h2>\n";
    writeln!(
        out,
        "<pre>{}</pre>",
        escape(&toml::to_string(&validation.model)?)
    )?;
    Ok(())
}

fn micros(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1e6
}
