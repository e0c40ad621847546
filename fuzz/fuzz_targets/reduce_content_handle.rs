//! Hands libFuzzer's bytes to the entry `reduce_content_handle` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("reduce_content_handle").run)(bytes));
