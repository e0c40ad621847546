//! The entry of `tunnel`'s forward error correction: source and repair symbols.

use std::collections::BTreeMap;

use bytes::Bytes;
use tunnel::fec::{
    FecDecoder, FecEncoder, PAYLOAD_LIMIT, RepairSymbol, RepairSymbolResult, SYMBOLS_KEPT,
    SourceSymbolResult,
};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// A decoder that is given an encoder's symbols in any order, any number of times or not at all
/// recovers them as they were; another that is also given whatever else a peer may make up hands on
/// no more than it was given equations for.
pub(crate) fn decoder(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut encoder = FecEncoder::default();
    let mut honest = FecDecoder::default();
    let mut exposed = FecDecoder::default();
    let mut sources: BTreeMap<u64, Bytes> = BTreeMap::new();
    let mut repairs: Vec<RepairSymbol> = Vec::new();
    while let Some(step) = script.step() {
        match step % 8 {
            // A packet is sent and not yet received.
            0 | 1 => {
                let payload = script.bytes();
                let payload = Bytes::copy_from_slice(&payload[..payload.len().min(PAYLOAD_LIMIT)]);
                sources.insert(encoder.source(&payload), payload);
            }
            2 => {
                let run = encoder.outstanding();
                let start = run.end.saturating_sub(u64::from(script.byte()));
                repairs.extend(encoder.repair(start..run.end));
                if repairs.len() > SYMBOLS_KEPT {
                    repairs.remove(0);
                }
            }
            // One of those that were sent is received, however old it is.
            3 | 4 => {
                let back = u64::from(script.short()) % 600;
                let number = encoder.outstanding().end.saturating_sub(1 + back);
                if let Some(payload) = sources.get(&number) {
                    let arrival = honest.source(number, payload);
                    assert_ne!(arrival, SourceSymbolResult::Malformed);
                    exposed.source(number, payload);
                }
            }
            5 => {
                let at = usize::from(script.short()) % repairs.len().max(1);
                if let Some(repair) = repairs.get(at) {
                    assert_ne!(honest.repair(repair), RepairSymbolResult::Malformed);
                    exposed.repair(repair);
                }
            }
            // Something that nobody sent.
            6 => {
                let first = match script.byte() % 4 {
                    0 => u64::MAX - u64::from(script.short()),
                    1 => u64::from(script.short()) << 32,
                    _ => u64::from(script.short()),
                };
                let repair = RepairSymbol {
                    first,
                    count: script.byte(),
                    key: script.short(),
                    bytes: Bytes::copy_from_slice(script.bytes()),
                };
                exposed.repair(&repair);
            }
            _ => match script.byte() {
                0 => encoder.release_memory(),
                1 => honest.release_memory(),
                2 => encoder.acknowledged(u64::from(script.short())..u64::from(script.short())),
                _ => {
                    exposed.source(u64::from(script.short()), script.bytes());
                }
            },
        }
        while let Some((number, payload)) = honest.poll_recovered() {
            assert_eq!(Some(&payload), sources.get(&number), "symbol {number}");
        }
        let mut recovered = 0;
        while let Some((_, payload)) = exposed.poll_recovered() {
            assert!(payload.len() <= PAYLOAD_LIMIT);
            recovered += 1;
        }
        assert!(
            recovered <= SYMBOLS_KEPT,
            "one step recovers a window at most"
        );
        let counts = exposed.statistics();
        assert!(
            counts.recovered <= counts.used,
            "one equation gives one symbol"
        );
    }
}

/// Good inputs for [`decoder`].
pub(crate) fn decoder_seeds() -> Vec<CorpusSeed> {
    let source = |payload: &[u8]| [vec![0], sized(payload)].concat();
    let received = |back: u16| [vec![3], back.to_be_bytes().to_vec()].concat();
    let repaired = |at: u16| [vec![5], at.to_be_bytes().to_vec()].concat();
    let made_up = |first: u16, count: u8, payload: &[u8]| {
        let first = first.to_be_bytes();
        let head = vec![6, 2, first[0], first[1], count, 0, 1];
        [head, sized(payload)].concat()
    };
    let three = [source(b"one"), source(b"number two"), source(&[3; 300])].concat();
    let one_lost = [received(2), received(0), vec![2, 3], repaired(0)].concat();
    let all_lost = [
        vec![2, 3, 2, 3, 2, 3],
        repaired(0),
        repaired(2),
        repaired(1),
    ]
    .concat();
    let late = [vec![2, 3, 2, 3], repaired(0), repaired(1), received(1)].concat();
    let nonsense = [
        made_up(1, 3, &[0; 40]),
        made_up(0, 1, &[255; 9]),
        received(1),
    ]
    .concat();
    let long = (0..200_u8)
        .map(|at| source(&[at; 5]))
        .collect::<Vec<_>>()
        .concat();
    let with = |rest: Vec<u8>| [three.clone(), rest].concat();
    vec![
        seed("one-lost", with(one_lost)),
        seed("all-lost", with(all_lost)),
        seed("late", with(late)),
        seed("made-up", with(nonsense)),
        seed("released", with(vec![7, 1, 2, 3, 5, 0, 0, 7, 0, 2, 3])),
        seed(
            "window",
            [
                long,
                vec![2, 255, 2, 255, 3, 0, 9],
                repaired(0),
                repaired(1),
            ]
            .concat(),
        ),
    ]
}
