//! Address tests: packets follow the peer, within the limit for an unvalidated address.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// A packet that is full enough for a challenge.
const PACKET: u64 = 1_200;

fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([198, 18, 0, host], port))
}

fn seconds(seconds: u64) -> Time {
    Time::from_epoch(Duration::from_secs(seconds))
}

fn seed(byte: u8) -> ChallengeSeed {
    ChallengeSeed::new(|room| room.fill(byte))
}

/// A peer whose packets are really sealed and opened, since nothing else is believed.
struct SealingPeer {
    dialler: PathEnd,
    listener: PathEnd,
}

impl SealingPeer {
    fn new() -> Self {
        let (dialler, listener) = ends();
        Self { dialler, listener }
    }

    /// The proof of `count` packets in the order they were sent.
    fn packets(&mut self, count: usize) -> Vec<OpenedPacket> {
        (0..count)
            .map(|_| {
                let (_, mut datagram) = self.dialler.seal(Time::ZERO, b"data");
                self.listener
                    .opener
                    .open(Time::ZERO, &mut datagram)
                    .unwrap()
            })
            .collect()
    }

    fn packet(&mut self) -> OpenedPacket {
        self.packets(1).remove(0)
    }
}

/// A path that is validated at `at`, with a peer to send packets.
fn validated(at: SocketAddr) -> (PathAddresses, SealingPeer) {
    let known = Some((at, AddressTrust::Validated));
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), known);
    let packet = peer.packet();
    assert_eq!(
        addresses.on_packet(Time::ZERO, at, &packet, PACKET),
        AddressChange::Same
    );
    assert_eq!(addresses.poll_challenge(Time::ZERO, PACKET), None);
    assert_eq!(addresses.poll_timeout(PACKET), Time::NEVER);
    (addresses, peer)
}

#[test]
fn configured_address_is_usable_at_once() {
    let (addresses, _) = validated(address(1, 4_000));
    assert_eq!(addresses.trust(), AddressTrust::Validated);
    assert!(addresses.may_send(u64::MAX));
}

#[test]
fn nothing_is_sent_before_a_packet_is_opened() {
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    assert_eq!(addresses.current(), None);
    assert!(!addresses.may_send(0));
    assert_eq!(addresses.poll_challenge(Time::ZERO, PACKET), None);
    assert_eq!(addresses.poll_timeout(PACKET), Time::NEVER);
    assert_eq!(addresses.handle_timeout(seconds(1_000)), None);
}

/// RFC 9000 §8.1: at most three times what came from an address that is not validated.
#[test]
fn an_unvalidated_address_gets_three_times_its_bytes() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    let from = address(1, 4_000);
    addresses.on_packet(Time::ZERO, from, &peer.packet(), 100);
    assert_eq!(addresses.current(), Some(from));
    assert_eq!(addresses.trust(), AddressTrust::Unvalidated);
    assert!(addresses.may_send(300));
    assert!(!addresses.may_send(301));
    addresses.on_sent(250);
    assert!(addresses.may_send(50));
    assert!(!addresses.may_send(51));
    addresses.on_packet(Time::ZERO, from, &peer.packet(), 100);
    assert!(addresses.may_send(350));
    assert!(!addresses.may_send(351));
}

#[test]
fn the_right_response_validates_and_no_other() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    let from = address(1, 4_000);
    addresses.on_packet(Time::ZERO, from, &peer.packet(), PACKET);
    let (to, PathChallenge { value }) = addresses.poll_challenge(Time::ZERO, PACKET).unwrap();
    assert_eq!(to, from);
    for wrong in [0, value ^ 1, !value] {
        let response = PathResponse { value: wrong };
        assert_eq!(
            addresses.on_challenge_response(response),
            ChallengeResult::Unknown
        );
    }
    assert_eq!(addresses.trust(), AddressTrust::Unvalidated);
    let response = PathResponse { value };
    assert_eq!(
        addresses.on_challenge_response(response),
        ChallengeResult::SameHost
    );
    assert_eq!(addresses.trust(), AddressTrust::Validated);
    assert_eq!(
        addresses.on_challenge_response(response),
        ChallengeResult::Unknown
    );
    assert_eq!(addresses.handle_timeout(seconds(1_000)), None);
}

