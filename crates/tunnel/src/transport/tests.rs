//! Two transports and a path that the test holds in its hands.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::packet::{
    CipherSuite, CloseCode, CloseFrame, ConnectionId, ConnectionIds, KeyContext, KeyLimits,
    PacketFrame, PathChallenge, PathSecret, ProbeFrame, TlsRole, UNACKNOWLEDGED_LIMIT, append,
    frames,
};
use crate::wire::{DataFrame, SessionFrame};
use vocab::{FlowId, NodeId};

const NEAR: usize = 0;
const FAR: usize = 1;
const ONE_WAY: Duration = Duration::from_millis(20);

/// Two ends; each sends numbered frames, and records their outcomes.
struct TransportPair {
    now: Time,
    ends: [DatagramTransport<u64>; 2],
    addresses: [SocketAddr; 2],
    under_way: BTreeMap<(Time, u64), (usize, SocketAddr, BytesMut)>,
    sent: u64,
    /// Frames that an end wants to send, and those that came.
    wanted: [Vec<u64>; 2],
    came: [BTreeSet<u64>; 2],
    arrived: [BTreeSet<u64>; 2],
    changes: [Vec<PathChange>; 2],
    /// Datagrams that the path swallows, by the end that sent them.
    drops_datagram: fn(usize, &BytesMut) -> bool,
    /// Datagrams that each end has sent.
    datagrams: [u64; 2],
    /// The length of a frame's bytes.
    frame_bytes: usize,
}

fn home(end: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + end as u8], 4_000))
}

fn keys(end: usize) -> PathKeys {
    let roles = [TlsRole::Dialler, TlsRole::Listener];
    let context = KeyContext {
        version: 1,
        suite: CipherSuite::Aes256Gcm,
        dialler: NodeId([1; 32]),
        listener: NodeId([2; 32]),
        dialler_nonce: [3; 16],
        listener_nonce: [4; 16],
    };
    let export = |room: &mut [u8], _: &'static [u8], _: &[u8]| {
        room.fill(7);
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(mut secret) = PathSecret::export(roles[end], context, export);
    let ids = ConnectionIds {
        ours: ConnectionId([end as u8; 8]),
        theirs: ConnectionId([1 - end as u8; 8]),
    };
    let limits = KeyLimits::of(CipherSuite::Aes256Gcm);
    let (sealer, opener) = secret.path(Time::ZERO, 0, ids, limits).unwrap();
    let challenges = ChallengeSeed::new(|room| room.fill(end as u8));
    PathKeys {
        sealer,
        opener,
        challenges,
    }
}

impl TransportPair {
    fn new(settings: PathSettings) -> Self {
        let end = |end: usize, peer| DatagramTransport::new(Time::ZERO, keys(end), peer, settings);
        Self {
            now: Time::ZERO,
            ends: [end(NEAR, Some(home(FAR))), end(FAR, None)],
            addresses: [home(NEAR), home(FAR)],
            under_way: BTreeMap::new(),
            sent: 0,
            wanted: Default::default(),
            came: Default::default(),
            arrived: Default::default(),
            changes: Default::default(),
            drops_datagram: |_, _| false,
            datagrams: [0; 2],
            frame_bytes: 1_000,
        }
    }

    fn settle(&mut self, end: usize) {
        let mut out = BytesMut::new();
        loop {
            out.clear();
            let (wanted, bytes) = (&mut self.wanted[end], self.frame_bytes);
            let transmit = self.ends[end].poll_transmit(self.now, 8, &mut out, |room, payload| {
                let number = wanted.pop()?;
                SessionFrame::Data(DataFrame {
                    flow: FlowId(number),
                    offset: 0,
                    bytes: vec![number as u8; bytes.min(room - 20)].into(),
                })
                .emit(payload);
                let worth = RepairProtection::Repair;
                Some(FilledPacket {
                    content: number,
                    protection: worth,
                })
            });
            let Some(transmit) = transmit else {
                break;
            };
            for packet in out.chunks(transmit.segment) {
                let packet = BytesMut::from(packet);
                self.sent += 1;
                self.datagrams[end] += 1;
                if transmit.to == self.addresses[1 - end] && !(self.drops_datagram)(end, &packet) {
                    let at = (self.now + ONE_WAY, self.sent);
                    self.under_way
                        .insert(at, (1 - end, self.addresses[end], packet));
                }
            }
        }
        self.drain(end);
    }

