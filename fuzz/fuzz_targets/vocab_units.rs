//! Hands libFuzzer's bytes to the entry `vocab_units` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("vocab_units").run)(bytes));
