# Databases, brokers and queues.

names+=(mosquitto beanstalkd slapd mariadb postgresql pgbouncer)

needs[mosquitto]="mosquitto mosquitto-clients:mosquitto mosquitto_pub mosquitto_sub"
case_mosquitto() {
    printf 'listener 1883 %s\nallow_anonymous true\nuser root\nmax_queued_messages 0\n' "$own" >mosquitto.conf
    serve mosquitto -c "$PWD/mosquitto.conf"
    answers mosquitto_pub -h "$own" -t probe -m x
    seq 1000 >messages
    # The server keeps messages for a client that has subscribed once and left, so the test need not wait for the
    # client.
    there mosquitto_sub -h "$own" -i kept -c -q 1 -t t -E || fail "no subscription"
    there mosquitto_pub -h "$own" -t t -q 1 -l <messages || fail "not published"
    whole messages timeout 60 mosquitto_sub -h "$own" -i kept -c -q 1 -t t -C 1000
    head -c 2000000 /dev/urandom >large
    there mosquitto_pub -h "$own" -t large -q 2 -r -f large || fail "the large message was not published"
    at_once 8 whole large timeout 60 mosquitto_sub -h "$own" -q 2 -t large -C 1 -N
}

needs[beanstalkd]="beanstalkd:beanstalkd"
case_beanstalkd() {
    cat >jobs.py <<'CODE'
import socket, sys, threading

def asking():
    return socket.create_connection((sys.argv[1], 11300), 60)

def line(stream):
    return stream.readline().decode().split()

# Each of eight clients puts jobs of 60 KB into a tube of its own, and takes them in order; it asks for all before it
# reads an answer.
def client(nth):
    with asking() as it:
        stream = it.makefile("rb")
        tube = b"use t%d\r\nwatch t%d\r\n" % (nth, nth)
        it.sendall(tube)
        assert line(stream) == ["USING", f"t{nth}"]
        assert line(stream) == ["WATCHING", "2"]
        bodies = [b"%d of %d " % (job, nth) * 6000 for job in range(100)]
        for body in bodies:
            it.sendall(b"put 0 0 60 %d\r\n%s\r\n" % (len(body), body))
            assert line(stream)[0] == "INSERTED"
        it.sendall(b"reserve\r\n" * len(bodies))
        for body in bodies:
            word, number, size = line(stream)
            assert word == "RESERVED" and stream.read(int(size) + 2) == body + b"\r\n", word
        done[nth] = len(bodies)

with asking() as it: pass
done = [0] * 8
threads = [threading.Thread(target=client, args=(nth,)) for nth in range(int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(done), "jobs")
CODE
    serve beanstalkd -l "$own" -p 11300 -z 200000
    answers python3 jobs.py "$own" 0
    same "800 jobs" python3 jobs.py "$own" 8
}

needs[slapd]="slapd ldap-utils:slapd ldapadd ldapsearch"
case_slapd() {
    mkdir -p data
    cat >slapd.conf <<CONF
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile $PWD/pid
database mdb
suffix "dc=test"
rootdn "cn=root,dc=test"
rootpw secret
directory $PWD/data
CONF
    serve slapd -d 0 -h "ldap://$own" -f "$PWD/slapd.conf"
    answers ldapsearch -x -H "ldap://$own" -s base -b "" -LLL
    { printf 'dn: dc=test\nobjectClass: dcObject\nobjectClass: organization\no: test\ndc: test\n\n'
        for nth in $(seq 300); do printf 'dn: ou=n%d,dc=test\nobjectClass: organizationalUnit\nou: n%d\n\n' "$nth" "$nth"; done; } >entries
    there ldapadd -x -H "ldap://$own" -D cn=root,dc=test -w secret -f entries >added 2>&1 || fail "not added: $(tail -n 1 added)"
    seq 300 | sed 's/.*/ou: n&/' >expected
    found() {
        there ldapsearch -x -H "ldap://$own" -b dc=test -LLL '(ou=*)' ou >"found.$nth" || return 1
        grep '^ou:' "found.$nth" | sort -V | cmp - expected
    }
    at_once 8 found
}

needs[mariadb]="mariadb-server mariadb-client:mariadbd mariadb mariadb-install-db"
case_mariadb() {
    mariadb-install-db --no-defaults --user=root --datadir="$PWD/data" --skip-test-db --auth-root-authentication-method=normal \
        >made 2>&1 || fail "no database: $(tail -n 1 made)"
    serve mariadbd --no-defaults --user=root --datadir="$PWD/data" --bind-address="$own" --socket="$PWD/s" --skip-grant-tables \
        --max-allowed-packet=32M --pid-file="$PWD/pid" --skip-name-resolve
    sql() { there mariadb --no-defaults -h "$own" -u root --max-allowed-packet=32M -N -B "$@"; }
    answers mariadb --no-defaults -h "$own" -u root -e "SELECT 1"
    same 500500 sql -e "SELECT SUM(seq) FROM mysql.seq_1_to_1000"
    same 5000000 sql -e "SELECT LENGTH(REPEAT('x', 5000000))"
    head -c 5000000 /dev/zero | tr '\0' x >row && echo >>row
    at_once 4 whole row mariadb --no-defaults -h "$own" -u root --max-allowed-packet=32M -N -B -e "SELECT REPEAT('x', 5000000)"
    sql -e "CREATE DATABASE d; CREATE TABLE d.t (n INT AUTO_INCREMENT PRIMARY KEY, who INT) ENGINE=InnoDB" || fail "no table"
    inserts() { for _ in $(seq 50); do echo "INSERT INTO t (who) VALUES ($nth);"; done | sql d; }
    at_once 8 inserts
    same "400	8	80200" sql -e "SELECT COUNT(*), COUNT(DISTINCT who), SUM(n) FROM d.t"
}

needs[postgresql]="postgresql:psql pg_lsclusters"
case_postgresql() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    "${unprivileged[@]}" "$bin/initdb" -D data -U tester -A trust --no-sync --no-locale -E UTF8 >initialised 2>&1 ||
        fail "no database: $(cat initialised)"
    printf "listen_addresses = '%s'\nunix_socket_directories = '%s'\nfsync = off\n" "$own" "$PWD" >>data/postgresql.conf
    echo "host all all 0.0.0.0/0 trust" >>data/pg_hba.conf
    serve "${unprivileged[@]}" "$bin/postgres" -D data
    sql=(psql -h "$own" -U tester postgres -Atqc)
    answers "${sql[@]}" 'SELECT 1'
    same 500500 "${sql[@]}" 'SELECT sum(n) FROM generate_series(1, 1000) n'
    head -c 5000000 /dev/zero | tr '\0' x >row && echo >>row
    at_once 4 whole row "${sql[@]}" "SELECT repeat('x', 5000000)"
    there "$bin/pgbench" -h "$own" -U tester -i -q postgres >made 2>&1 || fail "no tables: $(cat made)"
    there "$bin/pgbench" -h "$own" -U tester -c 8 -t 50 postgres >load 2>&1 || fail "the load: $(cat load)"
    same 400 "${sql[@]}" 'SELECT count(*) FROM pgbench_history'
}

