//! Hands libFuzzer's bytes to the entry `link_schedule` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("link_schedule").run)(bytes));
