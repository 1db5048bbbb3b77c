# Unmodified haproxy with two threads, between a client and a server that are both at the kernel's end.
. "$(dirname "$0")/harness.sh"

site 10000000
haproxy_cfg http <<END
frontend front
    bind $own:8080
    default_backend back
backend back
    server one 10.0.0.1:8081
END
on_lull haproxy -f haproxy.cfg
until_it ip address show lull0 up
until_it grep -q lull0 /proc/net/route
python3 -m http.server --directory html --bind 10.0.0.1 8081 >/dev/null 2>&1 &
server=$!
until_it curl -sf "http://10.0.0.1:8081/"
until_it curl -sf "http://$own:8080/"
curl -s "http://$own:8080/large" | cmp - html/large || fail "it passed something else on"
run_ab -n 200 -c 4 "http://$own:8080/"
kill "$server"
stop
echo done
