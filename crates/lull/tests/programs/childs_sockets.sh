# A server whose children make sockets themselves, like those of FTP servers: SCRIPT LULL MODE WAY, where WAY is "fork",
# or "clone" for children that are made without the C library's `fork`. Each child listens for a second connection of
# its peer, at lull's address and at a wildcard, where the kernel's half listens as well; it connects to its peer from
# lull's address; and it answers datagrams from a port of its own, as TFTP servers do. If a listener has the port, the
# child gets an error when it binds.
. "$(dirname "$0")/harness.sh"
way=$3

cat >server.py <<'END'
import ctypes, errno, os, select, signal, socket, sys

own, way = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
IP_PKTINFO = 8
SYS_clone = 56 if os.uname().machine == "x86_64" else 220

def make_a_child():
    return os.fork() if way == "fork" else libc.syscall(SYS_clone, signal.SIGCHLD, 0, 0, 0, 0)

def accepted(listener, waits):
    if waits == "epoll":
        with select.epoll() as context:
            context.register(listener, select.EPOLLIN)
            listener.setblocking(False)
            try:
                return listener.accept()
            except BlockingIOError:
                assert context.poll() == [(listener.fileno(), select.EPOLLIN)]
            return listener.accept()
    return listener.accept()

def serve(connection):
    lines = connection.makefile("rw")
    for line in lines:
        what, *rest = line.split()
        if what == "listen":
            at, waits = rest
            listener = socket.socket()
            listener.bind((at, 0))
            listener.listen(5)
            name = listener.getsockname()
            assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
            assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
            listener.settimeout(0.01)
            try:
                raise SystemExit(f"accepted {listener.accept()}")
            except TimeoutError:
                listener.settimeout(None)
            lines.write(f"{name[1]}\n")
            lines.flush()
            for _ in range(2 if at == "0.0.0.0" else 1):
                data, peer = accepted(listener, waits)
                data.setblocking(True)
                assert data.getpeername() == peer and data.getsockname()[1] == name[1], (data, peer, name)
                while chunk := data.recv(65536):
                    data.sendall(chunk)
                data.close()
            listener.close()
        elif what == "ports":
            def bound(at, port):
                made = socket.socket()
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind((at, port))
                return made
            def is_refused(at, port):
                try:
                    raise SystemExit(f"bound: {bound(at, port)}")
                except OSError as error:
                    assert error.errno == errno.EADDRINUSE, error
            # The parent listens there.
            for at in own, "0.0.0.0":
                is_refused(at, 7777)
            for at in own, "0.0.0.0":
                port = 0
                for _ in range(50):
                    first = bound(at, port)
                    port = first.getsockname()[1]
                    bound(at, port).close()
                    first.listen(5)
                    is_refused(own, port)
                    is_refused("0.0.0.0", port)
                    first.close()
        elif what == "datagrams":
            at, waits = rest
            data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            data.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
            data.bind((at, 0))
            assert data.getsockname()[0] == at, data
            assert data.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_DGRAM
            data.settimeout(0.01)
            try:
                raise SystemExit(f"received {data.recvfrom(100)}")
            except TimeoutError:
                data.settimeout(None)
            lines.write(f"{data.getsockname()[1]}\n")
            lines.flush()
            while True:
                if waits == "epoll":
                    with select.epoll() as context:
                        context.register(data, select.EPOLLIN)
                        assert context.poll() == [(data.fileno(), select.EPOLLIN)]
                chunk, ancillary, _, peer = data.recvmsg(2000, 200)
                to = [socket.inet_ntoa(info[4:8]) for (*_, info) in ancillary]
                assert to == [own if peer[0] == "10.0.0.1" else "127.0.0.1"], (to, peer)
                assert data.sendto(chunk, peer) == len(chunk)
                if chunk == b"last":
                    break
            # From here on the socket receives from no one else.
            data.connect(peer)
            assert data.getpeername() == peer
            assert data.send(b"connected") == 9 and data.recv(2000) == b"bye"
            data.close()
        else:
            (port,) = rest
            data = socket.socket()
            data.bind((own, 0))
            try:
                data.connect(("10.0.0.1", 1))
                raise SystemExit("connected to a closed port")
            except ConnectionRefusedError:
                pass
            data.connect(("10.0.0.1", int(port)))
            assert data.getpeername() == ("10.0.0.1", int(port)) and data.getsockname()[0] == own, data
            data.sendall(b"active" * 100_000)
            data.close()
        lines.write("done\n")
        lines.flush()

