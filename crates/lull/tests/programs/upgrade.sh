# Unmodified nginx is upgraded under load, as its manual says: on USR2 its first process executes the program again in a
# child, which inherits the listeners; on WINCH and QUIT the former processes end. No request of a client fails. $3: how
# many workers, "reuseport" or "shared", the address that is listened on, and how many queues there are.
. "$(dirname "$0")/harness.sh"

read -r workers reuseport address queues <<<"$3"
[ "$reuseport" = shared ] && reuseport=
site
nginx_conf "worker_processes $workers" <<END
    server {
        listen $address:80 $reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
# A busy worker's connection may be accepted by another one, for which the former worker then stays; so no connection
# may last long.
sed -i 's/^daemon off;//; s/keepalive_requests .*;/keepalive_requests 1000;/' nginx.conf
on_nic tap "$queues"
# The launcher waits for all processes: its child is a shell, which ends when nginx is gone.
cat >until_gone <<END
$(command -v nginx) -c $PWD/nginx.conf
while [ ! -e over ] || [ -e pid ]; do sleep 0.05; done
END
on_lull sh until_gone
until_it there curl -s "http://$own/"

there python3 "$(dirname "$0")/keep_alive.py" "$own" >client 2>&1 &
client=$!
answered() { [ "$(cat done 2>/dev/null || echo 0)" -gt "$1" ]; }
until_it answered 100

for generation in 1 2 3; do
    former=$(cat pid)
    kill -USR2 "$former"
    # The file exists before it has its contents.
    until_it eval '[ -e pid.oldbin ] && [ -s pid ] && [ "$(cat pid)" != "'"$former"'" ]'
    new=$(cat pid)
    until_it pgrep -P "$new"
    # Some connections are made while both generations have workers.
    until_it answered $(($(cat done) + 200))
    kill -WINCH "$former"
    until_it eval "! pgrep -P $former -f 'worker process'"
    until_it answered $(($(cat done) + 200))
    kill -QUIT "$former"
    until_it eval '[ ! -e pid.oldbin ]'
    until_it answered $(($(cat done) + 200))
    there curl -sf "http://$own/who" >who || fail "nobody answers after the upgrade"
    pgrep -P "$new" | grep -qx "$(cat who)" || fail "a process of the former generation answers"
    kill -0 "$client" || fail "the client: $(cat client)"
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
grep "emerg\|alert\|crit" errors | grep -v initgroups && fail "nginx complains"
grep -q 'cannot stay' said && fail "something was lost"
kill -QUIT "$(cat pid)"
touch over
wait "$launcher" || fail "it failed"
echo "generations: $generation"
echo done
