//! JSON of all results, with raw samples. Names end in their unit.

use measure::procedure::{CountedStream, LimitedBy, MtuOutcome, StreamRecord};
use measure::run::{IdealPath, PathMaximum, RunFigures, connection_figures};
use measure::turn_up::{DirectionResults, TurnUpVerdict};
use measure::wire::{RunSample, TestDirection};
use serde_json::{Map, Value, json};

use super::{path_mtu, purpose};
use measure::diagnosis::diagnose_test;
use measure::turn_up::{FinishedTest, RawRun};

/// The version of this document; a name that is there keeps its meaning.
const FORMAT: u32 = 1;

/// The whole result.
#[must_use]
pub fn json(finished: &FinishedTest) -> Value {
    let turn_up = &finished.turn_up;
    let directions = &turn_up.profile().directions;
    let mtus = directions
        .iter()
        .map(|direction| path_mtu(turn_up, *direction));
    let mut each = Map::new();
    for direction in directions {
        each.insert(
            direction.name().to_owned(),
            of_direction(finished, *direction),
        );
    }
    let (verdict, reasons) = match turn_up.verdict() {
        TurnUpVerdict::Passed(0) => ("measured", Vec::new()),
        TurnUpVerdict::Passed(_) => ("passed", Vec::new()),
        TurnUpVerdict::Failed(missed) => {
            ("failed", missed.into_iter().map(|one| one.text).collect())
        }
        TurnUpVerdict::NotMeasured(why) => ("not-measured", vec![why]),
    };
    json!({
        "format": FORMAT,
        "trunkline": env!("CARGO_PKG_VERSION"),
        "verdict": verdict,
        "reasons": reasons,
        "server": finished.server.to_string(),
        "local": finished.local.to_string(),
        "took_s": finished.took.as_secs_f64(),
        "hosts": finished.hosts,
        "remarks": turn_up.remarks(),
        "path_mtu_bytes": mtus.min().flatten(),
        "interface_mtu_bytes": finished.interface_mtu,
        "baseline_rtt_ms": turn_up.round_trip().map(ms),
        "baseline_rtt_by": match turn_up.is_tcp_alone() || turn_up.is_one_ended() {
            true => "tcp",
            false => "probes",
        },
        "rtt_samples_ms": turn_up
            .baseline()
            .map(|found| found.samples.iter().copied().map(ms).collect::<Vec<_>>()),
        "directions": each,
        "diagnosis": diagnose_test(finished)
            .iter()
            .map(|(direction, finding)| {
                let parameters: Map<String, Value> = finding
                    .parameters
                    .named()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), json!(value)))
                    .collect();
                json!({
                    "direction": direction.name(),
                    "cause": finding.cause.name(),
                    "confidence": finding.confidence,
                    "evidence": finding.evidence,
                    "parameters": parameters,
                    "advice": finding.advice(),
                })
            })
            .collect::<Vec<_>>(),
    })
}

fn of_direction(finished: &FinishedTest, direction: TestDirection) -> Value {
    let turn_up = &finished.turn_up;
    let known = turn_up.known(direction);
    let found = known.bottleneck.as_ref();
    let between = match known.path_mtu {
        Some(MtuOutcome::Between { passes, vanishes }) => Some((passes, vanishes)),
        Some(MtuOutcome::Found { .. } | MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer)
        | None => None,
    };
    let raw: Vec<&RawRun> = finished
        .runs
        .iter()
        .filter(|run| run.direction == direction)
        .collect();
    json!({
        "path_mtu_bytes": path_mtu(turn_up, direction),
        "path_mtu_at_least_bytes": between.map(|(passes, _)| passes),
        "path_mtu_below_bytes": between.map(|(_, vanishes)| vanishes),
        "bottleneck_bit_s": found.map(|found| found.rate.bits_per_second()),
        "bottleneck_is_steady": found.map(|found| found.is_steady),
        "bottleneck_limited_by": found.map(|found| match found.limited_by {
            LimitedBy::Path => "path",
            LimitedBy::MaxRate => "max-rate",
            LimitedBy::Sender => "sender",
            LimitedBy::Receiver => "receiver",
        }),
        "bdp_bytes": turn_up.bdp(direction).map(|bdp| bdp.bytes()),
        "maximum_throughput_bit_s": turn_up
            .ideal(direction)
            .and_then(|ideal| maximum(&ideal)),
        "reached_bit_s": turn_up.reached(direction).map(|reached| reached.bits_per_second()),
        "loss_budget": loss_budget(known),
        "streams": known
            .streams
            .iter()
            .map(of_stream)
            .chain(known.counted.iter().map(of_counted))
            .collect::<Vec<_>>(),
        "runs": raw.iter().map(|run| of_run(finished, run)).collect::<Vec<_>>(),
    })
}

fn maximum(ideal: &IdealPath) -> Option<u64> {
    match ideal.maximum {
        PathMaximum::Known(maximum) => Some(maximum.bits_per_second()),
        PathMaximum::AtLeast(_) => None,
    }
}

fn loss_budget(known: &DirectionResults) -> Option<Value> {
    let loss = known.loss?;
    Some(json!({
        "run_length_packets": loss.budget.run_length_packets,
        "window_packets": loss.budget.window_packets,
        "sent_packets": loss.sent,
        "lost_packets": loss.lost,
        "verdict": match loss.verdict {
            measure::metrics::LossVerdict::Within => "within",
            measure::metrics::LossVerdict::Beyond => "beyond",
            measure::metrics::LossVerdict::Undecided => "undecided",
        },
    }))
}

