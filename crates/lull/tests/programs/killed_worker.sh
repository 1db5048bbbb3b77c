# One process of a program ends without closing anything, while the program goes on: its peers wait for an answer, and
# are reset, as by Linux's kernel. SCRIPT LULL MODE "tap|xdp QUEUES killed|_exit". With two queues another worker has
# one; with one the program has no process with a queue any more, until it makes another.
. "$(dirname "$0")/harness.sh"

read -r device queues way <<<"$3"
cat >server.py <<'END'
import os, signal, socket, sys, threading

def serve(connection):
    while byte := connection.recv(1):
        if byte == b"q":
            os._exit(7)
        connection.sendall(b"%d\n" % os.getpid())

def worker(listener):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,)).start()

# Each worker takes a queue when it asks for connections.
listeners = [socket.create_server((sys.argv[1], 7001 + nth)) for nth in range(int(sys.argv[2]))]
workers = []

def another(listener):
    worker_or_none = os.fork()
    if worker_or_none == 0:
        worker(listener)
    workers.append(worker_or_none)

def end(*_):
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda *_: another(listeners[0]))
for listener in listeners:
    another(listener)
open("parent", "w").write(str(os.getpid()))
while True:
    signal.pause()
END
cat >peers.py <<'END'
import os, signal, socket, sys, time

def ask(port):
    for attempt in range(1200):
        try:
            connection = socket.create_connection((sys.argv[1], port), 120)
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit(f"no connection to port {port}")
    return connection, answer(connection)

def answer(connection):
    connection.sendall(b"a")
    return int(connection.makefile().readline())

waiting = [ask(7001) for _ in range(20)]
others = [ask(7001 + nth) for nth in range(1, int(sys.argv[2]))]
worker = waiting[0][1]
assert all(pid == worker for _, pid in waiting) and all(pid != worker for _, pid in others)
if sys.argv[3] == "killed":
    os.kill(worker, signal.SIGKILL)
else:
    waiting[0][0].sendall(b"q")
for connection, _ in waiting:
    try:
        sys.exit(f"got {connection.recv(100)} instead of a reset")
    except ConnectionResetError:
        pass
    except TimeoutError:
        sys.exit("a peer was told nothing")
assert all(answer(connection) == pid for connection, pid in others), "another worker's connection is gone"
# The program goes on: another worker has the queue, and serves.
os.kill(int(open("parent").read()), signal.SIGUSR1)
connection, pid = ask(7001)
assert pid != worker and answer(connection) == pid
END
on_nic "$device" "$queues"
on_lull python3 server.py "$own" "$queues"
until_it test -s parent
there timeout 600 python3 peers.py "$own" "$queues" "$way" || fail "a peer has failed"
if [ "$queues" = 1 ]; then
    grep -q 'left 20 connections open; 20 peers were told by a reset' said || fail "the launcher does not say whom it told"
fi
stop
[ "$status" = 0 ] || fail "it ended with $status"
echo done
