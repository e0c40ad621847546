//! Hands libFuzzer's bytes to the entry `accelerate_kerberos_tokens` of `crates/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("accelerate_kerberos_tokens").run)(bytes));
