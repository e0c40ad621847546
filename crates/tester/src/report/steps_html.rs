//! HTML pages for stream tests: verdict, plots over the offered load and over frame sizes, and the
//! terminal's tables.

use std::fmt::Write;

use anyhow::Result;
use measure::steps::{
    ServicePart, ServiceProcedure, SizeResult, StepResult, StreamResult, ThroughputProcedure,
};
use measure::wire::TestDirection;
use vocab::Bitrate;

use super::html::{begin, end, heading};
use super::plots::{PlotSeries, lines};
use super::steps::{received, service_text, throughput_text};
use crate::steps::SteppedTest;
use host::html::escape;

/// The page for a service test: arrivals, losses and delays, over the offered load.
///
/// # Errors
/// Fails when a plot cannot be drawn.
pub fn service_html(stepped: &SteppedTest<ServiceProcedure>) -> Result<String> {
    let service = &stepped.found;
    let text = service_text(stepped);
    let mut out = begin("Service test by ITU-T Y.1564", &first_paragraph(&text))?;
    for direction in &service.plan().directions {
        write_service(&mut out, service, *direction)?;
    }
    write_text(&mut out, &text)?;
    out += "<h2>How it was measured</h2>\n\
        <p>UDP streams at a constant rate, each direction by itself: CIR in quarters, CIR + EIR, and a quarter \
        above that. Of the last two the rate is read once buckets were empty. Rates count whole Ethernet \
        frames. The round trip is the least of small probes and the mean frame&rsquo;s wait in the one \
        direction that was loaded; the two clocks need not agree. Steps whose rate the sender did not keep, or \
        the receiver had no room for, are in no plot.</p>\n";
    Ok(end(out))
}

fn write_service(
    out: &mut String,
    service: &ServiceProcedure,
    direction: TestDirection,
) -> Result<()> {
    let name = direction.name();
    // Performance repeats CIR for a long time, and a rate that the sender did not keep, or the receiver had no room
    // for, tells nothing of the path; all are in the table.
    let steps = |frame: u16| {
        service.done().iter().filter(move |step| {
            step.direction == direction
                && step.frame == frame
                && !matches!(step.part, ServicePart::Performance)
                && step.seen.is_kept
                && !step.seen.is_overrun()
        })
    };
    let offered = |step: &StepResult| mbit(step.seen.offered.unwrap_or(step.asked));
    let frames = &service.plan().frames;
    let of_each = |of: &dyn Fn(&StepResult) -> Option<f64>| -> Vec<PlotSeries> {
        let series = frames.iter().map(|frame| PlotSeries {
            name: format!("frames of {frame} bytes"),
            points: steps(*frame)
                .filter_map(|step| Some((offered(step), of(step)?)))
                .collect(),
        });
        series.filter(|one| !one.points.is_empty()).collect()
    };
    let mut arrived = of_each(&|step| received(step).map(mbit));
    if arrived.is_empty() {
        return Ok(());
    }
    out.push_str(&heading(direction));
    let plan = service.plan();
    let most = frames
        .iter()
        .flat_map(|frame| steps(*frame))
        .map(offered)
        .fold(0.0, f64::max);
    let bought = mbit(plan.committed) + mbit(plan.excess);
    arrived.push(PlotSeries {
        name: "CIR + EIR".to_owned(),
        points: vec![(0.0, bought), (most, bought)],
    });
    arrived.push(PlotSeries {
        name: "all of it".to_owned(),
        points: vec![(0.0, 0.0), (most, most)],
    });
    let x = "offered, Mbit/s of frames";
    *out += &lines(
        &format!("Information rate, {name}"),
        x,
        "arrived, Mbit/s of frames",
        &arrived,
    )?;
    let lost = of_each(&|step| loss_percent(&step.seen));
    write_or_none(
        out,
        "Frame loss",
        name,
        "none at any step",
        (x, "% of frames"),
        &lost,
    )?;
    for (title, of) in ROUND_TRIPS {
        let series = of_each(&|step| of(&step.seen));
        if !series.is_empty() {
            *out += &lines(&format!("{title}, {name}"), x, "ms", &series)?;
        }
    }
    Ok(())
}

/// Frame loss; `None` where nothing was sent.
fn loss_percent(seen: &StreamResult) -> Option<f64> {
    (seen.sent > 0).then(|| 100.0 * seen.loss_ratio())
}

/// Figure of one stream that a chart shows.
type StreamFigure = fn(&StreamResult) -> Option<f64>;

const ROUND_TRIPS: [(&str, StreamFigure); 2] = [
    ("Round trip of the mean frame", |seen| {
        Some(seen.round_trip?.as_secs_f64() * 1e3)
    }),
    ("Frame delay variation", |seen| {
        Some(seen.variation?.as_secs_f64() * 1e3)
    }),
];

