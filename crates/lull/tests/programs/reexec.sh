# A server leaves its listeners open to a program that it executes, which goes on to serve: in its own place ("place",
# as php-fpm and uWSGI reload), in a child ("child", "vfork", "spawn": as nginx is upgraded), by way of a program
# without a library ("static"), and with an environment that has nothing of lull's ("emptied"). $3: how, and whether the
# server has had connections before ("serving") or not.
. "$(dirname "$0")/harness.sh"
read -r way before <<<"$3"

cat >hop.c <<'END'
#include <unistd.h>
int main(int count, char **words) { return execv(words[1], words + 1); }
END
[ "$way" != static ] || cc -static -o hop hop.c || fail "hop.c does not compile"

cat >server.py <<'END'
import ctypes, os, socket, subprocess, sys

way, before, address = sys.argv[1:4]
words = [sys.executable, "server.py", way, before, address]
KEEPALIVE = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)
PEER = "peer"


def answer(listener, text):
    connection, _ = listener.accept()
    assert connection.getsockopt(*KEEPALIVE) == 1, "the option is lost"
    connection.sendall(text.encode())
    connection.close()


def listening(numbers):
    listeners = [socket.socket(fileno=int(number)) for number in numbers]
    for listener, port in zip(listeners, (7777, 7778)):
        assert listener.getsockname()[1] == port, listener
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1, listener
    # This listener was made non-blocking after it began to listen.
    assert not os.get_blocking(listeners[0].fileno()), "it blocks"
    assert os.get_blocking(listeners[1].fileno()), "it does not block"
    os.set_blocking(listeners[0].fileno(), True)
    return listeners


if len(sys.argv) > 4:
    generation, numbers = int(sys.argv[4]), sys.argv[5:7]
    listeners = listening(numbers)
    # A number that was closed on the way is another file's.
    answer(listeners[0], f"first {generation}")
    answer(listeners[1], f"second {generation}")
    if generation == 2:
        sys.exit()
    os.set_blocking(listeners[0].fileno(), False)
else:
    generation = 0
    listeners = [socket.create_server((address, 7777)), socket.create_server(("0.0.0.0", 7778))]
    for listener in listeners:
        listener.setsockopt(*KEEPALIVE, 1)
    if before == "serving":
        answer(listeners[0], "first 0")
        answer(listeners[1], "second 0")
    os.set_blocking(listeners[0].fileno(), False)
    closed = socket.create_server((address, 7779))

for listener in listeners:
    listener.set_inheritable(True)
words += [str(generation + 1)] + [str(listener.fileno()) for listener in listeners]
try:
    os.execv("/no/such/program", ["none"])
except FileNotFoundError:
    pass
if way == "place":
    os.execv(sys.executable, words)
elif way == "emptied":
    os.execve(sys.executable, words, {"LD_PRELOAD": ""} if generation else {})
elif way == "static":
    os.execv("./hop", ["hop"] + words)
elif way == "child":
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, words)
elif way == "vfork":
    child = subprocess.Popen(words, pass_fds=[listener.fileno() for listener in listeners]).pid
elif way == "spawn":
    child = os.posix_spawn(sys.executable, words, os.environ)
# The process that made the listeners may close them, or end.
[listener.close() for listener in listeners]
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
END
# Each answer is given once, and a client that gave up would have missed it.
ask() {
    until_it eval "there python3 -c '
import socket, sys
connection = socket.create_connection((\"$own\", $2), 60)
text = connection.makefile().read()
print(text, file=sys.stderr)
sys.exit(text != \"$1\")' 2>answer"
}
# If the former process still has a queue, the next takes another.
case $way in child | vfork | spawn) on_nic tap 3 ;; esac
on_lull python3 server.py "$way" "$before" "$own"
[ "$before" = serving ] && ask "first 0" 7777 && ask "second 0" 7778
for generation in 1 2; do
    ask "first $generation" 7777
    ask "second $generation" 7778
done
wait "$launcher" || fail "it failed"
grep -q 'cannot' said && fail "something is said to be lost"
echo done
