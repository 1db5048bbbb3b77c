# Two servers of one program run on one queue, and neither has its listener from the other (Erlang's epmd beside
# RabbitMQ): SCRIPT LULL MODE "WAY ADDRESS". The second one, which has no queue, serves connections to the kernel's half
# of a listener on a wildcard, and those of lull's half as soon as the first one has ended. Meanwhile it connects and
# sends by the kernel, like a socket that is bound to an address of the kernel's in a process with queues. WAY is how it
# asks: "accept", "poll", "select" or "epoll".
. "$(dirname "$0")/harness.sh"
read -r way address <<<"$3"
cat >server.py <<'END'
import errno, os, select, socket, sys

name, address, port, way = sys.argv[1:5]
listener = socket.create_server((address, int(port)), backlog=64)
if way != "accept":
    listener.setblocking(False)
if way == "epoll":
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
elif way == "poll":
    poller = select.poll()
    poller.register(listener, select.POLLIN)

def reaches_its_peer(bound):
    """Whether both ends of what it connects and sends by are the kernel's."""
    with socket.create_connection(("10.0.0.1", 9999), 60, bound) as connection:
        connection.sendall(b"hello")
        assert connection.recv(5, socket.MSG_WAITALL) == b"hello"
        assert connection.getsockname()[0] == connection.getpeername()[0] == "10.0.0.1", connection
    for connected in False, True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.settimeout(60)
            if bound:
                datagrams.bind(bound)
            if connected:
                datagrams.connect(("10.0.0.1", 9999))
                datagrams.send(b"hello")
            else:
                datagrams.sendto(b"hello", ("10.0.0.1", 9999))
            assert datagrams.recvfrom(100) == (b"hello", ("10.0.0.1", 9999))

if name == "second":
    reaches_its_peer(None)
    with socket.socket() as own:
        own.bind((sys.argv[5], 0))
        try:
            own.connect(("10.0.0.1", 9999))
            raise SystemExit("it has connected from an address of lull's")
        except OSError as error:
            assert error.errno == errno.ENETDOWN, error
    # A child of it makes sockets as well.
    child = os.fork()
    if child == 0:
        socket.create_server(("0.0.0.0", 7999)).close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
while True:
    open(name, "w").close()
    if way == "poll":
        poller.poll()
    elif way == "select":
        select.select([listener], [], [])
    elif way == "epoll":
        epoll.poll()
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        continue
    with connection:
        if name == "first":
            reaches_its_peer(("10.0.0.1", 0))
        connection.setblocking(True)
        connection.sendall(b"%s\n" % name.encode())
        while data := connection.recv(65536):
            connection.sendall(data)
END
cat >client.py <<'END'
import socket, sys

address, port, whose = sys.argv[1:]
with socket.create_connection((address, int(port)), 60) as connection:
    file = connection.makefile("rb")
    assert file.readline().decode().strip() == whose
    connection.sendall(b"hello")
    assert file.read(5) == b"hello"
END
cat >peer.py <<'END'
import socket, threading

datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.0.0.1", 9999))
def answer():
    while True:
        data, sender = datagrams.recvfrom(65536)
        datagrams.sendto(data, sender)
threading.Thread(target=answer, daemon=True).start()
listener = socket.create_server(("10.0.0.1", 9999))
open("peer", "w").close()
while True:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
END
cat >both <<END
while [ ! -e peer ]; do sleep 0.01; done
python3 server.py first $own 7001 accept & first=\$!
while [ ! -e is-served ]; do sleep 0.01; done
python3 server.py second $address 7002 $way $own & second=\$!
while [ ! -e ends ]; do sleep 0.01; done
kill -TERM \$first
wait \$first
touch has-ended
wait \$second
END
on_lull bash both
until_it eval 'ip -o addr show | grep -q 10.0.0.1/'
python3 peer.py &
until_it [ -e first ]
until_it python3 client.py "$own" 7001 first
touch is-served
until_it [ -e second ]
if [ "$address" != "$own" ]; then
    for _ in 1 2 3; do python3 client.py 127.0.0.1 7002 second || fail "no answer to the kernel's world"; done
fi
until_it grep -q "has no queue of the NIC" said
python3 client.py "$own" 7001 first || fail "the first one does not serve"
touch ends
until_it [ -e has-ended ]
until_it python3 client.py "$own" 7002 second
for _ in $(seq 20); do python3 client.py "$own" 7002 second || fail "no answer to lull's world"; done
if [ "$address" != "$own" ]; then
    python3 client.py 127.0.0.1 7002 second || fail "no answer to the kernel's world any more"
fi
pkill -TERM -f "server.py second"
wait "$launcher"
grep -q Traceback said && fail "it failed"
echo done