needs[pgbouncer]="pgbouncer postgresql:pgbouncer psql pg_lsclusters"
case_pgbouncer() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    "${unprivileged[@]}" "$bin/initdb" -D data -U tester -A trust --no-sync --no-locale -E UTF8 >initialised 2>&1 ||
        fail "no database: $(cat initialised)"
    printf "listen_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\nfsync = off\n" "$PWD" >>data/postgresql.conf
    "${unprivileged[@]}" "$bin/postgres" -D data >behind 2>&1 &
    until_it psql -h 127.0.0.1 -U tester postgres -c 'SELECT 1'
    cat >pgbouncer.ini <<CONF
[databases]
* = host=127.0.0.1 port=5432
[pgbouncer]
listen_addr = $own
listen_port = 6432
unix_socket_dir = $PWD
auth_type = any
auth_file =
admin_users = tester
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
logfile = $PWD/log
CONF
    sed -i 's/^\* = .*/& user=tester/' pgbouncer.ini
    serve "${unprivileged[@]}" pgbouncer pgbouncer.ini
    sql=(psql -h "$own" -p 6432 -U tester -Atqc)
    answers "${sql[@]}" 'SELECT 1' postgres
    same 500500 "${sql[@]}" 'SELECT sum(n) FROM generate_series(1, 1000) n' postgres
    head -c 5000000 /dev/zero | tr '\0' x >row && echo >>row
    at_once 4 whole row "${sql[@]}" "SELECT repeat('x', 5000000)" postgres
    there "$bin/pgbench" -h 127.0.0.1 -U tester -i -q postgres >made 2>&1 || fail "no tables: $(cat made)"
    load() { there "$bin/pgbench" -h "$own" -p 6432 -U tester -n -c 20 -t "$1" postgres >load 2>&1 || fail "the load: $(cat load)"; }
    load 50
    same 1000 "${sql[@]}" 'SELECT count(*) FROM pgbench_history' postgres
    # The server is reloaded and paused while it is loaded.
    load 200 &
    loading=$!
    for what in RELOAD 'PAUSE postgres' 'RESUME postgres' RELOAD; do
        there "${sql[@]}" "$what" pgbouncer || fail "$what failed"
    done
    wait "$loading" || exit 1
    same 5000 "${sql[@]}" 'SELECT count(*) FROM pgbench_history' postgres
}

