# A server fails to execute a program in its own place, after everything that the program must not have was closed
# (ENOEXEC). It goes on to serve its children, which accept from its listener ("inherited"), from a listener of their
# own ("own"), and have a connection, and it accepts itself once they have ended. A process that it forked before it had
# a queue is served as well ("early": it may take the queue meanwhile). SCRIPT LULL MODE WAY: the listener would be open
# in the program ("open"), or closed ("closed").
. "$(dirname "$0")/harness.sh"
read -r way early <<<"$3"

cat >server.py <<'END'
import errno, os, signal, socket, sys, time

address, way, early = sys.argv[1:]


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def serves(listener, name):
    while True:
        connection, _ = listener.accept()
        with connection:
            while word := connection.recv(100):
                connection.sendall(name + b" " + word)


def child(serve):
    if (made := os.fork()) == 0:
        serve()
    return made


listener = socket.create_server((address, 7777), backlog=16)
listener.set_inheritable(way == "open")


def asks_late():
    until("has the queue")
    serves(listener, b"inherited")


children = [child(asks_late)] if early else []
# The server has the queue.
serves_first, _ = listener.accept()
serves_first.close()
open("has the queue", "w").close()
if not early:
    children = [
        child(lambda: serves(listener, b"inherited")),
        child(lambda: serves(socket.create_server((address, 7778), backlog=16), b"own")),
    ]
until("exec")
try:
    os.execv("./junk", ["junk"])
except OSError as error:
    assert error.errno == errno.ENOEXEC, error
open("failed", "w").close()
until("ends")
for made in children:
    os.kill(made, 9)
    os.waitpid(made, 0)
open("ended", "w").close()
if way == "closed" and early:
    # No process had the queue then.
    signal.pause()
serves(listener, b"server")
END
cat >client.py <<'END'
import os, socket, sys, time

address, way, early = sys.argv[1:]
names = {7777: b"inherited"} if early else {7777: b"inherited", 7778: b"own"}


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def connected(port):
    # It waits until there is the NIC, and the child listens.
    while True:
        try:
            return socket.create_connection((address, port), 120)
        except OSError:
            time.sleep(0.01)


def answers(port, name, word, connection=None):
    connection = connection or connected(port)
    connection.sendall(word)
    answer = connection.recv(100)
    assert answer == name + b" " + word, (port, answer)
    return connection


connected(7777).close()
stay = {port: answers(port, name, b"before") for port, name in names.items()}
open("exec", "w").close()
until("failed")
# A process that has taken the queue meanwhile gets only the new connections.
for port, connection in stay.items():
    early or answers(port, names[port], b"after", connection)
    connection.close()
for _ in range(5):
    for port, name in names.items():
        answers(port, name, b"again").close()
open("ends", "w").close()
until("ended")
if not early:
    answers(7777, b"server", b"word")
print("answered")
END
printf junk >junk
chmod +x junk
on_lull python3 server.py "$own" "$way" "$early"
timeout "${LULL_TEST_PATIENCE:-120}" python3 client.py "$own" "$way" "$early" || fail "the client is not answered as before"
stop
grep -q Traceback said && fail "it failed"
[ -n "$early" ] || ! grep -q "listens at\|cannot be taken again" said || fail "something is said to be lost"
echo done
