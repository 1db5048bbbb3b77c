# One cell of the table of programs: an unmodified program ($3) over "tap" or "xdp" ($4), loaded for two seconds and asked how many
# requests a second it answered. Any failed request fails the cell.
. "$(dirname "$0")/harness.sh"

program=$3
options=()
queues=1
[ "$program" = nginx-2 ] && queues=2
if [ "$4" = xdp ]; then on_veth "$queues"; else options=(--queues "$queues"); fi
here=$(dirname "$(realpath "$0")")
as_user=(unshare --user --map-user=1000)
by_wrk() {
    until_it there curl -s -o got "http://$own:$1/"
    there wrk -t 1 -c 32 -d 2s "http://$own:$1/" >load 2>&1 || fail "$(cat load)"
    grep -q 'Socket errors\|Non-2xx' load && fail "$(cat load)"
    sed -n 's/^Requests\/sec: *\([0-9]*\).*/\1/p' load
}
nginx_conf() {
    mkdir -p html
    echo hello >html/index.html
    cat >nginx.conf <<END
user root root;
daemon off;
worker_processes $1;
pid $PWD/pid;
error_log $PWD/errors error;
events { worker_connections 256; }
http {
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path $PWD/t1;
    proxy_temp_path $PWD/t2;
    fastcgi_temp_path $PWD/t3;
    uwsgi_temp_path $PWD/t4;
    scgi_temp_path $PWD/t5;
    server { listen $own:80 reuseport; root $PWD/html; }
}
END
}
case "$program" in
memcached-t1 | memcached-t4)
    on_lull "${as_user[@]}" memcached -l "$own" -p 11211 -t "${program#*-t}"
    until_it there "$lull" load "$own:11211" --connections 1 --seconds 0.1 --warm-up 0.1
    there "$lull" load "$own:11211" --connections 32 --seconds 2 --records 1000 >load 2>&1 || fail "$(cat load)"
    grep -q ' 0 errors), 0 lost, 0 unanswered' load || fail "$(cat load)"
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
    nginx_conf "${program#*-}"
    on_lull nginx -c "$PWD/nginx.conf"
    by_wrk 80
    ;;
haproxy)
    cat >haproxy.cfg <<END
global
    nbthread 2
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
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
