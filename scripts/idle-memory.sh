#!/usr/bin/env bash
# How much memory a node spends on a flow that waits: opens COUNT connections through both nodes of
# a standing laboratory, lets them idle, and reads the nodes' anonymous memory before and after.
#
# usage: scripts/idle-memory.sh [COUNT]       needs root, python3, and a release build
set -euo pipefail

count="${1:-3500}"
trunkline="${CARGO_TARGET_DIR:-target}/release/trunkline"
work="$(mktemp -d)"
trap 'kill -INT "${lab:-}" 2>/dev/null || true; kill "${sink:-}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

"$trunkline" lab up >"$work/lab" 2>&1 &
lab=$!
for _ in $(seq 60); do
    sleep 0.5
    grep -q 'Ctrl-C' "$work/lab" && break
done
prefix="$(grep -om1 'tl[0-9a-f]*-client' "$work/lab" | sed 's/-client//')"

cat >"$work/sink.py" <<'PYTHON'
import asyncio, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
async def swallow(reader, writer):
    while await reader.read(65536):
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(swallow, "198.18.2.2", 9000, backlog=4096)
    await server.serve_forever()
asyncio.run(main())
PYTHON
cat >"$work/idle.py" <<'PYTHON'
import resource, socket, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for number in range(int(sys.argv[1])):
    connection = socket.create_connection(("198.18.2.2", 9000), timeout=20)
    connection.sendall(b"hello %d" % number)
    held.append(connection)
print("open", flush=True)
time.sleep(5)
PYTHON

anonymous() { # of the node whose configuration is $1.toml, in kB; its watchdog is the smaller one
    for pid in $(pgrep -f "node run --config .*${prefix#tl}.*/$1.toml"); do
        awk '/RssAnon/ { print $2 }' "/proc/$pid/status"
    done | sort -n | tail -1
}

ip netns exec "$prefix-server" python3 "$work/sink.py" &
sink=$!
sleep 1
near="$(anonymous near)" far="$(anonymous far)"
ip netns exec "$prefix-client" python3 "$work/idle.py" "$count" >"$work/idle" &
idle=$!
until grep -q open "$work/idle"; do
    kill -0 "$idle"
    sleep 0.2
done
sleep 2
echo "near node: $((($(anonymous near) - near) * 1024 / count)) B a flow, far node: $((($(anonymous far) - far) * 1024 / count)) B a flow ($count idle flows)"
wait "$idle"