/// The page on throughput: both bounds and the round trip over the frame size, and loss over the offered load.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn throughput_html(stepped: &SteppedTest<ThroughputProcedure>) -> Result<String> {
    let test = &stepped.found;
    let text = throughput_text(stepped);
    let mut out = begin("Throughput test after RFC 2544", &first_paragraph(&text))?;
    for direction in &test.plan().directions {
        let of_direction = test.done().iter().filter(|(of, _)| of == direction);
        let mut sizes: Vec<&SizeResult> = of_direction.map(|(_, found)| found).collect();
        sizes.sort_by_key(|found| found.frame);
        write_sizes(&mut out, *direction, &sizes)?;
    }
    write_text(&mut out, &text)?;
    out += "<h2>How it was measured</h2>\n\
        <p>UDP streams at a constant rate, each direction by itself. A load is carried when the trials of it \
        keep the stated goal, and the search ends with a load that is carried and one that is not (MLRsearch). \
        Frame loss is measured from half above the throughput down in tenths (RFC 2544 §26.3), back-to-back \
        bursts by RFC 9004. Rates count whole Ethernet frames. The round trip is the least of small probes and \
        the mean frame&rsquo;s wait in the one direction that was loaded. Loads that the sender did not keep are in \
        no plot.</p>\n";
    Ok(end(out))
}

fn write_sizes(out: &mut String, direction: TestDirection, sizes: &[&SizeResult]) -> Result<()> {
    let name = direction.name();
    let over_sizes = |name: &str, of: &dyn Fn(&SizeResult) -> Option<f64>| PlotSeries {
        name: name.to_owned(),
        points: sizes
            .iter()
            .filter_map(|found| Some((f64::from(found.frame), of(found)?)))
            .collect(),
    };
    let with_points = |series: Vec<PlotSeries>| -> Vec<PlotSeries> {
        let all = series.into_iter();
        all.filter(|one| !one.points.is_empty()).collect()
    };
    let x = "bytes of a frame";
    let bounds = with_points(vec![
        over_sizes("carried", &|found| found.lower.map(mbit)),
        over_sizes("not carried", &|found| found.not_carried().map(mbit)),
    ]);
    if bounds.is_empty() {
        return Ok(());
    }
    out.push_str(&heading(direction));
    *out += &lines(
        &format!("Throughput, {name}"),
        x,
        "Mbit/s of frames",
        &bounds,
    )?;
    let trips = ROUND_TRIPS.map(|(title, of)| over_sizes(title, &|found| of(&found.at_lower?)));
    let trips = with_points(trips.into());
    if !trips.is_empty() {
        let title = format!("Delay at the load that is carried, {name}");
        *out += &lines(&title, x, "ms", &trips)?;
    }
    let losses = with_points(
        sizes
            .iter()
            .map(|found| PlotSeries {
                name: format!("frames of {} bytes", found.frame),
                points: found
                    .losses
                    .iter()
                    .rev()
                    .filter(|step| step.seen.is_kept && !step.seen.is_overrun())
                    .filter_map(|step| {
                        let offered = share_percent(step.seen.offered, found.not_carried());
                        let offered = offered.unwrap_or(step.percent as f64);
                        Some((offered, loss_percent(&step.seen)?))
                    })
                    .collect(),
            })
            .collect(),
    );
    let axes = ("offered, % of the throughput", "% of frames");
    write_or_none(out, "Frame loss", name, "none at any load", axes, &losses)?;
    let buffers = with_points(vec![over_sizes("buffer", &|found| {
        Some(found.back_to_back?.buffer_bytes / 1e3)
    })]);
    if !buffers.is_empty() {
        let title = format!("What buffers hold (RFC 9004), {name}");
        *out += &lines(&title, x, "kB of frames", &buffers)?;
    }
    Ok(())
}

fn share_percent(part: Option<Bitrate>, of: Option<Bitrate>) -> Option<f64> {
    let of = of.filter(|of| of.bits_per_second() > 0)?;
    Some(100.0 * mbit(part?) / mbit(of))
}

/// A chart, or a sentence where all of it lies at zero.
fn write_or_none(
    out: &mut String,
    title: &str,
    direction: &str,
    none: &str,
    (x, y): (&str, &str),
    series: &[PlotSeries],
) -> Result<()> {
    let mut points = series.iter().flat_map(|one| &one.points);
    if series.is_empty() {
        return Ok(());
    }
    if points.all(|point| point.1 == 0.0) {
        writeln!(out, "<p>{title}, {direction}: {none}.</p>")?;
        return Ok(());
    }
    *out += &lines(&format!("{title}, {direction}"), x, y, series)?;
    Ok(())
}

fn write_text(out: &mut String, text: &str) -> Result<()> {
    writeln!(out, "<h2>All figures</h2>\n<pre>{}</pre>", escape(text))?;
    Ok(())
}

/// The verdict, which the terminal's report begins with, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let words = lines.flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ")
}

fn mbit(rate: Bitrate) -> f64 {
    rate.bits_per_second() as f64 / 1e6
}
