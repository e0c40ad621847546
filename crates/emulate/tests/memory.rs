//! Tests of the memory limits of a direction: what counts, what does not, and the behaviour beyond
//! them.

use std::time::Duration;

use bytes::Bytes;
use emulate::{
    DirectionConfig, DropReason, EnqueueOutcome, LineConfig, LinkDirection, MemoryLimits,
    PacketOutcome, PacketRecord, QueueLimit,
};
use vocab::{Bitrate, ByteCount, Probability, Time};

const PACKET: Bytes = Bytes::from_static(&[0x45; 1_000]);

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn delayed(milliseconds: u64) -> DirectionConfig {
    DirectionConfig {
        delay: Duration::from_millis(milliseconds),
        ..DirectionConfig::default()
    }
}

fn holding(packets: u64) -> MemoryLimits {
    MemoryLimits {
        held_packets: packets,
        ..MemoryLimits::default()
    }
}

fn refused() -> EnqueueOutcome {
    EnqueueOutcome::Dropped(DropReason::MemoryLimit)
}

#[test]
fn due_packet_no_longer_counts_as_held() {
    let mut direction = LinkDirection::within(holding(2), delayed(10), 1);
    assert_eq!(direction.handle(at(0), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(5), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(9), PACKET), refused());
    // The first is due in this very moment, and nobody looks.
    assert_eq!(direction.handle(at(10), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(11), PACKET), refused());
    assert_eq!(direction.poll_timeout(), Some(at(10)));
    let dues: Vec<Time> = std::iter::from_fn(|| direction.poll_output(at(30)))
        .map(|delivery| delivery.due)
        .collect();
    assert_eq!(dues, [at(10), at(15), at(20)]);
    let counters = direction.counters();
    assert_eq!(counters.dropped_by_limit.packets, 2);
    assert_eq!(counters.dropped_untaken.packets, 0);
    assert_eq!(counters.in_flight.packets, 0);
}

#[test]
fn a_limit_in_bytes_is_met_exactly() {
    let limits = MemoryLimits {
        held_bytes: ByteCount::new(2_500),
        ..MemoryLimits::default()
    };
    let mut direction = LinkDirection::within(limits, delayed(10), 1);
    assert_eq!(direction.handle(at(0), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(0), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(0), PACKET), refused());
    assert_eq!(
        direction.handle(at(0), PACKET.slice(..500)),
        EnqueueOutcome::Queued
    );
    assert_eq!(direction.handle(at(0), PACKET.slice(..1)), refused());
}

#[test]
fn copies_count_from_their_originals_arrival() {
    let config = DirectionConfig {
        duplication: Probability::from_fraction(1.0).expect("a probability"),
        line: LineConfig::Rate(Bitrate::from_bits_per_second(8_000_000)),
        queue: QueueLimit::packets(100).into(),
        ..delayed(10)
    };
    let mut direction = LinkDirection::within(holding(5), config, 1);
    // Two in the queue, which are four; a third would be six.
    assert_eq!(direction.handle(at(0), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(0), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(0), PACKET), refused());
    // Behind the line they are four as well.
    assert_eq!(direction.handle(at(5), PACKET), refused());
    // Each is two, and the first two have arrived.
    assert_eq!(direction.handle(at(11), PACKET), EnqueueOutcome::Queued);
    assert_eq!(direction.handle(at(11), PACKET), refused());
    let delivered = std::iter::from_fn(|| direction.poll_output(at(60))).count();
    assert_eq!(delivered, 6);
}

#[test]
fn packets_never_taken_out_are_dropped_and_counted() {
    let limits = MemoryLimits {
        held_packets: 3,
        untaken_packets: 2,
        ..MemoryLimits::default()
    };
    let mut direction = LinkDirection::within(limits, delayed(1), 1);
    direction.keep_records(true);
    for millisecond in 0..10 {
        assert_eq!(
            direction.handle(at(2 * millisecond), PACKET),
            EnqueueOutcome::Queued
        );
    }
    let delivered: Vec<u64> = std::iter::from_fn(|| direction.poll_output(at(60)))
        .map(|delivery| delivery.index)
        .collect();
    // The first two wait, the last was still under way when the last was handed in.
    assert_eq!(delivered, [0, 1, 9]);
    let counters = direction.counters();
    assert_eq!(counters.dropped_untaken.packets, 7);
    assert_eq!(counters.dropped_untaken.bytes, 7_000);
    let records: Vec<PacketRecord> = std::iter::from_fn(|| direction.poll_record()).collect();
    let thrown_away: Vec<(u64, Time)> = records
        .iter()
        .filter_map(|record| match record.ending {
            PacketOutcome::Dropped {
                at,
                reason: DropReason::Untaken,
            } => Some((record.index, at)),
            _ => None,
        })
        .collect();
    let expected: Vec<(u64, Time)> = (2..9).map(|index| (index, at(2 * index + 1))).collect();
    assert_eq!(thrown_away, expected);
}
