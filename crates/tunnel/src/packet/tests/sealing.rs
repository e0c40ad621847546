//! Sealing tests: a sealed packet is opened once at the other end, and nothing else is.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const BOTH: [CipherSuite; 2] = [CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305];

#[test]
fn what_one_end_seals_the_other_opens() {
    for suite in BOTH {
        let (mut dialler, mut listener) = ends_with(suite, KeyLimits::of(suite));
        for size in [1, 2, 3, 16, 1_400, 9_000] {
            let payload = vec![0x5a; size];
            let (number, datagram) = dialler.seal(Time::ZERO, &payload);
            assert_eq!(
                listener.open(Time::ZERO, &datagram),
                Ok((number, payload.clone()))
            );
            let (number, datagram) = listener.seal(Time::ZERO, &payload);
            assert_eq!(dialler.open(Time::ZERO, &datagram), Ok((number, payload)));
        }
    }
}

#[test]
fn packets_can_be_made_one_behind_the_other() {
    let (mut dialler, mut listener) = ends();
    let mut batch = BytesMut::new();
    let payloads = [&b"first"[..], b"second", b"third"];
    let mut starts = Vec::new();
    for payload in payloads {
        let start = PacketSealer::begin(&mut batch);
        batch.extend_from_slice(payload);
        dialler.sealer.seal(Time::ZERO, &mut batch, start).unwrap();
        starts.push(start);
    }
    starts.push(batch.len());
    for (number, payload) in payloads.iter().enumerate() {
        let datagram = &batch[starts[number]..starts[number + 1]];
        let opened = listener.open(Time::ZERO, datagram).unwrap();
        assert_eq!(opened, (number as u64, payload.to_vec()));
    }
}

#[test]
fn every_changed_bit_and_every_cut_is_refused() {
    for suite in BOTH {
        let (mut dialler, mut listener) = ends_with(suite, KeyLimits::of(suite));
        let (_, datagram) = dialler.seal(Time::ZERO, b"a payload to bend");
        for bit in 0..datagram.len() * 8 {
            let mut bent = datagram.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let refused = listener.open(Time::ZERO, &bent).unwrap_err();
            let visible = bit < 72 && !(0..5).contains(&bit);
            let expected = if visible {
                PacketRefusal::NotOurs
            } else {
                PacketRefusal::Forged
            };
            assert_eq!(refused, expected, "bit {bit}");
        }
        for length in 0..datagram.len() {
            let refused = listener.open(Time::ZERO, &datagram[..length]).unwrap_err();
            assert!(
                matches!(refused, PacketRefusal::NotOurs | PacketRefusal::Forged),
                "cut to {length}"
            );
        }
        let longer = [&datagram[..], &[0]].concat();
        assert_eq!(
            listener.open(Time::ZERO, &longer),
            Err(PacketRefusal::Forged)
        );
        // After all that the packet itself is as good as ever.
        assert!(listener.open(Time::ZERO, &datagram).is_ok());
        assert_eq!(listener.opener.statistics().key_updates, 0);
    }
}

#[test]
fn a_packet_is_taken_once() {
    let (mut dialler, mut listener) = ends();
    let datagrams: Vec<_> = (0..100)
        .map(|_| dialler.seal(Time::ZERO, b"once").1)
        .collect();
    for datagram in datagrams.iter().rev() {
        assert!(listener.open(Time::ZERO, datagram).is_ok());
    }
    for datagram in &datagrams {
        assert_eq!(
            listener.open(Time::ZERO, datagram),
            Err(PacketRefusal::Replayed)
        );
    }
    let statistics = listener.opener.statistics();
    assert_eq!((statistics.opened, statistics.replayed), (100, 100));
}

