"""Sends COUNT datagrams of many lengths, some of which take many fragments, to HOST and PORT, each after the answer to the
last: by calls that block, with a peer and without."""
import socket, sys

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
free, connected = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
for client in free, connected:
    client.settimeout(60 if count > 1 else 1)
connected.connect((host, port))
for number in range(count):
    length = number % 1400 if number % 10 else number * 37 % 65_000
    data = b"%d:" % number + b"x" * length
    free.sendto(data, (host, port))
    assert free.recvfrom(65_536) == (data, (host, port))
    connected.send(data)
    assert connected.recv(65_536) == data
print(count, "datagrams came back")
