# What `--pcap` records of a program of two processes with a queue each: SCRIPT LULL MODE. The first process exits, the
# second one ends by a signal to itself. The file has every frame of both.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'PYTHON'
import os, signal, socket, sys


def serves(listener, ends):
    connection, _ = listener.accept()
    while connection.recv(100):
        pass
    connection.sendall(b"%d" % os.getpid())
    # The end of the process closes it.
    ends()


# Each worker takes a queue when it asks for connections.
listeners = [socket.create_server((sys.argv[1], port)) for port in (7001, 7002)]
workers = []
for listener, ends in zip(listeners, (sys.exit, lambda: signal.raise_signal(signal.SIGTERM))):
    if (worker := os.fork()) == 0:
        serves(listener, ends)
    workers.append(worker)
open("listens", "w").close()
for worker in workers:
    os.waitpid(worker, 0)
PYTHON
cat >client.py <<'PYTHON'
import errno, socket, sys

def connect():
    while True:
        try:
            return socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
        except OSError as error:
            # The process that has the queue has not answered the neighbour request within three seconds.
            if error.errno != errno.EHOSTUNREACH:
                raise

with connect() as connection:
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while more := connection.recv(100):
        answer += more
print(answer.decode())
PYTHON
cat >recorded.py <<'PYTHON'
import struct, sys

data = open("frames", "rb").read()
assert data[:4] == struct.pack("<I", 0xA1B23C4D), "no header"
at, ends = 24, set()
while at < len(data):
    _, _, length, _ = struct.unpack_from("<4I", data, at)
    frame = data[at + 16 : at + 16 + length]
    assert len(frame) == length, "the last record is cut off"
    at += 16 + length
    if frame[12:14] == b"\x08\x00" and frame[23] == 6:
        tcp = 14 + (frame[14] & 15) * 4
        source, to = struct.unpack_from(">2H", frame, tcp)
        if frame[tcp + 13] & 1:
            ends.add(source if source in (7001, 7002) else -to)
missing = {7001, -7001, 7002, -7002} - ends
sys.exit(f"no end of: {missing}" if missing else 0)
PYTHON
options=(--queues 2 --pcap frames)
on_lull python3 server.py "$own"
until_it test -e listens
for port in 7001 7002; do
    timeout "${LULL_TEST_PATIENCE:-120}" python3 client.py "$own" "$port" >"answer $port" &
    clients+=($!)
done
for client in "${clients[@]}"; do
    wait "$client" || fail "a client is not answered"
done
wait "$launcher"
python3 recorded.py || fail "the record lacks frames"
echo done
