//! Encoder and decoder together: against a slow solver, and against whatever a peer may send.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use simd::gf256::{Gf256Kernel, inverse, multiply_bitwise};
use vocab::SeededRandom;

use super::coefficients::{EPOCH, coefficient};
use super::equations::EQUATION_LIMIT;
use super::*;

/// A payload that is the same for the same number: between none and `most` bytes.
fn payload(number: u64, most: usize) -> Vec<u8> {
    let mut random = SeededRandom::for_stream(77, number);
    let mut bytes = vec![0; random.below(most as u64 + 1) as usize];
    random.fill(&mut bytes);
    bytes
}

fn drain(decoder: &mut FecDecoder) -> Vec<(u64, Bytes)> {
    std::iter::from_fn(|| decoder.poll_recovered()).collect()
}

/// Solves symbols and equations by elimination over dense rows, one byte at a time.
fn solve(
    received: &BTreeSet<u64>,
    repairs: &[RepairSymbol],
    most: usize,
) -> BTreeMap<u64, Vec<u8>> {
    let symbol = |number| {
        let payload = payload(number, most);
        [&(payload.len() as u16).to_be_bytes(), &payload[..]].concat()
    };
    let unknowns: BTreeSet<u64> = repairs
        .iter()
        .flat_map(|repair| repair.window().unwrap())
        .filter(|number| !received.contains(number))
        .collect();
    let unknowns: Vec<u64> = unknowns.into_iter().collect();
    let width = unknowns.len();
    let mut rows: Vec<Vec<u8>> = repairs
        .iter()
        .map(|repair| {
            let mut row = vec![0; width + SYMBOL_LIMIT];
            row[width..width + repair.bytes.len()].copy_from_slice(&repair.bytes);
            for number in repair.window().unwrap() {
                let factor = coefficient(repair.key, number);
                if let Ok(at) = unknowns.binary_search(&number) {
                    row[at] = factor;
                } else {
                    for (sum, byte) in row[width..].iter_mut().zip(symbol(number)) {
                        *sum ^= multiply_bitwise(byte, factor);
                    }
                }
            }
            row
        })
        .collect();
    let mut done = 0;
    for column in 0..width {
        let Some(found) = (done..rows.len()).find(|at| rows[*at][column] != 0) else {
            continue;
        };
        rows.swap(done, found);
        let factor = inverse(rows[done][column]);
        rows[done]
            .iter_mut()
            .for_each(|byte| *byte = multiply_bitwise(*byte, factor));
        let pivot = rows[done].clone();
        for (at, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if at != done && factor != 0 {
                for (byte, other) in row.iter_mut().zip(&pivot) {
                    *byte ^= multiply_bitwise(*other, factor);
                }
            }
        }
        done += 1;
    }
    rows.iter()
        .filter(|row| row[..width].iter().filter(|one| **one != 0).count() == 1)
        .map(|row| {
            let at = row.iter().position(|one| *one != 0).unwrap();
            let length = usize::from(u16::from_be_bytes([row[width], row[width + 1]]));
            (unknowns[at], row[width + 2..width + 2 + length].to_vec())
        })
        .collect()
}

/// Impairments of a run of symbols.
#[derive(Clone, Debug)]
struct LossyChannel {
    sources: u64,
    loss: u64,
    run: u64,
    repair_every: u64,
    window: u64,
    lateness: u64,
    repeat: u64,
    most: usize,
    seed: u64,
}

fn lossy_channels() -> impl Strategy<Value = LossyChannel> {
    (
        (1_u64..150, 0_u64..40, 1_u64..10, 1_u64..12),
        (1_u64..200, 0_u64..40, 0_u64..20, 0_usize..40, any::<u64>()),
    )
        .prop_map(|((sources, loss, run, repair_every), rest)| {
            let (window, lateness, repeat, most, seed) = rest;
            LossyChannel {
                sources,
                loss,
                run,
                repair_every,
                window,
                lateness,
                repeat,
                most,
                seed,
            }
        })
}

#[derive(Clone, Debug)]
enum SymbolPacket {
    Source(u64),
    Repair(RepairSymbol),
}

