# A server that closes again and again what it has open from some number on, as daemons do, while lull passes connections on from it
# to a child: SCRIPT LULL MODE WAY. WAY is how it closes: "range" (close_range) or "from" (closefrom). On Linux nothing but its own
# descriptors are there; here lull makes some between two of its calls. With "fork" it makes children, which have its own
# descriptors and its limit on them.
. "$(dirname "$0")/harness.sh"
cat >server.py <<'END'
import ctypes, os, resource, signal, socket, sys, traceback

limit = resource.getrlimit(resource.RLIMIT_NOFILE)
lulls = limit[0] - limit[0] // 4
before = {number for number in map(int, os.listdir("/proc/self/fd")) if number < lulls}
before = {number for number in before if os.path.exists(f"/proc/self/fd/{number}")}
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

def numbers():
    """What is open of the program's, with the listing itself."""
    return {number for number in map(int, os.listdir("/proc/self/fd")) if number < lulls}

def forks():
    process = os.fork()
    if process == 0:
        try:
            assert len(numbers() - before) == 3, (numbers(), before, "the listener, the connection, and the listing")
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.waitpid(process, 0)

closes = {"range": lambda: c.close_range(20, 0xffffffff, 0), "from": lambda: c.closefrom(20), "fork": forks}[sys.argv[2]]
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
