# A server's child executes a program with a connection that the child has not used: SCRIPT LULL MODE. The executed
# program serves the connection if the server has closed it, or if the program writes something first; a helper that
# never looks at the connection takes nothing from what the server goes on to serve itself; and a child that could not
# execute anything serves the connection itself.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, signal, socket, sys

def echo(connection, name):
    while chunk := connection.recv(65536):
        connection.sendall(name + chunk)
        name = b""
    # A helper may still have it open.
    connection.shutdown(socket.SHUT_WR)
    connection.close()

def execute(path, connection, *more):
    child = os.fork()
    if child == 0:
        listener.close()
        try:
            os.execv(path, [path, *more, str(connection.fileno())])
        except OSError:
            echo(connection, b"the child ")
        os._exit(0)
    return child

listener = socket.create_server((sys.argv[1], 7777))
open("no_program", "w").write("\x7fELF")
os.chmod("no_program", 0o755)
waits_for, helped = [], os.pipe()
for way in "closes", "writes", "helper", "fails":
    connection, _ = listener.accept()
    connection.set_inheritable(True)
    os.set_inheritable(helped[0], way == "helper")
    if way == "helper":
        helper = execute(sys.executable, connection, "-c", f"import os; os.read({helped[0]}, 1)")
        echo(connection, b"the server ")
        continue
    path = "./no_program" if way == "fails" else sys.executable
    child = execute(path, connection, "executed.py", way)
    if way == "closes":
        connection.close()
        waits_for.append(child)
    else:
        os.waitpid(child, 0)
        connection.close()
# When the server ends, no connections are left that are passed on.
while not os.path.exists("finished"):
    signal.sigtimedwait([], 0.01)
os.write(helped[1], b"!")
[os.waitpid(child, 0) for child in (*waits_for, helper)]
END
cat >executed.py <<'END'
import socket, sys

connection = socket.socket(fileno=int(sys.argv[2]))
assert connection.getsockname()[1] == 7777 and connection.getpeername()[0] == "10.0.0.1", connection
name = b"the program "
if sys.argv[1] == "writes":
    connection.sendall(name)
    name = b""
while chunk := connection.recv(65536):
    connection.sendall(name + chunk)
    name = b""
connection.shutdown(socket.SHUT_WR)
END
cat >client.py <<'END'
import os, socket, sys, threading

for who in b"the program ", b"the program ", b"the server ", b"the child ":
    data = os.urandom(300_000)
    with socket.create_connection((sys.argv[1], 7777), 60) as connection:
        def write():
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        while chunk := connection.recv(65536):
            got += chunk
        writer.join()
        assert got == who + data, (who, bytes(got[:20]), len(got))
open("finished", "w").close()
END
options=()
on_lull python3 server.py "$own"
listens() { "$lull" ss | grep -q LISTEN; }
until_it listens
timeout 240 python3 client.py "$own" || fail "a connection is not served: $(cat said)"
wait "$launcher" || fail "the server failed: $(cat said)"
grep -q Traceback said && fail "a child failed: $(cat said)"
echo done
