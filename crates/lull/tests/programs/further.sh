# One cell of the table of further programs: an unmodified server over a TAP (named: over AF_XDP), loaded by a client on
# the kernel's side. Any failed request fails the cell; the last line that is printed tells what was answered. SCRIPT
# LULL MODE PROGRAM.
. "$(dirname "$0")/harness.sh"

program=$3
# The time for which a load lasts.
seconds=${LULL_TEST_SECONDS:-5}

# Prints the rate that wrk reached; none of its requests may fail.
by_wrk() {
    there wrk -t 1 -c 16 -d "${seconds}s" "$1" >load 2>&1 || fail "$(cat load)"
    grep -q 'Socket errors\|Non-2xx' load && fail "$(cat load)"
    sed -n 's/^Requests\/sec: *\([0-9]*\).*/\1 requests a second/p' load
}

# Gets a file of 5 MB and compares it: got URL [curl's options].
got() {
    there curl -sf --max-time 120 -o fetched "$@" || fail "no file: curl $*"
    cmp html/large fetched || fail "the file differs"
}

# Asks a resolver for names: over UDP one by one from eight clients, and over TCP with a connection for each.
names() {
    cat >names.py <<'END'
import socket, struct, sys, threading, time

def question(number):
    name = b"".join(bytes([len(part)]) + part for part in (b"n%d" % (number % 250), b"example", b"test")) + b"\0"
    return struct.pack(">HHHHHH", number % 65536, 0x100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)

def check(number, answer):
    identity, flags, _, answers = struct.unpack(">HHHH", answer[:8])
    assert identity == number % 65536 and flags & 0x800f == 0x8000 and answers == 1, (number, answer)
    assert answer[-4:] == bytes([10, 9, 8, number % 250]), (number, answer)

def by_tcp(number):
    with socket.create_connection((sys.argv[1], 53), 60) as asking:
        text = question(number)
        asking.sendall(struct.pack(">H", len(text)) + text)
        stream = asking.makefile("rb")
        size, = struct.unpack(">H", stream.read(2))
        check(number, stream.read(size))

def by_udp(nth):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((sys.argv[1], 53))
        asking.settimeout(5)
        number = nth
        while time.monotonic() < end:
            for attempt in range(12):
                try:
                    asking.send(question(number))
                    check(number, asking.recv(2000))
                    break
                except (TimeoutError, ConnectionRefusedError):
                    again.append(number)
            else:
                raise SystemExit("no answer")
            done[nth] += 1
            number += 8
    ended.append(nth)

again, done, ended = [], [0] * 8, []
end = time.monotonic() + float(sys.argv[2])
threads = [threading.Thread(target=by_udp, args=(nth,)) for nth in range(8)]
for thread in threads: thread.start()
for number in range(100): by_tcp(number)
for thread in threads: thread.join()
assert len(ended) == 8, ended
print(sum(done), "names by UDP,", len(again), "asked again, and 100 by TCP")
END
    there python3 names.py "$own" "$seconds" || fail "names"
}
# Prints the records of n0 to n249 below example.test.
zone() { for number in $(seq 0 249); do printf "$1\n" "$number" "$number"; done; }
has_name() { there dig +short +time=1 +tries=1 @"$own" n7.example.test | grep -qx 10.9.8.7; }

