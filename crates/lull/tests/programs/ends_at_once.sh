# Servers end at once, or stop, or signal another process, within a batch of events for whose end their last answer
# waits (ends_at_once.c): the client gets that answer all the same. SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cc -pthread -o ends_at_once "$(dirname "$0")/ends_at_once.c" || fail "ends_at_once.c does not compile"
cat >client.py <<'END'
import socket, sys, time

def connect():
    for attempt in range(1200):
        try:
            return socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("no connection")

connection = connect()
connection.sendall(b"?")
got = b""
try:
    while len(got) < 2 and (more := connection.recv(2)):
        got += more
except (ConnectionResetError, TimeoutError) as ended:
    print(ended)
sys.exit(0 if got == b"ab" else f"the client has {got}")
END
# There are neither core files nor a limit of time below an hour.
ulimit -c 0
options=(--coalesce 3600s)
port=7000
for way in ${ways:-_exit _Exit quick_exit by-number thread-by-number anothers abort raise kill kill-by-number group killpg sigqueue \
    pthread_kill pthread_sigqueue tgkill stop parent handler}; do
    port=$((port + 1))
    nic=(--nic "tap:lull$port" --addr "$own/24" --peer-addr 10.0.0.1/24)
    # The server has a parent of its own, which it may end, and a process group.
    on_lull setsid --wait sh -c "./ends_at_once $way $own $port; true"
    if ! timeout 120 python3 client.py "$own" "$port" >client 2>&1; then
        lost="$lost $way"
        cat client said
    fi
    pkill -KILL -f "^./ends_at_once $way " && true
    wait "$launcher"
done
[ -z "$lost" ] || fail "what was written last is lost: $lost"
echo done
