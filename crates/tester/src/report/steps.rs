//! Reports of stream tests, for a terminal and for programs.

use std::fmt::Write;
use std::time::Duration;

use measure::steps::{
    ServicePart, ServiceProcedure, ServiceVerdict, SizeResult, SlowEnd, StepResult, StepVerdict,
    StreamResult, ThroughputProcedure,
};
use measure::wire::TestDirection;
use serde_json::{Value, json};
use vocab::Bitrate;

use super::text::fold;
use crate::steps::SteppedTest;

/// The version of these documents; a name that is there keeps its meaning.
const FORMAT: u32 = 1;
/// Note on how to read the figures.
const CLOCKS: &str = "Rates count whole Ethernet frames. RTT: the least RTT of small probes and the mean \
                      frame's wait in the one direction that was loaded; FDV: the wait that one frame in a \
                      thousand exceeds. No one-way delay is measured: the two clocks need not agree.";

/// The report on a service.
#[must_use]
pub fn service_text(stepped: &SteppedTest<ServiceProcedure>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_service(&mut out, stepped);
    out
}

fn write_service(out: &mut String, stepped: &SteppedTest<ServiceProcedure>) -> std::fmt::Result {
    let service = &stepped.found;
    let plan = service.plan();
    let bought = format!("CIR {}, EIR {}", plan.committed, plan.excess);
    let headline = match service.verdict() {
        ServiceVerdict::Passed(0) => format!("MEASURED (nothing was stated to be kept): {bought}"),
        ServiceVerdict::Passed(count) => {
            format!("PASSED: {count} steps kept what was stated; {bought}")
        }
        ServiceVerdict::Failed(texts) => format!("FAILED: {}; {bought}", texts.join("; ")),
        ServiceVerdict::NotMeasured(why) => format!("NOT MEASURED: {why}; {bought}"),
    };
    fold(out, "", 2, &headline)?;
    write_ends(out, stepped, service.baseline_rtt())?;
    let mut before = None;
    for one in service.done() {
        let place = (one.direction, one.frame);
        if before != Some(place) {
            before = Some(place);
            writeln!(
                out,
                "\n{}, frames of {} bytes; asked, sent and IR in Mbit/s",
                one.direction.name(),
                one.frame
            )?;
            writeln!(
                out,
                "  {:<11} {:>8} {:>8} {:>8} {:>7} {:>6} {:>7} {:>6}  verdict",
                "step", "asked", "sent", "IR", "FLR %", "RTT ms", "max ms", "FDV ms"
            )?;
        }
        write_step(out, one)?;
    }
    if service.has_left_out_performance() {
        writeln!(
            out,
            "\nperformance was not watched: the configuration failed"
        )?;
    }
    writeln!(out)?;
    let text = format!(
        "A step up to CIR + EIR is kept where what was sent is within 1 % of what was asked. IR: what arrived; of CIR + EIR and of the \
         overshoot (a quarter above) once buckets were empty. {CLOCKS}"
    );
    fold(out, "", 0, &text)
}

fn write_step(out: &mut String, one: &StepResult) -> std::fmt::Result {
    let seen = &one.seen;
    let verdict = match &one.verdict {
        StepVerdict::Measured => "measured",
        StepVerdict::Passed => "passed",
        StepVerdict::Failed(_) => "FAILED",
        StepVerdict::NotMeasured(_) if seen.is_kept && seen.is_overrun() => "no room",
        StepVerdict::NotMeasured(_) => "not kept",
    };
    writeln!(
        out,
        "  {:<11} {:>8} {:>8} {:>8} {:>7} {:>6} {:>7} {:>6}  {verdict}",
        one.part.name(),
        mbit(Some(one.asked)),
        mbit(seen.offered),
        mbit(received(one)),
        format!("{:.4}", seen.loss_ratio() * 100.0),
        ms(seen.round_trip, 2),
        ms(seen.round_trip_max, 2),
        ms(seen.variation, 2),
    )
}

/// Rate of a step that arrived; behind a bucket, once it was empty.
pub(super) fn received(step: &StepResult) -> Option<Bitrate> {
    match step.part {
        ServicePart::Excess | ServicePart::Policing => step.seen.received_late,
        ServicePart::Committed(_) | ServicePart::Performance => step.seen.received,
    }
}