/// The packets of a journey in the order in which they arrive, the lost ones left out.
fn travel(journey: &LossyChannel) -> Vec<SymbolPacket> {
    let mut random = SeededRandom::from_seed(journey.seed);
    let mut encoder = FecEncoder::new(Gf256Kernel::detect());
    let mut sent = Vec::new();
    let mut repairs = 0;
    for number in 0..journey.sources {
        assert_eq!(encoder.source(&payload(number, journey.most)), number);
        sent.push(SymbolPacket::Source(number));
        if random.below(journey.repair_every) == 0 && repairs < EQUATION_LIMIT {
            repairs += 1;
            let window = 1 + random.below(journey.window);
            let run = (number + 1).saturating_sub(window)..number + 1;
            sent.push(SymbolPacket::Repair(encoder.repair(run).unwrap()));
        }
    }
    let mut lost_until = 0;
    let mut arriving: Vec<(u64, SymbolPacket)> = Vec::new();
    for (at, packet) in sent.into_iter().enumerate() {
        let at = at as u64;
        if random.below(100) < journey.loss / journey.run {
            lost_until = at + journey.run;
        }
        if at < lost_until {
            continue;
        }
        let copies = 1 + u64::from(random.below(100) < journey.repeat);
        for _ in 0..copies {
            arriving.push((at + random.below(journey.lateness + 1), packet.clone()));
        }
    }
    arriving.sort_by_key(|(at, _)| *at);
    arriving.into_iter().map(|(_, packet)| packet).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_decoder_finds_what_a_slow_solver_finds(journey in lossy_channels()) {
        let mut received = BTreeSet::new();
        let mut repairs = Vec::new();
        let mut recovered = BTreeMap::new();
        let mut decoder = FecDecoder::default();
        for packet in travel(&journey) {
            match packet {
                SymbolPacket::Source(number) => {
                    let arrival = decoder.source(number, &payload(number, journey.most));
                    let is_new = received.insert(number) && !recovered.contains_key(&number);
                    let right = if is_new { SourceSymbolResult::New } else { SourceSymbolResult::Repeated };
                    prop_assert_eq!(arrival, right);
                }
                SymbolPacket::Repair(repair) => {
                    let verdict = decoder.repair(&repair);
                    prop_assert!(matches!(verdict, RepairSymbolResult::Used | RepairSymbolResult::Redundant));
                    repairs.push(repair);
                }
            }
            for (number, bytes) in drain(&mut decoder) {
                prop_assert_eq!(&bytes[..], &payload(number, journey.most)[..]);
                prop_assert!(!received.contains(&number), "it had been received");
                prop_assert!(recovered.insert(number, bytes.to_vec()).is_none());
            }
        }
        let mut found = solve(&received, &repairs, journey.most);
        for (number, bytes) in &recovered {
            // What was received after it had been recovered is no unknown of the solver's.
            if !received.contains(number) {
                let solved = found.remove(number);
                prop_assert_eq!(solved.as_ref(), Some(bytes));
            }
        }
        prop_assert!(found.is_empty(), "left unsolved: {:?}", found.keys());
        prop_assert_eq!(decoder.statistics().malformed, 0);
    }

    #[test]
    fn any_fields_are_harmless(
        steps in proptest::collection::vec(
            (any::<bool>(), 0_u64..700, any::<u8>(), any::<u16>(), 0_usize..60, any::<bool>()),
            0..200,
        ),
        origin in prop_oneof![Just(0), Just(u64::MAX - 600), any::<u64>()],
    ) {
        let mut decoder = FecDecoder::default();
        let mut given = BTreeSet::new();
        for (is_source, offset, count, key, length, is_small) in steps {
            let number = origin.wrapping_add(offset);
            if is_source {
                decoder.source(number, &payload(number, length));
            } else {
                let count = if is_small { count % 8 } else { count };
                let bytes = Bytes::from(payload(offset, length));
                decoder.repair(&RepairSymbol { first: number, count, key, bytes });
            }
            for (number, bytes) in drain(&mut decoder) {
                prop_assert!(bytes.len() <= PAYLOAD_LIMIT);
                given.insert(number);
            }
        }
        prop_assert_eq!(given.len() as u64 <= decoder.statistics().recovered, true);
    }
}

