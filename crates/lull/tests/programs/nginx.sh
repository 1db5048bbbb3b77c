# Unmodified nginx as a single process: keep-alive, a large file by sendfile, and a clean end.
. "$(dirname "$0")/harness.sh"

mkdir html
echo hello >html/index.html
head -c 100000000 /dev/urandom >html/large
cat >nginx.conf <<END
user root root;
daemon off;
master_process off;
pid $PWD/pid;
error_log $PWD/errors info;
events { worker_connections 256; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    client_body_temp_path $PWD/t1;
    proxy_temp_path $PWD/t2;
    fastcgi_temp_path $PWD/t3;
    uwsgi_temp_path $PWD/t4;
    scgi_temp_path $PWD/t5;
    server { listen $own:80; root $PWD/html; }
}
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
