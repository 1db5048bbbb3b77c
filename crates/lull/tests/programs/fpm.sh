# Unmodified php-fpm is told to reload (USR2) under load: its first process executes itself again, with the listener
# open.
. "$(dirname "$0")/harness.sh"

fpm=$(ls /usr/sbin/php-fpm* | head -n 1)
cat >fpm.conf <<END
[global]
daemonize = no
error_log = $PWD/errors
pid = $PWD/pid
process_control_timeout = 20s
[www]
listen = $own:9000
pm = static
pm.max_children = 2
END
cat >who.php <<'END'
<?php echo getmypid(), "\n";
END
cat >client.py <<'END'
"""Asks for a script by FastCGI, a connection for each request, until there is a file `stop`; who answered stands in `who`."""
import os, socket, struct, sys


def record(kind, content):
    return struct.pack("!BBHHBx", 1, kind, 1, len(content), 0) + content


def pair(name, value):
    name, value = name.encode(), value.encode()
    return bytes([len(name), len(value)]) + name + value


script = os.path.abspath("who.php")
params = pair("SCRIPT_FILENAME", script) + pair("REQUEST_METHOD", "GET")
request = record(1, struct.pack("!HB5x", 1, 0)) + record(4, params) + record(4, b"") + record(5, b"")


def ask():
    with socket.create_connection((sys.argv[1], 9000), 60) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    body = answer.split(b"\r\n\r\n", 1)[1].split(b"\n", 1)[0]
    return int(body)


count = 0
while not os.path.exists("stop"):
    who = ask()
    count += 1
    with open("who.new", "w") as file:
        print(who, file=file)
    os.rename("who.new", "who")
    with open("done.new", "w") as file:
        print(count, file=file)
    os.rename("done.new", "done")
print(count, "requests")
END
on_nic tap 4
on_lull "$fpm" -R -F -y "$PWD/fpm.conf"
until_it there python3 -c "import socket; socket.create_connection(('$own', 9000), 1)"
there python3 client.py "$own" >client 2>&1 &
client=$!
answered() { [ "$(cat done 2>/dev/null || echo 0)" -gt "$1" ]; }
until_it answered 50
for generation in 1 2 3; do
    former=$(pgrep -P "$(cat pid)")
    kill -USR2 "$(cat pid)"
    until_it eval '[ "$(grep -c "ready to handle connections" errors)" -gt '"$generation"' ]'
    until_it answered $(($(cat done) + 100))
    echo "$former" | grep -qx "$(cat who)" && fail "a process of the former generation answers"
    kill -0 "$client" || fail "the client: $(cat client)"
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
stop
echo done
