//! Hands libFuzzer's bytes to the entry `vocab_cursor` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("vocab_cursor").run)(bytes));
