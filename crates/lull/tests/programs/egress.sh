# A program paces its connections and gives them a priority. With fq they keep their rate; with another discipline the
# run prints that they do not. The third argument is the discipline. The headers of its packets have what it asks for.
. "$(dirname "$0")/harness.sh"
qdisc=$3

cat >server.py <<'END'
import socket, struct, sys
PACING = 47
listener = socket.create_server((sys.argv[1], 7000))
listener.setsockopt(socket.SOL_SOCKET, PACING, struct.pack("Q", 2_000_000))
listener.setsockopt(socket.SOL_IP, socket.IP_TTL, 99)
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.SOL_IP, socket.IP_TOS, 0x10)
    assert struct.unpack("Q", connection.getsockopt(socket.SOL_SOCKET, PACING, 8)) == (2_000_000,)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 6
    connection.sendall(bytes(1_000_000))
    connection.recv(1)
    connection.close()
END
cat >client.py <<'END'
import json, socket, subprocess, sys, time
lull, pid, qdisc = sys.argv[1:]
ALL = 3
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
frames.bind(("lull0", 0))
frames.setblocking(False)
# Its stack is shown a moment before the program listens.
for _ in range(600):
    try:
        began = time.monotonic()
        connection = socket.create_connection(("10.0.0.2", 7000), timeout=60)
        break
    except OSError:
        time.sleep(0.1)
with connection:
    left = 1_000_000
    while left:
        data = connection.recv(left)
        assert data
        left -= len(data)
    took = time.monotonic() - began
    # Packets with data have what the connection asked for, and what it inherits from its listener.
    seen = set()
    try:
        while True:
            frame = frames.recv(65_600)
            if frame[12:14] == b"\x08\0" and frame[26:30] == socket.inet_aton("10.0.0.2") and len(frame) > 200:
                seen.add((frame[15], frame[22]))
    except BlockingIOError:
        pass
    assert seen == {(0x10, 99)}, seen
    # It takes half a second, less what a flow may send at its beginning.
    assert qdisc != "fq" or took > 0.3, f"1 MB at 2 MB/s took {took} s"
    shown = json.loads(subprocess.run([lull, "ss", pid, "--json"], capture_output=True, check=True).stdout)
    mine = [it for it in shown[0]["sockets"] if it["state"] == "ESTAB"]
    assert [(it["priority"], it["pacing_bytes_per_s"]) for it in mine] == [(6, 2_000_000)], mine
    plain = subprocess.run([lull, "ss", pid], capture_output=True, check=True, text=True).stdout
    assert "2000000B/s" in plain, plain
    connection.sendall(b"x")
END
[ "$qdisc" = none ] || options=(--qdisc "$qdisc")
on_lull python3 server.py "$own"
find_program
until_it "$lull" show "$program"
[ "$qdisc" = none ] || "$lull" show "$program" | grep -q "lull0:0 through $qdisc" || fail "$("$lull" show "$program")"
python3 client.py "$lull" "$program" "$qdisc" >client 2>&1 || fail "$(cat client)"
stop
if [ "$qdisc" = fq ]; then
    grep -q "not paced" said && fail "it is said not to be paced"
else
    grep -q "SO_MAX_PACING_RATE.*needs --qdisc fq" said || fail "nothing says that the program is not paced"
fi
echo done
