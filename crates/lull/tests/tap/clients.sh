# Runs in a network namespace of its own. $1: the lull binary, $2: which client to run, $3: the delivery mode.
set -eu
options=
# The server has few slots, and item sizes in memcached's units.
[ "$2" != raw ] || options='-c 4 -I 2m -m 64'
[ "$2" != gateway ] || options='--gateway 10.0.0.1 --gateway fd00::1'
[ "$2" != idle ] || options='--idle-timeout 1'
# shellcheck disable=SC2086 # words
"$1" serve --nic tap:lull0 --addr 10.0.0.2/24 --addr fd00::2/64 --peer-addr 10.0.0.1/24 --mode "$3" $options >serve.out 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server; cat serve.out' EXIT
for _ in $(seq 1200); do grep -q '^serving' serve.out && break; sleep 0.1; done
case $2 in
ping) ping -c 3 -i 0.2 -W 60 10.0.0.2 ;;
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
c = Client(('10.0.0.2', 11211), timeout=120, connect_timeout=120)
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
raw)
  python3 - <<'P'
import socket
def connect():
    s = socket.create_connection(('10.0.0.2', 11211), timeout=120)
    return s
def read(s, count):
    got = bytearray()
    while len(got) < count:
        part = s.recv(65536)
        assert part, f'the end after {len(got)} of {count} bytes'
        got += part
    return bytes(got)
def ask(s, request, reply):
    s.sendall(request)
    got = read(s, len(reply))
    assert got == reply, (request, got)
def rest(s):
    got = bytearray()
    while part := s.recv(65536):
        got += part
    return bytes(got)
s = connect()
# Several large values are asked for at once.
big = b'v' * 1500000
ask(s, b'set big 0 0 1500000\r\n' + big + b'\r\n', b'STORED\r\n')
one = b'VALUE big 0 1500000\r\n' + big + b'\r\nEND\r\n'
s.sendall(b'get big\r\n' * 5)
assert read(s, 5 * len(one)) == one * 5
# This checks the answer to `version`.
s.sendall(b'version\r\n')
assert b'lull' in read(s, len(b'VERSION 1.6.0-lull-lab\r\n'))
# A web page in a browser can store nothing.
page = connect()
page.sendall(b'POST / HTTP/1.1\r\nHost: x\r\n\r\nset evil 0 0 1\r\nx\r\n')
try:
    assert rest(page) == b''
except ConnectionResetError:
    pass
ask(s, b'get evil\r\n', b'END\r\n')
# The fifth client gets an error.
others = []
while True:
    c = connect()
    c.sendall(b'get none\r\n')
    try:
        first = read(c, 5)
    except ConnectionResetError:
        # The client had asked before it got the error.
        break
    if first != b'END\r\n':
        break
    others.append(c)
assert len(others) <= 4
# A client that disconnects frees a slot.
for c in others:
    c.close()
page.close()
while True:
    try:
        c = connect()
        c.sendall(b'get none\r\n')
        if read(c, 5) == b'END\r\n':
            break
    except (ConnectionResetError, AssertionError):
        pass
P
  # The service has logged that the slots are taken.
  grep -q 'all 4 connections of a worker are taken' serve.out
  [ "$(grep -c 'are taken' serve.out)" = 1 ]
  ;;
gateway)
  # This is a client of another network, behind the kernel.
  ip link set lo up
  ip addr add 192.0.2.1/32 dev lo
  python3 - <<'P'
import socket
s = socket.create_connection(('10.0.0.2', 11211), timeout=120, source_address=('192.0.2.1', 0))
s.sendall(b'get none\r\n')
got = b''
while len(got) < 5:
    part = s.recv(64)
    assert part, got
    got += part
assert got == b'END\r\n', got
P
  ;;
idle)
  python3 - <<'P'
import socket
s = socket.create_connection(('10.0.0.2', 11211), timeout=120)
assert s.recv(1) == b''
P
  ;;
load) "$1" load 10.0.0.2:11211 --load 2K --connections 8 --records 1000 --seconds 1 --warm-up 0.2 --connect-timeout 120 | tee load.out
  grep -q ' 0 misses, .* 0 errors), 0 lost, 0 unanswered' load.out ;;
ipv6)
  ip addr add fd00::1/64 dev lull0 nodad
  ping -6 -c 3 -i 0.2 -W 60 fd00::2
  "$1" load '[fd00::2]:11211' --load 1K --connections 4 --records 100 --seconds 0.5 --warm-up 0.1 --connect-timeout 120
  ;;
esac