fn of_stream(record: &StreamRecord) -> Value {
    json!({
        "offered_bit_s": record.plan.rate.bits_per_second(),
        "packet_bytes": record.plan.ip_bytes,
        "duration_s": record.plan.duration.as_secs_f64(),
        "sent_packets": record.sent,
        "arrived_packets": record.arrivals.len(),
        "no_room_packets": record.no_room,
        "seconds_bit_s": record
            .seconds()
            .iter()
            .map(|second| second.rate.bits_per_second())
            .collect::<Vec<_>>(),
    })
}

/// A stream whose packets an end counted that is not ours.
fn of_counted(stream: &CountedStream) -> Value {
    let record = stream.record().unwrap_or(StreamRecord {
        plan: stream.plan,
        sent: stream.sent,
        arrivals: Vec::new(),
        left_ns: Vec::new(),
        no_room: 0,
    });
    let mut value = of_stream(&record);
    value["arrived_packets"] = stream.received.into();
    value["no_room_packets"] = stream.no_room.into();
    value["jitter_ms"] = stream.jitter.map(ms).into();
    value["sent_for_s"] = stream.span.as_secs_f64().into();
    value
}

fn of_run(finished: &FinishedTest, run: &RawRun) -> Value {
    let place = run.direction as usize;
    let (plan, ideal) = (&run.plan, finished.turn_up.ideal(run.direction));
    let all = ideal.and_then(|ideal| run.figures(&ideal));
    let mut value = json!({
        "purpose": purpose(&finished.turn_up, plan, run.direction),
        "window_bytes": plan.windows[place].bytes(),
        "connections": plan.connections[place],
        "duration_s": plan.duration.as_secs_f64(),
        "congestion_control": run.congestion_control,
        "client_busy_percent": f64::from(run.busy_permille[0]) / 10.0,
        "server_busy_percent": f64::from(run.busy_permille[1]) / 10.0,
        "server_retransmitted_segments": run.segments_retransmitted,
    });
    let fields = value.as_object_mut().expect("it was made as an object");
    fields.extend(figures(all.as_ref()));
    let each: Vec<Value> = ideal
        .map(|ideal| {
            let mut numbers: Vec<u16> = run.samples.iter().map(|one| one.connection).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
                .into_iter()
                .map(|number| {
                    let own = connection_figures(&run.samples, number, plan.duration, &ideal);
                    Value::Object(figures(own.as_ref()))
                })
                .collect()
        })
        .unwrap_or_default();
    fields.insert("each_connection".to_owned(), each.into());
    let seconds: Vec<Value> = run
        .seconds
        .iter()
        .map(|second| {
            json!({
                "at_s": second.at.as_secs_f64(),
                "throughput_bit_s": second.throughput.bits_per_second(),
                "rtt_ms": second.rtt.map(ms),
                "retransmitted_bytes": second.retransmitted.map(|again| again.bytes()),
            })
        })
        .collect();
    fields.insert("seconds".to_owned(), seconds.into());
    let samples: Vec<Value> = run.samples.iter().map(sample).collect();
    fields.insert("samples".to_owned(), samples.into());
    value
}

fn figures(found: Option<&RunFigures>) -> Map<String, Value> {
    let value = json!({
        "effective_window_bytes": found.and_then(RunFigures::window_each).map(|window| window.bytes()),
        "throughput_bit_s": found.map(|found| found.throughput.bits_per_second()),
        "ideal_bit_s": found
            .and_then(|found| found.ideal)
            .map(|ideal| ideal.bits_per_second()),
        "transfer_time_ratio": found.and_then(|found| found.transfer_time_ratio),
        "tcp_efficiency_percent": found.and_then(|found| found.efficiency_percent),
        "average_rtt_ms": found.and_then(|found| found.average_rtt).map(ms),
        "buffer_delay_percent": found.and_then(|found| found.buffer_delay_percent),
        "sent_bytes": found
            .and_then(|found| found.bytes_sent)
            .map(|sent| sent.bytes()),
        "retransmitted_bytes": found
            .and_then(|found| found.bytes_retransmitted)
            .map(|again| again.bytes()),
        "window_limited_percent": found.and_then(|found| found.window_limited_percent),
        "send_buffer_limited_percent": found.and_then(|found| found.send_buffer_limited_percent),
    });
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn sample(sample: &RunSample) -> Value {
    let info = &sample.info;
    json!({
        "connection": sample.connection,
        "at_s": sample.at.as_secs_f64(),
        "rtt_ms": ms(info.rtt),
        "rtt_min_ms": ms(info.rtt_min),
        "congestion_window_packets": info.congestion_window,
        "peer_window_bytes": info.peer_window.map(|window| window.bytes()),
        "acknowledged_bytes": info.bytes_acknowledged.bytes(),
        "sent_bytes": info.bytes_sent.bytes(),
        "retransmitted_bytes": info.bytes_retransmitted.bytes(),
        "busy_ms": ms(info.busy),
        "window_limited_ms": ms(info.receive_window_limited),
        "send_buffer_limited_ms": ms(info.send_buffer_limited),
    })
}

fn ms(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