    fn drain(&mut self, end: usize) {
        let transport = &mut self.ends[end];
        while let Some(frame) = transport.poll_frame() {
            let SessionFrame::Data(data) = frame else {
                panic!("a frame that nobody sent: {frame:?}");
            };
            self.came[end].insert(data.flow.0);
        }
        while let Some((fate, number)) = transport.poll_fate() {
            match fate {
                DeliveryOutcome::Arrived => drop(self.arrived[end].insert(number)),
                DeliveryOutcome::Lost if self.arrived[end].contains(&number) => {}
                DeliveryOutcome::Lost => self.wanted[end].push(number),
            }
        }
        while let Some(change) = transport.poll_change() {
            self.changes[end].push(change);
        }
    }

    fn run(&mut self, span: Duration) {
        let end_of_run = self.now + span;
        let mut idle_rounds = 0;
        loop {
            for end in [NEAR, FAR] {
                self.settle(end);
            }
            let timers = self.ends.iter().filter_map(DatagramTransport::poll_timeout);
            let arrivals = self.under_way.keys().map(|(at, _)| *at).take(1);
            let next = timers.chain(arrivals).min().unwrap_or(Time::NEVER);
            if next > end_of_run {
                self.now = end_of_run;
                return;
            }
            idle_rounds = if next > self.now { 0 } else { idle_rounds + 1 };
            assert!(idle_rounds < 1_000, "time stands still at {}", self.now);
            self.now = self.now.max(next);
            while let Some(entry) = self.under_way.first_entry()
                && entry.key().0 <= self.now
            {
                let (to, from, packet) = entry.remove();
                self.ends[to]
                    .handle(self.now, from, EcnMarking::NotEct, packet)
                    .unwrap();
                self.drain(to);
            }
            for end in [NEAR, FAR] {
                self.ends[end].handle_timeout(self.now);
                self.drain(end);
            }
        }
    }

    /// A packet of that end's, made by hand.
    fn sealed(&mut self, end: usize, frame: &PacketFrame) -> BytesMut {
        let mut packet = BytesMut::new();
        let start = PacketSealer::begin(&mut packet);
        append(frame, &mut packet);
        self.ends[end]
            .sealer
            .seal(self.now, &mut packet, start)
            .unwrap();
        packet
    }

    /// Hands a datagram to an end, as if it had come from there.
    fn deliver(&mut self, to: usize, from: SocketAddr, packet: BytesMut) {
        let codepoint = EcnMarking::NotEct;
        self.ends[to]
            .handle(self.now, from, codepoint, packet)
            .unwrap();
        self.drain(to);
    }

    /// Takes the datagrams that an end sends now, each with its destination; none is delivered.
    fn taken(&mut self, end: usize) -> Vec<(SocketAddr, BytesMut)> {
        let mut taken = Vec::new();
        let mut out = BytesMut::new();
        while let Some(transmit) =
            self.ends[end].poll_transmit(self.now, 8, &mut out, |_, _| None::<FilledPacket<u64>>)
        {
            let packets = out.chunks(transmit.segment);
            taken.extend(packets.map(|packet| (transmit.to, BytesMut::from(packet))));
            out.clear();
        }
        taken
    }

    /// Frames of a datagram, as the other end would read them.
    fn frames(&mut self, to: usize, packet: &BytesMut) -> Vec<PacketFrame> {
        let mut packet = packet.clone();
        let opened = self.ends[to].opener.open(self.now, &mut packet).unwrap();
        let payload = packet.freeze().slice(opened.payload());
        frames(payload).map(Result::unwrap).collect()
    }