#[test]
fn late_packets_are_accepted_within_the_window_only() {
    let suite = CipherSuite::Aes256Gcm;
    let limits = KeyLimits {
        window: WindowWidth::LEAST,
        ..KeyLimits::of(suite)
    };
    let (mut dialler, mut listener) = ends_with(suite, limits);
    let width = WindowWidth::LEAST.numbers();
    assert_eq!(width, 65_536);
    let datagrams: Vec<_> = (0..width + 2)
        .map(|_| dialler.seal(Time::ZERO, b"late").1)
        .collect();
    let (newest, late) = datagrams.split_last().unwrap();
    assert!(listener.open(Time::ZERO, newest).is_ok());
    assert_eq!(
        listener.open(Time::ZERO, &late[0]),
        Err(PacketRefusal::TooOld)
    );
    assert_eq!(
        listener.open(Time::ZERO, &late[1]),
        Err(PacketRefusal::TooOld)
    );
    assert!(listener.open(Time::ZERO, &late[2]).is_ok());
    assert_eq!(listener.opener.statistics().too_old, 2);
}

#[test]
fn key_contexts_of_one_tls_session_are_separate() {
    let suite = CipherSuite::Aes256Gcm;
    let agreed = context(suite);
    let others = [
        KeyContext {
            version: 2,
            ..agreed.clone()
        },
        KeyContext {
            suite: CipherSuite::ChaCha20Poly1305,
            ..agreed.clone()
        },
        KeyContext {
            dialler: NodeId([9; 32]),
            ..agreed.clone()
        },
        KeyContext {
            listener: NodeId([9; 32]),
            ..agreed.clone()
        },
        KeyContext {
            dialler: agreed.listener,
            listener: agreed.dialler,
            ..agreed.clone()
        },
        KeyContext {
            dialler_nonce: [9; 16],
            ..agreed.clone()
        },
        KeyContext {
            listener_nonce: [9; 16],
            ..agreed.clone()
        },
    ];
    for other in others {
        let (mut dialler, _) = ends();
        let mut secret = exported(b"one TLS session", TlsRole::Listener, other.clone());
        let mut listener = PathEnd::new(&mut secret, TlsRole::Listener, 0, KeyLimits::of(suite));
        let (_, there) = dialler.seal(Time::ZERO, b"not for this one");
        let (_, back) = listener.seal(Time::ZERO, b"nor for that one");
        assert!(listener.open(Time::ZERO, &there).is_err(), "{other:?}");
        assert!(dialler.open(Time::ZERO, &back).is_err(), "{other:?}");
        assert_eq!(listener.opener.statistics().opened, 0);
    }
}

#[test]
fn tls_sessions_have_different_keys() {
    let suite = CipherSuite::Aes256Gcm;
    let (mut dialler, _) = ends();
    let mut secret = exported(b"the session after", TlsRole::Listener, context(suite));
    let mut listener = PathEnd::new(&mut secret, TlsRole::Listener, 0, KeyLimits::of(suite));
    // The first packet of each has number 0 and the same payload; what is sent is not the same.
    let (_, of_one) = dialler.seal(Time::ZERO, b"number zero");
    assert!(listener.open(Time::ZERO, &of_one).is_err());
    let mut secret = exported(b"the session after", TlsRole::Dialler, context(suite));
    let mut restarted = PathEnd::new(&mut secret, TlsRole::Dialler, 0, KeyLimits::of(suite));
    let (_, of_other) = restarted.seal(Time::ZERO, b"number zero");
    assert_ne!(of_one[9..], of_other[9..]);
}

#[test]
fn paths_and_directions_have_keys_of_their_own() {
    let suite = CipherSuite::Aes256Gcm;
    let limits = KeyLimits::of(suite);
    let mut secret = exported(b"one TLS session", TlsRole::Dialler, context(suite));
    let mut first = PathEnd::new(&mut secret, TlsRole::Dialler, 0, limits);
    let mut second = PathEnd::new(&mut secret, TlsRole::Dialler, 1, limits);
    let (_, mut listener) = ends();

    let (_, of_second) = second.seal(Time::ZERO, b"path 1");
    assert!(listener.open(Time::ZERO, &of_second).is_err());

    // What a node has sent, sent back to it under its own connection id.
    let (_, mut mirrored) = first.seal(Time::ZERO, b"there");
    mirrored[1..9].copy_from_slice(&DIALLER_ID.0);
    assert!(first.open(Time::ZERO, &mirrored).is_err());
    assert_eq!(first.opener.statistics().opened, 0);
}

