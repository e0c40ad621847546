//! Hands libFuzzer's bytes to the entry `reduce_repair` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("reduce_repair").run)(bytes));
