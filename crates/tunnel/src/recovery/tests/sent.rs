//! Tests of packets in flight (RFC 9002, RFC 8985).

use std::time::Duration;

use path::RttEstimator;

use super::super::*;
use super::{RTT, at, ms};
use crate::SessionError;
use crate::packet::{EcnCounts, PacketAck};

const PACKET: u64 = 1_500;

fn packet(number: u64, kind: PacketKind) -> OutgoingPacket<u64> {
    OutgoingPacket {
        number,
        bytes: PACKET,
        kind,
        is_marked: false,
        symbol: Some(number + 1_000),
        content: number * 7,
    }
}

/// The numbers of these packets.
fn numbers(packets: &[SentPacket<u64>]) -> Vec<u64> {
    packets.iter().map(|packet| packet.number).collect()
}

fn acknowledgement(ranges: &[(u64, u64)]) -> PacketAck {
    PacketAck {
        delay_us: 0,
        ranges: ranges.to_vec(),
        ecn: None,
        recovered: Vec::new(),
    }
}

/// A sender that knows the round-trip time to be [`RTT`] and has `count` packets out, numbered from
/// 1 and sent a millisecond apart from time 1,001 ms on.
fn sender(count: u64) -> SentPackets<u64> {
    let mut sender = SentPackets::new(at(0), RttEstimator::new(RTT));
    sender.sent(at(0), packet(0, PacketKind::Eliciting));
    let outcome = sender.on_acknowledgement(at(100), &acknowledgement(&[(0, 0)]));
    assert_eq!(outcome.unwrap().rtt, Some(RTT));
    for number in 1..=count {
        sender.sent(at(1_000 + number), packet(number, PacketKind::Eliciting));
    }
    sender
}

fn acked(
    sender: &mut SentPackets<u64>,
    milliseconds: u64,
    ranges: &[(u64, u64)],
) -> AckOutcome<u64> {
    let outcome = sender.on_acknowledgement(at(milliseconds), &acknowledgement(ranges));
    outcome.unwrap()
}

mod sending {
    use super::*;

    #[test]
    fn content_returns_with_its_outcome() {
        let mut sender = sender(3);
        assert_eq!(sender.bytes_in_flight(), 3 * PACKET);
        let outcome = acked(&mut sender, 1_103, &[(2, 3)]);
        assert_eq!(numbers(&outcome.acked), [2, 3]);
        assert_eq!(outcome.acked[0].content, 14);
        assert_eq!(outcome.acked[0].sent_at, at(1_002));
        assert_eq!(outcome.rtt, Some(RTT));
        assert_eq!(sender.bytes_in_flight(), PACKET);
    }

    #[test]
    fn the_same_acknowledgement_again_changes_nothing() {
        let mut sender = sender(3);
        acked(&mut sender, 1_103, &[(0, 3)]);
        let before = sender.statistics();
        let again = acked(&mut sender, 1_104, &[(0, 3)]);
        assert!(again.acked.is_empty() && again.rtt.is_none());
        assert_eq!(sender.statistics(), before);
        assert_eq!(sender.poll_timeout(), None);
        assert_eq!(sender.tracked(), 0);
    }

    /// RFC 9000 §13.1: an acknowledgement of a packet that was not sent.
    #[test]
    fn a_peer_cannot_acknowledge_what_was_not_sent() {
        let mut sender = sender(3);
        let wrong = sender.on_acknowledgement(at(1_103), &acknowledgement(&[(0, 4)]));
        assert!(matches!(wrong, Err(SessionError::PeerMisbehaved(_))));
        assert_eq!(sender.bytes_in_flight(), 3 * PACKET);
    }

