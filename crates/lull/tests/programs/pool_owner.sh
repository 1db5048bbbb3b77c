# Processes share a listener, and one has the NIC's only queue and passes connections on to the other: SCRIPT LULL MODE
# WHAT. WHAT happens to the one with the queue: "numbers": it has no free number when a connection comes; "send": the
# first messages by which it passes one on are refused; "first": it has made the listener, and asks before its child
# does; "exec": it executes a program without the listener in its place.
. "$(dirname "$0")/harness.sh"
what=$3

cat >server.py <<'END'
import os, resource, signal, socket, sys, time

what, address = sys.argv[1:3]


def say(name):
    open(name, "w").close()


def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def answer(connection):
    with connection:
        connection.sendall(b"%d" % os.getpid())


def serves():
    while True:
        answer(listener.accept()[0])


def owns():
    answer(listener.accept()[0])
    if what == "exec":
        until("other asks")
        os.execv("/bin/sleep", ["sleep", "1000"])
    if what == "numbers":
        until("other asks")
        soft = 64
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        files = []
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        # lull takes no number beyond the limit either.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
        os.mkdir("full")
        until("free")
        [os.close(file) for file in files]
    say("busy")
    signal.pause()


listener = socket.create_server((address, 7777))
if what == "first":
    # It has no engine when it forks.
    if (child := os.fork()) == 0:
        until("child may ask")
        serves()
    answer(listener.accept()[0])
    say("child may ask")
    open("processes", "w").write(f"{os.getpid()} {child}")
    signal.pause()
if (owner := os.fork()) == 0:
    owns()
if (other := os.fork()) == 0:
    until("other may ask")
    serves()
open("processes", "w").write(f"{owner} {other}")
os.waitpid(owner, 0)
os.waitpid(other, 0)
END
cat >client.py <<'END'
import socket, sys, time

address, wanted, way = sys.argv[1:]
while True:
    try:
        with socket.create_connection((address, 7777), 60 if way == "once" else 2) as connection:
            answered = connection.recv(100).decode()
    except OSError as error:
        answered = str(error)
    if answered == wanted:
        break
    if way == "once":
        sys.exit(f"answered: {answered}")
    time.sleep(0.1)
END
answered_by() { timeout "${LULL_TEST_PATIENCE:-120}" python3 client.py "$own" "$@"; }
on_lull python3 server.py "$what" "$own"
if [ "$what" = first ]; then
    find_program
    answered_by "$program" again || fail "it does not answer"
    until_it [ -s processes ]
    read -r owner other <processes
    answered_by "$other" again || fail "its child does not answer"
else
    until_it [ -s processes ]
    read -r owner other <processes
    answered_by "$owner" again || fail "it does not answer"
    touch "other may ask"
    # Once it has asked, it waits in its own epoll context.
    waits() { grep -q "process $other has no queue" said && grep -q '^State:[[:space:]]*S' "/proc/$other/status"; }
    until_it waits
fi
case $what in
    numbers)
        touch "other asks"
        until_it [ -e full ]
        answered_by "$other" once &
        client=$!
        until_it grep -q "connections of .* wait until process $owner can pass them on" said
        touch free
        wait "$client" || fail "the connection is lost"
        ;;
    send)
        until_it [ -e busy ]
        strace -f -qq -o traced -p "$owner" -e trace=sendmsg -e inject=sendmsg:error=ETOOMANYREFS:when=1..3 &
        # All threads are traced, because any of them may pass the connection on.
        is_traced() { ! grep -q '^TracerPid:[[:space:]]*0' "/proc/$owner/task"/*/status; }
        until_it is_traced
        answered_by "$other" once || fail "the connection is lost"
        # There is such a line for each thread that has tried.
        [ "$(grep -c ETOOMANYREFS traced)" -ge 3 ] || fail "$(cat traced)"
        [ "$(grep -c 'wait until process' said)" = 1 ] || fail "not said once"
        ;;
    exec)
        touch "other asks"
        answered_by "$other" again || fail "the other one has not taken the queue"
        [ "$(tr '\0' ' ' <"/proc/$owner/cmdline")" = "sleep 1000 " ] || fail "it has not executed a program"
        ;;
esac
kill -KILL "$owner" "$other"
wait "$launcher"
grep -q Traceback said && fail "it failed"
echo done