/// Sends `sources` symbols and `repairs` repair symbols over all of them, and loses `lost` of the
/// former at random; `true` when all are recovered.
fn recovers(encoder: &mut FecEncoder, sources: u64, lost: u64, repairs: u64, seed: u64) -> bool {
    let mut random = SeededRandom::from_seed(seed);
    let mut decoder = FecDecoder::default();
    let first = encoder.outstanding().end;
    let mut missing = BTreeSet::new();
    while (missing.len() as u64) < lost {
        missing.insert(first + random.below(sources));
    }
    for number in first..first + sources {
        encoder.source(&payload(number, 6));
        if !missing.contains(&number) {
            decoder.source(number, &payload(number, 6));
        }
    }
    for _ in 0..repairs {
        let repair = encoder.repair(first..first + sources).unwrap();
        decoder.repair(&repair);
    }
    encoder.acknowledged(first..first + sources);
    let recovered: BTreeSet<u64> = drain(&mut decoder)
        .into_iter()
        .filter(|(number, bytes)| payload(*number, 6) == bytes[..])
        .map(|(number, _)| number)
        .collect();
    recovered == missing
}

#[test]
fn one_window_recovers_as_many_losses_as_repairs() {
    let mut encoder = FecEncoder::default();
    let mut random = SeededRandom::from_seed(9);
    for seed in 0..1_500 {
        let sources = 1 + random.below(WINDOW_LIMIT);
        // Repair symbols of one epoch, wherever in it they begin.
        let left = u64::from(EPOCH - encoder.next_key() % EPOCH);
        let lost = 1 + random.below(sources.min(left).min(20));
        assert!(recovers(&mut encoder, sources, lost, lost, seed));
    }
}

#[test]
fn epochs_recover_nearly_as_many_losses_as_repairs() {
    let mut encoder = FecEncoder::default();
    let mut failures = 0;
    let rounds = 4_000;
    for seed in 0..rounds {
        // Begins shortly before the end of an epoch, and ends in the next.
        encoder.skip_to_key((seed as u16).wrapping_mul(EPOCH).wrapping_sub(5));
        failures += u64::from(!recovers(&mut encoder, 60, 10, 10, seed));
    }
    assert!(failures * 100 < rounds, "{failures} of {rounds}");
}

#[test]
fn sliding_windows_recover_nearly_as_well() {
    // A repair symbol over the last 40 after every tenth, and at the end as many over all as are
    // missing then beyond the equations that wait: how often do they not suffice?
    let mut failures = 0;
    let rounds = 2_000;
    for seed in 0..rounds {
        let mut random = SeededRandom::from_seed(seed);
        let mut encoder = FecEncoder::default();
        encoder.skip_to_key(random.next_u64() as u16);
        let mut decoder = FecDecoder::default();
        let mut lost = 0;
        for number in 0..100 {
            encoder.source(&payload(number, 4));
            if random.below(5) == 0 {
                lost += 1;
            } else {
                decoder.source(number, &payload(number, 4));
            }
            if number % 10 == 9 {
                let repair = encoder.repair((number + 1).saturating_sub(40)..number + 1);
                decoder.repair(&repair.unwrap());
            }
        }
        for _ in decoder.statistics().used..lost {
            decoder.repair(&encoder.repair(0..100).unwrap());
        }
        failures += u64::from(decoder.statistics().recovered != lost);
    }
    assert!(failures * 100 < rounds, "{failures} of {rounds}");
}

#[test]
fn a_lost_packet_of_any_size_is_recovered() {
    for length in [0, 1, 63, 1_200, PAYLOAD_LIMIT] {
        let mut encoder = FecEncoder::default();
        let mut decoder = FecDecoder::default();
        encoder.source(b"short");
        encoder.source(&vec![7; length]);
        decoder.source(0, b"short");
        let repair = encoder.repair(0..2).unwrap();
        assert_eq!(repair.bytes.len(), LENGTH_PREFIX + length.max(5));
        assert_eq!(decoder.repair(&repair), RepairSymbolResult::Used);
        assert_eq!(drain(&mut decoder), [(1, Bytes::from(vec![7; length]))]);
        assert_eq!(
            decoder.source(1, &vec![7; length]),
            SourceSymbolResult::Repeated
        );
    }
}

