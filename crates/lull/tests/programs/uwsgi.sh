# Unmodified uWSGI is told to reload (HUP) under load: its workers end, and its first process executes itself again,
# with the listener open. Connections that no worker had accepted wait for the new workers. A worker ends in the handler
# of its signal, so a connection that it has just accepted is reset, as by Linux's kernel; every other request is
# answered.
. "$(dirname "$0")/harness.sh"

cat >app.py <<'END'
import os


def application(environment, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()}\n".encode()]
END
on_nic tap 4
on_lull uwsgi --plugin python3 --http-socket "$own:80" --wsgi-file "$PWD/app.py" --master --processes 2 --pidfile "$PWD/pid" \
    --disable-logging --die-on-term
until_it there curl -sf "http://$own/"
cat >client.py <<'END'
import os, sys, urllib.request

count, again, answers = 0, 0, True
while not os.path.exists("stop"):
    try:
        who = urllib.request.urlopen(f"http://{sys.argv[1]}/", timeout=60).read().decode()
    except OSError as error:
        # A worker had accepted the connection and not read from it when it ended; this may happen until the next worker
        # begins. If the request is just being sent, the error is another one.
        if not isinstance(getattr(error, "reason", error), (ConnectionResetError, BrokenPipeError)):
            raise
        again += answers
        answers = False
        continue
    count, answers = count + 1, True
    for name, text in (("who", who), ("done", str(count))):
        with open(name + ".new", "w") as file:
            file.write(text)
        os.rename(name + ".new", name)
print(count, "requests,", again, "asked again")
# It may happen once in each reload, because the client has one connection at a time.
sys.exit(again > 3)
END
there python3 client.py "$own" >client 2>&1 &
client=$!
answered() { [ "$(cat done 2>/dev/null || echo 0)" -gt "$1" ]; }
until_it answered 50
for generation in 1 2 3; do
    former=$(pgrep -P "$(cat pid)")
    kill -HUP "$(cat pid)"
    until_it eval '[ "$(grep -c "spawned uWSGI worker 2" said)" -gt '"$generation"' ]'
    until_it answered $(($(cat done) + 100))
    echo "$former" | grep -qx "$(cat who)" && fail "a process of the former generation answers"
    kill -0 "$client" || fail "the client: $(cat client)"
done
touch stop
wait "$client" || fail "the client: $(cat client)"
cat client
stop
echo done
