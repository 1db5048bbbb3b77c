# The host knows a program's addresses before the program needs its stack, which answers for them: SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7000))
open("listens", "w").close()
while not os.path.exists("go"):
    signal.sigtimedwait([], 0.01)
connection, _ = listener.accept()
connection.sendall(b"x")
END
nic=(--nic tap:lull0 --addr "$own/24" --addr fd00::2/64 --peer-addr 10.0.0.1/24)
on_lull python3 server.py "$own"
until_it test -e listens
for address in "$own" fd00::2; do
    ip neigh show "$address" dev lull0 | grep -q lladdr || fail "the host does not know $address"
done
touch go
until_it there python3 -c "
import socket
assert socket.create_connection(('$own', 7000), 60).recv(1) == b'x'"
wait "$launcher" || fail "the server failed"
echo done