#[test]
fn a_late_symbol_lets_the_others_be_solved() {
    let mut encoder = FecEncoder::default();
    let mut decoder = FecDecoder::default();
    for number in 0..4 {
        encoder.source(&payload(number, 9));
    }
    decoder.source(3, &payload(3, 9));
    for _ in 0..2 {
        decoder.repair(&encoder.repair(0..4).unwrap());
    }
    assert_eq!(decoder.poll_recovered(), None);
    assert_eq!(decoder.source(1, &payload(1, 9)), SourceSymbolResult::New);
    let numbers: Vec<u64> = drain(&mut decoder).into_iter().map(|(n, _)| n).collect();
    assert_eq!(numbers, [0, 2]);
}

#[test]
fn what_the_peer_has_is_not_protected() {
    let mut encoder = FecEncoder::default();
    for number in 0..10 {
        encoder.source(&payload(number, 9));
    }
    encoder.acknowledged(2..5);
    assert_eq!(encoder.outstanding(), 0..10);
    encoder.acknowledged(0..2);
    assert_eq!(encoder.outstanding(), 5..10);
    encoder.acknowledged(8..10);
    assert_eq!(encoder.repair(0..10).unwrap().window(), Some(5..8));
    encoder.acknowledged(5..u64::MAX);
    assert_eq!(encoder.outstanding(), 10..10);
    assert_eq!(encoder.repair(0..10), None);
}

#[test]
fn encoder_keeps_the_newest_window_within_its_limit() {
    let mut encoder = FecEncoder::default();
    for number in 0..2 * SYMBOLS_KEPT as u64 {
        encoder.source(&payload(number, 3));
    }
    let end = 2 * SYMBOLS_KEPT as u64;
    assert_eq!(encoder.outstanding(), end - SYMBOLS_KEPT as u64..end);
    let repair = encoder.repair(0..u64::MAX).unwrap();
    assert_eq!(repair.window(), Some(end - WINDOW_LIMIT..end));
    encoder.release_memory();
    assert_eq!(encoder.repair(0..u64::MAX), None);
    assert_eq!(encoder.source(b"on"), end);
    assert_eq!(
        encoder.repair(0..u64::MAX).unwrap().window(),
        Some(end..end + 1)
    );
}

#[test]
fn what_is_too_old_changes_nothing() {
    let mut encoder = FecEncoder::default();
    let mut decoder = FecDecoder::default();
    encoder.source(b"lost");
    let old = encoder.repair(0..1).unwrap();
    assert_eq!(
        decoder.source(SYMBOLS_KEPT as u64, b"new"),
        SourceSymbolResult::New
    );
    assert_eq!(decoder.repair(&old), RepairSymbolResult::TooOld);
    assert_eq!(decoder.source(0, b"lost"), SourceSymbolResult::TooOld);
    decoder.release_memory();
    assert_eq!(
        decoder.source(SYMBOLS_KEPT as u64, b"new"),
        SourceSymbolResult::TooOld
    );
    assert_eq!(
        decoder.source(SYMBOLS_KEPT as u64 + 1, b"next"),
        SourceSymbolResult::New
    );
}

#[test]
fn equation_is_dropped_with_its_oldest_symbol() {
    let mut encoder = FecEncoder::default();
    let mut decoder = FecDecoder::default();
    for number in 0..3 {
        encoder.source(&payload(number, 9));
    }
    // Two unknowns in one equation, which then leave the window; later ones take their places.
    decoder.source(1, &payload(1, 9));
    assert_eq!(
        decoder.repair(&encoder.repair(0..3).unwrap()),
        RepairSymbolResult::Used
    );
    for number in 3..SYMBOLS_KEPT as u64 + 3 {
        decoder.source(number, &payload(number, 9));
    }
    assert_eq!(decoder.poll_recovered(), None);
    assert_eq!(decoder.statistics().malformed, 0);
}

