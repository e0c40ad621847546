//! Self-contained HTML file: verdict, figures, plots, and the method of measurement.

use std::fmt::Write;

use anyhow::Result;
use measure::procedure::{CountedStream, StreamRecord};
use measure::turn_up::RunPurpose;
use measure::wire::TestDirection;

use super::plots::{PlotSeries, lines};
use super::{purpose, text};
use host::html::{STYLE, escape};
use measure::turn_up::{FinishedTest, RawRun};

/// Description of how path MTU, RTT and rate were found between two ends of ours.
const WHOLE: &str = "Path MTU: probes over UDP that may not be cut up, to the byte (RFC 8899). Baseline RTT: the \
    least of a hundred small UDP probes, less the time that the server kept them. Bottleneck: a UDP stream half \
    as fast again as the path, read once two seconds agree to 0.1 %; of IP packets, headers included. ";
/// ... against a server that counts,
const ONE_ENDED: &str = "One-ended. RTT: the least that TCP saw, with a small window. Bottleneck: UDP streams half \
    as fast again as the path; up, what the iperf3 server counted of a long one more than of a short one, down \
    what arrived here, once two seconds agree to 0.1 %; of IP packets, headers included. ";
/// ... and where nothing but TCP gets through.
const TCP_ALONE: &str = "TCP alone. RTT: the least that it saw, with a small window. What it reached with the \
    hosts&rsquo; own windows is the least that the path carries; the bottleneck is not known. ";
/// Description of the runs and their figures.
const RUNS: &str = "Runs: TCP with the window that the receiver offers bounded; <b>effective</b> is what the \
    sender&rsquo;s kernel saw of it, and <b>ideal</b> follows from that: window × 8 / baseline RTT, and no more \
    than the bottleneck carries of payload (RFC 6349 §3.3.1, §4.1). Throughput is without the run&rsquo;s start; \
    TCP efficiency is over all bytes of the run, by the kernel&rsquo;s counters (RFC 6349 §4.2); the average RTT \
    is of one sample a second (§4.3).";

/// The whole page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(finished: &FinishedTest) -> Result<String> {
    let mut out = begin("Turn-up test by RFC 6349", &text::headline(finished))?;
    let turn_up = &finished.turn_up;
    for direction in &turn_up.profile().directions {
        write_direction(&mut out, finished, *direction)?;
    }
    write!(
        out,
        "<h2>All figures</h2>\n<pre>{}</pre>\n",
        escape(&text::text(finished))
    )?;
    out += "<h2>How it was measured</h2>\n<p>";
    out += match (turn_up.is_tcp_alone(), turn_up.is_one_ended()) {
        (true, _) => TCP_ALONE,
        (false, true) => ONE_ENDED,
        (false, false) => WHOLE,
    };
    out += RUNS;
    out += "</p>\n";
    Ok(end(out))
}

/// A page's beginning: its title, and below it the verdict.
pub(super) fn begin(title: &str, headline: &str) -> Result<String> {
    let mut out = String::new();
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"note\">{}</p>\n",
        escape(headline)
    )?;
    Ok(out)
}

/// The page, whole.
pub(super) fn end(mut page: String) -> String {
    page += "</body></html>\n";
    page
}

/// Heading of a direction's charts.
pub(super) fn heading(direction: TestDirection) -> String {
    let name = match direction {
        TestDirection::Up => "Up",
        TestDirection::Down => "Down",
    };
    format!("<h2>{name}</h2>\n")
}

/// The chart that is left out where there is nothing in it.
const RETRANSMISSIONS: &str = "Retransmissions";

/// Figure of one second that a chart shows.
type SecondFigure = fn(&measure::run::RunSecond) -> Option<f64>;

fn write_direction(
    out: &mut String,
    finished: &FinishedTest,
    direction: TestDirection,
) -> Result<()> {
    let known = finished.turn_up.known(direction);
    let name = direction.name();
    *out += &heading(direction);
    let counted = known.counted.iter().filter_map(CountedStream::record);
    let records: Vec<StreamRecord> = known.streams.iter().cloned().chain(counted).collect();
    let streams: Vec<PlotSeries> = records
        .iter()
        .map(|record| PlotSeries {
            name: format!("offered {}", record.plan.rate),
            points: record
                .seconds()
                .iter()
                .map(|second| (second.at.as_secs_f64(), mbit(second.rate.bits_per_second())))
                .collect(),
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    if !streams.is_empty() {
        *out += &lines(
            &format!("What arrived of the streams, {name}"),
            "seconds",
            "Mbit/s of IP packets",
            &streams,
        )?;
    }
    let mut walk: Vec<(f64, f64, f64)> = known
        .runs
        .iter()
        .filter(|run| matches!(run.plan.purpose, RunPurpose::Walk(_) | RunPurpose::Listed))
        .filter_map(|run| {
            let found = run.figures.as_ref()?;
            let window = found.effective_window?.bytes() as f64 / 1e3;
            let (got, ideal) = (found.throughput, found.ideal?);
            Some((
                window,
                mbit(got.bits_per_second()),
                mbit(ideal.bits_per_second()),
            ))
        })
        .collect();
    walk.sort_by(|one, other| one.0.total_cmp(&other.0));
    if !walk.is_empty() {
        let series = [
            PlotSeries {
                name: "ideal".to_owned(),
                points: walk.iter().map(|point| (point.0, point.2)).collect(),
            },
            PlotSeries {
                name: "measured".to_owned(),
                points: walk.iter().map(|point| (point.0, point.1)).collect(),
            },
        ];
        *out += &lines(
            &format!("Window walk, {name}"),
            "effective window, kB",
            "Mbit/s of payload",
            &series,
        )?;
    }
    let runs: Vec<&RawRun> = finished
        .runs
        .iter()
        .filter(|run| run.direction == direction)
        .collect();
    let charts: [(&str, &str, SecondFigure); 3] = [
        ("Throughput", "Mbit/s of payload", |second| {
            Some(mbit(second.throughput.bits_per_second()))
        }),
        ("RTT", "ms", |second| Some(second.rtt?.as_secs_f64() * 1e3)),
        (RETRANSMISSIONS, "kB in the second", |second| {
            Some(second.retransmitted?.bytes() as f64 / 1e3)
        }),
    ];
    for (title, unit, of) in charts {
        let series: Vec<PlotSeries> = runs
            .iter()
            .map(|run| PlotSeries {
                name: purpose(&finished.turn_up, &run.plan, direction),
                points: run
                    .seconds
                    .iter()
                    .filter_map(|second| Some((second.at.as_secs_f64(), of(second)?)))
                    .collect(),
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        let mut points = series.iter().flat_map(|one| &one.points);
        if series.is_empty() {
            continue;
        }
        if title == RETRANSMISSIONS && points.all(|point| point.1 == 0.0) {
            writeln!(out, "<p>{title}, {name}: none in any run.</p>")?;
            continue;
        }
        *out += &lines(&format!("{title}, {name}"), "seconds", unit, &series)?;
    }
    Ok(())
}

fn mbit(bits: u64) -> f64 {
    bits as f64 / 1e6
}
