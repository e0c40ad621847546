#!/usr/bin/env bash
# Runs the public suite of HTTP caches (github.com/http-tests/cache-tests) through two nodes in transparent
# mode, and counts what passed. The suite's client and its server are each in a network namespace; every request
# of the client is intercepted by the near node.
#
#   cli.mjs ── veth ── near (intercepts, stores) ══ veth ══ far ── veth ── server.mjs
#
# usage: scripts/cache-tests.sh SUITE [RESULT]   needs root, node and npm; takes about two minutes
#        SUITE: a checkout of b55b8bda with `npm install --omit=dev --ignore-scripts` done
#        RESULT: where the results are left (a JSON file)   TRUNKLINE=FILE tries another program
#        ID=NAME runs one test and shows its messages       KEEP=DIR keeps the nodes' logs
set -euo pipefail

suite="${1:?the directory of cache-tests}"
result="${2:-}"
trunkline="${TRUNKLINE:-${CARGO_TARGET_DIR:-target}/release/trunkline}"
name="ct-$$"
work="$(mktemp -d)"
pids=()

end() {
    for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
    [ -z "${KEEP:-}" ] || cp "$work"/*.log "$KEEP" 2>/dev/null || true
    for part in client near far server; do ip netns del "$name-$part" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap end EXIT

pair() { # NAMESPACE DEVICE ADDRESS NAMESPACE DEVICE ADDRESS
    ip link add "$2" netns "$name-$1" type veth peer "$5" netns "$name-$4"
    ip -n "$name-$1" address add "$3" dev "$2"
    ip -n "$name-$4" address add "$6" dev "$5"
    ip -n "$name-$1" link set "$2" up
    ip -n "$name-$4" link set "$5" up
}

for part in client near far server; do
    ip netns add "$name-$part"
    ip -n "$name-$part" link set lo up
    ip netns exec "$name-$part" sysctl -qw net.ipv4.ip_forward=1
done
pair client lan 198.18.1.2/24 near lan 198.18.1.1/24
pair near wan 198.18.0.1/24 far wan 198.18.0.2/24
pair far lan 198.18.2.1/24 server lan 198.18.2.2/24
ip -n "$name-client" route add default via 198.18.1.1
ip -n "$name-near" route add 198.18.2.0/24 via 198.18.0.2
ip -n "$name-far" route add 198.18.1.0/24 via 198.18.0.1
ip -n "$name-server" route add default via 198.18.2.1

(cd "$suite" && export npm_config_protocol=http npm_config_port=80 npm_config_pidfile="$work/pid" &&
    exec ip netns exec "$name-server" node test-engine/server/server.mjs) >"$work/server.log" 2>&1 &
pids+=($!)

configure() { # SITE PEER WAN PEER'S-LINES
    mkdir -p "$work/$1"
    cat >"$work/$1.toml" <<TOML
[node]
name = "$1"
lan_interfaces = ["lan"]
state_directory = "$work/$1"
grace = "1s"
[intercept]
mode = "transparent"
[dictionary]
memory = "64MiB"
disk = "0"
[http]
mode = "on"
[policy]
accept = "at-once"
[wan]
$3
[[peer]]
name = "$2"
$4
TOML
}

start() { # SITE
    ip netns exec "$name-$1" "$trunkline" node run --config "$work/$1.toml" >"$work/$1.log" 2>&1 &
    pids+=($!)
}

configure far near 'listen = "0.0.0.0:4433"' 'prefixes = ["198.18.1.0/24"]'
configure near far '' $'address = "198.18.0.2:4433"\nprefixes = ["198.18.2.0/24"]'
start far
start near
sleep 1
ip netns exec "$name-far" "$trunkline" peer invite --config "$work/far.toml" --name near \
    --address 198.18.0.2:4433 >"$work/token" 2>/dev/null &
invite=$!
for _ in $(seq 100); do
    [ -s "$work/token" ] && break
    sleep 0.1
done
ip netns exec "$name-near" "$trunkline" peer join --config "$work/near.toml" --name far <"$work/token" >/dev/null
wait "$invite" 2>/dev/null || true
wait_for() { # WHAT COMMAND...
    local what="$1"
    shift
    for _ in $(seq 300); do
        "$@" && return
        sleep 0.1
    done
    echo "cache-tests.sh: $what within 30 s" >&2
    exit 1
}
is_up() {
    ip netns exec "$name-near" "$trunkline" node status --json --config "$work/near.toml" 2>/dev/null |
        grep -q '"state": *"up"'
}
listens() {
    ip netns exec "$name-server" bash -c 'exec 3<>/dev/tcp/198.18.2.2/80' 2>/dev/null
}
wait_for "the nodes have no session" is_up
wait_for "the suite's server does not listen" listens

# The suite says only that a request has failed; the cause goes to standard error.
cat >"$work/causes.mjs" <<'JAVASCRIPT'
const fetchUnchanged = globalThis.fetch
globalThis.fetch = (...request) => fetchUnchanged(...request).catch(error => {
  const cause = error.cause ?? error
  console.error(`${new Date().toISOString()} ${cause.code ?? cause.name}: ${cause.message} (${request[0]})`)
  throw error
})
JAVASCRIPT
export npm_config_base="http://198.18.2.2" npm_config_id="${ID:-}" npm_package_config_id=""
(cd "$suite" && ip netns exec "$name-client" node --no-warnings --import "$work/causes.mjs" test-engine/cli.mjs) \
    >"$work/results.json"
if [ -n "${ID:-}" ]; then
    cat "$work/results.json"
    exit
fi
[ -z "$result" ] || cp "$work/results.json" "$result"
cat >"$work/count.mjs" <<'JAVASCRIPT'
import fs from 'node:fs'
const suite = process.argv[2]
const tests = (await import(`${suite}/tests/index.mjs`)).default
const { determineTestResult, resultTypes } = await import(`${suite}/test-engine/lib/results.mjs`)
const results = JSON.parse(fs.readFileSync(process.argv[3]))
const counts = { required: {}, optimal: {} }
const failed = []
for (const group of tests) {
  for (const test of group.tests) {
    const kind = test.kind ?? 'required'
    if (test.browser_only || !(kind in counts)) continue
    const verdict = determineTestResult(tests, test.id, results)
    const name = Object.keys(resultTypes).find(key => resultTypes[key] === verdict)
    counts[kind][name] = (counts[kind][name] ?? 0) + 1
    if (name !== 'pass') failed.push(`${kind} ${name} ${group.id}/${test.id}: ${results[test.id]}`)
  }
}
console.log(failed.join('\n'))
console.log(JSON.stringify(counts))
JAVASCRIPT
node "$work/count.mjs" "$(realpath "$suite")" "$work/results.json"