#[test]
fn lost_challenge_is_repeated_with_new_data() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    addresses.set_probe_timeout(Duration::from_secs(2));
    let from = address(1, 4_000);
    addresses.on_packet(Time::ZERO, from, &peer.packet(), 10 * PACKET);
    let mut values = Vec::new();
    for due in [0, 2, 4] {
        assert_eq!(addresses.poll_timeout(PACKET), seconds(due));
        if due > 0 {
            assert_eq!(addresses.poll_challenge(seconds(due - 1), PACKET), None);
        }
        let (_, challenge) = addresses.poll_challenge(seconds(due), PACKET).unwrap();
        assert!(!values.contains(&challenge.value));
        values.push(challenge.value);
    }
    assert_eq!(addresses.poll_timeout(PACKET), seconds(6));
    assert_eq!(addresses.poll_challenge(seconds(7), PACKET), None);
    let response = PathResponse { value: values[0] };
    assert_eq!(
        addresses.on_challenge_response(response),
        ChallengeResult::SameHost
    );
}

/// RFC 9000 §8.2.4: the new address may be farther away than the known path.
#[test]
fn new_address_has_three_seconds_to_answer() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    addresses.set_probe_timeout(Duration::from_millis(10));
    addresses.on_packet(Time::ZERO, address(1, 4_000), &peer.packet(), 10 * PACKET);
    assert!(addresses.poll_challenge(Time::ZERO, PACKET).is_some());
    assert_eq!(addresses.poll_timeout(PACKET), seconds(1));
    assert_eq!(addresses.handle_timeout(seconds(2)), None);
    assert_eq!(
        addresses.handle_timeout(seconds(3)),
        Some(ValidationFailure::Lost)
    );
}

#[test]
fn a_challenge_waits_until_it_may_be_sent() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    let from = address(1, 4_000);
    addresses.on_packet(Time::ZERO, from, &peer.packet(), 100);
    assert_eq!(addresses.poll_challenge(Time::ZERO, PACKET), None);
    assert_eq!(addresses.poll_timeout(PACKET), seconds(3));
    addresses.on_packet(Time::ZERO, from, &peer.packet(), 300);
    assert!(addresses.poll_challenge(Time::ZERO, PACKET).is_some());
}

/// RFC 9000 §9.3: packets follow the newest one, and a late one from the old address moves nothing.
#[test]
fn a_path_follows_its_newest_packet() {
    let (old, new) = (address(1, 4_000), address(1, 4_001));
    let (mut addresses, mut peer) = validated(old);
    let [late, newer, newest] = peer.packets(3).try_into().unwrap();
    assert_eq!(
        addresses.on_packet(Time::ZERO, new, &newer, PACKET),
        AddressChange::Moved
    );
    assert_eq!(addresses.current(), Some(new));
    assert_eq!(
        addresses.on_packet(Time::ZERO, old, &late, PACKET),
        AddressChange::Same
    );
    assert_eq!(addresses.current(), Some(new));
    assert_eq!(addresses.trust(), AddressTrust::Unvalidated);
    let elsewhere = address(2, 4_001);
    assert_eq!(
        addresses.on_packet(Time::ZERO, elsewhere, &newest, PACKET),
        AddressChange::Moved
    );
    assert_eq!(addresses.current(), Some(elsewhere));
}

#[test]
fn nat_port_change_is_validated_again() {
    let (old, new) = (address(1, 4_000), address(1, 4_001));
    let (mut addresses, mut peer) = validated(old);
    addresses.on_packet(Time::ZERO, new, &peer.packet(), PACKET);
    // The old address is asked too, and is silent.
    let (first, _) = addresses.poll_challenge(Time::ZERO, PACKET).unwrap();
    let (second, challenge) = addresses.poll_challenge(Time::ZERO, PACKET).unwrap();
    assert_eq!((first, second), (old, new));
    assert_eq!(addresses.poll_challenge(Time::ZERO, PACKET), None);
    let response = PathResponse {
        value: challenge.value,
    };
    assert_eq!(
        addresses.on_challenge_response(response),
        ChallengeResult::SameHost
    );
    assert_eq!(addresses.current(), Some(new));
    assert_eq!(addresses.poll_timeout(PACKET), Time::NEVER);
}

/// RFC 9000 §9.3.2: an address that does not answer is given up for the last that did.
#[test]
fn unresponsive_address_is_abandoned() {
    let (old, new) = (address(1, 4_000), address(2, 4_000));
    let (mut addresses, mut peer) = validated(old);
    addresses.on_packet(Time::ZERO, new, &peer.packet(), PACKET);
    assert_eq!(addresses.handle_timeout(seconds(2)), None);
    assert_eq!(
        addresses.handle_timeout(seconds(3)),
        Some(ValidationFailure::Reverted)
    );
    assert_eq!(addresses.current(), Some(old));
    assert_eq!(addresses.trust(), AddressTrust::Validated);
    assert_eq!(addresses.handle_timeout(seconds(4)), None);
}

