# A program exits with connections open: SCRIPT LULL MODE. A client exits that has written more than its peer takes at
# the moment, and the peer gets all of it. A worker of a server exits with connections open, while its parent and
# another worker go on: the peers of those that it had accepted see the end, as by Linux's kernel. The others wait for a
# process that accepts, since the parent still has the listener, and their peers see the end when the program ends.
. "$(dirname "$0")/harness.sh"

cat >sink.py <<'END'
import socket, sys

with socket.socket() as listener:
    # The window is made small before the socket listens.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
    listener.bind(("0.0.0.0", 5001))
    listener.listen()
    open("listens", "w").close()
    connection, _ = listener.accept()
    # Until the client has ended nobody reads.
    input()
    got = 0
    while chunk := connection.recv(65536):
        got += len(chunk)
    print(got)
END
cat >client.py <<'END'
import socket, sys

with socket.create_connection(("10.0.0.1", 5001), 60) as connection:
    connection.sendall(b"x" * 60_000)
print("closed", flush=True)
END
mkfifo go
python3 sink.py <go >sunk 2>&1 &
sink=$!
exec 9>go
until_it test -e listens
on_lull python3 client.py
until_it grep -q closed said
echo >&9
exec 9>&-
wait "$launcher" || fail "the client failed: $(cat said)"
wait "$sink"
[ "$(cat sunk)" = 60000 ] || fail "the peer of a program that exited has $(cat sunk) of 60000 bytes"

cat >server.py <<'END'
import ctypes, os, signal, socket, sys

def worker(listener):
    connection, _ = listener.accept()
    connection.recv(1)
    # The last byte of a second connection, which nobody accepts, has come when a third one asks.
    while connection.recv(1) not in (b"x", b""):
        pass
    # The C library's exit is called, so that Python closes nothing.
    ctypes.CDLL(None).exit(0)

# Each worker takes a queue when it asks for connections.
listeners = [socket.create_server((sys.argv[1], port)) for port in (7001, 7002)]
for listener in listeners:
    if os.fork() == 0:
        worker(listener)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
END
cat >peers.py <<'END'
import fcntl, socket, sys, termios, time

def connect(port):
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], port), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

accepted = connect(7001)
accepted.sendall(b"a")
waiting = connect(7001)
waiting.sendall(b"is acknowledged, and read by nobody")
while fcntl.ioctl(waiting, termios.TIOCOUTQ, bytes(4)) != bytes(4):
    time.sleep(0.05)
accepted.sendall(b"x")

def told_of_the_end(connection):
    connection.settimeout(60)
    try:
        assert connection.recv(1) == b""
    except ConnectionResetError:
        pass

told_of_the_end(accepted)
other = connect(7002)
other.sendall(b"ax")
assert other.recv(1) == b""
open("waits", "w").close()
told_of_the_end(waiting)
END
nic=(--nic tap:lull2 --addr 10.0.2.2/24 --peer-addr 10.0.2.1/24)
options=(--queues 2)
on_lull python3 server.py 10.0.2.2
timeout 240 python3 peers.py 10.0.2.2 >peers 2>&1 &
peers=$!
until_it eval '[ -e waits ] || ! kill -0 '"$peers"
stop
wait "$peers" || fail "a peer was told of no end: $(cat peers said)"

# The process that has the only queue exits. It stays for a peer that takes nothing at the moment, and meanwhile passes
# on packets to the process that has no queue. When the slow peer has everything, it still stays for that process's
# connection.
cat >shared.py <<'END'
import ctypes, os, signal, socket, sys

def owner(listener):
    connection, _ = listener.accept()
    open("owner_has_one", "w").close()
    connection.recv(1)
    connection.sendall(b"y" * 60_000)
    with open("owner_leaves", "w") as leaves:
        leaves.write(str(os.getpid()))
    ctypes.CDLL(None).exit(0)

def other(listener):
    while not os.path.exists("owner_has_one"):
        signal.sigtimedwait([], 0.01)
    # It has asked for a connection before it says so.
    listener.setblocking(False)
    try:
        listener.accept()
        sys.exit("who connected?")
    except BlockingIOError:
        listener.setblocking(True)
    open("other_asks", "w").close()
    while True:
        connection, _ = listener.accept()
        while asked := connection.recv(1):
            connection.sendall(asked)

listener = socket.create_server((sys.argv[1], 7003))
for each in owner, other:
    if os.fork() == 0:
        each(listener)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
while True:
    signal.pause()
END
cat >slow.py <<'END'
import os, socket, sys, time

def connect(window=None):
    for attempt in range(600):
        connection = socket.socket()
        if window:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.settimeout(60)
        try:
            connection.connect((sys.argv[1], 7003))
            return connection
        except OSError:
            connection.close()
            time.sleep(0.1)
    raise SystemExit("no connection")

def asks(connection):
    connection.sendall(b"a")
    assert connection.recv(1) == b"a"

slow = connect(32768)
while not os.path.exists("other_asks"):
    time.sleep(0.05)
slow.sendall(b"x")
while not os.path.exists("owner_leaves") or not (owner := open("owner_leaves").read()):
    time.sleep(0.05)
# When it begins to stay it has no packets for others any more: it sleeps then.
while open(f"/proc/{owner}/stat").read().rpartition(")")[2].split()[0] != "S":
    time.sleep(0.05)
served = connect()
asks(served)
got = 0
while chunk := slow.recv(65536):
    got += len(chunk)
assert got == 60_000, got
time.sleep(0.5)
asks(served)
served.close()
# The owner ends, and the other process takes its queue.
asks(connect())
END
nic=(--nic tap:lull3 --addr 10.0.3.2/24 --peer-addr 10.0.3.1/24)
options=()
on_lull setsid python3 shared.py 10.0.3.2
timeout 240 python3 slow.py 10.0.3.2 || fail "a connection that was passed on ended with the process that did: $(cat said)"
stop

# A thread waits at a connection while its process exits: the connection's peer sees the end, as by Linux's kernel.
cat >threads.py <<'END'
import ctypes, os, signal, socket, sys, threading, time

listener = socket.create_server((sys.argv[1], 7004))
if os.fork() == 0:
    waits, _ = listener.accept()
    thread = threading.Thread(target=waits.recv, args=(1,))
    thread.start()
    ends, _ = listener.accept()
    ends.recv(1)
    # A thread that sleeps while Python's lock is free sleeps in its call.
    while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.05)
    ctypes.CDLL(None).exit(0)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
END
cat >told.py <<'END'
import socket, sys, time

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7004), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

waited_at, ends = connect(), connect()
ends.sendall(b"x")
assert waited_at.recv(1) == b"", "there was nothing to send"
END
nic=(--nic tap:lull4 --addr 10.0.4.2/24 --peer-addr 10.0.4.1/24)
on_lull python3 threads.py 10.0.4.2
timeout 240 python3 told.py 10.0.4.2 || fail "the peer of a connection that a thread waited at was told nothing: $(cat said)"
stop
echo done
