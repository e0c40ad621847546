//! Hands libFuzzer's bytes to the entry `node_pairing` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("node_pairing").run)(bytes));
