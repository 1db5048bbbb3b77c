# This runs in a network namespace of its own. $1: the lull binary, $2: what to try, $3: the delivery mode. The service
# is on x0 beside the host's address 10.0.0.1; clients are at x1, in another namespace.
set -eu
lull=$1
options='--addr 10.0.0.2/24 --addr fd00::2/64'
queues=1
address=10.0.0.2
nic=xdp
case $2 in
packet) nic=packet ;;
shared) options='--addr 10.0.0.1/24 --ports 11211' address=10.0.0.1 ;;
queues) options="$options -t 2" queues=2 ;;
esac
unshare -n sleep infinity &
peer=$!
server=
trap 'kill $peer 2>/dev/null; [ -z "$server" ] || { kill -TERM $server 2>/dev/null; wait $server; cat serve.out; }' EXIT
# It waits until the other namespace exists.
for _ in $(seq 1200); do [ "$(readlink /proc/$peer/ns/net)" = "$(readlink /proc/$$/ns/net)" ] || break; sleep 0.05; done
there() { nsenter -t $peer -n "$@"; }
ip link add x0 numrxqueues $queues numtxqueues $queues type veth \
  peer name x1 numrxqueues $queues numtxqueues $queues netns $peer
ip addr add 10.0.0.1/24 dev x0
ip link set x0 up
there ip addr add 10.0.0.9/24 dev x1
there ip addr add fd00::9/64 dev x1 nodad
there ip link set x1 up
# shellcheck disable=SC2086 # words
"$lull" serve --nic $nic:x0 $options --mode "$3" >serve.out 2>&1 &
server=$!
for _ in $(seq 1200); do grep -q '^serving' serve.out && break; kill -0 $server; sleep 0.05; done
case $nic in
xdp) grep -q 'x0 (native, copy, queues 0' serve.out ;;
packet) grep -q 'x0 (copies by a packet socket)' serve.out ;;
esac
there ping -c 2 -i 0.1 -W 60 10.0.0.1
there "$lull" load $address:11211 --load 2K --connections 8 --records 1000 --seconds 1 --warm-up 0.2 \
  --connect-timeout 120 | tee load.out
grep -q ' 0 misses, .* 0 errors), 0 lost, 0 unanswered' load.out
case $2 in
alone | packet)
  there ping -c 2 -i 0.1 -W 60 10.0.0.2
  there ping -6 -c 2 -i 0.1 -W 60 fd00::2
  ;;
shared)
  # Another port of the same address is the host's.
  python3 -c "import socket; s = socket.create_server(('10.0.0.1', 9)); c = s.accept()[0]; c.sendall(b'host')" &
  python=$!
  there python3 -c "
import socket, time
for _ in range(600):
    try:
        assert socket.create_connection(('10.0.0.1', 9), timeout=60).recv(9) == b'host'
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
else:
    raise SystemExit('nobody listens')"
  wait $python
  ;;
esac
kill -TERM $server
wait $server
cat serve.out
server=
grep -q '^stopped' serve.out
[ $nic = packet ] || grep -q 'no NAPI of the driver' serve.out
# Nothing is left on the interface.
if ip link show x0 | grep -q xdp; then exit 1; fi
