# Servers and proxies of HTTP, and TLS before them.

names+=(lighttpd apache varnish squid privoxy tinyproxy stunnel)

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

needs[apache]="apache2-bin curl:apache2 curl"
case_apache() {
    local modules=/usr/lib/apache2/modules
    site 5000000
    cat >apache.conf <<CONF
ServerRoot $PWD
ServerName $own
Listen $own:80
PidFile $PWD/pid
ErrorLog $PWD/log
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
DocumentRoot $PWD/html
StartServers 2
ServerLimit 2
ThreadsPerChild 16
MaxRequestWorkers 32
CONF
    serve apache2 -f "$PWD/apache.conf" -DFOREGROUND
    by_http "http://$own"
}

needs[squid]="squid curl:squid curl"
case_squid() {
    behind
    cat >squid.conf <<CONF
http_port $own:3128
http_access allow all
pid_filename $PWD/pid
cache_log $PWD/cache.log
access_log none
cache_store_log none
coredump_dir $PWD
pinger_enable off
shutdown_lifetime 1 seconds
visible_hostname here
CONF
    # It refuses to stay root.
    serve "${unprivileged[@]}" squid -N -f "$PWD/squid.conf"
    by_http http://127.0.0.1:8081 -x "http://$own:3128"
    # Through a tunnel.
    at_once 4 whole html/large curl -sf -p -x "http://$own:3128" http://127.0.0.1:8081/large
}

needs[tinyproxy]="tinyproxy-bin curl:tinyproxy curl"
case_tinyproxy() {
    behind
    printf 'Listen %s\nPort 8888\nMaxClients 100\nTimeout 60\n' "$own" >tinyproxy.conf
    serve tinyproxy -d -c "$PWD/tinyproxy.conf"
    by_http http://127.0.0.1:8081 -x "http://$own:8888"
}
