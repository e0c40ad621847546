#!/usr/bin/env bash
# Tries the two commands on a fresh Debian 12: only git, make, ca-certificates and a Rust toolchain.
#
#   scripts/fresh-root.sh DIR [COMMAND...]
#
# Makes a Debian root in DIR by debootstrap (once; it is used again when it is there), clones the
# commit that is checked out here into it, mounts this machine's Rust toolchain read-only, and runs
# COMMAND in the clone (default: make demo, then make test). Needs root and debootstrap. DIR stays, for
# a look at it, until it is removed by hand; to begin with a fresh one, name another.
#
# The network is this machine's: what the demo sets up lives in namespaces of its own.
set -euo pipefail

fail() {
    echo "fresh-root: $*" >&2
    exit 1
}

[ "$#" -ge 1 ] || fail "usage: scripts/fresh-root.sh DIR [COMMAND...]"
[ "$(id -u)" = 0 ] || fail "root is needed for debootstrap, mounts and chroot."
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
if [ "${FRESH_ROOT_INSIDE:-}" != yes ]; then
    exec env FRESH_ROOT_INSIDE=yes unshare --mount --propagation private "$0" "$@"
fi
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
base=$(cd "$1" && pwd)
root=$base/root
shift
if [ "$#" = 0 ]; then set -- 'make demo && make test'; fi
toolchain=$(rustc --print sysroot)

# The servers and tools that a fresh machine does not have must not be found by a kept root either.
if [ ! -e "$base/debootstrap.done" ]; then
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$root" \
        >"$base/debootstrap.log" 2>&1 || fail "debootstrap failed; see $base/debootstrap.log"
    # The mirrors of this machine, and its certificates where its network needs its own.
    rm -f "$root/etc/apt/sources.list"
    cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/" 2>/dev/null ||
        cp /etc/apt/sources.list "$root/etc/apt/"
    touch "$base/debootstrap.done"
fi
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

# In a mount namespace of its own: the mounts below end with this process, whatever happens. The
# root is made a mount and entered by pivot_root, since a chroot may make no user namespaces and
# `ip netns exec` wants / to be a mount.
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/opt/rust"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$toolchain" "$root/opt/rust"
mount -o remount,ro,bind "$root/opt/rust"

rm -rf "$root/srv/trunkline"
git clone --quiet --no-hardlinks "$here" "$root/srv/trunkline"
echo "fresh-root: $(git -C "$root/srv/trunkline" log -1 --format='%h %s')"
cd "$root"
mkdir -p mnt/outside
pivot_root . mnt/outside
started=$(date +%s)
status=0
# Only what a login shell of root would have, and the way out to the network if there is a proxy.
env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${https_proxy:+https_proxy="$https_proxy"} ${http_proxy:+http_proxy="$http_proxy"} \
    CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt \
    chroot . /bin/bash -c "umount -l /mnt/outside && cd /srv/trunkline && $*" || status=$?
echo "fresh-root: ended with $status after $(($(date +%s) - started)) s"
exit "$status"
