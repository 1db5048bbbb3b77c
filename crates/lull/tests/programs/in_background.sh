# A server has queues, since it has bound a UDP socket and asked its listener for connections, and then puts itself into
# the background: SCRIPT LULL MODE "WHEN HOW tap|xdp QUEUES". The child that is left goes on with both sockets. WHEN:
# "at-once", or "later", when it has served a client of each kind before the process that forked it ends. HOW it waits:
# "epoll", "poll", or "recv": in recvfrom for datagrams, with a thread that accepts.
. "$(dirname "$0")/harness.sh"
read -r when how device queues <<<"$3"

cat >server.py <<'END'
import os, select, socket, sys, threading

when, how, address = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((address, 7777))
tcp = socket.create_server((address, 7777))
tcp.setblocking(False)
try:
    tcp.accept()
    sys.exit("who connected?")
except BlockingIOError:
    pass
goes, ends = os.pipe()
parent = os.getpid()
if os.fork():
    os.close(ends)
    if when == "later":
        os.read(goes, 1)
    os._exit(0)
os.close(goes)
os.setsid()
told, served = False, set()


def name():
    return b"child" if os.getppid() == parent else b"alone"


def has_served(what):
    global told
    served.add(what)
    if len(served) == 2 and not told:
        told = True
        os.close(ends)


def answer_datagram():
    asked, peer = udp.recvfrom(100)
    udp.sendto(asked + name(), peer)
    has_served("udp")


def answer_connection():
    connection, _ = tcp.accept()
    connection.setblocking(True)
    try:
        connection.sendall(connection.recv(100) + name())
    except OSError:
        # Its client has given up, and asks again.
        return
    finally:
        connection.close()
    has_served("tcp")


def accept():
    while True:
        answer_connection()


if how == "recv":
    tcp.setblocking(True)
    threading.Thread(target=accept, daemon=True).start()
    while True:
        answer_datagram()
udp.setblocking(False)
poll = select.epoll() if how == "epoll" else select.poll()
poll.register(udp.fileno(), select.POLLIN)
poll.register(tcp.fileno(), select.POLLIN)
while True:
    for fd, _ in poll.poll():
        try:
            answer_datagram() if fd == udp.fileno() else answer_connection()
        except BlockingIOError:
            pass
END
cat >client.py <<'END'
import socket, sys

address = sys.argv[1]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(0.2)
asked = 0


# A datagram that comes between two processes is lost, and so may a connection be that is made at that moment. A late
# answer counts as well: a question keeps its number.
def ask_udp():
    global asked
    asked += 1
    number = b"%d " % asked
    while True:
        try:
            udp.sendto(number, (address, 7777))
            while not (answer := udp.recv(100)).startswith(number):
                pass
            return answer.removeprefix(number)
        except OSError:
            pass


def ask_tcp():
    while True:
        try:
            with socket.create_connection((address, 7777), 5) as tcp:
                tcp.sendall(b"asked ")
                if (answer := tcp.makefile().read().encode()).startswith(b"asked "):
                    return answer.removeprefix(b"asked ")
        except OSError:
            pass


while [ask_udp(), ask_tcp()] != [b"alone"] * 2:
    pass
answers = [ask() for ask in [ask_udp, ask_tcp] * 100]
assert answers == [b"alone"] * 200, answers
END
on_nic "$device" "$queues"
on_lull python3 server.py "$when" "$how" "$own"
there timeout 120 python3 client.py "$own" >client 2>&1 || fail "$(cat client)"
stop
grep -q "Traceback\|lull: .*\(cannot\|lost\)" said && fail "it said something"
[ "$status" = 0 ] || [ "$status" = 143 ] || fail "ended with $status"
echo done
