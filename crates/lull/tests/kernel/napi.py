"""Reads and sets NAPI settings by raw netlink messages: a second opinion, with no code of lull's in it.

napi.py get DEV              prints a line for each NAPI, oldest first: id defer gro_ns suspend_ns threaded pid
napi.py set ID KEY=VALUE ..  keys: defer, gro, suspend, threaded
"""
import socket
import struct
import sys

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 1, 4, 0x300
KEYS = {"defer": 5, "gro": 6, "suspend": 7, "threaded": 8}


def attribute(kind, content):
    length = 4 + len(content)
    return struct.pack("HH", length, kind) + content + b"\0" * (-length % 4)


def attributes(buffer):
    found, at = {}, 0
    while at + 4 <= len(buffer):
        length, kind = struct.unpack_from("HH", buffer, at)
        found[kind & 0x3FFF] = buffer[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def ask(netlink, family, flags, command, content):
    genl = struct.pack("BBH", command, 1, 0) + content
    netlink.send(struct.pack("IHHII", 16 + len(genl), family, flags | NLM_F_REQUEST, 1, 0) + genl)
    replies = []
    while True:
        data = netlink.recv(65536)
        at = 0
        while at < len(data):
            length, kind = struct.unpack_from("IH", data, at)
            body = data[at + 16 : at + length]
            at += (length + 3) & ~3
            if kind == 3:
                return replies
            if kind == 2:
                error = struct.unpack_from("i", body)[0]
                if error:
                    sys.exit(f"errno {-error}")
                return replies
            replies.append(attributes(body[4:]))


def number(content):
    return int.from_bytes(content, sys.byteorder)


netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
netlink.bind((0, 0))
family = number(ask(netlink, 16, NLM_F_ACK, 3, attribute(2, b"netdev\0"))[0][1])
if sys.argv[1] == "get":
    ifindex = socket.if_nametoindex(sys.argv[2])
    napis = ask(netlink, family, NLM_F_DUMP, 11, attribute(1, struct.pack("I", ifindex)))
    for napi in sorted(napis, key=lambda napi: number(napi[2])):
        print(*(number(napi.get(key, b"")) for key in (2, 5, 6, 7, 8, 4)))
else:
    content = attribute(2, struct.pack("I", int(sys.argv[2])))
    for pair in sys.argv[3:]:
        key, value = pair.split("=")
        content += attribute(KEYS[key], struct.pack("I", int(value)))
    ask(netlink, family, NLM_F_ACK, 14, content)
