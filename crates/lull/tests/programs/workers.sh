# Unmodified nginx has two worker processes, each with a queue and a listener of its own; one of them is killed. $3:
# over "tap" or "xdp".
. "$(dirname "$0")/harness.sh"

site
nginx_conf "worker_processes 2" <<END
    server {
        listen $own:80 reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
on_nic "$3" 2
[ "$3" = xdp ] && pings_begin
on_lull nginx -c "$PWD/nginx.conf"
until_it there curl -s "http://$own/"

# Each connection goes to one of the workers, and all are answered.
both_answer() {
    rm -f who
    for _ in $(seq 40); do
        there curl -s --max-time 60 "http://$own/who" >>who || return 1
    done
    [ "$(sort -u who | wc -l)" = 2 ]
}
until_it both_answer
run_ab -k -n 4000 -c 20 "http://$own/"
for worker in $(sort -u who); do
    "$lull" stat "$worker" --interval 0.1 --count 1 >stat 2>&1 || fail "lull stat of process $worker: $(cat stat)"
done
"$lull" show --json >shown || fail "lull show: $(cat shown)"
python3 -c '
import json, sys
napis = [napi for entry in json.load(open("shown")) if str(entry.get("pid")) in sys.argv[1:] for napi in entry["napis"]]
assert sorted(napi["queue"] for napi in napis) == [0, 1], napis
assert len({napi["id"] for napi in napis}) == 2, napis' $(sort -u who) || fail "the workers do not show a queue each"

# Clients wait at a listener for which nobody has asked for connections yet. Those of a worker that is killed see the
# end, and the others are served.
cat >waiting.py <<'END'
import http.client, os, sys

connections = []
workers = set()
while len(workers) < 2 or len(connections) < 20:
    connection = http.client.HTTPConnection(sys.argv[1], timeout=120)
    connection.request("GET", "/who")
    pid = int(connection.getresponse().read())
    workers.add(pid)
    connections.append((connection, pid))
killed = connections[0][1]
os.kill(killed, 9)
for connection, pid in connections:
    if pid == killed:
        try:
            sys.exit(f"got {connection.sock.recv(100)} instead of a reset")
        except ConnectionResetError:
            pass
for connection, pid in connections:
    if pid != killed:
        connection.request("GET", "/who")
        assert int(connection.getresponse().read()) == pid
print(killed)
END
killed=$(there python3 waiting.py "$own") || fail "a client of a worker that was killed, or of the other, fails"
# The master forks another worker in its place, which claims the queue.
another_answers() {
    both_answer && ! grep -q "^$killed$" who
}
until_it another_answers

stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -v "exited on signal 9\|initgroups" errors | grep "emerg\|alert\|crit" && fail "nginx complains"
[ "$3" = xdp ] && pings_end
exists lull0 && fail "the TAP is left"
echo done
