# A server forks while another of its threads starts the engine, and ends: its child goes on, and has an engine of its
# own.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, socket, subprocess, sys, threading, time

# The last step of starting an engine reads the program's name, which blocks here.
os.mkfifo("name")
subprocess.run(["mount", "--bind", "name", f"/proc/{os.getpid()}/comm"], check=True)
listener = socket.create_server((sys.argv[1], 7777))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
threading.Thread(target=udp.bind, args=((sys.argv[1], 7777),), daemon=True).start()
while True:
    try:
        # The thread that starts the engine has opened it for reading.
        os.open("name", os.O_WRONLY | os.O_NONBLOCK)
        break
    except OSError:
        time.sleep(0.01)
is_over, goes_on = os.pipe()
if os.fork():
    # The child notices the end of its parent.
    os._exit(0)
os.close(goes_on)
os.read(is_over, 1)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"alone")
    connection.close()
END
cat >client.py <<'END'
import socket, sys

# A connection that is made just as the first process ends may be lost.
while True:
    try:
        with socket.create_connection((sys.argv[1], 7777), 5) as connection:
            if connection.recv(100) == b"alone":
                break
    except OSError:
        pass
END
on_lull python3 server.py "$own"
timeout 240 python3 client.py "$own" || fail "the child does not serve"
stop
grep -q Traceback said && fail "the server failed"
echo done
