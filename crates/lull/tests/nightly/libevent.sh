#!/usr/bin/env bash
# Runs libevent's own tests (test/regress of Debian's source package) on the kernel, on the kernel with the preload
# library loaded, and on lull's user plane, where both ends of their connections are the program's own. Fails if a test
# passes on the kernel and fails in one of the other ways.
#
#   libevent.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; regress's arguments
#
# It needs root, the source package or apt to fetch it, a C compiler and make, and prints the reason if it skips.
set -uo pipefail
. "$(dirname "$0")/common.bash"
suite "libevent's own tests" "$1" "$2" cc make perl ip unshare
shift 2
if [ ! -x source/test/regress ]; then
    debian_source libevent
    # The tests use lull's address instead of loopback's.
    perl -pi -e 's/127\.0\.0\.1/10.0.0.2/g; s/0x7f000001/0x0a000002/gi; s/INADDR_LOOPBACK/0x0a000002/g' source/test/regress*.c
    # The header is made first, because make does not know that the program depends on it.
    (cd source && ./configure -q --disable-shared --disable-samples && make -s include/event2/event-config.h && make -s test/regress) \
        >built 2>&1 || does_not_build
fi

# The first of these waits for ever if the address is not loopback's; the second leaves no descriptor free, and lull
# needs some.
tests=("$@")
[ $# = 0 ] && tests=(:dns/bufferevent_connect_hostname :dns/bufferevent_connect_hostname_emfile)
one() {
    local prepare="ip link set lo up; ip address add 10.0.0.2/24 dev lo;"
    [ "$1" = lull ] && prepare="ip link set lo up;"
    timeout 1800 unshare -n sh -c "$prepare exec $(below "$1") source/test/regress ${tests[*]}" >"$1.said" 2>&1
    grep -aE 'OK$' "$1.said" | grep -aoE '^[a-z_]+/[a-z0-9_]+' | sort -u >"$1.passed"
}
failed=0
for way in kernel library lull; do
    one "$way"
    echo "libevent's tests: $(wc -l <"$way.passed") pass: $way"
    compare_passed "$way" || failed=1
done
exit "$failed"
