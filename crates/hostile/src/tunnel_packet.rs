//! Entries of `tunnel::packet`: frames as a packet holds them, and datagrams for a path that honest
//! packets travel too.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use tunnel::fec::RepairSymbol;
use tunnel::packet::{
    CipherSuite, CloseCode, CloseFrame, ConnectionId, ConnectionIds, EcnCounts, HEADER_LENGTH,
    KeyContext, KeyLimits, OVERHEAD, PacketAck, PacketFrame, PacketOpener, PacketSealer,
    PaddingFrame, PathChallenge, PathResponse, PathSecret, ProbeFrame, SealError, SourceSymbol,
    TlsRole, append, frames,
};
use tunnel::wire::{DataFrame, SessionFrame};
use vocab::{FlowId, NodeId, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// A payload as the seal, or a repair, gave it: each frame read, written and read again equal.
pub(crate) fn payload(bytes: &[u8]) {
    let mut read = Vec::new();
    for frame in frames(Bytes::copy_from_slice(bytes)) {
        let Ok(frame) = frame else {
            // The frames before the fault are what they are.
            break;
        };
        read.push(frame);
    }
    assert!(read.len() <= bytes.len(), "a frame took no bytes");
    let mut written = BytesMut::new();
    for frame in &read {
        append(frame, &mut written);
    }
    let again: Result<Vec<_>, _> = frames(written.freeze()).collect();
    assert_eq!(again.expect("what is written can be read"), read);
}

/// Good inputs for [`payload`]: one of each kind, and all of them behind one another.
pub(crate) fn payload_seeds() -> Vec<CorpusSeed> {
    let acknowledgement = |recovered| {
        PacketFrame::Acknowledgement(PacketAck {
            delay_us: 25_000,
            ranges: vec![(70_000, 70_100), (69_000, 69_990), (5, 5)],
            ecn: Some(EcnCounts {
                ect0: 1_000,
                ect1: 0,
                ce: 3,
            }),
            recovered,
        })
    };
    let list = [
        ("padding", PacketFrame::Padding(PaddingFrame { bytes: 80 })),
        ("probe", PacketFrame::Probe(ProbeFrame)),
        ("acknowledgement", acknowledgement(Vec::new())),
        (
            "acknowledgement-recovered",
            acknowledgement(vec![(900, 901), (890, 890)]),
        ),
        (
            "repair",
            PacketFrame::Repair(RepairSymbol {
                first: 880,
                count: 20,
                key: 0x1234,
                bytes: Bytes::from_static(b"a repair symbol"),
            }),
        ),
        (
            "path-challenge",
            PacketFrame::PathChallenge(PathChallenge { value: 1 << 60 }),
        ),
        (
            "path-response",
            PacketFrame::PathResponse(PathResponse { value: 1 << 60 }),
        ),
        (
            "close",
            PacketFrame::Close(CloseFrame {
                code: CloseCode::Finished,
                reason: "the node stops".to_owned(),
            }),
        ),
        (
            "source-and-data",
            PacketFrame::Session(SessionFrame::Data(DataFrame {
                flow: FlowId(6),
                offset: 65_536,
                bytes: Bytes::from_static(b"some bytes of a flow"),
            })),
        ),
    ];
    let mut all = BytesMut::new();
    let mut seeds: Vec<CorpusSeed> = list
        .into_iter()
        .map(|(name, frame)| {
            let mut one = BytesMut::new();
            if let PacketFrame::Session(_) = frame {
                append(&PacketFrame::Source(SourceSymbol { symbol: 901 }), &mut one);
            }
            append(&frame, &mut one);
            all.extend_from_slice(&one);
            seed(name, one.to_vec())
        })
        .collect();
    seeds.push(seed("all", all.to_vec()));
    seeds
}

/// A path with a few packets for each key, so that a script gets through updates.
fn path(role: TlsRole) -> (PacketSealer, PacketOpener) {
    let suite = CipherSuite::Aes256Gcm;
    let context = KeyContext {
        version: 1,
        suite,
        dialler: NodeId([1; 32]),
        listener: NodeId([2; 32]),
        dialler_nonce: [3; 16],
        listener_nonce: [4; 16],
    };
    let Ok(mut secret) = PathSecret::export(role, context, |room, _, _| {
        room.fill(5);
        Ok::<(), Infallible>(())
    });
    let limits = KeyLimits {
        packets_per_key: 3,
        ..KeyLimits::of(suite)
    };
    let connection_ids = ConnectionIds {
        ours: ConnectionId([7; 8]),
        theirs: ConnectionId([7; 8]),
    };
    secret
        .path(Time::ZERO, 0, connection_ids, limits)
        .expect("the first path of a secret")
}

/// Opener entry: an honest sender and an attacker on the path. Packets are delivered in any order,
/// altered, truncated, repeated and invented. Every opened packet was sealed, is opened once, and
/// has its original content.
pub(crate) fn opener(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let (mut sealer, _) = path(TlsRole::Dialler);
    let (_, mut opener) = path(TlsRole::Listener);
    sealer.set_probe_timeout(std::time::Duration::ZERO);
    let mut sealed: Vec<Vec<u8>> = Vec::new();
    let mut opened: Vec<bool> = Vec::new();
    let mut now = Time::ZERO;
    while let Some(step) = script.step() {
        let which = usize::from(script.byte());
        let datagram = match step % 6 {
            0 => {
                seal(now, &mut sealer, &mut sealed);
                opened.resize(sealed.len(), false);
                continue;
            }
            1 => {
                now += std::time::Duration::from_millis(40 * which as u64);
                opener.handle_timeout(now);
                continue;
            }
            2 => script.bytes().to_vec(),
            // The name of the path, and then anything.
            3 => [&[0x40 | (which as u8 & 0x1f)], &[7; 8][..], script.bytes()].concat(),
            _ if sealed.is_empty() => continue,
            4 => sealed[which % sealed.len()].clone(),
            _ => {
                let mut bent = sealed[which % sealed.len()].clone();
                let at = usize::from(script.byte()) % bent.len();
                bent[at] ^= script.byte();
                bent.truncate(bent.len() - usize::from(script.byte() % 8));
                bent
            }
        };
        let mut room = datagram.clone();
        let before = opener.statistics();
        let Ok(packet) = opener.open(now, &mut room) else {
            let after = opener.statistics();
            assert_eq!(after.opened, before.opened);
            assert_eq!(after.key_updates, before.key_updates);
            continue;
        };
        let number = packet.number();
        let original = usize::try_from(number)
            .ok()
            .and_then(|index| sealed.get(index))
            .expect("what is opened was sealed");
        assert_eq!(*original, datagram, "what is opened is what was sealed");
        assert!(!opened[number as usize], "a packet is taken once");
        opened[number as usize] = true;
        assert_eq!(room[packet.payload()], number.to_be_bytes());
        sealer.acknowledged(now, number);
    }
}

fn seal(now: Time, sealer: &mut PacketSealer, sealed: &mut Vec<Vec<u8>>) {
    let mut packet = BytesMut::new();
    let start = PacketSealer::begin(&mut packet);
    packet.extend_from_slice(&sealer.next_number().to_be_bytes());
    match sealer.seal(now, &mut packet, start) {
        Ok(number) => {
            assert_eq!(number, sealed.len() as u64, "numbers count up by one");
            assert_eq!(packet.len(), 8 + OVERHEAD);
            sealed.push(packet.to_vec());
        }
        Err(SealError::KeyExhausted) => assert_eq!(packet.len(), 8 + HEADER_LENGTH),
        Err(SealError::TooFarAhead) => panic!("a script is shorter than that"),
    }
}

/// Good inputs for [`opener`].
pub(crate) fn opener_seeds() -> Vec<CorpusSeed> {
    let in_order: Vec<u8> = (0..12).flat_map(|number| [0, 0, 4, number]).collect();
    let mut out_of_order: Vec<u8> = [0, 0].repeat(6);
    out_of_order.extend([5, 2, 4, 0, 3, 1, 3].iter().flat_map(|number| [4, *number]));
    let mut bent: Vec<u8> = [0, 0].repeat(3);
    bent.extend((0..30).flat_map(|at| [5, at % 3, at, 1 << (at % 8), 0]));
    bent.extend([4, 0, 4, 1, 4, 2]);
    let invented = [&[2, 0][..], &sized(&[0x40; 60]), &[3, 0], &sized(&[9; 40])].concat();
    let late = [
        &[0, 0].repeat(3)[..],
        &[4, 0, 0, 0, 4, 3, 4, 1, 1, 100, 4, 2],
    ]
    .concat();
    vec![
        seed("in-order", in_order),
        seed("out-of-order", out_of_order),
        seed("bent", bent),
        seed("invented", invented),
        seed("late", late),
    ]
}
