# The process that made a listener closes it while nobody asks for its connections, and another process, which asks
# later, has it: SCRIPT LULL MODE. Clients that connect meanwhile are not refused (haproxy's master process does this at
# each reload, when a former worker ends).
. "$(dirname "$0")/harness.sh"
options=(--queues 2)
cat >server.py <<'END'
import os, socket, sys, time

def stage(name):
    open(name, "w").close()

def until(name):
    while not os.path.exists(name):
        time.sleep(0.005)

listener = socket.create_server((sys.argv[1], 7777), backlog=64)

def serve(name):
    connection, _ = listener.accept()
    with connection:
        connection.sendall(name)

def first():
    serve(b"first")
    listener.close()
    stage("first has closed")
    until("is over")

def second():
    until("second is to ask")
    serve(b"second")

workers = []
for worker in first, second:
    pid = os.fork()
    if pid == 0:
        worker()
        os._exit(0)
    workers.append(pid)
until("first has closed")
listener.close()
stage("maker has closed")
for pid in workers:
    assert os.waitpid(pid, 0)[1] == 0, "a worker has failed"
END
cat >client.py <<'END'
import socket, sys

with socket.create_connection((sys.argv[1], 7777), 60) as connection:
    print(connection.recv(100).decode())
END
on_lull python3 server.py "$own"
until_it eval '[ "$(there python3 client.py "$own")" = first ]'
until_it [ -e "maker has closed" ]
there python3 client.py "$own" >second 2>&1 &
client=$!
until_it eval "[ \$(there ss -tnH state syn-sent dst $own:7777 | wc -l) = 1 ] || ! kill -0 $client"
# Packets that come after it are answered by the process whose queue both came by.
there ping -c 1 -W 30 "$own" >pinged || fail "no answer: $(cat pinged)"
kill -0 "$client" || fail "it was refused: $(cat second)"
touch "second is to ask"
wait "$client" || fail "the client: $(cat second)"
[ "$(cat second)" = second ] || fail "another one has answered: $(cat second)"
touch "is over"
wait "$launcher" || fail "the server has failed"
echo done