    /// RFC 9002 §5.1: a sample is of the largest number, newly acknowledged, and only where the peer
    /// was asked to answer.
    #[test]
    fn samples_are_of_the_largest_newly_acknowledged() {
        let mut sender = sender(3);
        assert_eq!(acked(&mut sender, 1_103, &[(3, 3)]).rtt, Some(ms(100)));
        assert_eq!(acked(&mut sender, 1_110, &[(2, 3)]).rtt, None);
        sender.sent(at(1_200), packet(4, PacketKind::Silent));
        assert_eq!(acked(&mut sender, 1_300, &[(4, 4)]).rtt, None);
    }

    /// RFC 9002 §5.3: the peer's reported delay counts only up to its limit.
    #[test]
    fn reported_ack_delay_is_capped() {
        let mut sender = sender(1);
        let late = PacketAck {
            delay_us: 10_000_000,
            ..acknowledgement(&[(1, 1)])
        };
        sender.on_acknowledgement(at(1_301), &late).unwrap();
        let adjusted = ms(300) - ACK_DELAY_MAX;
        assert_eq!(sender.rtt().smoothed(), (RTT * 7 + adjusted) / 8);
    }

    #[test]
    fn silent_packets_are_not_in_flight() {
        let mut sender = sender(0);
        sender.sent(at(1_001), packet(1, PacketKind::Silent));
        assert_eq!((sender.bytes_in_flight(), sender.poll_timeout()), (0, None));
    }

    #[test]
    fn numbers_may_be_left_out() {
        let mut sender = sender(1);
        sender.sent(at(1_002), packet(9, PacketKind::Eliciting));
        let outcome = acked(&mut sender, 1_102, &[(0, 9)]);
        assert_eq!(numbers(&outcome.acked), [1, 9]);
    }

    #[test]
    fn abandoned_path_returns_packets_in_flight() {
        let mut sender = sender(6);
        acked(&mut sender, 1_106, &[(5, 5)]);
        assert_eq!(sender.statistics().lost, 2, "1 and 2 are three behind");
        assert_eq!(numbers(&sender.abandon()), [3, 4, 6]);
        assert_eq!((sender.bytes_in_flight(), sender.tracked()), (0, 0));
        assert_eq!(sender.poll_timeout(), None);
    }

    #[test]
    fn no_more_is_tracked_than_the_limit() {
        let mut sender = sender(0);
        let mut number = 1;
        while sender.has_room() {
            sender.sent(at(1_000), packet(number, PacketKind::Eliciting));
            number += 1;
        }
        assert_eq!(sender.tracked(), TRACKED_LIMIT);
        // With the oldest acknowledged or lost there is room again.
        acked(&mut sender, 1_100, &[(1, 1)]);
        assert!(sender.has_room());
        sender.sent(at(1_100), packet(number, PacketKind::Eliciting));
        assert!(!sender.has_room());
        acked(&mut sender, 1_101, &[(number, number)]);
        assert!(sender.has_room(), "all the others are lost");
        for more in 1..=100 {
            sender.sent(at(1_102), packet(number + more, PacketKind::Eliciting));
            assert!(sender.tracked() <= TRACKED_LIMIT);
        }
    }
}

mod loss {
    use super::*;

    /// RFC 9002 §6.1.1 (Packet Threshold): three behind the largest acknowledged.
    #[test]
    fn in_order_three_later_packets_are_enough() {
        let mut sender = sender(5);
        assert!(acked(&mut sender, 1_103, &[(2, 3)]).lost.is_empty());
        assert_eq!(numbers(&acked(&mut sender, 1_104, &[(2, 4)]).lost), [1]);
        assert_eq!(sender.bytes_in_flight(), PACKET);
    }

    /// RFC 9002 §6.1.2 (Time Threshold): an eighth of a round trip after it was expected.
    #[test]
    fn ordered_path_declares_loss_after_an_eighth_rtt() {
        let mut sender = sender(2);
        acked(&mut sender, 1_102, &[(2, 2)]);
        let due = at(1_001) + RTT + RTT / 8;
        assert_eq!(sender.poll_timeout(), Some(due));
        assert!(
            sender
                .handle_timeout(due - Duration::from_nanos(1))
                .is_none()
        );
        let Some(RecoveryTimeout::Lost(lost)) = sender.handle_timeout(due) else {
            panic!("the packet is lost now");
        };
        assert_eq!(numbers(&lost), [1]);
        assert!(sender.handle_timeout(due).is_none());
        assert_eq!(sender.poll_timeout(), None);
    }

