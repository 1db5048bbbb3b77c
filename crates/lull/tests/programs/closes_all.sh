# A server closes again and again everything that it has open from some number on, as daemons do, while lull passes
# connections on from it to a child: SCRIPT LULL MODE WAY. WAY is how it closes: "range" (close_range) or "from"
# (closefrom). On Linux only its own descriptors exist; here lull makes some between two of its calls.
. "$(dirname "$0")/harness.sh"
cat >server.py <<'END'
import ctypes, os, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7777), backlog=64)
# The NIC's queue is this process's.
connection, _ = listener.accept()
connection.sendall(b"mine\n")
child = os.fork()
if child == 0:
    connection.close()
    while True:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)
def end(*_):
    os.kill(child, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
c = ctypes.CDLL(None)

closes = {"range": lambda: c.close_range(20, 0xffffffff, 0), "from": lambda: c.closefrom(20)}[sys.argv[2]]
while True:
    closes()
END
cat >client.py <<'END'
import socket, sys

def connect():
    return socket.create_connection((sys.argv[1], 7777), 60)

first = connect()
assert first.recv(100) == b"mine\n"
for nth in range(300):
    with connect() as connection:
        connection.sendall(b"%d" % nth)
        assert connection.recv(100) == b"%d" % nth
print("all connections were served")
END
on_lull python3 server.py "$own" "$3"
served() { "$lull" ss 2>/dev/null | grep -q 7777; }
until_it served
timeout 240 python3 client.py "$own" || fail "a descriptor of lull's was closed"
stop
grep -q "cannot be passed on\|Traceback\|fatal" said && fail "what is passed on was closed"
echo done
