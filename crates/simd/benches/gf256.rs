//! Throughput of each kernel on one core, in bytes of sources per second.
//!
//! `code 20+4` is the cost of an encoder of 4 repair symbols over 20 sources of 1,216 bytes, in
//! bytes of the sources: each source is read four times.

#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use simd::gf256::Gf256Kernel;

const LENGTH: usize = 1_216;

fn kernels(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gf256");
    for kernel in Gf256Kernel::available() {
        let source = vec![0xA5; LENGTH];
        let mut target = vec![0; LENGTH];
        group.throughput(Throughput::Bytes(LENGTH as u64));
        group.bench_function(format!("mul_add/{}", kernel.name()), |bencher| {
            bencher.iter(|| kernel.mul_add(black_box(&mut target), black_box(&source), 0x53));
        });
        for (sources, repairs) in [(10, 2), (20, 4), (50, 10), (100, 20)] {
            let symbols: Vec<Vec<u8>> = (0..sources).map(|at| vec![at as u8; LENGTH]).collect();
            let mut outputs = vec![vec![0; LENGTH]; repairs];
            group.throughput(Throughput::Bytes((sources * LENGTH) as u64));
            let name = format!("code {sources}+{repairs}/{}", kernel.name());
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    for (number, output) in outputs.iter_mut().enumerate() {
                        let terms: Vec<(&[u8], u8)> = symbols
                            .iter()
                            .enumerate()
                            .map(|(at, symbol)| (&symbol[..], (at * 7 + number * 31 + 2) as u8))
                            .collect();
                        kernel.mul_add_many(black_box(output), black_box(&terms));
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
