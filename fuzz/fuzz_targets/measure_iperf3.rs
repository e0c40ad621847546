//! Hands libFuzzer's bytes to the entry `measure_iperf3` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("measure_iperf3").run)(bytes));
