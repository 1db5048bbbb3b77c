# A process without a queue looks whose end it has to wait for, and just then the process with the queue ends: the first
# one takes the queue.
. "$(dirname "$0")/harness.sh"
cat >server.py <<'END'
import os, select, socket, sys, time

def serves():
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    open(f"{os.getpid()} asks", "w").close()
    while poll.poll():
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"%d" % os.getpid())

listener = socket.create_server((sys.argv[1], 7777))
if (owner := os.fork()) == 0:
    serves()
if (other := os.fork()) == 0:
    while not os.path.exists("other is to ask"):
        time.sleep(0.005)
    serves()
open("processes", "w").write(f"{owner} {other}")
os.waitpid(owner, 0)
open("owner has ended", "w").close()
os.waitpid(other, 0)
END
on_lull python3 server.py "$own"
until_it [ -s processes ]
read -r owner other <processes
until_it [ -e "$owner asks" ]
cat >client.py <<'END'
import socket, sys
with socket.create_connection((sys.argv[1], 7777), 60) as connection:
    assert connection.recv(100).decode() == sys.argv[2]
END
# From here on the kernel knows the neighbour, which it would give up if it did not answer within three seconds.
until_it there python3 client.py "$own" "$owner"
strace -qq -o traced -p "$other" -e trace=pidfd_open -e inject=pidfd_open:delay_enter=3000000 &
is_traced() { grep -q '^TracerPid:[[:space:]]*[1-9]' "/proc/$other/status"; }
until_it is_traced
touch "other is to ask"
# The process stops at the traced call.
is_kept() { grep -q '^State:[[:space:]]*t' "/proc/$other/status"; }
until_it is_kept
kill -KILL "$owner"
until_it [ -e "owner has ended" ]
there timeout 120 python3 client.py "$own" "$other" || fail "the other one has not taken the queue"
grep -q 'pidfd_open.*ESRCH' traced || echo "the process looked before the other one had ended"
kill -KILL "$other"
wait "$launcher"
echo done
