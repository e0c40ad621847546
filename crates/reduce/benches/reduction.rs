//! One stream on one core: how fast the encoder and the decoder are, each alone, and how many
//! bytes go over the wire.
//!
//! `cargo bench -p reduce`. The bytes are printed first; they are the same on every machine.
//! Then the speeds by CPU time, which other work on the machine distorts less than wall time.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a benchmark prints its result and reads the CPU time it took"
)]

use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use reduce::{
    DecoderConfig, DecoderOutput, Dictionary, DictionaryConfig, EncoderConfig, FlowDecoder,
    FlowEncoder,
};
use vocab::{FlowSegment, NodeId, SeededRandom, Time};

const LENGTH: usize = 16 * 1024 * 1024;
const PUSH: usize = 64 * 1024;

struct DictionaryPair {
    near: Dictionary,
    far: Dictionary,
}

impl DictionaryPair {
    fn new() -> Self {
        let dictionary = |seed| {
            let mut made =
                Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(seed));
            made.open();
            made.peer(NodeId([1; 32]));
            made
        };
        Self {
            near: dictionary(1),
            far: dictionary(2),
        }
    }

    fn encode(&mut self, file: &Bytes) -> (FlowEncoder, Vec<Bytes>) {
        encode(&mut self.near, file)
    }

    /// Sends a file and acknowledges all of it; returns the bytes on the wire.
    fn transfer(&mut self, file: &Bytes) -> usize {
        let (mut encoder, records) = self.encode(file);
        let wire = decode(&mut self.far, &records);
        encoder.acknowledged(wire as u64, &mut self.near);
        wire
    }
}

fn encode(dictionary: &mut Dictionary, file: &Bytes) -> (FlowEncoder, Vec<Bytes>) {
    let slot = dictionary.peer(NodeId([1; 32]));
    let config = EncoderConfig {
        retained: vocab::ByteCount::mebibytes(64),
        ..EncoderConfig::default()
    };
    let mut encoder = FlowEncoder::new(config, slot);
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    for start in (0..file.len()).step_by(PUSH) {
        now += Duration::from_micros(100);
        let end = file.len().min(start + PUSH);
        encoder.push(now, FlowSegment::payload(file.slice(start..end)));
        // As an engine does whose link is the bottleneck: it encodes when it can send.
        if start % (2 * PUSH) == 0 {
            continue;
        }
        while let Some(bytes) = encoder.poll_encoded(now, dictionary, 128 * 1024) {
            records.push(bytes);
        }
    }
    encoder.finish();
    while let Some(bytes) = encoder.poll_encoded(now, dictionary, 128 * 1024) {
        records.push(bytes);
    }
    (encoder, records)
}

fn decode(dictionary: &mut Dictionary, records: &[Bytes]) -> usize {
    let slot = dictionary.peer(NodeId([1; 32]));
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
    let mut raw = 0;
    for record in records {
        decoder.push(record.clone());
        loop {
            match decoder.poll(dictionary).expect("a sound stream") {
                DecoderOutput::Segment(segment) => raw += segment.bytes.len(),
                DecoderOutput::NeedMore => break,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(raw > 0 && decoder.is_at_boundary());
    decoder.consumed() as usize
}

fn noise(seed: u64) -> Bytes {
    let mut data = vec![0; LENGTH];
    SeededRandom::from_seed(seed).fill(&mut data);
    data.into()
}

/// Words of a small vocabulary, unevenly likely: zstd -3 finds about 3:1 in it.
fn text(seed: u64) -> Bytes {
    let mut random = SeededRandom::from_seed(seed);
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            let letters = 2 + random.below(8);
            (0..letters)
                .map(|_| b'a' + random.below(26) as u8)
                .collect()
        })
        .collect();
    let mut data = Vec::with_capacity(LENGTH + 16);
    while data.len() < LENGTH {
        let rank = random.below(2000) * random.below(2000) / 2000;
        data.extend_from_slice(&words[rank as usize]);
        data.push(b' ');
    }
    data.truncate(LENGTH);
    data.into()
}

/// The file with random bytes inserted about every `period` bytes.
fn edited(file: &Bytes, period: u64, inserted: usize) -> Bytes {
    let mut random = SeededRandom::from_seed(period);
    let mut data = Vec::with_capacity(file.len() * 11 / 10);
    let mut rest = &file[..];
    while !rest.is_empty() {
        let step = (period / 2 + random.below(period)) as usize;
        let (piece, after) = rest.split_at(step.min(rest.len()));
        data.extend_from_slice(piece);
        let mut more = vec![0; inserted];
        random.fill(&mut more);
        data.extend_from_slice(&more);
        rest = after;
    }
    data.into()
}

fn print_wire_bytes() {
    let file = noise(1);
    let mut pair = DictionaryPair::new();
    println!("cold random 16 MiB: {} B", pair.transfer(&file));
    println!("repeat:             {} B", pair.transfer(&file));
    println!(
        "edit64k:            {} B",
        pair.transfer(&edited(&file, 65_536, 1))
    );
    let mut pair = DictionaryPair::new();
    pair.transfer(&file);
    println!(
        "edit4k:             {} B",
        pair.transfer(&edited(&file, 4_096, 8))
    );
    let words = text(2);
    let whole = {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(words.len()));
        zstd_safe::compress(&mut out, &words, 3).expect("room enough")
    };
    let blocks: usize = words
        .chunks(128 * 1024)
        .map(|block| {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(block.len()));
            zstd_safe::compress(&mut out, block, 3).expect("room enough")
        })
        .sum();
    let cold = DictionaryPair::new().transfer(&words);
    println!("cold text 16 MiB:   {cold} B (zstd -3: {whole} B whole, {blocks} B in blocks)");
}

