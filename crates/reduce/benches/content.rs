//! Bodies stored under content handles and read back on one core: how fast, and how long a handle is.
//!
//! `cargo bench -p reduce --bench content`. The length of a handle is printed first; it is the same on
//! every machine. Then the speeds, of a body that is 64 MiB long and incompressible, by CPU time, which other
//! work on the machine distorts less than wall time; then criterion's, by wall time.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a benchmark prints its result and reads the CPU time it took"
)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use reduce::testing::MemoryDisk;
use reduce::{
    ContentHandle, ContentRead, ContentReader, ContentWriter, Dictionary, DictionaryConfig,
    DictionaryKey,
};
use vocab::{ByteCount, SeededRandom};

const LENGTH: usize = 64 * 1024 * 1024;
/// Size of the pieces that a decoder hands over, in bytes.
const PIECE: usize = 128 * 1024;

fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut body = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut body);
    body
}

fn empty() -> Dictionary {
    let config = DictionaryConfig {
        memory: ByteCount::mebibytes(256),
        ..DictionaryConfig::default()
    };
    let mut dictionary = Dictionary::new(config, SeededRandom::from_seed(1));
    dictionary.open();
    dictionary
}

fn store(dictionary: &mut Dictionary, body: &[u8]) -> ContentHandle {
    let mut writer = ContentWriter::new();
    for piece in body.chunks(PIECE) {
        writer.append(dictionary, piece).expect("it can be stored");
    }
    writer.finish(dictionary).expect("it can be stored")
}

/// Reads all of it, from a disk that answers at once where it has to.
fn read(dictionary: &mut Dictionary, disk: &mut MemoryDisk, handle: &ContentHandle) -> usize {
    let mut reader = ContentReader::new(handle.clone(), 0..handle.length());
    let mut bytes = 0;
    loop {
        match reader.poll(dictionary) {
            ContentRead::Piece(piece) => bytes += piece.len(),
            ContentRead::WaitForDisk => disk.serve(dictionary),
            ContentRead::Done => return bytes,
            ContentRead::Gone(absence) => panic!("{absence:?} after {bytes} bytes"),
        }
    }
}

fn handles() {
    for (name, body) in [
        ("random", body(1, LENGTH)),
        ("zeros", vec![0; LENGTH]),
        ("12 kB", body(2, 12_000)),
    ] {
        let handle = store(&mut empty(), &body).to_bytes().len();
        let per_gigabyte = handle as f64 * 1e9 / body.len() as f64;
        println!(
            "{name}: {} bytes have a handle of {handle}, {:.2} MB a GB, {:.3} %",
            body.len(),
            per_gigabyte / 1e6,
            per_gigabyte / 1e7,
        );
    }
}

/// Seconds that this thread has been running.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// The best of ten runs over the body.
fn best(name: &str, mut run: impl FnMut()) {
    let seconds = (0..10).map(|_| {
        let start = cpu_seconds();
        run();
        cpu_seconds() - start
    });
    let seconds = seconds.fold(f64::INFINITY, f64::min);
    println!(
        "{name}: {:.2} GB/s of CPU time",
        LENGTH as f64 / seconds / 1e9
    );
}

fn speeds_by_cpu_time() {
    let body = body(1, LENGTH);
    let mut dictionaries: Vec<_> = (0..10).map(|_| empty()).collect();
    best("store, new", || {
        let mut dictionary = dictionaries.pop().expect("one for each run");
        store(&mut dictionary, &body);
    });
    let mut dictionary = empty();
    let handle = store(&mut dictionary, &body);
    best("store, there already", || {
        store(&mut dictionary, &body);
    });
    let mut disk = MemoryDisk::new();
    best("read from memory", || {
        read(&mut dictionary, &mut disk, &handle);
    });
    let mut dictionary = on_disk(&body, &mut disk);
    best("read from disk, opened and verified", || {
        read(&mut dictionary, &mut disk, &handle);
    });
}

fn speeds(criterion: &mut Criterion) {
    handles();
    speeds_by_cpu_time();
    let mut group = criterion.benchmark_group("content");
    group.throughput(Throughput::Bytes(LENGTH as u64));
    group.sample_size(10);
    let body = body(1, LENGTH);
    group.bench_function("store, new", |bench| {
        bench.iter_batched(
            empty,
            |mut dictionary| {
                store(&mut dictionary, &body);
                dictionary
            },
            BatchSize::PerIteration,
        );
    });
    let mut dictionary = empty();
    let handle = store(&mut dictionary, &body);
    group.bench_function("store, there already", |bench| {
        bench.iter(|| store(&mut dictionary, &body));
    });
    let mut disk = MemoryDisk::new();
    group.bench_function("read from memory", |bench| {
        bench.iter(|| read(&mut dictionary, &mut disk, &handle));
    });
    let mut dictionary = on_disk(&body, &mut disk);
    group.bench_function("read from disk, opened and verified", |bench| {
        bench.iter(|| read(&mut dictionary, &mut disk, &handle));
    });
    group.finish();
}

/// A dictionary that has the body on disk only, and memory for a small part of it.
fn on_disk(body: &[u8], disk: &mut MemoryDisk) -> Dictionary {
    let config = DictionaryConfig {
        memory: ByteCount::mebibytes(8),
        disk: ByteCount::mebibytes(256),
        segment: ByteCount::mebibytes(32),
    };
    let key = DictionaryKey::new([1; 32]);
    let mut dictionary = Dictionary::with_key(config, key, SeededRandom::from_seed(1));
    dictionary.open();
    disk.serve(&mut dictionary);
    let mut writer = ContentWriter::new();
    for piece in body.chunks(PIECE) {
        writer
            .append(&mut dictionary, piece)
            .expect("it can be stored");
        dictionary.request_flush();
        disk.serve(&mut dictionary);
    }
    writer.finish(&mut dictionary).expect("it can be stored");
    dictionary.request_flush();
    disk.serve(&mut dictionary);
    dictionary
}

criterion_group!(benches, speeds);
criterion_main!(benches);
