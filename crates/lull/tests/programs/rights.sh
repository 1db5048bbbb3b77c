# A server passes each connection to another process over a Unix socket (SCM_RIGHTS): SCRIPT LULL MODE WAY, where the
# other processes are children that the server forked before it listened ("forked"), or programs that it executed
# ("executed").
. "$(dirname "$0")/harness.sh"
way=$3

cat >server.py <<'END'
import os, runpy, signal, socket, subprocess, sys

own, way, workers = sys.argv[1], sys.argv[2], 2
ends = []
for nth in range(workers):
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if way == "forked":
        worker = os.fork()
        if worker == 0:
            mine.close()
            os.dup2(theirs.fileno(), 3)
            sys.argv = ["worker.py", own]
            runpy.run_path("worker.py", run_name="__main__")
    else:
        os.set_inheritable(theirs.fileno(), True)
        worker = subprocess.Popen(["sh", "-c", f"exec python3 worker.py {own} 3<&{theirs.fileno()}"], close_fds=False).pid
    theirs.close()
    ends.append(mine)
    print("worker", worker, flush=True)

listener = socket.create_server((own, 7777), backlog=64)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
asked = 0
while True:
    connection, peer = listener.accept()
    with connection:
        # A part is read before the connection is passed on, as by a server that looks which process should have it.
        first = connection.recv(1)
        if first == b"q":
            # The server ends, and its worker still has this connection.
            socket.send_fds(ends[0], [b"e"], [connection.fileno()])
            connection.close()
            assert ends[0].recv(1) == b"t"
            print("the server ends", flush=True)
            sys.exit(0)
        if first:
            socket.send_fds(ends[asked % workers], [first + repr(peer).encode()], [connection.fileno()])
            asked += 1
END
cat >worker.py <<'END'
import os, socket, sys, threading

own = sys.argv[1]
channel = socket.socket(fileno=3)
assert channel.family == socket.AF_UNIX

def serve(connection, said):
    with connection:
        if said[:1] == b"s":
            # The worker does not end by itself.
            connection.sendall(b"%d\n" % os.getpid())
        while chunk := connection.recv(65536):
            connection.sendall(chunk)

while True:
    said, numbers, flags, _ = socket.recv_fds(channel, 200, 4)
    if not said:
        sys.exit(0)
    assert len(numbers) == 1 and not flags & socket.MSG_CTRUNC, (said, numbers)
    connection = socket.socket(fileno=numbers[0])
    assert (connection.family, connection.type, connection.proto) == (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP), connection
    assert connection.getsockname() == (own, 7777), connection
    assert said[:1] == b"e" or said[1:] == repr(connection.getpeername()).encode(), (said, connection)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    if said[:1] == b"e":
        channel.send(b"t")
    threading.Thread(target=serve, args=(connection, said)).start()
END
cat >client.py <<'END'
import os, signal, socket, sys, threading, time

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7777), 120)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

def echo(size, first=b"n"):
    data = os.urandom(size)
    with connect() as connection:
        def write():
            connection.sendall(first + data)
            connection.shutdown(socket.SHUT_WR)
        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        while chunk := connection.recv(65536):
            got += chunk
        writer.join()
        assert got == data, (size, len(got))
    done.append(size)

done = []
connect().close()
sizes = [1, 5, 1460, 100_000, 2_000_000] * 4
threads = [threading.Thread(target=echo, args=(size,)) for size in sizes]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(done) == sorted(sizes), done
print(len(done), "connections echoed")
# The peer of a process that is killed sees the end.
with connect() as connection:
    connection.sendall(b"s")
    worker = int(connection.makefile().readline())
    os.kill(worker, signal.SIGKILL)
    try:
        assert connection.recv(1) == b""
    except ConnectionResetError:
        pass
print("the peer of a killed process is told")
END
cat >last.py <<'END'
import socket, sys, time

with socket.create_connection((sys.argv[1], 7777), 120) as connection:
    connection.sendall(b"q")
    for nth in range(3000):
        connection.sendall(b"%d" % nth * 1000)
        wanted = len(b"%d" % nth) * 1000
        while wanted:
            chunk = connection.recv(wanted)
            assert chunk, nth
            wanted -= len(chunk)
        while nth == 50 and "the server ends" not in open("said").read():
            time.sleep(0.01)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
print("answered to the end")
END
options=()
on_lull python3 server.py "$own" "$way"
timeout 240 python3 client.py "$own" || fail "no answer"
gone() { ! "$lull" ss | grep -q ESTAB; }
until_it gone
stop
# The server ends, and stays until the connections that it has passed on are over.
on_lull python3 server.py "$own" "$way"
port_is_there() { "$lull" ss -l 2>/dev/null | grep -q LISTEN || "$lull" ss | grep -q LISTEN; }
until_it port_is_there
timeout 240 python3 last.py "$own" || fail "the connection ended with the server"
wait "$launcher" || fail "the server's end: $?"
grep -q Traceback said && fail "a process failed"
echo done
