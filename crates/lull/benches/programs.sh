#!/usr/bin/env bash
# Measures unmodified programs on lull's stack and the same programs on Linux's, in turn, in requests a second. It
# prints figures and does not judge them. Every server of a row has core 0, every client core 1, so nothing else should
# run.
#
#   programs.sh LULL DIRECTORY [ROUNDS [ROW...]]     the release build's command; where to keep the logs; 9 rounds; all rows
#
# A row is PROGRAM-DEPTH-DEVICE: memcached with this many requests of a connection under way (64 connections), redis
# with a pipeline of this length (50 connections), nginx with files of 1 KB (64 connections kept alive), each over "tap"
# or "xdp". PROGRAM-half-DEVICE is memcached at half of what Linux's base reaches, with the median and the 99th
# percentile of the latency instead; PROGRAM-close-DEVICE is nginx with a connection for each request. knotd and nsd
# answer names over UDP, with DEPTH queries under way.
#
# Linux's side is a veth pair, in "base" and in the best of its modes for this, suspend20 put in force by `lull run
# --dev`. The client's end has no TSO, because otherwise no connection would have a NAPI id. lull's side is suspend20
# and fullbusy.
#
# "no work" is the limit of device and client: a responder that polls, without a stack and without a program behind it.
# It is run if `cargo build --release -p lull-lab --example no_work` has put it beside LULL. memcached's answers are
# misses there, without values.
set -uo pipefail
rows=(memcached-1-tap memcached-4-tap memcached-half-tap redis-1-tap redis-16-tap nginx-1-tap memcached-1-xdp memcached-4-xdp
    redis-1-xdp redis-16-xdp nginx-1-xdp nginx-close-tap nginx-close-xdp knotd-100-tap knotd-100-xdp nsd-100-tap nsd-100-xdp)
if [ -z "${LULL_BENCH_ROW:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "SKIP: this is not root, which network namespaces and AF_XDP take"; exit 0; }
    lull=$(realpath "$1") directory=$2 rounds=${3:-9} script=$(realpath "$0")
    [ $# -gt 3 ] && rows=("${@:4}")
    mkdir -p "$directory" && cd "$directory" || exit 1
    echo "Requests a second; medians of $rounds rounds, in which the servers take turns, and of the ratios within a round (least to most)."
    for row in "${rows[@]}"; do
        rm -rf "$row" && mkdir "$row"
        (cd "$row" && LULL_BENCH_ROW=$row unshare -n --pid --fork --kill-child=KILL --mount-proc bash "$script" "$lull" "$rounds" \
            2>errors) || echo "$row failed: $(tail -n 3 "$directory/$row/errors" 2>/dev/null)"
    done
    exit 0
fi

rounds=$2
set -- "$1" suspend20
. "$(dirname "$0")/../tests/programs/harness.sh"
IFS=- read -r program depth device <<<"$LULL_BENCH_ROW"
needs=(ethtool taskset "${program/redis/redis-server}")
is_dns=
[ "$program" = knotd ] || [ "$program" = nsd ] && is_dns=yes && needs+=(dnsperf)
for needed in "${needs[@]}"; do
    command -v "$needed" >/dev/null || { echo "| $LULL_BENCH_ROW | $needed is missing |"; exit 0; }
done

# lull's servers run here. With AF_XDP the clients are in another namespace; with a TAP they are here as well, and
# Linux's servers are in another namespace.
if [ "$device" = xdp ]; then
    on_veth 1
    linux() { "$@"; }
else
    unshare -n sleep infinity &
    peer=$!
    until_it eval '[ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]'
    linux() { nsenter -t "$peer" -n "$@"; }
fi
client() { there taskset -c 1 "$@"; }

# Makes a veth pair whose end sN is the Linux servers', 10.0.N.2, and whose end cN is the clients'.
veth() {
    ip link add "s$1" type veth peer name "c$1"
    if [ "$device" = xdp ]; then ip link set "c$1" netns "$peer"; else ip link set "s$1" netns "$peer"; fi
    linux ip addr add "10.0.$1.2/24" dev "s$1"
    there ip addr add "10.0.$1.1/24" dev "c$1"
    linux ip link set "s$1" up
    there ip link set "c$1" up
    linux ethtool -K "s$1" gro on
    there ethtool -K "c$1" tso off
}

site
head -c 1024 /dev/urandom >html/kilobyte
# Sets $server to the command that serves on this address.
server_on() {
    case "$program" in
    memcached) server=("${unprivileged[@]}" memcached -l "$1" -p 11211 -U 0 -t 1) ;;
    redis) server=(redis-server --bind "$1" --protected-mode no --save "" --appendonly no --dir "$PWD") ;;
    nginx)
        mkdir -p "n$1"
        (cd "n$1" && ln -sf ../html html && nginx_conf "worker_processes 1" error <<END
    server { listen $1:80; root $PWD/html; }
END
        )
        server=(nginx -e "$PWD/n$1/errors" -c "$PWD/n$1/nginx.conf")
        ;;
    knotd)
        mkdir -p "n$1/run" "n$1/data"
        cat >"n$1/conf" <<END
