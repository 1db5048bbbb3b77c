# A server passes its listener to another process over a Unix socket (SCM_RIGHTS), closes it, and ends; at last the
# other process closes it, too: SCRIPT LULL MODE "QUEUES ADDRESS". With one queue the other process is passed the
# connections that it accepts, until the server has ended.
. "$(dirname "$0")/harness.sh"
read -r queues address <<<"$3"
options=(--queues "$queues")
cat >server.py <<'END'
import ctypes, os, socket, sys, threading, time

def stage(name):
    open(name, "w").close()

def until(name):
    while not os.path.exists(name):
        time.sleep(0.005)

def serve(listener, until):
    """Answers whoever comes until there is a file of that name."""
    listener.settimeout(0.01)
    while not os.path.exists(until):
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(60)
            assert connection.getpeername() == peer
            while data := connection.recv(100):
                connection.sendall(b"%s %s\n" % (sys.argv[1].encode(), data))

here = sys.argv[1]
if here == "former":
    listener = socket.create_server((sys.argv[2], 7777), backlog=64)
    stage("listens")
    serve(listener, "is asked")
    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.connect("other")
    socket.send_fds(other, [b"l"], [listener.fileno()])
    stage("is passed on")
    serve(listener, "is closed")
    listener.close()
    stage("has closed")
    until("is to end")
    # At exit the kernel closes the one, and the C library writes the other.
    other.detach()
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    c.fputs(b"this", ctypes.c_void_p(c.fopen(b"written", b"w")))
    open("former", "w").write(str(os.getpid()))
else:
    asks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asks.bind("other")
    asks.listen()
    stage("is there")
    taken, _ = asks.accept()
    said, numbers, *_ = socket.recv_fds(taken, 100, 4)
    listener = socket.socket(fileno=numbers[0])
    assert listener.family == socket.AF_INET and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    assert listener.getsockname() == (sys.argv[2], 7777), listener.getsockname()
    threading.Thread(target=lambda: taken.recv(100) or stage("former holds nothing")).start()
    until("asks")
    serve(listener, "is over")
    listener.close()
    stage("nobody listens")
    until("is all")
END
cat >client.py <<'END'
import socket, sys

to, count, *who = sys.argv[1:]
answerers = set()
for nth in range(int(count)):
    with socket.create_connection((to, 7777), 60) as connection:
        connection.sendall(b"%d" % nth)
        connection.shutdown(socket.SHUT_WR)
        answerer, what = b"".join(iter(lambda: connection.recv(100), b"")).split()
        assert int(what) == nth
        answerers.add(answerer.decode())
assert answerers <= set(who), answerers
END
cat >goes_on.py <<'END'
import os, socket, sys, time

# The server has one connection until it ends.
with socket.create_connection((sys.argv[1], 7777), 60) as connection:
    while not os.path.exists("connection is over"):
        connection.sendall(b"on")
        assert connection.recv(9, socket.MSG_WAITALL) == b"other on\n"
        open("goes on", "w").close()
        time.sleep(0.01)
END
at="$own"
[ "$address" = any ] && at=0.0.0.0
there_is() { [ -e "$1" ]; }
# If the address is a wildcard, lull and the kernel both have the listener.
asked() {
    there timeout 120 python3 client.py "$own" "$@" || fail "no answer of $*, or another's"
    [ "$address" != any ] || timeout 120 python3 client.py 127.0.0.1 "$@" || fail "no answer of $* in the kernel's world"
}
on_lull sh -c 'python3 server.py other "$1" & other=$!; python3 server.py former "$1" || exit 1; touch ended; wait $other' sh "$at"
until_it there_is listens
until_it there_is "is there"
# It can be reached a moment after it says so.
until_it there python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 7777), 60)' "$own"
asked 10 former
touch "is asked"
until_it there_is "is passed on"
asked 10 former
# Connections that come after the first process has closed the listener, and before the other one asks, wait.
touch "is closed"
until_it there_is "has closed"
[ "$address" = any ] || { there timeout 120 python3 client.py "$own" 1 other & waits=$!; }
touch asks
[ "$address" = any ] || wait "$waits" || fail "what has come meanwhile was not answered"
asked 20 other
there timeout 120 python3 goes_on.py "$own" &
goes_on=$!
until_it there_is "goes on"
touch "is to end"
if [ "$queues" = 1 ]; then
    # The process stays for a connection, and no signal that asks a program for something ends it. SIGUSR1 is number 10.
    until_it [ -s former ]
    stays() { (((16#$(awk '/^SigIgn/ { print $2 }' "/proc/$(cat former)/status") >> 9) & 1)); }
    until_it stays
    # Nobody waits for the files that it has open, nor for what it has written to them.
    until_it there_is "former holds nothing"
    until_it grep this written
    there_is ended && fail "it has not stayed"
    kill -USR1 "$(cat former)"
    rm "goes on"
    until_it there_is "goes on"
    there_is ended && fail "it has not stayed"
fi
touch "connection is over"
wait "$goes_on" || fail "a connection has not gone on"
until_it there_is ended
asked 20 other
touch "is over"
until_it there_is "nobody listens"
refused() { python3 -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7777), 5)
    sys.exit(1)
except ConnectionRefusedError:
    pass' "$own"; }
there refused || fail "nobody listens, and it is not refused"
touch "is all"
wait "$launcher" || fail "the program: $(cat said)"
grep -q -e Traceback -e 'cannot pass' said && fail "a process failed: $(cat said)"
echo done
