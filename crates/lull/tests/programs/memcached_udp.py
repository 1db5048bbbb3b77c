"""A client of memcached over UDP: COUNT requests over each of SOCKETS sockets by turns, each answered before the next."""
import socket, struct, sys

host, count, sockets = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(sockets)]
for client in clients:
    client.settimeout(60)
    client.connect((host, 11211))


def ask(client, number, text):
    client.send(struct.pack(">HHHH", number, 0, 1, 0) + text)
    answer = client.recv(65536)
    asked, part, parts, _ = struct.unpack(">HHHH", answer[:8])
    assert (asked, part, parts) == (number, 0, 1), (asked, part, parts)
    return answer[8:]


for number in range(count):
    client = clients[number % sockets]
    key, value = b"key%d" % (number % 100), b"v" * (number % 1000)
    assert ask(client, number & 0xFFFF, b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value)) == b"STORED\r\n"
    got = ask(clients[(number + 1) % sockets], number & 0xFFFF, b"get %s\r\n" % key)
    assert got == b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value), got
print(count, "requests answered")
