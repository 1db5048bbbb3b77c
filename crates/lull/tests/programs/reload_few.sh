# Unmodified nginx has as many workers as the NIC has queues, and is told to reload (HUP) again and again: new workers
# have no queue until the old ones have ended. Afterwards the new ones answer every request. $3: "reuseport" or
# "shared".
. "$(dirname "$0")/harness.sh"

reuseport=$3
[ "$reuseport" = shared ] && reuseport=
site
nginx_conf "worker_processes 2" <<END
    server {
        listen $own:80 $reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
options=(--queues 2)
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -s "http://$own/"

for generation in 1 2 3 4; do
    kill -HUP "$(cat pid)"
    until_it eval "[ \$(grep -c ': exit\$' errors) -ge $((2 * generation)) ]"
    # Now and then nginx takes a listener out of its epoll context and adds it again (`ngx_reorder_accept_events`).
    for _ in $(seq 20); do
        curl -s --max-time 60 -o got "http://$own/who" || fail "generation $generation does not answer"
    done
done
grep "emerg\|alert\|crit" errors | grep -v initgroups && fail "nginx complains"
stop
[ "$status" = 0 ] || fail "it ended with $status"
echo done
