#!/usr/bin/env bash
# Builds cargo-deny once, outside the checkout, for `cargo xtask check`.
#
# It takes about two minutes the first time. Without it the licence check is left out, loudly.
set -euo pipefail

VERSION=0.20.2
TOOLS="${TRUNKLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trunkline}/tools"

found() {
    [ "$("$1" --version 2>/dev/null)" = "cargo-deny $VERSION" ]
}

if found "$TOOLS/bin/cargo-deny" || found cargo-deny; then
    exit 0
fi
echo "install: building cargo-deny $VERSION into $TOOLS (once, about two minutes)"
if ! env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$TOOLS" --version "$VERSION" cargo-deny; then
    echo "install: cargo-deny could not be built; licences and sources will not be checked" >&2
fi
