# Children read a UDP socket: a child that is its only reader is given what comes, and several readers get one datagram
# at a time. A peer sends as many datagrams as it is asked for.
. "$(dirname "$0")/harness.sh"

cat >peer.py <<'END'
import socket

peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# The address exists once lull has made the NIC.
peer.bind(("", 6000))
print("ready", flush=True)
while True:
    asked, who = peer.recvfrom(100)
    count, length = map(int, asked.split())
    for number in range(count):
        peer.sendto(b"%04d" % number + b"x" * (length - 4), who)
END

cat >program.py <<'END'
import fcntl, os, select, signal, socket, struct, sys, termios, time

PEER, NOBODY = ("10.0.0.1", 6000), ("10.0.0.1", 9)
LENGTH = 100


def bound():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((sys.argv[1], 0))
    return udp


def ask(udp, count, length=LENGTH):
    udp.sendto(b"%d %d" % (count, length), PEER)


def read(udp):
    return int(udp.recv(1 << 16)[:4])


def waiting(udp):
    """What waits for this child alone, headers of the relay's included."""
    return struct.unpack("i", fcntl.ioctl(udp, termios.FIONREAD, bytes(4)))[0]


def child(of):
    pid = os.fork()
    if pid == 0:
        try:
            of()
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def ended(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status


def only_one():
    udp = bound()

    def reads():
        ask(udp, 10)
        while waiting(udp) < 10 * LENGTH:
            time.sleep(0.01)
        assert [read(udp) for _ in range(10)] == list(range(10))
        # This is more than fits into the child's own queue.
        for _ in range(20):
            ask(udp, 4, 40_000)
            assert [read(udp) for _ in range(4)] == list(range(4))

    ended(child(reads))


def several():
    udp = bound()
    heard, go, over = os.pipe(), os.pipe(), os.pipe()

    def begins():
        select.select([udp], [], [], 0)
        os.write(heard[1], b"x")

    def waits():
        begins()
        os.read(over[0], 1)

    def reads():
        begins()
        os.read(go[0], 1)
        ask(udp, 10)
        for _ in range(9):
            read(udp)
        os.write(over[1], b"x")

    children = [child(waits), child(reads)]
    os.read(heard[0], 1)
    os.read(heard[0], 1)
    os.write(go[1], b"x")
    for pid in children:
        ended(pid)


def parent_too():
    udp = bound()
    ask(udp, 1)
    read(udp)

    def reads():
        ask(udp, 10)
        for number in range(10):
            assert read(udp) == number
            assert waiting(udp) < 4 * LENGTH, "one that the parent may have read waits for the child"

    ended(child(reads))


def full():
    udp = bound()

    def stopped(pid):
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "T"

    def reads():
        parent = os.getppid()
        ask(udp, 1)
        select.select([udp], [], [])
        # The parent now takes nothing that the child sends, and does not learn that the child wants more.
        os.kill(parent, signal.SIGSTOP)
        try:
            while not stopped(parent):
                time.sleep(0.01)
            try:
                while True:
                    udp.sendto(b"x", socket.MSG_DONTWAIT, NOBODY)
            except BlockingIOError:
                pass
            assert read(udp) == 0
        finally:
            os.kill(parent, signal.SIGCONT)
        ask(udp, 1)
        while True:
            try:
                assert read(udp) == 0
                return
            except ConnectionRefusedError:
                # The error is that of a datagram to a port that nobody has.
                pass

    ended(child(reads))


for case in (only_one, several, parent_too, full):
    case()
    print(case.__name__, flush=True)
END

on_nic "$3" 1
there python3 peer.py >peer &
until_it grep -q ready peer
on_lull timeout 120 python3 program.py "$own"
wait "$launcher" || fail "it failed: $(cat said)"
grep -q '^full$' said || fail "it did not end"
echo done
