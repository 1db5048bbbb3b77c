# A server closes its listener once it has forked its workers, as it may with the kernel's sockets: SCRIPT LULL MODE
# "asked|bound". The workers ask for connections afterwards. With "asked" the server has asked for one itself before,
# with "bound" it has queues for a UDP socket. When the last worker has closed the listener as well, clients are
# refused.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, select, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7777), backlog=64)
listener.setblocking(False)
if sys.argv[2] == "asked":
    waits = select.epoll()
    waits.register(listener, select.EPOLLIN)
    assert waits.poll(0) == []
else:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((sys.argv[1], 7777))
open("begins", "w").close()

def worker():
    is_closed.recv(1)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    turns = 0
    while True:
        epoll.poll()
        turns += 1
        assert turns < 10_000, "it spins"
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        with connection:
            connection.setblocking(True)
            connection.sendall(b"%d" % os.getpid())
            if connection.recv(1) == b"q":
                sys.exit()

closes, is_closed = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
workers = []
for _ in range(2):
    worker_or_none = os.fork()
    if worker_or_none == 0:
        worker()
    workers.append(worker_or_none)
if sys.argv[2] == "asked":
    waits.close()
listener.close()
closes.send(b"x")
closes.send(b"x")
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
for pid in workers:
    assert os.waitpid(pid, 0)[1] == 0, "a worker has failed"
open("all-ended", "w").close()
signal.pause()
END
cat >client.py <<'END'
import socket, sys, time

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7777), 60)
        except OSError:
            time.sleep(0.1)
    sys.exit("no connection")

first, second = connect(), connect()
workers = {first.recv(100), second.recv(100)}
for connection in first, second:
    connection.sendall(b"a")
for _ in range(50):
    with connect() as connection:
        workers.add(connection.recv(100))
        connection.sendall(b"a")
assert len(workers) == 2, workers
for _ in workers:
    with connect() as connection:
        connection.recv(100)
        connection.sendall(b"q")
        assert connection.recv(1) == b""
END
on_lull python3 server.py "$own" "$3"
until_it test -e begins
there timeout 300 python3 client.py "$own" || fail "the client has failed"
until_it test -e all-ended
there python3 -c "
import socket
try:
    socket.create_connection(('$own', 7777), 60)
except ConnectionRefusedError:
    raise SystemExit(0)
raise SystemExit('somebody listens still')" || fail "nobody has the listener any more, and it is not refused"
stop
[ "$status" = 0 ] || fail "it ended with $status"
echo done
