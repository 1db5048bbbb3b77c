# Unmodified memcached over UDP with $3 worker threads: clients on the far side are answered, datagram by datagram.
. "$(dirname "$0")/harness.sh"

on_lull unshare --user --map-user=1000 memcached -l "$own" -p 11211 -U 11211 -t "$3"
until_it "$lull" load "$own:11211" --connections 1 --seconds 0.1 --warm-up 0.1
python3 "$(dirname "$0")/memcached_udp.py" "$own" 2000 8 || fail "the client"
"$lull" load "$own:11211" --connections 4 --seconds 0.5 --records 100 >load 2>&1 || fail "the load: $(cat load)"
grep -q ' 0 errors), 0 lost, 0 unanswered' load || fail "not everything was answered: $(cat load)"
stop
exists lull0 && fail "the TAP is left"
echo done
