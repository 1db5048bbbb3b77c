# Faults of a program on the user plane: it is stopped and continued, has no free number, a second launcher wants its
# NIC and its address, its launcher is killed, its device is removed, it is started again and again.
. "$(dirname "$0")/harness.sh"

fault=$3
serve() {
    on_lull "${memcached[@]}" -t 1
    until_it memcached_answers 4
    find_program
}
clean() {
    stop
    exists lull0 && fail "the TAP is left"
}
case "$fault" in
stopped)
    serve
    cat >client.py <<'END'
import socket, sys
connection = socket.create_connection((sys.argv[1], 11211), 60)
connection.sendall(b"set a 0 0 1\r\nx\r\n")
assert connection.recv(100) == b"STORED\r\n"
open("ready", "w").close()
sys.stdin.readline()
# While the program is stopped, nothing is lost.
connection.sendall(b"get a\r\n")
open("sent", "w").close()
assert connection.recv(100).startswith(b"VALUE a")
print("kept")
END
    mkfifo go
    python3 client.py "$own" <go >client 2>&1 &
    client=$!
    exec 3>go
    until_it test -e ready
    kill -STOP "$program"
    until_it grep -q '^State:.*T' "/proc/$program/status"
    echo go >&3
    until_it test -e sent
    kill -CONT "$program"
    wait "$client" || fail "the client: $(cat client)"
    grep -q kept client || fail "$(cat client)"
    until_it memcached_answers 4
    clean
    ;;
second)
    serve
    "$lull" run "${nic[@]}" --mode base -- true >second 2>&1 && fail "a second launcher got the NIC"
    grep -q "lull0.*\(use\|busy\)" second || fail "it does not say why: $(cat second)"
    # Another NIC may have the same address for a reason; the user gets a warning.
    "$lull" run --nic tap:lull9 --addr "$own/24" --mode base -- true >third 2>&1 || fail "it does not run: $(cat third)"
    grep -q "$own is the address of process $launcher on tap:lull0, too" third || fail "it is silent: $(cat third)"
    until_it memcached_answers 4
    clean
    ;;
launcher)
    serve
    kill -9 "$launcher"
    wait "$launcher"
    # The program goes on, and removes the NIC when it ends.
    until_it memcached_answers 4
    kill -0 "$program" || fail "the program died with its launcher"
    kill -TERM "$program"
    until_it eval "! exists lull0"
    ;;
device)
    serve
    ip link delete lull0
    # Calls fail, but the program goes on, and can be told to end.
    kill -0 "$program" || fail "the program died with its device"
    stop
    ;;
numbers)
    cat >server.py <<'END'
import resource, selectors, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
selector = selectors.DefaultSelector()
listener = socket.create_server((sys.argv[1], 7777), backlog=512)
selector.register(listener, selectors.EVENT_READ)
refused, said = 0, open("said-by-server", "w", buffering=1)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            try:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            except OSError as error:
                assert error.errno == 24, error
                refused += 1
                said.write("refused\n") if refused == 1 else time.sleep(0.001)
                continue
        else:
            data = key.fileobj.recv(100)
            if data == b"end":
                sys.exit(0 if refused else 3)
            if data:
                key.fileobj.sendall(data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()
END
    cat >client.py <<'END'
import os, socket, sys, time
def connect():
    for _ in range(600):
        try:
            return socket.create_connection((sys.argv[1], 7777), 60)
        except OSError:
            time.sleep(0.1)
def echo(connection, data):
    connection.sendall(data)
    assert connection.recv(100) == data
first = connect()
echo(first, b"first")
# There are more connections than the program has numbers: those that it has are answered, and the others when there is
# room.
others = [connect() for _ in range(80)]
while os.path.getsize("said-by-server") == 0:
    echo(first, b"while others wait")
last = connect()
last.sendall(b"last")
for connection in others:
    connection.close()
assert last.recv(100) == b"last"
first.sendall(b"end")
print("answered")
END
    on_lull python3 server.py "$own"
    timeout 120 python3 client.py "$own" >client 2>&1 || fail "the client: $(cat client)"
    wait "$launcher" || fail "the program did not meet its limit, or ended badly"
    ;;
restarts)
    # The launcher, the program and the device come and go under a client that never gives up.
    cat >client.py <<'END'
import os, socket, sys, time
answered = 0
while not os.path.exists("stop"):
    try:
        connection = socket.create_connection((sys.argv[1], 11211), 2)
        connection.sendall(b"version\r\n")
        answered += connection.recv(100).startswith(b"VERSION")
        connection.close()
    except OSError:
        time.sleep(0.005)
    open("answered.new", "w").write(str(answered))
    os.rename("answered.new", "answered")
print(answered)
END
    echo 0 >answered
    python3 client.py "$own" >client 2>&1 &
    client=$!
    for nth in $(seq "${LULL_TEST_RESTARTS:-20}"); do
        before=$(cat answered)
        on_lull "${memcached[@]}" -t 1
        until_it eval "[ \$(cat answered) -gt $before ]"
        if [ $((nth % 2)) = 0 ]; then
            stop
        else
            find_program
            kill -9 "$program"
            wait "$launcher"
        fi
        exists lull0 && fail "the TAP is left"
    done
    touch stop
    wait "$client" || fail "the client: $(cat client)"
    pgrep -x memcached --ns $$ --nslist net >/dev/null && fail "a program is left"
    # Unnamed shared memory is freed with its last descriptor, and control sockets with their process.
    for process in /proc/[0-9]*; do
        ls -l "$process/fd" 2>/dev/null | grep -q "memfd:lull" && [ "$(readlink "$process/ns/net")" = "$(readlink /proc/self/ns/net)" ] && fail "shared pages are left with $process"
    done
    ;;
esac
echo done
