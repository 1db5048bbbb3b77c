# Servers and proxies of HTTP, and TLS before them.

names+=(lighttpd apache varnish squid privoxy tinyproxy stunnel hitch trafficserver php webrick daemon_pm threading)

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

needs[hitch]="hitch curl openssl:hitch curl openssl"
# Its workers inherit the listener.
case_hitch() {
    behind
    certificate
    cat >hitch.conf <<CONF
frontend = "[$own]:8443"
backend = "[127.0.0.1]:8081"
pem-file = "$PWD/both.pem"
workers = 2
daemon = off
backlog = 100
CONF
    serve "${unprivileged[@]}" hitch --config="$PWD/hitch.conf"
    by_http "https://$own:8443" --cacert cert.pem
    # Reloaded under load.
    hundreds() { there curl -sf --cacert cert.pem -o /dev/null "https://$own:8443/index.html?[1-100]"; }
    at_once 4 hundreds &
    loading=$!
    kill -HUP "$(pgrep -o -x hitch)"
    wait "$loading" || exit 1
    at_once 4 whole html/large curl -sf --cacert cert.pem --max-time 120 "https://$own:8443/large"
}

needs[trafficserver]="trafficserver curl:traffic_server curl"
case_trafficserver() {
    behind
    mkdir -p conf run cache logs
    cp -r /etc/trafficserver/. conf
    cat >conf/records.config <<CONF
CONFIG proxy.config.http.server_ports STRING 8080:ip-in=$own
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT 3
CONFIG proxy.config.url_remap.remap_required INT 1
CONFIG proxy.config.reverse_proxy.enabled INT 1
CONFIG proxy.config.log.logging_enabled INT 0
CONFIG proxy.config.http.cache.http INT 1
CONFIG proxy.config.http.cache.required_headers INT 0
CONFIG proxy.config.cache.ram_cache.size INT 32M
CONFIG proxy.config.net.connections_throttle INT 500
CONFIG proxy.config.core_limit INT 0
CONF
    echo "map / http://127.0.0.1:8081/" >conf/remap.config
    echo "$PWD/cache 64M" >conf/storage.config
    : >conf/plugin.config
    cat >runroot.yaml <<CONF
prefix: $PWD
exec_prefix: $PWD
bindir: /usr/bin
sbindir: /usr/sbin
sysconfdir: $PWD/conf
datadir: $PWD/cache
includedir: /usr/include
libdir: /usr/lib/trafficserver
libexecdir: /usr/lib/trafficserver/modules
localstatedir: $PWD/run
runtimedir: $PWD/run
logdir: $PWD/logs
cachedir: $PWD/cache
CONF
    serve traffic_server --run-root="$PWD/runroot.yaml"
    by_http "http://$own:8080"
}

needs[php]="php-cli curl:php curl"
case_php() {
    site 5000000
    echo '<?php echo strlen(file_get_contents("php://input"));' >html/length.php
    local url=http://$own:8000
    serve php -S "$own:8000" -t html
    answers curl -sf -o /dev/null "$url/"
    at_once 8 whole html/large curl -sf --max-time 120 "$url/large"
    same "$(yes hello | head -n 200)" curl -sf "$url/index.html?[1-200]"
    posted() { [ "$(there curl -sf --data-binary @html/large "$url/length.php")" = 5000000 ]; }
    at_once 4 posted
}

needs[webrick]="ruby ruby-webrick curl:ruby curl"
case_webrick() {
    site 5000000
    serve ruby -r webrick -e "
s = WEBrick::HTTPServer.new(BindAddress: '$own', Port: 8000, DocumentRoot: 'html')
trap('TERM') { s.shutdown }
s.start"
    by_http "http://$own:8000"
}

needs[daemon_pm]="libhttp-daemon-perl curl:perl curl"
# A process for each connection, and a signal for each that ends.
case_daemon_pm() {
    site 5000000
    cat >daemon.pl <<PERL
use HTTP::Daemon; use HTTP::Status;
\$SIG{CHLD} = 'IGNORE';
my \$d = HTTP::Daemon->new(LocalAddr => '$own', LocalPort => 8000, ReuseAddr => 1, Listen => 50) or die;
while (1) {
    my \$c = \$d->accept or next;
    if (fork == 0) {
        while (my \$r = \$c->get_request) {
            my \$file = 'html' . \$r->uri->path;
            -f \$file ? \$c->send_file_response(\$file) : \$c->send_error(404);
        }
        exit 0;
    }
    close \$c;
}
PERL
    serve perl daemon.pl
    by_http "http://$own:8000"
}

needs[threading]="curl:python3 curl"
# A thread for each connection, with timeouts; and processes that inherit the listener and wait for connections with one.
case_threading() {
    site 5000000
    cat >server.py <<PYTHON
import functools, http.server, os, signal, socket, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="html")
http.server.SimpleHTTPRequestHandler.timeout = 20
http.server.SimpleHTTPRequestHandler.protocol_version = "HTTP/1.1"
http.server.SimpleHTTPRequestHandler.log_message = lambda *a: None
http.server.ThreadingHTTPServer.request_queue_size = 50
server = http.server.ThreadingHTTPServer(("$own", 8000), handler)
server.socket.settimeout(0.05)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        server.serve_forever(0.05)
    children.append(child)
def end(*_):
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
while True:
    signal.pause()
PYTHON
    serve python3 server.py
    by_http "http://$own:8000"
}
