"""Opens connections to a memcached, asks over each, and prints its statistics: connections.py ADDRESS PORT COUNT.

Ends with its standard input."""
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connections = [socket.create_connection((address, port), timeout=60) for _ in range(count)]


def ask(connection, request, end):
    connection.sendall(request)
    answer = b""
    while not answer.endswith(end):
        got = connection.recv(65536)
        if not got:
            sys.exit("the server has closed a connection")
        answer += got
    return answer.decode()


for _ in range(10):
    for connection in connections:
        ask(connection, b"get nothing\r\n", b"END\r\n")
for line in ask(connections[0], b"stats\r\n", b"END\r\n").splitlines():
    print(line)
sys.stdout.flush()
sys.stdin.read()
