# Datagram servers on a wildcard address and a client, all in Python, hear lull and the kernel; a name server is asked
# as well if there is one.
. "$(dirname "$0")/harness.sh"

here=$(dirname "$0")
on_lull python3 "$here/udp_server.py" 7000
until_it python3 "$here/udp_client.py" "$own" 7000 1
python3 "$here/udp_client.py" "$own" 7000 2000 || fail "a client of lull's world"
python3 "$here/udp_client.py" 127.0.0.1 7000 200 || fail "a client of the kernel's world"
if command -v ping > /dev/null; then
    ping -q -c 3 -s 20000 "$own" > /dev/null || fail "a ping in fragments"
fi
stop
python3 "$here/udp_server.py" 7001 &
server=$!
until_it python3 "$here/udp_client.py" 127.0.0.1 7001 1
"$lull" run "${nic[@]}" --mode "$mode" -- python3 "$here/udp_client.py" 10.0.0.1 7001 1000 ||
    fail "a client on lull"
"$lull" run "${nic[@]}" --mode "$mode" -- python3 "$here/udp_client.py" 127.0.0.1 7001 10 ||
    fail "a client of loopback on lull"
kill "$server"
echo done
