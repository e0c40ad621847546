//! Hands libFuzzer's bytes to the entry `profile_column` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("profile_column").run)(bytes));
