# Unmodified nginx as a single process: keep-alive, a large file by sendfile, its variables for round trips, and a clean
# end.
. "$(dirname "$0")/harness.sh"

site 100000000
nginx_conf "master_process off" <<END
    sendfile on;
    tcp_nopush on;
    server {
        listen $own:80 sndbuf=200k rcvbuf=60k;
        root $PWD/html;
        location /round { return 200 "\$tcpinfo_rtt \$tcpinfo_rttvar \$tcpinfo_snd_cwnd \$tcpinfo_rcv_space\n"; }
    }
END
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -s "http://$own/"
curl -s "http://$own/large" | cmp - html/large || fail "sendfile sent something else"
run_ab -k -n 2000 -c 10 "http://$own/"
# It is told about a connection on which it has answered before. The congestion window is smaller if something was sent
# again, as on a busy machine.
is_told() {
    curl -s "http://$own/" "http://$own/round" | tail -n 1 >round
    awk '$1 > 0 && $1 < 10000000 && $2 > 0 && $3 >= 10 && $4 == 61440 { fits = 1 } END { exit !fits }' round
}
for _ in $(seq 20); do is_told && break; done
is_told || fail "nginx is told of round trips: $(cat round)"
stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -q 'exit' errors || fail "SIGTERM did not end it cleanly: $(cat errors)"
echo done
