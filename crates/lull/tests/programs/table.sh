# One cell of the table of programs: an unmodified program ($3) over "tap" or "xdp" ($4) is loaded for two seconds, and
# the requests a second that it answered are printed. Any failed request fails the cell.
. "$(dirname "$0")/harness.sh"

program=$3
queues=1
[ "$program" = nginx-2 ] && queues=2
on_nic "$4" "$queues"
here=$(dirname "$(realpath "$0")")
by_wrk() {
    until_it there curl -s -o got "http://$own:$1/"
    there wrk -t 1 -c 32 -d 2s "http://$own:$1/" >load 2>&1 || fail "$(cat load)"
    grep -q 'Socket errors\|Non-2xx' load && fail "$(cat load)"
    sed -n 's/^Requests\/sec: *\([0-9]*\).*/\1/p' load
}
case "$program" in
memcached-t1 | memcached-t4)
    on_lull "${memcached[@]}" -t "${program#*-t}"
    until_it memcached_answers
    load_memcached --connections 32 --seconds 2 --records 1000
    sed -n 's/^queries\/s *//p' load
    ;;
redis | redis-io)
    [ "$program" = redis-io ] && more=(--io-threads 2 --io-threads-do-reads yes)
    on_lull redis-server --bind "$own" --protected-mode no --save "" --dir . "${more[@]}"
    until_it there timeout 5 redis-cli -h "$own" ping
    there redis-benchmark -h "$own" -n 60000 -c 32 -t get --csv >load 2>&1 || fail "$(cat load)"
    sed -n 's/^"GET","\([0-9]*\).*/\1/p' load
    ;;
nginx-1 | nginx-2)
    site
    nginx_conf "worker_processes ${program#*-}" <<END
    server { listen $own:80 reuseport; root $PWD/html; }
END
    on_lull nginx -c "$PWD/nginx.conf"
    by_wrk 80
    ;;
haproxy)
    haproxy_cfg http <<END
frontend it
    bind $own:80
    http-request return status 200 content-type text/plain string hello
END
    on_lull haproxy -f haproxy.cfg
    by_wrk 80
    ;;
python)
    on_lull python3 "$here/http_server.py" "$own" 8080
    by_wrk 8080
    ;;
node)
    on_lull node "$here/http_server.js" "$own" 8080
    by_wrk 8080
    ;;
esac
stop
