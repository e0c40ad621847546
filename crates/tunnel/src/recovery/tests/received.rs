//! Tests of the acknowledgements that a receiver sends, and when (RFC 9000 §13.2).

use std::time::Duration;

use vocab::Time;

use super::super::*;
use super::{RTT, at};
use crate::packet::{EcnCounts, PacketAck, RANGE_LIMIT};

fn receiver() -> ReceivedPackets {
    ReceivedPackets::new(at(0), RTT)
}

fn arrival(number: u64) -> ReceivedPacket {
    ReceivedPacket {
        number,
        asks: AckRequest::Acknowledgement,
        codepoint: EcnMarking::NotEct,
    }
}

fn tell(receiver: &mut ReceivedPackets, now: Time, ranges_max: usize) -> Option<PacketAck> {
    let telling = receiver.pending_ack(now, ranges_max)?;
    receiver.on_ack_sent(now, &telling);
    Some(telling.acknowledgement)
}

fn ranges(receiver: &mut ReceivedPackets, now: Time) -> Vec<(u64, u64)> {
    tell(receiver, now, RANGE_LIMIT).unwrap().ranges
}

#[test]
fn no_acknowledgement_before_the_first_packet() {
    assert_eq!(receiver().pending_ack(at(0), RANGE_LIMIT), None);
    assert_eq!(receiver().poll_timeout(), None);
    assert!(!receiver().has_unreported());
}

/// RFC 9000 §13.2.1: every packet that asks for it is acknowledged within max_ack_delay.
#[test]
fn single_packet_waits_an_eighth_rtt() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(0));
    assert_eq!(receiver.poll_timeout(), Some(at(50) + RTT / 8));
    receiver.set_rtt(Duration::from_secs(2));
    tell(&mut receiver, at(62), RANGE_LIMIT);
    assert_eq!(receiver.poll_timeout(), None);
    receiver.on_packet(at(100), arrival(1));
    assert_eq!(receiver.poll_timeout(), Some(at(100) + ACK_DELAY_MAX));
}

/// RFC 9000 §13.2.2: after two packets at the latest on a path with few.
#[test]
fn the_second_packet_is_acknowledged_at_once() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(0));
    receiver.on_packet(at(51), arrival(1));
    assert_eq!(receiver.poll_timeout(), Some(at(51)));
    let told = tell(&mut receiver, at(53), RANGE_LIMIT).unwrap();
    assert_eq!((told.ranges, told.delay_us), (vec![(0, 1)], 2_000));
    assert_eq!(told.ecn, None);
}

/// RFC 9000 §13.2.1: a packet that asks for no acknowledgement triggers none, and is reported in
/// the next one.
#[test]
fn silent_packets_are_acknowledged_with_others() {
    let mut receiver = receiver();
    let silent = ReceivedPacket {
        asks: AckRequest::Nothing,
        ..arrival(0)
    };
    receiver.on_packet(at(50), silent);
    assert_eq!(receiver.poll_timeout(), None);
    assert!(receiver.has_unreported());
    assert_eq!(ranges(&mut receiver, at(51)), [(0, 0)]);
    assert!(!receiver.has_unreported());
}

/// RFC 9000 §13.2.1: out of order, or behind a gap: at once. But not for each packet of a path
/// that always reorders.
#[test]
fn new_reordering_is_acknowledged_at_once_but_rarely() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(0));
    ranges(&mut receiver, at(50));
    receiver.on_packet(at(60), arrival(2));
    assert_eq!(receiver.poll_timeout(), Some(at(60)));
    assert_eq!(ranges(&mut receiver, at(60)), [(2, 2), (0, 0)]);
    receiver.on_packet(at(60), arrival(4));
    assert_eq!(receiver.poll_timeout(), Some(at(61)));
    assert_eq!(ranges(&mut receiver, at(61)), [(4, 4), (2, 2), (0, 0)]);
    receiver.on_packet(at(70), arrival(1));
    assert_eq!(receiver.poll_timeout(), Some(at(70)));
    assert_eq!(ranges(&mut receiver, at(70)), [(4, 4), (0, 2)]);
}