    fn send(&mut self, end: usize, numbers: std::ops::Range<u64>) {
        self.wanted[end].extend(numbers);
    }
}

fn carrying(settings: PathSettings) -> TransportPair {
    let mut pair = TransportPair::new(settings);
    pair.run(Duration::from_millis(500));
    assert_eq!(
        pair.changes,
        [[PathChange::Carrying], [PathChange::Carrying]]
    );
    pair
}

/// At a rate at which a few thousand frames take seconds.
fn capped() -> PathSettings {
    PathSettings {
        rate_max: Some(Bitrate::from_bits_per_second(8_000_000)),
        ..PathSettings::default()
    }
}

#[test]
fn frames_arrive_and_are_acknowledged() {
    let mut pair = carrying(PathSettings::default());
    pair.send(NEAR, 0..300);
    pair.send(FAR, 0..300);
    pair.run(Duration::from_secs(3));
    for end in [NEAR, FAR] {
        assert!(pair.came[end].iter().copied().eq(0..300));
        assert!(pair.arrived[end].iter().copied().eq(0..300));
        assert_eq!(pair.ends[end].status(pair.now).lost_packets, 0);
        assert_eq!(pair.ends[end].status(pair.now).in_flight_bytes, 0);
    }
}

#[test]
fn probe_packets_request_immediate_acknowledgement() {
    let mut pair = carrying(PathSettings {
        fec: crate::fec::RepairMode::Off,
        ..PathSettings::default()
    });
    pair.run(Duration::from_secs(3));
    pair.send(NEAR, 0..2);
    pair.drops_datagram = |_, _| true;
    pair.settle(NEAR);
    pair.drops_datagram = |_, _| false;
    while pair.under_way.is_empty() {
        pair.now = pair.ends[NEAR].poll_timeout().unwrap();
        pair.ends[NEAR].handle_timeout(pair.now);
        pair.drain(NEAR);
        pair.settle(NEAR);
    }
    let packets: Vec<BytesMut> = (pair.under_way.values())
        .map(|(_, _, packet)| packet.clone())
        .collect();
    let [first, second] = &packets[..] else {
        panic!("{} packets", packets.len());
    };
    let (first, second) = (pair.frames(FAR, first), pair.frames(FAR, second));
    for frames in [&first, &second] {
        assert!(
            frames.contains(&PacketFrame::Probe(ProbeFrame)),
            "{frames:?}"
        );
    }
    let repeats = |frame: &PacketFrame| matches!(frame, PacketFrame::Session(_));
    assert!(first.iter().any(repeats), "{first:?}");
}

#[test]
fn jumbo_path_is_found_and_supports_correction() {
    let mut pair = carrying(PathSettings {
        datagram_max: 8_952,
        ..PathSettings::default()
    });
    pair.frame_bytes = 8_000;
    pair.send(NEAR, 0..300);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.ends[NEAR].status(pair.now).packet_size, 8_952);
    assert!(pair.came[FAR].iter().copied().eq(0..300));
}

#[test]
fn lost_mtu_probe_does_not_suspend_path() {
    let mut pair = TransportPair::new(PathSettings {
        datagram_max: 1_472,
        ..PathSettings::default()
    });
    pair.drops_datagram = |_, packet| packet.len() > 1_300;
    pair.run(Duration::from_secs(60));
    assert_eq!(
        pair.changes,
        [[PathChange::Carrying], [PathChange::Carrying]]
    );
    let size = pair.ends[NEAR].status(pair.now).packet_size;
    assert!((1_292..=1_300).contains(&size), "{size}");
}

