#!/usr/bin/env bash
# redis's own tests (runtest of Debian's source package, against a server that runs already): on the kernel, on the kernel with
# the preload library loaded, and on lull's user plane, there with one I/O thread and with two. Fails where a test passes on
# the kernel and not in one of the other ways.
#
#   redis.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; runtest's arguments
#
# LULL_TEST_WAYS names some of the ways: kernel, library, lull, lull-io-threads.
#
# It takes root, the source package or apt to fetch it, a C compiler, make and tclsh, and says so where it skips.
set -uo pipefail
. "$(dirname "$0")/common.bash"
suite "redis's own tests" "$1" "$2" cc make tclsh ip unshare
shift 2
if [ ! -x source/src/redis-server ]; then
    debian_source redis
    make -s -C source MALLOC=libc redis-server redis-cli redis-benchmark >built 2>&1 || does_not_build
fi
cd source || exit 1

server=(src/redis-server --save "" --protected-mode no --enable-protected-configs yes --enable-debug-command yes
    --enable-module-command yes)
# Runs the tests in namespaces of their own, against a server that runs in this way.
one() {
    local way=$1 host=127.0.0.1 more=()
    shift
    [ "${way#lull}" != "$way" ] && host=10.0.0.2
    [ "$way" = lull-io-threads ] && more=(--io-threads 2 --io-threads-do-reads yes)
    # shellcheck disable=SC2016
    timeout -k 10 1800 unshare -n --pid --fork --kill-child --mount-proc bash -c '
        ip link set lo up
        host=$1; server=$2; shift 2
        eval "$server" >"$DIRECTORY/$WAY.server" 2>&1 &
        until src/redis-cli -h "$host" ping >/dev/null 2>&1; do kill -0 $! || exit 9; sleep 0.1; done
        # The test occupies a port of 127.0.0.1 and expects that no address of the server has it left.
        ./runtest --host "$host" --port 6379 --tags -slow --skiptest "CONFIG SET rollback on apply error" "$@"' bash "$host" \
        "$(below "$way") $(printf '%q ' "${server[@]}" --bind "$host" "${more[@]}")" "$@" >"$directory/$way" 2>&1
}
failed=0
for way in ${LULL_TEST_WAYS:-kernel library lull lull-io-threads}; do
    status=0
    DIRECTORY=$directory WAY=$way one "$way" "$@" || status=$?
    # Each test's name stands behind its verdict.
    sed 's/\x1b\[[0-9;]*m//g' "$directory/$way" | sed -n 's/^\[ok\]: \(.*\) ([0-9]* ms)$/\1/p' | sort >"$directory/$way.passed"
    echo "redis's tests, $way: $(wc -l <"$directory/$way.passed") passed, exit status $status"
    compare_passed "$way" || failed=1
done
exit "$failed"
