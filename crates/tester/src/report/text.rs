//! Report for a terminal of [`COLUMNS`] columns: the verdict first, then the figures, then the
//! reasons.

use std::fmt::Write;

use measure::diagnosis::DiagnosisFinding;
use measure::metrics::LossVerdict;
use measure::procedure::{BottleneckResult, LimitedBy, MtuOutcome};
use measure::run::{PathMaximum, is_window_reached};
use measure::turn_up::{RunPurpose, RunResult, TurnUpVerdict};
use measure::wire::TestDirection;
use vocab::Bitrate;

use measure::diagnosis::diagnose_test;
use measure::turn_up::FinishedTest;

/// Columns of the terminals that it is made for.
const COLUMNS: usize = 80;

/// Advice where no stream was seen packet by packet at both ends.
const UNTOLD: &str = "This test cannot find a policer, a shaper, a queue or loss. To find them, run \
                      `trunkline measure server` at the far end, or capture a test run (tcpdump -s 96 -w \
                      FILE) and run `trunkline measure diagnose FILE`.";

/// The verdict in one line.
#[must_use]
pub fn headline(finished: &FinishedTest) -> String {
    let found = diagnose_test(finished);
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
        TurnUpVerdict::Passed(0) => format!(
            "MEASURED (no threshold was stated): {}{causes}",
            rates(finished)
        ),
        TurnUpVerdict::Passed(count) => format!(
            "PASSED: {count} of {count} thresholds kept; {}{causes}",
            rates(finished)
        ),
        TurnUpVerdict::Failed(missed) => {
            let texts: Vec<&str> = missed.iter().map(|one| one.text.as_str()).collect();
            format!("FAILED: {}{causes}", texts.join("; "))
        }
        TurnUpVerdict::NotMeasured(why) => {
            let tcp = match finished.turn_up.is_tcp_alone() {
                true => format!("; {}", reached(finished)),
                false => String::new(),
            };
            format!("NOT MEASURED: {why}{tcp}{causes}")
        }
    }
}

fn rates(finished: &FinishedTest) -> String {
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

/// Throughput that TCP alone reached.
fn reached(finished: &FinishedTest) -> String {
    let turn_up = &finished.turn_up;
    let rates: Vec<String> = turn_up
        .profile()
        .directions
        .iter()
        .filter_map(|direction| {
            let reached = turn_up.reached(*direction)?;
            Some(format!("{} {}", mbit(reached), direction.name()))
        })
        .collect();
    match rates.is_empty() {
        true => "TCP reached no measurable throughput".to_owned(),
        false => format!("TCP alone reached {}", rates.join(", ")),
    }
}

/// The whole report.
#[must_use]
pub fn text(finished: &FinishedTest) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut out, finished);
    out
}