/// The report on throughput.
#[must_use]
pub fn throughput_text(stepped: &SteppedTest<ThroughputProcedure>) -> String {
    let mut out = String::new();
    let _ = write_throughput(&mut out, stepped);
    out
}

fn write_throughput(
    out: &mut String,
    stepped: &SteppedTest<ThroughputProcedure>,
) -> std::fmt::Result {
    let test = &stepped.found;
    let goal = test.plan().goal;
    let headline = match (test.given_up(), test.done().iter().all(is_found)) {
        (Some(why), _) => format!("NOT MEASURED: {why}"),
        (None, false) => "NOT MEASURED: at some frame size no load was carried".to_owned(),
        (None, true) => format!("MEASURED: {}", carried(test)),
    };
    fold(out, "", 2, &headline)?;
    write_ends(out, stepped, test.baseline_rtt())?;
    let text = format!(
        "goal: loss ratio at most {} in trials of {} s; a load is tried for {} s in all, of which a share of \
         {} may go wrong; bounds within {} %",
        goal.loss_ratio,
        goal.trial.as_secs_f64(),
        goal.duration_sum.as_secs_f64(),
        goal.exceed_ratio,
        goal.width * 100.0
    );
    fold(out, "", 2, &text)?;
    let mut before = None;
    for (direction, found) in test.done() {
        if before != Some(*direction) {
            before = Some(*direction);
            writeln!(out, "\n{}", direction.name())?;
            writeln!(
                out,
                "  {:>7} {:>10} {:>11} {:>10} {:>8} {:>8} {:>7} {:>6}",
                "frame B",
                "Mbit/s",
                "not carried",
                "frames/s",
                "RTT ms",
                "max ms",
                "FDV ms",
                "trials"
            )?;
        }
        write_size(out, found, test.plan().is_whole)?;
    }
    for direction in TestDirection::BOTH {
        for (of, found) in test.done() {
            if *of == direction {
                write_more(out, direction, found)?;
            }
        }
    }
    writeln!(out)?;
    fold(out, "", 0, CLOCKS)
}

/// Rates that each direction carries, over all frame sizes.
fn carried(test: &ThroughputProcedure) -> String {
    let of_direction = |direction: &TestDirection| {
        let sizes = || {
            let done = test.done().iter();
            done.filter(|(of, _)| of == direction)
                .map(|(_, found)| found)
        };
        let (least, most) = (
            sizes().filter_map(|found| found.lower).min(),
            sizes().filter_map(|found| found.lower).max(),
        );
        let rates = span(mbit(least), mbit(most));
        let frame = |frame: Option<u16>| frame.unwrap_or_default().to_string();
        let frames = span(
            frame(sizes().map(|found| found.frame).min()),
            frame(sizes().map(|found| found.frame).max()),
        );
        format!(
            "{} {rates} Mbit/s in frames of {frames} B",
            direction.name()
        )
    };
    let directions = test.plan().directions.iter().map(of_direction);
    directions.collect::<Vec<_>>().join(", ")
}

fn span(least: String, most: String) -> String {
    match least == most {
        true => least,
        false => format!("{least} to {most}"),
    }
}

fn is_found(one: &(TestDirection, SizeResult)) -> bool {
    one.1.lower.is_some()
}

fn write_size(out: &mut String, found: &SizeResult, is_whole: bool) -> std::fmt::Result {
    let seen = found.at_lower.unwrap_or_default();
    let frames = found
        .lower
        .map(|rate| rate.bits_per_second() as f64 / f64::from(found.frame) / 8.0);
    writeln!(
        out,
        "  {:>7} {:>10} {:>11} {:>10} {:>8} {:>8} {:>7} {:>6}",
        found.frame,
        mbit(found.lower),
        mbit(found.not_carried()),
        frames.map_or("–".to_owned(), |frames| format!("{frames:.0}")),
        ms(seen.round_trip, 2),
        ms(seen.round_trip_max, 2),
        ms(seen.variation, 2),
        found.trials,
    )?;
    let why = match (found.upper, found.slow_end) {
        (Some(upper), Some(SlowEnd::Sender)) => {
            format!(
                "{} Mbit/s could not be sent by the sending host",
                mbit(Some(upper))
            )
        }
        (Some(upper), Some(SlowEnd::Receiver)) => {
            format!(
                "of {} Mbit/s some frames found no room in the tester's socket on the receiving host",
                mbit(Some(upper))
            )
        }
        (None, _) if found.lower.is_some() => "the most that was offered".to_owned(),
        (Some(_), None) | (None, _) => return Ok(()),
    };
    let left_out = match is_whole {
        true => "; frame loss and bursts, which take more than is carried, were not measured",
        false => "",
    };
    fold(
        out,
        "    ",
        4,
        &format!("{why}; the path may carry more{left_out}"),
    )
}

