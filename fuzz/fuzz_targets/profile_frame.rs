//! Hands libFuzzer's bytes to the entry `profile_frame` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("profile_frame").run)(bytes));
