"""A program that waits for datagrams in poll: poll.py ADDRESS PORT. Ends with SIGTERM."""
import select
import socket
import sys

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], int(sys.argv[2])))
poll = select.poll()
poll.register(udp, select.POLLIN)
while True:
    for _ in poll.poll():
        udp.recv(2048)
