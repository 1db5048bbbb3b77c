# Two processes share a listener and the NIC has one queue, so connections wait in the listener's pool. A peer resets a
# connection that waits there: as on Linux it is accepted, with its peer's name, and the first call on it returns the
# reset: SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, select, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7010))
listener.setblocking(False)

def ask():
    try:
        listener.accept()
    except BlockingIOError:
        return
    raise SystemExit("nobody has connected")

def forks(run):
    hears, says = os.pipe()
    process = os.fork()
    if process == 0:
        ask()
        os.write(says, b"1")
        try:
            run()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.read(hears, 1)
    return process

def accepts():
    while not os.path.exists("listens"):
        signal.sigtimedwait([], 0.01)
    for nth in range(8):
        while not os.path.exists(f"reset{nth}"):
            signal.sigtimedwait([], 0.01)
        while True:
            select.select([listener], [], [])
            try:
                connection, peer = listener.accept()
                break
            except BlockingIOError:
                pass  # It was on its way from the queue's backlog to the pool.
        assert peer[0] == "10.0.0.1", peer
        try:
            raise SystemExit(f"a connection that was reset has {connection.recv(1)}")
        except ConnectionResetError:
            pass
        open(f"ended{nth}", "w").close()

# The first process has the queue, and the other one has none.
with_queue = forks(accepts)
without = forks(signal.pause)
open("listens", "w").close()
_, status = os.waitpid(with_queue, 0)
os.kill(without, signal.SIGKILL)
sys.exit(status != 0)
END
cat >client.py <<'END'
import os, signal, socket, struct, sys

for nth in range(8):
    connection = socket.create_connection((sys.argv[1], 7010), 60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    open(f"reset{nth}", "w").close()
    while not os.path.exists(f"ended{nth}"):
        signal.sigtimedwait([], 0.01)
END
on_lull python3 server.py "$own"
until_it test -e listens
python3 client.py "$own" >client 2>&1 &
client=$!
wait "$launcher" || fail "the server failed"
wait "$client" || fail "the client failed: $(cat client)"
echo done