fn write_more(out: &mut String, direction: TestDirection, found: &SizeResult) -> std::fmt::Result {
    let head = format!("{} {} B: ", direction.name(), found.frame);
    if !found.losses.is_empty() {
        let steps: Vec<String> = found
            .losses
            .iter()
            .map(|step| {
                let kept = match (step.seen.is_kept, step.seen.is_overrun()) {
                    (false, _) => " (rate not kept)",
                    (true, true) => " (no room at the receiver)",
                    (true, false) => "",
                };
                let percent = step.seen.loss_ratio() * 100.0;
                format!("{percent:.2} % at {} %{kept}", step.percent)
            })
            .collect();
        writeln!(out)?;
        let text = format!(
            "frames lost, offered in shares of the bound above: {}",
            steps.join(", ")
        );
        fold(out, &head, 2, &text)?;
    }
    let Some(buffer) = found.back_to_back else {
        return Ok(());
    };
    let least = if buffer.is_at_least { "at least " } else { "" };
    let text = format!(
        "{least}{:.1} frames back to back at {} Mbit/s: a buffer of {least}{:.0} bytes, {:.3} ms (RFC 9004)",
        buffer.frames,
        mbit(Some(buffer.rate)),
        buffer.buffer_bytes,
        buffer.buffer_time.as_secs_f64() * 1e3
    );
    fold(out, &head, 2, &text)
}

fn write_ends<T>(
    out: &mut String,
    stepped: &SteppedTest<T>,
    baseline: Option<Duration>,
) -> std::fmt::Result {
    writeln!(
        out,
        "\nfrom {} to {}, {:.0} s, baseline RTT {} ms",
        stepped.local,
        stepped.server,
        stepped.took.as_secs_f64(),
        ms(baseline, 3)
    )?;
    for line in &stepped.hosts {
        fold(out, "note: ", 6, line)?;
    }
    Ok(())
}

fn mbit(rate: Option<Bitrate>) -> String {
    rate.map_or("–".to_owned(), |rate| {
        format!("{:.3}", rate.bits_per_second() as f64 / 1e6)
    })
}

fn ms(span: Option<Duration>, digits: usize) -> String {
    span.map_or("–".to_owned(), |span| {
        format!("{:.digits$}", span.as_secs_f64() * 1e3)
    })
}

/// Everything that was found of a service.
#[must_use]
pub fn service_json(stepped: &SteppedTest<ServiceProcedure>) -> Value {
    let service = &stepped.found;
    let plan = service.plan();
    let (verdict, reasons) = match service.verdict() {
        ServiceVerdict::Passed(0) => ("measured", Vec::new()),
        ServiceVerdict::Passed(_) => ("passed", Vec::new()),
        ServiceVerdict::Failed(texts) => ("failed", texts),
        ServiceVerdict::NotMeasured(why) => ("not-measured", vec![why]),
    };
    let steps: Vec<Value> = service.done().iter().map(step_json).collect();
    json!({
        "format": FORMAT,
        "trunkline": env!("CARGO_PKG_VERSION"),
        "verdict": verdict,
        "reasons": reasons,
        "server": stepped.server.to_string(),
        "local": stepped.local.to_string(),
        "took_s": stepped.took.as_secs_f64(),
        "hosts": stepped.hosts,
        "baseline_rtt_ms": number_ms(service.baseline_rtt()),
        "cir_bit_s": plan.committed.bits_per_second(),
        "eir_bit_s": plan.excess.bits_per_second(),
        "criteria": {
            "flr": plan.criteria.loss_ratio_max,
            "round_trip_ms": number_ms(plan.criteria.round_trip_max),
            "fdv_ms": number_ms(plan.criteria.variation_max),
            "policing": plan.criteria.is_policed,
        },
        "steps": steps,
    })
}