fn write_all(out: &mut String, finished: &FinishedTest) -> std::fmt::Result {
    let turn_up = &finished.turn_up;
    fold(out, "", 2, &headline(finished))?;
    writeln!(
        out,
        "\nfrom {} to {}, {:.0} s",
        finished.local,
        finished.server,
        finished.took.as_secs_f64()
    )?;
    // What the first line has said need not be said again.
    let is_new = |line: &&String| match turn_up.verdict() {
        TurnUpVerdict::NotMeasured(why) => !why.starts_with(line.as_str()),
        TurnUpVerdict::Passed(_) | TurnUpVerdict::Failed(_) => true,
    };
    let remarks = turn_up.remarks().iter().filter(is_new);
    for line in finished.hosts.iter().chain(remarks) {
        fold(out, "note: ", 6, line)?;
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
    if let (None, Some(least)) = (turn_up.baseline(), turn_up.round_trip()) {
        let least = least.as_secs_f64() * 1e3;
        let of = match turn_up.is_tcp_alone() {
            true => ". Windows are shares of what TCP reached \u{d7} this RTT, not of a BDP",
            false => "",
        };
        let text = format!(
            "least RTT {least:.3} ms as TCP saw it, of whole segments with a small window; no baseline RTT \
             by probes{of}"
        );
        fold(out, "", 2, &text)?;
    }
    for direction in &turn_up.profile().directions {
        write_direction(out, finished, *direction)?;
    }
    let found = diagnose_test(finished);
    writeln!(out, "\ndiagnosis")?;
    for (direction, finding) in found {
        let head = format!("  {:<5}", direction.name());
        write_finding(out, &head, 7, &finding)?;
    }
    let mut directions = turn_up.profile().directions.iter();
    if directions.all(|direction| turn_up.known(*direction).streams.is_empty()) {
        fold(out, "  ", 2, UNTOLD)?;
    }
    Ok(())
}

/// Writes a cause after `head`, with its numbers; evidence and advice follow in indented lines.
pub(super) fn write_finding(
    out: &mut String,
    head: &str,
    indent: usize,
    finding: &DiagnosisFinding,
) -> std::fmt::Result {
    let parameters: Vec<String> = finding
        .parameters
        .named()
        .into_iter()
        .map(|(name, value)| quantity(name, value))
        .collect();
    let cause = format!(
        "{}, confidence {:.2}",
        finding.cause.name(),
        finding.confidence
    );
    match parameters.is_empty() {
        true => fold(out, head, indent, &cause)?,
        false => fold(
            out,
            head,
            indent,
            &format!("{cause}: {}", parameters.join(", ")),
        )?,
    }
    let before = " ".repeat(indent);
    for line in &finding.evidence {
        fold(out, &before, indent, line)?;
    }
    let next = "next: ";
    fold(
        out,
        &format!("{before}{next}"),
        indent + next.len(),
        finding.advice(),
    )
}

fn write_direction(
    out: &mut String,
    finished: &FinishedTest,
    direction: TestDirection,
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
        Some(MtuOutcome::Between { passes, vanishes }) => writeln!(
            out,
            "  path MTU at least {passes} bytes, and less than {vanishes}: those vanish"
        )?,
        Some(MtuOutcome::NoAnswer) => writeln!(out, "  path MTU not found")?,
        None if turn_up.is_one_ended() => writeln!(
            out,
            "  path MTU not searched for; packets of {} bytes, as TCP sends them",
            turn_up.mtu(direction)
        )?,
        None => writeln!(out, "  path MTU not measured")?,
    }
    match &known.bottleneck {
        Some(found) => write_rate(out, finished, direction, found)?,
        None => writeln!(out, "  bottleneck rate not measured")?,
    }
    if let Some(reached) = turn_up.reached(direction) {
        let reached = mbit(reached);
        writeln!(
            out,
            "  TCP reached {reached} of payload: the path carries at least that"
        )?;
    }
    write_runs(out, finished, direction)
}

fn write_rate(
    out: &mut String,
    finished: &FinishedTest,
    direction: TestDirection,
    found: &BottleneckResult,
) -> std::fmt::Result {
    let turn_up = &finished.turn_up;
    let known = turn_up.known(direction);
    let limit = match found.limited_by {
        LimitedBy::Path => "",
        LimitedBy::MaxRate => {
            ", the most that was offered; the path may carry more, and TCP more than its ideal here"
        }
        LimitedBy::Sender => {
            ", all that the sending host managed; the path may carry more, and TCP more than its ideal here"
        }
        LimitedBy::Receiver => {
            ", all that the receiving host took in; the path may carry more, and TCP more than its ideal here"
        }
    };
    let steady = if found.is_steady { "" } else { ", not steady" };
    let rate = mbit(found.rate);
    fold(
        out,
        "  ",
        4,
        &format!("bottleneck {rate} of IP packets{steady}{limit}"),
    )?;
    if let (Some(bdp), Some(ideal)) = (turn_up.bdp(direction), turn_up.ideal(direction))
        && let PathMaximum::Known(maximum) = ideal.maximum
    {
        writeln!(
            out,
            "  BDP {} bytes; TCP payload at most {}",
            bdp.bytes(),
            mbit(maximum)
        )?;
    }
    if let Some(loss) = known.loss {
        let verdict = match loss.verdict {
            LossVerdict::Within => "within the budget",
            LossVerdict::Beyond => "beyond the budget: no TCP reaches the rate",
            LossVerdict::Undecided => "too few packets to judge by",
        };
        let (lost, sent) = (loss.lost, loss.sent);
        let run = loss.budget.run_length_packets;
        fold(
            out,
            "  ",
            4,
            &format!(
                "loss below the rate: {lost} of {sent} packets; RFC 8337 allows one in {run}: {verdict}"
            ),
        )?;
    }
    Ok(())
}

