# socat has a child for each UDP client, which connects the socket that it inherits: SCRIPT LULL MODE. Clients are
# lull's and the kernel's. The child passes data on to a program, or executes one with the socket as its input and
# output.
. "$(dirname "$0")/harness.sh"

cat >client.py <<'END'
import socket, sys, threading

def ask(nth):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((sys.argv[1], int(sys.argv[2])))
        asking.settimeout(1)
        for size in [1, 100, 1400] * 3:
            question = b"%d " % nth + b"x" * size
            # The first datagrams may find no server yet, any datagram may be lost, and a datagram from another client
            # that came before the child connected goes to that child.
            for attempt in range(120):
                try:
                    asking.send(question)
                    while asking.recv(2000) != question:
                        pass
                    break
                except (TimeoutError, ConnectionRefusedError):
                    pass
            else:
                raise SystemExit(f"client {nth} has no answer to {size} bytes")
    done.append(nth)

done = []
ask(-1)
threads = [threading.Thread(target=ask, args=(nth,)) for nth in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 9, done
print(len(done), "clients answered")
END
cat >names.py <<'END'
import os, socket

# The socket that this program was executed with has the names that socat's child has given it.
with socket.socket(fileno=0) as connected:
    assert connected.type == socket.SOCK_DGRAM, connected
    peer, own = connected.getpeername(), connected.getsockname()
    assert peer[0] != "0.0.0.0" and peer[1] != 0 and own[0] != "0.0.0.0" and own[1] == 7778, (own, peer)
    while True:
        try:
            question = connected.recv(2000)
        except OSError:
            # socat has ended, and its network with it.
            break
        os.write(1, question)
END
# The time after which a child that nobody asks ends.
idle=(-T 10)
# Until there is the NIC, a client has no route to its address.
reachable() { ip route get "$own"; }
on_lull socat "${idle[@]}" UDP-LISTEN:7777,fork EXEC:cat
until_it reachable
timeout 240 python3 client.py "$own" 7777 || fail "no answer"
timeout 240 python3 client.py 127.0.0.1 7777 || fail "no answer to the kernel's world"
# A child that has ended leaves no socket behind.
gone() { "$lull" ss >sockets && ! grep -q ESTAB sockets; }
until_it gone
stop
on_lull socat UDP-LISTEN:7778,fork "EXEC:python3 names.py,nofork"
until_it reachable
timeout 240 python3 client.py "$own" 7778 || fail "no answer of a program that was executed"
timeout 240 python3 client.py 127.0.0.1 7778 || fail "no answer of a program that was executed to the kernel's world"
stop
grep -q Traceback said && fail "a program failed"
echo done
