# Unmodified memcached -N with two workers on two queues: each takes the connections of one NAPI id, which it learns by
# SO_INCOMING_NAPI_ID, so that its epoll context has sockets on one NAPI only.
. "$(dirname "$0")/harness.sh"

options=(--queues 2)
on_lull "${memcached[@]}" -t 2 -N 2
until_it memcached_answers
find_program
until_it has_open "$program" 0
cat >client.py <<'END'
import json, socket, subprocess, sys
lull, own, pid = sys.argv[1:]
connections = [socket.create_connection((own, 11211), 120) for _ in range(60)]
for connection in connections:
    connection.sendall(b"version\r\n")
    assert connection.recv(100).startswith(b"VERSION")
shown = json.loads(subprocess.run([lull, "show", pid, "--json"], capture_output=True, check=True).stdout)[0]
ids = {str(napi["id"]) for napi in shown["napis"] if napi["qdisc"] is None}
# The dispatcher's context has only the listener.
workers = [context["sockets"] for context in shown["contexts"] if sum(context["sockets"].values()) > 2]
print(ids, workers)
assert len(ids) == 2 and len(workers) == 2 and sum(sum(worker.values()) for worker in workers) == 60, shown["contexts"]
assert [len(worker) for worker in workers] == [1, 1] and {*workers[0], *workers[1]} == ids, workers
END
python3 client.py "$lull" "$own" "$program" >client 2>&1 || fail "$(cat client)"
cat client
load_memcached --connections 16 --seconds 0.5 --records 100
stop
echo done
