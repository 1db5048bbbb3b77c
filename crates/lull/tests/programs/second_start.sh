# lull's stack fails to start because there are too few numbers for open files; each time there are enough of them to
# come one step further. Then a child that has enough starts it: SCRIPT LULL MODE. Everything is recorded (--pcap).
. "$(dirname "$0")/harness.sh"

cat >peer.py <<'END'
import socket

with socket.create_server(("10.0.0.1", 5001)) as listener:
    open("listens", "w").close()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"here")
END
cat >program.py <<'END'
import os, resource, socket, sys


def connects():
    with socket.create_connection(("10.0.0.1", 5001), 60) as connection:
        return connection.recv(4) == b"here"


def begins(free):
    for filler in fillers[-free:]:
        os.close(filler)
    try:
        return 3 if connects() else 1
    except OSError:
        pass
    if (child := os.fork()) == 0:
        for filler in fillers[:-free]:
            os.close(filler)
        os._exit(0 if connects() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# lull takes no number beyond the limit, which is just above the numbers that the process has.
limit = max(int(number) for number in os.listdir("/proc/self/fd")) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
fillers = []
try:
    while True:
        fillers.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
failed = 0
for free in range(1, len(fillers)):
    if (process := os.fork()) == 0:
        os._exit(begins(free))
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == 3:
        break
    failed += 1
    if status != 0:
        sys.exit(f"with {free} numbers free a start failed, and the child's did not do: {status}")
print(f"{failed} starts failed", flush=True)
END
options=(--pcap frames)
on_lull sh -c 'until [ -e listens ]; do sleep 0.1; done; exec python3 program.py'
# The peer binds its address, which the interface gets a moment after it is made.
until_it eval 'ip -o addr show lull0 | grep -q 10.0.0.1/'
python3 peer.py &
peer=$!
wait "$launcher" || fail "a program cannot start lull's stack after it has failed once"
grep -q 'cannot start the engine' said || fail "no start failed behind the device"
cat said
kill "$peer"
echo done
