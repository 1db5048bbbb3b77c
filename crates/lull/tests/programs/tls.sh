# Unmodified nginx with TLS, behind unmodified haproxy, both on lull: curl and openssl ask one through the other.
. "$(dirname "$0")/harness.sh"

mkdir html
echo hello >html/index.html
head -c 3000000 /dev/urandom >html/large
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
ab -q -k -n 500 -c 8 "https://$own/" >bench 2>&1 || fail "$(cat bench)"
grep -q 'Failed requests: *0$' bench || fail "$(cat bench)"

# A second NIC, on which haproxy is between the client and nginx: both of its sides are lull's.
nginx_launcher=$launcher
mv said said.nginx
front=10.1.0.2
cat >haproxy.cfg <<END
global
    nbthread 2
    maxconn 200
defaults
    mode tcp
    timeout client 60s
    timeout server 60s
    timeout connect 60s
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
ab -q -n 100 -c 4 "https://$front/" >bench 2>&1 || fail "$(cat bench)"
grep -q 'Failed requests: *0$' bench || fail "$(cat bench)"
stop
launcher=$nginx_launcher
stop
echo done
