# The common parts of the programs' scripts. They run in network and PID namespaces of their own, as root there: SCRIPT
# LULL MODE.

lull=$1
mode=$2
own=10.0.0.2
nic=(--nic tap:lull0 --addr "$own/24" --peer-addr 10.0.0.1/24)
# Further options of `lull run`.
options=()
# The words before a program that has to run as a user without rights: as root it would change its groups, which these
# namespaces refuse.
unprivileged=(unshare --user --map-user=1000)
memcached=("${unprivileged[@]}" memcached -l "$own" -p 11211)
ip link set lo up
# This is the interpreter itself, because a wrapper that chooses between several may run dozens of programs each time.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null) && [ -x "$python" ] && PATH="$(dirname "$python"):$PATH"

# Runs a client at the kernel's end of the NIC.
there() { "$@"; }

# Makes x0, an interface of the host with this many queues, the NIC, by AF_XDP. Clients are at its peer x1, in another
# namespace; the host's own address is 10.0.0.1.
on_veth() {
    unshare -n sleep infinity &
    peer=$!
    there() { nsenter -t "$peer" -n "$@"; }
    until_it eval '[ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]'
    ip link add x0 numrxqueues "$1" numtxqueues "$1" type veth \
        peer name x1 numrxqueues "$1" numtxqueues "$1" netns "$peer" || fail "no veth"
    ip addr add 10.0.0.1/24 dev x0
    ip link set x0 up
    there ip addr add 10.0.0.9/24 dev x1
    there ip link set x1 up
    nic=(--nic xdp:x0 --addr "$own/24")
}

# Makes the NIC a TAP ("tap") or an interface of the host by AF_XDP ("xdp"), with this many queues.
on_nic() {
    if [ "$1" = xdp ]; then on_veth "$2"; else options+=(--queues "$2"); fi
}

# Pings the host through the same interface all the time; "end" prints how many pings were answered, and fails if one
# was lost.
pings_begin() {
    # An interface may take a while until packets pass.
    until_it there ping -c 1 -W 1 10.0.0.1
    there ping -i 0.02 10.0.0.1 >pings 2>&1 &
    pings=$!
    until_it pinged 5
}
pinged() { [ "$(grep -c icmp_seq pings)" -gt "$1" ]; }
pings_end() {
    until_it pinged $(($(grep -c icmp_seq pings) + 5))
    kill -INT "$(pgrep -P "$pings" || echo "$pings")" 2>/dev/null
    wait "$pings"
    # The numbers have 16 bits, and answers that two CPUs bring may change places. The last ones may have been under
    # way.
    awk -F'icmp_seq=' '
        NF > 1 {
            split($2, a, " ")
            nth = last + (a[1] - last % 65536 + 32768 + 65536) % 65536 - 32768
            seen[nth] = 1
            if (nth > last) last = nth
        }
        END { for (nth = 1; nth < last - 2; nth++) if (!seen[nth]) exit 1 }' pings ||
        fail "pings of the host's were lost: $(cat pings)"
    echo "pings of the host's: $(grep -c icmp_seq pings), none lost"
}

# Runs a program on the user plane, in the background: $launcher is the process of `lull run`, and the file "said" has
# the output.
on_lull() {
    "$lull" run "${nic[@]}" --mode "$mode" "${options[@]}" -- "$@" >said 2>&1 &
    launcher=$!
}

# Sets $program: the launcher's child is the program, because `unshare` executes memcached in its own place.
find_program() {
    until_it pgrep -P "$launcher"
    program=$(pgrep -P "$launcher" | head -n 1)
}

# Whether memcached, on $port or 11211, answers a load of lull's generator on this many connections.
memcached_answers() {
    there timeout 120 "$lull" load "$own:${port:-11211}" --connections "${1:-1}" --seconds 0.1 --warm-up 0.1 >load 2>&1
}

# Loads memcached with these options of `lull load`; every request has to be answered.
load_memcached() {
    there "$lull" load "$own:${port:-11211}" "$@" >load 2>&1 || fail "the load: $(cat load)"
    grep -q ' 0 errors), 0 lost, 0 unanswered' load || fail "not everything was answered: $(cat load)"
}

# Whether the program ($1) has this many connections open. It closes those that its peers have closed only when it
# handles them.
has_open() {
    "$lull" ss "$1" --json >sockets || return 1
    [ "$(python3 -c '
import json
sockets = json.load(open("sockets"))[0]["sockets"]
print(sum(socket["state"] in ("ESTAB", "CLOSE-WAIT") for socket in sockets))')" = "$2" ]
}

# Makes files for an HTTP server: html/index.html, and html/large with this many random bytes.
site() {
    mkdir -p html
    echo hello >html/index.html
    head -c "${1:-0}" /dev/urandom >html/large
}

# Runs ab with these arguments; no request may fail. ab's own timeout is half a minute.
run_ab() {
    there ab -q -s 120 "$@" >bench 2>&1 || fail "ab: $(cat bench)"
    grep -q 'Failed requests: *0$' bench || fail "ab: $(cat bench)"
}

# Writes haproxy.cfg, in the mode http or tcp; frontends and backends come from standard input.
haproxy_cfg() {
    cat >haproxy.cfg <<END
global
    nbthread 2
    maxconn 200
defaults
    mode $1
    timeout client 60s
    timeout server 60s
    timeout connect 60s
$(cat)
END
}

# Writes nginx.conf: the arguments are the number of processes and the level of errors; the contents of http { } come
# from standard input.
nginx_conf() {
    cat >nginx.conf <<END
user root root;
daemon off;
$1;
pid $PWD/pid;
error_log $PWD/errors ${2:-info};
events { worker_connections 256; }
http {
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path $PWD/t1;
    proxy_temp_path $PWD/t2;
    fastcgi_temp_path $PWD/t3;
    uwsgi_temp_path $PWD/t4;
    scgi_temp_path $PWD/t5;
$(cat)
}
END
}

# Waits until a command succeeds, for two minutes or LULL_TEST_PATIENCE seconds. A command that itself waits, which may
# take a minute each time, gets ten times as long.
until_it() {
    local patience=${LULL_TEST_PATIENCE:-120} since=$SECONDS
    for _ in $(seq "$((10 * patience))"); do
        "$@" >/dev/null 2>&1 && return
        [ "$((SECONDS - since))" -lt "$((10 * patience))" ] || break
        sleep 0.1
    done
    echo "never: $*"
    cat said
    exit 1
}

# Whether an interface exists. /sys would show the namespace that it was mounted in.
exists() { ip link show "$1" >/dev/null 2>&1; }

fail() {
    echo "$*"
    cat said
    exit 1
}

# Ends the program as an operator does, and waits for it.
stop() {
    kill -TERM "$launcher"
    wait "$launcher"
    status=$?
}
