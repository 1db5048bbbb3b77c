# A server exits with three connections that linger (SO_LINGER). The peers of the first and of the last take nothing;
# the one between sees the end meanwhile, as by Linux's kernel, where a process that exits waits at no connection:
# SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import ctypes, os, socket, struct, sys

listener = socket.create_server((sys.argv[1], 7001))
first, second, third = [listener.accept()[0] for _ in range(3)]
for connection in first, second, third:
    # This is longer than anything here waits.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10_000))
for connection in first, third:
    connection.setblocking(False)
    try:
        while True:
            connection.send(b"x" * 65536)
    except BlockingIOError:
        pass
second.sendall(b"bye")
# The C library's exit is called, so that Python closes nothing.
ctypes.CDLL(None).exit(0)
END
cat >client.py <<'END'
import socket, sys, time

def connect():
    for attempt in range(1200):
        connection = socket.socket()
        connection.settimeout(100)
        # The window is smaller than what is written to it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            connection.connect((sys.argv[1], 7001))
            return connection
        except OSError:
            connection.close()
            time.sleep(0.1)
    raise SystemExit("no connection")

first, second, third = connect(), connect(), connect()
heard = b""
while chunk := second.recv(100):
    heard += chunk
assert heard == b"bye", heard
# They are reset, so the server has nothing to stay for.
first.close()
third.close()
END
on_lull python3 server.py "$own"
timeout 240 python3 client.py "$own" || fail "the second peer was not told of the end"
wait "$launcher" || fail "the server failed"
echo done
