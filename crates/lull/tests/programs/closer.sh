# A program closes, in each possible way, every number that it did not open, while it serves: lull's descriptors look
# closed to it, and it goes on serving.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import ctypes, fcntl, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
listener = socket.create_server((sys.argv[1], 7777), reuse_port=False)
def serve():
    connection, _ = listener.accept()
    kept = {0, 1, 2, listener.fileno(), connection.fileno()}
    for _ in range(3):
        assert connection.recv(5) == b"hello"
        connection.sendall(b"there")
        yield kept
    connection.close()
def numbers():
    return [int(name) for name in os.listdir("/proc/self/fd")]
def by_close(kept):
    for number in [*range(3, soft), *numbers()]:
        if number not in kept:
            libc.close(number)
def by_dup2(kept):
    null = os.open("/dev/null", os.O_RDWR)
    for number in numbers():
        if number > 2 and number not in kept and number != null and number >= soft:
            result = libc.dup2(null, number)
            assert result == -1 and ctypes.get_errno() == 9, (number, result)
    os.close(null)
    # Ruby does this before `exec`: otherwise the descriptors that lull needs would not be open in the executed program.
    lulls = [number for number in numbers() if number > 1000]
    assert lulls
    for number in lulls:
        result = libc.fcntl(number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        assert result == -1 and ctypes.get_errno() == 9, (number, result)
def by_close_range(kept):
    before = 3
    for number in sorted(kept) + [2**31]:
        if number > before:
            assert libc.close_range(ctypes.c_uint(before), ctypes.c_uint(number - 1), 0) == 0
        before = max(before, number + 1)
answers = serve()
for way in by_close, by_dup2, by_close_range:
    way(next(answers))
    # The descriptors that the engine makes for itself are not among the program's numbers.
    made = [number for number in numbers() if 2 < number < min(soft, 1000)]
    assert len(made) <= 3, made
assert next(answers, None) is None
# Another connection, and one of another thread, have everything that lull needs for them.
import threading
thread = threading.Thread(target=lambda: [None for _ in serve()])
thread.start()
thread.join()
print("served")
END
cat >client.py <<'END'
import socket, sys, time
for _ in range(2):
    for attempt in range(600):
        try:
            connection = socket.create_connection((sys.argv[1], 7777), 60)
            break
        except OSError:
            time.sleep(0.1)
    for _ in range(3):
        connection.sendall(b"hello")
        answer = connection.recv(5)
        assert answer == b"there", answer
    assert connection.recv(1) == b""
print("answered")
END
on_lull python3 server.py "$own"
timeout 120 python3 client.py "$own" || fail "no answer"
wait "$launcher" || fail "the program failed"
grep -q served said || fail "it did not come to its end"
echo done
