# A server whose main thread has ended ends with its last thread: it exits with 0, as on Linux, or with the status of
# the system call by which its main thread ended without the C library (main_ends.c). SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cc -pthread -o main_ends "$(dirname "$0")/main_ends.c" || fail "main_ends.c does not compile"
cat >client.py <<'END'
import socket, sys, time

for attempt in range(1200):
    try:
        connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
        break
    except OSError:
        time.sleep(0.1)
connection.sendall(b"?")
got = connection.recv(1)
sys.exit(0 if got == b"?" else f"the client has {got}")
END
port=7000
for way in before after by-number; do
    port=$((port + 1))
    nic=(--nic "tap:lull$port" --addr "$own/24" --peer-addr 10.0.0.1/24)
    on_lull ./main_ends "$way" "$own" "$port"
    timeout 120 python3 client.py "$own" "$port" >client 2>&1 || fail "$way: $(cat client said)"
    wait "$launcher"
    told="$? $(grep -c '^exits$' said)"
    [ "$told" = "$([ "$way" = by-number ] && echo '3 0' || echo '0 1')" ] || fail "$way: status and exits: $told: $(cat said)"
done
echo done