    /// RFC 9002 §6.1: only a packet sent before one that was acknowledged can be lost.
    #[test]
    fn newest_packets_are_probed_and_not_declared_lost() {
        let mut sender = sender(2);
        acked(&mut sender, 1_101, &[(1, 1)]);
        let due = sender.poll_timeout().unwrap();
        assert!(matches!(
            sender.handle_timeout(due),
            Some(RecoveryTimeout::Probe { count: 1 })
        ));
        assert_eq!(sender.bytes_in_flight(), PACKET);
    }

    /// RFC 9002 §6.1.2: never less than the grain of timers.
    #[test]
    fn a_short_path_gets_a_grain_of_time() {
        let mut sender = SentPackets::new(at(0), RttEstimator::new(Duration::ZERO));
        for number in 0..2 {
            sender.sent(at(0), packet(number, PacketKind::Eliciting));
        }
        let now = at(0) + Duration::from_micros(200);
        sender
            .on_acknowledgement(now, &acknowledgement(&[(1, 1)]))
            .unwrap();
        assert_eq!(sender.poll_timeout(), Some(now + path::GRANULARITY));
    }

    /// RFC 8985 §6.2: once reordering was seen no count of packets says anything.
    #[test]
    fn reordering_path_waits_for_late_packets() {
        let mut sender = sender(20);
        // 1 is overtaken by two, and comes 30 ms after it was expected.
        acked(&mut sender, 1_103, &[(2, 3)]);
        assert_eq!(sender.reordering(), None);
        sender.handle_timeout(at(1_114));
        assert_eq!(sender.statistics().lost, 1, "an eighth was too short");
        let late = acked(&mut sender, 1_131, &[(1, 3)]);
        assert_eq!(numbers(&late.spurious), [1]);
        assert_eq!(late.spurious[0].content, 7);
        let window = sender.reordering_window();
        assert!((ms(30)..=ms(34)).contains(&window), "{window:?}");
        // From now on ten later ones are no verdict, and time is.
        let outcome = acked(&mut sender, 1_131, &[(5, 20), (1, 3)]);
        assert!(outcome.lost.is_empty());
        let due = sender.poll_timeout().unwrap();
        assert_eq!(
            due,
            at(1_004) + (at(1_131).since(at(1_020))) + sender.reordering_window()
        );
        assert!(matches!(
            sender.handle_timeout(due),
            Some(RecoveryTimeout::Lost(_))
        ));
    }

    /// RFC 8985 §6.2 step 4: the window shrinks again. Ours when the lateness is forgotten.
    #[test]
    fn restored_order_shortens_the_reordering_window() {
        let mut sender = sender(3);
        acked(&mut sender, 1_103, &[(2, 3)]);
        acked(&mut sender, 1_110, &[(1, 3)]);
        assert!(sender.reordering_window() > Duration::ZERO);
        let mut number = 3;
        for second in 2..8 {
            for _ in 0..4 {
                number += 1;
                sender.sent(at(second * 1_000), packet(number, PacketKind::Eliciting));
            }
            acked(&mut sender, second * 1_000 + 100, &[(0, number)]);
        }
        assert_eq!(sender.reordering(), None);
        for _ in 0..4 {
            number += 1;
            sender.sent(at(9_000), packet(number, PacketKind::Eliciting));
        }
        let outcome = acked(&mut sender, 9_100, &[(number, number), (0, number - 4)]);
        assert_eq!(numbers(&outcome.lost), [number - 3], "three behind");
    }