#[test]
fn a_path_id_is_given_out_once() {
    let suite = CipherSuite::Aes256Gcm;
    let mut secret = exported(b"one TLS session", TlsRole::Dialler, context(suite));
    let connection_ids = ConnectionIds {
        ours: DIALLER_ID,
        theirs: LISTENER_ID,
    };
    let mut ask = |id| {
        secret
            .path(Time::ZERO, id, connection_ids, KeyLimits::of(suite))
            .map(drop)
    };
    assert_eq!(ask(0), Ok(()));
    assert_eq!(ask(0), Err(PathIdUsed(0)));
    assert_eq!(ask(7), Ok(()));
    assert_eq!(ask(3), Err(PathIdUsed(3)));
    assert_eq!(ask(7), Err(PathIdUsed(7)));
    assert_eq!(ask(u32::MAX), Err(PathIdUsed(u32::MAX)));
    assert_eq!(ask(8), Ok(()));
}

#[test]
fn an_exporter_that_fails_gives_no_keys() {
    let context = context(CipherSuite::Aes256Gcm);
    let failed = PathSecret::export(TlsRole::Dialler, context, |_, _, _| Err("no TLS session"));
    assert_eq!(failed.unwrap_err(), "no TLS session");
}

#[test]
fn the_sealer_stops_when_nothing_is_acknowledged() {
    let (mut dialler, _) = ends();
    // As if all these had been sealed; doing it takes seconds.
    dialler.sealer.skip_to(UNACKNOWLEDGED_LIMIT - 1);
    dialler.seal(Time::ZERO, b"the last one");
    assert_eq!(
        dialler.try_seal(Time::ZERO, b"one more"),
        Err(SealError::TooFarAhead)
    );
    dialler
        .sealer
        .acknowledged(Time::ZERO, UNACKNOWLEDGED_LIMIT);
    assert_eq!(
        dialler.try_seal(Time::ZERO, b"a number that was not sent"),
        Err(SealError::TooFarAhead)
    );
    dialler
        .sealer
        .acknowledged(Time::ZERO, UNACKNOWLEDGED_LIMIT - 1);
    let (number, _) = dialler.seal(Time::ZERO, b"goes on");
    assert_eq!(number, UNACKNOWLEDGED_LIMIT);
}

#[test]
fn truncated_numbers_decode_at_both_window_ends() {
    let suite = CipherSuite::Aes256Gcm;
    let limits = KeyLimits {
        window: WindowWidth::GREATEST,
        ..KeyLimits::of(suite)
    };
    let (mut dialler, mut listener) = ends_with(suite, limits);
    let (_, first) = dialler.seal(Time::ZERO, b"first");
    // The largest leap that the sealer makes over packets that are lost, ...
    dialler.sealer.acknowledged(Time::ZERO, 0);
    dialler.sealer.skip_to(UNACKNOWLEDGED_LIMIT - 1);
    let (number, leap) = dialler.seal(Time::ZERO, b"leap");
    assert_eq!(
        listener.open(Time::ZERO, &leap),
        Ok((number, b"leap".to_vec()))
    );
    // ... and the latest packet that the window takes.
    assert_eq!(
        listener.open(Time::ZERO, &first),
        Ok((0, b"first".to_vec()))
    );
}

#[test]
fn numbers_go_on_where_three_bytes_begin_anew() {
    let (mut dialler, mut listener) = ends();
    dialler.sealer.set_probe_timeout(Duration::ZERO);
    let step = UNACKNOWLEDGED_LIMIT - 1;
    for leap in 1..20 {
        dialler.sealer.skip_to(leap * step);
        let (number, datagram) = dialler.seal(Time::ZERO, b"on");
        assert_eq!(number, leap * step);
        assert_eq!(
            listener.open(Time::ZERO, &datagram),
            Ok((number, b"on".to_vec()))
        );
        dialler.sealer.acknowledged(Time::ZERO, number);
    }
    assert!(dialler.sealer.next_number() > 4 << 24);
}

