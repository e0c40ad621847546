//! Hands libFuzzer's bytes to the entry `mapi_http_halves` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("mapi_http_halves").run)(bytes));
