# Unmodified nginx as a single process: keep-alive, a large file by sendfile, and a clean end.
. "$(dirname "$0")/harness.sh"

site 100000000
nginx_conf "master_process off" <<END
    sendfile on;
    tcp_nopush on;
    server { listen $own:80; root $PWD/html; }
END
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -s "http://$own/"
curl -s "http://$own/large" | cmp - html/large || fail "sendfile sent something else"
run_ab -k -n 2000 -c 10 "http://$own/"
stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -q 'exit' errors || fail "SIGTERM did not end it cleanly: $(cat errors)"
echo done
