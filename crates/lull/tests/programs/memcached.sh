# Unmodified memcached with $3 worker threads: our own load is answered, and the sockets are lull's.
. "$(dirname "$0")/harness.sh"

options=(--pcap frames)
# As a user without any right: root's memcached would drop its groups, which these namespaces refuse.
on_lull unshare --user --map-user=1000 memcached -l "$own" -p 11211 -t "$3"
until_it "$lull" load "$own:11211" --connections 1 --seconds 0.1 --warm-up 0.1
"$lull" load "$own:11211" --connections 16 --seconds 1 --records 1000 >load 2>&1 || fail "the load: $(cat load)"
cat load
grep -q ' 0 errors), 0 lost, 0 unanswered' load || fail "not everything was answered: $(cat load)"
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
