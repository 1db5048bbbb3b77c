# Connections that clients begin between a program's `listen` and its first `accept`, which starts lull's stack, wait
# for the stack, as on Linux they wait for `accept`: SCRIPT LULL MODE QUEUES.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, socket, sys, time

listeners = [socket.create_server((sys.argv[1], port)) for port in (7001, 7002)]
open("listens", "w").close()
while not os.path.exists("is to accept"):
    time.sleep(0.01)
for listener in listeners:
    for _ in range(2):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"accepted")
END
cat >client.py <<'END'
import os, socket, sys

connections = []
for port in (7001, 7001, 7002, 7002):
    connection = socket.socket()
    connection.setblocking(False)
    # The SYN has been handed to the interface when this call returns.
    connection.connect_ex((sys.argv[1], port))
    connections.append(connection)
with socket.socket() as nobodys:
    nobodys.setblocking(False)
    nobodys.connect_ex((sys.argv[1], 7003))
    open("is to accept", "w").close()
    for connection in connections:
        connection.settimeout(120)
        assert connection.recv(100) == b"accepted"
    nobodys.settimeout(120)
    try:
        nobodys.recv(1)
        sys.exit("a port where nobody listens is connected to")
    except ConnectionRefusedError:
        pass
END
options=(--queues "$3")
on_lull python3 server.py "$own"
until_it [ -e listens ]
# Nobody answers for the NIC's address yet. It is that of the kernel's end with a bit changed, which makes it locally
# administered.
mac=$(ip -j link show lull0 | python3 -c '
import json, sys
octets = bytearray.fromhex(json.load(sys.stdin)[0]["address"].replace(":", ""))
octets[0] = (octets[0] | 2) & ~1
octets[5] ^= 1
print(octets.hex(":"))')
ip neigh replace "$own" lladdr "$mac" dev lull0 nud permanent
timeout -s KILL 150 python3 client.py "$own" || fail "who connects to a listener before the first accept is not served"
wait "$launcher" || fail "the server ended with $?"
cat said
echo done
