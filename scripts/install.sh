#!/usr/bin/env bash
# Installs what a part of Trunkline needs from Debian, and nothing when nothing is missing.
#
#   scripts/install.sh build|demo|test [--dry-run]
#
# Prints what it is about to install, asks nothing, and may be run any number of times. Needs root
# or sudo only when something is missing. No service is left running or set to start at boot: the
# laboratory starts the servers itself, in network namespaces of their own.
set -euo pipefail

# A package, and a file that it brings: the file says whether it is there, however it was installed.
BUILD=(
    "gcc:cc"                  # ring and zstd are partly C
    "libc6-dev:/usr/include/stdlib.h"
    "ca-certificates:/etc/ssl/certs/ca-certificates.crt"
)
DEMO=(
    "nftables:nft"            # interception
    "iproute2:ip"             # namespaces, routes, rules
    "ethtool:ethtool"         # offloads off where a capture is read
    "curl:curl"               # clients
    "smbclient:smbclient"
    "nginx-light:nginx"       # servers
    "vsftpd:vsftpd"
    "samba:smbd"
    "tcpdump:tcpdump"         # captures
    "uidmap:newuidmap"        # many user ids in a user namespace, which smbd wants without root
    "mount:mount"
    "openssl:openssl"         # certificates of HTTPS servers
)
TEST=(
    "tshark:tshark"           # recomputes the demo's table from its captures
    "iperf3:iperf3"
    "passt:pasta"             # a link around a command, without root
    "samba-testsuite:smbtorture"
    "krb5-kdc:krb5kdc"        # tickets for SMB sessions
    "krb5-admin-server:kadmin.local"
    "samba-vfs-modules:/usr/lib/$(uname -m)-linux-gnu/samba/vfs/full_audit.so"
    "smbnetfs:smbnetfs"       # clients of trunkline bench smb
    "qemu-system-x86:qemu-system-x86_64" # ... and a machine with the kernel's client
    "python3-venv:ensurepip"
    "chromium:chromium"       # page loads; without it a client of our own loads pages in the demo
)
# Clients of SMB that Debian has not: smbprotocol, and what it needs, by version.
SMB_CLIENTS=(smbprotocol==1.17.0 pyspnego==0.12.4)
# What the lab's mailbox and its clients are written with.
MAILBOX=(impacket==0.13.1 pycryptodomex==3.24.2)
CACHE="${TRUNKLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trunkline}"
# What these packages would start on a machine with systemd.
UNITS=(nginx.service vsftpd.service smbd.service nmbd.service samba-ad-dc.service iperf3.service
    krb5-kdc.service krb5-admin-server.service)

fail() {
    echo "install: $*" >&2
    exit 1
}

is_there() {
    case "$1" in
        /*) [ -e "$1" ] ;;
        ensurepip) /usr/bin/python3 -c "import ensurepip" 2>/dev/null ;;
        *) command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
    esac
}

missing_packages() {
    local entry
    for entry in "$@"; do
        is_there "${entry#*:}" || echo "${entry%%:*}"
    done
}

check_rust() {
    local found
    command -v cargo >/dev/null 2>&1 ||
        fail "no cargo in PATH. Install Rust 1.95 or newer from https://rustup.rs and run this again."
    found=$(rustc --version 2>/dev/null | cut -d' ' -f2)
    [ "$(printf '%s\n' 1.95.0 "${found:-0}" | sort -V | head -1)" = 1.95.0 ] ||
        fail "rustc is ${found:-missing}, 1.95 or newer is needed (Debian's own is too old). See https://rustup.rs."
}

# Runs a command as root, or explains why it cannot.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        fail "root or sudo is needed to install packages."
    fi
}

# Packages start their services while they are unpacked unless this file says no (invoke-rc.d(8)).
# One that an administrator has put there is left alone.
POLICY=/usr/sbin/policy-rc.d
made_policy=no
forbid_starts() {
    [ -e "$POLICY" ] && return
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
    made_policy=yes
}
allow_starts() {
    if [ "$made_policy" = yes ]; then
        as_root rm -f "$POLICY"
        made_policy=no
    fi
}

# The units that exist already belong to somebody: only those that come new are switched off.
present_units() {
    local unit
    for unit in "${UNITS[@]}"; do
        if [ -e "/lib/systemd/system/$unit" ]; then echo "$unit"; fi
    done
}

install_packages() {
    local before unit
    before=" $(present_units | tr '\n' ' ')"
    trap allow_starts EXIT
    forbid_starts
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@"
    allow_starts
    trap - EXIT
    for unit in $(present_units); do
        case "$before" in
            *" $unit "*) ;;
            *)
                # Without systemd there is only its record of links to take back.
                as_root systemctl --quiet disable "$unit" >/dev/null 2>&1 ||
                    as_root deb-systemd-helper disable "$unit" >/dev/null 2>&1 || true
                ;;
        esac
    done
}

# A Python of the project's own, for the one who calls: no root, nothing outside its directory in
# the cache. Its packages follow the directory's name.
install_python() {
    local home="$CACHE/$1" wanted="${*:2}"
    if [ "$(cat "$home/holds" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "install: with pip, into $home: $wanted"
    if ! { rm -rf "$home" && /usr/bin/python3 -m venv "$home" &&
        "$home/bin/pip" install --quiet --disable-pip-version-check "${@:2}" &&
        echo "$wanted" >"$home/holds"; }; then
        echo "install: no $1; what needs it will be left out, or say so" >&2
    fi
}

main() {
    local wanted packages
    case "${1:-}" in
        build) wanted=("${BUILD[@]}") ;;
        demo) wanted=("${BUILD[@]}" "${DEMO[@]}") ;;
        test) wanted=("${BUILD[@]}" "${DEMO[@]}" "${TEST[@]}") ;;
        *) fail "say what for: build, demo or test." ;;
    esac
    mapfile -t packages < <(missing_packages "${wanted[@]}")
    if [ "${2:-}" = --dry-run ]; then
        echo "install: would install: ${packages[*]:-nothing}"
        exit 0
    fi
    if [ "${#packages[@]}" -gt 0 ]; then
        command -v apt-get >/dev/null 2>&1 ||
            fail "these are missing and there is no apt-get: ${packages[*]}"
        echo "install: with apt-get, no service started: ${packages[*]}"
        install_packages "${packages[@]}"
        mapfile -t packages < <(missing_packages "${wanted[@]}")
        [ "${#packages[@]}" -eq 0 ] || fail "still missing after the installation: ${packages[*]}"
    fi
    if [ "$1" = test ]; then
        install_python smb-clients "${SMB_CLIENTS[@]}"
        install_python mailbox "${MAILBOX[@]}"
    fi
    check_rust
    echo "install: everything for '$1' is there."
}

main "$@"
