# A server whose processes share one inherited listener, with fewer queues than processes: SCRIPT LULL MODE "WAY QUEUES ADDRESS".
# WAY is how they ask for connections: all in "accept", "poll", "select" or "epoll", or in "turns", as a lock says (Apache's).
# As on Linux whoever asks has the next connection, and when the process that has the queue is killed, others serve on.
. "$(dirname "$0")/harness.sh"
read -r way queues address <<<"$3"

cat >server.py <<'END'
import fcntl, os, select, signal, socket, sys

way = sys.argv[2]
listener = socket.create_server((sys.argv[1], 7777), backlog=64)
turn = open("turn", "w")

def ready():
    if way == "poll":
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        poller.poll()
    elif way == "select":
        select.select([listener], [], [])
    else:
        epoll.poll()

def next_connection():
    if way == "accept":
        return listener.accept()
    while True:
        if way == "turns":
            fcntl.lockf(turn, fcntl.LOCK_EX)
        try:
            ready()
            return listener.accept()
        except BlockingIOError:
            pass
        finally:
            if way == "turns":
                fcntl.lockf(turn, fcntl.LOCK_UN)

def child():
    global epoll
    if way != "accept":
        listener.setblocking(False)
    if way in ("epoll", "turns"):
        epoll = select.epoll()
        epoll.register(listener, select.EPOLLIN)
    while True:
        connection, peer = next_connection()
        with connection:
            connection.setblocking(True)
            assert connection.family == socket.AF_INET and connection.getpeername() == peer, (connection, peer)
            assert connection.getsockname()[1] == 7777
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                connection.sendall(b"%d\n" % os.getpid())
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)
            except ConnectionError:
                pass

def begin():
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            child()
        finally:
            os._exit(1)
    children.add(process)

def end(*_):
    for process in children:
        os.kill(process, signal.SIGTERM)
    os._exit(0)

children = set()
signal.signal(signal.SIGTERM, end)
for _ in range(3):
    begin()
while True:
    process, status = os.wait()
    children.discard(process)
    if status != signal.SIGTERM:
        begin()
END
cat >client.py <<'END'
import os, socket, sys, threading, time

def connect():
    for attempt in range(600):
        try:
            connection = socket.create_connection((sys.argv[1], 7777), 60)
            said = connection.makefile("rb").readline()
            if said:
                return connection, int(said)
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("no connection")

# All at once: each of the processes has one.
connections = [connect() for _ in range(3)]
processes = {process for _, process in connections}
assert len(processes) == 3, processes
data = os.urandom(1_000_000)
def echo(connection):
    def write():
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    got = bytearray()
    while chunk := connection.recv(65536):
        got += chunk
    writer.join()
    assert got == data, len(got)
    done.append(connection.close())
done = []
threads = [threading.Thread(target=echo, args=(connection,)) for connection, _ in connections]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 3
for _ in range(100):
    connection, _ = connect()
    connection.sendall(b"short")
    assert connection.recv(5) == b"short"
    connection.close()
print("three processes served", *sorted(processes))
END
options=(--queues "$queues")
on_lull python3 server.py "$address" "$way"
timeout 240 python3 client.py "$own" || fail "no answer"
[ "$address" = "$own" ] || timeout 240 python3 client.py 127.0.0.1 || fail "no answer to the kernel's world"

# The processes that have queues are killed: another one takes each over.
for process in $("$lull" ss | sed -n 's/^process \([0-9]*\):.*/\1/p'); do
    kill -KILL "$process"
done
timeout 240 python3 client.py "$own" || fail "no answer after the owner's death"
stop
grep -q Traceback said && fail "a child failed"
echo done
