# A server with a connection listens once more, tells its client the port over that connection, and accepts only when
# the client has connected (FTP in active mode, `iperf3 -M`).
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import socket, sys

listener = socket.create_server((sys.argv[1], 7777))
first, _ = listener.accept()
for how in "beside", "in its place":
    if how == "in its place":
        listener.close()
    another = socket.create_server((sys.argv[1], 7778 if how == "beside" else 7777))
    first.sendall(b"%d\n" % another.getsockname()[1])
    assert first.recv(1) == b"c"
    second, _ = another.accept()
    second.sendall(how.encode())
    second.close()
END
cat >client.py <<'END'
import socket, sys

with socket.create_connection((sys.argv[1], 7777), 60) as first:
    told = first.makefile()
    for how in "beside", "in its place":
        with socket.create_connection((sys.argv[1], int(told.readline())), 60) as second:
            first.sendall(b"c")
            answer = second.makefile().read()
            assert answer == how, answer
END
on_lull python3 server.py "$own"
listens() { "$lull" ss | grep -q "LISTEN.*:7777"; }
until_it listens
timeout 120 python3 client.py "$own" >client 2>&1 || fail "$(cat client)"
wait "$launcher" || fail "the server failed"
echo done
