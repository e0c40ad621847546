//! Tests of rate and overhead on records with known distances.

use vocab::Time;

use super::super::transit;
use super::*;
use crate::plan::{AddressFamily, ExperimentPurpose, MeasurementSubject, RunPlan};

const TRANSIT: u64 = 50_000;

fn options() -> FitOptions {
    FitOptions {
        name: "test".to_owned(),
        ports: 4,
        resolution: Duration::from_nanos(10),
        cable_delay: Duration::ZERO,
        family: ModelFamily::Full,
    }
}

fn run(records: Vec<PacketRecord>) -> MeasuredRun {
    let plan = RunPlan {
        number: 0,
        experiment: "test".to_owned(),
        purpose: ExperimentPurpose::Overload,
        subject: MeasurementSubject::Device,
        repetition: 0,
        size: None,
        traffic: Vec::new(),
        family: AddressFamily::Ipv4,
        loss_after: Duration::from_secs(1),
        pause: Duration::ZERO,
        seed: 1,
    };
    MeasuredRun { plan, records }
}

fn record(
    sequence: u64,
    size: u32,
    output: u16,
    (sent, received): (u64, Option<u64>),
) -> PacketRecord {
    PacketRecord {
        sequence,
        flow: 0,
        size,
        input: 0,
        output,
        sent: Time::from_nanos(sent),
        received: received.map(Time::from_nanos),
        fate: match received {
            Some(_) => PacketFate::Delivered,
            None => PacketFate::Lost,
        },
    }
}

/// A burst at one moment, which leaves each of `outputs` packet by packet at this distance.
fn burst(size: u32, distance: u64, outputs: u16) -> MeasuredRun {
    let records = (0..400).map(|sequence| {
        let output = (sequence % u64::from(outputs)) as u16;
        let place = sequence / u64::from(outputs);
        record(
            sequence,
            size,
            output,
            (0, Some(TRANSIT + place * distance)),
        )
    });
    run(records.collect())
}

fn fitted(runs: &[MeasuredRun]) -> (Option<FittedLine>, Vec<FittedParameter>) {
    let mut sizes: Vec<u32> = runs.iter().map(|run| run.records[0].size).collect();
    sizes.dedup();
    let lone = sizes
        .iter()
        .map(|size| record(0, *size, 0, (0, Some(TRANSIT))));
    let lone = [run(lone.collect())];
    let transit = transit::fit(lone.iter(), [].iter(), &options(), &mut Vec::new()).unwrap();
    let mut parameters = Vec::new();
    let runs: Vec<&MeasuredRun> = runs.iter().collect();
    let line = fit(&runs, (&transit, None), &options(), &mut parameters);
    (line, parameters)
}

fn parameter(parameters: &[FittedParameter], kind: ParameterKind) -> &FittedParameter {
    parameters.iter().find(|one| one.kind == kind).unwrap()
}

#[test]
fn overhead_that_no_line_has_is_not_identified() {
    let runs = [200_u32, 700, 1_500].map(|size| burst(size, 8 * (u64::from(size) + 1_500), 1));
    let (line, parameters) = fitted(&runs);
    assert!(line.is_some());
    for kind in [ParameterKind::OutputRate, ParameterKind::OutputOverhead] {
        assert!(
            parameter(&parameters, kind).unidentified.is_some(),
            "{kind}"
        );
    }
}

#[test]
fn rate_of_a_single_size_spans_every_overhead() {
    // 1 Gbit/s with 250 bytes of overhead.
    let (_, parameters) = fitted(&[burst(1_000, 10_000, 1)]);
    let rate = parameter(&parameters, ParameterKind::OutputRate);
    assert!((rate.low..=rate.high).contains(&1e9), "{rate:?}");
    assert!((rate.low..=rate.high).contains(&8e8), "{rate:?}");
}

/// Packets that are sent one by one at a gap, to a line that sends one each `distance`.
fn paced(size: u32, packets: u64, sent: impl Fn(u64) -> u64, distance: u64) -> MeasuredRun {
    let mut free = 0;
    let records = (0..packets).map(|sequence| {
        let at = sent(sequence);
        free = at.max(free) + distance;
        record(sequence, size, 0, (at, Some(TRANSIT - distance + free)))
    });
    run(records.collect())
}

#[test]
fn outputs_have_lines_of_their_own() {
    let runs = [200_u32, 700, 1_500].map(|size| burst(size, 8 * u64::from(size), 2));
    let (line, _) = fitted(&runs);
    let rate = line.unwrap().rate.bits_per_second() as f64;
    assert!((rate / 1e9 - 1.0).abs() < 0.01, "{rate}");
}

#[test]
fn line_that_keeps_up_with_the_sender_in_the_mean_is_seen_in_its_bursts() {
    // Four packets at twice the line's pace, and a pause. Our own packets are further apart in the mean than
    // those that leave behind each other.
    let runs = [200_u32, 700, 1_500].map(|size| {
        let distance = 8 * u64::from(size);
        let sent = move |sequence: u64| sequence / 4 * 8 * distance + sequence % 4 * distance / 2;
        paced(size, 400, sent, distance)
    });
    let (line, parameters) = fitted(&runs);
    let rate = line.unwrap().rate.bits_per_second() as f64;
    assert!((rate / 1e9 - 1.0).abs() < 0.01, "{rate} {parameters:?}");
}

#[test]
fn batches_of_a_busy_machine_are_no_line() {
    // A machine that sleeps for 20 packets hands them on at uneven distances, faster than they came.
    let runs = [200_u32, 700, 1_500].map(|size| {
        let records = (0..400_u64).map(|sequence| {
            let (sent, place) = (sequence * 20_000, sequence % 20);
            let wake = sequence / 20 * 20 * 20_000 + 400_000;
            let left = wake + TRANSIT + place * 1_000 + place * place * 37;
            record(sequence, size, 0, (sent, Some(left)))
        });
        run(records.collect())
    });
    let (line, _) = fitted(&runs);
    assert!(line.is_none(), "{line:?}");
}
