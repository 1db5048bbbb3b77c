# Servers and proxies of HTTP, and TLS proxies in front of them.

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
    # squid refuses to stay root.
    serve "${unprivileged[@]}" squid -N -f "$PWD/squid.conf"
    by_http http://127.0.0.1:8081 -x "http://$own:3128"
    # This goes through a tunnel.
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
    # It is reloaded under load.
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
# It has a process for each connection, and gets a signal for each that ends.
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
# It has a thread for each connection, with timeouts, and processes that inherit the listener and wait for connections
# with a timeout.
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

names+=(nginx_streams haproxy_reload h2o sslh icecast)

# Some of these clients reset the connection while they ask or are answered; the others get the whole file html/large
# all the same.
rude() {
    cat >rude.py <<'PYTHON'
import socket, struct, sys, threading

expected = open("html/large", "rb").read()
right = []

def client(nth):
    it = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
    asked = b"GET /large HTTP/1.0\r\nHost: a\r\n\r\n"
    if nth % 4 < 2:
        it.sendall(asked[:-2 * (1 - nth % 4)] if nth % 4 == 0 else asked)
        if nth % 4 == 1:
            it.recv(10000)
        it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        it.close()
        return
    it.sendall(asked)
    answer = it.makefile("rb").read()
    if answer.split(b"\r\n\r\n", 1)[1] == expected:
        right.append(nth)

threads = [threading.Thread(target=client, args=(nth,)) for nth in range(60)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(right))
PYTHON
    same 30 python3 rude.py "$own" "$1"
}