fn write_runs(
    out: &mut String,
    finished: &FinishedTest,
    direction: TestDirection,
) -> std::fmt::Result {
    let known = finished.turn_up.known(direction);
    if known.runs.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "  {:<12} {:>5} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>6}",
        "TCP run", "conn.", "window B", "Mbit/s", "ideal", "ratio", "effic.%", "RTT ms", "delay%"
    )?;
    for run in &known.runs {
        write_run(out, finished, run, direction)?;
    }
    let controls: Vec<&str> = finished
        .runs
        .iter()
        .filter(|run| run.direction == direction)
        .map(|run| run.congestion_control.as_str())
        .collect();
    if let Some(first) = controls.first() {
        writeln!(
            out,
            "  window: of each connection, as its sender saw it; congestion control: {first}"
        )?;
    }
    Ok(())
}

fn write_run(
    out: &mut String,
    finished: &FinishedTest,
    run: &RunResult,
    direction: TestDirection,
) -> std::fmt::Result {
    let place = direction as usize;
    let name = match run.plan.purpose {
        RunPurpose::Walk(percent) if finished.turn_up.bdp(direction).is_none() => {
            format!("{percent} %")
        }
        RunPurpose::Walk(percent) => format!("{percent} % of BDP"),
        RunPurpose::Listed => "listed".to_owned(),
        RunPurpose::Many => "many".to_owned(),
        RunPurpose::Together => "up and down".to_owned(),
        RunPurpose::RoundTrip => "least RTT".to_owned(),
        RunPurpose::Open => "hosts' own".to_owned(),
    };
    let wanted = run.plan.windows[place];
    write!(out, "  {name:<12} {:>5}", run.plan.connections[place])?;
    let Some(found) = &run.figures else {
        return writeln!(out, " {:>9} could not be measured", wanted.bytes());
    };
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let window = found.window_each();
    writeln!(
        out,
        " {:>9} {:>9.3} {:>9} {:>6} {:>7} {:>7} {:>6}",
        window.map_or("–".to_owned(), |window| window.bytes().to_string()),
        found.throughput.bits_per_second() as f64 / 1e6,
        number(
            found
                .ideal
                .map(|ideal| ideal.bits_per_second() as f64 / 1e6),
            3
        ),
        number(found.transfer_time_ratio, 3),
        number(found.efficiency_percent, 3),
        number(found.average_rtt.map(|rtt| rtt.as_secs_f64() * 1e3), 2),
        number(found.buffer_delay_percent, 1),
    )?;
    match window {
        Some(seen) if wanted.bytes() > 0 && !is_window_reached(wanted, seen) => {
            let wanted = wanted.bytes();
            writeln!(
                out,
                "    a window of {wanted} B was asked for, which the receiving host did not give"
            )
        }
        _ => Ok(()),
    }
}

/// A number of a finding, with its unit as people write it.
fn quantity(name: &str, value: f64) -> String {
    let units = [
        ("_bit_s", 1e-6, 3, "Mbit/s"),
        ("_bytes", 1.0, 0, "B"),
        ("_ms", 1.0, 3, "ms"),
        ("_percent", 1.0, 3, "%"),
    ];
    for (ending, times, digits, unit) in units {
        if let Some(name) = name.strip_suffix(ending) {
            let name = name.replace('_', " ");
            return format!("{name} {:.digits$} {unit}", value * times);
        }
    }
    format!("{name} {value:.3}")
}

/// Writes words in lines of at most [`COLUMNS`], the first after `head`, the others with this
/// indent.
pub(super) fn fold(out: &mut String, head: &str, indent: usize, text: &str) -> std::fmt::Result {
    let mut column = head.chars().count();
    out.push_str(head);
    let mut is_first = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !is_first && column + 1 + length > COLUMNS {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if !is_first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
        is_first = false;
    }
    out.push('\n');
    Ok(())
}

fn mbit(rate: Bitrate) -> String {
    format!("{:.3} Mbit/s", rate.bits_per_second() as f64 / 1e6)
}
