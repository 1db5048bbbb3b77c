# Servers and proxies of HTTP, and TLS before them.

names+=(lighttpd varnish privoxy stunnel)

needs[lighttpd]="lighttpd curl:lighttpd curl"
case_lighttpd() {
    site 5000000
    cat >lighttpd.conf <<CONF
server.document-root = "$PWD/html"
server.bind = "$own"
server.port = 80
CONF
    serve lighttpd -D -f "$PWD/lighttpd.conf"
    by_http "http://$own"
    head -c 200100 html/large | tail -c 100000 >part
    whole part curl -sf -r 100100-200099 "http://$own/large"
}

needs[varnish]="varnish curl:varnishd curl"
case_varnish() {
    behind
    serve varnishd -F -j none -n "$PWD/vn" -a "$own:80" -b 127.0.0.1:8081 -s malloc,64m
    by_http "http://$own"
}

needs[privoxy]="privoxy curl:privoxy curl"
case_privoxy() {
    behind
    cat >privoxy.conf <<CONF
listen-address $own:8118
toggle 0
keep-alive-timeout 60
CONF
    serve privoxy --no-daemon "$PWD/privoxy.conf"
    by_http http://127.0.0.1:8081 -x "http://$own:8118"
}

needs[stunnel]="stunnel4 curl openssl:stunnel4 curl openssl"
case_stunnel() {
    behind
    certificate
    cat >stunnel.conf <<CONF
foreground = yes
pid =
[web]
accept = $own:443
connect = 127.0.0.1:8081
cert = $PWD/both.pem
CONF
    serve stunnel4 "$PWD/stunnel.conf"
    by_http "https://$own" --cacert cert.pem
}
