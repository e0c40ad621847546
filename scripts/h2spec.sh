#!/bin/sh
# Runs h2spec (https://github.com/summerwind/h2spec, v2.2.1) against the intercepted side of two nodes on
# loopback addresses: h2spec ═TLS, HTTP/2═ near node ══ far node ═TLS, HTTP/1.1═ nginx.
#
# Needs root (port 443), nginx, openssl and Go; the module comes through the Go proxy.
# Usage: scripts/h2spec.sh [PROGRAM]   PROGRAM is trunkline, built if it is left out.
# Fails below 117 of 145 passes, which is what nginx 1.22 reaches, and when a node has died.
set -eu

floor=117
root=$(cd "$(dirname "$0")/.." && pwd)
program=${1:-}
if [ -z "$program" ]; then
    (cd "$root" && cargo build --release --bin trunkline)
    program="${CARGO_TARGET_DIR:-$root/target}/release/trunkline"
fi
work=$(mktemp -d)
pids=""
finish() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT INT TERM

[ -x "${H2SPEC:-}" ] && mkdir "$work/bin" && cp "$H2SPEC" "$work/bin/h2spec" ||
    GOBIN="$work/bin" go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

near=127.77.0.1
far=127.77.0.2
name=wiki.corp.example

# The origin: nginx with a certificate of an authority of its own.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=Origin CA" \
    -keyout "$work/origin-ca.key" -out "$work/origin-ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" \
    -keyout "$work/origin.key" -out "$work/origin.csr" 2>/dev/null
printf 'subjectAltName=DNS:%s\nbasicConstraints=CA:FALSE\n' "$name" >"$work/extensions"
openssl x509 -req -in "$work/origin.csr" -CA "$work/origin-ca.pem" -CAkey "$work/origin-ca.key" -days 30 \
    -CAcreateserial -extfile "$work/extensions" -out "$work/origin.pem" 2>/dev/null
mkdir "$work/www"
head -c 300000 /dev/zero | tr '\0' 'x' >"$work/www/index.html"
cat >"$work/nginx.conf" <<CONF
user root;
daemon off;
worker_processes 1;
pid $work/nginx.pid;
error_log $work/nginx.log;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path $work/body;
    server {
        listen $far:443 ssl;
        server_name $name;
        ssl_certificate $work/origin.pem;
        ssl_certificate_key $work/origin.key;
        root $work/www;
        error_page 405 =200 /index.html;
    }
}
CONF
nginx -c "$work/nginx.conf" &
pids="$pids $!"

"$program" http ca --name "h2spec" --permit corp.example --out "$work/authority" >/dev/null

cat >"$work/near.toml" <<CONF
[node]
name = "near"
state_directory = "$work/near"
grace = "0s"
[proxy]
socks5 = "$near:1080"
[http]
mode = "on"
[http.tls]
intercept = ["*.corp.example"]
ca_certificate = "$work/authority/ca.pem"
ca_key = "$work/authority/ca.key"
store_decrypted = true
[[peer]]
name = "far"
address = "$far:4433"
prefixes = ["$far/32"]
CONF
cat >"$work/far.toml" <<CONF
[node]
name = "far"
state_directory = "$work/far"
grace = "0s"
[wan]
listen = "$far:4433"
[policy]
serve = ["$far/32"]
[http]
mode = "on"
[http.tls]
roots = "$work/origin-ca.pem"
store_decrypted = true
[[peer]]
name = "near"
CONF

INVOCATION_ID=h2spec "$program" node run --config "$work/far.toml" 2>"$work/far.log" &
far_pid=$!
pids="$pids $far_pid"
until "$program" node status --config "$work/far.toml" >/dev/null 2>&1; do sleep 0.1; done
"$program" peer invite --name near --address "$far:4433" --config "$work/far.toml" >"$work/token"
"$program" peer join --name far --config "$work/near.toml" <"$work/token" >/dev/null
INVOCATION_ID=h2spec "$program" node run --config "$work/near.toml" 2>"$work/near.log" &
near_pid=$!
pids="$pids $near_pid"
until curl -sS --max-time 5 --socks5 "$near:1080" --resolve "$name:443:$far" --cacert "$work/authority/ca.pem" \
    -o /dev/null "https://$name/" 2>/dev/null; do sleep 0.5; done

# h2spec knows no proxy, and names no server by an address: a relay speaks SOCKS for it.
cat >"$work/relay.go" <<'GO'
package main

import (
	"io"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		panic(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			continue
		}
		go relay(client)
	}
}

func relay(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", os.Args[2])
	if err != nil {
		return
	}
	defer server.Close()
	server.Write([]byte{5, 1, 0})
	reply := make([]byte, 10)
	io.ReadFull(server, reply[:2])
	address := net.ParseIP(os.Args[3]).To4()
	server.Write([]byte{5, 1, 0, 1, address[0], address[1], address[2], address[3], 1, 187})
	if _, err := io.ReadFull(server, reply); err != nil {
		return
	}
	go func() {
		io.Copy(server, client)
		server.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(client, server)
}
GO
(cd "$work" && go build -o relay relay.go)
"$work/relay" "127.77.0.3:443" "$near:1080" "$far" &
pids="$pids $!"
# The name is the relay's in a mount namespace alone.
cp /etc/hosts "$work/hosts"
echo "127.77.0.3 $name" >>"$work/hosts"
unshare -m sh -c "mount --bind '$work/hosts' /etc/hosts && '$work/bin/h2spec' -h $name -p 443 -t -k -o 3" \
    >"$work/result" || true
tail -n 200 "$work/result"
kill -0 "$near_pid" && kill -0 "$far_pid" || { echo "h2spec.sh: a node has died"; exit 1; }
# A node that answers nothing more has hung.
curl -sS --max-time 10 --socks5 "$near:1080" --resolve "$name:443:$far" --cacert "$work/authority/ca.pem" \
    -o /dev/null "https://$name/"
passed=$(sed -n 's/.*tests, \([0-9]*\) passed.*/\1/p' "$work/result" | tail -n 1)
echo "h2spec: ${passed:-0} passed; nginx 1.22 passes $floor of 145"
[ "${passed:-0}" -ge "$floor" ]