names+=(nutcracker memcached_tls pgpool tgt)

needs[nutcracker]="nutcracker redis-server:nutcracker redis-server redis-cli redis-benchmark"
case_nutcracker() {
    for port in 6380 6381; do redis-server --port $port --bind 127.0.0.1 --save "" >behind.$port 2>&1 & done
    cat >nutcracker.yml <<CONF
a:
  listen: $own:22121
  hash: fnv1a_64
  distribution: ketama
  redis: true
  server_connections: 2
  backlog: 256
  servers:
   - 127.0.0.1:6380:1
   - 127.0.0.1:6381:1
CONF
    serve nutcracker -c "$PWD/nutcracker.yml" -a 127.0.0.1 -m 16384
    to=(redis-cli -h "$own" -p 22121)
    answers "${to[@]}" get x
    head -c 1000000 /dev/urandom | base64 -w 0 >large
    { cat large; echo; } >said.large
    stored() { there "${to[@]}" -x set "large$nth" <large >"stored.$nth" && whole said.large "${to[@]}" get "large$nth"; }
    at_once 8 stored
    there redis-benchmark -h "$own" -p 22121 -c 50 -n 20000 -t set,get,mset -r 1000 -P 16 -q >bench 2>&1 || fail "bench: $(cat bench)"
    ! grep -i error bench || fail "bench: $(cat bench)"
}

needs[memcached_tls]="memcached openssl:memcached openssl"
case_memcached_tls() {
    certificate
    cat >tls.py <<'PYTHON'
import os, socket, ssl, sys, threading

context = ssl.create_default_context(cafile="cert.pem")
done = []

def client(nth):
    it = context.wrap_socket(socket.create_connection((sys.argv[1], 11211), 60), server_hostname=sys.argv[1])
    stream = it.makefile("rb")
    for item in range(50):
        data = os.urandom(1 + (nth * 7919 + item * 104729) % 900000)
        it.sendall(b"set %d-%d 0 0 %d\r\n%s\r\n" % (nth, item % 4, len(data), data))
        assert stream.readline() == b"STORED\r\n"
        it.sendall(b"get %d-%d\r\n" % (nth, item % 4))
        assert int(stream.readline().split()[3]) == len(data)
        assert stream.read(len(data) + 7) == data + b"\r\nEND\r\n"
    done.append(nth)

threads = [threading.Thread(target=client, args=(nth,)) for nth in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done))
PYTHON
    serve "${unprivileged[@]}" memcached -l "$own" -t 3 -m 500 -I 2m -Z -o ssl_chain_cert="$PWD/cert.pem",ssl_key="$PWD/key.pem"
    answers python3 -c "import socket; socket.create_connection(('$own', 11211), 5)"
    same 10 python3 tls.py "$own"
}

