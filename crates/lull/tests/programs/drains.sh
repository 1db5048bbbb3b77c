# nginx is reloaded while clients keep it busy, each with one connection after the other: its former workers, which were busy and gave
# connections of theirs to others, have new ones no more, and end: SCRIPT LULL MODE "WORKERS QUEUES ADDRESS".
. "$(dirname "$0")/harness.sh"

read -r workers queues address <<<"$3"
site
nginx_conf "worker_processes $workers" <<END
    server {
        listen $address:80;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
sed -i 's/keepalive_requests .*;/keepalive_requests 50;/' nginx.conf
on_nic tap "$queues"
on_lull nginx -c "$PWD/nginx.conf"
until_it there curl -s "http://$own/"
there python3 "$(dirname "$0")/keep_alive.py" "$own" >client 2>&1 &
client=$!
answered() { [ "$(cat done 2>/dev/null || echo 0)" -gt "$1" ]; }
until_it answered 1000
for generation in 1 2; do
    former=$(pgrep -P "$(cat pid)")
    kill -HUP "$(cat pid)"
    gone() { for worker in $former; do ! kill -0 "$worker" 2>/dev/null || return 1; done; }
    until_it gone
    until_it answered $(($(cat done) + 1000))
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
kill -QUIT "$(cat pid)"
wait "$launcher" || fail "it failed"
echo "generations: $generation"
echo done
