//! Self-contained HTML report of a campaign: summary, tables beside the published ones, plots,
//! method. It looks right on narrow screens and on paper.

use std::fmt::Write;

use anyhow::Result;
use host::html::{STYLE, escape};
use vocab::{Probability, format_duration};

use super::campaign_table::SIMULATION;
use super::file_set_html::write_files;
use super::lines::{PlotAxes, PlotLine, lines};
use super::published;
use super::statistics::{self, COVERAGE, ComparisonVerdict};
use super::tables::{
    CellTable, CellVariant, baseline_of, is_ahead, is_published_ahead, own_figure,
    own_figure_or_failure, published_figure, tables,
};
use crate::cells::{
    CalibratedQuantity, CampaignOutcome, CellResult, CellSizes, CellStatus, FecSetting,
};

/// Style of campaign reports beside that of all reports.
const CAMPAIGN_STYLE: &str = "
svg.wide { max-width: 60rem; } svg.narrow { display: none; max-width: 30rem; }
h2, h3 { break-after: avoid; } figure { margin: 0.6rem 0; break-inside: avoid; }
th { vertical-align: bottom; } thead tr + tr th:first-child { text-align: right; } td.text, th.text { text-align: left; }
svg.key { width: 12px; height: 12px; } .legend { margin: 0.3rem 0; } .legend span { white-space: nowrap; margin-right: 0.9rem; }
.quiet { opacity: 0.7; } sup { font-size: max(0.83em, 11px); }
code, td.text { overflow-wrap: anywhere; }
@media (max-width: 640px) {
  body { margin: 0.6rem auto; padding: 0 0.5rem; }
  table { font-size: 0.72rem; } th, td { padding: 0.15rem 0.2rem; }
}
@media screen and (max-width: 780px) { svg.wide { display: none; } svg.narrow { display: block; } }
@media print {
  :root { color-scheme: light; } body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
  table { font-size: 8.5pt; } tr { break-inside: avoid; } details { display: none; }
}
";

/// Figure of a cell, ours or the published one.
type FigureOf = fn(&CellResult) -> Option<f64>;

/// The whole report.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn campaign_html(outcome: &CampaignOutcome) -> Result<String> {
    let title = escape(&outcome.plan.title);
    let header = &outcome.journal.header;
    let mut out = String::new();
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{CAMPAIGN_STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n<p>{}, {:.0} minutes of {}, {}.</p>\n",
        match header.is_simulation {
            true => "Simulation".to_owned(),
            false => format!(
                "Trunkline {}, begun {}",
                escape(&header.machine.trunkline),
                escape(&header.started)
            ),
        },
        outcome.took_s() / 60.0,
        match header.is_simulation {
            true => "virtual time",
            false => "measurement, all series together",
        },
        match outcome.plan.repeats.get_ref() {
            1 => "each cell measured once".to_owned(),
            repeats => format!("each figure the median of up to {repeats} repeats"),
        }
    )?;
    if header.is_simulation {
        writeln!(out, "<p class=\"note bad\">{}</p>", escape(SIMULATION))?;
    }
    let tables = tables(outcome);
    write_summary(&mut out, outcome, &tables)?;
    write_deviations(&mut out, outcome)?;
    for (index, table) in tables.iter().enumerate() {
        write_table(&mut out, outcome, index, table)?;
    }
    write_files(&mut out, outcome)?;
    write_calibration(&mut out, outcome)?;
    write_method(&mut out, outcome)?;
    out += "</body></html>\n";
    Ok(out)
}

/// Table of simulated and real throughput, where both exist.
fn write_deviations(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let (Some(real), Some(median)) = (&outcome.journal.real, outcome.median_deviation_percent())
    else {
        return Ok(());
    };
    writeln!(
        out,
        "<h2>Simulation and real campaign</h2>\n<p>The real campaign began {}. The median of the \
         absolute deviations is {median:.1} %.</p>\n<table><thead><tr><th class=\"text\">cell</th>\
         <th>virtual, kB/s</th><th>real, kB/s</th><th>deviation</th></tr></thead><tbody>",
        escape(&real.started)
    )?;
    for cell in &outcome.cells {
        if let (Some(own), Some(real), Some(deviation)) =
            (cell.throughput, cell.real_kb_s, cell.deviation_percent())
        {
            writeln!(
                out,
                "<tr><td class=\"text\">{}</td><td>{:.1}</td><td>{real:.1}</td><td>{deviation:+.1} %</td></tr>",
                escape(&cell.cell.name()),
                own.median
            )?;
        }
    }
    *out += "</tbody></table>\n";
    Ok(())
}

