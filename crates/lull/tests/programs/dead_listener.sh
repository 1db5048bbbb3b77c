# All processes of a server are killed, and another server is started after it and listens elsewhere: a client that
# connects to the first one's port is refused, since nobody has its listener any more.
. "$(dirname "$0")/harness.sh"
options=(--queues 2)
cat >supervisor.py <<'END'
import os, select, signal, socket, sys, time

def server(port):
    """Starts one of a process that listens and a worker; returns descriptors of both."""
    told, tells = os.pipe()
    master = os.fork()
    if master == 0:
        listener = socket.create_server((sys.argv[1], port))
        worker = os.fork()
        if worker == 0:
            while True:
                listener.accept()[0].sendall(b"x")
        os.write(tells, b"%d" % worker)
        signal.pause()
    return [os.pidfd_open(pid) for pid in (master, int(os.read(told, 20)))]

def kill(processes):
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.wait()
    for process in processes:
        # By then each process has released what it had.
        select.select([process], [], [])

def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)

first = server(7001)
until("first is to be killed")
kill(first)
second = server(7002)
until("second is to be killed")
kill(second)
END
cat >client.py <<'END'
import socket, sys

with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection:
    assert connection.recv(1) == b"x"
END
on_lull python3 supervisor.py "$own"
until_it there python3 client.py "$own" 7001
touch "first is to be killed"
until_it there python3 client.py "$own" 7002
there python3 client.py "$own" 7001 >refused 2>&1
grep -q ConnectionRefusedError refused || fail "it was not refused: $(cat refused)"
touch "second is to be killed"
wait "$launcher" || fail "the supervisor failed"
echo done
