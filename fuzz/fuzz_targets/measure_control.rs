//! Hands libFuzzer's bytes to the entry `measure_control` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("measure_control").run)(bytes));
