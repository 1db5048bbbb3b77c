# Unmodified memcached on x0, an interface of the host, by AF_XDP. $3: "alone", on an address that is lull's alone, or
# "hosts", on a port of the host's own address. Clients are at x1, in another namespace. Then the program is killed.
. "$(dirname "$0")/harness.sh"

on_veth 1
listen=$own:11211
if [ "$3" = hosts ]; then
    own=10.0.0.1
    # The second port is the host's, so the program's listener on it is the kernel's.
    listen=$own:11211,$own:11212
    nic=(--nic xdp:x0:0 --addr "$own/24" --ports 11211)
fi
if [ "$3" = hosts ]; then
    # A connection that is not bound to one of lull's ports is the kernel's, because its answers go to the host.
    there python3 -c "
import socket
server = socket.create_server(('10.0.0.9', 9))
open('serving', 'w').close()
server.accept()[0].sendall(b'over the kernel')" >server 2>&1 &
    server=$!
    until_it test -e serving
    on_lull python3 -c "
import socket
assert socket.create_connection(('10.0.0.9', 9), timeout=60).recv(99) == b'over the kernel'"
    wait "$launcher" || fail "a connection of the kernel's failed beside --ports: $(cat server)"
    wait "$server" || fail "the server: $(cat server)"
fi
# The program has no rights before its first socket. Memory that it pins counts together with that of all processes of
# the user nobody on the machine.
ulimit -l unlimited 2>/dev/null # Root may not do this everywhere.
on_lull memcached -u nobody -l "$listen" -t 1

answers() {
    until_it memcached_answers
    load_memcached --connections 16 --seconds 1 --records 1000
    cat load
}
answers
# Only the kernel has a listener on the other port.
listens() { [ -n "$(ss -Hltn "sport = :$1")" ]; }
listens 11211 && fail "the kernel listens on lull's port"
if [ "$3" = hosts ]; then
    listens 11212 || fail "the kernel does not listen on its own port"
    port=11212 answers
fi
ip link show x0 | grep -q xdp || fail "there is no XDP program on the interface"

# A connection is open when the program is killed, and the host is pinged all the time.
there python3 -c "
import os, socket, time
client = socket.create_connection(('$own', 11211), timeout=120)
def asks():
    client.sendall(b'version\r\n')
    assert client.recv(99).startswith(b'VERSION')
asks()
open('connected', 'w').close()
# The thread that closed the others answers again once it is done with them.
while not os.path.exists('are closed'):
    time.sleep(0.01)
asks()
open('answered', 'w').close()
try:
    client.recv(99)
except ConnectionResetError:
    raise SystemExit(0)
raise SystemExit('it was not reset')" >client 2>&1 &
client=$!
until_it test -e connected
pings_begin
find_program
until_it has_open "$program" 1
touch "are closed"
until_it test -e answered
kill -9 "$program" || fail "there is no program"
wait "$launcher"
status=$?
launcher=
[ "$status" = 137 ] || fail "the launcher ended with $status"
grep -q 'left 1 connection open; 1 peer was told by a reset' said || fail "the launcher did not reset the peer"
wait "$client" || fail "the peer: $(cat client)"
pings_end
ip link show x0 | grep -q xdp && fail "the XDP program is left"
cat said
echo done