needs[nginx_streams]="nginx libnginx-mod-stream curl openssl nsd bind9-dnsutils:nginx curl openssl nsd dig"
# It has two processes with listeners of their own and shared ones, on four queues: streams with TLS and without,
# datagrams, and threads that read files. It is reloaded three times under load.
case_nginx_streams() {
    behind
    certificate
    nsd_behind
    [ "$mode" = kernel ] || options+=(--queues 4)
    cat >nginx.conf <<CONF
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
user root root;
daemon off;
worker_processes 2;
pid $PWD/pid;
error_log $PWD/log info;
events { worker_connections 512; }
stream {
    ssl_certificate $PWD/cert.pem;
    ssl_certificate_key $PWD/key.pem;
    server { listen $own:8443 ssl reuseport so_keepalive=on; proxy_pass 127.0.0.1:8081; }
    server { listen $own:8082 backlog=300; proxy_pass 127.0.0.1:8081; }
    server { listen $own:53 udp reuseport; proxy_pass 127.0.0.1:5300; proxy_responses 1; proxy_timeout 20s; }
    server { listen $own:53; proxy_pass 127.0.0.1:5300; }
}
http {
    access_log off;
    aio threads;
    sendfile on;
    client_body_temp_path $PWD/t1;
    proxy_temp_path $PWD/t2;
    fastcgi_temp_path $PWD/t3;
    uwsgi_temp_path $PWD/t4;
    scgi_temp_path $PWD/t5;
    server {
        listen $own:80 reuseport deferred;
        root $PWD/html;
        location /p/ { proxy_pass http://127.0.0.1:8081/; proxy_buffering off; }
        location /d/ { alias $PWD/html/; directio 4k; }
    }
}
CONF
    serve nginx -c "$PWD/nginx.conf"
    for url in "http://$own" "http://$own/d" "http://$own/p" "http://$own:8082"; do by_http "$url"; done
    by_http "https://$own:8443" --cacert cert.pem
    by_dig
    rude 80
    rude 8082
    loads() {
        there curl -sf --cacert cert.pem -o /dev/null "https://$own:8443/index.html?[1-100]" &&
            there curl -sf -o /dev/null "http://$own/index.html?[1-300]"
    }
    at_once 4 loads &
    loading=$!
    for _ in 1 2 3; do
        kill -HUP "$(cat pid)"
        sleep 1
    done
    wait "$loading" || exit 1
    by_dig
    by_http "http://$own"
}

needs[haproxy_reload]="haproxy curl openssl:haproxy curl openssl"
# A master whose workers take over the listeners of their predecessors, with four threads; it serves TLS, HTTP/2, and
# streams.
case_haproxy_reload() {
    behind
    certificate
    [ "$mode" = kernel ] || options+=(--queues 3)
    cat >haproxy.cfg <<CONF
global
    nbthread 4
    maxconn 500
    stats socket $PWD/stats mode 600 level admin expose-fd listeners
defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s
frontend plain
    bind $own:80
    default_backend web
frontend tls
    bind $own:443 ssl crt $PWD/both.pem alpn h2,http/1.1
    default_backend web
frontend streams
    mode tcp
    bind $own:8082 thread 1-2
    bind $own:8083 defer-accept
    default_backend streams
backend web
    server s 127.0.0.1:8081
backend streams
    mode tcp
    server s 127.0.0.1:8081
CONF
    serve haproxy -W -db -f "$PWD/haproxy.cfg"
    for url in "http://$own" "http://$own:8082" "http://$own:8083"; do by_http "$url"; done
    by_http "https://$own" --cacert cert.pem
    by_http "https://$own" --cacert cert.pem --http1.1
    rude 80
    rude 8082
    loads() {
        there curl -sf --cacert cert.pem -o /dev/null "https://$own/index.html?[1-100]" &&
            there curl -sf -o /dev/null "http://$own:8082/index.html?[1-100]"
    }
    at_once 4 loads &
    loading=$!
    for _ in 1 2; do
        kill -USR2 "$(pgrep -o -x haproxy)"
        sleep 2
    done
    wait "$loading" || exit 1
    by_http "https://$own" --cacert cert.pem
}

needs[h2o]="h2o curl openssl:h2o curl openssl"
case_h2o() {
    site 5000000
    certificate
    cat >h2o.yml <<CONF
num-threads: 3
user: root
pid-file: $PWD/pid
listen: { host: $own, port: 80 }
hosts:
  "default":
    listen: { host: $own, port: 443, ssl: { certificate-file: $PWD/cert.pem, key-file: $PWD/key.pem } }
    paths: { "/": { file.dir: $PWD/html } }
CONF
    serve h2o -m worker -c "$PWD/h2o.yml"
    by_http "https://$own" --cacert cert.pem
    by_http "https://$own" --cacert cert.pem --http1.1
    rude 80
}

needs[sslh]="sslh curl:sslh curl"
# It has a process for each connection.
case_sslh() {
    behind
    serve sslh -f -p "$own:443" --http 127.0.0.1:8081 -u root -P "$PWD/pid"
    by_http "http://$own:443"
    rude 443
}

needs[icecast]="icecast2 curl:icecast2 curl"
case_icecast() {
    site 5000000
    mkdir log
    chmod 777 log . html
    cat >icecast.xml <<CONF
<icecast>
    <limits>
        <clients>200</clients><sources>10</sources><queue-size>8000000</queue-size><burst-size>6000000</burst-size>
    </limits>
    <authentication><source-password>s</source-password><admin-user>a</admin-user><admin-password>a</admin-password></authentication>
    <listen-socket><port>8000</port><bind-address>$own</bind-address></listen-socket>
    <fileserve>1</fileserve>
    <paths><logdir>$PWD/log</logdir><webroot>$PWD/html</webroot><adminroot>/usr/share/icecast2/admin</adminroot></paths>
    <logging><accesslog>a</accesslog><errorlog>e</errorlog></logging>
    <security><changeowner><user>nobody</user><group>nogroup</group></changeowner></security>
</icecast>
CONF
    serve icecast2 -c "$PWD/icecast.xml"
    answers curl -s -o /dev/null "http://$own:8000/index.html"
    at_once 8 whole html/large curl -sf --max-time 120 "http://$own:8000/large"
    # A source of a stream, which eight listeners hear from its beginning to its end.
    cat >stream.py <<'PYTHON'
import base64, os, socket, sys, threading

address = (sys.argv[1], 8000)
data = os.urandom(3000000)
source = socket.create_connection(address, 60)
user = base64.b64encode(b"source:s")
source.sendall(b"PUT /s HTTP/1.1\r\nHost: h\r\nAuthorization: Basic %s\r\nExpect: 100-continue\r\n" % user)
source.sendall(b"Content-Type: application/octet-stream\r\n\r\n")
assert source.recv(1000).startswith(b"HTTP/1.1 100 ")
source.sendall(data[:100000])
heard = []
ready = threading.Barrier(9, timeout=60)

def found():
    while True:
        it = socket.create_connection(address, 60)
        it.sendall(b"GET /s HTTP/1.0\r\n\r\n")
        stream = it.makefile("rb")
        if b" 200 " in stream.readline():
            while stream.readline().strip(): pass
            return stream

def listen():
    stream = found()
    begin = stream.read(50000)
    ready.wait()
    heard.append(begin + stream.read(len(data) - len(begin)) == data)

threads = [threading.Thread(target=listen) for _ in range(8)]
for thread in threads: thread.start()
ready.wait()
# The server keeps less than a block until there is more.
source.sendall(data[100000:] + bytes(100000))
for thread in threads: thread.join()
print(heard.count(True))
PYTHON
    same 8 python3 stream.py "$own"
}