/// Every second packet is reordered and would trigger an acknowledgement; time and number decide
/// instead.
#[test]
fn constant_reordering_is_not_acknowledged_at_once() {
    let mut receiver = receiver();
    let mut told = 0;
    for number in 0..4_000_u64 {
        let now = at(0) + Duration::from_micros(number * 500);
        receiver.on_packet(now, arrival(number ^ 1));
        if receiver.poll_timeout().is_some_and(|due| due <= now) {
            tell(&mut receiver, now, RANGE_LIMIT);
            told += 1;
        }
    }
    assert!((4_000 / 32..=500).contains(&told), "{told}");
    // In order again, a gap is news again.
    for number in 4_000..4_200_u64 {
        receiver.on_packet(at(number), arrival(number));
        tell(&mut receiver, at(number), RANGE_LIMIT);
    }
    receiver.on_packet(at(4_205), arrival(4_201));
    assert_eq!(receiver.poll_timeout(), Some(at(4_205)));
}

#[test]
fn a_probe_is_answered_at_once() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(0));
    ranges(&mut receiver, at(50));
    let probe = ReceivedPacket {
        asks: AckRequest::AtOnce,
        ..arrival(1)
    };
    receiver.on_packet(at(50), probe);
    assert_eq!(receiver.poll_timeout(), Some(at(50)));
}

/// RFC 9000 §13.2.1 and §13.4.1: marks are counted, each packet once, and told at once.
#[test]
fn marks_are_counted_and_told_at_once() {
    let mut receiver = receiver();
    let marked = |number, codepoint| ReceivedPacket {
        codepoint,
        ..arrival(number)
    };
    receiver.on_packet(at(50), marked(0, EcnMarking::Ect0));
    ranges(&mut receiver, at(50));
    receiver.on_packet(at(60), marked(1, EcnMarking::Ce));
    receiver.on_packet(at(60), marked(1, EcnMarking::Ce));
    assert_eq!(receiver.poll_timeout(), Some(at(60)));
    receiver.on_packet(at(60), marked(2, EcnMarking::Ect1));
    let told = tell(&mut receiver, at(60), RANGE_LIMIT).unwrap();
    let counts = EcnCounts {
        ect0: 1,
        ect1: 1,
        ce: 1,
    };
    assert_eq!(told.ecn, Some(counts));
}

/// RFC 9000 §13.2.2: fewer acknowledgements for many packets, within a sixteenth of a round trip.
#[test]
fn many_packets_share_an_acknowledgement() {
    let mut receiver = receiver();
    let mut told = 0;
    for number in 0..10_000 {
        let now = at(0) + Duration::from_micros(number * 100);
        receiver.on_packet(now, arrival(number));
        if receiver.poll_timeout().is_some_and(|due| due <= now) {
            tell(&mut receiver, now, RANGE_LIMIT);
            told += 1;
        }
    }
    assert!((10_000 / 32..=450).contains(&told), "{told}");
}

#[test]
fn late_packet_is_acknowledged_despite_many_gaps() {
    let mut receiver = receiver();
    for number in (0..1_000).step_by(2) {
        receiver.on_packet(at(50), arrival(number));
    }
    for _ in 0..8 {
        ranges(&mut receiver, at(51));
    }
    receiver.on_packet(at(60), arrival(101));
    for _ in 0..4 {
        assert!(ranges(&mut receiver, at(61)).contains(&(100, 102)));
    }
    // In the end everything has its turn.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let told = ranges(&mut receiver, at(62));
        assert!(told.len() <= 32 + 8, "{}", told.len());
        seen.extend(told);
    }
    assert_eq!(seen.len(), 499);
}

#[test]
fn ranges_are_as_the_wire_wants_them() {
    let mut receiver = receiver();
    for number in (0..200).rev() {
        receiver.on_packet(at(50), arrival(2 * number));
    }
    for most in [1, 2, 31, 40, 1_000] {
        let told = tell(&mut receiver, at(51), most).unwrap();
        assert!(told.ranges.len() <= most.min(RANGE_LIMIT));
        assert_eq!(told.largest(), 398);
        let apart = |pair: &[(u64, u64)]| pair[1].1 + 1 < pair[0].0;
        assert!(told.ranges.windows(2).all(apart), "{:?}", told.ranges);
    }
}

/// RFC 9000 §13.2.3: old numbers are forgotten, but not the newest 65,536.
#[test]
fn numbers_far_back_are_forgotten() {
    let mut receiver = receiver();
    for number in (0..2 * TRACKED_BACK).step_by(2) {
        receiver.on_packet(at(50), arrival(number));
    }
    assert!(receiver.tracked_ranges() as u64 <= TRACKED_BACK);
    for _ in 0..4 {
        ranges(&mut receiver, at(51));
    }
    let newest = 2 * TRACKED_BACK - 2;
    let oldest = newest + 1 - TRACKED_BACK;
    receiver.on_packet(at(60), arrival(oldest));
    assert!(ranges(&mut receiver, at(60)).contains(&(oldest, oldest + 1)));
    receiver.on_packet(at(70), arrival(oldest - 2));
    assert!(
        ranges(&mut receiver, at(70))
            .iter()
            .all(|(first, _)| *first >= oldest)
    );
}

