# Runs in a network namespace of its own. $1: the lull binary, $2: which client to run, $3: the delivery mode.
set -eu
"$1" serve --nic tap:lull0 --addr 10.0.0.2/24 --addr fd00::2/64 --peer-addr 10.0.0.1/24 --mode "$3" >serve.out 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server; cat serve.out' EXIT
for _ in $(seq 100); do grep -q '^serving' serve.out && break; sleep 0.1; done
case $2 in
ping) ping -c 3 -i 0.2 -W 5 10.0.0.2 ;;
libmemcached)
  memcping --servers=10.0.0.2:11211
  echo hello >greeting
  memccp --servers=10.0.0.2 greeting
  memccat --servers=10.0.0.2 greeting | grep -q hello
  memccapable -h 10.0.0.2 -a | tee capable.out
  grep -q 'All tests passed' capable.out
  memcslap --servers=10.0.0.2 --concurrency=4 --execute-number=200 --test=get
  ;;
pymemcache)
  python3 - <<'P'
from pymemcache.client.base import Client
c = Client(('10.0.0.2', 11211), timeout=10, connect_timeout=10)
assert c.set('a', b'1') and c.get('a') == b'1'
assert c.incr('a', 5) == 6 and c.decr('a', 2) == 4
c.set_many({f'k{i}': b'v' * i for i in range(200)})
assert len(c.get_many([f'k{i}' for i in range(200)])) == 200
value, cas = c.gets('a')
assert c.cas('a', b'9', cas) is True and c.cas('a', b'8', cas) is False
big = b'x' * 1000000
assert c.set('big', big) and c.get('big') == big
assert c.touch('a', 100) and c.delete('a') and c.get('a') is None
assert len(c.stats()) > 10
c.flush_all()
assert c.get('big') is None
P
  ;;
load) "$1" load 10.0.0.2:11211 --load 2K --connections 8 --records 1000 --seconds 1 --warm-up 0.2 | tee load.out
  grep -q ' 0 misses, .* 0 errors), 0 lost, 0 unanswered' load.out ;;
ipv6)
  ip addr add fd00::1/64 dev lull0 nodad
  ping -6 -c 3 -i 0.2 -W 5 fd00::2
  "$1" load '[fd00::2]:11211' --load 1K --connections 4 --records 100 --seconds 0.5 --warm-up 0.1
  ;;
esac
