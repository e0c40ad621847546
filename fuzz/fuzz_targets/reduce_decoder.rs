//! Hands libFuzzer's bytes to the entry `reduce_decoder` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("reduce_decoder").run)(bytes));
