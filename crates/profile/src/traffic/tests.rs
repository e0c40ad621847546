//! Tests of traffic patterns and of the account of packets.

use std::time::Duration;

use vocab::{ByteCount, Time};

use super::*;
use crate::plan::{
    AddressFamily, ExperimentPurpose, MeasurementSubject, RunPlan, SizeShare, TrafficPattern,
    TrafficPlan,
};
use crate::record::PacketFate;

fn run(pattern: TrafficPattern, packets: u64) -> RunPlan {
    let size = |bytes, share| SizeShare {
        size: ByteCount::new(bytes),
        share,
    };
    RunPlan {
        number: 0,
        experiment: "test".to_owned(),
        purpose: ExperimentPurpose::Report,
        subject: MeasurementSubject::Device,
        repetition: 0,
        size: None,
        traffic: vec![TrafficPlan {
            from: vec![0, 1],
            to: vec![2, 3],
            pattern,
            sizes: vec![size(64, 3.0), size(1500, 1.0)],
            flows: 2,
            start: Duration::from_millis(1),
            packets: Some(packets),
            duration: Some(Duration::from_secs(100)),
        }],
        family: AddressFamily::Ipv4,
        loss_after: Duration::from_secs(1),
        pause: Duration::ZERO,
        seed: 7,
    }
}

fn all(machine: &mut TrafficMachine) -> Vec<OutgoingPacket> {
    let mut packets = Vec::new();
    while let Some(at) = machine.next_packet() {
        packets.push(machine.poll_output(at).unwrap());
    }
    packets
}

#[test]
fn constant_rate_does_not_drift() {
    let pattern = TrafficPattern::Constant {
        packets_per_second: 3_000.0,
    };
    let packets = all(&mut TrafficMachine::new(Time::ZERO, &run(pattern, 30_001)));
    assert_eq!(packets.len(), 30_001);
    assert_eq!(packets[30_000].due, Time::from_nanos(10_001_000_000));
    assert_eq!((packets[1].input, packets[1].output), (1, 3));
    assert_eq!(packets[3].flow, 1);
}

#[test]
fn poisson_gaps_have_mean_and_spread() {
    let pattern = TrafficPattern::Poisson {
        packets_per_second: 1_000.0,
    };
    let packets = all(&mut TrafficMachine::new(Time::ZERO, &run(pattern, 20_000)));
    let gaps: Vec<f64> = packets
        .windows(2)
        .map(|pair| pair[1].due.since(pair[0].due).as_secs_f64())
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps
        .iter()
        .map(|gap| (gap - mean) * (gap - mean))
        .sum::<f64>();
    let deviation = libm::sqrt(variance / gaps.len() as f64);
    assert!((mean / 0.001 - 1.0).abs() < 0.03, "{mean}");
    assert!((deviation / mean - 1.0).abs() < 0.05, "{deviation}");
    let small = packets.iter().filter(|packet| packet.size == 64).count();
    assert!((small as f64 / 20_000.0 - 0.75).abs() < 0.02, "{small}");
}

#[test]
fn bursts_keep_gap_and_period() {
    let pattern = TrafficPattern::Bursts {
        packets_per_burst: 3,
        gap: Duration::from_micros(2),
        period: Duration::from_millis(1),
    };
    let packets = all(&mut TrafficMachine::new(Time::ZERO, &run(pattern, 5)));
    let times: Vec<u64> = packets
        .iter()
        .map(|packet| packet.due.as_nanos() / 1000)
        .collect();
    assert_eq!(times, [1_000, 1_002, 1_004, 2_000, 2_002]);
}