server:
    rundir: $PWD/n$1/run
    listen: $1@53
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
database:
    storage: $PWD/n$1/data
zone:
  - domain: example.com
    file: $PWD/zone
END
        server=(knotd -c "$PWD/n$1/conf")
        ;;
    nsd)
        mkdir -p "n$1"
        cat >"n$1/conf" <<END
server:
    server-count: 1
    ip-address: $1
    username: ""
    database: ""
    pidfile: "$PWD/n$1/pid"
    xfrdfile: "$PWD/n$1/xfrd"
    zonelistfile: "$PWD/n$1/zones"
remote-control:
    control-enable: no
zone:
    name: example.com
    zonefile: "$PWD/zone"
END
        server=(nsd -d -c "$PWD/n$1/conf")
        ;;
    esac
}
if [ -n "$is_dns" ]; then
    printf '$ORIGIN example.com.\n$TTL 3600\n@ SOA ns host 1 3600 600 86400 3600\n@ NS ns\nns A 10.0.0.1\n' >zone
    for number in $(seq 1000); do
        echo "h$number A 10.1.$((number / 250)).$((number % 250))" >>zone
        echo "h$number.example.com A" >>names
    done
fi

# Measures the requests a second of a server on this address in one window; at half load, its p50 and p99 in
# microseconds.
measure() {
    case "$program-$depth" in
    memcached-half)
        client "$lull" load "$1:11211" --load "$half" --spin --seconds 1.5 --warm-up 0.4 --records 1000 --no-preload >load 2>&1 || fail "$(cat load)"
        sed -n 's/^latency.* p50 \([0-9.]*\) .* p99 \([0-9.]*\) .*/\1\/\2/p' load
        ;;
    memcached-*)
        client "$lull" load "$1:11211" --depth "$depth" --seconds 1 --warm-up 0.4 --records 1000 --no-preload \
            $([ "$1" != "$idle" ] || echo --update 0) >load 2>&1 || fail "$(cat load)"
        sed -n 's/^queries\/s *//p' load
        ;;
    redis-*)
        client redis-benchmark -h "$1" -n "$((60000 * (depth + 3) / 4))" -c 50 -P "$depth" -t get --csv >load 2>&1 || fail "$(cat load)"
        sed -n 's/^"GET","\([0-9]*\).*/\1/p' load
        ;;
    nginx-*)
        kept=()
        [ "$depth" != close ] || kept=(--header "Connection: close")
        client wrk -t 1 -c 64 -d 1s "${kept[@]}" "http://$1/kilobyte" >load 2>&1 || fail "$(cat load)"
        sed -n 's/^Requests\/sec: *\([0-9]*\).*/\1/p' load
        ;;
    *)
        client dnsperf -s "$1" -d names -l 1 -c 8 -T 1 -q "$depth" >load 2>&1 || fail "$(cat load)"
        sed -n 's/^ *Queries per second: *\([0-9]*\).*/\1/p' load
        ;;
    esac
}
answers() {
    case "$program" in
    memcached)
        there timeout 60 "$lull" load "$1:11211" --connections 1 --seconds 0.1 --warm-up 0.1 --records 1000 \
            $([ "$1" != "$idle" ] || echo --no-preload --update 0)
        ;;
    redis) there redis-cli -h "$1" GET nothing ;;
    nginx) there curl -s -o got "http://$1/kilobyte" ;;
    *) there dnsperf -s "$1" -d names -n 1 -c 1 -t 1 | grep -q 'Queries completed: *1000' ;;
    esac
}