fn step_json(one: &StepResult) -> Value {
    let (verdict, reasons) = match &one.verdict {
        StepVerdict::Measured => ("measured", Vec::new()),
        StepVerdict::Passed => ("passed", Vec::new()),
        StepVerdict::Failed(texts) => ("failed", texts.clone()),
        StepVerdict::NotMeasured(why) => ("not-measured", vec![why.clone()]),
    };
    let mut value = seen_json(&one.seen);
    let fields = value.as_object_mut().expect("it was made as an object");
    let more = [
        ("direction", json!(one.direction.name())),
        ("frame_bytes", json!(one.frame)),
        ("step", json!(one.part.name())),
        ("asked_bit_s", json!(one.asked.bits_per_second())),
        ("duration_s", json!(one.duration.as_secs_f64())),
        ("verdict", json!(verdict)),
        ("reasons", json!(reasons)),
    ];
    fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
    value
}

/// Everything that was found of throughput.
#[must_use]
pub fn throughput_json(stepped: &SteppedTest<ThroughputProcedure>) -> Value {
    let test = &stepped.found;
    let goal = test.plan().goal;
    let sizes: Vec<Value> = test.done().iter().map(size_json).collect();
    json!({
        "format": FORMAT,
        "trunkline": env!("CARGO_PKG_VERSION"),
        "given_up": test.given_up(),
        "server": stepped.server.to_string(),
        "local": stepped.local.to_string(),
        "took_s": stepped.took.as_secs_f64(),
        "hosts": stepped.hosts,
        "baseline_rtt_ms": number_ms(test.baseline_rtt()),
        "goal": {
            "loss_ratio": goal.loss_ratio,
            "trial_s": goal.trial.as_secs_f64(),
            "duration_sum_s": goal.duration_sum.as_secs_f64(),
            "exceed_ratio": goal.exceed_ratio,
            "width": goal.width,
        },
        "sizes": sizes,
    })
}

fn size_json((direction, found): &(TestDirection, SizeResult)) -> Value {
    let losses: Vec<Value> = found
        .losses
        .iter()
        .map(|step| json!({ "percent": step.percent, "seen": seen_json(&step.seen) }))
        .collect();
    json!({
        "direction": direction.name(),
        "frame_bytes": found.frame,
        "lower_bit_s": found.lower.map(Bitrate::bits_per_second),
        "upper_bit_s": found.upper.map(Bitrate::bits_per_second),
        "is_sender_limited": found.slow_end == Some(SlowEnd::Sender),
        "is_receiver_limited": found.slow_end == Some(SlowEnd::Receiver),
        "loads": found.loads,
        "trials": found.trials,
        "at_lower": found.at_lower.as_ref().map(seen_json),
        "losses": losses,
        "back_to_back": found.back_to_back.map(|buffer| json!({
            "frames": buffer.frames,
            "is_at_least": buffer.is_at_least,
            "rate_bit_s": buffer.rate.bits_per_second(),
            "buffer_ms": buffer.buffer_time.as_secs_f64() * 1e3,
            "buffer_bytes": buffer.buffer_bytes,
        })),
    })
}

fn seen_json(seen: &StreamResult) -> Value {
    json!({
        "offered_bit_s": seen.offered.map(Bitrate::bits_per_second),
        "received_bit_s": seen.received.map(Bitrate::bits_per_second),
        "received_late_bit_s": seen.received_late.map(Bitrate::bits_per_second),
        "sent_frames": seen.sent,
        "lost_frames": seen.lost,
        "no_room_frames": seen.no_room,
        "flr": seen.loss_ratio(),
        "round_trip_ms": number_ms(seen.round_trip),
        "round_trip_max_ms": number_ms(seen.round_trip_max),
        "fdv_ms": number_ms(seen.variation),
        "sender_kept_rate": seen.is_kept,
    })
}

fn number_ms(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_secs_f64() * 1e3)
}
