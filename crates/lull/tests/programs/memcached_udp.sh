# Unmodified memcached over UDP with $3 worker threads: clients at the kernel's end are answered, datagram by datagram.
. "$(dirname "$0")/harness.sh"

on_lull "${memcached[@]}" -U 11211 -t "$3"
until_it memcached_answers
python3 "$(dirname "$0")/memcached_udp.py" "$own" 2000 8 || fail "the client"
load_memcached --connections 4 --seconds 0.5 --records 100
stop
exists lull0 && fail "the TAP is left"
echo done