/// Seconds that this thread has been on a CPU (Linux only; zero elsewhere).
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// Prints the best of nine runs of `work` over one file.
fn print_speed<T>(name: &str, mut prepare: impl FnMut() -> T, mut work: impl FnMut(&mut T)) {
    let mut best = f64::INFINITY;
    for _ in 0..9 {
        let mut state = prepare();
        let start = cpu_seconds();
        work(&mut state);
        best = best.min(cpu_seconds() - start);
    }
    let gigabits = LENGTH as f64 * 8.0 / best / 1e9;
    println!("{name}: {gigabits:.2} Gbit/s of CPU time");
}

fn print_speeds() {
    for (name, file) in [("random", noise(1)), ("text", text(2))] {
        print_speed(
            &format!("encode cold {name}"),
            || DictionaryPair::new().near,
            |near| drop(encode(near, &file)),
        );
        let (_, records) = DictionaryPair::new().encode(&file);
        print_speed(
            &format!("decode cold {name}"),
            || DictionaryPair::new().far,
            |far| {
                decode(far, &records);
            },
        );
    }
    let file = noise(1);
    let mut pair = DictionaryPair::new();
    pair.transfer(&file);
    let (_, records) = pair.encode(&file);
    print_speed(
        "encode warm",
        || (),
        |()| drop(encode(&mut pair.near, &file)),
    );
    print_speed(
        "decode warm",
        || (),
        |()| {
            decode(&mut pair.far, &records);
        },
    );
    let warm = || {
        let mut pair = DictionaryPair::new();
        pair.transfer(&file);
        pair
    };
    for (name, period, inserted) in [("edit64k", 65_536, 1), ("edit4k", 4_096, 8)] {
        let edited = edited(&file, period, inserted);
        print_speed(&format!("encode {name}"), warm, |pair| {
            drop(encode(&mut pair.near, &edited));
        });
        let (_, records) = warm().encode(&edited);
        print_speed(&format!("decode {name}"), warm, |pair| {
            decode(&mut pair.far, &records);
        });
    }
}

fn benchmarks(criterion: &mut Criterion) {
    print_wire_bytes();
    print_speeds();
    let mut group = criterion.benchmark_group("reduce");
    group.throughput(Throughput::Bytes(LENGTH as u64));
    group.sample_size(10);
    for (name, file) in [("random", noise(1)), ("text", text(2))] {
        group.bench_function(format!("encode cold {name}"), |bench| {
            bench.iter_batched(
                || DictionaryPair::new().near,
                |mut near| (encode(&mut near, &file), near),
                BatchSize::PerIteration,
            );
        });
        let (_, records) = DictionaryPair::new().encode(&file);
        group.bench_function(format!("decode cold {name}"), |bench| {
            bench.iter_batched(
                || DictionaryPair::new().far,
                |mut far| (decode(&mut far, &records), far),
                BatchSize::PerIteration,
            );
        });
    }
    let file = noise(1);
    let mut pair = DictionaryPair::new();
    pair.transfer(&file);
    group.bench_function("encode warm", |bench| {
        bench.iter(|| encode(&mut pair.near, &file));
    });
    let (_, records) = pair.encode(&file);
    group.bench_function("decode warm", |bench| {
        bench.iter(|| decode(&mut pair.far, &records));
    });
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
