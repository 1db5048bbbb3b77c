# A program accepts from a listener, and shuts that down: clients that connect then are refused, as on Linux, without a
# delay. This also works with more queues than frames can tell apart (31): SCRIPT LULL MODE QUEUES.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, socket, sys, time

listener = socket.create_server((sys.argv[1], 7001))
connection, _ = listener.accept()
listener.shutdown(socket.SHUT_RDWR)
connection.sendall(b"accepted")
while not os.path.exists("is refused"):
    time.sleep(0.01)
connection.sendall(b" and served")
END
cat >client.py <<'END'
import socket, sys, time


def connected():
    # It waits until the server listens.
    while True:
        try:
            return socket.create_connection((sys.argv[1], 7001), 120)
        except ConnectionRefusedError:
            time.sleep(0.01)


with connected() as connection:
    assert connection.recv(100) == b"accepted"
    try:
        socket.create_connection((sys.argv[1], 7001), 120)
        sys.exit("a listener that is shut down accepts")
    except ConnectionRefusedError:
        pass
    open("is refused", "w").close()
    assert connection.recv(100) == b" and served"
END
options=(--queues "$3")
on_lull python3 server.py "$own"
until_it exists lull0
timeout -s KILL 150 python3 client.py "$own" || fail "who connects to a listener that is shut down is not refused"
wait "$launcher" || fail "the server ended with $?"
echo done
