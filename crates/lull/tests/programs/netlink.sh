# A program asks the kernel about its device by generic netlink, as ynl and Linux's selftests do: the family `netdev`
# shows lull's NAPIs, changes them, and leaves all other devices and families to the kernel.
. "$(dirname "$0")/harness.sh"

cat >netdev.py <<'END'
"""The family netdev over a socket of generic netlink."""
import os, select, socket, struct

REQUEST, MULTI, ACK, DUMP = 1, 2, 4, 0x300
ERROR, DONE = 2, 3
NAPI_IFINDEX, NAPI_ID, NAPI_PID, DEFER, GRO, SUSPEND, THREADED = 1, 2, 4, 5, 6, 7, 8
QUEUE_ID, QUEUE_IFINDEX, QUEUE_TYPE, QUEUE_NAPI = 1, 2, 3, 4
QUEUE_GET, NAPI_GET, NAPI_SET = 10, 11, 14

def u32(value):
    return struct.pack("=I", value)

class Refused(OSError):
    pass

class Netdev:
    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.socket.setsockopt(270, 11, 1)  # NETLINK_EXT_ACK
        self.seq = 100
        self.polled = select.epoll()
        self.polled.register(self.socket, select.EPOLLIN)
        answer = self.ask(16, 3, 0, [(2, b"netdev\0")])
        self.family = struct.unpack("=H", answer[0][1])[0]

    def ask(self, kind, command, flags, attributes):
        """The attributes of each answer."""
        self.seq += 1
        body = struct.pack("=BBH", command, 1, 0)
        for name, content in attributes:
            body += struct.pack("=HH", 4 + len(content), name) + content + b"\0" * (-len(content) % 4)
        header = struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK | flags, self.seq, 0)
        self.socket.send(header + body)
        answers = []
        while True:
            assert self.polled.poll(60), "nothing tells of the answer"
            # iproute2 asks for the length of a message like this.
            length = self.socket.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            datagram, _, flags, sender = self.socket.recvmsg(1 << 17)
            assert length == len(datagram) and not flags & socket.MSG_TRUNC and sender == (0, 0), (length, sender)
            while datagram:
                length, kind, flags, seq, port = struct.unpack_from("=IHHII", datagram)
                payload, datagram = datagram[16:length], datagram[(length + 3) & ~3 :]
                assert seq == self.seq and port == self.socket.getsockname()[0]
                if kind in (DONE, ERROR):
                    error = -struct.unpack_from("=i", payload)[0]
                    if error:
                        raise Refused(error, os.strerror(error))
                    return answers
                found, payload = {}, payload[4:]
                while payload:
                    length, name = struct.unpack_from("=HH", payload)
                    found[name & 0x3FFF] = payload[4:length]
                    payload = payload[(length + 3) & ~3 :]
                answers.append(found)

    def numbers(self, command, flags, attributes):
        def number(content):
            return int.from_bytes(content, "little")
        answers = self.ask(self.family, command, flags, [(name, u32(value)) for name, value in attributes])
        return [{name: number(content) for name, content in answer.items() if len(content) in (4, 8)} for answer in answers]

    def napis(self, ifindex=None):
        return self.numbers(NAPI_GET, DUMP, [] if ifindex is None else [(NAPI_IFINDEX, ifindex)])

    def napi(self, napi_id):
        return self.numbers(NAPI_GET, 0, [(NAPI_ID, napi_id)])[0]

    def set(self, napi_id, *settings):
        assert self.numbers(NAPI_SET, 0, [(NAPI_ID, napi_id), *settings]) == []

    def refusal(self, command, flags, attributes):
        try:
            self.numbers(command, flags, attributes)
        except Refused as refused:
            return os.strerror(refused.errno)
        raise AssertionError("it is not refused")
END
cat >server.py <<'END'
import ctypes, os, socket, sys, threading
from netdev import *

own, queues = sys.argv[1], int(sys.argv[2])
ifindex, lo = socket.if_nametoindex("lull0"), socket.if_nametoindex("lo")
netdev = Netdev()
# Nothing has started yet: requests for other devices go to the kernel, and so do dumps of all.
assert netdev.napis(lo) == [] and netdev.napis() == []
assert netdev.refusal(NAPI_GET, DUMP, [(NAPI_IFINDEX, 77_777)]) == "No such device"
napis = netdev.napis(ifindex)
assert len(napis) == queues and len({napi[NAPI_ID] for napi in napis}) == queues, napis
assert all(napi[NAPI_IFINDEX] == ifindex for napi in napis), napis
assert netdev.napis() == napis
napi = napis[-1][NAPI_ID]
assert netdev.napi(napi) == napis[-1]
rows = netdev.numbers(QUEUE_GET, DUMP, [(QUEUE_IFINDEX, ifindex)])
assert [(row[QUEUE_TYPE], row[QUEUE_ID]) for row in rows] == [(kind, nth) for kind in (0, 1) for nth in range(queues)], rows
assert {row[QUEUE_NAPI] for row in rows} == {napi[NAPI_ID] for napi in napis}
netdev.set(napi, (DEFER, 100), (GRO, 20_000), (SUSPEND, 20_000_000))
now = netdev.napi(napi)
assert (now[DEFER], now[GRO], now[SUSPEND], now[THREADED]) == (100, 20_000, 20_000_000, 0), now
assert netdev.refusal(NAPI_SET, 0, [(NAPI_ID, napi), (DEFER, 5), (THREADED, 9)]) == "Numerical result out of range"
assert netdev.refusal(NAPI_GET, 0, [(NAPI_ID, 7)]) == "No such file or directory"
assert netdev.refusal(NAPI_GET, 0, []) == "Invalid argument"
assert netdev.napi(napi) == now
netdev.set(napi, (THREADED, 1))
thread = netdev.napi(napi)
assert thread[THREADED] == 1 and os.path.exists(f"/proc/self/task/{thread[NAPI_PID]}"), thread
netdev.set(napi, (THREADED, 0))
# A duplicate of the number is the same socket.
copy = socket.socket(fileno=os.dup(netdev.socket.fileno()))
netdev.socket = copy
assert netdev.napi(napi) == now
# Several threads ask over sockets of their own.
def ask():
    mine = Netdev()
    for _ in range(50):
        assert mine.napi(napi) == now
