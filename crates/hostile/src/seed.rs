//! Good inputs, from which a fuzzer starts and which the tests cut and bend.
//!
//! They are made by the code that writes the formats, so that a new version of a format brings its
//! own. What a fuzzer has found is kept beside them in `fuzz/corpus` and is not made here.

/// A file of a corpus: its name and its bytes.
pub type CorpusSeed = (&'static str, Vec<u8>);

/// A file of that name.
pub(crate) fn seed(name: &'static str, bytes: impl Into<Vec<u8>>) -> CorpusSeed {
    (name, bytes.into())
}

/// Bytes with the length of two bytes before them that [`ByteScript::bytes`](crate::ByteScript::bytes)
/// reads.
pub(crate) fn sized(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("good inputs are small");
    [&length.to_be_bytes(), bytes].concat()
}