fn write_summary(
    out: &mut String,
    outcome: &CampaignOutcome,
    tables: &[CellTable<'_>],
) -> Result<()> {
    *out += "<h2>Summary</h2>\n";
    let count = |status| outcome.count(status);
    writeln!(
        out,
        "<p>Of {} cells {} are measured, {} failed and {} are not measured{}.</p>",
        outcome.cells.len(),
        count(CellStatus::Measured),
        count(CellStatus::Failed),
        count(CellStatus::NotMeasured),
        match count(CellStatus::NotSimulated) {
            0 => String::new(),
            cells => format!(
                "; {cells} are <code>not-simulated</code>, because the simulation has no script for them"
            ),
        }
    )?;
    let faults = outcome.faults();
    if faults.is_empty() && count(CellStatus::Measured) > 0 {
        *out += "<p>Every file of every measured cell arrived identical, by its BLAKE3 hash.</p>\n";
    }
    for fault in faults {
        writeln!(
            out,
            "<p class=\"note bad\">Not identical: {}</p>",
            escape(&fault)
        )?;
    }
    for table in tables.iter().filter(|table| !table.is_of_losses) {
        let sentences = table
            .variants()
            .into_iter()
            .filter(|variant| variant.mode.has_nodes())
            .filter_map(|variant| turning_sentence(table, variant))
            .collect::<Vec<_>>();
        if !sentences.is_empty() {
            writeln!(
                out,
                "<p><b>{}</b>: {}</p>",
                escape(&table.title),
                sentences.join(" ")
            )?;
        }
    }
    write_losers(out, outcome)
}

/// Sentence about the delays at which a variant beats the baseline.
fn turning_sentence(table: &CellTable<'_>, variant: CellVariant) -> Option<String> {
    let ours = table.turning_point(variant, own_figure_or_failure, is_ahead)?;
    let published = table
        .turning_point(variant, published_figure, is_published_ahead)
        .map_or(String::new(), |point| {
            format!(" (published: {})", point.describe())
        });
    Some(format!(
        "{} beats B {}{published}.",
        table.label(variant),
        ours.describe()
    ))
}

/// Accelerated cells, by their comparison with the baseline.
#[derive(Default)]
struct BaselineComparisons {
    /// Cells with nodes that are in the report.
    accelerated: usize,
    /// Cells above the baseline by the intervals.
    above: usize,
    /// Cells above the baseline by the medians, in too few repeats for intervals.
    above_untested: usize,
    /// List items of cells in which acceleration does not pay.
    losers: Vec<String>,
}

impl BaselineComparisons {
    fn of(outcome: &CampaignOutcome) -> Self {
        let mut found = Self::default();
        for result in &outcome.cells {
            let is_accelerated = result.cell.mode.has_nodes();
            if !is_accelerated || result.status == CellStatus::NotSimulated {
                continue;
            }
            found.accelerated += 1;
            if let Some(text) = found.count(outcome, result) {
                let name = escape(&result.cell.name());
                found
                    .losers
                    .push(format!("<li><code>{name}</code>: {text}</li>"));
            }
        }
        found
    }

    /// Counts a cell, or returns how it does not pay.
    fn count(&mut self, outcome: &CampaignOutcome, result: &CellResult) -> Option<String> {
        if result.status == CellStatus::Failed {
            return Some("every transfer failed".to_owned());
        }
        let base = baseline_of(outcome, result)?.throughput?;
        let own = result
            .throughput
            .filter(|_| result.status == CellStatus::Measured)?;
        let percent = statistics::benefit_percent(base.median, own.median)?;
        match statistics::compare(&base, &own) {
            ComparisonVerdict::Higher => self.above += 1,
            ComparisonVerdict::NotTested if percent > 0.0 => self.above_untested += 1,
            ComparisonVerdict::Lower => return Some(format!("{percent:+.1} %")),
            ComparisonVerdict::NoDifference => return Some("no difference is shown".to_owned()),
            ComparisonVerdict::NotTested => {
                return Some(format!(
                    "{percent:+.1} % (too few repeats to test the difference)"
                ));
            }
        }
        None
    }
}

/// Sentences about the cells in which acceleration pays, and the list of those in which it does not.
fn write_losers(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let found = BaselineComparisons::of(outcome);
    if found.accelerated == 0 {
        return Ok(());
    }
    if found.above == found.accelerated {
        *out += "<p>Acceleration is above its baseline in every accelerated cell.</p>\n";
        return Ok(());
    }
    write!(
        out,
        "<p>Of {} accelerated cells {} are above the baseline of the same link by their intervals",
        found.accelerated, found.above
    )?;
    if found.above_untested > 0 {
        write!(
            out,
            ", and {} by their medians only: too few repeats to test the difference",
            found.above_untested
        )?;
    }
    let listed = found.losers.len();
    let others = found.accelerated - found.above - found.above_untested - listed;
    if others > 0 {
        write!(
            out,
            "; {others} are not compared, because they or their baseline are not measured or not in the plan"
        )?;
    }
    *out += ".</p>\n";
    if listed > 0 {
        writeln!(
            out,
            "<p>Acceleration does not pay in these {listed} cells:</p>\n<ul>{}</ul>",
            found.losers.join("\n")
        )?;
    }
    Ok(())
}

fn write_table(
    out: &mut String,
    outcome: &CampaignOutcome,
    index: usize,
    table: &CellTable<'_>,
) -> Result<()> {
    writeln!(out, "<h2>{}. {}</h2>", index + 1, escape(&table.title))?;
    let has_published = table.has_published();
    let first = match table.is_of_losses {
        true => "loss",
        false => "one-way delay",
    };
    let second = match table.is_of_losses {
        true => "FEC",
        false => "mode",
    };
    let units = "<th>kB/s</th><th>benefit %</th>";
    write!(
        out,
        "<table><thead><tr><th rowspan=\"2\">{first}</th><th class=\"text\" rowspan=\"2\">{second}</th>\
         <th colspan=\"2\">ours</th>"
    )?;
    if has_published {
        *out += "<th colspan=\"2\">published</th><th rowspan=\"2\">ours ÷<br>publ.</th>";
    }
    write!(out, "</tr><tr>{units}")?;
    if has_published {
        *out += units;
    }
    *out += "</tr></thead><tbody>\n";
    let mut ordered: Vec<&CellResult> = table.cells.clone();
    let place = |cell: &CellResult| (cell.cell.figures.one_way_delay, cell.cell.figures.loss);
    ordered.sort_by(|one, two| {
        let (one, two) = (place(one), place(two));
        one.0.cmp(&two.0).then(one.1.total_cmp(&two.1))
    });
    for result in ordered {
        write_row(out, outcome, table, result)?;
    }
    *out += "</tbody></table>\n";
    write_marks(out, table)?;
    write_plot(out, table)
}

fn write_row(
    out: &mut String,
    outcome: &CampaignOutcome,
    table: &CellTable<'_>,
    result: &CellResult,
) -> Result<()> {
    let cell = &result.cell;
    let loss = Probability::from_fraction(cell.figures.loss).unwrap_or_default();
    let (first, second) = match table.is_of_losses {
        true => (
            loss.to_string(),
            cell.fec.map_or("none", FecSetting::name).to_owned(),
        ),
        false => (
            format_duration(cell.figures.one_way_delay),
            table.label(CellVariant::of(result)),
        ),
    };
    // Loss tables compare FEC with no FEC, the others with the baseline.
    let base = match table.is_of_losses {
        false => baseline_of(outcome, result),
        true => table.cells.iter().copied().find(|other| {
            other.cell.figures.loss == cell.figures.loss && other.cell.fec == Some(FecSetting::Off)
        }),
    };
    let is_base = base.is_some_and(|base| std::ptr::eq(base, result));
    let benefit = |figure: FigureOf| {
        let percent = base
            .filter(|_| !is_base)
            .and_then(figure)
            .zip(figure(result))
            .and_then(|(base, own)| statistics::benefit_percent(base, own));
        percent.map_or("–".to_owned(), |percent| format!("{percent:+.1}"))
    };
    write!(
        out,
        "<tr><td>{first}</td><td class=\"text\">{second}</td><td>{}</td><td>{}</td>",
        own_text(result),
        benefit(own_figure)
    )?;
    if table.has_published() {
        let published = published_figure(result);
        let ratio = own_figure(result)
            .zip(published.filter(|value| *value > 0.0))
            .map_or("–".to_owned(), |(own, published)| {
                format!("{:.2}", own / published)
            });
        write!(
            out,
            "<td>{}</td><td>{}</td><td>{ratio}</td>",
            published.map_or("–".to_owned(), |value| match value > 0.0 {
                true => format!("{value:.1}"),
                false => "failed".to_owned(),
            }),
            benefit(published_figure)
        )?;
    }
    *out += "</tr>\n";
    Ok(())
}

fn own_text(result: &CellResult) -> String {
    let marks: String = MARKS
        .iter()
        .filter(|mark| (mark.applies)(result))
        .map(|mark| mark.letter)
        .collect();
    let marks = match marks.is_empty() {
        true => marks,
        false => format!("<sup>{marks}</sup>"),
    };
    let Some(value) = own_figure(result) else {
        return format!(
            "<span class=\"quiet\">{}</span>{marks}",
            result.status.name()
        );
    };
    match result.throughput.and_then(|estimate| estimate.interval) {
        None => format!("{value:.1}{marks}"),
        Some(interval) => {
            let coverage = match interval.coverage < COVERAGE {
                true => format!(", {:.0} %", interval.coverage * 100.0),
                false => String::new(),
            };
            format!(
                "{value:.1}{marks} <span class=\"quiet\">[{:.1}–{:.1}{coverage}]</span>",
                interval.low, interval.high
            )
        }
    }
}

/// Mark of a figure, explained below its table.
struct FigureMark {
    letter: char,
    meaning: &'static str,
    applies: fn(&CellResult) -> bool,
}

const MARKS: [FigureMark; 4] = [
    FigureMark {
        letter: 's',
        meaning: "less than the document was transferred",
        applies: |result| result.is_shortened && result.status == CellStatus::Measured,
    },
    FigureMark {
        letter: 'r',
        meaning: "repeated because of foreign or retransmitted packets",
        applies: |result| result.repeated_for_foreign_traffic,
    },
    FigureMark {
        letter: 'h',
        meaning: "the host was a limit (see the end)",
        applies: |result| !result.host_limits.is_empty(),
    },
    FigureMark {
        letter: 'f',
        meaning: "an attempt failed",
        applies: |result| !result.failures.is_empty(),
    },
];

fn write_marks(out: &mut String, table: &CellTable<'_>) -> Result<()> {
    let own = |mark: &&FigureMark| table.cells.iter().any(|cell| (mark.applies)(cell));
    let texts: Vec<String> = MARKS
        .iter()
        .filter(own)
        .map(|mark| format!("<sup>{}</sup> {}", mark.letter, mark.meaning))
        .collect();
    if !texts.is_empty() {
        writeln!(out, "<p class=\"quiet\">{}</p>", texts.join("; "))?;
    }
    for result in &table.cells {
        if let Some(failure) = result.failures.first() {
            writeln!(
                out,
                "<p class=\"note bad\"><code>{}</code>: {}</p>",
                escape(&result.cell.name()),
                escape(failure)
            )?;
        }
    }
    Ok(())
}

fn write_plot(out: &mut String, table: &CellTable<'_>) -> Result<()> {
    let place = |cell: &CellResult| match table.is_of_losses {
        true => cell.cell.figures.loss * 100.0,
        false => cell.cell.figures.one_way_delay.as_secs_f64() * 1e3,
    };
    let mut ticks: Vec<f64> = table.cells.iter().map(|cell| place(cell)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let mut drawn = Vec::new();
    let figures: [(&str, FigureOf); 2] = [("published", published_figure), ("ours", own_figure)];
    for (whose, figure) in figures {
        let is_published = whose == "published";
        let mut add = |name: String, colour: usize, cells: Vec<&CellResult>| {
            let mut points: Vec<(f64, f64)> = cells
                .into_iter()
                .filter_map(|cell| Some((place(cell), figure(cell)?)))
                .collect();
            points.sort_by(|one, two| one.0.total_cmp(&two.0));
            if !points.is_empty() {
                drawn.push(PlotLine {
                    name,
                    colour,
                    is_published,
                    points,
                });
            }
        };
        if table.is_of_losses {
            for (colour, fec) in [FecSetting::Off, FecSetting::Auto].into_iter().enumerate() {
                let own = table.cells.iter().copied();
                let own = own.filter(|cell| cell.cell.fec == Some(fec)).collect();
                add(format!("FEC {}, {whose}", fec.name()), colour + 1, own);
            }
        } else {
            for (colour, variant) in table.variants().into_iter().enumerate() {
                let own = table.cells_of(variant).collect();
                add(format!("{}, {whose}", table.label(variant)), colour, own);
            }
        }
    }
    if drawn.is_empty() || ticks.len() < 2 {
        return Ok(());
    }
    // Chances of loss lie close together at one end: each gets the same room, as in the documents.
    if table.is_of_losses {
        for (x, _) in drawn.iter_mut().flat_map(|line| &mut line.points) {
            let at = ticks.iter().position(|tick| tick == x).unwrap_or_default();
            *x = at as f64;
        }
    }
    let axes = PlotAxes {
        x: match table.is_of_losses {
            true => "chance of loss in percent",
            false => "one-way delay in ms",
        }
        .to_owned(),
        y: "kB/s".to_owned(),
        ticks: ticks
            .iter()
            .enumerate()
            .map(|(at, tick)| match table.is_of_losses {
                true => (at as f64, format!("{tick}")),
                false => (*tick, format!("{tick:.0}")),
            })
            .collect(),
        is_logarithmic: table.is_logarithmic,
    };
    writeln!(out, "<figure>{}</figure>", lines(&axes, &drawn)?)?;
    Ok(())
}

/// Tables 20 to 23: the emulated link itself.
fn write_calibration(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let Some(calibration) = &outcome.journal.calibration else {
        return Ok(());
    };
    writeln!(
        out,
        "<h2>Calibration of the link (published: tables 20 to 23)</h2>\n\
         <p>Measured {}, without nodes. Bandwidth is the payload of one TCP connection, expected \
         rate × 1448 ÷ 1500; delay is half of a median round trip; loss is the share of 10,000 \
         datagrams that do not arrive. The rows without emulator and without a setting (table 20) \
         show what the machine and the emulator add; the published ones are of a switch and of network \
         cards of 100 Mbit/s.</p>\n<table><thead><tr><th>quantity</th><th>setting</th><th>measured</th>\
         <th>of expected</th><th>published</th></tr></thead><tbody>",
        escape(&calibration.started)
    )?;
    for row in &calibration.rows {
        let (name, unit, scale) = match row.quantity {
            CalibratedQuantity::Bandwidth => ("bandwidth", "kbit/s", 1e-3),
            CalibratedQuantity::Delay => ("delay", "ms", 1.0),
            CalibratedQuantity::Loss => ("loss", "%", 100.0),
        };
        let text = |value: f64| format!("{:.3} {unit}", value * scale);
        let share = row
            .expected
            .filter(|expected| *expected > 0.0)
            .map_or("–".to_owned(), |each| {
                format!("{:.2} %", row.measured / each * 100.0)
            });
        let published = match row.configured {
            Some(configured) => published::calibration(row.quantity, configured),
            None => published::unconfigured(row.quantity, row.is_without_emulator),
        };
        let without = match row.is_without_emulator {
            true => "without emulator",
            false => "none",
        };
        writeln!(
            out,
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{share}</td><td>{}</td></tr>",
            row.configured.map_or(without.to_owned(), text),
            text(row.measured),
            published.map_or("–".to_owned(), text)
        )?;
    }
    *out += "</tbody></table>\n";
    Ok(())
}

/// Description of the site of a real campaign.
const REAL_SITE: &str = "Client, near node, WAN, far node and server are network namespaces of one machine; the \
     nodes are processes that reach each other only through the emulated link.";
/// Description of the site of a simulation.
const SIMULATED_SITE: &str = "Client and server are scripts over a TCP that behaves as that of Linux, the nodes are two engines, \
     and the link is the emulator&rsquo;s models, all in virtual time. LANs and processors take no time. \
     Sessions, reduction and accelerators are those of real nodes; TLS and disks are left out.";

fn write_method(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let header = &outcome.journal.header;
    let machine = &header.machine;
    *out += "<h2>How it was measured</h2>\n<p>";
    *out += match header.is_simulation {
        true => SIMULATED_SITE,
        false => REAL_SITE,
    };
    *out += " <b>B</b>: no node \
        runs. <b>T</b>: both nodes with transport and data reduction, without accelerators. \
        <b>A</b>: with accelerators. <b>E</b>: the acceleration of the server itself. For each \
        series of cells the link and the nodes start anew, the nodes carry other data for the \
        plan&rsquo;s warm-up, and dictionaries and caches are emptied. Repeats run one after the \
        other. In a repeat, series that load the machine little run first, several at a time; the \
        others follow one by one. Within these groups the order is random.</p>\n\
        <p>Times are read from a capture on the client&rsquo;s interface: from the first request \
        for the data to the last acknowledgement of it. 1 kB is 1,000 bytes; the documents do not \
        say whether theirs are 1,000 or 1,024. Benefit is 100 × (x ÷ baseline − 1), in loss tables \
        against no FEC. An attempt with more than 1 % foreign or retransmitted packets is \
        repeated, and both are kept. Retransmissions do not count on a link that loses packets, \
        nor, without nodes, as far as the link&rsquo;s own drops (of its queue, for example) explain \
        them.</p>\n\
        <p>Intervals contain the median with at least 95 % probability where there are six repeats \
        or more (exact, by order statistics; from 25 on by bootstrap). With fewer the range of all \
        values is shown with its probability, and no difference is tested.</p>\n\
        <table><tbody>\n";
    let mut line = |name: &str, text: &str| {
        writeln!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td></tr>",
            escape(name),
            escape(text)
        )
    };
    line("seed", &outcome.plan.seed.to_string())?;
    let sizes = match header.sizes() {
        CellSizes::Document => "documents whole".to_owned(),
        CellSizes::Short => {
            "a short campaign: of documents what the expected rate moves in 5 s and in 20 round \
             trips, of file sets the smallest files that the baseline moves in about 20 s"
                .to_owned()
        }
        CellSizes::Span(span) => format!(
            "documents, or what the expected rate moves in {} if that is less, but never less than \
             in 5 s and in 20 round trips",
            format_duration(span)
        ),
    };
    line("sizes", &sizes)?;
    line("warm-up", &format_duration(*outcome.plan.warm_up.get_ref()))?;
    if !header.is_simulation {
        line(
            "link calibration",
            header
                .certificate
                .as_deref()
                .unwrap_or("no certificate of this machine: run `trunkline emulate calibrate`"),
        )?;
        line("system", &machine.system)?;
        line("kernel", &machine.kernel)?;
        let processors = format!("{} × {}", machine.processors, machine.processor_model);
        line("processors", &processors)?;
        line("privileges", &machine.privileges)?;
        line("offloads", &machine.offloads)?;
    }
    let control = outcome.journal.attempts.first();
    let control = control.map_or("–", |attempt| attempt.hosts_congestion_control.as_str());
    line("congestion control, hosts", control)?;
    for (name, version) in &machine.programs {
        line(name, version)?;
    }
    for link in &outcome.plan.links {
        line(
            &format!("link {}", link.name.get_ref()),
            link.settings.get_ref(),
        )?;
    }
    *out += "</tbody></table>\n";
    write_limits(out, outcome)
}

fn write_limits(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let limited: Vec<&CellResult> = outcome
        .cells
        .iter()
        .filter(|cell| !cell.host_limits.is_empty())
        .collect();
    if limited.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<details><summary>The host was a limit in {} cells</summary>",
        limited.len()
    )?;
    for result in limited {
        writeln!(
            out,
            "<p class=\"note\"><code>{}</code>: {}</p>",
            escape(&result.cell.name()),
            escape(&result.host_limits.join(" "))
        )?;
    }
    *out += "</details>\n";
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{campaign_json, campaign_table};
    use super::*;
    use crate::cells::{
        CalibrationRow, LinkCalibration, PlannedCell, RealFigures, outcome_of, sample_outcome,
    };
    use host::terminal::WIDTH;

    #[test]
    fn report_has_the_published_tables_in_order() {
        let outcome = sample_outcome(1, "CIFS/T1/30ms/loss=0%/A");
        let page = campaign_html(&outcome).unwrap();
        let mut from = 0;
        for number in 10..=18 {
            let title = format!("published: table {number}, figure {}", number - 8);
            let at = page[from..].find(&title);
            from += at.unwrap_or_else(|| panic!("{title} is not in its place"));
        }
        for outside in ["http://", "https://", "<script", "<link", "url("] {
            let own = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(outside), "{outside}");
        }
        assert!(page.contains("not-measured"));
        // The documents' own turning points, and ours: doubled figures turn at the same delays.
        let about_12 = "from about 12 ms to 250 ms one way";
        assert!(page.contains(&format!("A beats B {about_12} (published: {about_12})")));
        assert!(page.contains("T beats B at no measured delay"), "{page}");
    }

    #[test]
    fn acceleration_is_above_its_baseline_only_where_it_was_compared() {
        const EVERY: &str = "in every accelerated cell";
        const PLAN: &str = "title = 'x'\nrepeats = 6\n[[link]]\nname = 'a'\nsettings = 'rate=1Mbit'\n\
             document = '1MB'\n[[group]]\nprotocol = 'HTTP'\nworkload = 'http-download'\n\
             links = ['a']\none_way_delays = ['0s', '30ms']\nmodes = ['baseline', 'application']\n";
        let page = |throughput: &dyn Fn(&PlannedCell) -> Option<f64>| {
            campaign_html(&outcome_of(PLAN, throughput)).unwrap()
        };
        let doubled = |cell: &PlannedCell| match cell.mode.has_nodes() {
            true => 200.0 + f64::from(cell.repeat),
            false => 100.0 + f64::from(cell.repeat),
        };
        assert!(page(&|cell| Some(doubled(cell))).contains(EVERY));
        // Nothing is measured but baselines; an accelerated cell is missing; one failed.
        for missing in ["/A/", "/30ms/loss=0%/A", "/30ms/loss=0%/B"] {
            let without =
                |cell: &PlannedCell| (!cell.name().contains(missing)).then(|| doubled(cell));
            let page = page(&without);
            assert!(!page.contains(EVERY), "{missing}");
            assert!(page.contains("are not compared"), "{missing}");
        }
        let failed = page(&|cell| match cell.name().contains("/30ms/loss=0%/A") {
            true => Some(0.0),
            false => Some(doubled(cell)),
        });
        assert!(!failed.contains(EVERY) && failed.contains("every transfer failed"));
        // The intervals overlap.
        let noisy = page(&|cell| {
            Some(doubled(cell) + f64::from(cell.repeat) * f64::from(cell.repeat) * 4.0)
        });
        assert!(!noisy.contains(EVERY) && noisy.contains("no difference is shown"));
    }

    /// Plan with documents and files of the published set over one link or two.
    fn file_plan(links: &str, published: &str) -> String {
        format!(
            "title = 'x'\n{published}\n[[link]]\nname = 'a'\nsettings = 'rate=1Mbit'\n[[link]]\n\
             name = 'b'\nsettings = 'rate=2Mbit'\n[[group]]\nprotocol = 'CIFS-office'\n\
             workload = 'smb-office'\nlinks = [{links}]\nmodes = ['baseline', 'application']\n\
             caches = ['cold', 'warm']\n[[group]]\nprotocol = 'HTTP'\nworkload = 'http-download'\n\
             links = ['a']\nmodes = ['baseline', 'transport', 'application']\nfec = ['off', 'auto']\n\
             caches = ['cold', 'warm']\n"
        )
    }

    /// Outcome of the plan: documents take 10 s to open and 20 s to save over the first link, and ten times
    /// that over the second one. In the warm pass one document is missing.
    fn file_outcome(links: &str, published: &str) -> CampaignOutcome {
        let mut outcome = outcome_of(&file_plan(links, published), |_| Some(100.0));
        let attempts = outcome.journal.attempts.iter_mut();
        for pass in attempts.flat_map(|attempt| &mut attempt.passes) {
            let Some(file) = pass.files.pop() else {
                continue;
            };
            let factor = if pass.cell.contains("/b/") { 10.0 } else { 1.0 };
            let is_office = pass.cell.starts_with("CIFS-office");
            for name in ["50K.doc", "100K.doc"] {
                let mut file = file.clone();
                file.file = name.to_owned();
                if is_office {
                    (file.open_s, file.save_s) = (Some(10.0 * factor), Some(20.0 * factor));
                }
                pass.files.push(file);
            }
            if is_office && pass.cell.contains("/warm") {
                pass.files.pop();
            }
        }
        CampaignOutcome::of(outcome.journal).unwrap()
    }

    #[test]
    fn sum_of_documents_needs_all_of_them() {
        let page = campaign_html(&file_outcome("'a'", "")).unwrap();
        let row = "<tr class=\"sum\"><td>sum of 2</td><td>20.00</td><td>20.00</td><td>–</td></tr>";
        assert!(page.contains(row), "{page}");
        assert!(!page.contains("WAAS"));
        let page = campaign_html(&file_outcome("'a'", "published = 'waas-3g'")).unwrap();
        assert!(page.contains("Test 5, CIFS file open"));
        // The published seconds to open both documents are 9.905 and 9.484.
        assert!(page.contains(
            "20.00 <span class=\"quiet\">19.39</span> <span class=\"quiet\">×1.03</span>"
        ));
    }

    #[test]
    fn published_file_sets_have_figures_and_an_overview() {
        let page = campaign_html(&file_outcome("'a'", "published = 'waas-3g'")).unwrap();
        // Opened documents: 20 s of ours without nodes beside 19.389 s, and 20 s cold beside 10.376 s.
        let row = page.split("<tr><td>").find(|row| {
            row.starts_with("Test 5, CIFS file open (published: table 5, figure 8)</td>")
        });
        let row = row.unwrap();
        for text in ["×1.03", "×1.93", "1.00 <span class=\"quiet\">1.87"] {
            assert!(row.contains(text), "{text}: {row}");
        }
        // Two figures of documents, and two of files: transport and application with two FEC settings each.
        let wide = page.matches("<svg class=\"wide\"").count();
        assert_eq!(
            (wide, page.matches("<svg class=\"narrow\"").count()),
            (6, 6)
        );
        // The published set of test 1 has no such files.
        for text in ["baseline, ours", "baseline, published", "warm, published"] {
            assert_eq!(page.matches(text).count(), 2, "{text}");
        }
        assert!(
            page.contains("Test 1, HTTP download (published: table 2, figure 3); mode T, FEC off")
        );
        let own = campaign_html(&file_outcome("'a'", "")).unwrap();
        assert!(own.contains("<svg class=\"wide\"") && !own.contains(", published<"));
    }

    #[test]
    fn documents_of_different_links_are_apart() {
        let document = campaign_json(&file_outcome("'a', 'b'", ""));
        let rows = document["rows"].as_array().unwrap();
        let of = |file: &str| {
            let is_own =
                |row: &&serde_json::Value| row["workload"] == "smb-office" && row["file"] == file;
            rows.iter().filter(is_own).collect::<Vec<_>>()
        };
        let documents = of("50K.doc");
        assert_eq!(documents.len(), 2);
        for (row, open_s) in documents.into_iter().zip([10.0, 100.0]) {
            assert_eq!(row["open_s"]["baseline"], open_s);
            assert_eq!(row["baseline_open_s"], open_s);
            assert_eq!(row["save_s"]["cold"], 2.0 * open_s);
            assert!(row.get("published_baseline_open_s").is_none());
        }
        assert!(of("100K.doc")[0]["open_s"]["warm"].is_null());
        let document = campaign_json(&file_outcome("'a'", "published = 'waas-3g'"));
        let rows = document["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row.get("open_s").is_some()));
        let row = rows.iter().find(|row| row["workload"] == "smb-office");
        assert_eq!(row.unwrap()["published_baseline_open_s"], 9.905);
    }

    #[test]
    fn modes_and_fec_settings_of_file_sets_are_apart() {
        let outcome = file_outcome("'a'", "");
        let document = campaign_json(&outcome);
        let rows = document["rows"].as_array().unwrap();
        let own = rows.iter().filter(|row| row["workload"] == "http-download");
        let found: Vec<(&str, &str)> = own
            .filter(|row| row["file"] == "50K.doc")
            .map(|row| {
                assert!(
                    row["baseline_s"].is_f64() && row["warm_s"].is_f64(),
                    "{row}"
                );
                (row["mode"].as_str().unwrap(), row["fec"].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            found,
            [("T", "off"), ("T", "auto"), ("A", "off"), ("A", "auto")]
        );
        let page = campaign_html(&outcome).unwrap();
        assert!(page.contains("nodes: mode T, FEC auto"));
    }

    #[test]
    fn fec_settings_are_lines_of_their_own() {
        let plan = "title = 'x'\n[[link]]\nname = 'a'\nsettings = 'rate=1Mbit'\ndocument = '1MB'\n\
             [[group]]\nprotocol = 'HTTP'\nworkload = 'http-download'\nlinks = ['a']\n\
             one_way_delays = ['0s', '30ms']\nmodes = ['baseline', 'transport']\nfec = ['off', 'auto']\n";
        let throughput = |cell: &PlannedCell| match cell.fec {
            Some(FecSetting::Off) => Some(200.0),
            Some(FecSetting::Auto) => Some(50.0),
            None => Some(100.0),
        };
        let page = campaign_html(&outcome_of(plan, throughput)).unwrap();
        assert!(page.contains("T, FEC off beats B at every measured delay (0 to 30 ms)"));
        assert!(page.contains("T, FEC auto beats B at no measured delay (0 to 30 ms)"));
        for row in [
            "<td class=\"text\">T, FEC off</td><td>200.0</td>",
            "T, FEC auto, ours",
        ] {
            assert!(page.contains(row), "{row}");
        }
    }

    #[test]
    fn json_has_the_agreed_keys() {
        let document = campaign_json(&sample_outcome(1, "none"));
        let cells = document["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 110);
        for cell in cells {
            for key in [
                "protocol",
                "link",
                "one_way_delay_ms",
                "mode",
                "loss",
                "fec",
                "throughput_kB_s",
                "interval_kB_s",
                "published_kB_s",
                "status",
                "identical",
                "repeated_for_foreign_traffic",
            ] {
                assert!(cell.get(key).is_some(), "{key} is missing: {cell}");
            }
            assert!(cell["throughput_kB_s"].is_f64(), "{cell}");
        }
    }

    #[test]
    fn simulation_shows_its_deviation() {
        let mut journal = sample_outcome(1, "none").journal;
        journal.header.is_simulation = true;
        let name = "CIFS/OC-1/250ms/loss=0%/A/fec=auto/random-once";
        journal.real = Some(RealFigures {
            started: "2026-11-27T04:26:37+00:00".to_owned(),
            throughputs_kb_s: [(name.to_owned(), 1_000.0)].into(),
        });
        let outcome = CampaignOutcome::of(journal).unwrap();
        let cell = outcome.cells.iter().find(|cell| cell.cell.name() == name);
        let own = cell.unwrap().throughput.unwrap().median;
        let deviation = 100.0 * (own / 1_000.0 - 1.0);
        let document = campaign_json(&outcome);
        assert_eq!(document["simulation"], true);
        assert!(document["started"].is_null() && document["machine"].is_null());
        let median = &document["real"]["median_deviation_percent"];
        assert_eq!(median.as_f64(), Some(deviation.abs()));
        let text = campaign_table(&outcome);
        let page = campaign_html(&outcome).unwrap();
        let percent = format!("{deviation:+.1}");
        assert!(text.contains("simulation in virtual time") && text.contains(&percent));
        assert!(page.contains("simulation in virtual time") && page.contains(&percent));
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn calibration_begins_without_emulator() {
        let mut journal = sample_outcome(1, "none").journal;
        let row = |is_without_emulator, measured| CalibrationRow {
            quantity: CalibratedQuantity::Delay,
            configured: None,
            is_without_emulator,
            measured,
            expected: None,
        };
        journal.calibration = Some(LinkCalibration {
            started: "2026-11-27T04:26:37+00:00".to_owned(),
            rows: vec![row(true, 0.03), row(false, 0.05)],
        });
        let page = campaign_html(&CampaignOutcome::of(journal).unwrap()).unwrap();
        for row in [
            "<td>without emulator</td><td>0.030 ms</td><td>–</td><td>0.220 ms</td>",
            "<td>none</td><td>0.050 ms</td><td>–</td><td>0.250 ms</td>",
        ] {
            assert!(page.contains(row), "{row}");
        }
    }

    #[test]
    fn lines_fit_a_terminal() {
        for repeats in [1, 6] {
            let text = campaign_table(&sample_outcome(repeats, "none"));
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
    }
}
