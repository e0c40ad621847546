#!/usr/bin/env bash
# Recomputes every row of a measurement from its captures, by tshark and awk alone, and compares.
#
#   scripts/recompute-rows.sh DIR
#
# DIR is what `trunkline demo --keep DIR` or `trunkline lab run PLAN --keep DIR` has left: captures/ and
# samples.csv. It shares no code with the lab. A row's time runs from the first request for the data
# (HTTP GET; FTP RETR or STOR; the first SMB2 READ or WRITE after the CREATE; the first RopReadStream) to the first segment
# that acknowledges the last byte of the data; its WAN bytes are the IP packets at the emulator from
# the file's first packet (SYN, EPSV or CREATE) to the next file's. Markers, UDP packets to port 9,
# say where each workload begins and ends. A document has two times, which are compared one by one.
#
# A campaign also leaves passes.csv: packets, packets of others and retransmissions at the client, and bytes of
# each direction and round trips at the emulator. A round trip is a packet of the near side with 80 bytes of
# payload or more, and the first such packet of the far side that comes at least the link's round-trip time later.
#
# Prints one line for each row or pass that differs (times by more than 2 microseconds, counts at all) and a
# last line of totals; ends with 1 if any differs.
set -euo pipefail

fail() {
    echo "recompute-rows: $*" >&2
    exit 2
}

[ "$#" = 1 ] || fail "usage: scripts/recompute-rows.sh DIR"
directory=$1
[ -r "$directory/samples.csv" ] || fail "$directory has no samples.csv"
command -v tshark >/dev/null || fail "tshark is missing: apt-get install tshark"

