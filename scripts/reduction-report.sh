#!/usr/bin/env bash
# Data reduction on real data, beside rsync, xdelta3 and zstd: the table of docs/guides/reduction.md.
#
#   scripts/reduction-report.sh TRUNKLINE [DIR]
#
# TRUNKLINE is the program; DIR keeps the data (default: a temporary directory, removed at the end).
# Each row is a pair: the older data are at both ends, and the newer ones are sent. For Trunkline that
# is `estimate --dictionary` of the older, then of the newer, and the second one's bytes count. rsync's
# are the bytes sent and received that it counts itself, with compression, on tars. xdelta3 and zstd
# have both versions before them, which no transfer has: they are bounds. xdelta3 is given a window of
# 256 MiB, without which it looks for old data near their old place only.
#
# It needs git, python3, dpkg-deb, rsync, xdelta3 and zstd, and apt for the two Debian packages
# (PACKAGE, OLD and NEW in the environment name others).
set -euo pipefail

fail() {
    echo "reduction-report: $*" >&2
    exit 2
}

[ "$#" -ge 1 ] || fail "usage: scripts/reduction-report.sh TRUNKLINE [DIR]"
trunkline=$(realpath "$1")
for tool in git python3 dpkg-deb rsync xdelta3 zstd apt-get; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install rsync xdelta3 zstd"
done
here=$(cd "$(dirname "$0")/.." && pwd)
if [ "$#" -ge 2 ]; then
    mkdir -p "$2"
    data=$(realpath "$2")
else
    data=$(mktemp -d)
    trap 'rm -rf "$data"' EXIT
fi
cd "$data"

package=${PACKAGE:-postgresql-15}
mapfile -t versions < <(apt-cache madison "$package" | awk '{print $3}' | sort -V -u)
old=${OLD:-${versions[0]}}
new=${NEW:-${versions[-1]}}
[ "$old" != "$new" ] || fail "apt knows one version of $package only; name another PACKAGE"
for version in "$old" "$new"; do
    file=${package}_${version//:/%3a}_$(dpkg --print-architecture).deb
    [ -e "$file" ] || apt-get -q download "$package=$version" >&2
done
arch=$(dpkg --print-architecture)
cp "${package}_${old//:/%3a}_$arch.deb" deb-old
cp "${package}_${new//:/%3a}_$arch.deb" deb-new
dpkg-deb --fsys-tarfile deb-old > contents-old
dpkg-deb --fsys-tarfile deb-new > contents-new

# The newest commit, and the last one that is at least DAYS days older; or the middle of a short history.
newest=$(git -C "$here" rev-parse HEAD)
before=$(($(git -C "$here" log -1 --format=%ct) - ${DAYS:-1} * 86400))
older=$(git -C "$here" rev-list -1 --before="$before" HEAD)
if [ -z "$older" ]; then
    count=$(git -C "$here" rev-list --first-parent --count HEAD)
    older=$(git -C "$here" rev-list --first-parent --skip=$((count / 2)) -1 HEAD)
fi
git -C "$here" archive "$older" > tree-old
git -C "$here" archive "$newest" > tree-new

python3 "$here/scripts/office-documents.py" office
for state in before after; do
    tar --sort=name --mtime=@0 --owner=0 --group=0 -C "office/$state" -cf "office-$state" .
done
mv office-before office-old
mv office-after office-new

size() {
    stat -c %s "$1"
}

row() {
    local title=$1 old=$2 new=$3
    echo "$title" >&2
    rm -rf kept there
    "$trunkline" estimate --json --as-files --dictionary kept "$old" > /dev/null 2>&1
    "$trunkline" estimate --json --as-files --dictionary kept "$new" > warm.json 2> /dev/null
    local ours cold
    ours=$(python3 -c 'import json; print(json.load(open("warm.json"))["wire_bytes"])')
    cold=$("$trunkline" estimate --json --as-files "$new" 2> /dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin)["wire_bytes"])')
    mkdir there
    cp "$old" there/file
    local rsync_bytes
    rsync_bytes=$(LC_ALL=C rsync -I -z --no-whole-file --stats "$new" there/file |
        awk '/^Total bytes (sent|received)/ {gsub(",", "", $4); sum += $4} END {print sum}')
    cmp -s "$new" there/file || fail "rsync made something else of $new"
    xdelta3 -9 -B 268435456 -e -f -s "$old" "$new" delta
    zstd -q -f -T1 -9 --long=31 --patch-from="$old" "$new" -o patch 2> /dev/null
    zstd -q -f -3 "$new" -o alone
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$title" "$(size "$new")" \
        "$ours" "$rsync_bytes" "$(size delta)" "$(size patch)" "$cold" "$(size alone)"
}

echo "$package $old and $new; source tree ${older:0:9} and ${newest:0:9}"
echo
echo '| | bytes | Trunkline | rsync -z | xdelta3 -9 | zstd --patch-from -9 | Trunkline, cold | zstd -3, cold |'
echo '| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |'
row "$package, contents" contents-old contents-new
row "$package, .deb" deb-old deb-new
row "source tree, tar" tree-old tree-new
row "office documents, tar" office-old office-new