threads = [threading.Thread(target=ask) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
# The numbers are reused later, for files that another process passes, and for connections. In the latter case lull has
# not seen how the former socket was closed.
ours, theirs = socket.socketpair()
file = os.open("server.py", os.O_RDONLY)
numbers = [Netdev().socket.detach() for _ in range(28)]
seen, unseen = numbers[:4], numbers[4:]
for number in seen:
    os.close(number)
files = []
for _ in seen:
    socket.send_fds(ours, [b"x"], [file])
    files += socket.recv_fds(theirs, 1, 1)[1]
assert set(files) & set(seen), (files, seen)
for number in files:
    os.lseek(number, 0, os.SEEK_SET)
    assert os.read(number, 6) == b"import"
libc = ctypes.CDLL(None)
libc.fdopen.restype, libc.fclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for number in unseen:
    assert libc.fclose(libc.fdopen(number, b"r")) == 0
listener = socket.create_server((own, 7000))
clients = [socket.socket() for _ in range(8)]
for client in clients:
    client.connect((own, 7000))
connections = [listener.accept()[0] for _ in clients]
assert {connection.fileno() for connection in connections} & set(unseen), (connections, unseen)
for client in clients:
    client.sendall(b"x")
assert all(connection.recv(9) == b"x" for connection in connections)
del client, clients, connections
print("served", flush=True)

while True:
    connection, _ = listener.accept()
    while data := connection.recv(100):
        connection.sendall(data)
END
# This is what another program of the same user plane does: it has no NIC, and asks about the server's.
cat >other.py <<'END'
import json, socket, subprocess, sys
from netdev import *

lull = sys.argv[1]
netdev = Netdev()
napis = netdev.napis(socket.if_nametoindex("lull0"))
assert napis and napis[-1][GRO] == 20_000, napis
assert netdev.napis() == napis
netdev.set(napis[-1][NAPI_ID], (GRO, 30_000))
assert netdev.napi(napis[-1][NAPI_ID])[GRO] == 30_000
# The kernel plane's own command also shows the device as one with NAPIs.
shown = subprocess.run([lull, "show", "lull0", "--json"], capture_output=True, text=True, close_fds=False)
assert shown.returncode == 0, shown.stderr
shown = json.loads(shown.stdout)[0]
assert [napi["id"] for napi in shown["napis"]] == sorted(napi[NAPI_ID] for napi in napis), shown
assert any(napi["settings"]["gro_flush_timeout_ns"] == 30_000 for napi in shown["napis"]), shown
open("asked", "w").close()
END
cat >client.py <<'END'
import json, socket, subprocess, sys, time
lull, own, pid = sys.argv[1:]
def connect():
    for _ in range(600):
        try:
            return socket.create_connection((own, 7000), timeout=120)
        except TimeoutError:
            raise
        except OSError:
            time.sleep(0.1)
def deferrals():
    shown = json.loads(subprocess.run([lull, "show", pid, "--json"], capture_output=True, check=True).stdout)
    return sum(napi["stats"]["deferrals"] for napi in shown[0]["napis"])
# The kernel gives each connection to either queue, one of which defers.
for _ in range(64):
    with connect() as connection:
        for _ in range(200):
            connection.sendall(b"x")
            assert connection.recv(9) == b"x"
    if deferrals() > 0:
        sys.exit()
sys.exit("no connection's packets are deferred")
END
queues=$3
options=(--queues "$queues")
# NAPIs that only send are not listed.
[ "$queues" = 1 ] || options+=(--qdisc fq)
on_lull sh -c "python3 server.py $own $queues >served 2>&1 & echo \$! >server; until grep -q served served; do sleep 0.1; kill -0 \$! || exit 9; done
               python3 other.py $lull || exit 8; wait"
until_it test -e asked -o ! -d "/proc/$launcher"
cat served
[ -e asked ] || fail "the programs failed"
python3 client.py "$lull" "$own" "$(cat server)" >client 2>&1 || fail "$(cat client)"
kill "$(cat server)"
wait "$launcher"
echo done
