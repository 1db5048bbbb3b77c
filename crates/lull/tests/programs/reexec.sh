# A server that never asked for a connection executes itself anew and leaves its listener open, as php-fpm and uWSGI do to reload: that
# the listener is not lull's any more is said.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, socket, sys

if len(sys.argv) > 2:
    print("executed with the number", os.fstat(int(sys.argv[2])).st_ino != 0, flush=True)
    sys.exit()
listener = socket.create_server((sys.argv[1], 7777))
listener.set_inheritable(True)
try:
    os.execv("/no/such/program", ["none"])
except FileNotFoundError:
    print("not executed", flush=True)
os.execvp("python3", ["python3", "server.py", sys.argv[1], str(listener.fileno())])
END
on_lull python3 server.py "$own"
wait "$launcher" || fail "it failed"
[ "$(grep -c "which listens at $own:7777, cannot stay lull's over the exec of .*python3" said)" = 1 ] || fail "nothing was said"
grep -q 'executed with the number True' said || fail "it was not executed"
grep -q "exec of /no" said && fail "something was said of a program that is not there"
echo done
