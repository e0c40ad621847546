//! Hands libFuzzer's bytes to the entry `tunnel_packet_payload` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("tunnel_packet_payload").run)(bytes));