#[test]
fn dead_path_is_suspended_and_resumed() {
    let mut pair = carrying(PathSettings::default());
    pair.drops_datagram = |_, _| true;
    pair.send(NEAR, 0..50);
    pair.run(Duration::from_secs(4));
    let reason = SuspendReason::NoAnswer;
    assert_eq!(
        pair.changes[NEAR].last(),
        Some(&PathChange::Suspended(reason))
    );
    // What was under way has to go another way.
    let unsaid: BTreeSet<u64> = pair.wanted[NEAR].iter().copied().collect();
    assert!(unsaid.into_iter().eq(0..50));
    pair.drops_datagram = |_, _| false;
    pair.run(Duration::from_secs(10));
    assert_eq!(pair.changes[NEAR].last(), Some(&PathChange::Carrying));
    assert!(pair.came[FAR].iter().copied().eq(0..50));
}

#[test]
fn peer_that_moves_is_followed() {
    let mut pair = carrying(PathSettings::default());
    for step in 0..4_u64 {
        pair.send(NEAR, 100 * step..100 * (step + 1));
        pair.send(FAR, 100 * step..100 * (step + 1));
        pair.run(Duration::from_millis(25));
        // By turns another port and another host.
        pair.addresses[NEAR] =
            SocketAddr::from(([10, 0, (step / 2) as u8, 9], 5_000 + step as u16));
        pair.run(Duration::from_secs(8));
    }
    for end in [NEAR, FAR] {
        assert!(pair.came[end].iter().copied().eq(0..400), "{end}");
    }
}

/// Loss estimate of an end: the share of losses and the length of their runs.
fn losses(end: &mut DatagramTransport<u64>) -> (f64, f64) {
    let losses = end.policy.losses();
    (losses.probability(), losses.mean_run())
}

fn is_response(frame: &PacketFrame) -> bool {
    matches!(frame, PacketFrame::PathResponse(_))
}

/// RFC 9000 §8.1, §8.2.1: a challenge counts by its length, so that it may follow a packet with an
/// acknowledgement and nothing else.
#[test]
fn acknowledging_peer_may_change_its_port() {
    let mut pair = carrying(PathSettings::default());
    pair.send(FAR, 0..2);
    // Their acknowledgements will come from elsewhere.
    pair.run(ONE_WAY / 2);
    pair.addresses[NEAR] = SocketAddr::from(([10, 0, 0, 1], 5_000));
    pair.run(3 * ONE_WAY);
    pair.send(FAR, 2..200);
    pair.run(Duration::from_millis(700));
    assert!(pair.came[NEAR].iter().copied().eq(0..200));
    assert_eq!(pair.changes[FAR], [PathChange::Carrying]);
}

/// RFC 9000 §8.1: whatever is in them, no more than three times the bytes go there.
#[test]
fn unvalidated_address_gets_three_times_its_bytes() {
    for bytes in [30, 60, 200, 400, 1_300] {
        let mut pair = carrying(PathSettings::default());
        pair.send(FAR, 0..50);
        pair.run(Duration::from_secs(2));
        let elsewhere = SocketAddr::from(([10, 0, 0, 1], 5_000));
        let padding = crate::packet::PaddingFrame { bytes };
        let packet = pair.sealed(NEAR, &PacketFrame::Padding(padding));
        let most = 3 * packet.len();
        pair.send(FAR, 50..200);
        pair.deliver(FAR, elsewhere, packet);
        let mut out = BytesMut::new();
        let mut went = 0;
        for _ in 0..100 {
            let end = &mut pair.ends[FAR];
            let fill = |room: usize, payload: &mut ByteWriter| {
                payload.bytes(&[0; 1_200][..room.min(1_200)]);
                let (content, worth) = (1, RepairProtection::Repair);
                (room > 0).then_some(FilledPacket {
                    content,
                    protection: worth,
                })
            };
            let Some(transmit) = end.poll_transmit(pair.now, 8, &mut out, fill) else {
                break;
            };
            if transmit.to == elsewhere {
                went += transmit.bytes;
            }
            out.clear();
        }
        assert!(went <= most, "{went} bytes for {most}");
        assert!(went >= 38, "a challenge at least");
        if bytes == 200 {
            assert!(went > most / 2, "frames too, in what packets fit");
        }
    }
}

