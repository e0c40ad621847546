//! Reports of a measurement, as text in the form of the published tables and as JSON.

use std::fmt::Write;

use profile::MeasurementSubject;
use serde_json::{Value, json};

use crate::measurement::{MeasurementCell, MeasurementResult, RunResult};
use crate::published;
use crate::run::RunEnd;

/// Renders the tables: delays in microseconds by size and rate, for cable and device.
#[must_use]
pub fn text(result: &MeasurementResult) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "plan {}: {} of {} runs",
        result.plan,
        result.runs.len(),
        result.planned_runs
    );
    let _ = writeln!(out, "stamps: {}", crate::STAMPS);
    let _ = writeln!(
        out,
        "\n{:<16} {:<6} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6} runs",
        "experiment", "path", "bytes", "sent/s", "p5 us", "mean us", "p95 us", "loss %", "own %"
    );
    for cell in &result.cells {
        let _ = writeln!(out, "{}", row(cell));
    }
    let mut device = result
        .cells
        .iter()
        .filter(|cell| cell.subject == MeasurementSubject::Device)
        .filter_map(|cell| Some((cell, net_mean_ns(result, cell)?)))
        .peekable();
    if device.peek().is_some() {
        let _ = writeln!(
            out,
            "\nmean delay of the device alone (minus the cable's mean):"
        );
        for (cell, mean) in device {
            let _ = writeln!(
                out,
                "{:<22} {:>6} bytes {:>10.2} us",
                cell.experiment,
                optional(cell.size),
                mean / 1e3
            );
        }
    }
    published::write_text(&mut out, result);
    for line in findings(result) {
        let _ = writeln!(out, "\n{line}");
    }
    out
}

fn row(cell: &MeasurementCell) -> String {
    let figures = cell.delays.figures();
    let micros = |value: Option<f64>| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value / 1e3))
    };
    let runs = match cell.void_runs {
        0 => cell.valid_runs.to_string(),
        void => format!("{} ({void} void)", cell.valid_runs),
    };
    format!(
        "{:<16} {:<6} {:>5} {:>7.0} {:>7} {:>7} {:>7} {:>7} {:>6} {runs}",
        cell.experiment,
        path(cell.subject),
        optional(cell.size),
        cell.sent_pps,
        micros(figures.map(|figures| f64::from(figures.p5_ns))),
        micros(figures.map(|figures| figures.mean_ns)),
        micros(figures.map(|figures| f64::from(figures.p95_ns))),
        format!("{:.4}", cell.summary.loss_ratio() * 100.0),
        format!("{:.4}", own_loss(cell) * 100.0),
    )
}

/// Renders everything as one JSON object.
#[must_use]
pub fn document(result: &MeasurementResult) -> Value {
    json!({
        "plan": result.plan,
        "stamps": crate::STAMPS,
        "planned_runs": result.planned_runs,
        "measured_runs": result.runs.len(),
        "failure": result.failure,
        "findings": findings(result),
        "records": result.records,
        "published": published::document(result),
        "cells": result.cells.iter().map(|cell| cell_document(result, cell)).collect::<Vec<_>>(),
        "runs": result.runs.iter().map(run_document).collect::<Vec<_>>(),
    })
}

fn cell_document(result: &MeasurementResult, cell: &MeasurementCell) -> Value {
    json!({
        "experiment": cell.experiment,
        "subject": cell.subject,
        "size_bytes": cell.size,
        "planned_pps": cell.planned_pps,
        "sent_pps": cell.sent_pps,
        "received_pps": cell.received_pps,
        "valid_runs": cell.valid_runs,
        "void_runs": cell.void_runs,
        "packets": cell.packets,
        "lost": cell.summary.lost,
        "loss_ratio": cell.summary.loss_ratio(),
        "own_loss": own_loss(cell),
        "delay": cell.delays.figures(),
        "mean_minus_cable_ns": net_mean_ns(result, cell),
    })
}