    /// A window learnt from a packet that was minutes late would make every loss take minutes.
    #[test]
    fn the_window_is_bounded_by_two_round_trips() {
        let mut sender = sender(3);
        acked(&mut sender, 1_103, &[(2, 3)]);
        sender.handle_timeout(at(1_200));
        let late = acked(&mut sender, 1_900, &[(1, 3)]);
        assert_eq!(numbers(&late.spurious), [1]);
        assert!(sender.reordering_window() <= RTT * 2 + RTT / 4);
    }

    #[test]
    fn lost_packets_are_remembered_for_a_while() {
        let mut sender = sender(5);
        acked(&mut sender, 1_105, &[(5, 5)]);
        assert_eq!(sender.statistics().lost, 2);
        sender.handle_timeout(at(1_130));
        assert_eq!(sender.statistics().lost, 4);
        sender.sent(at(4_000), packet(6, PacketKind::Eliciting));
        acked(&mut sender, 4_100, &[(6, 6)]);
        assert_eq!(sender.tracked(), 0, "forgotten");
        let outcome = acked(&mut sender, 4_101, &[(1, 6)]);
        assert!(outcome.spurious.is_empty() && outcome.acked.is_empty());
    }

    #[test]
    fn remembered_lost_packets_are_limited() {
        let count = LOST_REMEMBERED as u64 * 2;
        let mut sender = sender(0);
        for number in 1..=count {
            sender.sent(at(1_000), packet(number, PacketKind::Eliciting));
        }
        let outcome = acked(&mut sender, 1_100, &[(count, count)]);
        assert_eq!(outcome.lost.len() as u64, count - 3);
        let late = acked(&mut sender, 1_101, &[(1, count)]);
        assert_eq!(late.spurious.len(), LOST_REMEMBERED);
    }

    /// RFC 9000 §14.4: a lost MTU probe is no sign of the path's losses.
    #[test]
    fn a_lost_mtu_probe_is_told_as_one() {
        let mut sender = sender(0);
        sender.sent(at(1_000), packet(1, PacketKind::MtuProbe));
        for number in 2..=4 {
            sender.sent(at(1_000), packet(number, PacketKind::Eliciting));
        }
        let outcome = acked(&mut sender, 1_100, &[(2, 4)]);
        assert_eq!(outcome.lost[0].kind, PacketKind::MtuProbe);
        assert_eq!(sender.bytes_in_flight(), 0);
    }
}

mod untimed {
    use super::*;

    /// Packets that ask for no acknowledgement have no timer, so only a limit drops them.
    #[test]
    fn untimed_packets_beyond_the_limit_are_dropped() {
        let mut sender = sender(0);
        let count = 3 * UNTIMED_LIMIT as u64;
        for number in 1..=count {
            let kind = [PacketKind::Silent, PacketKind::PathProbe][number as usize % 2];
            sender.sent(at(1_000), packet(number, kind));
        }
        assert_eq!(sender.untimed(), UNTIMED_LIMIT);
        assert_eq!(sender.tracked(), UNTIMED_LIMIT);
        assert_eq!((sender.bytes_in_flight(), sender.poll_timeout()), (0, None));
        let outcome = acked(&mut sender, 1_100, &[(1, count)]);
        assert_eq!(outcome.acked.len(), UNTIMED_LIMIT);
    }

    #[test]
    fn settled_packets_do_not_count() {
        let mut sender = sender(0);
        for round in 0..100 {
            for number in 1..=10 {
                let kind = if number < 10 {
                    PacketKind::Silent
                } else {
                    PacketKind::Eliciting
                };
                sender.sent(at(1_000), packet(10 * round + number, kind));
            }
            acked(&mut sender, 1_100, &[(10 * round + 1, 10 * round + 10)]);
        }
        assert!(sender.untimed() <= 9, "{}", sender.untimed());
    }

