//! Hands libFuzzer's bytes to the entry `tunnel_transport` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("tunnel_transport").run)(bytes));
