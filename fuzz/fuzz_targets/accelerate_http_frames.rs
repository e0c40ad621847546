//! Hands libFuzzer's bytes to the entry `accelerate_http_frames` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("accelerate_http_frames").run)(bytes));
