# Unmodified nginx as a single process: keep-alive, a large file by sendfile, and a clean end.
. "$(dirname "$0")/harness.sh"

mkdir html
echo hello >html/index.html
head -c 100000000 /dev/urandom >html/large
nginx_conf "master_process off" <<END
    sendfile on;
    tcp_nopush on;
    server { listen $own:80; root $PWD/html; }
END
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -s "http://$own/"
curl -s "http://$own/large" | cmp - html/large || fail "sendfile sent something else"
ab -q -k -n 2000 -c 10 "http://$own/" >bench 2>&1 || fail "$(cat bench)"
grep -q 'Failed requests: *0$' bench || fail "$(cat bench)"
stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -q 'exit' errors || fail "SIGTERM did not end it cleanly: $(cat errors)"
echo done