#[test]
fn path_without_fallback_waits_for_the_peer() {
    let mut peer = SealingPeer::new();
    let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
    addresses.on_packet(Time::ZERO, address(1, 4_000), &peer.packet(), PACKET);
    assert_eq!(
        addresses.handle_timeout(seconds(3)),
        Some(ValidationFailure::Lost)
    );
    assert_eq!(addresses.current(), None);
    assert!(!addresses.may_send(1));
    addresses.on_packet(seconds(9), address(1, 4_000), &peer.packet(), PACKET);
    assert!(addresses.poll_challenge(seconds(9), PACKET).is_some());
}

/// RFC 9000 §9.3.3: a third party forwards the peer's packets from its own address, faster than
/// they arrive themselves. The peer answers the challenge at its real address.
#[test]
fn diverted_path_returns() {
    let (real, attacker) = (address(1, 4_000), address(66, 4_000));
    let (mut addresses, mut peer) = validated(real);
    assert_eq!(
        addresses.on_packet(Time::ZERO, attacker, &peer.packet(), PACKET),
        AddressChange::Moved
    );
    let (asked, _) = addresses.poll_challenge(Time::ZERO, PACKET).unwrap();
    assert_eq!(asked, real);
    assert!(!addresses.may_send(3 * PACKET + 1));
    let response = peer.packet();
    assert_eq!(
        addresses.on_packet(Time::ZERO, real, &response, PACKET),
        AddressChange::Moved
    );
    assert_eq!(addresses.current(), Some(real));
    assert_eq!(addresses.trust(), AddressTrust::Validated);
    assert_eq!(addresses.poll_timeout(PACKET), Time::NEVER);
}

#[test]
fn nobody_without_the_seed_knows_a_challenge() {
    let challenge = |byte| {
        let mut peer = SealingPeer::new();
        let mut addresses = PathAddresses::new(Time::ZERO, seed(byte), None);
        addresses.on_packet(Time::ZERO, address(1, 4_000), &peer.packet(), PACKET);
        addresses.poll_challenge(Time::ZERO, PACKET).unwrap().1
    };
    assert_ne!(challenge(1), challenge(2));
}

/// Step of the property test below.
#[derive(Clone, Copy, Debug)]
enum AddressStep {
    Packet { host: u8, bytes: u64 },
    Send { bytes: u64 },
    Challenge,
    Wait { milliseconds: u64 },
}

fn step() -> impl Strategy<Value = AddressStep> {
    prop_oneof![
        (1..4_u8, 1..1_500_u64).prop_map(|(host, bytes)| AddressStep::Packet { host, bytes }),
        (1..1_500_u64).prop_map(|bytes| AddressStep::Send { bytes }),
        Just(AddressStep::Challenge),
        (0..1_500_u64).prop_map(|milliseconds| AddressStep::Wait { milliseconds }),
    ]
}

proptest! {
    /// No address that has not answered gets more than three times its own bytes since packets
    /// last began to go there; but for the one packet that asks the old address.
    #[test]
    fn node_cannot_amplify_traffic(steps in prop::collection::vec(step(), 1..120)) {
        let mut peer = SealingPeer::new();
        let mut addresses = PathAddresses::new(Time::ZERO, seed(1), None);
        let mut now = Time::ZERO;
        // What the address that packets go to has sent and been sent.
        let (mut to, mut received, mut sent) = (None, 0, 0);
        for step in steps {
            match step {
                AddressStep::Packet { host, bytes } => {
                    addresses.on_packet(now, address(host, 1), &peer.packet(), bytes);
                    if addresses.current() != to {
                        (to, received, sent) = (addresses.current(), 0, 0);
                    }
                    received += bytes;
                }
                AddressStep::Send { bytes } => {
                    if addresses.may_send(bytes) {
                        addresses.on_sent(bytes);
                        sent += bytes;
                    }
                }
                AddressStep::Challenge => {
                    let challenge = addresses.poll_challenge(now, 400);
                    if challenge.is_some_and(|(at, _)| Some(at) == to) {
                        addresses.on_sent(400);
                        sent += 400;
                    }
                }
                AddressStep::Wait { milliseconds } => {
                    now += Duration::from_millis(milliseconds);
                    if addresses.handle_timeout(now).is_some() {
                        (to, received, sent) = (addresses.current(), 0, 0);
                    }
                }
            }
            prop_assert_eq!(addresses.trust(), AddressTrust::Unvalidated);
            prop_assert!(sent <= 3 * received);
        }
    }
}