#[test]
fn every_packet_gets_its_fate() {
    let pattern = TrafficPattern::Constant {
        packets_per_second: 1_000.0,
    };
    let mut machine = TrafficMachine::new(Time::ZERO, &run(pattern, 8));
    let packets = all(&mut machine);
    let at = |milliseconds: u64| Time::from_nanos(milliseconds * 1_000_000);
    let arrival = |sequence: u64, milliseconds: u64, integrity| ReceivedPacket {
        sequence,
        at: at(milliseconds),
        size: packets[sequence as usize].size,
        output: packets[sequence as usize].output,
        integrity,
        content: None,
    };
    let intact = PacketIntegrity::Intact;
    machine.handle_sent(0, at(2));
    // Number 2 is of the same flow as 0 and 4, and arrives after 4; 3 is changed; 5 arrives twice;
    // our port loses 6; 1 and 7 do not arrive.
    machine.handle_received(at(20), &arrival(0, 20, intact));
    machine.handle_received(at(21), &arrival(4, 21, intact));
    machine.handle_received(at(22), &arrival(2, 22, intact));
    machine.handle_received(at(23), &arrival(3, 23, PacketIntegrity::Corrupted));
    machine.handle_received(at(24), &arrival(5, 24, intact));
    machine.handle_received(at(25), &arrival(5, 25, intact));
    machine.handle_unsent(6);
    assert_eq!(machine.poll_record(at(999)), None);
    let end = at(3_000);
    let records: Vec<_> = std::iter::from_fn(|| machine.poll_record(end)).collect();
    let fates: Vec<PacketFate> = records.iter().map(|record| record.fate).collect();
    assert_eq!(
        fates,
        [
            PacketFate::Delivered,
            PacketFate::Lost,
            PacketFate::Reordered,
            PacketFate::Corrupted,
            PacketFate::Delivered,
            PacketFate::Delivered,
            PacketFate::Duplicated,
            PacketFate::LostAtPort,
            PacketFate::Lost,
        ]
    );
    assert_eq!(records[0].delay(), Some(Duration::from_millis(18)));
    assert!(machine.is_finished());
    let summary = machine.summary();
    assert_eq!((summary.sent, summary.lost, summary.duplicated), (8, 2, 1));
    assert!(summary.is_void());
    // It comes when it is no longer outstanding.
    machine.handle_received(end, &arrival(5, 3_000, intact));
    assert_eq!(machine.strays(), 1);
}

#[test]
fn tcp_flows_pass_a_wire_closed_loop() {
    let mut plan = run(
        TrafficPattern::Tcp {
            segment: ByteCount::new(1_460),
            bytes: Some(ByteCount::new(100_000)),
        },
        1,
    );
    plan.traffic[0].packets = None;
    plan.traffic[0].flows = 300;
    plan.traffic[0].duration = Some(Duration::from_secs(3));
    let mut machine = TrafficMachine::new(Time::ZERO, &plan);
    let flows = bytes_over_a_wire(&mut machine);
    // 300 flows of data and as many of acknowledgements.
    assert_eq!(flows.len(), 600);
    assert!(
        flows
            .iter()
            .all(|(flow, bytes)| flow % 2 == 1 || *bytes > 100_000)
    );
    let summary = machine.summary();
    assert_eq!((summary.lost, summary.sent), (0, summary.delivered));
}

/// Sends all traffic over a wire that delivers at the moment of transmission, which is a round trip of
/// zero. Returns the bytes of each flow.
fn bytes_over_a_wire(machine: &mut TrafficMachine) -> std::collections::BTreeMap<u32, u64> {
    let mut now = Time::ZERO;
    let mut flows = std::collections::BTreeMap::new();
    while let Some(next) = machine.poll_timeout() {
        now = now.max(next);
        while machine.poll_record(now).is_some() {}
        let Some(packet) = machine.poll_output(now) else {
            continue;
        };
        let PacketContent::Tcp(content) = packet.content else {
            panic!("a TCP pattern sends TCP");
        };
        *flows.entry(packet.flow).or_insert(0_u64) += u64::from(packet.size);
        machine.handle_received(
            now,
            &ReceivedPacket {
                sequence: packet.sequence,
                at: now,
                size: packet.size,
                output: packet.output,
                integrity: PacketIntegrity::Intact,
                content: Some(content),
            },
        );
    }
    flows
}

