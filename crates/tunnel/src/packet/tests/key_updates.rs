//! Keys are renewed on the way, with packets lost and overtaken around it, and no number is used
//! twice.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SUITE: CipherSuite = CipherSuite::Aes256Gcm;

fn limits(packets_per_key: u64) -> KeyLimits {
    KeyLimits {
        packets_per_key,
        ..KeyLimits::of(SUITE)
    }
}

/// Two ends whose sealers do not wait for packets under way before they update again.
fn ends_with_frequent_updates(packets_per_key: u64) -> (PathEnd, PathEnd) {
    let (mut dialler, mut listener) = ends_with(SUITE, limits(packets_per_key));
    dialler.sealer.set_probe_timeout(Duration::ZERO);
    listener.sealer.set_probe_timeout(Duration::ZERO);
    (dialler, listener)
}

fn at(milliseconds: u64) -> Time {
    Time::from_epoch(Duration::from_millis(milliseconds))
}

#[test]
fn a_key_is_renewed_after_its_packets() {
    let (mut dialler, mut listener) = ends_with_frequent_updates(4);
    for expected in 0..20 {
        let (number, datagram) = dialler.seal(Time::ZERO, b"data");
        assert_eq!(number, expected);
        assert_eq!(dialler.sealer.key_updates(), expected / 4);
        let mut datagram = datagram;
        let opened = listener.opener.open(Time::ZERO, &mut datagram).unwrap();
        let first_of_epoch = expected % 4 == 0 && expected > 0;
        assert_eq!(opened.phase() == PhaseChange::Renewed, first_of_epoch);
        dialler.sealer.acknowledged(Time::ZERO, number);
    }
    assert_eq!(listener.opener.statistics().key_updates, 4);
}

#[test]
fn a_key_is_renewed_after_its_time() {
    let (mut dialler, mut listener) = ends();
    let hour = Duration::from_secs(3_600);
    let mut seal_and_open = |now| {
        let (number, datagram) = dialler.seal(now, b"data");
        listener.open(now, &datagram).unwrap();
        dialler.sealer.acknowledged(now, number);
        dialler.sealer.key_updates()
    };
    assert_eq!(seal_and_open(Time::ZERO), 0);
    let early = Time::ZERO + hour - Duration::from_nanos(1);
    assert_eq!(seal_and_open(early), 0);
    assert_eq!(seal_and_open(Time::ZERO + hour), 1);
    assert_eq!(seal_and_open(Time::ZERO + hour), 1);
    assert_eq!(seal_and_open(Time::ZERO + hour * 2), 2);
}

#[test]
fn each_direction_renews_its_own_key() {
    let (mut dialler, mut listener) = ends_with_frequent_updates(3);
    for _ in 0..10 {
        let (number, datagram) = dialler.seal(Time::ZERO, b"data");
        listener.open(Time::ZERO, &datagram).unwrap();
        dialler.sealer.acknowledged(Time::ZERO, number);
    }
    assert_eq!(dialler.sealer.key_updates(), 3);
    assert_eq!(listener.sealer.key_updates(), 0);
    let (_, back) = listener.seal(Time::ZERO, b"acknowledgement");
    assert!(dialler.open(Time::ZERO, &back).is_ok());
}

/// RFC 9001 §6.1: no further update before a packet of the current phase is acknowledged.
#[test]
fn sealer_stops_at_a_second_pending_update() {
    let (mut dialler, _) = ends_with_frequent_updates(4);
    for _ in 0..4 {
        dialler.seal(Time::ZERO, b"data");
    }
    dialler.sealer.acknowledged(Time::ZERO, 3);
    for _ in 0..8 {
        dialler.seal(Time::ZERO, b"data");
        assert_eq!(dialler.sealer.key_updates(), 1);
        // All of these were sealed with the key before.
        dialler.sealer.acknowledged(Time::ZERO, 3);
    }
    let before = dialler.sealer.next_number();
    assert_eq!(
        dialler.try_seal(Time::ZERO, b"data"),
        Err(SealError::KeyExhausted)
    );
    assert_eq!(dialler.sealer.next_number(), before);
    dialler.sealer.acknowledged(Time::ZERO, 4);
    assert!(dialler.try_seal(Time::ZERO, b"data").is_ok());
    assert_eq!(dialler.sealer.key_updates(), 2);
}

