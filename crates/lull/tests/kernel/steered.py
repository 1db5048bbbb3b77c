"""Workers that listen on one address, and a client of theirs.

serve IP PORT WORKERS: each worker answers a connection with its number and the NAPI that brought it.
ask IP PORT COUNT: prints the answers to so many connections, all of which stay open meanwhile.
"""
import os
import signal
import socket
import sys

SO_INCOMING_NAPI_ID = 56

role, ip, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role == "serve":
    listeners = []
    for _ in range(count):
        listeners.append(socket.socket())
        listeners[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listeners[-1].bind((ip, port))
        listeners[-1].listen(128)
    number, children = 0, []
    for worker in range(1, count):
        child = os.fork()
        if child == 0:
            number, children = worker, []
            break
        children.append(child)

    def end(*_):
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    kept = []
    while True:
        kept.append(listeners[number].accept()[0])
        kept[-1].recv(1)
        kept[-1].send(b"%d %d\n" % (number, kept[-1].getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID)))
asking = [socket.create_connection((ip, port)) for _ in range(count)]
for one in asking:
    one.send(b"?")
    print(one.makefile().readline().strip())