fn run_document(run: &RunResult) -> Value {
    let outcome = &run.outcome;
    let summary = &outcome.summary;
    json!({
        "run": outcome.plan.number,
        "experiment": outcome.plan.experiment,
        "subject": outcome.plan.subject,
        "repetition": outcome.plan.repetition,
        "end": outcome.end,
        "void": outcome.is_void(),
        "sent_pps": outcome.sent_pps,
        "received_pps": outcome.received_pps,
        "sent": summary.sent,
        "delivered": summary.delivered,
        "reordered": summary.reordered,
        "duplicated": summary.duplicated,
        "corrupted": summary.corrupted,
        "lost": summary.lost,
        "lost_at_port": summary.lost_at_port,
        "own_loss": outcome.own_loss(),
        "ports": outcome.ports,
        "arrivals": outcome.arrivals,
        "latest_sent_us": outcome.latest_sent.as_nanos() as f64 / 1e3,
        "user_stamp_error_max_us": outcome.stamp_lag_max.as_nanos() as f64 / 1e3,
        "clock_step_ms": outcome.clock_step.map(|step| step.as_secs_f64() * 1e3),
        "delay": run.delays,
    })
}

/// Sentences about everything that a reader has to know.
fn findings(result: &MeasurementResult) -> Vec<String> {
    let mut lines = result.notes.clone();
    let sum = |count: &dyn Fn(&RunResult) -> u64| result.runs.iter().map(count).sum::<u64>();
    let mut say = |count: u64, text: &str| {
        if count > 0 {
            lines.push(format!("{count} {text}"));
        }
    };
    say(
        sum(&|run| run.outcome.arrivals.rewritten),
        "packets came with other addresses or ports: the device rewrites them, and they count as corrupted",
    );
    say(
        sum(&|run| run.outcome.arrivals.fragments),
        "fragments came: the device has a smaller MTU; use sizes that it forwards whole",
    );
    say(
        sum(&|run| run.outcome.arrivals.returned),
        "packets came back to the port that sent them: the device reflects them, or has no route for them",
    );
    say(
        sum(&|run| run.outcome.arrivals.misrouted),
        "packets left the device through another port than expected: check its routes and the cables",
    );
    say(
        sum(&|run| run.outcome.arrivals.late),
        "packets came after they counted as lost: raise loss_after in the plan",
    );
    say(
        sum(&|run| run.outcome.arrivals.of_earlier_runs),
        "packets came after the end of their run: raise loss_after in the plan",
    );
    for run in &result.runs {
        for icmp in &run.outcome.arrivals.icmp {
            lines.push(format!(
                "run {}: {} ICMP messages of type {}, code {} came",
                run.outcome.plan.number, icmp.messages, icmp.kind, icmp.code
            ));
        }
        if let Some(step) = run.outcome.clock_step {
            lines.push(format!(
                "run {} is void: the system's clock was set by {:.3} s",
                run.outcome.plan.number,
                step.as_secs_f64()
            ));
        } else if run.outcome.own_loss() > profile::OWN_LOSS_MAX {
            lines.push(format!(
                "run {} is void: our own ports lost {:.4} % of its packets ({} dropped by rings, {} by drivers, {} refused, {} stamps lost); lower the rate, or stop other programs",
                run.outcome.plan.number,
                run.outcome.own_loss() * 100.0,
                run.outcome.ports.ring_drops,
                run.outcome.ports.driver_drops,
                run.outcome.ports.refused,
                run.outcome.ports.lost_stamps
            ));
        }
        if run.outcome.end != RunEnd::Complete {
            lines.push(format!(
                "run {} is void: it ended before its time, with packets on their way",
                run.outcome.plan.number
            ));
        }
    }
    if let Some(records) = &result.records
        && records.missing_rows > 0
    {
        lines.push(format!(
            "{} records are missing ({:?}): raise the limit, or free space on the disk",
            records.missing_rows, records.end
        ));
    }
    lines.extend(result.failure.clone());
    lines
}

/// Mean delay of a device's cell without the cable's.
fn net_mean_ns(result: &MeasurementResult, cell: &MeasurementCell) -> Option<f64> {
    if cell.subject == MeasurementSubject::Cable {
        return None;
    }
    let cable = result.cable_of(cell)?.delays.figures()?;
    Some(cell.delays.figures()?.mean_ns - cable.mean_ns)
}

fn own_loss(cell: &MeasurementCell) -> f64 {
    match cell.packets {
        0 => 0.0,
        packets => cell.own_losses / packets as f64,
    }
}

fn path(subject: MeasurementSubject) -> &'static str {
    match subject {
        MeasurementSubject::Cable => "cable",
        MeasurementSubject::Device => "device",
    }
}

fn optional(value: Option<u64>) -> String {
    value.map_or_else(|| "mixed".to_owned(), |value| value.to_string())
}
