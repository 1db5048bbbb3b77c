#!/usr/bin/env bash
# libevent's own tests (test/regress of Debian's source package) on the kernel, on the kernel with the preload library
# loaded, and on lull's user plane, where both ends of their connections are the program's own. Fails where a test passes on
# the kernel and not in one of the other ways.
#
#   libevent.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; regress's arguments
#
# It takes root, apt with deb-src, a C compiler and make, and says so where it skips.
set -uo pipefail
lull=$(realpath "$1")
directory=$2
shift 2

skip() { echo "SKIP: libevent's own tests: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "this is not root, which network namespaces take"
for program in apt-get cc make perl ip unshare; do
    command -v "$program" >/dev/null || skip "$program is missing"
done
mkdir -p "$directory"
directory=$(realpath "$directory")
cd "$directory" || exit 1
if [ ! -x source/test/regress ]; then
    apt-get source -qq --download-only libevent >fetched 2>&1 || skip "no source package: $(tail -1 fetched)"
    rm -rf source && mkdir source
    tar xf libevent_*.orig.tar.* -C source --strip-components=1 || exit 1
    # The tests' address is lull's instead of loopback's.
    perl -pi -e 's/127\.0\.0\.1/10.0.0.2/g; s/0x7f000001/0x0a000002/gi; s/INADDR_LOOPBACK/0x0a000002/g' source/test/regress*.c
    (cd source && ./configure -q --disable-shared --disable-samples && make -s test/regress) >built 2>&1 ||
        skip "it does not build: $(tail -1 built)"
fi

# The first waits for ever where the address is not loopback's; the second leaves no descriptor free, which lull needs.
tests=("$@")
[ $# = 0 ] && tests=(:dns/bufferevent_connect_hostname :dns/bufferevent_connect_hostname_emfile)
one() {
    local prepare="ip link set lo up; ip address add 10.0.0.2/24 dev lo;" below=""
    case $1 in
    library) below="env LD_PRELOAD=$(dirname "$lull")/liblull_preload.so" ;;
    lull)
        prepare="ip link set lo up;"
        below="$lull run --nic tap:lull0 --addr 10.0.0.2/24 --peer-addr 10.0.0.1/24 --mode suspend20 --"
        ;;
    esac
    timeout 1800 unshare -n sh -c "$prepare exec $below source/test/regress ${tests[*]}" >"$1.said" 2>&1
    grep -aE 'OK$' "$1.said" | grep -aoE '^[a-z_]+/[a-z0-9_]+' | sort -u >"$1.passed"
}
failed=0
for way in kernel library lull; do
    one "$way"
    echo "libevent's tests: $(wc -l <"$way.passed") pass: $way"
    comm -23 kernel.passed "$way.passed" >"$way.missing"
    if [ -s "$way.missing" ]; then
        echo "these pass on the kernel and not so: $(tr '\n' ' ' <"$way.missing")"
        failed=1
    fi
done
exit "$failed"
