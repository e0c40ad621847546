//! Measurements of one direction, in the form that the diagnosis takes.

mod no_room;

use std::collections::BTreeMap;

use measure::diagnosis::{
    CauseParameters, DiagnosisCause, DiagnosisFinding, LoadStage, SizeProbe, StreamPacket, TcpRun,
    TcpSample, TwoEnded, diagnose, interruptions,
};
use measure::procedure::{BottleneckResult, CountedStream, LimitedBy, MtuOutcome, StreamRecord};
use measure::run::is_window_reached;
use measure::turn_up::{DirectionResults, RunPurpose, TurnUp};
use measure::wire::TestDirection;
use vocab::{Bitrate, ByteCount, Time};

pub(super) use self::no_room::{found_no_room, without_room};
use super::finished::{FinishedTest, RawRun};

/// Share of the BDP up to which a window walk makes windows small on purpose: with such a window,
/// TCP waits for its window whenever a packet waits for another.
const SMALL_PERCENT: u64 = 100;
/// Share of the requested rate from which a sender kept its rate, as in the diagnosis.
const KEPT_SHARE: f64 = 0.95;
/// Probes of a size that a search sends until it calls it too large.
const PROBES: u32 = 3;

/// Causes found in each direction that was measured; there may be none in a direction in which no
/// stream was seen packet by packet.
#[must_use]
pub fn findings(finished: &FinishedTest) -> Vec<(TestDirection, DiagnosisFinding)> {
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
    offered >= KEPT_SHARE * asked
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
pub(super) fn interrupted(direction: TestDirection, record: &StreamRecord) -> Option<String> {
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
        sent: if answered == 0 { PROBES } else { 1 },
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
mod tests {
    use std::time::Duration;

    use measure::procedure::{RttOutcome, StreamPlan};
    use measure::tcp_info::TcpInfo;
    use measure::turn_up::{RunPlan, TestProfile, TestThresholds, TurnUpTask};
    use measure::wire::{DatagramArrival, RunSample};

    use super::*;

    /// A test over 100 Mbit/s and 20 ms by a host that sends no faster than `host`, with runs that
    /// were always limited by their windows.
    fn window_limited(host: u64, windows: &[u64], walk: &[u64]) -> FinishedTest {
        tested(windows, walk, |plan| sent(plan, host))
    }

    /// A test whose streams have the results of `carry`.
    fn tested(
        windows: &[u64],
        walk: &[u64],
        carry: impl Fn(StreamPlan) -> StreamRecord,
    ) -> FinishedTest {
        let mut turn_up = TurnUp::new(TestProfile {
            directions: vec![TestDirection::Up],
            walk_percent: walk.to_vec(),
            windows: windows.iter().copied().map(ByteCount::new).collect(),
            connections: 1,
            connection_window: None,
            duration: Duration::from_secs(4),
            max_rate: Bitrate::from_bits_per_second(1_000_000_000),
            tcp_headers: 40,
            target: None,
            thresholds: TestThresholds::default(),
        });
        let mut runs = Vec::new();
        loop {
            match turn_up.next_task() {
                TurnUpTask::PathMtu(_) => turn_up.path_mtu(MtuOutcome::Found {
                    mtu: 1_500,
                    tried: 1_500,
                }),
                TurnUpTask::BaselineRtt => turn_up.baseline_rtt(RttOutcome {
                    samples: vec![Duration::from_millis(20); 100],
                    sent: 100,
                }),
                TurnUpTask::Stream(_, plan) => turn_up.stream(carry(plan)),
                TurnUpTask::Run(plan) => {
                    let raw = held_back(plan);
                    let ideal = turn_up.ideal(TestDirection::Up).unwrap();
                    turn_up.run([raw.figures(&ideal), None]);
                    runs.push(raw);
                }
                TurnUpTask::Done => break,
            }
        }
        FinishedTest {
            turn_up,
            runs,
            server: "192.0.2.1:6349".parse().unwrap(),
            local: "192.0.2.2:40000".parse().unwrap(),
            hosts: Vec::new(),
            interface_mtu: 1_500,
            took: Duration::from_secs(60),
        }
    }

    /// A stream over a line of 100 Mbit/s with room for everything, by a host that keeps no more
    /// than `host`.
    fn sent(plan: StreamPlan, host: u64) -> StreamRecord {
        const LINE: u64 = 100_000_000;
        let bits = u64::from(plan.ip_bytes) * 8_000_000_000;
        let gap = bits / plan.rate.bits_per_second().min(host);
        let line = bits / LINE;
        let sent = plan.duration.as_nanos() as u64 / gap;
        StreamRecord {
            plan,
            sent,
            arrivals: (0..sent)
                .map(|number| DatagramArrival {
                    number,
                    sent_ns: number * gap,
                    arrived_ns: number * gap.max(line) + 10_000_000,
                })
                .collect(),
            left_ns: Vec::new(),
            no_room: 0,
        }
    }

    /// A run that was always limited by its window, with one window per round trip.
    fn held_back(plan: RunPlan) -> RawRun {
        let window = plan.windows[0];
        let samples: Vec<RunSample> = (0..=40_u64)
            .map(|tenth| RunSample {
                connection: 0,
                at: Duration::from_millis(100 * tenth),
                info: TcpInfo {
                    // 20 ms go five times into a tenth of a second.
                    bytes_acknowledged: ByteCount::new(tenth * 5 * window.bytes()),
                    bytes_sent: ByteCount::new(tenth * 5 * window.bytes()),
                    rtt: Duration::from_millis(20),
                    rtt_min: Duration::from_millis(20),
                    congestion_window: 1_000,
                    busy: Duration::from_millis(100 * tenth),
                    receive_window_limited: Duration::from_millis(100 * tenth),
                    peer_window: Some(window),
                    ..TcpInfo::default()
                },
            })
            .collect();
        RawRun {
            plan,
            direction: TestDirection::Up,
            seconds: measure::run::seconds(&samples),
            samples,
            reads: Vec::new(),
            congestion_control: "cubic".to_owned(),
            segments_retransmitted: None,
            busy_permille: [0; 2],
        }
    }

    fn causes(finished: &FinishedTest) -> Vec<DiagnosisCause> {
        let found = findings(finished).into_iter();
        found.map(|(_, finding)| finding.cause).collect()
    }

    /// 150 % of a slow host's rate is less than the path's BDP; that is not a fault of the hosts'
    /// windows.
    #[test]
    fn testers_own_windows_are_not_the_hosts() {
        let slow = window_limited(50_000_000, &[], &[150]);
        let found = slow.turn_up.known(TestDirection::Up).bottleneck.as_ref();
        assert_eq!(found.unwrap().limited_by, LimitedBy::Sender);
        assert_eq!(causes(&slow), [DiagnosisCause::TestHostLimited]);
    }

    /// A stream faster than 100 Mbit/s over the line of which one in `one_in` packets is missing;
    /// `no_room` of these found no room.
    fn missing(plan: StreamPlan, one_in: u64, no_room: impl Fn(u64) -> u64) -> StreamRecord {
        let mut record = sent(plan, u64::MAX);
        if plan.rate > Bitrate::from_bits_per_second(100_000_000) {
            // By a hash of its number: losses in rhythm are nobody's chance.
            let is_missing = |number: u64| {
                let mixed = (number ^ (number >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (mixed >> 33).is_multiple_of(one_in)
            };
            record.arrivals.retain(|one| !is_missing(one.number));
            record.no_room = no_room(record.sent - record.arrivals.len() as u64);
        }
        record
    }

    fn of_socket(finished: &FinishedTest) -> Vec<String> {
        let limited = findings(finished).into_iter();
        limited
            .filter(|(_, finding)| finding.cause == DiagnosisCause::TestHostLimited)
            .flat_map(|(_, finding)| finding.evidence)
            .filter(|line| line.contains("found no room in the tester's socket"))
            .collect()
    }

    #[test]
    fn packets_without_room_are_no_path_loss() {
        let all = tested(&[], &[150], |plan| missing(plan, 30, |missing| missing));
        let found = all.turn_up.known(TestDirection::Up).bottleneck.as_ref();
        assert_eq!(found.unwrap().limited_by, LimitedBy::Receiver);
        assert_eq!(causes(&all), [DiagnosisCause::TestHostLimited]);
        // Both tries.
        let said = of_socket(&all);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("(the server's host)"), "{said:?}");
        // The same losses, of the path.
        let none = tested(&[], &[150], |plan| missing(plan, 30, |_| 0));
        let found = causes(&none);
        let of_path = |cause: &DiagnosisCause| {
            !matches!(
                cause,
                DiagnosisCause::None | DiagnosisCause::Unknown | DiagnosisCause::TestHostLimited
            )
        };
        assert!(found.iter().all(of_path), "{found:?}");
        assert!(of_socket(&none).is_empty());
        // A few of them without room, which change nothing.
        let few = tested(&[], &[150], |plan| {
            missing(plan, 30, |missing| missing / 101)
        });
        assert_eq!(causes(&few), causes(&none));
    }

    #[test]
    fn stream_taken_in_at_full_rate_is_used() {
        let measured = std::cell::Cell::new(0);
        let once = tested(&[], &[150], |plan| {
            measured.set(measured.get() + u32::from(plan.duration == Duration::from_secs(4)));
            match measured.get() {
                1 => missing(plan, 30, |missing| missing),
                _ => sent(plan, u64::MAX),
            }
        });
        assert_eq!(measured.get(), 2);
        let found = once.turn_up.known(TestDirection::Up).bottleneck.as_ref();
        assert_eq!(found.unwrap().limited_by, LimitedBy::Path);
        assert_eq!(of_socket(&once), [""; 0]);
        let whole = tested(&[], &[150], |plan| sent(plan, u64::MAX));
        assert_eq!(causes(&once), causes(&whole));
    }

    #[test]
    fn listed_window_counts_if_surely_too_small() {
        let named = |host, window| {
            causes(&window_limited(host, &[window], &[])).contains(&DiagnosisCause::HostWindow)
        };
        // The BDP is 250,000 bytes; by what a host of 50 Mbit/s reaches it is 125,000.
        assert!(named(1_000_000_000, 64_000) && named(1_000_000_000, 200_000));
        assert!(named(50_000_000, 64_000));
        assert!(!named(50_000_000, 200_000));
    }

    /// A run of ten seconds that its window limited, with so many retransmitted bytes.
    fn run(retransmitted: u64) -> TcpRun {
        let sample = |second: u64| TcpSample {
            at: Time::from_epoch(Duration::from_secs(second)),
            info: TcpInfo {
                bytes_acknowledged: ByteCount::new(second * 1_600_000),
                bytes_retransmitted: ByteCount::new(retransmitted * second / 10),
                rtt: Duration::from_millis(20),
                rtt_min: Duration::from_millis(20),
                congestion_window: 100,
                busy: Duration::from_secs(second),
                receive_window_limited: Duration::from_secs(second),
                peer_window: Some(ByteCount::new(32_000)),
                ..TcpInfo::default()
            },
        };
        TcpRun {
            connections: vec![(0..=10).map(sample).collect()],
            written_until: None,
            received: Vec::new(),
        }
    }

    #[test]
    fn finished_connection_is_not_idle_while_others_drain() {
        let rest = |busy: u64, at: u64| TcpSample {
            at: Time::from_epoch(Duration::from_secs(at)),
            info: TcpInfo {
                busy: Duration::from_secs(busy),
                ..TcpInfo::default()
            },
        };
        let found = |written_until| {
            let done = (0..=10).map(|second| rest(second, second));
            let run = TcpRun {
                connections: vec![done.chain([rest(10, 14)]).collect()],
                written_until,
                received: Vec::new(),
            };
            let observed = TwoEnded {
                runs: vec![run],
                ..TwoEnded::default()
            };
            diagnose(&observed)[0].cause
        };
        assert_eq!(found(None), DiagnosisCause::TestHostLimited);
        assert_eq!(
            found(Some(Time::from_epoch(Duration::from_secs(10)))),
            DiagnosisCause::Unknown
        );
    }

    #[test]
    fn path_limit_that_was_met_is_reported() {
        let bottleneck = |limited_by| BottleneckResult {
            rate: Bitrate::from_bits_per_second(2_000_000),
            is_steady: true,
            limited_by,
            loss_below: 0.0,
        };
        let gap = Duration::from_millis(10);
        let sent = (0..100).map(|number| Time::from_epoch(gap * number));
        let passed = LoadStage {
            offered: Bitrate::from_bits_per_second(1_200_000),
            packet: ByteCount::new(1_500),
            packets: sent
                .map(|sent| StreamPacket {
                    sent,
                    received: Some(sent + gap),
                })
                .collect(),
        };
        let observed = TwoEnded {
            stages: vec![passed],
            ..TwoEnded::default()
        };
        let cause = |bottleneck: Option<BottleneckResult>| {
            let mut found = diagnose(&observed);
            leave_open(&mut found, bottleneck.as_ref());
            found[0].cause
        };
        assert_eq!(cause(None), DiagnosisCause::None);
        assert_eq!(
            cause(Some(bottleneck(LimitedBy::MaxRate))),
            DiagnosisCause::None
        );
        assert_eq!(
            cause(Some(bottleneck(LimitedBy::Path))),
            DiagnosisCause::Unknown
        );
    }

    #[test]
    fn long_row_of_losses_is_remarked_on() {
        let plan = StreamPlan {
            rate: Bitrate::from_bits_per_second(120_000_000),
            duration: Duration::from_secs(1),
            ip_bytes: 1_500,
        };
        let record = |lost: std::ops::Range<u64>| StreamRecord {
            plan,
            sent: 10_000,
            arrivals: (0..10_000)
                .filter(|number| !lost.contains(number))
                .map(|number| DatagramArrival {
                    number,
                    sent_ns: number * 100_000,
                    arrived_ns: number * 100_000,
                })
                .collect(),
            left_ns: Vec::new(),
            no_room: 0,
        };
        let said = interrupted(TestDirection::Up, &record(4_000..4_874)).unwrap();
        assert!(
            said.contains("874 packets") && said.contains("87 ms"),
            "{said}"
        );
        assert_eq!(interrupted(TestDirection::Up, &record(4_000..4_010)), None);
    }

    #[test]
    fn queue_is_idle_when_window_limits_without_loss() {
        let found = |runs: Vec<TcpRun>| {
            diagnose(&TwoEnded {
                baseline_rtt: Some(Duration::from_millis(20)),
                runs,
                ..TwoEnded::default()
            })
        };
        let held = found(vec![run(0)]);
        assert_eq!(held[0].cause, DiagnosisCause::HostWindow);
        assert_eq!(held[0].parameters.window, Some(ByteCount::new(32_000)));
        assert!(is_queue_idle(&held, &[run(0), run(0)]));
        assert!(!is_queue_idle(&held, &[run(0), run(14_480)]));
        assert!(!is_queue_idle(&found(Vec::new()), &[run(0)]));
    }
}
