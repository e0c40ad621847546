//! Diagnosis of a turn-up test: each direction's measurements become the input of [`diagnose`].
//!
//! The test itself can be a limit, which says nothing about the path: windows that it chose, a host
//! that did not keep a stream's rate, a socket without room. Such findings are corrected here.

mod no_room;

use std::collections::BTreeMap;

use path::PROBES_MAX;
use vocab::{Bitrate, ByteCount, Time};

pub use self::no_room::{found_no_room, without_room};
use super::two_ended::SENT_SHARE;
use super::{
    CauseParameters, DiagnosisCause, DiagnosisFinding, LoadStage, SizeProbe, StreamPacket, TcpRun,
    TcpSample, TwoEnded, diagnose, interruptions,
};
use crate::procedure::{BottleneckResult, CountedStream, LimitedBy, MtuOutcome, StreamRecord};
use crate::run::is_window_reached;
use crate::turn_up::{DirectionResults, FinishedTest, RawRun, RunPurpose, TurnUp};
use crate::wire::TestDirection;

/// Share of the BDP up to which a window walk makes windows small on purpose: with such a window,
/// TCP waits for its window whenever a packet waits for another.
const SMALL_PERCENT: u64 = 100;

/// Causes found in each direction that was measured; there may be none in a direction in which no
/// stream was seen packet by packet.
#[must_use]
pub fn diagnose_test(finished: &FinishedTest) -> Vec<(TestDirection, DiagnosisFinding)> {
    let directions = finished.turn_up.profile().directions.clone();
    let known = |direction: &TestDirection| {
        let known = finished.turn_up.known(*direction);
        known.bottleneck.is_some() || !known.runs.is_empty() || known.black_hole().is_some()
    };
    directions
        .into_iter()
        .filter(known)
        .flat_map(|direction| {
            let found = found(finished, direction);
            found.into_iter().map(move |finding| (direction, finding))
        })
        .collect()
}

fn found(finished: &FinishedTest, direction: TestDirection) -> Vec<DiagnosisFinding> {
    let streams = &finished.turn_up.known(direction).streams;
    let fastest = streams
        .iter()
        .filter(|record| is_kept(record))
        .map(|record| record.plan.rate)
        .max();
    let mut observed = observed(finished, direction);
    let mut found = diagnose(&observed);
    if found.iter().any(is_of_window) {
        leave_out_own_windows(&mut found, &observed, finished, direction);
    }
    // What a stuttering sender makes of a stream says nothing of the path, but that it stuttered; and
    // that only where it kept no faster one.
    let is_short = |record: &StreamRecord| {
        !is_kept(record) && fastest.is_none_or(|fastest| record.plan.rate > fastest)
    };
    observed.stages = streams
        .iter()
        .filter(|record| is_short(record))
        .map(stage)
        .collect();
    let is_limited = |finding: &DiagnosisFinding| finding.cause == DiagnosisCause::TestHostLimited;
    if !found.iter().any(is_limited)
        && let Some(limited) = diagnose(&observed).into_iter().find(is_limited)
    {
        found.retain(|finding| {
            !matches!(
                finding.cause,
                DiagnosisCause::None | DiagnosisCause::Unknown
            )
        });
        found.push(limited);
    }
    if !found.iter().any(is_limited)
        && let Some(limited) = sender_limited(finished, direction)
    {
        found.retain(|finding| {
            !matches!(
                finding.cause,
                DiagnosisCause::None | DiagnosisCause::Unknown
            )
        });
        found.push(limited);
    }
    if let Some(limited) = no_room::receiver_limited(finished, direction) {
        found.retain(|finding| {
            !matches!(
                finding.cause,
                DiagnosisCause::None | DiagnosisCause::Unknown
            )
        });
        match found.iter_mut().find(|finding| is_limited(finding)) {
            Some(sender) => sender.evidence.extend(limited.evidence),
            None => found.push(limited),
        }
    }
    // A stream that was only counted, or none at all, tells nothing: nor would the same test tell more tomorrow.
    if streams.is_empty() {
        found.retain(|finding| finding.cause != DiagnosisCause::Unknown);
    }
    if is_queue_idle(&found, &observed.runs) {
        found.retain(|finding| finding.cause != DiagnosisCause::DropTailQueue);
    }
    leave_open(
        &mut found,
        finished.turn_up.known(direction).bottleneck.as_ref(),
    );
    found
}

/// Marks the result as open where the stream that overloads the path was not kept to its rate and
/// the other streams got through: that does not show that a path whose limit was met has none.
fn leave_open(found: &mut [DiagnosisFinding], bottleneck: Option<&BottleneckResult>) {
    let Some(limit) = bottleneck.filter(|found| found.limited_by == LimitedBy::Path) else {
        return;
    };
    for finding in found
        .iter_mut()
        .filter(|one| one.cause == DiagnosisCause::None)
    {
        finding.cause = DiagnosisCause::Unknown;
        finding.evidence.push(format!(
            "the path carries no more than {}; the cause is unknown, because the stream was not sent evenly enough",
            limit.rate
        ));
    }
}

