# A server makes a listener, forks children that accept from it, and asks for connections itself only when a child has
# the NIC's queue: SCRIPT LULL MODE "WAY ADDRESS". WAY is how it asks: "accept", "poll", "select" or "epoll". As on
# Linux the process that asks next gets the next connection (PHP's own server works so).
. "$(dirname "$0")/harness.sh"
read -r way address <<<"$3"
cat >server.py <<'END'
import os, select, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7777), backlog=64)
way = sys.argv[2]

def serve():
    if way != "accept":
        listener.setblocking(False)
    if way == "epoll":
        epoll = select.epoll()
        epoll.register(listener, select.EPOLLIN)
    while True:
        if way == "poll":
            poller = select.poll()
            poller.register(listener, select.POLLIN)
            poller.poll()
        elif way == "select":
            select.select([listener], [], [])
        elif way == "epoll":
            epoll.poll()
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        with connection:
            connection.setblocking(True)
            connection.sendall(b"%d\n" % os.getpid())
            while data := connection.recv(65536):
                connection.sendall(data)

children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        serve()
    children.append(child)
def end(*_):
    for child in children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
# The client makes this file when the children have been asked.
while not os.path.exists("asked"):
    select.select([], [], [], 0.01)
serve()
END
cat >client.py <<'END'
import os, socket, sys, time

def connect():
    for _ in range(600):
        try:
            connection = socket.create_connection((sys.argv[1], 7777), 60)
            process = connection.makefile("rb").readline()
            if process:
                return connection, int(process)
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("no connection")

connections = [connect() for _ in range(2)]
open("asked", "w").close()
connections.append(connect())
processes = {process for _, process in connections}
assert len(processes) == 3, processes
for connection, _ in connections:
    connection.sendall(b"hello")
    assert connection.recv(5, socket.MSG_WAITALL) == b"hello"
    connection.close()
for _ in range(100):
    connection, _ = connect()
    connection.close()
END
on_lull python3 server.py "$address" "$way"
timeout 120 python3 client.py "$own" || fail "no answer"
[ "$address" = "$own" ] || timeout 120 python3 client.py 127.0.0.1 || fail "no answer to the kernel's world"
stop
[ "$status" = 0 ] || fail "it ended with status $status"
grep -q Traceback said && fail "it failed"
echo done
