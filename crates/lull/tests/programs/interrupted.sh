# A child of a process with queues connects from lull's address to a peer that does not answer, and is signalled and
# cancelled (interrupted.c): SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

cc -pthread -o interrupted "$(dirname "$0")/interrupted.c" || fail "interrupted.c does not compile"
cat >full.py <<'END'
import socket, time

def bound():
    while True:
        try:
            listener = socket.socket()
            listener.bind(("10.0.0.1", 5001))
            return listener
        except OSError:
            time.sleep(0.1)

listener = bound()
# With one connection that nobody accepts the listener takes no other (`sk_acceptq_is_full`).
listener.listen(0)
waits = socket.create_connection(("10.0.0.1", 5001))
open("full", "w").close()
time.sleep(100_000)
END
python3 full.py &
full=$!
cat >begins <<END
while [ ! -e full ]; do sleep 0.01; done
exec ./interrupted $own 10.0.0.1 5001
END
on_lull bash begins
until_it eval '[ -e ended ] || ! kill -0 '"$launcher"' || grep -q ended said'
wait "$launcher" || fail "a call went wrong"
kill "$full"
grep -q ended said || fail "it did not end"
echo done
