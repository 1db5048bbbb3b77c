# Unmodified nginx with TLS is behind unmodified haproxy, both on lull: curl and openssl ask one through the other.
. "$(dirname "$0")/harness.sh"

site 3000000
openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate -days 2 -subj /CN=lull.test >/dev/null 2>&1 ||
    fail "no certificate"
nginx_conf "master_process off" <<END
    sendfile on;
    server {
        listen $own:443 ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate $PWD/certificate;
        ssl_certificate_key $PWD/key;
        root $PWD/html;
    }
END
# Its answers to the other network go by the kernel.
options=(--gateway 10.0.0.1)
on_lull nginx -c "$PWD/nginx.conf"
until_it curl -skf "https://$own/"
curl -sk "https://$own/large" | cmp - html/large || fail "it sent something else"
for version in tls1_2 tls1_3; do
    printf 'GET / HTTP/1.0\r\n\r\n' | openssl s_client -quiet -"$version" -connect "$own:443" 2>/dev/null >answer
    grep -q hello answer || fail "nothing came over $version: $(cat answer)"
done
run_ab -k -n 500 -c 8 "https://$own/"

# A second NIC puts haproxy between the client and nginx: both of its sides are lull's.
nginx_launcher=$launcher
mv said said.nginx
front=10.1.0.2
haproxy_cfg tcp <<END
frontend front
    bind $front:443
    default_backend back
backend back
    server one $own:443
END
echo 1 >/proc/sys/net/ipv4/ip_forward
nic=(--nic tap:lull1 --addr "$front/24" --peer-addr 10.1.0.1/24 --route 10.0.0.0/24)
options=(--gateway 10.1.0.1)
on_lull haproxy -f haproxy.cfg
until_it curl -skf "https://$front/"
curl -sk "https://$front/large" | cmp - html/large || fail "it passed something else on"
run_ab -n 100 -c 4 "https://$front/"
stop
launcher=$nginx_launcher
stop
echo done
