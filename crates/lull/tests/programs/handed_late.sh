# A process that closes its listener hands the connections that nobody has accepted to another one, which is stopped,
# and then killed. The process that listens next ("next"), or one that has listened all the time and takes no other
# queue ("another"), gets the connection, with the data that its peer has sent and will not send again: SCRIPT LULL MODE
# WHO.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, select, signal, socket, sys

def ask():
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.poll(0)

def closes(commands, said):
    ask()
    said.write(b"1")
    commands.read(1)
    listener.close()
    said.write(b"1")
    commands.read(1)

def is_stopped(commands, said):
    ask()
    said.write(b"1")
    commands.read(1)

def serves_later(commands, said):
    ask()
    said.write(b"1")
    commands.read(1)
    serves(commands, said)

def serves(commands, said):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100))
    connection.close()
    said.write(b"1")

class Child:
    def __init__(self, run):
        commands, self.says = os.pipe()
        self.hears, said = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            run(open(commands, "rb", 0), open(said, "wb", 0))
            # The first process passes on what another has accepted in its place, and stays for that.
            sys.exit()
        os.close(said)
        self.waits()
    def waits(self):
        assert os.read(self.hears, 1) == b"1"
    def goes_on(self):
        os.write(self.says, b"1")

listener = socket.create_server((sys.argv[1], 7005))
first = Child(closes)
open("listens", "w").close()
while not os.path.exists("acknowledged"):
    signal.sigtimedwait([], 0.01)
another = Child(serves_later) if sys.argv[2] == "another" else None
second = Child(is_stopped)
os.kill(second.number, signal.SIGSTOP)
os.waitpid(second.number, os.WUNTRACED)
first.goes_on()
first.waits()
os.kill(second.number, signal.SIGKILL)
os.waitpid(second.number, 0)
if another:
    another.goes_on()
    another.waits()
else:
    Child(serves)
first.goes_on()
END
cat >client.py <<'END'
import fcntl, socket, struct, sys, termios, time

connection = socket.create_connection((sys.argv[1], 7005), 60)
connection.sendall(b"request")
while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
    time.sleep(0.01)
open("acknowledged", "w").close()
assert connection.recv(100) == b"request"
END
options=(--queues 3)
on_lull python3 server.py "$own" "$3"
until_it test -e listens
timeout 120 python3 client.py "$own" >client 2>&1 || fail "the client: $(cat client)"
wait "$launcher" || fail "the server failed"
echo done