    /// RFC 9002 §5.1: what asks for no acknowledgement has none at any particular time.
    #[test]
    fn silent_packets_give_no_path_samples() {
        let mut sender = sender(0);
        sender.sent(at(1_000), packet(1, PacketKind::Silent));
        sender.sent(at(1_001), packet(2, PacketKind::Eliciting));
        acked(&mut sender, 1_101, &[(2, 2)]);
        let (window, rtt) = (sender.reordering_window(), sender.rtt().latest());
        acked(&mut sender, 9_000, &[(1, 2)]);
        assert_eq!(
            (sender.reordering_window(), sender.rtt().latest()),
            (window, rtt)
        );
        assert_eq!(sender.reordering(), None);
    }

    /// The probe is answered like any eliciting packet, and its answer measures the round-trip
    /// time.
    #[test]
    fn probe_of_an_idle_path_measures_rtt() {
        let mut sender = sender(0);
        sender.sent(at(1_000), packet(1, PacketKind::PathProbe));
        let outcome = acked(&mut sender, 1_700, &[(1, 1)]);
        assert_eq!(outcome.rtt, Some(ms(700)));
        assert_eq!(outcome.acked[0].kind, PacketKind::PathProbe);
    }
}

mod probes {
    use super::*;

    /// RFC 9002 §6.2.1 (Computing PTO): from the last packet that asks for an answer.
    #[test]
    fn silence_is_probed_after_a_probe_timeout() {
        let mut sender = sender(3);
        // The first sample's variance is half of it.
        let timeout = RTT + RTT * 2 + ACK_DELAY_MAX;
        assert_eq!(sender.probe_timeout(), timeout);
        assert_eq!(sender.poll_timeout(), Some(at(1_003) + timeout));
        sender.sent(at(1_050), packet(4, PacketKind::Silent));
        assert_eq!(sender.poll_timeout(), Some(at(1_003) + timeout));
        sender.sent(at(1_051), packet(5, PacketKind::Eliciting));
        assert_eq!(sender.poll_timeout(), Some(at(1_051) + timeout));
    }

    /// RFC 9002 §6.2.1: exponential backoff; bounded, so that the end of an outage is noticed.
    #[test]
    fn probes_back_off_up_to_a_bound() {
        let mut sender = sender(1);
        let once = sender.probe_timeout();
        let mut last = at(1_001);
        let mut waits = Vec::new();
        for count in 1..=10 {
            let due = sender.poll_timeout().unwrap();
            waits.push(due.since(last));
            last = due;
            let Some(RecoveryTimeout::Probe { count: told }) = sender.handle_timeout(due) else {
                panic!("a probe is due");
            };
            assert_eq!(told, count);
            if count < 8 {
                sender.sent(due, packet(u64::from(count) + 1, PacketKind::Eliciting));
            }
        }
        assert_eq!(waits[..4], [once; 4]);
        assert_eq!(waits[4..7], [once * 2, once * 4, once * 8]);
        assert_eq!(
            waits[7..],
            [PROBE_INTERVAL_MAX; 3],
            "even when no probe is sent"
        );
        // RFC 9002 §6.2.1: an answer ends the backoff.
        let now = last + RTT;
        sender
            .on_acknowledgement(now, &acknowledgement(&[(8, 8)]))
            .unwrap();
        sender.sent(now, packet(9, PacketKind::Eliciting));
        assert_eq!(sender.poll_timeout(), Some(now + sender.probe_timeout()));
    }

    /// RFC 9002 §6.2.1: the probe timer is not set while a verdict is pending.
    #[test]
    fn a_pending_verdict_comes_first() {
        let mut sender = sender(3);
        acked(&mut sender, 1_102, &[(2, 2)]);
        assert_eq!(sender.poll_timeout(), Some(at(1_001) + RTT + RTT / 8));
    }

    #[test]
    fn the_oldest_data_is_what_a_probe_repeats() {
        let mut sender = sender(0);
        sender.sent(at(1_000), packet(1, PacketKind::Silent));
        sender.sent(at(1_000), packet(2, PacketKind::MtuProbe));
        sender.sent(at(1_000), packet(3, PacketKind::Eliciting));
        assert_eq!(
            sender.oldest_in_flight().map(|oldest| oldest.number),
            Some(3)
        );
        acked(&mut sender, 1_100, &[(3, 3)]);
        assert!(sender.oldest_in_flight().is_none());
    }
}

