# Three workers share a listener, and two of them have a queue of the NIC each. Connections come while all are busy, and
# the worker with the first queue executes another program: the connections that it has offered to the others and those
# that wait at its listener go to the others. SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, signal, socket, sys, time


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def answer():
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"%d" % os.getpid())


def works(nth):
    until(f"asks {nth}")
    answer()
    open(f"has asked {nth}", "w").close()
    if nth == 0:
        until("exec")
        os.execv("/bin/sleep", ["sleep", "1000"])
    until("go")
    while True:
        answer()


listener = socket.create_server((sys.argv[1], 7777), backlog=128)
workers = []
for nth in range(3):
    if (worker := os.fork()) == 0:
        works(nth)
    workers.append(worker)
open("processes", "w").write(" ".join(map(str, workers)))
for worker in workers:
    os.waitpid(worker, 0)
END
cat >client.py <<'END'
import socket, sys, threading

address, count = sys.argv[1], int(sys.argv[2])
connections = [socket.create_connection((address, 7777), 120) for _ in range(count)]
if count > 1:
    open("connected", "w").close()
answers = [connection.recv(100).decode() for connection in connections]
print(*answers)
sys.exit(not all(answers))
END
options=(--queues 2)
on_lull python3 server.py "$own"
until_it [ -s processes ]
read -r first second third <processes
for nth in 0 1 2; do
    touch "asks $nth"
    # Any worker that listens by now may get a connection, so the client asks until the one that has just begun has one.
    until_it eval 'timeout 5 python3 client.py "$own" 1; [ -e "has asked $nth" ]'
done
python3 client.py "$own" 20 >answers &
client=$!
until_it [ -e connected ]
touch exec
is_asleep() { [ "$(tr '\0' ' ' <"/proc/$first/cmdline")" = "sleep 1000 " ]; }
until_it is_asleep
touch go
wait "$client" || fail "connections are lost: $(cat answers)"
[ "$(tr ' ' '\n' <answers | grep -cx -e "$second" -e "$third")" = 20 ] || fail "answered by: $(cat answers), of $second and $third"
kill -KILL "$first" "$second" "$third"
wait "$launcher"
grep -q Traceback said && fail "it failed"
echo done