/// RFC 9000 §8.2.2: on the path on which the challenge came, whatever the newest packet says.
#[test]
fn challenge_is_answered_to_its_source() {
    let mut pair = carrying(PathSettings::default());
    let value = 7;
    let challenge = PacketFrame::PathChallenge(PathChallenge { value });
    let challenge = pair.sealed(FAR, &challenge);
    let newer = pair.sealed(FAR, &PacketFrame::Probe(ProbeFrame));
    let elsewhere = SocketAddr::from(([10, 0, 9, 9], 4_000));
    pair.deliver(NEAR, elsewhere, newer);
    pair.deliver(NEAR, home(FAR), challenge);
    let sent = pair.taken(NEAR);
    let responses: Vec<_> = sent
        .iter()
        .filter(|(_, packet)| pair.frames(FAR, packet).iter().any(is_response))
        .map(|(to, _)| *to)
        .collect();
    assert_eq!(responses, [home(FAR)]);
}

/// A datagram full of challenges, from an address that may be anybody's, is answered once.
#[test]
fn challenge_responses_do_not_amplify() {
    let mut pair = carrying(PathSettings::default());
    let stranger = SocketAddr::from(([10, 0, 9, 9], 4_000));
    let mut packet = BytesMut::new();
    let start = PacketSealer::begin(&mut packet);
    for value in 0..10 {
        append(
            &PacketFrame::PathChallenge(PathChallenge { value }),
            &mut packet,
        );
    }
    let padding = crate::packet::PaddingFrame { bytes: 400 };
    append(&PacketFrame::Padding(padding), &mut packet);
    let now = pair.now;
    pair.ends[FAR].sealer.seal(now, &mut packet, start).unwrap();
    let newer = pair.sealed(FAR, &PacketFrame::Probe(ProbeFrame));
    pair.deliver(NEAR, home(FAR), newer);
    let most = 3 * packet.len();
    pair.deliver(NEAR, stranger, packet);
    let sent = pair.taken(NEAR);
    let there = sent.iter().filter(|(to, _)| *to == stranger);
    let bytes: usize = there.map(|(_, packet)| packet.len()).sum();
    assert!((1..=most).contains(&bytes), "{bytes} bytes for {most}");
}

/// RFC 9000 §9.3.3: a third party forwards one of the peer's packets from its own host. That
/// changes the destination of packets for a round trip, and none of the measurements.
#[test]
fn diverted_packet_keeps_the_path_state() {
    let mut pair = carrying(capped());
    pair.send(FAR, 0..2_000);
    pair.run(Duration::from_secs(1));
    let before = pair.ends[FAR].status(pair.now);
    let known = losses(&mut pair.ends[FAR]);
    assert!(before.in_flight_bytes > 0 && before.rtt_minimum.is_some());
    let attacker = SocketAddr::from(([66, 6, 6, 6], 4_000));
    let padding = crate::packet::PaddingFrame { bytes: 1_300 };
    let led = pair.sealed(NEAR, &PacketFrame::Padding(padding));
    pair.deliver(FAR, attacker, led);
    assert_eq!(pair.ends[FAR].addresses.current(), Some(attacker));
    pair.run(4 * ONE_WAY);
    let after = pair.ends[FAR].status(pair.now);
    assert_eq!(pair.ends[FAR].addresses.current(), Some(home(NEAR)));
    assert_eq!(after.congestion, before.congestion);
    assert_eq!(after.packet_size, before.packet_size);
    assert!(after.window_bytes >= before.window_bytes);
    assert!(losses(&mut pair.ends[FAR]).0 <= known.0);
    pair.run(Duration::from_secs(5));
    assert!(pair.came[NEAR].iter().copied().eq(0..2_000));
    assert_eq!(pair.changes[FAR], [PathChange::Carrying]);
}

