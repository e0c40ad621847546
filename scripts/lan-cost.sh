#!/usr/bin/env bash
# What two nodes on a LAN cost: downloads GB through both, over a plain pair of devices, by UDP and by
# TLS in turn, and prints each node's processor time for 10^9 bytes beside the rate. On a machine that
# does other things as well, the processor time still tells one program from another.
#
#   curl ──socks5── near ══ veth, MTU 1500 ══ far ── veth ── nginx
#
# usage: scripts/lan-cost.sh [ROUNDS [WAY...]]     needs root, curl, nginx, and a release build
#        WAY: udp, tls, udp-reduced, tls-reduced   TRUNKLINE=FILE tries another program
#        GB=N downloads as much (1)                PERF=DIR records a profile of each node
#        KEEP=DIR keeps the nodes' logs and the far node's status
set -euo pipefail

rounds="${1:-3}"
shift || true
ways=("$@")
[ "${#ways[@]}" -gt 0 ] || ways=(udp tls)
gb="${GB:-1}"
trunkline="${TRUNKLINE:-${CARGO_TARGET_DIR:-target}/release/trunkline}"
name="lan-$$"
work="$(mktemp -d)"
pids=()

end() {
    for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
    wait
    for part in near far server; do ip netns del "$name-$part" 2>/dev/null || true; done
    rm -rf "$work"
}
trap end EXIT

pair() { # NAMESPACE ADDRESS NAMESPACE ADDRESS
    local device="$name${1:0:1}"
    ip link add "$device" mtu 1500 netns "$name-$1" type veth peer "$device" mtu 1500 netns "$name-$3"
    ip -n "$name-$1" address add "$2" dev "$device"
    ip -n "$name-$3" address add "$4" dev "$device"
    ip -n "$name-$1" link set "$device" up
    ip -n "$name-$3" link set "$device" up
}

for part in near far server; do
    ip netns add "$name-$part"
    ip -n "$name-$part" link set lo up
done
pair near 198.18.0.1/24 far 198.18.0.2/24
pair far 198.18.2.1/24 server 198.18.2.2/24

mkdir -p "$work/files"
# Nothing in it repeats, so that reduction has all of its work and none of its gain.
head -c "${gb}000000000" /dev/urandom >"$work/files/data"
chmod -R a+rX "$work"
cat >"$work/nginx.conf" <<NGINX
daemon off;
worker_processes 1;
pid $work/nginx.pid;
error_log $work/nginx.log;
events {}
http {
    access_log off;
    sendfile on;
    server { listen 80; listen 81; root $work/files; }
}
NGINX
ip netns exec "$name-server" nginx -c "$work/nginx.conf" &
pids+=($!)

configure() { # SITE UDP PEER EXTRA...
    local site="$1" udp="$2" peer="$3"
    mkdir -p "$work/$site"
    cat >"$work/$site.toml" <<TOML
[node]
name = "$site"
state_directory = "$work/$site"
grace = "1s"
[policy]
carry_only_ports = [80]
serve = ["198.18.2.0/24"]
[dictionary]
memory = "256MiB"
disk = "0"
[wan]
udp = "$udp"
${4:-}
[[peer]]
name = "$peer"
${5:-}
TOML
}

start() { # SITE; its process is in $started
    ip netns exec "$name-$1" "$trunkline" node run --config "$work/$1.toml" >"$work/$1.log" 2>&1 &
    started=$!
    pids+=("$started")
}

status() { ip netns exec "$name-$1" "$trunkline" node status --json --config "$work/$1.toml" 2>/dev/null; }

until_said() { # SITE WORDS
    for _ in $(seq 100); do
        status "$1" | grep -q "$2" && return
        sleep 0.1
    done
    echo "the $1 node does not say $2:" >&2
    cat "$work/$1.log" >&2
    exit 1
}

# Processor seconds of a process, in hundredths (proc(5): utime and stime).
used() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; }

nodes() { # UDP
    configure far "$1" near 'listen = "0.0.0.0:4433"'
    configure near "$1" far '' $'address = "198.18.0.2:4433"\nprefixes = ["198.18.2.0/24"]\n[proxy]\nsocks5 = "127.0.0.1:1080"'
    start far
    far=$started
    start near
    near=$started
}

stop() {
    kill -INT "$near" "$far"
    wait "$near" "$far" 2>/dev/null || true
}

nodes auto
sleep 1
ip netns exec "$name-far" "$trunkline" peer invite --config "$work/far.toml" --name near \
    --address 198.18.0.2:4433 >"$work/token" 2>/dev/null &
invite=$!
for _ in $(seq 50); do
    [ -s "$work/token" ] && break
    sleep 0.1
done
ip netns exec "$name-near" "$trunkline" peer join --config "$work/near.toml" --name far <"$work/token" >/dev/null 2>&1
wait "$invite" 2>/dev/null || true
until_said near '"carries": *"udp"'
stop

printf '%-12s %8s %10s %10s %10s %10s %s\n' way Gbit/s near_s/GB far_s/GB nodes_s/GB idle_% path
for _ in $(seq "$rounds"); do
    for way in "${ways[@]}"; do
        udp=auto
        [ "${way%%-*}" = tls ] && udp=off
        nodes "$udp"
        [ "$udp" = auto ] && until_said far '"carries": *"udp"' || until_said near '"state": *"up"'
        port=80
        [ "$way" = "${way%-reduced}" ] || port=81
        if [ -n "${PERF:-}" ]; then
            for site in near far; do
                perf record -q -F 1999 -g -p "${!site}" -o "$PERF/$way-$site.data" >/dev/null 2>&1 &
                pids+=($!)
            done
            sleep 1
        fi
        read -r near_before far_before < <(echo "$(used "$near") $(used "$far")")
        read -r _ a b c idle d rest </proc/stat
        busy_before=$((a + b + c)) idle_before=$((idle + d))
        seconds="$(ip netns exec "$name-near" curl -s -o /dev/null -w '%{time_total} %{size_download}' \
            --socks5 127.0.0.1:1080 "http://198.18.2.2:$port/data")"
        read -r _ a b c idle d rest </proc/stat
        near_used=$(($(used "$near") - near_before)) far_used=$(($(used "$far") - far_before))
        status far >"$work/status-$way.json" || true
        carries="$(grep -o '"carries": *"[a-z]*"' "$work/status-$way.json" | grep -oE 'udp|tls' || true)"
        [ -z "${KEEP:-}" ] || cp "$work/status-$way.json" "$work/far.log" "$work/near.log" "$KEEP/"
        stop
        echo "$way $seconds $near_used $far_used $busy_before $((a + b + c)) $idle_before $((idle + d)) ${carries:-tls}" |
            awk '{ gb = $3 / 1e9; printf "%-12s %8.2f %10.2f %10.2f %10.2f %10.0f %s\n",
                $1, $3 * 8 / 1e9 / $2, $4 / 100 / gb, $5 / 100 / gb, ($4 + $5) / 100 / gb,
                100 * ($9 - $8) / ($9 - $8 + $7 - $6 + 1), $10 }'
    done
done
