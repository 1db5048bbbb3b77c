# A capture of `--pcap` on a disk that becomes full: SCRIPT LULL MODE. The program goes on serving, one line names the
# file, and the file has only whole records.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'PYTHON'
import os, socket, sys

listener = socket.create_server((sys.argv[1], 7001))
while True:
    connection, _ = listener.accept()
    with connection:
        while chunk := connection.recv(65536):
            connection.sendall(chunk)
PYTHON
cat >client.py <<'PYTHON'
import os, socket, sys, threading

sent = os.urandom(1 << 20)
with socket.create_connection((sys.argv[1], 7001), 120) as connection:
    sends = threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(socket.SHUT_WR)))
    sends.start()
    received = b""
    while more := connection.recv(65536):
        received += more
    sends.join()
sys.exit(received != sent)
PYTHON
cat >recorded.py <<'PYTHON'
import struct

data = open("disk/frames", "rb").read()
assert data[:4] == struct.pack("<I", 0xA1B23C4D), "no header"
at = 24
while at < len(data):
    assert at + 16 <= len(data), "a record's header is cut off"
    at += 16 + struct.unpack_from("<4I", data, at)[2]
assert at == len(data), "the last record is cut off"
PYTHON
mkdir disk
mount -t tmpfs -o size=256k lull-full disk || fail "no small disk"
options=(--pcap disk/frames)
on_lull python3 server.py "$own"
# The program listens once its engine runs.
until_it python3 client.py "$own"
for _ in 1 2 3; do
    timeout "${LULL_TEST_PATIENCE:-120}" python3 client.py "$own" || fail "the program is not what it was"
done
stop
[ "$(grep -c 'packet record.*disk/frames.*No space left' said)" = 1 ] || fail "it is not said once, and by name"
python3 recorded.py || fail "the record is torn"
echo done
