//! Fuzz entry of `tunnel::transport`: two ends of a datagram path, an attacker on the path, and a
//! peer that seals any payload.
//!
//! The script delivers, drops, repeats and alters datagrams, forwards them from its own addresses,
//! and lets time pass. It may also seal any payload with an end's keys. No end may panic, loop
//! forever, or send an unresponsive address more than three times the bytes that came from there.
//! If only the ends have sealed packets, neither reports a violation.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tunnel::packet::{
    ChallengeSeed, CipherSuite, CloseCode, ConnectionId, ConnectionIds, KeyContext, KeyLimits,
    PacketSealer, PathSecret, TlsRole,
};
use tunnel::transport::{
    DatagramTransport, EcnMarking, FilledPacket, PathKeys, PathSettings, RepairProtection,
};
use tunnel::wire::{DataFrame, SessionFrame};
use vocab::{FlowId, NodeId, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed};

/// Datagrams under way that the script can choose from.
const UNDER_WAY: usize = 64;

/// Calls after one step past which an end is taken to be in a circle.
const MOST_CALLS: usize = 2_000;

/// Bytes that may go to an address that answers nothing, for each that came from there.
const AMPLIFICATION: u64 = 3;

struct TransportEnd {
    transport: DatagramTransport<u64>,
    /// Makes packets of this end that it never made.
    forger: PacketSealer,
    home: SocketAddr,
    wanted: u64,
    /// Bytes that came from the address that answers nothing, and that went there.
    nobody: (u64, u64),
}

struct TransportPath {
    now: Time,
    ends: [TransportEnd; 2],
    /// Destination end and datagram of each packet in flight.
    under_way: Vec<(usize, Bytes)>,
    forged: bool,
}

/// Runs a script against two ends.
pub(crate) fn transport(bytes: &[u8]) {
    run(bytes);
}

fn run(bytes: &[u8]) -> TransportPath {
    let mut script = ByteScript::new(bytes);
    let mut path = TransportPath::new();
    path.settle();
    while let Some(step) = script.step() {
        path.take_step(step & 0x0f, usize::from(step >> 7), &mut script);
        path.settle();
    }
    path
}

fn home(side: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + side], 4_000))
}

/// Address at which nothing is ever received.
fn unreachable_address() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], 9))
}

fn keys(side: u8) -> (PacketSealer, PathKeys) {
    let path = || {
        let context = KeyContext {
            version: 1,
            suite: CipherSuite::Aes256Gcm,
            dialler: NodeId([1; 32]),
            listener: NodeId([2; 32]),
            dialler_nonce: [3; 16],
            listener_nonce: [4; 16],
        };
        let role = [TlsRole::Dialler, TlsRole::Listener][usize::from(side)];
        let Ok(mut secret) = PathSecret::export(role, context, |room, _, _| {
            room.fill(5);
            Ok::<(), Infallible>(())
        });
        let ids = ConnectionIds {
            ours: ConnectionId([side; 8]),
            theirs: ConnectionId([1 - side; 8]),
        };
        secret
            .path(Time::ZERO, 0, ids, KeyLimits::of(CipherSuite::Aes256Gcm))
            .expect("the first path of a secret")
    };
    let (sealer, opener) = path();
    let challenges = ChallengeSeed::new(|room| room.fill(side));
    let keys = PathKeys {
        sealer,
        opener,
        challenges,
    };
    (path().0, keys)
}

impl TransportPath {
    fn new() -> Self {
        let now = Time::ZERO;
        let end = |side: u8| {
            let (forger, keys) = keys(side);
            let peer = (side == 0).then(|| home(1));
            TransportEnd {
                transport: DatagramTransport::new(now, keys, peer, PathSettings::default()),
                forger,
                home: home(side),
                wanted: 0,
                nobody: (0, 0),
            }
        };
        Self {
            now,
            ends: [end(0), end(1)],
            under_way: Vec::new(),
            forged: false,
        }
    }

