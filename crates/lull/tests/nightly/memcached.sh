#!/usr/bin/env bash
# Runs memcached's own tests (t/*.t of Debian's source package) over TCP and UDP: on the kernel, on the kernel with the
# preload library loaded, and on lull's user plane in suspend20 and in base. Fails if a test passes on the kernel and
# fails in one of the other ways.
#
#   memcached.sh LULL DIRECTORY [TEST...]     the command; where to build and to keep results; t/NAME.t, all if absent
#
# It needs root, the source package or apt to fetch it, a C compiler, make, perl and libevent-dev, and prints the reason
# if it skips.
set -uo pipefail
. "$(dirname "$0")/common.bash"
suite "memcached's own tests" "$1" "$2" cc make perl ip unshare
shift 2
if [ ! -x source/memcached-debug ]; then
    debian_source memcached
    (cd source && ./configure -q && make -s memcached-debug timedrun sizes) >built 2>&1 || does_not_build
fi
cd source || exit 1

# Servers listen on TCP instead of Unix sockets, each on an address of its own and started below a command.
cp -n t/lib/MemcachedTest.pm MemcachedTest.pm.as-it-was
perl -pe '
    s/^my \@unixsockets/my \$started = 0;\nmy \@unixsockets/;
    s/\$unix_socket_disabled  = !supports_unix_socket\(\)/\$unix_socket_disabled  = 1/;
    s/^    my \$host = .127\.0\.0\.1.;/    my \$own = \$args !~ m{-[ls] }; ++\$started if \$own;
    my \$host = \$own ? \$ENV{SERVER_HOST} =~ s{\%d}{\$started}gr : "127.0.0.1";
    my \$below = \$own ? \$ENV{SERVER_BELOW} =~ s{\%d}{\$started}gr : "";/;
    s/(\$args \.= " -p \$port")/\$args .= " -l \$host" if \$own; $1/;
    s/PeerAddr => "127\.0\.0\.1:\$port"/PeerAddr => "\$host:\$port"/;
    s/timedrun 600 \$valgrind/timedrun 600 \$below \$valgrind/;
    s/PeerAddr => .127\.0\.0\.1.,/PeerAddr => \$self->{host},/;
    s/^\s*LocalAddr => .127\.0\.0\.1.,\n// if m{LocalAddr} && \$. > 460;
' MemcachedTest.pm.as-it-was >t/lib/MemcachedTest.pm.new && mv t/lib/MemcachedTest.pm.new t/lib/MemcachedTest.pm

# Runs a test in namespaces of its own; its passes and failures go to a file.
one() {
    local way=$1 test=$2
    host=127.0.0.1
    [ "${way#lull}" != "$way" ] && host=10.0.%d.2
    SERVER_HOST=$host SERVER_BELOW=$(below "$way" %d) timeout 600 unshare -n sh -c "ip link set lo up; perl -It/lib $test" \
        >"$directory/$way.$(basename "$test")" 2>&1
}
tests=("$@")
[ $# = 0 ] && tests=(t/*.t)
failed=0
declare -A passed=([kernel]=0 [library]=0 [lull]=0 [lull-base]=0)
for test in "${tests[@]}"; do
    line="" kernels=0
    for way in kernel library lull lull-base; do
        status=0
        one "$way" "$test" || status=$?
        count=$(grep -c '^ok' "$directory/$way.$(basename "$test")")
        passed[$way]=$((passed[$way] + count))
        line+=" $way $count"
        # Some tests count until something happens, so the test's own verdict is compared and not the number of passes.
        if [ "$way" = kernel ]; then kernels=$status; elif [ "$kernels" = 0 ] && [ "$status" != 0 ]; then
            line+=" FAILED"
            failed=$((failed + 1))
        fi
    done
    echo "$test:$line"
done
echo "memcached's tests: ${#tests[@]} files; passes on the kernel ${passed[kernel]}, with the library ${passed[library]}," \
    "on lull ${passed[lull]}, there in base ${passed[lull-base]}"
[ "${passed[kernel]}" -gt 0 ] || { echo "no test passes on the kernel: see $directory"; exit 1; }
[ "$failed" = 0 ] || { echo "$failed runs fail that pass on the kernel: see $directory"; exit 1; }
