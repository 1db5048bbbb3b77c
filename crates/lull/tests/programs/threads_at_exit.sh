# A server exits while a peer takes nothing, and stays for it. Its descriptors of the kernel's are closed for others,
# and its other thread, which goes on meanwhile, gets no error from that: SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import ctypes, os, select, socket, sys, threading

# Nothing comes by these pipes.
empty, _ = os.pipe2(os.O_NONBLOCK)
ours, _theirs = socket.socketpair()
context = select.epoll()
context.register(ours, select.EPOLLIN)
log = os.open("log", os.O_WRONLY | os.O_CREAT)
held = os.open("held", os.O_WRONLY)

def look():
    assert not select.select([empty, ours], [], [], 0.001)[0], "something is ready"
    assert not context.poll(0), "the context has an event"
    try:
        assert False, os.read(empty, 1)
    except BlockingIOError:
        pass
    assert os.write(log, b"x") == 1

def go_on():
    while True:
        try:
            look()
            os.write(2, b".")
        except BaseException as error:
            os.write(2, repr(error).encode())

listener = socket.create_server((sys.argv[1], 7001))
connection, _ = listener.accept()
threading.Thread(target=go_on).start()
connection.setblocking(False)
try:
    while True:
        connection.send(b"x" * 65536)
except BlockingIOError:
    pass
# The C library's exit is called, so that Python closes nothing.
ctypes.CDLL(None).exit(0)
END
cat >client.py <<'END'
import os, select, socket, sys, time

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

with open("held") as held:
    connection = connect()
    assert held.read() == ""
# The pipe's end was seen, so the server has exited, and stays. Its thread looks a few times more.
seen = os.path.getsize("said")
ends = select.poll()
ends.register(connection, 0)
while os.path.getsize("said") < seen + 5:
    if ends.poll(10):
        # The server has given the peer up before its thread had a turn.
        sys.exit(75)
count = 0
while chunk := connection.recv(65536):
    count += len(chunk)
assert count > 4096, count
END
options=(--quiet)
mkfifo held
for _ in $(seq 20); do
    on_lull python3 server.py "$own"
    timeout 240 python3 client.py "$own"
    client=$?
    wait "$launcher"
    status=$?
    [ "$client" = 75 ] || break
done
[ "$client" = 0 ] || fail "the client failed"
[ "$status" = 0 ] || fail "the server ended with status $status"
[ -z "$(tr -d . <said)" ] || fail "the server's thread was told of an error"
echo done
