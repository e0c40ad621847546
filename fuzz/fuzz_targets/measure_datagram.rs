//! Hands libFuzzer's bytes to the entry `measure_datagram` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("measure_datagram").run)(bytes));