/// RFC 9001 §6.5: after an update was confirmed, three probe timeouts pass before the next, so that
/// packets sealed before it are not two keys old when they arrive.
#[test]
fn next_key_update_waits_for_packets_in_flight() {
    let (mut dialler, _) = ends_with(SUITE, limits(2));
    dialler.sealer.set_probe_timeout(Duration::from_millis(100));
    dialler.seal(at(0), b"data");
    dialler.seal(at(0), b"data");
    dialler.sealer.acknowledged(at(50), 0);
    // Later acknowledgements do not put it off.
    dialler.sealer.acknowledged(at(200), 1);
    dialler.seal(at(349), b"data");
    assert_eq!(dialler.sealer.key_updates(), 0);
    dialler.seal(at(350), b"data");
    assert_eq!(dialler.sealer.key_updates(), 1);
}

/// RFC 9001 §6.5: old keys are kept for three times the probe timeout.
#[test]
fn late_packet_opens_for_three_probe_timeouts() {
    let (mut dialler, mut listener) = ends_with_frequent_updates(4);
    listener
        .opener
        .set_probe_timeout(Duration::from_millis(100));
    let old: Vec<_> = (0..4).map(|_| dialler.seal(at(0), b"old").1).collect();
    assert!(listener.open(at(0), &old[0]).is_ok());
    dialler.sealer.acknowledged(at(0), 0);
    let (_, new) = dialler.seal(at(0), b"new");
    assert_eq!(listener.opener.poll_timeout(), Time::NEVER);
    assert!(listener.open(at(10), &new).is_ok());
    assert_eq!(listener.opener.poll_timeout(), at(310));
    assert!(listener.open(at(300), &old[1]).is_ok());
    listener.opener.handle_timeout(at(309));
    assert!(listener.open(at(309), &old[2]).is_ok());
    listener.opener.handle_timeout(at(310));
    assert_eq!(listener.opener.poll_timeout(), Time::NEVER);
    assert_eq!(listener.open(at(310), &old[3]), Err(PacketRefusal::OldKey));
    assert_eq!(listener.opener.statistics().forged, 0);
}

#[test]
fn packet_two_keys_old_is_not_a_forgery() {
    let (mut dialler, mut listener) = ends_with_frequent_updates(2);
    let (_, oldest) = dialler.seal(Time::ZERO, b"oldest");
    for _ in 0..4 {
        let (number, datagram) = dialler.seal(Time::ZERO, b"data");
        listener.open(Time::ZERO, &datagram).unwrap();
        dialler.sealer.acknowledged(Time::ZERO, number);
    }
    assert_eq!(listener.opener.statistics().key_updates, 2);
    assert_eq!(
        listener.open(Time::ZERO, &oldest),
        Err(PacketRefusal::OldKey)
    );
    assert_eq!(listener.opener.statistics().forged, 0);
}

#[test]
fn key_update_survives_loss_of_first_packets() {
    let (mut dialler, mut listener) = ends_with_frequent_updates(4);
    let packets: Vec<_> = (0..12)
        .map(|_| {
            let (_, datagram) = dialler.seal(Time::ZERO, b"data");
            dialler.sealer.acknowledged(Time::ZERO, 0);
            datagram
        })
        .collect();
    assert_eq!(dialler.sealer.key_updates(), 1);
    assert!(listener.open(Time::ZERO, &packets[1]).is_ok());
    // 4 and 5 are the first under the new key, and are overtaken by 9; 2 and 3 by all of them.
    for number in [9, 2, 5, 3, 4, 0, 11] {
        assert!(
            listener.open(Time::ZERO, &packets[number]).is_ok(),
            "packet {number}"
        );
    }
    assert_eq!(listener.opener.statistics().key_updates, 1);
}

