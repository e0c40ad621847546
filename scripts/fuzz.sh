#!/usr/bin/env bash
# Runs every fuzz target, or the ones named, for a number of seconds each.
#
#   scripts/fuzz.sh SECONDS [TARGET...]
#
# Needs a nightly toolchain (rustup toolchain install nightly) and cargo-fuzz (cargo install
# cargo-fuzz). New inputs are collected in fuzz/artifacts, outside of version control; an input
# that does harm is kept there, and belongs in fuzz/corpus/TARGET once it does none.
set -euo pipefail

cd "$(dirname "$0")/.."
seconds="${1:?seconds for each target}"
shift
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo "fuzz: a nightly toolchain and cargo-fuzz are needed: cargo install cargo-fuzz --locked" >&2
    exit 1
}
if [ "$#" = 0 ]; then
    mapfile -t targets < <(cargo +nightly fuzz list)
else
    targets=("$@")
fi
found=()
for target in "${targets[@]}"; do
    echo "fuzz: $target for $seconds s"
    mkdir -p "fuzz/artifacts/collected/$target"
    # 4 KiB reach every state of these parsers; larger inputs only slow the search.
    cargo +nightly fuzz run "$target" "fuzz/artifacts/collected/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 ||
        found+=("$target")
done
if [ "${#found[@]}" -gt 0 ]; then
    echo "fuzz: harm found in: ${found[*]}; the inputs are in fuzz/artifacts" >&2
    exit 1
fi
echo "fuzz: ${#targets[@]} targets, nothing found"