fn is_of_window(finding: &DiagnosisFinding) -> bool {
    finding.cause == DiagnosisCause::HostWindow
}

/// Takes the hosts' window from the causes, unless a run that shows the hosts' own windows names it, too.
fn leave_out_own_windows(
    found: &mut Vec<DiagnosisFinding>,
    observed: &TwoEnded,
    finished: &FinishedTest,
    direction: TestDirection,
) {
    let turn_up = &finished.turn_up;
    let has_window = turn_up.profile().connection_window.is_some();
    let is_tcp_alone = turn_up.known(direction).bottleneck.is_none();
    let runs = finished.runs.iter().filter(|run| {
        run.direction == direction
            && is_full(run, has_window, is_tcp_alone)
            && shows_hosts_windows(run, turn_up)
    });
    let of_hosts = TwoEnded {
        runs: runs.map(tcp_run).collect(),
        ..observed.clone()
    };
    let is_other = |finding: &DiagnosisFinding| !is_of_window(finding);
    found.retain(is_other);
    found.extend(diagnose(&of_hosts).into_iter().find(is_of_window));
    if found.is_empty() {
        let without = TwoEnded {
            runs: Vec::new(),
            ..of_hosts
        };
        found.extend(diagnose(&without));
    }
}

/// Tells whether a window that limited this run is a window of the hosts' own choice.
fn shows_hosts_windows(run: &RawRun, turn_up: &TurnUp) -> bool {
    let Some(found) = turn_up
        .ideal(run.direction)
        .and_then(|ideal| run.figures(&ideal))
    else {
        return false;
    };
    let place = run.direction as usize;
    let wanted = run.plan.windows[place];
    match run.plan.purpose {
        // The tester chose it: only what a host made of it is the host's, be it the receiver's window or the
        // sender's buffer.
        RunPurpose::Walk(_) => {
            let is_given = found
                .window_each()
                .is_none_or(|seen| is_window_reached(wanted, seen));
            !is_given || found.send_buffer_limited_percent > found.window_limited_percent
        }
        // Where a host set the rate nobody knows whether a window of its BDP is enough for the path; a
        // smaller one is not.
        RunPurpose::Listed | RunPurpose::Many => {
            let all = wanted.bytes() * u64::from(run.plan.connections[place]);
            let is_by_host = turn_up
                .known(run.direction)
                .bottleneck
                .as_ref()
                .is_some_and(|found| found.limited_by.is_host());
            !is_by_host
                || turn_up
                    .bdp(run.direction)
                    .is_none_or(|bdp| all < bdp.bytes())
        }
        RunPurpose::Open | RunPurpose::RoundTrip | RunPurpose::Together => true,
    }
}

/// Finding of the search itself that the sender is the limit, where no stage shows it.
fn sender_limited(finished: &FinishedTest, direction: TestDirection) -> Option<DiagnosisFinding> {
    /// Confidence of a search that offered more twice.
    const SURE: f64 = 0.9;
    let known = finished.turn_up.known(direction);
    let found = known
        .bottleneck
        .as_ref()
        .filter(|found| found.limited_by == LimitedBy::Sender)?;
    let asked = known.streams.iter().map(|record| record.plan.rate).max()?;
    Some(DiagnosisFinding {
        cause: DiagnosisCause::TestHostLimited,
        confidence: SURE,
        evidence: vec![format!("the host sent {} instead of {asked}", found.rate)],
        parameters: CauseParameters {
            rate: Some(found.rate),
            ..CauseParameters::default()
        },
        instead: None,
    })
}

/// Tells whether a window limited TCP and no run lost a segment. The stream then filled the
/// bottleneck's queue, but TCP never reached its end, so the queue is not a cause.
fn is_queue_idle(found: &[DiagnosisFinding], runs: &[TcpRun]) -> bool {
    let mut ends = runs
        .iter()
        .flat_map(|run| &run.connections)
        .filter_map(|samples| samples.last());
    let is_lossless = ends.all(|sample| sample.info.bytes_retransmitted == ByteCount::default());
    is_lossless
        && found
            .iter()
            .any(|finding| finding.cause == DiagnosisCause::HostWindow)
}