#[test]
fn more_equations_than_the_limit_drop_the_oldest() {
    let mut decoder = FecDecoder::default();
    let limit = EQUATION_LIMIT as u64;
    let repair = |first, key| {
        let mut encoder = FecEncoder::default();
        for number in 0..first + 2 {
            encoder.source(&payload(number, 5));
        }
        encoder.skip_to_key(key);
        encoder.repair(first..first + 2).unwrap()
    };
    // Pairs of unknowns, none of which can be solved.
    for pair in 0..limit + 1 {
        assert_eq!(
            decoder.repair(&repair(3 * pair, 0)),
            RepairSymbolResult::Used
        );
    }
    // The first pair's equation is gone, so another one about it solves nothing.
    assert_eq!(decoder.repair(&repair(0, 1)), RepairSymbolResult::Used);
    assert_eq!(decoder.poll_recovered(), None);
    assert_eq!(
        decoder.repair(&repair(3 * limit, 1)),
        RepairSymbolResult::Used
    );
    assert_eq!(drain(&mut decoder).len(), 2);
}

#[test]
fn fields_that_no_encoder_makes_are_refused() {
    let mut decoder = FecDecoder::default();
    decoder.source(0, b"longer than the sum");
    let good = RepairSymbol {
        first: 0,
        count: 2,
        key: 0,
        bytes: Bytes::from_static(&[0; 64]),
    };
    let with = |change: fn(&mut RepairSymbol)| {
        let mut repair = good.clone();
        change(&mut repair);
        repair
    };
    for bad in [
        with(|repair| repair.count = 0),
        with(|repair| repair.count = 193),
        with(|repair| repair.first = u64::MAX),
        with(|repair| repair.bytes = Bytes::from_static(&[0])),
        with(|repair| repair.bytes = Bytes::from(vec![0; SYMBOL_LIMIT + 1])),
        with(|repair| repair.bytes = Bytes::from_static(&[0; 5])),
    ] {
        assert_eq!(
            decoder.repair(&bad),
            RepairSymbolResult::Malformed,
            "{bad:?}"
        );
    }
    let long = vec![0; PAYLOAD_LIMIT + 1];
    assert_eq!(decoder.source(1, &long), SourceSymbolResult::Malformed);
    assert_eq!(decoder.source(u64::MAX, b""), SourceSymbolResult::Malformed);
    assert_eq!(decoder.statistics().malformed, 8);
    assert_eq!(decoder.poll_recovered(), None);
}

#[test]
fn malformed_sum_is_not_delivered() {
    let mut decoder = FecDecoder::default();
    let damaged = RepairSymbol {
        first: 0,
        count: 1,
        key: 0,
        bytes: Bytes::from_static(&[0xFF; 64]),
    };
    assert_eq!(decoder.repair(&damaged), RepairSymbolResult::Used);
    assert_eq!(decoder.poll_recovered(), None);
    assert_eq!(decoder.statistics().malformed, 1);
    assert_eq!(decoder.source(0, b"the real one"), SourceSymbolResult::New);
}

#[test]
fn payload_with_nonzero_padding_is_not_delivered() {
    let mut encoder = FecEncoder::default();
    let mut decoder = FecDecoder::default();
    encoder.source(b"payload");
    let mut repair = encoder.repair(0..1).unwrap();
    let mut bytes = repair.bytes.to_vec();
    bytes.extend([0, 0, 1]);
    repair.bytes = bytes.into();
    assert_eq!(decoder.repair(&repair), RepairSymbolResult::Used);
    assert_eq!(decoder.poll_recovered(), None);
    assert_eq!(decoder.statistics().malformed, 1);
}

#[test]
fn repair_symbols_that_contradict_each_other_are_refused() {
    let mut decoder = FecDecoder::default();
    let repair = |byte| RepairSymbol {
        first: 0,
        count: 2,
        key: 0,
        bytes: Bytes::from(vec![byte; 64]),
    };
    assert_eq!(decoder.repair(&repair(1)), RepairSymbolResult::Used);
    assert_eq!(decoder.repair(&repair(1)), RepairSymbolResult::Redundant);
    assert_eq!(decoder.repair(&repair(2)), RepairSymbolResult::Malformed);
    assert_eq!(decoder.poll_recovered(), None);
}
