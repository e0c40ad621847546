//! Benchmark of the model's cost per packet: a full-size packet in and out at 1 Gbit/s, with an
//! intercontinental delay and with loss. The real-time driver's own cost (two system calls) is not
//! included.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use emulate::{DirectionConfig, LineConfig, LinkDirection};
use vocab::{Bitrate, ByteCount, Probability, Time};

fn packet_in_and_out(criterion: &mut Criterion) {
    let config = DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(1_000_000_000)),
        delay: Duration::from_millis(40),
        loss: Probability::from_fraction(0.001)
            .unwrap_or(Probability::ZERO)
            .into(),
        queue: ByteCount::mebibytes(1).into(),
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, 1);
    let packet = Bytes::from(vec![0; 1_500]);
    let mut now = Time::ZERO;
    let mut group = criterion.benchmark_group("direction");
    group.throughput(Throughput::Elements(1));
    group.bench_function("packet_in_and_out", |bencher| {
        bencher.iter(|| {
            now += Duration::from_micros(12);
            direction.handle(now, packet.clone());
            while let Some(delivery) = direction.poll_output(now) {
                black_box(delivery);
            }
            black_box(direction.poll_timeout());
        });
    });
    group.finish();
}

criterion_group!(benches, packet_in_and_out);
criterion_main!(benches);
