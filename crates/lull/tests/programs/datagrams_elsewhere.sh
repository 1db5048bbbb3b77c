# Two workers have a queue each, and one of them has a UDP socket: datagrams for it that come to the other's queue are
# passed on, and datagrams for nobody are refused once both workers have been asked.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, signal, socket, sys

listener = socket.create_server((sys.argv[1], 7777))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
workers = []
for number in range(2):
    workers.append(os.fork())
    if workers[-1] == 0:
        break
else:
    signal.sigwait({signal.SIGTERM})
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    sys.exit()
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
if number == 0:
    # It asks for connections first, and gets one queue.
    listener.settimeout(0)
    try:
        listener.accept()
    except BlockingIOError:
        pass
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((sys.argv[1], 7778))
    while True:
        data, at = datagrams.recvfrom(2048)
        datagrams.sendto(data, at)
listener.settimeout(None)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"served")
    connection.close()
END
cat >client.py <<'END'
import socket, sys

def asks(port):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(60)
    client.connect((sys.argv[1], port))
    client.send(b"who")
    return client.recv(2048)

# Each datagram is a flow of its own, which the kernel gives to either queue.
for _ in range(40):
    assert asks(7778) == b"who"
for _ in range(10):
    try:
        sys.exit(f"nobody has this port, and {asks(7779)} came")
    except ConnectionRefusedError:
        pass
END
options=(--queues 2)
on_lull python3 server.py "$own"
has_queues() { "$lull" show --json >shown && python3 -c '
import json
queues = [napi["queue"] for entry in json.load(open("shown")) if "pid" in entry for napi in entry["napis"]]
assert sorted(queues) == [0, 1], queues' 2>/dev/null; }
until_it has_queues
bound() { "$lull" ss | grep -q "udp.*:7778"; }
until_it bound
timeout 300 python3 client.py "$own" >client 2>&1 || fail "$(cat client said)"
stop
echo done
