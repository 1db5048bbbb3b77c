"""A program with one UDP socket on an epoll that prefers busy polling: epoll.py ADDRESS PORT USECS BUDGET PREFER.

Prints "ready" when it waits and "heard" for each datagram, and ends with its standard input."""
import fcntl
import select
import socket
import struct
import sys

address, port, usecs, budget, prefer = sys.argv[1], *map(int, sys.argv[2:])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((address, port))
epoll = select.epoll()
fcntl.ioctl(epoll.fileno(), 0x40088A01, struct.pack("IHBB", usecs, budget, prefer, 0))
epoll.register(udp, select.EPOLLIN)
epoll.register(sys.stdin, select.EPOLLIN)
print("ready", flush=True)
while True:
    for fd, _ in epoll.poll():
        if fd == udp.fileno():
            udp.recv(2048)
            print("heard", flush=True)
        elif not sys.stdin.readline():
            sys.exit()
