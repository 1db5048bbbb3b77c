# A server passes its UDP socket to a program that it executed, over a Unix socket (SCM_RIGHTS), and ends: SCRIPT LULL
# MODE.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import os, socket, subprocess, sys

mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
worker = subprocess.Popen(["python3", "worker.py", sys.argv[1], str(theirs.fileno())], pass_fds=[theirs.fileno()])
theirs.close()
serves = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
serves.bind((sys.argv[1], 7777))
socket.send_fds(mine, [b"u"], [serves.fileno()])
serves.close()
assert mine.recv(1) == b"t"
print("the server ends", flush=True)
END
cat >worker.py <<'END'
import socket, sys

channel = socket.socket(fileno=int(sys.argv[2]))
said, numbers, flags, _ = socket.recv_fds(channel, 1, 4)
assert said == b"u" and len(numbers) == 1 and not flags & socket.MSG_CTRUNC, (said, numbers)
serves = socket.socket(fileno=numbers[0])
assert (serves.family, serves.type, serves.proto) == (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP), serves
assert serves.getsockname() == (sys.argv[1], 7777), serves
channel.send(b"t")
while (asked := serves.recvfrom(200))[0] != b"end":
    serves.sendto(*asked)
serves.sendto(*asked)
END
cat >client.py <<'END'
import socket, sys

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
    asks.connect((sys.argv[1], 7777))
    asks.settimeout(60)
    for said in [*(b"%d" % nth for nth in range(3000)), b"end"]:
        asks.send(said)
        assert asks.recv(200) == said, said
print("answered to the end")
END
on_lull python3 server.py "$own"
until_it grep -q "the server ends" said
timeout 240 python3 client.py "$own" || fail "the socket ended with the server"
wait "$launcher" || fail "the server's end: $?"
grep -q Traceback said && fail "a process failed"
echo done