# One line a packet. Segments are not put together: the captures hold only their beginnings.
packets() {
    tshark -r "$1" -n -o tcp.desegment_tcp_streams:FALSE -T fields -E occurrence=f \
        -e frame.time_epoch -e tcp.srcport -e tcp.dstport -e tcp.seq -e tcp.ack -e tcp.len \
        -e tcp.flags.syn -e tcp.flags.ack -e tcp.stream -e udp.dstport -e ip.len \
        -e tcp.payload -e udp.payload -e ipv6.plen -e ipv6.dst -e ip.src -e ip.dst -e udp.length 2>/dev/null
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A label is its captures' name and the pass.
sed 1d "$directory/samples.csv" | awk -F, '{ name = $1; sub("-" $2 "$", "", name); print name }' |
    sort -u >"$scratch/names"

rows=0
passes=0
differing=0
while read -r name; do
    packets "$directory/captures/$name-client.pcap" >"$scratch/client"
    packets "$directory/captures/$name-wan.pcap" >"$scratch/wan"
    awk -F, -v name="$name" 'NR > 1 { n = $1; sub("-" $2 "$", "", n) } NR > 1 && n == name' \
        "$directory/samples.csv" >"$scratch/samples"
    : >"$scratch/passes"
    # Labels of the passes that the samples name.
    [ ! -r "$directory/passes.csv" ] || awk -F, 'NR == FNR { labels[$1]; next } $1 in labels' \
        "$scratch/samples" "$directory/passes.csv" >"$scratch/passes"
    awk -v samples="$scratch/samples" -v passes="$scratch/passes" -v wan="$scratch/wan" '
        function hex(text, wide,    i, out) {
            for (i = 1; i <= length(text); i++)
                out = out sprintf("%02x", code[substr(text, i, 1)]) (wide ? "00" : "")
            return out
        }
        function text(digits,    i, out) {
            for (i = 1; i < length(digits); i += 2) out = out letter[substr(digits, i, 2)]
            return out
        }
        function starts(i, digits) { return substr(payload[i], 1, length(digits)) == digits }
        function smb(i, number) {
            return substr(payload[i], 9, 8) == "fe534d42" && substr(payload[i], 33, 4) == number
        }
        # The first segment from "answering" that acknowledges all data from "sending" between.
        function acknowledged(from, until, stream_, sending, to_server,    j, last) {
            last = 0
            for (j = from; j < until; j++)
                if (stream[j] == stream_ && len[j] > 0 && side(j, sending, to_server))
                    if (seq[j] + len[j] > last) last = seq[j] + len[j]
            for (j = from; j < finish; j++)
                if (stream[j] == stream_ && !side(j, sending, to_server) && ackflag[j] && ack[j] >= last)
                    return time[j]
            return -1
        }
        function side(j, port, to_server) { return to_server ? dport[j] == port : sport[j] == port }
        function http(file,    i, j, key) {
            key = hex("GET /" file " ", 0)
            for (i = begin; i < finish; i++) if (dport[i] == 80 && starts(i, key)) break
            if (i == finish) return 0
            for (j = begin; j < finish; j++) if (stream[j] == stream[i] && syn[j]) break
            start = time[j]; asked = time[i]
            done = acknowledged(i, finish, stream[i], 80, 0)
            return 1
        }
        function ftp(file, verb, upload,    i, j, k, key, reply, port) {
            key = hex(verb " " file "\r\n", 0)
            for (i = begin; i < finish; i++) if (dport[i] == 21 && starts(i, key)) break
            if (i == finish) return 0
            for (j = i; j > begin; j--) if (sport[j] == 21 && starts(j, "323239")) break
            reply = text(payload[j])
            sub(/^[^|]*\|\|\|/, "", reply); sub(/\|.*/, "", reply); port = reply + 0
            for (j = i; j > begin; j--) if (dport[j] == 21 && starts(j, "45505356")) break
            for (k = j; k < finish; k++) if (syn[k] && !ackflag[k] && dport[k] == port) break
            start = time[j]; asked = time[i]
            done = acknowledged(k, finish, stream[k], port, upload)
            return 1
        }
        function smb2(file, upload,    i, j, k, path, size) {
            path = (upload ? "upload\\" : "") file
            size = sprintf("%02x00", 2 * length(path))
            for (i = begin; i < finish; i++)
                if (dport[i] == 445 && smb(i, "0500") && substr(payload[i], 229, 4) == size &&
                    substr(payload[i], 249, 4 * length(path)) == hex(path, 1)) break
            if (i == finish) return 0
            for (j = i; j < finish; j++) if (dport[j] == 445 && smb(j, upload ? "0900" : "0800")) break
            for (k = j; k < finish; k++) if (dport[k] == 445 && smb(k, "0600")) break
            start = time[i]; asked = time[j]
            done = acknowledged(j, k, stream[i], 445, upload)
            return 1
        }
        # A document: from its CREATE to the CREATE of its temporary file (~WRD...), and from there
        # to TREE_DISCONNECT or LOGOFF.
        function office(file,    i, j, k, size) {
            size = sprintf("%02x00", 2 * length(file))
            for (i = begin; i < finish; i++)
                if (dport[i] == 445 && smb(i, "0500") && substr(payload[i], 229, 4) == size &&
                    substr(payload[i], 249, 4 * length(file)) == hex(file, 1)) break
            if (i == finish) return 0
            for (j = i; j < finish; j++)
                if (dport[j] == 445 && stream[j] == stream[i] && smb(j, "0500") &&
                    substr(payload[j], 249, 16) == hex("~WRD", 1)) break
            for (k = j; k < finish; k++)
                if (dport[k] == 445 && stream[k] == stream[i] && (smb(k, "0400") || smb(k, "0200"))) break
            start = time[i]; asked = 0
            opened = acknowledged(i, j, stream[i], 445, 0) - time[i]
            saved = acknowledged(j, k, stream[i], 445, 0) - time[j]
            done = opened + saved
            return 1
        }
        # Method of a DCE/RPC request: EcDoDisconnect is 1, EcDoRpc 2, EcDoRpcExt2 11.
        function rpc(i) { return starts(i, "050000") ? substr(payload[i], 45, 4) : "" }
        # RopReadStream is 2c, XORed with a5 unless the flag XorMagic of RPC_HEADER_EXT is missing.
        function reads_stream(i) {
            if (rpc(i) == "0200") return substr(payload[i], 117, 2) == "89"
            if (rpc(i) != "0b00") return 0
            return substr(payload[i], 125, 2) == (substr(payload[i], 110, 1) ~ /[2367abef]/ ? "89" : "2c")
        }
        # The attachment with this number: each has a connection of its own.
        function mapi(number,    i, j, k, seen, known) {
            for (i = begin; i < finish; i++)
                if (reads_stream(i) && !(stream[i] in seen)) {
                    seen[stream[i]] = 1
                    if (++known == number) break
                }
            if (i == finish) return 0
            for (j = begin; j < finish; j++) if (stream[j] == stream[i] && syn[j]) break
            for (k = i; k < finish; k++)
                if (stream[k] == stream[i] && dport[k] == dport[i] && rpc(k) == "0100") break
            start = time[j]; asked = time[i]
            done = acknowledged(i, k, stream[i], dport[i], 0)
            return 1
        }
        # Traffic at the client between the markers: all packets but multicast, those that are not TCP between the
        # two hosts, and segments with data that do not go beyond those before them.
        function count_traffic(    i, key, end, ends) {
            packets = foreign = repeated = 0
            for (i = begin; i < finish; i++) {
                if (udpport[i] == 9 || multicast[i] || !is_ip[i]) continue
                packets++
                if (sport[i] == "" || !(source[i] target[i] == client server || source[i] target[i] == server client)) {
                    foreign++
                    continue
                }
                key = stream[i] source[i]
                end = seq[i] + len[i]
                if (syn[i]) { ends[key] = seq[i] + 1; continue }
                if (len[i] == 0) continue
                if (key in ends && end <= ends[key]) repeated++
                else ends[key] = end
            }
        }
        # Bytes of both directions and round trips at the emulator.
        function count_crossings(from, until, round_trip,    i, sent) {
            up = down = trips = 0
            sent = -1
            for (i = from; i < until; i++) {
                if (wbytes[i] == 0) continue
                if (outward[i]) up += wbytes[i]; else down += wbytes[i]
                if (wpayload[i] < 80) continue
                if (sent < 0 && outward[i]) sent = wtime[i]
                else if (sent >= 0 && !outward[i] && wtime[i] - sent >= round_trip - 0.0000001) { trips++; sent = -1 }
            }
            if (round_trip == 0) trips = 0
        }
        function distance(a, b) { return a < b ? b - a : a - b }
        BEGIN {
            FS = "\t"
            # The lab'"'"'s addresses: hosts, the near LAN and the near node.
            client = "198.18.1.2"; server = "198.18.2.2"; near = "^198[.]18[.](1[.]|11[.]2$)"
            for (i = 1; i < 256; i++) {
                code[sprintf("%c", i)] = i
                letter[sprintf("%02x", i)] = sprintf("%c", i)
            }
        }
        {
            time[NR] = $1; sport[NR] = $2; dport[NR] = $3; seq[NR] = $4; ack[NR] = $5; len[NR] = $6
            syn[NR] = ($7 == "1" || $7 == "True"); ackflag[NR] = ($8 == "1" || $8 == "True")
            stream[NR] = $9; payload[NR] = $12
            source[NR] = $16; target[NR] = $17; udpport[NR] = $10
            is_ip[NR] = $15 != "" || $16 != ""
            multicast[NR] = $15 ~ /^ff/ || $17 ~ /^2(2[4-9]|3[0-9])[.]/
            if ($10 == 9) mark[$13] = mark[$13] " " NR
        }
        END {
            while ((getline line < wan) > 0) {
                count++
                split(line, field, "\t")
                wtime[count] = field[1]; wbytes[count] = field[11]
                outward[count] = field[16] ~ near
                wpayload[count] = field[6] != "" ? field[6] : field[18] != "" ? field[18] - 8 : 0
                # The kernel announces the emulator'"'"'s devices to each other by IPv6 multicast.
                if (field[14] != "") wbytes[count] = field[15] ~ /^ff/ ? 0 : field[14] + 40
                if (field[10] == 9) { wbytes[count] = 0; wmark[field[13]] = wmark[field[13]] " " count }
            }
            while ((getline line < samples) > 0) {
                split(line, field, ",")
                n++
                label[n] = field[1]; workload[n] = field[3]; file[n] = field[4]
                elapsed[n] = field[6]; bytes[n] = field[7]
                open_s[n] = field[8]; save_s[n] = field[9]
            }
            for (row = 1; row <= n; row++) {
                places = split(mark[hex("trunkline-lab begin " label[row] ".", 0)], place, " ")
                begin = place[places] + 1
                split(mark[hex("trunkline-lab end " label[row] ".", 0)], place, " ")
                finish = place[1]
                if (workload[row] == "http-download") found = http(file[row])
                else if (workload[row] == "ftp-download") found = ftp(file[row], "RETR", 0)
                else if (workload[row] == "ftp-upload") found = ftp(file[row], "STOR", 1)
                else if (workload[row] == "smb-download" || workload[row] == "smb-serial-download")
                    found = smb2(file[row], 0)
                else if (workload[row] ~ /^mapi-/) {
                    place_of = label[row - 1] == label[row] ? place_of + 1 : 1
                    found = mapi(place_of)
                }
                else if (workload[row] == "smb-office") found = office(file[row])
                else if (workload[row] == "smb-upload") found = smb2(file[row], 1)
                if (found && open_s[row] != "" &&
                    (distance(opened, open_s[row]) > 0.000002 || distance(saved, save_s[row]) > 0.000002)) {
                    printf "%s %s: reported %.6f and %.6f s, recomputed %.6f and %.6f s\n",
                        label[row], file[row], open_s[row], save_s[row], opened, saved
                    wrong++
                }
                ok[row] = found; starts_at[row] = start; took[row] = done - asked
            }
            for (row = 1; row <= n; row++) {
                places = split(wmark[hex("trunkline-lab begin " label[row] ".", 0)], place, " ")
                from = place[places] + 1
                split(wmark[hex("trunkline-lab end " label[row] ".", 0)], place, " ")
                until = place[1]
                first = label[row - 1] == label[row]
                last = label[row + 1] == label[row]
                total = 0
                for (i = from; i < until; i++)
                    if ((!first || wtime[i] >= starts_at[row]) && (!last || wtime[i] < starts_at[row + 1]))
                        total += wbytes[i]
                if (!ok[row] || distance(took[row], elapsed[row]) > 0.000002 || total != bytes[row]) {
                    printf "%s %s: reported %.6f s and %d bytes, recomputed %.6f s and %d bytes\n",
                        label[row], file[row], elapsed[row], bytes[row], took[row], total
                    wrong++
                }
            }
            while ((getline line < passes) > 0) {
                split(line, field, ",")
                counted++
                places = split(mark[hex("trunkline-lab begin " field[1] ".", 0)], place, " ")
                begin = place[places] + 1
                split(mark[hex("trunkline-lab end " field[1] ".", 0)], place, " ")
                finish = place[1]
                count_traffic()
                places = split(wmark[hex("trunkline-lab begin " field[1] ".", 0)], place, " ")
                from = place[places] + 1
                split(wmark[hex("trunkline-lab end " field[1] ".", 0)], place, " ")
                count_crossings(from, place[1], field[2] + 0)
                reported = field[3] " " field[4] " " field[5] " " field[6] " " field[7] " " field[8]
                recomputed = packets " " foreign " " repeated " " up " " down " " trips
                if (reported != recomputed) {
                    printf "%s: reported %s, recomputed %s (packets, foreign, retransmitted; bytes up, down, round trips)\n",
                        field[1], reported, recomputed
                    wrong++
                }
            }
            printf "rows %d %d %d\n", n, counted, wrong
        }' "$scratch/client" >"$scratch/out"
    grep -v '^rows ' "$scratch/out" || true
    read -r _ n counted wrong < <(grep '^rows ' "$scratch/out")
    rows=$((rows + n))
    passes=$((passes + counted))
    differing=$((differing + wrong))
done <"$scratch/names"

echo "$rows rows and $passes passes recomputed, $differing differ"
[ "$rows" -gt 0 ] && [ "$differing" = 0 ]