veth 1
veth 2
server_on 10.0.1.2
linux taskset -c 0 "${server[@]}" >said.base 2>&1 &
server_on 10.0.2.2
linux taskset -c 0 "$lull" run --dev s2 --mode suspend20 -- "${server[@]}" >said.linux 2>&1 &
server_on "$own"
taskset -c 0 "$lull" run "${nic[@]}" --mode suspend20 -- "${server[@]}" >said 2>&1 &
addresses=(10.0.1.2 10.0.2.2 "$own")
names=("linux base" "linux suspend20" "lull suspend20")
# With AF_XDP a second service on one interface of the host would take the first one's queue.
if [ "$device" = tap ]; then
    server_on 10.0.4.2
    taskset -c 0 "$lull" run --nic tap:lull4 --addr 10.0.4.2/24 --peer-addr 10.0.4.1/24 --mode fullbusy -- "${server[@]}" >said.fullbusy 2>&1 &
    addresses+=(10.0.4.2)
    names+=("lull fullbusy")
fi
idle=
no_work=$(dirname "$lull")/examples/no_work
if [ -x "$no_work" ] && [ "$depth" != half ] && [ "$depth" != close ] && [ -z "$is_dns" ]; then
    case "$program" in
    memcached) end='\r\n' && printf 'END\r\n' ;;
    redis) end='GET\r\n' && printf '$-1\r\n' ;;
    nginx)
        end='\r\n\r\n'
        printf 'HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nContent-Length: 1024\r\nConnection: keep-alive\r\n\r\n'
        cat html/kilobyte
        ;;
    esac >answer
    idle=10.0.5.3
    if [ "$device" = xdp ]; then
        veth 5
        taskset -c 0 "$no_work" xdp:s5 "$idle" "$end" answer >said.no_work 2>&1 &
    else
        taskset -c 0 "$no_work" tap:lull5 "$idle" "$end" answer >said.no_work 2>&1 &
    fi
    addresses+=("$idle")
    names+=("no work")
fi
for address in "${addresses[@]}"; do until_it answers "$address"; done
if [ "$depth" = half ]; then
    half=$(($(depth=1 measure 10.0.1.2 | cut -d. -f1) / 2))
fi
for _ in $(seq "$rounds"); do
    for address in "${addresses[@]}"; do measure "$address"; done | paste -sd ' '
done >figures
grep -h '^lull: ' said.linux | tail -n 1 >&2

python3 - "$LULL_BENCH_ROW" "${half:-}" "${names[@]}" <<'END'
import statistics, sys

row, half, names = sys.argv[1], sys.argv[2], sys.argv[3:]
rounds = [line.split() for line in open("figures")]
for index, what in enumerate(["p50", "p99"] if half else [""]):
    of = [[float(cell.split("/")[index]) for cell in cells] for cells in rounds]
    unit = " us" if half else "/s"
    cells = [f"{names[0]} {statistics.median(each[0] for each in of):.0f}{unit}"]
    for at, name in enumerate(names[1:], 1):
        ratios = sorted(each[at] / each[0] for each in of)
        cells.append(f"{name} {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    best = sorted(each[2] / each[1] for each in of)
    cells.append(f"lull suspend20 / linux suspend20 {statistics.median(best):.2f}")
    print(f"{row}{f', {what} at {half}/s' if half else ''}: " + "; ".join(cells))
END