mod repairs {
    use super::*;

    fn with_recovered(ranges: &[(u64, u64)], recovered: &[(u64, u64)]) -> PacketAck {
        PacketAck {
            recovered: recovered.to_vec(),
            ..acknowledgement(ranges)
        }
    }

    #[test]
    fn a_restored_symbol_settles_its_packet_once() {
        let mut sender = sender(4);
        let news = with_recovered(&[(2, 2)], &[(1_001, 1_001), (500, 600)]);
        let outcome = sender.on_acknowledgement(at(1_102), &news).unwrap();
        assert_eq!(numbers(&outcome.recovered), [1]);
        assert_eq!(numbers(&outcome.acked), [2]);
        assert!(outcome.lost.is_empty());
        assert_eq!(sender.bytes_in_flight(), 2 * PACKET);
        assert_eq!(sender.statistics().lost, 1, "the path lost it");
        let again = sender.on_acknowledgement(at(1_103), &news).unwrap();
        assert!(again.recovered.is_empty() && again.recovered_late.is_empty());
        // It was late, not lost.
        let outcome = acked(&mut sender, 1_104, &[(1, 2)]);
        assert_eq!(numbers(&outcome.spurious), [1]);
        let statistics = sender.statistics();
        assert_eq!(
            (statistics.recovered, statistics.spurious, statistics.lost),
            (1, 1, 1)
        );
    }

    #[test]
    fn repair_after_declared_loss_is_counted_separately() {
        let mut sender = sender(5);
        let outcome = acked(&mut sender, 1_104, &[(2, 4)]);
        assert_eq!(numbers(&outcome.lost), [1]);
        let news = with_recovered(&[(2, 5)], &[(1_000, 1_005)]);
        let outcome = sender.on_acknowledgement(at(1_105), &news).unwrap();
        assert!(outcome.recovered.is_empty());
        assert_eq!(numbers(&outcome.recovered_late), [1]);
    }

    #[test]
    fn symbols_that_were_never_sent_restore_nothing() {
        let mut sender = sender(2);
        let news = with_recovered(&[(2, 2)], &[(2_000, u64::MAX >> 2)]);
        let outcome = sender.on_acknowledgement(at(1_102), &news).unwrap();
        assert!(outcome.recovered.is_empty());
    }
}

mod marked {
    use super::*;

    /// RFC 9000 §13.4.2.1: counts are those of newly acknowledged marked packets.
    #[test]
    fn marks_are_counted_and_wrong_counts_end_them() {
        let mut sender = sender(0);
        assert!(sender.wants_mark());
        for number in 1..=4 {
            let marked = OutgoingPacket {
                is_marked: true,
                ..packet(number, PacketKind::Eliciting)
            };
            sender.sent(at(1_000), marked);
        }
        let with_counts = |ranges: &[(u64, u64)], ect0, ce| PacketAck {
            ecn: Some(EcnCounts { ect0, ect1: 0, ce }),
            ..acknowledgement(ranges)
        };
        let news = with_counts(&[(1, 3)], 2, 1);
        let outcome = sender.on_acknowledgement(at(1_100), &news).unwrap();
        assert_eq!(outcome.ce_marked, 1);
        // An older acknowledgement that was overtaken has smaller counts, and is no fault.
        let older = with_counts(&[(1, 2)], 1, 1);
        let outcome = sender.on_acknowledgement(at(1_101), &older).unwrap();
        assert_eq!(outcome.ce_marked, 0);
        assert!(!sender.marks_failed() && sender.wants_mark());
        let news = with_counts(&[(1, 4)], 2, 1);
        sender.on_acknowledgement(at(1_102), &news).unwrap();
        assert!(
            sender.marks_failed(),
            "packet 4 was marked and is not counted"
        );
    }
}