    fn take_step(&mut self, step: u8, side: usize, script: &mut ByteScript<'_>) {
        match step {
            0 => self.ends[side].wanted += u64::from(script.byte()),
            1 | 2 => self.wait(Duration::from_millis(u64::from(script.short()))),
            3 => self.wait(Duration::from_secs(u64::from(script.byte()))),
            // Everything in its turn, to where it was sent.
            4 | 5 => {
                for (to, datagram) in std::mem::take(&mut self.under_way) {
                    let from = self.ends[1 - to].home;
                    self.deliver(to, from, &datagram);
                }
            }
            6 => drop(self.pick(script.byte())),
            7 => {
                if let Some((to, datagram)) = self.look(script.byte()) {
                    let from = self.ends[1 - to].home;
                    self.deliver(to, from, &datagram);
                }
            }
            // Sent on by another host, or another port, or by one that nobody answers at.
            8 => {
                let host = script.byte() % 4;
                if let Some((to, datagram)) = self.look(script.byte()) {
                    let from = SocketAddr::from(([10, 0, host, 77], 5_000));
                    self.deliver(to, from, &datagram);
                }
            }
            9 => {
                if let Some((to, datagram)) = self.look(script.byte()) {
                    self.deliver(to, unreachable_address(), &datagram);
                }
            }
            10 => {
                if let Some((to, datagram)) = self.pick(script.byte()) {
                    let mut bent = datagram.to_vec();
                    let at = usize::from(script.byte()) % bent.len();
                    bent[at] ^= script.byte();
                    let from = self.ends[1 - to].home;
                    self.deliver(to, from, &bent);
                }
            }
            11 => {
                let port = 1 + u16::from(script.byte());
                self.ends[side].home.set_port(port);
            }
            12 => {
                let now = self.now;
                self.ends[side]
                    .transport
                    .close(now, CloseCode::Finished, "");
            }
            // Stands in for datagrams of strangers.
            13 => {
                let from = self.ends[1 - side].home;
                self.deliver(side, from, script.bytes());
            }
            _ => self.forge(side, script),
        }
    }

    /// Delivers a forged packet with any payload, from an end's address or from an unreachable one.
    fn forge(&mut self, side: usize, script: &mut ByteScript<'_>) {
        let from = if script.byte().is_multiple_of(2) {
            self.ends[side].home
        } else {
            unreachable_address()
        };
        // Numbers of its own would be those of the end's packets; it makes a few in vain.
        let numbers = script.byte();
        let payload = script.bytes();
        if payload.is_empty() {
            return;
        }
        self.forged = true;
        for number in 0..=numbers {
            let mut packet = BytesMut::new();
            let start = PacketSealer::begin(&mut packet);
            packet.extend_from_slice(payload);
            let sealed = self.ends[side].forger.seal(self.now, &mut packet, start);
            if sealed.is_ok() && number == numbers {
                self.deliver(1 - side, from, &packet);
            }
        }
    }

    fn pick(&mut self, which: u8) -> Option<(usize, Bytes)> {
        let at = usize::from(which).checked_rem(self.under_way.len())?;
        Some(self.under_way.remove(at))
    }

    fn look(&mut self, which: u8) -> Option<(usize, Bytes)> {
        let at = usize::from(which).checked_rem(self.under_way.len())?;
        self.under_way.get(at).cloned()
    }

    fn deliver(&mut self, to: usize, from: SocketAddr, datagram: &[u8]) {
        let end = &mut self.ends[to];
        if from == unreachable_address() {
            // What is not opened earns nothing, which the bound below allows for.
            end.nobody.0 += datagram.len() as u64;
        }
        let outcome =
            end.transport
                .handle(self.now, from, EcnMarking::NotEct, BytesMut::from(datagram));
        if let Err(error) = outcome {
            assert!(self.forged, "an honest peer was refused: {error}");
            end.transport.close(self.now, CloseCode::Misbehaved, "");
        }
    }

    fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        for _ in 0..MOST_CALLS {
            let next = self
                .ends
                .iter()
                .filter_map(|end| end.transport.poll_timeout())
                .min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            self.handle_timeouts();
            self.settle();
        }
        self.now = end;
        self.handle_timeouts();
    }

    fn handle_timeouts(&mut self) {
        for end in &mut self.ends {
            end.transport.handle_timeout(self.now);
        }
    }

    /// Takes all that the ends have to say, as a session does after each input.
    fn settle(&mut self) {
        let mut out = BytesMut::new();
        for side in [0, 1] {
            let end = &mut self.ends[side];
            let mut calls = 0;
            loop {
                calls += 1;
                assert!(calls < MOST_CALLS, "packets without an end");
                let wanted = &mut end.wanted;
                let transmit =
                    end.transport
                        .poll_transmit(self.now, 8, &mut out, |room, payload| {
                            let length = room.checked_sub(40).filter(|length| *length > 0)?;
                            *wanted = wanted.checked_sub(1)?;
                            let bytes = vec![7; length.min(1_000)].into();
                            let (flow, offset) = (FlowId(0), 0);
                            SessionFrame::Data(DataFrame {
                                flow,
                                offset,
                                bytes,
                            })
                            .emit(payload);
                            let (content, worth) = (1, RepairProtection::Repair);
                            Some(FilledPacket {
                                content,
                                protection: worth,
                            })
                        });
                let Some(transmit) = transmit else {
                    break;
                };
                assert!(transmit.bytes > 0 && transmit.bytes == out.len());
                if transmit.to == unreachable_address() {
                    end.nobody.1 += transmit.bytes as u64;
                    let (came, went) = end.nobody;
                    assert!(went <= AMPLIFICATION * came, "{went} bytes for {came}");
                }
                for datagram in out.chunks(transmit.segment) {
                    if transmit.to != unreachable_address() && self.under_way.len() < UNDER_WAY {
                        let datagram = Bytes::copy_from_slice(datagram);
                        self.under_way.push((1 - side, datagram));
                    }
                }
                out.clear();
            }
            while end.transport.poll_frame().is_some() {}
            while end.transport.poll_fate().is_some() {}
            while end.transport.poll_change().is_some() {}
        }
    }
}

/// Good inputs for [`transport`].
pub(crate) fn transport_seeds() -> Vec<CorpusSeed> {
    const FAR: u8 = 0x80;
    // A datagram that is made by hand has a number above those of the packets before it.
    let meet: &[u8] = &[1, 0, 1, 4, 1, 0, 30, 4, 1, 0, 30, 4, 1, 0, 30, 4];
    let talk: &[u8] = &[0, 20, FAR, 20, 1, 0, 20, 4, 1, 0, 20, 4];
    let challenge: &[u8] = &[14, 0, 200, 0, 10, 9, 0x45, 1, 2, 3, 4, 5, 6, 7, 8];
    let close: &[u8] = &[14, 0, 200, 0, 4, 3, 0x47, 0, 0];
    let with = |more: &[u8]| [meet, talk, more, talk].concat();
    vec![
        seed("talk", with(&[])),
        seed("moved", with(&[0, 9, 11, 40, 1, 0, 9, 4, 1, 0, 9, 4])),
        seed("led-away", with(&[0, 9, 1, 0, 9, 8, 1, 0, 9, 0, 1, 4])),
        seed("outage", with(&[0, 9, 3, 60, 6, 0, 3, 200, 4, 4])),
        seed("closed", with(&[12, 4, 1, 0, 30, 4])),
        seed("closed-while-sent-to", with(&[FAR, 40, 1, 0, 1, 12, 4, 4])),
        seed("challenged", with(challenge)),
        seed("closed-by-peer", with(close)),
        seed("bent", with(&[0, 9, 1, 0, 9, 10, 0, 20, 4, 4])),
    ]
}

#[cfg(test)]
mod tests {
    use tunnel::transport::{PathCondition, SuspendReason};

    use super::*;

    fn conditions(name: &str) -> ([PathCondition; 2], bool) {
        let seeds = transport_seeds();
        let found = seeds.into_iter().find(|(known, _)| *known == name);
        let (_, bytes) = found.expect("there is one of that name");
        let path = run(&bytes);
        let conditions = path.ends.each_ref().map(|end| end.transport.condition());
        (conditions, path.forged)
    }

    #[test]
    fn an_honest_script_has_both_ends_carry() {
        assert_eq!(conditions("talk"), ([PathCondition::Carrying; 2], false));
    }

    #[test]
    fn forged_packet_with_valid_keys_is_accepted() {
        let closed = PathCondition::Suspended(SuspendReason::ClosedByPeer);
        let ([_, far], forged) = conditions("closed-by-peer");
        assert_eq!((far, forged), (closed, true));
    }
}
