# A program is killed: the peers of its connections are reset, as the kernel resets those of its own sockets.
. "$(dirname "$0")/harness.sh"

on_lull "${memcached[@]}" -t 1
until_it memcached_answers
cat >client.py <<'END'
import os, socket, sys, time
connections = [socket.create_connection((sys.argv[1], 11211)) for _ in range(20)]
for connection in connections:
    connection.settimeout(120)
    connection.sendall(b"version\r\n")
    assert connection.recv(100).startswith(b"VERSION")
closed = connections.pop()
closed.close()
open("connected", "w").close()
# The thread that closed the connection answers again once it is done with it.
while not os.path.exists("is closed"):
    time.sleep(0.01)
connections[0].sendall(b"version\r\n")
assert connections[0].recv(100).startswith(b"VERSION")
open("is answered", "w").close()
for connection in connections:
    try:
        sys.exit(f"got {connection.recv(100)} instead of a reset")
    except ConnectionResetError:
        pass
END
python3 client.py "$own" >client 2>&1 &
client=$!
until_it test -e connected
find_program
until_it has_open "$program" 19
touch "is closed"
until_it test -e "is answered"
kill -9 "$program"
wait "$client" || fail "the client: $(cat client)"
wait "$launcher"
[ $? = 137 ] || fail "lull run did not end with the program's status"
grep -q "the program left 19 connections open; 19 peers were told by a reset" said || fail "not all peers were told"
exists lull0 && fail "the TAP is left"
echo done
