//! Hands libFuzzer's bytes to the entry `measure_capture` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("measure_capture").run)(bytes));