#[test]
fn tcp_patterns_have_server_ports_of_their_own() {
    let mut plan = run(
        TrafficPattern::Tcp {
            segment: ByteCount::new(1_460),
            bytes: Some(ByteCount::new(20_000)),
        },
        1,
    );
    plan.traffic[0].packets = None;
    plan.traffic[0].flows = 500;
    plan.traffic[0].duration = Some(Duration::from_secs(3));
    let mut second = plan.traffic[0].clone();
    second.flows = 3;
    plan.traffic.push(second);
    let flows = bytes_over_a_wire(&mut TrafficMachine::new(Time::ZERO, &plan));
    // The flows of the first pattern and their acknowledgements take the first 1,000 numbers.
    for flow in [1_000, 1_002, 1_004] {
        assert!(
            flows.get(&flow).is_some_and(|bytes| *bytes > 20_000),
            "{flow}: {flows:?}"
        );
    }
}

/// A machine with two closed-loop flows, and its first packet, a SYN.
fn with_a_segment() -> (TrafficMachine, OutgoingPacket, Bytes) {
    let mut plan = run(
        TrafficPattern::Tcp {
            segment: ByteCount::new(1_460),
            bytes: None,
        },
        1,
    );
    plan.traffic[0].packets = None;
    let mut machine = TrafficMachine::new(Time::ZERO, &plan);
    let at = machine.next_packet().unwrap();
    let packet = machine.poll_output(at).unwrap();
    let PacketContent::Tcp(content) = packet.content.clone() else {
        panic!("a TCP pattern sends TCP");
    };
    (machine, packet, content)
}

fn segment_arrival(packet: &OutgoingPacket, content: Bytes) -> ReceivedPacket {
    ReceivedPacket {
        sequence: packet.sequence,
        at: packet.due,
        size: content.len() as u32,
        output: packet.output,
        integrity: PacketIntegrity::Intact,
        content: Some(content),
    }
}

fn fates(machine: &mut TrafficMachine) -> Vec<PacketFate> {
    machine.stop();
    std::iter::from_fn(|| machine.poll_record(Time::NEVER))
        .map(|record| record.fate)
        .collect()
}

#[test]
fn translated_segment_counts_as_corrupted() {
    let (mut machine, packet, content) = with_a_segment();
    let (mut addresses, segment) = parse_packet(&content).unwrap();
    // A device translates the client's address and port, and corrects the check sums.
    addresses.remote = "203.0.113.7:40000".parse().unwrap();
    let translated = tcp::emit_packet(&addresses.reversed(), &segment);
    assert_eq!(translated.len(), content.len());
    let arrival = segment_arrival(&packet, translated);
    assert_eq!(
        machine.handle_received(packet.due, &arrival),
        ArrivalOrigin::Rewritten
    );
    assert_eq!(fates(&mut machine), [PacketFate::Corrupted]);
}

#[test]
fn segment_of_somebody_else_counts_for_no_packet() {
    let (mut machine, packet, content) = with_a_segment();
    let (addresses, mut segment) = parse_packet(&content).unwrap();
    // A firewall resets the flow, in a packet whose number is any.
    segment.flags = SegmentFlags::RST | SegmentFlags::ACK;
    segment.options = tcp::SegmentOptions::default();
    let reset = tcp::emit_packet(&addresses.reversed(), &segment);
    assert_ne!(reset.len(), content.len());
    let other = FlowAddresses {
        local: addresses.local,
        remote: "192.0.2.1:80".parse().unwrap(),
    };
    let unrelated = tcp::emit_packet(&other.reversed(), &segment);
    for foreign in [reset, unrelated] {
        let arrival = segment_arrival(&packet, foreign);
        assert_eq!(
            machine.handle_received(packet.due, &arrival),
            ArrivalOrigin::Foreign
        );
    }
    // The packet itself arrives after that.
    let arrival = segment_arrival(&packet, content);
    assert_eq!(
        machine.handle_received(packet.due, &arrival),
        ArrivalOrigin::Own
    );
    assert_eq!(fates(&mut machine)[0], PacketFate::Delivered);
}
