//! Hands libFuzzer's bytes to the entry `accelerate_smb1_structures` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("accelerate_smb1_structures").run)(bytes));