/// RFC 9000 §9.4: of another host's path nothing is known, once the peer has proved that it is there.
#[test]
fn validated_new_host_is_a_new_path() {
    let mut pair = carrying(capped());
    pair.send(FAR, 0..2_000);
    pair.run(Duration::from_secs(1));
    let before = pair.ends[FAR].status(pair.now);
    pair.addresses[NEAR] = SocketAddr::from(([10, 9, 9, 9], 4_000));
    pair.run(ONE_WAY + ONE_WAY / 2);
    assert_eq!(pair.ends[FAR].addresses.trust(), AddressTrust::Unvalidated);
    let doubted = pair.ends[FAR].status(pair.now);
    assert_eq!(doubted.packet_size, before.packet_size);
    pair.run(2 * ONE_WAY);
    let after = pair.ends[FAR].status(pair.now);
    assert_eq!(pair.ends[FAR].addresses.trust(), AddressTrust::Validated);
    assert!(after.window_bytes < before.window_bytes / 2, "{after:?}");
    pair.run(Duration::from_secs(10));
    assert!(pair.came[NEAR].iter().copied().eq(0..2_000));
}

/// A path that is blocked for long is probed less and less. When it returns, lost probes do not
/// count as its losses.
#[test]
fn probes_of_a_dead_path_are_rare() {
    let mut pair = carrying(PathSettings::default());
    pair.send(NEAR, 0..300);
    pair.run(Duration::from_secs(3));
    let window = pair.ends[NEAR].status(pair.now).window_bytes;
    pair.drops_datagram = |_, _| true;
    pair.send(NEAR, 300..310);
    pair.run(Duration::from_secs(5));
    assert_ne!(pair.ends[NEAR].condition(), PathCondition::Carrying);
    let (before, datagrams) = (losses(&mut pair.ends[NEAR]), pair.datagrams[NEAR]);
    pair.run(Duration::from_secs(3_600));
    let asked = pair.datagrams[NEAR] - datagrams;
    assert!((200..300).contains(&asked), "{asked} packets in an hour");
    pair.drops_datagram = |_, _| false;
    pair.run(path_probes::ASK_INTERVAL_MAX + Duration::from_secs(1));
    assert_eq!(
        pair.changes.each_ref().map(|changes| changes.last()),
        [Some(&PathChange::Carrying); 2]
    );
    pair.run(Duration::from_secs(3));
    assert!(pair.came[FAR].iter().copied().eq(0..310));
    let after = losses(&mut pair.ends[NEAR]);
    assert!(
        after.0 <= before.0 && after.1 <= before.1,
        "{before:?} {after:?}"
    );
    assert!(pair.ends[NEAR].status(pair.now).window_bytes >= window);
}

/// An end that hears the peer asks at once, however seldom it did before.
#[test]
fn both_ends_recover_when_one_does() {
    let mut pair = carrying(PathSettings::default());
    pair.drops_datagram = |end, _| end == FAR;
    pair.send(NEAR, 0..10);
    // They do not ask at the same times.
    pair.run(Duration::from_secs(7));
    pair.send(FAR, 0..10);
    pair.run(Duration::from_secs(200));
    let carries = |pair: &TransportPair| {
        [NEAR, FAR].map(|end| pair.ends[end].condition() == PathCondition::Carrying)
    };
    assert_eq!(carries(&pair), [false; 2]);
    pair.drops_datagram = |_, _| false;
    let back = pair.now + path_probes::ASK_INTERVAL_MAX;
    while carries(&pair) == [false; 2] {
        pair.run(Duration::from_millis(1));
        assert!(pair.now < back + Duration::from_secs(1));
    }
    pair.run(3 * ONE_WAY);
    assert_eq!(carries(&pair), [true; 2]);
}

