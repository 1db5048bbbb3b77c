#!/usr/bin/env bash
# Measures what a path that loses frames costs the same server on lull's stack and on Linux's, in turn: a program
# between the two ends passes frames on, and loses some of those that carry data. It prints figures and does not judge
# them.
#
#   lossy.sh LULL [ROUNDS [LOSS...]]     the release build's command; 3 rounds; loses 0, 0.01 and 0.03 of the frames
#
# DELAY_MS: how long each frame takes either way, in milliseconds (0). MBIT: how much passes each way, in Mbit/s, with
# at most 100 frames that wait (unbounded). OVERTAKEN: the share of frames that take 3 ms more, and so are overtaken
# (0). A delay shows the effect of buffers and congestion windows: DELAY_MS=20 MBIT=50 lossy.sh LULL 3 0
#
# It prints for each loss the seconds in which curl gets 5 MB from Python's http.server, those in which a program there
# gets them from a client, and the latencies of memcached at 1,000 requests a second (200 with a delay) on 16
# connections. lull's side is suspend20 over a TAP, Linux's a pair of veth ends, with Reno in either direction (a
# namespace may have no other); no frame is longer than the MTU.
set -uo pipefail
if [ -z "${LULL_BENCH_SIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "SKIP: this is not root, which network namespaces take"; exit 0; }
    for needed in python3 curl memcached ethtool; do
        command -v "$needed" >/dev/null || { echo "SKIP: $needed is missing"; exit 0; }
    done
    lull=$(realpath "$1") rounds=${2:-3} script=$(realpath "$0")
    shift $(($# > 2 ? 2 : $#))
    [ $# -gt 0 ] || set -- 0 0.01 0.03
    for loss; do
        for round in $(seq "$rounds"); do
            for what in file upload memcached; do
                for side in kernel lull; do
                    directory=$(mktemp -d)
                    export LULL_BENCH_SIDE=$side LULL_BENCH_WHAT=$what
                    (cd "$directory" && timeout 300 unshare -n --pid --fork --kill-child=KILL --mount-proc \
                        bash "$script" "$lull" "$loss" 2>errors || tail -n 3 errors) |
                        sed "s/^/loss $loss, round $round, $side: /"
                    rm -rf "$directory"
                done
            done
        done
    done
    exit 0
fi

loss=$2
set -- "$1" suspend20
. "$(dirname "$0")/../tests/programs/harness.sh"
cat >relay.py <<'END'
import heapq, os, random, select, socket, sys, time

def raw(device):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    end.bind((device, 0))
    return end

server, client = raw("lull0"), raw("x0")
loss, delay = float(sys.argv[1]), float(os.environ.get("DELAY_MS", "0")) / 1e3
second = float(os.environ.get("MBIT", "0")) * 1e6 / 8
overtaken = float(os.environ.get("OVERTAKEN", "0"))
random.seed(7)
open("relaying", "w").close()
waiting, count, free = [], 0, {server: 0.0, client: 0.0}
while True:
    now = time.monotonic()
    while waiting and waiting[0][0] <= now:
        _, _, to, frame = heapq.heappop(waiting)
        to.send(frame)
    left = max(0, waiting[0][0] - time.monotonic()) if waiting else None
    for end in select.select([server, client], [], [], left)[0]:
        frame, address = end.recvfrom(65536)
        if address[2] == socket.PACKET_OUTGOING:
            continue
        # Acknowledgements and handshakes are not lost.
        if len(frame) > 80 and random.random() < loss:
            continue
        at = time.monotonic()
        if second:
            if (free[end] - at) * second > 100 * 1514:
                continue
            free[end] = at = max(free[end], at) + len(frame) / second
        count += 1
        late = 0.003 if random.random() < overtaken else 0
        heapq.heappush(waiting, (at + delay + late, count, client if end is server else server, frame))
END
cat >take.py <<'END'
import socket, sys

listener = socket.create_server((sys.argv[1], 8000))
while True:
    connection, _ = listener.accept()
    count = 0
    while data := connection.recv(1 << 16):
        count += len(data)
    connection.sendall(b"%d" % count)
    connection.close()
END
cat >give.py <<'END'
import socket, sys, time

start = time.monotonic()
connection = socket.create_connection((sys.argv[1], 8000))
connection.sendall(bytes(5_000_000))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(100) == b"5000000"
print(f"5 MB there in {time.monotonic() - start:.6f} s")
END
namespace() {
    unshare -n sleep infinity &
    made=$!
    until_it eval '[ "$(readlink "/proc/$made/ns/net")" != "$(readlink /proc/$$/ns/net)" ]'
}
namespace && peer=$made
# The machine's default may be another algorithm, which only one side would have.
reno() { nsenter -t "$1" -n sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control'; }
reno "$peer"
there() { nsenter -t "$peer" -n "$@"; }
# Makes a pair of veth ends: the first is here, the second has an address in another namespace, and neither has
# offloads.
pair() {
    ip link add "$1" type veth peer name "$2" netns "$4" || fail "no veth"
    ip link set "$1" up
    nsenter -t "$4" -n ip addr add "$3/24" dev "$2"
    nsenter -t "$4" -n ip link set "$2" up
    nsenter -t "$4" -n ethtool -K "$2" tx off tso off gso off gro off >/dev/null 2>&1
}
pair x0 x1 10.0.0.1 "$peer"
if [ "$LULL_BENCH_SIDE" = kernel ]; then
    namespace && server=$made
    reno "$server"
    pair lull0 y1 "$own" "$server"
    serve() { nsenter -t "$server" -n "$@" >said 2>&1 & }
else
    serve() { "$lull" run --nic tap:lull0 --addr "$own/24" --mode "$mode" -- "$@" >said 2>&1 & }
fi
if [ "$LULL_BENCH_WHAT" = file ]; then
    mkdir files
    head -c 5000000 /dev/urandom >files/file
    serve python3 -m http.server -d files -b "$own" 8000
elif [ "$LULL_BENCH_WHAT" = upload ]; then
    serve python3 take.py "$own"
else
    serve memcached -u nobody -l "$own" -p 11211 -t 1
fi
until_it ip link set lull0 up
ethtool -K lull0 tx off tso off gso off >/dev/null 2>&1
python3 relay.py "$loss" &
until_it test -e relaying
if [ "$LULL_BENCH_WHAT" = file ]; then
    until_it there curl -s -o /dev/null "http://$own:8000/"
    for _ in 1 2 3; do
        there curl -s -o got -w '5 MB in %{time_total} s\n' "http://$own:8000/file"
        cmp got files/file || fail "it is not the same file"
    done
elif [ "$LULL_BENCH_WHAT" = upload ]; then
    until_it there python3 -c "import socket; socket.create_connection(('$own', 8000))"
    for _ in 1 2 3; do
        there python3 give.py "$own" || fail "not all of it came"
    done
else
    # It stores one record, since with a delay each record takes a round trip.
    until_it there "$lull" load "$own:11211" --connections 1 --records 1 --seconds 0.1 --warm-up 0.1 >/dev/null 2>&1
    # Sixteen connections get at most sixteen answers in a round trip.
    load=1000
    [ "${DELAY_MS:-0}" = 0 ] || load=200
    there "$lull" load "$own:11211" --connections 16 --load "$load" --seconds 10 --warm-up 1 --records 1000 | grep -E "^(latency|answers)"
fi
