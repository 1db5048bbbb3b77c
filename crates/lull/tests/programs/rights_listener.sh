# A child of a server that has accepted connections passes the listener that it has inherited to another process, over a
# Unix socket (SCM_RIGHTS), and ends: SCRIPT LULL MODE. The server passes on the connections that the other process
# accepts.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, signal, socket, subprocess, sys

own = sys.argv[1]
mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.set_inheritable(theirs.fileno(), True)
other = subprocess.Popen(["sh", "-c", f"exec python3 other.py 3<&{theirs.fileno()}"], close_fds=False)
theirs.close()
listener = socket.create_server((own, 7777), backlog=64)
signal.signal(signal.SIGTERM, lambda *_: (other.kill(), os._exit(0)))
# The process that has the NIC accepts itself until it forks.
listener.accept()[0].close()
child = os.fork()
if child == 0:
    socket.send_fds(mine, [b"l"], [listener.fileno()])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("passed", flush=True)
other.wait()
END
cat >other.py <<'END'
import os, socket

said, numbers, *_ = socket.recv_fds(socket.socket(fileno=3), 100, 4)
listener = socket.socket(fileno=numbers[0])
assert listener.family == socket.AF_INET and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
while True:
    connection, peer = listener.accept()
    with connection:
        assert connection.getpeername() == peer and connection.getsockname() == listener.getsockname()
        connection.sendall(b"%d " % os.getpid() + connection.recv(100))
END
cat >client.py <<'END'
import socket, sys, time

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7777), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

with connect() as connection:
    assert connection.recv(1) == b""
while "passed" not in open("said").read():
    time.sleep(0.01)
answerers = set()
for nth in range(20):
    with connect() as connection:
        connection.sendall(b"%d" % nth)
        who, what = b"".join(iter(lambda: connection.recv(100), b"")).split()
        assert int(what) == nth
        answerers.add(who)
assert len(answerers) == 1, answerers
print("20 connections answered")
END
on_lull python3 server.py "$own"
timeout 240 python3 client.py "$own" || fail "no answer"
stop
grep -q Traceback said && fail "a process failed"
echo done