/// A path too far ahead of its acknowledgements has not ended: an acknowledgement resumes it.
#[test]
fn path_too_far_ahead_is_suspended_and_resumed() {
    let mut pair = carrying(PathSettings::default());
    pair.send(NEAR, 0..10);
    pair.run(ONE_WAY / 2);
    assert!(pair.ends[NEAR].status(pair.now).in_flight_bytes > 0);
    let sealer = &mut pair.ends[NEAR].sealer;
    sealer.skip_to(sealer.next_number() + UNACKNOWLEDGED_LIMIT - 2);
    pair.send(NEAR, 10..300);
    pair.run(ONE_WAY / 2);
    let reason = SuspendReason::NoAnswer;
    assert_eq!(
        pair.changes[NEAR].last(),
        Some(&PathChange::Suspended(reason))
    );
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.changes[NEAR].last(), Some(&PathChange::Carrying));
    assert!(pair.came[FAR].iter().copied().eq(0..300));
}

/// A side that is only sent to keeps no endless account of its acknowledgements.
#[test]
fn acknowledgement_only_packets_are_forgotten() {
    let mut pair = carrying(capped());
    pair.send(NEAR, 0..4_000);
    let mut most = 0;
    while pair.came[FAR].len() < 4_000 {
        pair.run(Duration::from_millis(20));
        most = most.max(pair.ends[FAR].sent.tracked());
    }
    let sent = pair.ends[FAR].sent.statistics().sent;
    assert!(sent > 1_500 && most <= 700, "{most} of {sent}");
    // Nor when none of them gets through.
    pair.drops_datagram = |end, _| end == FAR;
    for number in 0..3_000 {
        let probe = pair.sealed(NEAR, &PacketFrame::Probe(ProbeFrame));
        pair.deliver(FAR, home(NEAR), probe);
        pair.now += Duration::from_micros(number % 3);
        pair.taken(FAR);
    }
    assert!(pair.ends[FAR].sent.untimed() <= crate::recovery::UNTIMED_LIMIT);
}

/// RFC 8085 §3.5: a quiet path says something before a translator forgets it, and little.
#[test]
fn a_quiet_path_is_kept_open() {
    let mut pair = carrying(PathSettings::default());
    pair.run(Duration::from_secs(10));
    let before = pair.datagrams;
    for _ in 0..40 {
        let heard = pair.datagrams;
        pair.run(path_probes::KEEP_ALIVE + Duration::from_secs(1));
        assert!(pair.datagrams[NEAR] > heard[NEAR] && pair.datagrams[FAR] > heard[FAR]);
    }
    let sent = pair.datagrams.iter().sum::<u64>() - before.iter().sum::<u64>();
    assert!(sent <= 2 * 43 * 2, "{sent} packets in eleven minutes");
    assert_eq!(
        pair.changes,
        [[PathChange::Carrying], [PathChange::Carrying]]
    );
}

/// RFC 9000 §10.2.1: the close is sent, and repeated a few times to a peer that continues.
#[test]
fn closing_a_path_closes_it_at_peer() {
    let mut pair = carrying(PathSettings::default());
    let now = pair.now;
    pair.ends[NEAR].close(now, CloseCode::Finished, "the node stops");
    pair.run(2 * ONE_WAY);
    let here = PathChange::Suspended(SuspendReason::ClosedHere);
    let there = PathChange::Suspended(SuspendReason::ClosedByPeer);
    assert_eq!(
        pair.changes,
        [[PathChange::Carrying, here], [PathChange::Carrying, there]]
    );
    let before = pair.sent;
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.sent, before + 2, "the end alone, said again");
    assert_eq!(
        pair.ends.each_ref().map(DatagramTransport::poll_timeout),
        [None; 2]
    );
}

#[test]
fn lost_close_is_repeated_to_sending_peer() {
    let mut pair = carrying(PathSettings::default());
    // The first two words are lost.
    static LOST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    pair.drops_datagram =
        |end, _| end == NEAR && LOST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2;
    let now = pair.now;
    pair.ends[NEAR].close(now, CloseCode::Finished, "");
    pair.send(FAR, 0..10);
    pair.run(Duration::from_millis(200));
    let there = PathChange::Suspended(SuspendReason::ClosedByPeer);
    assert_eq!(pair.changes[FAR].last(), Some(&there));
    assert!(pair.came[NEAR].is_empty());
}

