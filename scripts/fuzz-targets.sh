#!/usr/bin/env bash
# Writes fuzz/fuzz_targets/NAME.rs and its lines in fuzz/Cargo.toml for the names given.
#
#   scripts/fuzz-targets.sh tunnel_frame reduce_decoder
set -euo pipefail

cd "$(dirname "$0")/../fuzz"
mkdir -p fuzz_targets
for name in "$@"; do
    cat >"fuzz_targets/$name.rs" <<TARGET
//! Hands libFuzzer's bytes to the entry \`$name\` of \`crates/hostile\`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (hostile::entry("$name").run)(bytes));
TARGET
    if ! grep -q "name = \"$name\"" Cargo.toml; then
        printf '[[bin]]\nname = "%s"\npath = "fuzz_targets/%s.rs"\ntest = false\ndoc = false\nbench = false\n\n' \
            "$name" "$name" >>Cargo.toml
    fi
done
