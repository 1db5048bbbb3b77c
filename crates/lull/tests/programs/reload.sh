# Unmodified nginx is told to reload (HUP) again and again while a client keeps it busy: new workers claim queues while the old
# ones finish what they have. No request fails. $3: how many workers, "reuseport" or "shared", and "tap" or "xdp".
# LULL_TEST_REQUESTS sets how many requests there are at least.
. "$(dirname "$0")/harness.sh"

read -r workers reuseport nic_kind <<<"$3"
[ "$reuseport" = shared ] && reuseport=
mkdir html
echo hello >html/index.html
nginx_conf "worker_processes $workers" <<END
    server {
        listen $own:80 $reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
if [ "$nic_kind" = xdp ]; then
    options=()
    on_veth 4
    pings_begin
else
    options=(--queues 4)
fi
on_lull nginx -c "$PWD/nginx.conf"
until_it there curl -s "http://$own/"

cat >client.py <<'END'
import os, socket, sys, threading
# Each thread keeps a connection for as long as the server does: a server that ends one says so in its last answer.
failed, done, stop = [], [0] * 8, threading.Event()
def client(nth):
    connection = None
    while not stop.is_set():
        try:
            if connection is None:
                connection = socket.create_connection((sys.argv[1], 80), 60)
                buffer = b""
                fresh = True
            connection.sendall(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"\n"):
                part = connection.recv(4096)
                if not part:
                    break
                answer += part
            if not answer and not fresh:
                # An idle connection was closed as the request was on its way: HTTP has the client ask again.
                connection.close()
                connection = None
                continue
            if not answer.startswith(b"HTTP/1.1 200"):
                raise OSError(f"answer {answer!r}")
            fresh = False
            done[nth] += 1
            if b"Connection: close" in answer:
                connection.close()
                connection = None
        except OSError as error:
            if isinstance(error, (ConnectionResetError, BrokenPipeError)) and not fresh:
                connection.close()
                connection = None
                again.append(nth)
                continue
            failed.append(f"thread {nth} after {done[nth]}: {error!r}")
            return
again = []
threads = [threading.Thread(target=client, args=(nth,)) for nth in range(8)]
[thread.start() for thread in threads]
while not os.path.exists("stop") and not failed:
    open("done.new", "w").write(str(sum(done)))
    os.rename("done.new", "done")
    stop.wait(0.05)
stop.set()
[thread.join() for thread in threads]
print(sum(done), "requests,", len(again), "asked again")
sys.exit("\n".join(failed) or 0)
END
there python3 client.py "$own" >client 2>&1 &
client=$!

# The old workers end, and each time new ones have answered.
generation=0
for _ in $(seq 10); do
    generation=$((generation + 1))
    kill -0 "$client" 2>/dev/null || fail "the client: $(cat client)"
    before=$(cat done 2>/dev/null || echo 0)
    kill -HUP "$(cat pid)"
    until_it eval "[ \$(grep -c 'gracefully shutting down' errors) -ge $((generation * workers)) ]"
    until_it eval "[ \$(grep -c ': exit\$' errors) -ge $((generation * workers)) ]"
    until_it eval "[ \$(cat done) -gt \$(($before + ${LULL_TEST_REQUESTS:-1000} / 10)) ]"
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
grep "emerg\|alert\|crit" errors | grep -v initgroups && fail "nginx complains"
stop
[ "$status" = 0 ] || fail "it ended with $status"
[ "$nic_kind" = xdp ] && pings_end
echo done