def handler():
    """What `sigaction` tells of SIGTERM: dante calls a handler that it asks for."""
    action = ctypes.create_string_buffer(256)
    assert libc.sigaction(signal.SIGTERM, None, action) == 0
    return ctypes.c_void_p.from_buffer(action).value

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.create_server((own, 7777))
installed = handler()
while True:
    connection, _ = listener.accept()
    if make_a_child() == 0:
        assert handler() == installed, "a child is told of another handler"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        listener.close()
        serve(connection)
        connection.close()
        os._exit(0)
    connection.close()
END
cat >client.py <<'END'
import os, socket, sys, threading, time

own = sys.argv[1]

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((own, 7777), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

def echoed(at, size):
    data = os.urandom(size)
    with socket.create_connection(at, 60) as connection:
        def write():
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        while chunk := connection.recv(65536):
            got += chunk
        writer.join()
        assert got == data, (size, len(got))

def closes(port):
    for attempt in range(600):
        try:
            socket.create_connection((own, port), 60).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            # The connection came while the listener was being closed.
            pass
        time.sleep(0.1)
    raise SystemExit("the listener of a child is open still")

def answers(at, count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as data:
        data.settimeout(60)
        for nth in range(count):
            sent = b"%d" % nth * 300
            data.sendto(sent, at)
            assert data.recvfrom(2000) == (sent, at), (nth, at)

def is_told_the_end(at):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as data:
        data.settimeout(60)
        data.connect(at)
        data.send(b"last")
        assert [data.recv(2000), data.recv(2000)] == [b"last", b"connected"]
        data.send(b"bye")
        data.settimeout(0.1)
        for attempt in range(600):
            try:
                data.send(b"more")
                data.recv(2000)
            except ConnectionRefusedError:
                return
            except TimeoutError:
                pass
    raise SystemExit("the datagram socket of a child is open still")

with connect() as control:
    lines = control.makefile("rw")
    def ask(line):
        lines.write(line + "\n")
        lines.flush()
        return lines.readline().strip()
    for waits in "accept", "epoll":
        port = int(ask(f"listen {own} {waits}"))
        echoed((own, port), 1_000_000)
        assert lines.readline() == "done\n"
        closes(port)
        port = int(ask(f"listen 0.0.0.0 {waits}"))
        echoed((own, port), 100_000)
        echoed(("127.0.0.1", port), 100_000)
        assert lines.readline() == "done\n"
        closes(port)
    assert ask("ports") == "done"
    for at, waits in (own, "receive"), (own, "epoll"), ("0.0.0.0", "receive"), ("0.0.0.0", "epoll"):
        port = int(ask(f"datagrams {at} {waits}"))
        answers((own, port), 20)
        if at == "0.0.0.0":
            answers(("127.0.0.1", port), 20)
        is_told_the_end((own, port))
        assert lines.readline() == "done\n"
    with socket.create_server(("10.0.0.1", 0)) as listener:
        lines.write(f"connect {listener.getsockname()[1]}\n")
        lines.flush()
        data, peer = listener.accept()
        assert peer[0] == own, peer
        got = bytearray()
        while chunk := data.recv(65536):
            got += chunk
        assert got == b"active" * 100_000, len(got)
    assert lines.readline() == "done\n"
END
options=()
on_lull python3 server.py "$own" "$way"
timeout 240 python3 client.py "$own" || fail "the sockets of a child do not serve: $(cat said)"
gone() { ! "$lull" ss | grep -q ESTAB; }
until_it gone
stop
grep -q Traceback said && fail "a child failed: $(cat said)"
echo done
