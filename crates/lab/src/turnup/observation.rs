//! What a test measured of a direction, as the diagnosis takes it.

use std::collections::BTreeMap;

use measure::diagnosis::{
    Finding, SizeProbe, Stage, StreamPacket, TcpRun, TcpSample, TwoEnded, diagnose,
};
use measure::procedure::{MtuOutcome, StreamRecord};
use measure::turn_up::Purpose;
use measure::wire::Direction;
use vocab::{ByteCount, Time};

use super::client::{Finished, RawRun};

/// A window walk makes windows small on purpose; only those of this share of the BDP and more are not.
const FULL_PERCENT: u64 = 100;
/// Probes of a size that a search sends until it calls it too large.
const PROBES: u32 = 3;

/// The causes found in each direction that was measured.
#[must_use]
pub fn findings(finished: &Finished) -> Vec<(Direction, Finding)> {
    let directions = finished.turn_up.profile().directions.clone();
    let known = |direction: &Direction| finished.turn_up.known(*direction).bottleneck.is_some();
    directions
        .into_iter()
        .filter(known)
        .flat_map(|direction| {
            let found = diagnose(&observed(finished, direction));
            found.into_iter().map(move |finding| (direction, finding))
        })
        .collect()
}

fn observed(finished: &Finished, direction: Direction) -> TwoEnded {
    let known = finished.turn_up.known(direction);
    let other = match direction {
        Direction::Up => Direction::Down,
        Direction::Down => Direction::Up,
    };
    let reverse = finished.turn_up.known(other).bottleneck.as_ref();
    TwoEnded {
        baseline_rtt: finished.turn_up.round_trip(),
        stages: known.streams.iter().map(stage).collect(),
        runs: finished
            .runs
            .iter()
            .filter(|run| run.direction == direction && is_full(run))
            .map(tcp_run)
            .collect(),
        reverse_rate: reverse.map(|found| found.rate),
        size_probes: size_probes(known.path_mtu),
    }
}

fn is_full(run: &RawRun) -> bool {
    match run.plan.purpose {
        Purpose::Walk(percent) => percent >= FULL_PERCENT,
        Purpose::Listed | Purpose::Many => true,
        // The other direction's traffic is in the way.
        Purpose::Together => false,
    }
}

fn stage(record: &StreamRecord) -> Stage {
    let mut packets: Vec<Option<StreamPacket>> = vec![None; record.sent as usize];
    // The stamp of one that did not arrive is that of its place in the stream.
    for arrival in &record.arrivals {
        if let Some(place) = packets.get_mut(arrival.number as usize) {
            *place = Some(StreamPacket {
                sent: Time::from_nanos(arrival.sent_ns),
                received: Some(Time::from_nanos(arrival.arrived_ns)),
            });
        }
    }
    let bytes = ByteCount::new(u64::from(record.plan.ip_bytes));
    let gap = record.plan.rate.time_for(bytes);
    let mut sent = Time::ZERO;
    let packets = packets
        .into_iter()
        .map(|packet| {
            let packet = packet.unwrap_or(StreamPacket {
                sent: sent + gap,
                received: None,
            });
            sent = sent.max(packet.sent);
            packet
        })
        .collect();
    Stage {
        offered: record.plan.rate,
        packet: bytes,
        packets,
    }
}

fn tcp_run(run: &RawRun) -> TcpRun {
    let mut connections: BTreeMap<u16, Vec<TcpSample>> = BTreeMap::new();
    for sample in &run.samples {
        connections
            .entry(sample.connection)
            .or_default()
            .push(TcpSample {
                at: Time::from_epoch(sample.at),
                info: sample.info,
            });
    }
    TcpRun {
        connections: connections.into_values().collect(),
        received: Vec::new(),
    }
}

fn size_probes(found: Option<MtuOutcome>) -> Vec<SizeProbe> {
    let probe = |size: u16, answered| SizeProbe {
        size: ByteCount::new(u64::from(size)),
        sent: if answered == 0 { PROBES } else { 1 },
        answered,
        was_refused: false,
    };
    match found {
        Some(MtuOutcome::Found { mtu, tried }) if mtu < tried => {
            vec![probe(mtu, 1), probe(mtu + 1, 0), probe(tried, 0)]
        }
        Some(MtuOutcome::Found { mtu, .. }) => vec![probe(mtu, 1)],
        Some(MtuOutcome::TooSmall { tried }) => vec![probe(tried, 0)],
        Some(MtuOutcome::NoAnswer) | None => Vec::new(),
    }
}
