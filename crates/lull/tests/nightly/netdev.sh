#!/usr/bin/env bash
# Runs Linux's own users of the netlink family `netdev` on lull's devices: the selftest `busy_poller` with the three
# cases of busy_poll_test.sh, and ynl. A value that ynl changes has to change what is counted.
#
#   netdev.sh LULL DIRECTORY     the command; where to build
#
# LULL_KERNEL_SOURCE names a source tree of Linux 6.19 or newer; without it Debian's newest is downloaded (160 MB). It
# needs root, apt, a C compiler, make and python3 with yaml, and prints the reason if it skips.
set -uo pipefail
scripts=$(realpath "$(dirname "$0")/../programs")
. "$(dirname "$0")/common.bash"
suite "Linux's users of netdev" "$1" "$2" cc make python3 ip unshare
python3 -c 'import yaml, jsonschema' 2>/dev/null || skip "python3 has no yaml or no jsonschema"

# Downloads Debian's newest kernel source.
download() {
    local version
    list_sources sid || skip "Debian's list of sources: $(tail -n 1 fetched 2>/dev/null || echo "name a source of Linux with LULL_KERNEL_SOURCE")"
    # It takes the newest version that the mirror still has.
    for version in $(apt-cache "${sources[@]}" showsrc linux | sed -n 's/^Version: //p' | sort -rV); do
        apt-get "${sources[@]}" source -qq --download-only "linux=$version" >fetched 2>&1 && break
    done
    ls linux_*.orig.tar.xz >/dev/null 2>&1 || skip "no source of Linux: $(tail -1 fetched)"
    mkdir -p source
    tar xf linux_*.orig.tar.xz -C source --strip-components=1 --wildcards '*/tools/net/ynl' '*/tools/testing/selftests/net' \
        '*/Documentation/netlink' '*/include/uapi' '*/MAINTAINERS' || exit 1
    rm linux_*.orig.tar.xz
}
source=${LULL_KERNEL_SOURCE:-$directory/source}
[ -d "$source/tools/net/ynl" ] || download
[ -d "$source/tools/net/ynl" ] || skip "$source has no tools/net/ynl"
grep -q napi_threaded "$source/tools/testing/selftests/net/busy_poller.c" || skip "$source is older than Linux 6.19"
ynl=$source/tools/net/ynl
spec=$source/Documentation/netlink/specs/netdev.yaml
if [ ! -x busy_poller ]; then
    python3 "$ynl/pyynl/ynl_gen_c.py" --mode user --source --spec "$spec" -o netdev-user.c || exit 1
    python3 "$ynl/pyynl/ynl_gen_c.py" --mode user --header --spec "$spec" -o netdev-user.h || exit 1
    cc -O2 -o busy_poller -I. -I"$ynl/lib" -idirafter "$source/include/uapi" "$source/tools/testing/selftests/net/busy_poller.c" \
        netdev-user.c "$ynl/lib/ynl.c" >built 2>&1 || { cat built; exit 1; }
fi
failed=0
for nic in tap xdp; do
    rm -rf "$nic" && mkdir "$nic"
    (cd "$nic" && unshare -n --pid --fork --kill-child --mount-proc bash "$scripts/selftest.sh" "$lull" base "$nic" \
        "$directory/busy_poller" "$ynl/pyynl/cli.py" "$spec") || failed=1
done
exit "$failed"
