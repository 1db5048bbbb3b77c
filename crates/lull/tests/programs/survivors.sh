# The process that has the engine is killed. One of its children waits for what that process passes on to it, while
# another one only sleeps, which has inherited the same: SCRIPT LULL MODE WHAT. WHAT the first child waits for:
# "accept", "poll" or "epoll" on a listener; "both", where both children accept, and both serve afterwards; "datagrams";
# "connection", from which it reads; or "stopped", where it asks for that while its parent is stopped.
. "$(dirname "$0")/harness.sh"
what=$3

cat >server.py <<'END'
import os, select, signal, socket, sys, time

what, address = sys.argv[1:]


def say(name, said="it is so"):
    with open(name + ".new", "w") as file:
        file.write(str(said))
    os.rename(name + ".new", name)


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def child(name, does):
    pid = os.fork()
    if pid == 0:
        say(name, os.getpid())
        try:
            does()
        finally:
            os._exit(1)


def sleeps():
    signal.pause()


def serves():
    if what in ("poll", "epoll"):
        listener.setblocking(False)
        poll = select.epoll() if what == "epoll" else select.poll()
        poll.register(listener, select.POLLIN)
    while True:
        if what in ("poll", "epoll"):
            poll.poll()
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.setblocking(True)
        try:
            connection.sendall(b"%d\n" % os.getpid())
            if what == "both":
                # Until this peer closes it, the next connection goes to the other child.
                connection.recv(1)
        except OSError:
            pass
        connection.close()


def answers():
    while True:
        _, peer = udp.recvfrom(100)
        udp.sendto(b"%d" % os.getpid(), peer)


def reads():
    until("reads")
    try:
        said = connection.recv(100)
    except OSError:
        said = b""
    assert said == b"", said
    say("heard")
    signal.pause()


if what == "datagrams":
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, 7777))
    _, peer = udp.recvfrom(100)
    udp.sendto(b"%d" % os.getpid(), peer)
    child("first", answers)
    # Its relay has been made.
    until("asked")
    child("second", sleeps)
else:
    listener = socket.create_server((address, 7777))
    connection, _ = listener.accept()
    connection.sendall(b"%d\n" % os.getpid())
    if what in ("connection", "stopped"):
        child("first", reads)
        if what == "connection":
            say("reads")
            until("asked")
        child("second", sleeps)
    elif what == "both":
        child("first", serves)
        child("second", serves)
    else:
        child("second", sleeps)
        child("first", serves)
say("ready")
signal.pause()
END
cat >client.py <<'END'
import socket, sys, time

what, address, *wanted = sys.argv[1:]


def asks():
    if what == "datagrams":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.settimeout(1)
            udp.sendto(b"who", (address, 7777))
            return {udp.recv(100).decode()}
    # As many clients connect at a time as there are children to answer.
    connections = []
    try:
        for _ in wanted:
            connections.append(socket.create_connection((address, 7777), 2))
        return {connection.makefile().readline().strip() for connection in connections}
    finally:
        [connection.close() for connection in connections]


while True:
    try:
        if asks() == set(wanted):
            break
    except OSError:
        pass
    time.sleep(0.1)
END
answered_by() { timeout "${LULL_TEST_PATIENCE:-120}" python3 client.py "$what" "$own" "$@"; }
on_lull python3 server.py "$what" "$own"
find_program
case $what in
    connection | stopped)
        python3 -c '
import socket, sys, time
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 7777), 2)
        break
    except OSError:
        time.sleep(0.1)
time.sleep(1000)' "$own" &
        until_it [ -s first ]
        ;;
    *)
        answered_by "$program" || fail "it does not answer"
        until_it [ -s first ]
        ;;
esac
first=$(<first)
# Whether a child is in the call in which it waits for what its parent passes on (`recvfrom`), by its number on x86 or
# ARM.
is_in_recvfrom() { grep -qE "^(45|207) " "/proc/$first/syscall"; }
case $what in
    datagrams)
        answered_by "$first" || fail "its child does not answer"
        touch asked
        ;;
    connection)
        until_it is_in_recvfrom
        touch asked
        ;;
esac
until_it [ -s ready ]
until_it [ -s second ]
second=$(<second)
case $what in
    accept | poll | epoll) answered_by "$first" || fail "its child does not answer" ;;
    both) answered_by "$first" "$second" || fail "its children do not answer" ;;
    stopped)
        kill -STOP "$program"
        touch reads
        until_it is_in_recvfrom
        ;;
esac
kill -KILL "$program"
case $what in
    connection | stopped) until_it [ -e heard ] ;;
    both) answered_by "$first" "$second" || fail "its children do not both answer when it has ended" ;;
    *) answered_by "$first" || fail "its child does not answer when it has ended" ;;
esac
kill -KILL "$first" "$second"
wait "$launcher"
grep -q Traceback said && fail "it failed"
echo done
