//! Entries of `mapi`: compressed data, the stubs of EMSMDB, lists of ROPs, and the two machines.

use mapi::rop::testing;

use crate::seed::{CorpusSeed, seed};

/// Bytes as compressed data, and as data to compress.
pub(crate) fn compression(bytes: &[u8]) {
    testing::compression(bytes);
}

/// Good inputs for [`compression`].
pub(crate) fn compression_seeds() -> Vec<CorpusSeed> {
    let sample = |plain: &[u8]| {
        let size = u16::try_from(plain.len()).expect("good inputs are small");
        let compressed = mapi::emsmdb::lz77::compress(plain);
        [&size.to_le_bytes()[..], &compressed].concat()
    };
    vec![
        seed("letters", sample(b"abcdefghijklmnopqrstuvwxyz")),
        seed("repeats", sample(&b"abc".repeat(100))),
        seed("zeros", sample(&[0; 5000])),
    ]
}

/// Bytes as every stub of EMSMDB.
pub(crate) fn stubs(bytes: &[u8]) {
    testing::stubs(bytes);
}

/// Good inputs for [`stubs`].
pub(crate) fn stubs_seeds() -> Vec<CorpusSeed> {
    const NAMES: [[&str; 2]; 3] = [
        ["xp-request", "xp-response"],
        ["extended-request", "extended-response"],
        ["http-request", "http-response"],
    ];
    let samples = NAMES.into_iter().zip(testing::samples());
    samples
        .flat_map(|(names, (_, request, response))| {
            [seed(names[0], request), seed(names[1], response)]
        })
        .collect()
}

/// Bytes as lists of ROPs.
pub(crate) fn lists(bytes: &[u8]) {
    testing::lists(bytes);
}

/// Good inputs for [`lists`].
pub(crate) fn lists_seeds() -> Vec<CorpusSeed> {
    let asked = [0x2c, 0, 0, 4, 0, 0x5e, 0, 0];
    let answered = [
        0x2c, 0, 0, 0, 0, 0, 2, 0, 8, 9, 0x5e, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x2a, 1,
    ];
    vec![seed(
        "read-and-size",
        [&[9][..], &asked, &answered].concat(),
    )]
}

/// Bytes as calls, answers and segments of the two machines.
pub(crate) fn machines(bytes: &[u8]) {
    testing::machines(bytes);
}

/// Good inputs for [`machines`]: calls of each generation and their answers, in one connection and
/// in two, and the frames between the machines.
pub(crate) fn machines_seeds() -> Vec<CorpusSeed> {
    let samples = testing::machine_samples();
    samples
        .into_iter()
        .map(|(name, steps)| seed(name, steps))
        .collect()
}
