# One delivery mode on a program that waits in epoll (with busyread, or "recv" as the third argument, in recv):
# afterwards `lull show` says that the mode is in force, and the polls, timers and suspensions that belong to it were
# counted. A mode that cannot act here is refused before anything is started ("refused" as the third argument).
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import select, socket, sys
listener = socket.create_server((sys.argv[1], 7000))
if "busyread" in sys.argv or "recv" in sys.argv:
    while True:
        connection, _ = listener.accept()
        while data := connection.recv(100):
            connection.sendall(data)
waiting = select.epoll()
waiting.register(listener, select.EPOLLIN)
connections = {}
while True:
    for number, _ in waiting.poll():
        if number == listener.fileno():
            connection, _ = listener.accept()
            connections[connection.fileno()] = connection
            waiting.register(connection, select.EPOLLIN)
        elif data := connections[number].recv(100):
            connections[number].sendall(data)
        else:
            connections.pop(number).close()
END
cat >client.py <<'END'
import json, socket, subprocess, sys, time
lull, own, pid, mode, waits = sys.argv[1:]
for _ in range(600):
    try:
        connection = socket.create_connection((own, 7000))
        break
    except TimeoutError:
        raise
    except OSError:
        time.sleep(0.1)
connection.settimeout(120)

def look():
    shown = json.loads(subprocess.run([lull, "show", pid, "--json"], capture_output=True, check=True).stdout)[0]
    return shown["napis"][0]["stats"], shown["modes"][0]

REQUESTS = 200
asked = []
before, recognised = look()
for _ in range(REQUESTS):
    connection.sendall(b"x")
    assert connection.recv(9) == b"x"
    time.sleep(0.001)
after, _ = look()
sockets = json.loads(subprocess.run([lull, "ss", pid, "--json"], capture_output=True, check=True).stdout)[0]["sockets"]
address = "%s:%d" % connection.getsockname()
listening, ours = [next(it for it in sockets if test(it)) for test in (lambda it: it["state"] == "LISTEN", lambda it: it["peer"] == address)]
assert listening["local"] == f"{own}:7000" and listening["peer"] is None, sockets
assert ours["state"] == "ESTAB" and 0 < ours["rtt_us"] < 60_000_000, sockets
# The last answer may not be acknowledged yet.
assert ours["send_queue"] <= 1 and ours["receive_queue"] == 0, sockets
count = {name: after[name] - before[name] for name in after}
print(mode, recognised, count)
family = mode.rstrip("0123456789")
named = {"busyread": "defer15"}.get(mode, mode)
if waits == "recv":
    # Nobody busy polls while it is deferred, so a deferral may have run out.
    family, named = "recv", "base"
assert recognised["mode"] == named, recognised
happened = {
    "base": count["softirq_polls"] > 0 and count["deferrals"] == count["suspends"] == count["busy_polls"] == 0,
    "recv": count["deferrals"] <= 1 and count["busy_polls"] == 0,
    "defer": count["deferrals"] > 0 and count["busy_polls"] == 0,
    "napibusy": count["busy_polls"] > 0 and count["suspends"] == 0,
    "fullbusy": count["busy_polls"] > REQUESTS,
    "suspend": count["suspends"] > 0 if mode != "suspend0" else count["busy_polls"] > 0,
    "threaded": count["thread_polls"] > 0 and count["softirq_polls"] == 0,
    "threaded-busy": count["thread_polls"] > REQUESTS,
    "busyread": count["busy_polls"] > 3 * REQUESTS,
    "longgro": count["busy_polls"] > 0 and count["deferrals"] > 0,
}
assert happened[family], count
END
on_lull python3 server.py "$own" "$mode" "$3"
if [ "$3" = refused ]; then
    wait "$launcher"
    [ $? = 2 ] || fail "it was not refused"
    grep -q "$mode" said || fail "the refusal does not name it"
    grep -q "use " said || fail "the refusal has no remedy"
    grep -q "runs python3" said && fail "it was started"
    cat said
    echo done
    exit
fi
find_program
until_it "$lull" show "$program"
python3 client.py "$lull" "$own" "$program" "$mode" "$3" >client 2>&1 || fail "$(cat client)"
cat client
stop
echo done
