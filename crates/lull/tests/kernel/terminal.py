"""Runs a program under `lull run` on a terminal, presses Ctrl-C, and prints how many SIGINTs it got: terminal.py LULL."""
import os
import pty
import sys

PROGRAM = """
import signal, sys
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("ready", flush=True)
while not got:
    signal.sigtimedwait([], 0.02)
# A second signal would have come by now: it is sent as soon as lull has got its own.
for _ in range(50):
    signal.sigtimedwait([], 0.02)
print("got", len(got), flush=True)
"""

pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], ["lull", "run", "--mode", "suspend20", "-q", "--", "python3", "-c", PROGRAM])
said = b""


def read_until(word):
    global said
    while word not in said:
        said += os.read(terminal, 4096)


read_until(b"ready")
os.write(terminal, b"\x03")
read_until(b"got ")
# The number may come in a later read.
said = said[said.index(b"got "):]
read_until(b"\n")
print(said.split(b"got ")[1].split()[0].decode())
os.waitpid(pid, 0)
