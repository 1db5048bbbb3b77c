#!/usr/bin/env bash
# Runs redis's own tests (runtest of Debian's source package, against a server that runs already), file by file: on the
# kernel, on the kernel with the preload library loaded, and on lull's user plane, there in suspend20, in base, and with
# two I/O threads. Fails if a test passes on the kernel and fails in one of the other ways.
#
#   redis.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; files as `runtest --list-tests`
#                                         names them, all if absent
#
# LULL_TEST_WAYS selects some of the ways: kernel, library, lull, lull-base, lull-io-threads. A file that does not end
# is given up after LULL_TEST_FILE_SECONDS (600); the tests that it has passed until then count.
#
# It needs root, the source package or apt to fetch it, a C compiler, make and tclsh, and prints the reason if it skips.
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
# Runs a file in namespaces of its own, against a server that runs in this way; its output goes to the file
# $directory/KEPT.
one() {
    local way=$1 test=$2 kept=$3 host=127.0.0.1 more=()
    [ "${way#lull}" != "$way" ] && host=10.0.0.2
    [ "$way" = lull-io-threads ] && more=(--io-threads 2 --io-threads-do-reads yes)
    # shellcheck disable=SC2016
    timeout -k 10 "${LULL_TEST_FILE_SECONDS:-600}" unshare -n --pid --fork --kill-child --mount-proc bash -c '
        ip link set lo up
        host=$1; server=$2; shift 2
        eval "$server" >"$SAID.server" 2>&1 &
        until src/redis-cli -h "$host" ping >/dev/null 2>&1; do kill -0 $! || exit 9; sleep 0.1; done
        # The test takes a port of 127.0.0.1 and expects that no address of the server has that port left.
        ./runtest --host "$host" --port 6379 --tags -slow --skiptest "CONFIG SET rollback on apply error" --single "$1"' bash \
        "$host" "$(below "$way") $(printf '%q ' "${server[@]}" --bind "$host" "${more[@]}")" "$test" >"$directory/$kept" 2>&1
}

mapfile -t tests < <(./runtest --list-tests)
[ $# = 0 ] || tests=("$@")
read -ra ways <<<"${LULL_TEST_WAYS:-kernel library lull lull-base lull-io-threads}"
for way in "${ways[@]}"; do
    : >"$directory/$way.passed"
done
for test in "${tests[@]}"; do
    line=""
    for way in "${ways[@]}"; do
        kept=$way.${test//\//-} status=0
        SAID=$directory/$kept one "$way" "$test" "$kept" || status=$?
        # Each test's name follows its verdict.
        names=$(sed 's/\x1b\[[0-9;]*m//g' "$directory/$kept" | sed -n "s|^\[ok\]: \(.*\) ([0-9]* ms)\$|$test: \1|p")
        line+=" $way $(grep -c . <<<"$names")"
        [ "$status" = 124 ] && line+=" (did not end)"
        [ -z "$names" ] || echo "$names" >>"$directory/$way.passed"
    done
    echo "$test:$line"
done
failed=0
for way in "${ways[@]}"; do
    sort -o "$directory/$way.passed" "$directory/$way.passed"
    echo "redis's tests, $way: $(wc -l <"$directory/$way.passed") passed"
    compare_passed "$way" || failed=1
done
exit "$failed"
