# Load generators of others run at the kernel's end: ab and wrk on nginx, redis-benchmark, memcslap of libmemcached.
. "$(dirname "$0")/harness.sh"

site
nginx_conf "master_process off" <<END
    server { listen $own:80; root $PWD/html; }
END
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -sf "http://$own/"
run_ab -n 300 -c 8 "http://$own/"
if command -v wrk >/dev/null; then
    for seconds in 1 5 25 125; do
        wrk -t 2 -c 32 -d "$seconds" --timeout 60 "http://$own/" >bench 2>&1 || fail "wrk: $(cat bench)"
        grep -q ' [1-9][0-9]* requests in' bench && break
    done
    grep -q ' [1-9][0-9]* requests in' bench || fail "wrk: $(cat bench)"
    grep -E 'Socket errors|Non-2xx' bench && fail "wrk: $(cat bench)"
else
    echo "SKIP: wrk is not installed"
fi
stop

on_lull redis-server --bind "$own" --protected-mode no --save '' --appendonly no --dir "$PWD"
until_it redis-cli -h "$own" ping
redis-benchmark -h "$own" -n 3000 -c 16 -P 4 -q -t set,get,incr,lpush,lrange_100,mset >bench 2>&1 || fail "redis: $(cat bench)"
[ "$(grep -c 'requests per second' bench)" -ge 6 ] || fail "redis: $(cat bench)"
stop

if command -v memcslap >/dev/null; then
    on_lull "${memcached[@]}"
    until_it memcping --servers="$own:11211"
    memcslap --servers="$own:11211" --concurrency=8 --execute-number=200 --test=set >bench 2>&1 || fail "memcslap: $(cat bench)"
    memcslap --servers="$own:11211" --concurrency=8 --execute-number=200 --test=get --binary >bench 2>&1 ||
        fail "memcslap: $(cat bench)"
    memccapable -h "$own" -p 11211 >bench 2>&1 || fail "memccapable: $(cat bench)"
    grep -q 'All tests passed' bench || fail "memccapable: $(cat bench)"
    stop
else
    echo "SKIP: memcslap is not installed"
fi
echo done
