# A server asks for connections and leaves them to a program that its child executes, with the listener under another
# number (as Dovecot's master starts its login processes). $3: "watched", where the server waits at a listener only
# while nobody serves it; or "kept", where the listener stays in its epoll context, and it answers itself once its child
# has ended.
. "$(dirname "$0")/harness.sh"
way=$3

cat >server.py <<'END'
import os, select, socket, sys

NUMBER = 30
# How many connections a child answers.
TURNS = 2


def answer(listener, who):
    connection, _ = listener.accept()
    connection.sendall(who.encode())
    connection.close()


if sys.argv[1] == "child":
    listener = socket.socket(fileno=NUMBER)
    assert listener.getsockname()[1] == int(sys.argv[3]), listener
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1, listener
    for _ in range(TURNS):
        answer(listener, f"{sys.argv[2]} by a child")
    sys.exit()


def child(fd):
    process = os.fork()
    if process:
        return process
    try:
        [other] = set(listeners) - {fd}
        os.dup2(other, NUMBER)
        os.dup2(fd, NUMBER)
        os.execv(sys.executable, [sys.executable, "server.py", "child", *listeners[fd][1:]])
    finally:
        os._exit(1)


def wait_for(process):
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, "the child"


way, address = sys.argv[1:]
listeners = {}
poll = select.epoll()
for name, at in ("first", (address, 7777)), ("second", ("0.0.0.0", 7778)):
    listener = socket.create_server(at)
    listeners[listener.fileno()] = listener, name, str(at[1])
    poll.register(listener.fileno(), select.EPOLLIN)
if way == "kept":
    [(fd, _)] = poll.poll()
    wait_for(child(fd))
    for _ in range(TURNS):
        [(fd, _)] = poll.poll()
        answer(listeners[fd][0], f"{listeners[fd][1]} by the server")
    sys.exit()
serving = {}
while True:
    for fd, _ in poll.poll():
        if fd in listeners:
            poll.unregister(fd)
            process = child(fd)
            end = os.pidfd_open(process)
            serving[end] = process, fd
            poll.register(end, select.EPOLLIN)
        else:
            process, listener = serving.pop(fd)
            poll.unregister(fd)
            os.close(fd)
            wait_for(process)
            poll.register(listener, select.EPOLLIN)
END
cat >client.py <<'END'
import socket, sys, threading

way, address = sys.argv[1:]


def ask(port, wanted):
    with socket.create_connection((address, port), 60) as connection:
        answer = connection.makefile().read()
        if answer == wanted:
            answered.append(answer)
        else:
            print(port, answer)


answered = []
if way == "kept":
    for wanted in ["first by a child"] * 2 + ["first by the server"] * 2:
        ask(7777, wanted)
    sys.exit(len(answered) != 4)
asked = [(7777, "first by a child"), (7778, "second by a child")] * 8
threads = [threading.Thread(target=ask, args=one) for one in asked]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(answered) != len(asked))
END
on_lull python3 server.py "$way" "$own"
listens() { "$lull" ss | grep -q "LISTEN.*:7777"; }
until_it listens
timeout 120 python3 client.py "$way" "$own" >client 2>&1 || fail "$(cat client)"
if [ "$way" = kept ]; then
    wait "$launcher" || fail "the server failed"
else
    stop
fi
grep -q Traceback said && fail "a child failed"
echo done
