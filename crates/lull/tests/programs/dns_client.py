"""Asks the name server HOST for the address of lull.test, COUNT times over UDP, and a tenth as often over TCP."""
import socket, struct, sys

host, count = sys.argv[1], int(sys.argv[2])
WANTED = socket.inet_aton("192.0.2.77")


def question(number):
    name = b"".join(bytes([len(part)]) + part for part in (b"lull", b"test")) + b"\0"
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)


udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(60 if count > 1 else 1)
for number in range(count):
    udp.sendto(question(number), (host, 5353))
    answer, server = udp.recvfrom(1500)
    assert server == (host, 5353)
    assert struct.unpack(">H", answer[:2])[0] == number and answer.endswith(WANTED), answer
for number in range(count // 10):
    with socket.create_connection((host, 5353), 60) as tcp:
        asked = question(number)
        tcp.sendall(struct.pack(">H", len(asked)) + asked)
        answer = bytearray()
        while len(answer) < 2 or len(answer) < 2 + struct.unpack(">H", answer[:2])[0]:
            more = tcp.recv(1500)
            assert more, answer
            answer += more
        assert struct.unpack(">H", answer[2:4])[0] == number and answer.endswith(WANTED), answer
print(count, "names found")
