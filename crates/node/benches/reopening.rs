//! The time that a dictionary on disk takes to open after kill -9, and the memory cost of its
//! index.
//!
//! `cargo bench -p node --bench reopening` writes 10 GiB of chunks with the node's own code, in a
//! process that is killed while it writes. It opens the dictionary again with the page cache
//! dropped (which needs root; the output says when it could not). `REOPENING_GIB` and
//! `REOPENING_DIRECTORY` set another size and place; the files are removed afterwards.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a benchmark prints its result and measures time"
)]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use node::SegmentFiles;
use reduce::{
    Dictionary, DictionaryConfig, DictionaryKey, DictionaryStatistics, EncoderConfig, FlowEncoder,
};
use vocab::{ByteCount, FlowSegment, NodeId, SeededRandom, Time};

const GIB: u64 = 1 << 30;
/// Bytes pushed at once, as from a busy socket.
const PUSH: usize = 64 * 1024;
/// The number of bytes that are sent again at the end: the first bytes that were written.
const AGAIN: u64 = 16 << 20;
const OPENINGS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let gib: u64 = env::var("REOPENING_GIB").map_or(Ok(10), |gib| gib.parse())?;
    let directory = env::var_os("REOPENING_DIRECTORY").map_or_else(
        || env::temp_dir().join(format!("reopening-{}", std::process::id())),
        PathBuf::from,
    );
    if env::args().any(|argument| argument == "--write") {
        return write(&directory, gib);
    }
    let result = measure(&directory, gib);
    fs::remove_dir_all(&directory)?;
    result
}

fn measure(directory: &Path, gib: u64) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let mut writer = Command::new(env::current_exe()?)
        .arg("--write")
        .env("REOPENING_GIB", gib.to_string())
        .env("REOPENING_DIRECTORY", directory)
        .stdout(Stdio::piped())
        .spawn()?;
    let out = writer.stdout.take().ok_or("the writer has no output")?;
    for line in BufReader::new(out).lines() {
        if line? == "written" {
            break;
        }
    }
    writer.kill()?;
    writer.wait()?;
    let written = begun.elapsed().as_secs_f64();

    let mut openings = Vec::new();
    let mut cold = true;
    let mut last = None;
    for _ in 0..OPENINGS {
        cold &= drop_cache(directory)?;
        let begun = Instant::now();
        let (dictionary, files) = open(directory, gib);
        openings.push(begun.elapsed().as_secs_f64());
        last = Some((dictionary, files));
    }
    let (mut dictionary, mut files) = last.ok_or("nothing was opened")?;
    let DictionaryStatistics {
        chunks,
        index_bytes,
        disk_bytes,
        damaged_records,
        ..
    } = dictionary.statistics();
    let again = send(&mut dictionary, &mut files, AGAIN, |_| true);
    println!("{{");
    println!("  \"stored_bytes\": {disk_bytes},");
    println!("  \"chunks\": {chunks},");
    println!("  \"written_in_s\": {written:.1},");
    println!(
        "  \"page_cache\": \"{}\",",
        if cold { "cold" } else { "warm" }
    );
    println!("  \"reopen_after_kill_s\": {:.3},", openings[0]);
    println!(
        "  \"reopen_{gib}gib_s\": {:.3},",
        openings[1..].iter().copied().fold(0.0, f64::max)
    );
    println!("  \"damaged_stretches\": {damaged_records},");
    println!("  \"first_16mib_again_wire_bytes\": {again},");
    println!(
        "  \"index_bytes_per_stored_gib\": {}",
        (u128::from(index_bytes) * u128::from(GIB) / u128::from(disk_bytes.max(1))) as u64
    );
    println!("}}");
    Ok(())
}

/// Writes until it is killed, and reports when the wanted amount is written.
fn write(directory: &Path, gib: u64) -> Result<(), Box<dyn Error>> {
    let (mut dictionary, mut files) = open(directory, gib);
    let mut told = false;
    send(&mut dictionary, &mut files, u64::MAX, |dictionary| {
        if !told && dictionary.statistics().disk_bytes >= gib * GIB {
            told = true;
            println!("written");
        }
        true
    });
    Err("it was not killed".into())
}

fn open(directory: &Path, gib: u64) -> (Dictionary, SegmentFiles) {
    let config = DictionaryConfig {
        disk: ByteCount::new((gib + 2) * GIB),
        ..DictionaryConfig::default()
    };
    let key = DictionaryKey::new([7; 32]);
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64);
    let mut dictionary = Dictionary::with_key(config, key, SeededRandom::from_seed(nanoseconds));
    let mut files = SegmentFiles::new(directory.to_owned());
    dictionary.open();
    serve(&mut dictionary, &mut files);
    assert!(dictionary.is_ready());
    (dictionary, files)
}

fn serve(dictionary: &mut Dictionary, files: &mut SegmentFiles) {
    while let Some(request) = dictionary.poll_disk() {
        let completion = files.complete(request);
        dictionary.handle_disk(completion);
    }
}

/// Sends random bytes, always the same ones, to a peer that acknowledges everything at once;
/// returns the bytes on the wire.
fn send(
    dictionary: &mut Dictionary,
    files: &mut SegmentFiles,
    bytes: u64,
    mut go_on: impl FnMut(&Dictionary) -> bool,
) -> u64 {
    let slot = dictionary.peer(NodeId([1; 32]));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), slot);
    let mut random = SeededRandom::from_seed(1);
    let (mut sent, mut wire, mut now) = (0, 0, Time::ZERO);
    while sent < bytes && go_on(dictionary) {
        let mut piece = vec![0; PUSH];
        random.fill(&mut piece);
        now += Duration::from_micros(200);
        encoder.push(now, FlowSegment::payload(Bytes::from(piece)));
        sent += PUSH as u64;
        while let Some(encoded) = encoder.poll_encoded(now, dictionary, 128 * 1024) {
            wire += encoded.len() as u64;
            encoder.acknowledged(wire, dictionary);
        }
        serve(dictionary, files);
    }
    wire
}

/// Writes everything out and drops the kernel's copies. Returns true if it could.
fn drop_cache(directory: &Path) -> Result<bool, Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(fs::write("/proc/sys/vm/drop_caches", "3").is_ok())
}
