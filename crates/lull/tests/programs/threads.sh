# A program has a thread for each connection, and more connections than a CPU has places for workers. Each thread waits
# by the given call. SCRIPT LULL MODE CALL
call=$3
. "$(dirname "$0")/harness.sh"

cat >server.py <<'PY'
"""Echoes on port 7, a thread for each connection, which waits by this call."""
import select, socket, sys, threading

call, address = sys.argv[1:]

def serve(connection):
    if call == "epoll":
        epoll = select.epoll()
        epoll.register(connection, select.EPOLLIN)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        if call == "epoll":
            epoll.poll()
        elif call == "poll":
            poll.poll()
        elif call == "select":
            select.select([connection], [], [])
        data = connection.recv(100)
        if not data:
            break
        connection.sendall(data)
    connection.close()

def served(connection):
    try:
        serve(connection)
    except BaseException as error:
        print(f"a thread failed: {error!r}", flush=True)

listener = socket.create_server((address, 7), backlog=500)
while True:
    connection = listener.accept()[0]
    threading.Thread(target=served, args=(connection,), daemon=True).start()
PY
cat >client.py <<'PY'
"""So many connections, each of which is answered three times."""
import socket, sys

address, count = sys.argv[1], int(sys.argv[2])
connections = [socket.create_connection((address, 7), timeout=120) for _ in range(count)]
for turn in b"abc":
    sent = bytes([turn])
    for connection in connections:
        connection.sendall(sent)
    for connection in connections:
        received = connection.recv(10)
        assert received == sent, received
PY
on_lull python3 server.py "$call" "$own"
# It can be reached a moment after it listens.
until_it there python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 7), 60)' "$own"
there python3 client.py "$own" 150 || fail "not every thread answered"
! grep 'a thread failed' said || fail "a thread failed"
stop
echo done
