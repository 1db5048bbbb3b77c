#!/usr/bin/env bash
# redis's own tests (runtest of Debian's source package, against a server that runs already): on the kernel, on the kernel with
# the preload library loaded, and on lull's user plane, there with one I/O thread and with two. Fails where a test passes on
# the kernel and not in one of the other ways.
#
#   redis.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; runtest's arguments
#
# LULL_TEST_WAYS names some of the ways: kernel, library, lull, lull-io-threads.
#
# It takes root, apt with deb-src, a C compiler, make and tclsh, and says so where it skips.
set -uo pipefail
lull=$(realpath "$1")
directory=$2
shift 2

skip() { echo "SKIP: redis's own tests: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "this is not root, which network namespaces take"
for program in apt-get cc make tclsh ip unshare; do
    command -v "$program" >/dev/null || skip "$program is missing"
done
mkdir -p "$directory"
directory=$(realpath "$directory")
cd "$directory" || exit 1
if [ ! -x source/src/redis-server ]; then
    apt-get source -qq --download-only redis >fetched 2>&1 || skip "no source package: $(tail -1 fetched)"
    rm -rf source && mkdir source
    tar xf redis_*.orig.tar.* -C source --strip-components=1 || exit 1
    make -s -C source MALLOC=libc redis-server redis-cli redis-benchmark >built 2>&1 || skip "it does not build: $(tail -1 built)"
fi
cd source || exit 1

server=(src/redis-server --save "" --protected-mode no --enable-protected-configs yes --enable-debug-command yes
    --enable-module-command yes)
# Runs the tests in namespaces of their own, against a server that runs in this way.
one() {
    local way=$1 below=() host=127.0.0.1 more=()
    shift
    case $way in
    library) below=(env "LD_PRELOAD=$(dirname "$lull")/liblull_preload.so") ;;
    lull*)
        host=10.0.0.2
        below=("$lull" run --nic tap:lull0 --addr 10.0.0.2/24 --peer-addr 10.0.0.1/24 --mode suspend20 --)
        ;;
    esac
    [ "$way" = lull-io-threads ] && more=(--io-threads 2 --io-threads-do-reads yes)
    # shellcheck disable=SC2016
    timeout -k 10 1800 unshare -n --pid --fork --kill-child --mount-proc bash -c '
        ip link set lo up
        host=$1; server=$2; shift 2
        eval "$server" >"$DIRECTORY/$WAY.server" 2>&1 &
        until src/redis-cli -h "$host" ping >/dev/null 2>&1; do kill -0 $! || exit 9; sleep 0.1; done
        # The test occupies a port of 127.0.0.1 and expects that no address of the server has it left.
        ./runtest --host "$host" --port 6379 --tags -slow --skiptest "CONFIG SET rollback on apply error" "$@"' bash "$host" \
        "$(printf '%q ' "${below[@]}" "${server[@]}" --bind "$host" "${more[@]}")" "$@" >"$directory/$way" 2>&1
}
failed=0
for way in ${LULL_TEST_WAYS:-kernel library lull lull-io-threads}; do
    status=0
    DIRECTORY=$directory WAY=$way one "$way" "$@" || status=$?
    # Each test's name stands behind its verdict.
    sed 's/\x1b\[[0-9;]*m//g' "$directory/$way" | sed -n 's/^\[ok\]: \(.*\) ([0-9]* ms)$/\1/p' | sort >"$directory/$way.passed"
    echo "redis's tests, $way: $(wc -l <"$directory/$way.passed") passed, exit status $status"
    lost=$(comm -23 "$directory/kernel.passed" "$directory/$way.passed")
    if [ -n "$lost" ]; then
        echo "they passed on the kernel and not here: $lost"
        failed=1
    fi
done
exit "$failed"
