"""The client of calls.c: ADDRESS STEP..., where a step is a connection's letter and what is done with it."""
import socket, sys, time

address, *steps = sys.argv[1:]
connections = {}


def connect():
    for _ in range(600):
        try:
            return socket.create_connection((address, 7777), 60)
        except OSError:
            time.sleep(0.1)
    sys.exit("nobody listens")


for step in steps:
    name, what = step.split(":")
    if what == "open":
        connections[name] = connect()
        continue
    if what == "again":
        # A client that connects to a listener that is about to be closed is reset.
        for _ in range(600):
            connections[name] = connect()
            try:
                connections[name].sendall(b"hello")
                if connections[name].recv(5, socket.MSG_WAITALL) == b"hello":
                    break
            except ConnectionError:
                time.sleep(0.1)
        else:
            sys.exit("nobody answers")
        continue
    connection = connections[name]
    if what == "ask":
        connection.sendall(b"hello")
        got = connection.recv(5, socket.MSG_WAITALL)
        assert got == b"hello", (step, got)
    elif what == "end":
        got = connection.recv(100)
        assert got == b"", (step, got)
    elif what == "bye":
        got = connection.recv(3, socket.MSG_WAITALL) + connection.recv(1)
        assert got == b"bye", (step, got)
    elif what == "reset":
        try:
            got = connection.recv(1)
        except ConnectionResetError:
            continue
        sys.exit(f"{step}: {got} and no reset")
    else:
        sys.exit(f"no such step: {step}")
print("answered")