needs[pgpool]="pgpool2 postgresql:pgpool psql pg_lsclusters"
# Twelve processes accept from one listener.
case_pgpool() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    "${unprivileged[@]}" "$bin/initdb" -D data -U tester -A trust --no-sync --no-locale -E UTF8 >initialised 2>&1 ||
        fail "no database: $(cat initialised)"
    printf "listen_addresses = '127.0.0.1'\nunix_socket_directories = '%s'\nfsync = off\n" "$PWD" >>data/postgresql.conf
    "${unprivileged[@]}" "$bin/postgres" -D data >behind 2>&1 &
    until_it psql -h 127.0.0.1 -U tester postgres -c 'SELECT 1'
    cat >pgpool.conf <<CONF
backend_clustering_mode = 'raw'
listen_addresses = '$own'
port = 9999
socket_dir = '$PWD'
pcp_socket_dir = '$PWD'
backend_hostname0 = '127.0.0.1'
backend_port0 = 5432
num_init_children = 12
max_pool = 2
pid_file_name = '$PWD/pid'
logdir = '$PWD'
CONF
    : >pcp.conf
    chmod -R a+rwX .
    serve "${unprivileged[@]}" pgpool -n -f pgpool.conf -F pcp.conf
    sql=(psql -h "$own" -p 9999 -U tester -Atqc)
    answers "${sql[@]}" 'SELECT 1' postgres
    head -c 5000000 /dev/zero | tr '\0' x >row && echo >>row
    at_once 4 whole row "${sql[@]}" "SELECT repeat('x', 5000000)" postgres
    there "$bin/pgbench" -h 127.0.0.1 -U tester -i -q postgres >made 2>&1 || fail "no tables: $(cat made)"
    load=("$bin/pgbench" -h "$own" -p 9999 -U tester -n -C -c 10 -t 20 postgres)
    for count in 200 400; do
        there "${load[@]}" >load 2>&1 || fail "the load: $(cat load)"
        same $count "${sql[@]}" 'SELECT count(*) FROM pgbench_history' postgres
        kill -HUP "$(cat pid)"
    done
}

needs[tgt]="tgt libiscsi-bin:tgtd tgtadm iscsi-ls iscsi-inq iscsi-readcapacity16 iscsi-perf"
# A command ends it, not a signal.
case_tgt() {
    head -c 20000000 /dev/urandom >disk
    mount -t tmpfs none /run && mkdir /run/tgtd
    serve tgtd -f --iscsi portal="$own:3260"
    administer() { tgtadm --lld iscsi "$@"; }
    until_it administer --op show --mode target
    administer --op new --mode target --tid 1 -T iqn.2020-01.test:d || fail "no target"
    administer --op new --mode logicalunit --tid 1 --lun 1 -b "$PWD/disk" || fail "no disk"
    administer --op bind --mode target --tid 1 -I ALL || fail "no clients"
    disk=iscsi://$own/iqn.2020-01.test:d/1
    answers iscsi-ls -s "iscsi://$own"
    there iscsi-inq "$disk" >inquiry || fail "no inquiry"
    there iscsi-readcapacity16 "$disk" >capacity && grep -q 'Total size:19999744' capacity || fail "the size is wrong: $(cat capacity)"
    reads() { there timeout 60 iscsi-perf -r -m 32 -b 64 -t 3 "$disk" >"reads.$nth" 2>&1; }
    at_once 4 reads
    administer --op delete --force --mode target --tid 1 && administer --op delete --mode system || fail "it does not end"
    until_it ended
}