/// A peer with nothing to say gives no occasion.
#[test]
fn lost_close_is_repeated_to_silent_peer() {
    let mut pair = carrying(PathSettings::default());
    pair.run(Duration::from_secs(1));
    let now = pair.now;
    pair.ends[NEAR].close(now, CloseCode::Finished, "");
    assert_eq!(pair.taken(NEAR).len(), 1, "the first word is lost");
    let before = pair.datagrams[FAR];
    pair.run(Duration::from_millis(200));
    let there = PathChange::Suspended(SuspendReason::ClosedByPeer);
    assert_eq!(pair.changes[FAR].last(), Some(&there));
    assert_eq!(pair.datagrams[FAR], before);
}

/// The allowance of an unvalidated address is used up, so the close cannot be sent at once.
#[test]
fn blocked_close_is_sent_when_peer_is_heard() {
    let mut pair = carrying(PathSettings::default());
    let elsewhere = SocketAddr::from(([10, 0, 9, 9], 4_000));
    let probe = pair.sealed(NEAR, &PacketFrame::Probe(ProbeFrame));
    pair.deliver(FAR, elsewhere, probe);
    while !pair.taken(FAR).is_empty() {}
    let now = pair.now;
    let left = pair.ends[FAR].addresses.allowance();
    pair.ends[FAR].addresses.on_sent(left);
    pair.ends[FAR].close(now, CloseCode::Finished, "");
    assert!(pair.taken(FAR).is_empty(), "nothing may go there");
    for _ in 0..3 {
        let probe = pair.sealed(NEAR, &PacketFrame::Probe(ProbeFrame));
        pair.deliver(FAR, elsewhere, probe);
    }
    let to: Vec<_> = pair.taken(FAR).iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [elsewhere]);
}

/// A peer that never receives the close does not trigger endless repeats.
#[test]
fn close_is_repeated_a_few_times() {
    let mut pair = carrying(PathSettings::default());
    pair.run(Duration::from_secs(1));
    let now = pair.now;
    pair.ends[NEAR].close(now, CloseCode::Finished, "");
    let mut told = pair.taken(NEAR).len();
    for _ in 0..1_000 {
        let probe = pair.sealed(FAR, &PacketFrame::Probe(ProbeFrame));
        pair.deliver(NEAR, home(FAR), probe);
        told += pair.taken(NEAR).len();
    }
    assert_eq!(told, 8);
    let mut forgotten = pair.now;
    while let Some(at) = pair.ends[NEAR].poll_timeout() {
        pair.ends[NEAR].handle_timeout(at);
        assert!(pair.taken(NEAR).is_empty(), "it was told often enough");
        forgotten = at;
    }
    assert!(forgotten < pair.now + Duration::from_secs(1));
    assert!(!pair.ends[NEAR].is_closing());
    assert_eq!(pair.ends[NEAR].poll_timeout(), None);
}

/// A peer that waits for a suspended path must be told of its end.
#[test]
fn suspended_path_still_sends_its_close() {
    let mut pair = carrying(PathSettings::default());
    pair.drops_datagram = |_, _| true;
    pair.send(NEAR, 0..10);
    pair.run(Duration::from_secs(10));
    let reason = SuspendReason::NoAnswer;
    assert_eq!(
        pair.changes[NEAR].last(),
        Some(&PathChange::Suspended(reason))
    );
    let close = PacketFrame::Close(CloseFrame {
        code: CloseCode::Finished,
        reason: String::new(),
    });
    let close = pair.sealed(FAR, &close);
    pair.deliver(NEAR, home(FAR), close);
    let reason = SuspendReason::ClosedByPeer;
    assert_eq!(
        pair.changes[NEAR].last(),
        Some(&PathChange::Suspended(reason))
    );
    assert_eq!(
        pair.ends[NEAR].condition(),
        PathCondition::Suspended(reason)
    );
}