fn observed(finished: &FinishedTest, direction: TestDirection) -> TwoEnded {
    let known = finished.turn_up.known(direction);
    let other = match direction {
        TestDirection::Up => TestDirection::Down,
        TestDirection::Down => TestDirection::Up,
    };
    let reverse = finished.turn_up.known(other).bottleneck.as_ref();
    let is_tcp_alone = known.bottleneck.is_none();
    let has_window = finished.turn_up.profile().connection_window.is_some();
    TwoEnded {
        baseline_rtt: finished.turn_up.round_trip(),
        stages: known
            .streams
            .iter()
            .filter(|record| is_kept(record) && !record.is_overrun())
            .map(stage)
            .collect(),
        runs: finished
            .runs
            .iter()
            .filter(|run| run.direction == direction && is_full(run, has_window, is_tcp_alone))
            .map(tcp_run)
            .collect(),
        // What a host could not send is not the path's rate.
        reverse_rate: reverse
            .filter(|found| !found.limited_by.is_host())
            .map(|found| found.rate),
        size_probes: size_probes(known),
    }
}

/// Tells whether the sender kept a stream to its rate.
fn is_kept(record: &StreamRecord) -> bool {
    let asked = record.plan.rate.bits_per_second() as f64;
    let offered = record.offered().map_or(0, Bitrate::bits_per_second) as f64;
    offered >= SENT_SHARE * asked
}

fn is_full(run: &RawRun, has_window: bool, is_tcp_alone: bool) -> bool {
    match run.plan.purpose {
        // Of what TCP reached, and nobody knows whether that is the BDP.
        RunPurpose::Walk(_) if is_tcp_alone => false,
        RunPurpose::Walk(percent) => percent > SMALL_PERCENT,
        RunPurpose::Listed | RunPurpose::Open => true,
        RunPurpose::RoundTrip => false,
        // Unless somebody says otherwise they share one BDP.
        RunPurpose::Many => has_window,
        // The other direction's traffic is in the way.
        RunPurpose::Together => false,
    }
}

fn stage(record: &StreamRecord) -> LoadStage {
    let mut packets: Vec<Option<StreamPacket>> = vec![None; record.sent as usize];
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
        .enumerate()
        .map(|(place, packet)| {
            // Where the sender does not say when one left that did not arrive, it is as if it had left in turn.
            let left = record.left_ns.get(place);
            let packet = packet.unwrap_or(StreamPacket {
                sent: left.map_or(sent + gap, |left| Time::from_nanos(*left)),
                received: None,
            });
            sent = sent.max(packet.sent);
            packet
        })
        .collect();
    LoadStage {
        offered: record.plan.rate,
        packet: bytes,
        packets,
    }
}

/// Remark about packets of a stream that were lost in long rows, which a bottleneck does not cause.
#[must_use]
pub fn interrupted(direction: TestDirection, record: &StreamRecord) -> Option<String> {
    if record.is_overrun() {
        // Whoever lost them, it is not known that nothing passed.
        return None;
    }
    let rows = interruptions(&stage(record));
    let longest = rows.iter().max_by_key(|row| row.lasted)?;
    let others = match rows.len() {
        1 => String::new(),
        count => format!(" (the longest of {count} such series)"),
    };
    Some(format!(
        "{}, at {}: {} packets in a row were lost, which were sent within {:.0} ms in which no packet \
         arrived{others}. No queue and no policer causes such a loss: a host or a device on the path \
         stopped for a moment, or the path was interrupted. The diagnosis ignores these losses; measure \
         again when the hosts have less load",
        direction.name(),
        record.plan.rate,
        longest.packets.len(),
        longest.lasted.as_secs_f64() * 1e3,
    ))
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
        written_until: Some(Time::from_epoch(run.plan.duration)),
        received: Vec::new(),
    }
}

fn size_probes(known: &DirectionResults) -> Vec<SizeProbe> {
    let probe = |size: u16, answered| SizeProbe {
        size: ByteCount::new(u64::from(size)),
        sent: if answered == 0 { PROBES_MAX } else { 1 },
        answered,
        was_refused: false,
    };
    match known.path_mtu {
        Some(MtuOutcome::Found { mtu, tried }) if mtu < tried => {
            vec![probe(mtu, 1), probe(mtu + 1, 0), probe(tried, 0)]
        }
        Some(MtuOutcome::Found { mtu, .. }) => vec![probe(mtu, 1)],
        Some(MtuOutcome::TooSmall { tried }) => vec![probe(tried, 0)],
        Some(MtuOutcome::Between { .. }) => known.counted.iter().map(counted_probe).collect(),
        Some(MtuOutcome::NoAnswer) | None => Vec::new(),
    }
}

/// The packets of a stream that an end counted which is not ours.
fn counted_probe(stream: &CountedStream) -> SizeProbe {
    let count = |packets: u64| u32::try_from(packets).unwrap_or(u32::MAX);
    SizeProbe {
        size: ByteCount::new(u64::from(stream.plan.ip_bytes)),
        sent: count(stream.sent),
        answered: count(stream.received),
        was_refused: false,
    }
}

#[cfg(test)]
mod tests;
