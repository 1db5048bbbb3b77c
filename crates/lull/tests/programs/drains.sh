# A server of two workers, each with a queue of its own, is under load. One is told to end: it closes the listener,
# finishes its connections, and exits. From then on new connections go to the other, also those that come to the queue
# of the one that ends, and that one does not stay for them: SCRIPT LULL MODE ADDRESS.
. "$(dirname "$0")/harness.sh"
cat >server.py <<'END'
import errno, os, signal, socket, sys, threading

def serve(connection):
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)

def worker():
    # The handler raises no exception: one that came just after the call would lose the connection that was just
    # accepted.
    signal.signal(signal.SIGUSR1, lambda *_: listener.close())
    threads = []
    while listener.fileno() >= 0:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            assert error.errno == errno.EBADF, error
            break
        threads.append(threading.Thread(target=serve, args=(connection,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    sys.exit()

listener = socket.create_server((sys.argv[1], 7777), backlog=64)
workers = []
for _ in range(2):
    process = os.fork()
    if process == 0:
        worker()
    workers.append(process)
open("workers.new", "w").write(" ".join(map(str, workers)))
os.rename("workers.new", "workers")
for process in workers:
    assert os.waitpid(process, 0)[1] == 0, "a worker has failed"
END
cat >client.py <<'END'
import os, socket, sys, threading, time

# There is a connection at any time, and new ones come all the time.
served, stop = [0] * 24, threading.Event()
def client(nth):
    while not stop.is_set():
        with socket.create_connection((sys.argv[1], 7777), 60) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            time.sleep(0.3)
            connection.sendall(b"y")
            assert connection.recv(1) == b"y"
        served[nth] += 1
def run(nth):
    try:
        client(nth)
    except BaseException as error:
        failed.append(error)
        raise
failed = []
threads = [threading.Thread(target=run, args=(nth,)) for nth in range(24)]
for thread in threads: thread.start()
while not os.path.exists("stop") and not failed:
    open("served.new", "w").write(str(min(served)))
    os.rename("served.new", "served")
    time.sleep(0.05)
stop.set()
for thread in threads: thread.join()
sys.exit(1 if failed else 0)
END
options=(--queues 2)
on_lull python3 server.py "$3"
until_it test -e workers
until_it there python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 7777), 5)' "$own"
there python3 client.py "$own" >client 2>&1 &
client=$!
served() { [ "$(cat served 2>/dev/null || echo 0)" -gt "$1" ]; }
until_it served 3
read -r first second <workers
both() { [ "$("$lull" ss | grep -c '^process')" = 2 ]; }
until_it both
kill -USR1 "$first"
gone() { ! kill -0 "$first" 2>/dev/null; }
until_it gone
until_it served $(($(cat served) + 3))
touch stop
wait "$client" || fail "the client: $(cat client)"
kill -USR1 "$second"
wait "$launcher" || fail "it failed"
echo done