#[test]
fn number_beyond_the_wire_limit_is_refused() {
    let (mut dialler, mut listener) = ends();
    listener.opener.skip_to((1 << 62) - 1);
    dialler.sealer.skip_to(1 << 62);
    let beyond = dialler.sealer.seal_raw(0x02, b"beyond");
    assert_eq!(
        listener.open(Time::ZERO, &beyond),
        Err(PacketRefusal::Malformed)
    );
}

#[test]
fn malformed_sealed_packet_uses_no_number() {
    let (mut dialler, mut listener) = ends();
    let reserved = dialler.sealer.seal_raw(0x08, b"reserved bits");
    assert_eq!(
        listener.open(Time::ZERO, &reserved),
        Err(PacketRefusal::Malformed)
    );
    assert_eq!(
        listener.open(Time::ZERO, &reserved),
        Err(PacketRefusal::Malformed)
    );
    let empty = dialler.sealer.seal_raw(0x03, b"");
    assert_eq!(
        listener.open(Time::ZERO, &empty),
        Err(PacketRefusal::Malformed)
    );
    assert_eq!(listener.opener.statistics().malformed, 3);
    let (number, datagram) = dialler.seal(Time::ZERO, b"well");
    assert_eq!(
        listener.open(Time::ZERO, &datagram),
        Ok((number, b"well".to_vec()))
    );
}

#[test]
fn forgery_limit_stops_opening() {
    let suite = CipherSuite::ChaCha20Poly1305;
    let limits = KeyLimits {
        forgeries: 3,
        ..KeyLimits::of(suite)
    };
    let (mut dialler, mut listener) = ends_with(suite, limits);
    let (_, datagram) = dialler.seal(Time::ZERO, b"payload");
    let mut bent = datagram.clone();
    bent[20] ^= 1;
    for _ in 0..2 {
        assert_eq!(listener.open(Time::ZERO, &bent), Err(PacketRefusal::Forged));
    }
    // What a stranger can send without knowing the connection id does not count.
    for _ in 0..10 {
        assert_eq!(
            listener.open(Time::ZERO, &[0x40; 60]),
            Err(PacketRefusal::NotOurs)
        );
    }
    assert!(listener.open(Time::ZERO, &datagram).is_ok());
    assert!(!listener.opener.is_exhausted());
    assert_eq!(listener.open(Time::ZERO, &bent), Err(PacketRefusal::Forged));
    assert!(listener.opener.is_exhausted());
    let (_, good) = dialler.seal(Time::ZERO, b"too late");
    assert_eq!(
        listener.open(Time::ZERO, &good),
        Err(PacketRefusal::ForgeryLimit)
    );
}

#[test]
fn the_limits_are_those_of_the_rule() {
    let aes = KeyLimits::of(CipherSuite::Aes256Gcm);
    assert_eq!(aes.packets_per_key, 1 << 22);
    assert_eq!(aes.key_age.as_secs(), 3_600);
    assert_eq!(aes.forgeries, 1 << 52);
    assert!(aes.window.numbers() >= 65_536);
    // RFC 9001 §6.6: the confidentiality limit of AES-GCM is 2^23 packets for one key.
    assert!(aes.packets_per_key * 2 <= 1 << 23);
    let chacha = KeyLimits::of(CipherSuite::ChaCha20Poly1305);
    assert_eq!(chacha.forgeries, 1 << 36);
    assert_eq!(chacha.packets_per_key, 1 << 22);
}

/// Attack of a hostile network between two honest packets.
#[derive(Clone, Debug)]
enum PacketAttack {
    Flip { of: usize, bit: usize },
    Cut { of: usize, length: usize },
    Replay { of: usize },
    Noise { bytes: Vec<u8> },
    Reframe { of: usize, other: usize, at: usize },
    OtherKey { payload: Vec<u8> },
}

