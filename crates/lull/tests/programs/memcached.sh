# Unmodified memcached with $3 worker threads: lull's load is answered, and the sockets are lull's.
. "$(dirname "$0")/harness.sh"

options=(--pcap frames)
on_lull "${memcached[@]}" -t "$3"
until_it memcached_answers
load_memcached --connections 16 --seconds 1 --records 1000
cat load
"$lull" show >shown 2>&1 || fail "lull show: $(cat shown)"
grep -q "memcached on lull's user plane" shown || fail "it is not shown: $(cat shown)"
grep -q "$mode" shown || fail "its mode is not shown: $(cat shown)"
# A machine that has the address itself would answer without lull.
ip address show | grep -q "$own/" && fail "the kernel has the address"
stop
[ "$(stat -c %s frames)" -gt 10000 ] || fail "the frames were not recorded"
cat said
exists lull0 && fail "the TAP is left"
echo done
