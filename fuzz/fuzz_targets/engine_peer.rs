//! Hands libFuzzer's bytes to the entry `engine_peer` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("engine_peer").run)(bytes));
