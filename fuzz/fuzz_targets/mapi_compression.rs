//! Hands libFuzzer's bytes to the entry `mapi_compression` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("mapi_compression").run)(bytes));
