//! The report for a terminal: the verdict in one line, then why, then the figures.

use std::fmt::Write;

use measure::metrics::LossVerdict;
use measure::procedure::{LimitedBy, MtuOutcome};
use measure::turn_up::{RunDone, Verdict};
use measure::wire::Direction;
use vocab::{Bitrate, ByteCount};

use super::purpose;
use crate::turnup::client::Finished;
use crate::turnup::observation::findings;

/// The verdict in one line.
#[must_use]
pub fn headline(finished: &Finished) -> String {
    let found = findings(finished);
    let mut causes: Vec<&str> = Vec::new();
    for (_, finding) in &found {
        let name = finding.cause.name();
        if !matches!(name, "none" | "unknown") && !causes.contains(&name) {
            causes.push(name);
        }
    }
    let causes = match causes.is_empty() {
        true => String::new(),
        false => format!("; found: {}", causes.join(", ")),
    };
    match finished.turn_up.verdict() {
        Verdict::Passed(0) => format!(
            "MEASURED (no threshold was stated, so nothing passed or failed): {}{causes}",
            rates(finished)
        ),
        Verdict::Passed(count) => format!(
            "PASSED: {count} of {count} thresholds kept; {}{causes}",
            rates(finished)
        ),
        Verdict::Failed(missed) => {
            let texts: Vec<&str> = missed.iter().map(|one| one.text.as_str()).collect();
            format!("FAILED: {}{causes}", texts.join("; "))
        }
        Verdict::NotMeasured(why) => format!("NOT MEASURED: {why}{causes}"),
    }
}

fn rates(finished: &Finished) -> String {
    let turn_up = &finished.turn_up;
    let rates: Vec<String> = turn_up
        .profile()
        .directions
        .iter()
        .filter_map(|direction| {
            let found = turn_up.known(*direction).bottleneck.as_ref()?;
            Some(format!("{} {}", mbit(found.rate), direction.name()))
        })
        .collect();
    let rtt = turn_up.round_trip().map_or(String::new(), |rtt| {
        format!(", RTT {:.3} ms", rtt.as_secs_f64() * 1e3)
    });
    format!("{}{rtt}", rates.join(", "))
}

/// The whole report.
#[must_use]
pub fn text(finished: &Finished) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut out, finished);
    out
}

fn write_all(out: &mut String, finished: &Finished) -> std::fmt::Result {
    let turn_up = &finished.turn_up;
    writeln!(out, "{}", headline(finished))?;
    writeln!(
        out,
        "\nfrom {} to {}, {:.0} s",
        finished.local,
        finished.server,
        finished.took.as_secs_f64()
    )?;
    for line in finished.hosts.iter().chain(turn_up.remarks()) {
        writeln!(out, "note: {line}")?;
    }
    if let Some(found) = turn_up.baseline()
        && let (Some(least), Some(median)) = (found.baseline(), found.median())
    {
        writeln!(
            out,
            "baseline RTT {:.3} ms (least of {} probes of {}; median {:.3} ms)",
            least.as_secs_f64() * 1e3,
            found.samples.len(),
            found.sent,
            median.as_secs_f64() * 1e3
        )?;
    }
    for direction in &turn_up.profile().directions {
        write_direction(out, finished, *direction)?;
    }
    writeln!(out, "\ndiagnosis")?;
    for (direction, finding) in findings(finished) {
        let parameters: Vec<String> = finding
            .parameters
            .named()
            .into_iter()
            .map(|(name, value)| format!("{name} {value:.3}"))
            .collect();
        writeln!(
            out,
            "  {:<5}{:<18} confidence {:.2}  {}",
            direction.name(),
            finding.cause.name(),
            finding.confidence,
            parameters.join(", ")
        )?;
        for line in &finding.evidence {
            writeln!(out, "       {line}")?;
        }
        writeln!(out, "       next: {}", finding.advice())?;
    }
    Ok(())
}