/// RFC 9000 §13.2.4: what the peer has confirmed to know is not told again, but for the largest.
#[test]
fn confirmed_ranges_are_not_repeated() {
    let mut receiver = receiver();
    for number in (0..20).step_by(2) {
        receiver.on_packet(at(50), arrival(number));
    }
    receiver.on_recovered(at(50), 7);
    assert!(receiver.wants_confirmation(at(150), 0));
    let told = tell(&mut receiver, at(150), RANGE_LIMIT).unwrap();
    assert_eq!(
        (told.ranges.len(), told.recovered.clone()),
        (10, vec![(7, 7)])
    );
    receiver.on_confirmation_requested(at(150));
    assert!(!receiver.wants_confirmation(at(200), 0));
    receiver.on_packet(at(180), arrival(20));
    receiver.confirmed(at(250), &told);
    assert_eq!(ranges(&mut receiver, at(250)), [(20, 20)]);
    assert!(!receiver.wants_confirmation(at(1_000), 0));
}

/// A packet may be too small for all ranges; ranges that were prepared and not sent stay
/// unreported.
#[test]
fn unsent_acknowledgement_is_reported_later() {
    let mut receiver = receiver();
    for number in (0..400).step_by(2) {
        receiver.on_packet(at(50), arrival(number));
    }
    tell(&mut receiver, at(51), RANGE_LIMIT);
    // Old, and new to the peer: told in the next few, however many were thought of before.
    receiver.on_packet(at(52), arrival(1));
    let (due, seen) = (receiver.poll_timeout(), receiver.pending_ack(at(53), 64));
    for ranges_max in [64, 32, 16] {
        assert!(receiver.pending_ack(at(53), ranges_max).is_some());
    }
    assert_eq!(receiver.poll_timeout(), due);
    assert_eq!(receiver.pending_ack(at(53), 64), seen);
    for now in 53..57 {
        let told = tell(&mut receiver, at(now), RANGE_LIMIT).unwrap();
        assert!(told.ranges.contains(&(0, 2)), "at {now}");
    }
}

/// A side that has only a line to tell asks too, now and then: else its packets, which ask for
/// nothing, would never be settled.
#[test]
fn many_unconfirmed_packets_request_confirmation() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(0));
    assert!(!receiver.wants_confirmation(at(1_000), UNTIMED_LIMIT / 2 - 1));
    assert!(receiver.wants_confirmation(at(1_000), UNTIMED_LIMIT / 2));
    receiver.on_confirmation_requested(at(1_000));
    assert!(!receiver.wants_confirmation(at(1_000) + RTT / 2, UNTIMED_LIMIT));
}

/// Numbers between confirmed numbers are merged with them into one range, so that the peer's
/// confirmations keep up on a path that constantly reorders.
#[test]
fn ranges_between_confirmed_numbers_are_merged() {
    let mut receiver = receiver();
    for number in (0..200).step_by(2) {
        receiver.on_packet(at(50), arrival(number));
    }
    for _ in 0..30 {
        let told = tell(&mut receiver, at(51), RANGE_LIMIT).unwrap();
        receiver.confirmed(at(52), &told);
    }
    for number in (1..200).step_by(2) {
        receiver.on_packet(at(60), arrival(number));
    }
    assert_eq!(ranges(&mut receiver, at(61)), [(0, 199)]);
}

#[test]
fn recovered_symbol_is_reported_until_confirmed() {
    let mut receiver = receiver();
    receiver.on_packet(at(50), arrival(5));
    ranges(&mut receiver, at(50));
    receiver.on_recovered(at(60), 3);
    assert_eq!(receiver.poll_timeout(), Some(at(60)));
    for _ in 0..20 {
        let told = tell(&mut receiver, at(61), RANGE_LIMIT).unwrap();
        assert_eq!(told.recovered, [(3, 3)]);
    }
    for symbol in 0..10_000 {
        receiver.on_recovered(at(62), symbol * 2);
    }
    let told = tell(&mut receiver, at(63), RANGE_LIMIT).unwrap();
    assert_eq!(told.recovered.len(), RANGE_LIMIT);
    assert_eq!(told.recovered[0], (19_998, 19_998));
}