fn attack() -> impl Strategy<Value = PacketAttack> {
    prop_oneof![
        (any::<usize>(), any::<usize>()).prop_map(|(of, bit)| PacketAttack::Flip { of, bit }),
        (any::<usize>(), any::<usize>()).prop_map(|(of, length)| PacketAttack::Cut { of, length }),
        any::<usize>().prop_map(|of| PacketAttack::Replay { of }),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| PacketAttack::Noise { bytes }),
        any::<[usize; 3]>().prop_map(|[of, other, at]| PacketAttack::Reframe { of, other, at }),
        prop::collection::vec(any::<u8>(), 1..40)
            .prop_map(|payload| PacketAttack::OtherKey { payload }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One receiver sees attacks between the honest packets and one does not: they open the same
    /// packets, the same way, across key updates.
    #[test]
    fn forged_replayed_cut_and_foreign_packets_change_nothing(
        steps in prop::collection::vec((any::<bool>(), prop::collection::vec(attack(), 0..4)), 1..40),
    ) {
        let suite = CipherSuite::Aes256Gcm;
        let limits = KeyLimits { packets_per_key: 5, ..KeyLimits::of(suite) };
        let (mut dialler, mut attacked) = ends_with(suite, limits);
        dialler.sealer.set_probe_timeout(Duration::ZERO);
        let (_, mut left_alone) = ends_with(suite, limits);
        let mut foreign = exported(b"another TLS session", TlsRole::Dialler, context(suite));
        let mut foreign = PathEnd::new(&mut foreign, TlsRole::Dialler, 0, KeyLimits::of(suite));
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let mut opened = Vec::new();
        for (arrives, attacks) in steps {
            let Ok((number, datagram)) = dialler.try_seal(Time::ZERO, b"honest") else {
                // Too little arrived for the sealer to renew its key.
                break;
            };
            sent.push(datagram.clone());
            for attack in attacks {
                let forged = match attack {
                    PacketAttack::Flip { of, bit } => {
                        let mut bent = sent[of % sent.len()].clone();
                        let bit = bit % (bent.len() * 8);
                        bent[bit / 8] ^= 1 << (bit % 8);
                        bent
                    }
                    PacketAttack::Cut { of, length } => {
                        let whole = &sent[of % sent.len()];
                        whole[..length % whole.len()].to_vec()
                    }
                    PacketAttack::Replay { of } => {
                        if opened.is_empty() {
                            continue;
                        }
                        let number: u64 = opened[of % opened.len()];
                        sent[number as usize].clone()
                    }
                    PacketAttack::Noise { bytes } => bytes,
                    PacketAttack::Reframe { of, other, at } => {
                        // The front of one packet and the end of another.
                        let (one, other) = (&sent[of % sent.len()], &sent[other % sent.len()]);
                        let at = 10 + at % (one.len() - 11);
                        let spliced = [&one[..at], &other[at..]].concat();
                        if sent.contains(&spliced) {
                            // The two agree in their last bytes, by chance.
                            continue;
                        }
                        spliced
                    }
                    PacketAttack::OtherKey { payload } => foreign.seal(Time::ZERO, &payload).1,
                };
                prop_assert!(attacked.open(Time::ZERO, &forged).is_err());
            }
            if arrives {
                let seen = attacked.open(Time::ZERO, &datagram);
                prop_assert_eq!(&seen, &left_alone.open(Time::ZERO, &datagram));
                prop_assert_eq!(seen, Ok((number, b"honest".to_vec())));
                opened.push(number);
                dialler.sealer.acknowledged(Time::ZERO, number);
            }
        }
        let (one, other) = (attacked.opener.statistics(), left_alone.opener.statistics());
        prop_assert_eq!(one.opened, other.opened);
        prop_assert_eq!(one.key_updates, other.key_updates);
    }
}