fn write_direction(
    out: &mut String,
    finished: &Finished,
    direction: Direction,
) -> std::fmt::Result {
    let turn_up = &finished.turn_up;
    let known = turn_up.known(direction);
    writeln!(out, "\n{}", direction.name())?;
    match known.path_mtu {
        Some(MtuOutcome::Found { mtu, tried }) if mtu < tried => writeln!(
            out,
            "  path MTU {mtu} bytes: larger packets, up to the interface's {tried}, vanish"
        )?,
        Some(MtuOutcome::Found { mtu, .. }) => writeln!(out, "  path MTU {mtu} bytes")?,
        Some(MtuOutcome::TooSmall { tried }) => {
            writeln!(out, "  path MTU below {tried} bytes")?;
        }
        Some(MtuOutcome::NoAnswer) | None => writeln!(out, "  path MTU not found")?,
    }
    let Some(found) = &known.bottleneck else {
        return writeln!(out, "  bottleneck rate not measured");
    };
    let limit = match found.limited_by {
        LimitedBy::Path => "",
        LimitedBy::MaxRate => ", the most that was offered; the path may carry more",
        LimitedBy::Sender => ", all that the sending host managed; the path may carry more",
    };
    let steady = if found.is_steady { "" } else { ", not steady" };
    writeln!(
        out,
        "  bottleneck {} of IP packets{steady}{limit}",
        mbit(found.rate)
    )?;
    if let (Some(bdp), Some(ideal)) = (turn_up.bdp(direction), turn_up.ideal(direction)) {
        writeln!(
            out,
            "  BDP {} bytes; TCP payload at most {}",
            bdp.bytes(),
            mbit(ideal.maximum)
        )?;
    }
    if let Some(loss) = known.loss {
        let verdict = match loss.verdict {
            LossVerdict::Within => "within the budget",
            LossVerdict::Beyond => "beyond the budget: no TCP reaches the rate",
            LossVerdict::Undecided => "too few packets to judge by",
        };
        writeln!(
            out,
            "  loss below the rate: {} of {} packets; RFC 8337 allows one in {}: {verdict}",
            loss.lost, loss.sent, loss.budget.run_length_packets
        )?;
    }
    if known.runs.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "  {:<17}{:>5} {:>10} {:>10} {:>10} {:>10} {:>6} {:>8} {:>9} {:>7}",
        "run",
        "conn.",
        "window B",
        "effective",
        "Mbit/s",
        "ideal",
        "ratio",
        "effic. %",
        "RTT ms",
        "delay %"
    )?;
    for run in &known.runs {
        write_run(out, run, direction)?;
    }
    let controls: Vec<&str> = finished
        .runs
        .iter()
        .filter(|run| run.direction == direction)
        .map(|run| run.congestion_control.as_str())
        .collect();
    if let Some(first) = controls.first() {
        writeln!(out, "  congestion control of the sender: {first}")?;
    }
    Ok(())
}

fn write_run(out: &mut String, run: &RunDone, direction: Direction) -> std::fmt::Result {
    let place = direction as usize;
    write!(
        out,
        "  {:<17}{:>5} {:>10}",
        purpose(&run.plan),
        run.plan.connections[place],
        run.plan.windows[place].bytes()
    )?;
    let Some(found) = &run.figures else {
        return writeln!(out, " could not be measured");
    };
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
    };
    writeln!(
        out,
        " {:>10} {:>10.3} {:>10.3} {:>6} {:>8} {:>9} {:>7}",
        found
            .window_each()
            .map_or("–".to_owned(), |window: ByteCount| window
                .bytes()
                .to_string()),
        found.throughput.bits_per_second() as f64 / 1e6,
        found.ideal.bits_per_second() as f64 / 1e6,
        number(found.transfer_time_ratio, 3),
        number(found.efficiency_percent, 3),
        number(found.average_rtt.map(|rtt| rtt.as_secs_f64() * 1e3), 3),
        number(found.buffer_delay_percent, 1),
    )
}

fn mbit(rate: Bitrate) -> String {
    format!("{:.3} Mbit/s", rate.bits_per_second() as f64 / 1e6)
}
