# Unmodified haproxy with a master process is told to reload (USR2) again and again: SCRIPT LULL MODE QUEUES. The new
# worker gets the listeners of the old one over a Unix socket (SCM_RIGHTS). The first worker stays for a connection that
# goes on all the time; with one queue it passes on what the others accept.
. "$(dirname "$0")/harness.sh"
haproxy_cfg http <<END
frontend web
    bind $own:8080
    http-request return status 200 content-type text/plain string "hello"
listen tunnel
    mode tcp
    bind $own:8081
    timeout client 600s
    timeout server 600s
    server echo 10.0.0.1:9999
END
cat >echo.py <<'END'
import socket

listener = socket.create_server(("10.0.0.1", 9999))
open("echoes", "w").close()
while True:
    connection, _ = listener.accept()
    for data in iter(lambda: connection.recv(100), b""):
        connection.sendall(data)
    connection.close()
END
cat >goes_on.py <<'END'
import os, socket, sys, time

connection = socket.create_connection((sys.argv[1], 8081))
while not os.path.exists("is over"):
    connection.sendall(b"still there")
    assert connection.recv(11, socket.MSG_WAITALL) == b"still there"
    open("has begun", "w").close()
    time.sleep(0.01)
END
options=(--queues "${3:-2}")
on_lull haproxy -W -f haproxy.cfg
answers() { [ "$(curl -sf -m 30 "http://$own:8080/")" = hello ]; }
until_it answers
# This address is the TAP's, which exists by now.
python3 echo.py &
echoes=$!
until_it [ -e echoes ]
timeout 240 python3 goes_on.py "$own" &
goes_on=$!
until_it [ -e "has begun" ]
master() { pgrep -o -x haproxy; }
# The master's youngest worker is another one than before.
is_another() { now=$(pgrep -n -P "$(master)" -x haproxy) && [ "$now" != "$worker" ]; }
has_one() { [ "$(pgrep -P "$(master)" -x haproxy | wc -l)" = "$1" ]; }
worker=none
until_it is_another
first=$now
for _ in 1 2 3; do
    worker=$now
    kill -USR2 "$(master)"
    until_it is_another
    # Nothing that former workers have left is in the way of later ones.
    for _ in 1 2 3 4 5; do answers || fail "no answer after a reload"; done
    until_it has_one 2
    kill -0 "$first" || fail "the first worker has not stayed"
done
touch "is over"
wait "$goes_on" || fail "the connection has not gone on"
until_it has_one 1
for _ in 1 2 3 4 5; do answers || fail "no answer once the first worker has ended"; done
grep -q 'cannot pass' said && fail "a listener was not passed on"
kill "$echoes"
stop
echo done
