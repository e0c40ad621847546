//! Cost of forward error correction on one core, in bytes of source payload per second.
//!
//! `encode 20+4` takes 20 payloads of 1,200 bytes and makes 4 repair symbols over them. `decode`
//! receives the same symbols with some lost and computes the lost payloads. `nothing lost` is the
//! receiver's cost when no repair symbol was needed.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tunnel::fec::{FecDecoder, FecEncoder, RepairSymbol};

const PAYLOAD: usize = 1_200;

fn payload(number: u64) -> Vec<u8> {
    vec![number as u8; PAYLOAD]
}

fn repairs(encoder: &mut FecEncoder, count: u64) -> Vec<RepairSymbol> {
    let run = encoder.outstanding();
    (0..count)
        .map(|_| encoder.repair(run.clone()).unwrap())
        .collect()
}

fn correction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fec");
    for (sources, count) in [(10, 2), (20, 4), (50, 10), (100, 20)] {
        group.throughput(Throughput::Bytes(sources * PAYLOAD as u64));
        let mut encoder = FecEncoder::default();
        group.bench_function(format!("encode {sources}+{count}"), |bencher| {
            bencher.iter(|| {
                for number in 0..sources {
                    encoder.source(black_box(&payload(number)));
                }
                black_box(repairs(&mut encoder, count));
                encoder.acknowledged(encoder.outstanding());
            });
        });
        for lost in [0, 1, count] {
            let name = match lost {
                0 => format!("decode {sources}+{count}, nothing lost"),
                lost => format!("decode {sources}+{count}, {lost} lost"),
            };
            group.bench_function(name, |bencher| {
                let arrive = || {
                    let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
                    for number in 0..sources {
                        encoder.source(&payload(number));
                        if number >= lost {
                            decoder.source(number, &payload(number));
                        }
                    }
                    (repairs(&mut encoder, count), decoder)
                };
                bencher.iter_batched(
                    arrive,
                    |(repairs, mut decoder)| {
                        for repair in &repairs {
                            decoder.repair(black_box(repair));
                        }
                        let found = std::iter::from_fn(|| decoder.poll_recovered()).count();
                        assert_eq!(found as u64, lost);
                        (repairs, decoder)
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, correction);
criterion_main!(benches);
