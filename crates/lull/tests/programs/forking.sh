# Servers that fork a child for each connection: SCRIPT LULL MODE WAY, where WAY is "child" (the child serves, as those
# of sshd and PostgreSQL do), "inetd" (the child executes a program that knows nothing of sockets), or "datagrams" (over
# UDP the child answers by its parent's socket).
. "$(dirname "$0")/harness.sh"
way=$3

cat >server.py <<'END'
import os, signal, socket, socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    def setup(self):
        # A child of the child, which lives on, asks for the connection's names, which takes the connection from nobody.
        (said, says), (stays, self.ends) = os.pipe(), os.pipe()
        self.other = os.fork()
        if self.other == 0:
            os.close(self.ends)
            names = self.request.getpeername(), self.request.getsockname()
            os.write(says, b"y" if names == (self.client_address, (sys.argv[1], 7777)) else b"n")
            os.read(stays, 1)
            os._exit(0)
        assert os.read(said, 1) == b"y"
        super().setup()
    def handle(self):
        assert os.getpid() != SERVER
        assert self.connection.getpeername() == self.client_address, self.client_address
        assert self.connection.getsockname() == (sys.argv[1], 7777)
        assert self.connection.family == socket.AF_INET
        assert self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        while chunk := self.connection.recv(65536):
            self.connection.sendall(chunk)
        os.close(self.ends)
        os.waitpid(self.other, 0)

class Inetd(socketserver.StreamRequestHandler):
    def handle(self):
        # git's daemon does this: each number of the connection is moved, and closed, separately.
        for taken, number in (self.connection.detach(), 0), (self.server.other, 1):
            os.dup2(taken, number)
            os.close(taken)
        os.execvp("python3", ["python3", "executed.py", *map(str, (*self.client_address, *self.server.server_address))])

class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64

    def process_request(self, request, client_address):
        self.other = os.dup(request.fileno())
        super().process_request(request, client_address)
        os.close(self.other)

SERVER = os.getpid()
with Server((sys.argv[1], 7777), Echo if sys.argv[2] == "child" else Inetd) as server:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()
END
cat >executed.py <<'END'
import os, socket, sys

names = (sys.argv[1], int(sys.argv[2])), (sys.argv[3], int(sys.argv[4]))
connection = socket.socket(fileno=0)
assert (connection.family, connection.type, connection.proto) == (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP), connection
assert (connection.getpeername(), connection.getsockname()) == names, connection
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
connection.detach()
os.execvp("cat", ["cat"])
END
cat >client.py <<'END'
import os, socket, sys, threading, time

def connect():
    for attempt in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7777), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

def echo(size):
    data = os.urandom(size)
    with connect() as connection:
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
    done.append(size)

done = []
connect().close()
sizes = [1, 5, 1460, 100_000, 2_000_000] * 4
threads = [threading.Thread(target=echo, args=(size,)) for size in sizes]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(done) == sorted(sizes), done
print(len(done), "connections echoed")
END
if [ "$way" = datagrams ]; then
    cat >server.py <<'END'
import os, signal, socket, socketserver, sys

class Echo(socketserver.DatagramRequestHandler):
    def handle(self):
        assert os.getpid() != SERVER
        assert self.socket.getsockname() == (sys.argv[1], 7777), self.socket.getsockname()
        assert self.socket.type == socket.SOCK_DGRAM
        self.wfile.write(self.rfile.read().upper())

class Server(socketserver.ForkingUDPServer):
    allow_reuse_address = True
    max_children = 100

SERVER = os.getpid()
with Server((sys.argv[1], 7777), Echo) as server:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()
END
    cat >client.py <<'END'
import socket, sys, threading

def ask(nth):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((sys.argv[1], 7777))
        asking.settimeout(1)
        for size in [1, 100, 1400] * 3:
            question = b"%d " % nth + b"x" * size
            # The first datagrams may find no server yet, and any datagram may be lost.
            for attempt in range(120):
                try:
                    asking.send(question)
                    while asking.recv(2000) != question.upper():
                        pass
                    break
                except (TimeoutError, ConnectionRefusedError):
                    pass
            else:
                raise SystemExit("no answer")
    done.append(nth)

done = []
ask(-1)
threads = [threading.Thread(target=ask, args=(nth,)) for nth in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 21, done
print(len(done), "clients answered")
END
fi
options=()
on_lull python3 server.py "$own" "$way"
timeout 240 python3 client.py "$own" || fail "no answer"
# Nothing of a connection stays behind, neither in the children, which have ended, nor in their parent, which has closed
# them all.
gone() { ! "$lull" ss | grep -q ESTAB; }
until_it gone
stop
grep -q Traceback said && fail "a child failed"
echo done