apache() {
    local modules=/usr/lib/apache2/modules
    site 5000000
    cat >apache.conf <<END
ServerRoot $PWD
ServerName $own
Listen $own:80
PidFile $PWD/pid
ErrorLog $PWD/errors
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
DocumentRoot $PWD/html
StartServers 2
ServerLimit 4
ThreadsPerChild 16
MaxRequestWorkers 64
KeepAliveTimeout 5
END
    on_nic tap 2
    on_lull apache2 -f "$PWD/apache.conf" -DFOREGROUND
    until_it there curl -sf -o index "http://$own/index.html"
    got "http://$own/large"
    cat >client.py <<'END'
import http.client, os, sys, threading

def ask(nth):
    count = 0
    while not os.path.exists("stop"):
        connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
        try:
            connection.request("GET", "/index.html", headers={"Connection": "close"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"hello\n"), answer.status
            count += 1
        except OSError as error:
            failed.append(repr(error))
        connection.close()
        done[nth] = count
        if nth == 0:
            with open("done.new", "w") as file: file.write(str(sum(done)))
            os.rename("done.new", "done")

done, failed = [0] * 8, []
threads = [threading.Thread(target=ask, args=(nth,)) for nth in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(done), "requests,", len(failed), "failed", *set(failed))
sys.exit(bool(failed))
END
    there python3 client.py "$own" >client 2>&1 &
    client=$!
    answered() { [ "$(cat done 2>/dev/null || echo 0)" -gt "$1" ]; }
    for generation in 1 2 3 4 5; do
        until_it answered $(($(cat done 2>/dev/null || echo 0) + 100))
        kill -USR1 "$(cat pid)"
        until_it eval '[ "$(grep -c "resuming normal operations" errors)" -gt '"$generation"' ]'
    done
    until_it answered $(($(cat done) + 100))
    touch stop
    wait "$client" || fail "$(cat client)"
    echo "5 graceful restarts, $(cat client)"
}
squid() {
    site 5000000
    (cd html && exec python3 -m http.server --bind 127.0.0.1 8081 >/dev/null 2>&1) &
    # squid reaches the server behind it by the kernel's loopback.
    cat >squid.conf <<END
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
END
    # squid refuses to stay root.
    on_lull "${unprivileged[@]}" squid -N -f "$PWD/squid.conf"
    until_it there curl -sf -o index -x "http://$own:3128" http://127.0.0.1:8081/index.html
    got -x "http://$own:3128" http://127.0.0.1:8081/large
    there curl -sf --max-time 60 -p -x "http://$own:3128" -o tunnelled http://127.0.0.1:8081/large || fail "no tunnel"
    cmp html/large tunnelled || fail "through the tunnel the file differs"
    there ab -q -s 120 -n 3000 -c 16 -X "$own:3128" http://127.0.0.1:8081/index.html >load 2>&1 || fail "ab: $(cat load)"
    grep -q 'Failed requests: *0$' load || fail "ab: $(cat load)"
    sed -n 's/^Requests per second: *\([0-9]*\).*/\1 requests a second/p' load
}

unbound() {
    { cat <<END
server:
  interface: $own
  access-control: 0.0.0.0/0 allow
  chroot: ""
  username: ""
  directory: "$PWD"
  pidfile: "$PWD/pid"
  use-syslog: no
  num-threads: 1
  so-sndbuf: 0
  do-ip6: no
  module-config: "iterator"
  local-zone: "example.test." static
END
        zone '  local-data: "n%d.example.test. A 10.9.8.%d"'; } >unbound.conf
    on_lull unbound -d -c "$PWD/unbound.conf"
    until_it has_name
    names
}

named() {
    # It listens only on addresses of interfaces, so lull takes its port of the host's own address.
    on_veth 1
    own=10.0.0.1 nic=(--nic xdp:x0 --addr 10.0.0.1/24 --ports 53)
    { printf '$TTL 60\n@ SOA a b 1 1 1 1 1\n@ NS n1\n'; zone 'n%d A 10.9.8.%d'; } >zone
    cat >named.conf <<END
options { directory "$PWD"; listen-on { $own; }; listen-on-v6 { none; }; pid-file none; recursion no; };
controls { };
zone "example.test" { type master; file "$PWD/zone"; };
END
    on_lull named -g -c "$PWD/named.conf" -n 2
    until_it has_name
    names
}

pgbench() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    "${unprivileged[@]}" "$bin/initdb" -D data -U tester -A trust --no-sync --no-locale -E UTF8 >initialised 2>&1 ||
        fail "no database: $(cat initialised)"
    printf "listen_addresses = '%s'\nunix_socket_directories = '%s'\nfsync = off\n" "$own" "$PWD" >>data/postgresql.conf
    echo "host all all 0.0.0.0/0 trust" >>data/pg_hba.conf
    on_lull "${unprivileged[@]}" "$bin/postgres" -D data
    until_it there psql -h "$own" -U tester postgres -Atqc 'SELECT 1'
    there "$bin/pgbench" -h "$own" -U tester -i -q postgres >made 2>&1 || fail "no tables: $(cat made)"
    there "$bin/pgbench" -h "$own" -U tester -c 8 -T "$seconds" postgres >load 2>&1 || fail "the load: $(cat load)"
    grep -q 'failed transactions: 0 ' load || fail "transactions failed: $(cat load)"
    sed -n 's/^tps = \([0-9]*\).*/\1 transactions a second/p' load
}

vsftpd() {
    site 5000000
    mkdir empty
    chown root:root html
    cat >vsftpd.conf <<END
listen=YES
listen_address=$own
anonymous_enable=YES
no_anon_password=YES
anon_root=$PWD/html
secure_chroot_dir=$PWD/empty
run_as_launching_user=YES
seccomp_sandbox=NO
background=NO
connect_from_port_20=NO
pasv_address=$own
END
    # vsftpd limits its own address space to 200 MB.
    MALLOC_ARENA_MAX=1 on_lull vsftpd "$PWD/vsftpd.conf"
    until_it there curl -sf -o index "ftp://$own/index.html"
    count=0
    until=$((SECONDS + seconds))
    while [ "$SECONDS" -lt "$until" ] || [ "$count" -lt 3 ]; do
        got "ftp://$own/large"
        got --ftp-port 10.0.0.1 "ftp://$own/large"
        count=$((count + 2))
    done
    echo "$count files of 5 MB, passive and active"
}

varnish() {
    site 5000000
    (cd html && exec python3 -m http.server --bind 127.0.0.1 8081 >/dev/null 2>&1) &
    on_lull varnishd -F -j none -n "$PWD/vn" -a "$own:80" -b 127.0.0.1:8081 -s malloc,64m -p feature=+http2
    until_it there curl -sf -o index "http://$own/index.html"
    got "http://$own/large"
    by_wrk "http://$own/index.html"
}

"$program"
stop
