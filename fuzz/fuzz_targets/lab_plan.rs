//! Hands libFuzzer's bytes to the entry `lab_plan` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("lab_plan").run)(bytes));
