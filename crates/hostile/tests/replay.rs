//! Replays every corpus on the stable compiler: each file as it is, cut, and bent by a seeded
//! generator, so that an input that once did harm is tried again by every test run.

use std::path::{Path, PathBuf};
use std::{fs, panic};

use hostile::{ENTRIES, FuzzEntry, entry};
use vocab::SeededRandom;

/// Bent copies of each file; with some hundred files in all this takes seconds.
const BENT_COPIES: u64 = 200;
/// Cuts of each file, spread over its length.
const CUTS: usize = 40;
/// Inputs of pure noise for each entry.
const NOISE: u64 = 500;

/// One module of tests for each entry, so that a failure says whose it is.
macro_rules! replays {
    ($($name:ident),* $(,)?) => {
        /// The entries that are replayed here.
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            #[test]
            fn survives_its_corpus() {
                super::corpus(super::entry(stringify!($name)));
            }

            #[test]
            fn survives_its_corpus_cut_and_altered() {
                super::corpus_cut_and_bent(super::entry(stringify!($name)));
            }

            #[test]
            fn survives_noise() {
                super::noise(super::entry(stringify!($name)));
            }
        })*
    };
}

replays! {
    vocab_cursor,
    vocab_units,
    accelerate_first_bytes,
    accelerate_halves,
    mapi_compression,
    mapi_stubs,
    mapi_rops,
    mapi_machines,
    mapi_dce_rpc,
    mapi_http_halves,
    accelerate_kerberos_tokens,
    accelerate_smb_structures,
    accelerate_smb1_structures,
    accelerate_smb_pair,
    accelerate_http_cache_record,
    accelerate_http_stored_heads,
    accelerate_http_documents,
    accelerate_http_framing,
    accelerate_http_frames,
    accelerate_http_pair,
    accelerate_client_hello,
    accelerate_http2_client,
    tunnel_frame,
    tunnel_session,
    tunnel_correction,
    tunnel_packet_payload,
    tunnel_packet_opener,
    tunnel_transport,
    reduce_decoder,
    reduce_repair,
    reduce_content_handle,
    reduce_damage,
    engine_peer,
    node_configuration,
    node_token,
    node_pairing,
    node_socks5,
    node_http_connect,
    lab_plan,
    measure_control,
    measure_datagram,
    measure_iperf3,
    link_offload,
    link_packet_log,
    link_delivery_trace,
    measure_capture,
    link_schedule,
    profile_plan,
    profile_device,
    profile_column,
    profile_frame,
}

#[test]
fn every_entry_is_replayed() {
    let entries: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    assert_eq!(entries, REPLAYED);
}

#[test]
fn fuzz_targets_and_entries_match() {
    let mut targets: Vec<String> = fs::read_dir(fuzz_folder().join("fuzz_targets"))
        .expect("the fuzz targets are in the checkout")
        .map(|file| file.expect("a name can be read").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort_unstable();
    let mut entries: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    entries.sort_unstable();
    assert_eq!(targets, entries);
}

fn corpus(entry: &FuzzEntry) {
    let files = corpus_of(entry);
    assert!(!files.is_empty(), "{}: no corpus", entry.name);
    for path in files {
        let bytes = fs::read(&path).expect("the corpus is readable");
        survives(entry, &bytes, &path.display().to_string());
    }
}

fn corpus_cut_and_bent(entry: &FuzzEntry) {
    let mut random = SeededRandom::from_seed(1);
    for path in corpus_of(entry) {
        let bytes = fs::read(&path).expect("the corpus is readable");
        let name = path.display();
        let cuts = CUTS.min(bytes.len());
        for cut in 0..cuts {
            let length = cut * bytes.len() / cuts;
            survives(entry, &bytes[..length], &format!("{name} cut to {length}"));
        }
        for copy in 0..BENT_COPIES {
            let bent = bend(&bytes, &mut random);
            survives(entry, &bent, &format!("{name}, bent copy {copy}"));
        }
    }
}

fn noise(entry: &FuzzEntry) {
    let mut random = SeededRandom::from_seed(2);
    for number in 0..NOISE {
        let mut noise = vec![0; usize::try_from(random.below(2_000)).expect("small")];
        random.fill(&mut noise);
        survives(entry, &noise, &format!("noise {number}"));
    }
}

/// Runs the entry and, when it panics, shows the input as well.
fn survives(entry: &FuzzEntry, bytes: &[u8], what: &str) {
    if let Err(cause) = panic::catch_unwind(|| (entry.run)(bytes)) {
        let shown = &bytes[..bytes.len().min(512)];
        eprintln!("{} on {what}: {shown:02x?}", entry.name);
        panic::resume_unwind(cause);
    }
}

/// Changes a few bytes, or moves a piece, as a fuzzer would.
fn bend(bytes: &[u8], random: &mut SeededRandom) -> Vec<u8> {
    let mut bent = bytes.to_vec();
    for _ in 0..=random.below(4) {
        if bent.is_empty() {
            break;
        }
        let length = bent.len() as u64;
        let at = usize::try_from(random.below(length)).expect("below the length");
        match random.below(4) {
            0 => bent[at] ^= 1 << random.below(8),
            1 => bent[at] = [0, 0x3f, 0x40, 0x7f, 0x80, 0xff][random.below(6) as usize],
            2 => {
                bent.remove(at);
            }
            _ => {
                let piece = bent[at..bent.len().min(at + 16)].to_vec();
                bent.splice(at..at, piece);
            }
        }
    }
    bent
}

fn corpus_of(entry: &FuzzEntry) -> Vec<PathBuf> {
    let folder = fuzz_folder().join("corpus").join(entry.name);
    let Ok(listing) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = listing
        .map(|file| file.expect("a name can be read").path())
        .collect();
    // The order of a folder is the file system's; runs are to be alike.
    files.sort_unstable();
    files
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Regenerate the corpus with every change of a format; otherwise the next change shows unrelated
/// files. An encoder may become better without a format change; that need not be updated at once.
#[test]
fn corpus_holds_every_current_message() {
    let is_format = |entry: &&FuzzEntry| !entry.name.starts_with("reduce_");
    for entry in ENTRIES.iter().filter(is_format) {
        for (name, bytes) in (entry.seeds)() {
            let path = fuzz_folder().join("corpus").join(entry.name).join(name);
            let kept = fs::read(&path).unwrap_or_default();
            assert!(
                kept == bytes,
                "{} is of another time: run `cargo run -p hostile --bin seed-corpus`",
                path.display()
            );
        }
    }
}
