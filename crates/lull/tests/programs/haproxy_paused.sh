# Unmodified haproxy whose frontend is disabled and enabled again, by its command socket and by signals: SCRIPT LULL
# MODE. haproxy disables a frontend by connecting its listener to AF_UNSPEC.
. "$(dirname "$0")/harness.sh"
haproxy_cfg http <<END
frontend web
    bind $own:8080
    http-request return status 200 content-type text/plain string "hello"
END
# There is one thread: before its `relax_listener` (version 2.8) one thread of haproxy resumes, after an `accept` or
# when a connection ends, a listener that was at a limit when that thread looked, even if another thread has paused it
# since.
sed -i "s|^global|&\n    stats socket $PWD/commands level admin|; s|nbthread 2|nbthread 1|" haproxy.cfg
on_lull haproxy -db -f haproxy.cfg
command() {
    python3 -c '
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect("commands")
server.sendall(sys.argv[1].encode() + b"\n")
print(server.recv(1000).decode().strip())' "$1"
}
answers() { [ "$(curl -sf -m 30 "http://$own:8080/")" = hello ]; }
# curl's status 7 means that it could not connect.
refuses() {
    curl -s -m 30 "http://$own:8080/" >answer
    [ $? = 7 ]
}
until_it answers
find_program
for _ in 1 2 3; do
    [ -z "$(command 'disable frontend web')" ] || fail "it is not disabled"
    refuses || fail "it answers though it is disabled: $(cat answer)"
    [ -z "$(command 'enable frontend web')" ] || fail "it is not enabled"
    answers || fail "it does not answer though it is enabled"
done
for _ in 1 2 3; do
    kill -TTOU "$program"
    until_it refuses
    kill -TTIN "$program"
    until_it answers
done
stop
[ "$status" = 143 ] || fail "it ended with status $status"
echo done
