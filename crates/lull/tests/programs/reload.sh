# Unmodified nginx is told to reload (HUP) again and again while a client keeps it busy: new workers claim queues while
# the old ones finish their connections. No request fails. $3: how many workers, "reuseport" or "shared", and "tap" or
# "xdp". LULL_TEST_REQUESTS is the least number of requests.
. "$(dirname "$0")/harness.sh"

read -r workers reuseport nic_kind <<<"$3"
[ "$reuseport" = shared ] && reuseport=
site
nginx_conf "worker_processes $workers" <<END
    server {
        listen $own:80 $reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
on_nic "$nic_kind" 4
[ "$nic_kind" = xdp ] && pings_begin
on_lull nginx -c "$PWD/nginx.conf"
until_it there curl -s "http://$own/"

there python3 "$(dirname "$0")/keep_alive.py" "$own" >client 2>&1 &
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
    # If a client has ended, its output says why, above or at the end.
    until_it eval "! kill -0 $client || [ \$(cat done) -gt \$(($before + ${LULL_TEST_REQUESTS:-1000} / 10)) ]"
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
grep "emerg\|alert\|crit" errors | grep -v initgroups && fail "nginx complains"
stop
[ "$status" = 0 ] || fail "it ended with $status"
[ "$nic_kind" = xdp ] && pings_end
echo done