/// Step of the property test below.
#[derive(Clone, Copy, Debug)]
struct KeyUpdateStep {
    forward: bool,
    lost: bool,
    /// Delay in milliseconds; the key is kept for longer.
    delay: u64,
    gap: u64,
}

fn step() -> impl Strategy<Value = KeyUpdateStep> {
    (any::<bool>(), 0..10_u8, 0..250_u64, 0..20_u64).prop_map(|(forward, lost, delay, gap)| {
        KeyUpdateStep {
            forward,
            lost: lost < 2,
            delay,
            gap,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Packets both ways, a fifth lost and the rest out of order, and a key for six of them: every
    /// packet that arrives is opened, with the number and the payload that it was sealed with, and
    /// numbers only rise.
    #[test]
    fn both_directions_renew_keys_through_loss_and_reordering(
        steps in prop::collection::vec(step(), 50..300),
    ) {
        let (dialler, listener) = ends_with(SUITE, limits(6));
        let mut ends = [dialler, listener];
        for end in &mut ends {
            end.opener.set_probe_timeout(Duration::from_millis(100));
            end.sealer.set_probe_timeout(Duration::from_millis(100));
        }
        // (arrival, order, from, number, datagram)
        let mut under_way = BTreeSet::new();
        let mut last = [None, None];
        let mut now = 0;
        for (order, step) in steps.iter().enumerate() {
            now += step.gap;
            deliver(&mut ends, &mut under_way, now)?;
            let from = usize::from(!step.forward);
            let payload = (order as u64).to_be_bytes();
            let Ok((number, datagram)) = ends[from].try_seal(at(now), &payload) else {
                // Nothing has been acknowledged for two keys' packets; time goes on.
                continue;
            };
            prop_assert!(last[from] < Some(number));
            last[from] = Some(number);
            if !step.lost {
                under_way.insert((now + step.delay, order as u64, from, number, datagram));
            }
        }
        deliver(&mut ends, &mut under_way, u64::MAX)?;
        for end in &ends {
            let statistics = end.opener.statistics();
            prop_assert_eq!(statistics.forged + statistics.old_key + statistics.replayed, 0);
        }
    }

    /// Whatever is called in whatever order, a sealer numbers its packets 0, 1, 2, … with no number
    /// twice, across updates and refusals.
    #[test]
    fn a_number_is_never_sealed_twice(
        steps in prop::collection::vec((0..4_u8, 0_u64..40, 0_u64..4_000), 1..200),
    ) {
        let (mut dialler, _) = ends_with_frequent_updates(5);
        let mut now = Time::ZERO;
        let mut sealed = 0;
        let mut datagrams = BTreeSet::new();
        for (kind, value, seconds) in steps {
            match kind {
                0 => dialler.sealer.acknowledged(now, value),
                1 => now += Duration::from_secs(seconds),
                _ => {
                    if let Ok((number, datagram)) = dialler.try_seal(now, b"always the same") {
                        prop_assert_eq!(number, sealed);
                        sealed += 1;
                        prop_assert!(datagrams.insert(datagram));
                    }
                }
            }
            prop_assert_eq!(dialler.sealer.next_number(), sealed);
        }
    }
}

/// A packet of the property above, ordered by its arrival.
type UnderWay = BTreeSet<(u64, u64, usize, u64, Vec<u8>)>;

fn deliver(
    ends: &mut [PathEnd; 2],
    under_way: &mut UnderWay,
    until: u64,
) -> Result<(), TestCaseError> {
    while under_way.first().is_some_and(|first| first.0 <= until) {
        let Some((arrival, order, from, number, datagram)) = under_way.pop_first() else {
            break;
        };
        let opened = ends[1 - from].open(at(arrival), &datagram);
        prop_assert_eq!(opened, Ok((number, order.to_be_bytes().to_vec())));
        ends[from].sealer.acknowledged(at(arrival), number);
    }
    Ok(())
}
