# A server's processes share one inherited listener, with fewer queues than processes: SCRIPT LULL MODE "WAY QUEUES
# ADDRESS [asked|bound]". With "asked" the process that forks them has asked for a connection itself before, and has the
# queues; with "bound" it has them for a UDP socket, and never asks. WAY is how they ask for connections: all in
# "accept", "poll", "select" or "epoll", or in "turns", as a lock says (Apache's). As on Linux the process that asks
# gets the next connection. When the process that has the queue exits, it stays for the connections that it passes on;
# when it is killed, others go on serving.
. "$(dirname "$0")/harness.sh"
read -r way queues address asked <<<"$3"

cat >server.py <<'END'
import fcntl, os, select, signal, socket, sys, traceback

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
                    if chunk == b"leave":
                        return
                    connection.sendall(chunk)
            except ConnectionError:
                pass

def begin():
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
            child()
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit()
    children.add(process)

def end(*_):
    for process in children:
        os.kill(process, signal.SIGTERM)
    os._exit(0)

children = set()
if sys.argv[3:] == ["bound"]:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((sys.argv[1], 7777))
if sys.argv[3:] == ["asked"]:
    # Its children inherit the epoll context that it waits in, and make one of their own.
    waits = select.epoll()
    waits.register(listener, select.EPOLLIN)
    waits.poll()
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"%d\n" % os.getpid())
    waits.unregister(listener)
leaves = []

# All processes exit in the ordinary way.
def leave(*_):
    leaves.append(True)
    for process in children:
        os.kill(process, signal.SIGUSR1)

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, leave)
for _ in range(3):
    begin()
while children:
    process, status = os.wait()
    children.discard(process)
    if status != signal.SIGTERM and not leaves:
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

# All connect at once, and each process gets one.
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
cat >leave.py <<'END'
import socket, sys

def connect(address):
    connection = socket.create_connection((address, 7777), 60)
    said = connection.makefile("rb").readline()
    return connection, int(said)

# The processes that have queues exit, and the connections that they pass on to the others go on; clients that connect
# meanwhile are served.
connections = [connect(sys.argv[1]) for _ in range(3)]
owners = set(map(int, sys.argv[2:]))
stay = [connection for connection, process in connections if process not in owners]
assert owners and stay and len(stay) < 3, (owners, connections)
for connection, process in connections:
    if process in owners:
        connection.sendall(b"leave")
        assert connection.recv(1) == b""
        connection.close()
for nth in range(100):
    if len(stay) > 1:
        # A process has one connection at a time.
        stay.pop(0).close()
        stay.append(connect(sys.argv[1])[0])
    for connection in stay:
        connection.sendall(b"goes on")
        assert connection.recv(100) == b"goes on"
for connection in stay:
    connection.close()
print("connections go on")
END
options=(--queues "$queues")
on_lull python3 server.py "$address" "$way" $asked
if [ "$asked" = asked ]; then
    find_program
    # The server answers once, and a client that gave up would have missed the answer.
    first() { [ "$(timeout 120 python3 -c 'import socket, sys
print(socket.create_connection((sys.argv[1], 7777), 120).makefile().read())' "$own")" = "$program" ]; }
    until_it first
fi
timeout 240 python3 client.py "$own" || fail "no answer"
[ "$address" = "$own" ] || timeout 240 python3 client.py 127.0.0.1 || fail "no answer to the kernel's world"

if [ -n "$asked" ]; then
    stop
    grep -q Traceback said && fail "a child failed"
    echo done
    exit
fi

owners() { "$lull" ss | sed -n 's/^process \([0-9]*\):.*/\1/p'; }
former=$(owners)
timeout 240 python3 leave.py "$own" $former || fail "a connection has ended with the process that passed it on"
# They end when they pass on no connection any more.
ended() { ! kill -0 $former; }
until_it ended
timeout 240 python3 client.py "$own" || fail "no answer after the owner has left"

# The processes that have queues are killed, and another process takes over each queue.
for process in $(owners); do
    kill -KILL "$process"
done
timeout 240 python3 client.py "$own" || fail "no answer after the owner's death"

# All exit at once: a process with a queue does not wait for others to take connections when no others are left.
cat >hold.py <<'END'
import os, selectors, socket, sys

connections = [socket.create_connection((sys.argv[1], 7777), 60) for _ in range(6)]
waits = selectors.DefaultSelector()
for connection in connections:
    waits.register(connection, selectors.EVENT_READ)
served = set()
while len(served) < 3:
    served.update(key.fd for key, _ in waits.select())
open("held", "w").close()
for connection in connections:
    try:
        while connection.recv(100): pass
    except ConnectionError:
        pass
END
find_program
python3 hold.py "$own" &
until_it test -e held
kill -USR1 "$program"
until_it eval '! kill -0 "$launcher"'
grep -q Traceback said && fail "a child failed"
echo done
