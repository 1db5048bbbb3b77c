# One process binds a socket, and several others listen on it, like the workers of uvicorn and of node: children of
# `fork` ("fork"), programs that it executes ("exec"), or processes to which it passes the socket over a Unix socket
# ("passed"). They share the connections, by one queue or by one each. A worker that is told to end closes the listener,
# and ends itself by a signal: SCRIPT LULL MODE "HOW ADDRESS QUEUES".
. "$(dirname "$0")/harness.sh"
read -r how address queues <<<"$3"
options=(--queues "$queues")
cat >server.py <<'END'
import os, signal, socket, subprocess, sys, time

how, address = sys.argv[1:3]

def until(name):
    while not os.path.exists(name):
        time.sleep(0.005)

def worker(listener):
    """Serves one client at a time, until that leaves; one that is told to end does so then, by a signal."""
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        with connection:
            while said := connection.recv(100):
                connection.sendall(b"%d\n" % os.getpid())
                if said in (b"end", b"stay"):
                    listener.close()
                    connection.sendall(b"x" * 1_000_000)
                    connection.close()
                    until("is all" if said == b"stay" else "bound")
                    os.kill(os.getpid(), signal.SIGTERM)
                    assert False, "it has not ended"

if how == "worker":
    worker(socket.socket(fileno=int(sys.argv[3])))
if how == "asks":
    with socket.socket(socket.AF_UNIX) as asks:
        asks.connect("server")
        _, [number], *_ = socket.recv_fds(asks, 100, 1)
    worker(socket.socket(fileno=number))

bound = socket.socket()
bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
bound.bind((address, 7777))
# `vfork`: such a child closes all numbers that are not its own.
subprocess.run(["true"], check=True)
me = [sys.executable, sys.argv[0]]
if how == "fork":
    for _ in range(3):
        if os.fork() == 0:
            worker(bound)
if how == "exec":
    for _ in range(3):
        subprocess.Popen([*me, "worker", address, str(bound.fileno())], pass_fds=[bound.fileno()])
if how == "passed":
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("server")
        server.listen()
        for _ in range(3):
            subprocess.Popen([*me, "asks", address])
        for _ in range(3):
            with server.accept()[0] as asks:
                socket.send_fds(asks, [b"s"], [bound.fileno()])
open("bound", "w").close()
until("last has closed")
bound.close()
open("nobody listens", "w").close()
for _ in range(3):
    _, status = os.wait()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status
END
cat >client.py <<'END'
import socket, sys

def client():
    return socket.create_connection((sys.argv[1], 7777), 60)

def whose(connection, asked=b"who"):
    connection.sendall(asked)
    answer = b""
    while not answer.endswith(b"\n"):
        answer += connection.recv(1) or sys.exit("it has ended")
    return int(answer)

# Three clients wait at once for three workers, and a fourth for the worker that is free first.
for left in [3, 2, 1]:
    clients = [client() for _ in range(left)]
    workers = [whose(connection) for connection in clients]
    assert len(set(workers)) == left, workers
    waits = client()
    # What was written before the end arrives, and another worker serves the client that waited behind it, as long as
    # there is one.
    assert whose(clients[0], b"end" if left > 1 else b"stay") == workers[0]
    rest = b"".join(iter(lambda: clients[0].recv(100_000), b""))
    assert rest == b"x" * 1_000_000, len(rest)
    if left > 1:
        clients[1].close()
        assert whose(waits) == workers[1]
    for connection in [*clients, waits]:
        connection.close()
# This process goes on: while the process that bound the socket has it open, nobody is refused.
open("last has closed", "w").close()
END
at="$own"
[ "$address" = any ] && at=0.0.0.0
there_is() { [ -e "$1" ]; }
on_lull python3 server.py "$how" "$at"
until_it there_is bound
# Workers listen a moment after they are made.
until_it there python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 7777), 5)' "$own"
there timeout 120 python3 client.py "$own" || fail "clients were not served"
until_it there_is "nobody listens"
# With one queue the process that goes on may have none, and then no process has one.
[ "$queues" = 1 ] || there python3 -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7777), 60)
    sys.exit("nobody listens")
except ConnectionRefusedError:
    pass' "$own" || fail "it is not refused"
touch "is all"
wait "$launcher" || fail "the program: $(cat said)"
grep -q -e Traceback -e Error said && fail "a process failed: $(cat said)"
echo done
