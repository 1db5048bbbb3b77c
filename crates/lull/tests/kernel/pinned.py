# pinned.py DIRECTORY: loads programs of extended BPF and pins them in a BPF file system: "first" and "second" return 0
# and 1, "xdp" is a program for devices, and "map" is a map. Then it prints "pinned".
import ctypes
import os
import struct
import sys

NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280}[os.uname().machine]
MAP_CREATE, PROG_LOAD, OBJ_PIN = 0, 5, 6
SOCKET_FILTER, XDP, ARRAY = 1, 6, 2
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    done = libc.syscall(NUMBER, command, ctypes.byref(buffer), len(attributes))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}")
    return done


def load(kind, result):
    code = ctypes.create_string_buffer(struct.pack("=BBhi", 0xB7, 0, 0, result) + struct.pack("=BBhi", 0x95, 0, 0, 0), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    return bpf(PROG_LOAD, struct.pack("=IIQQIIQII", kind, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0))


def pin(fd, name):
    path = ctypes.create_string_buffer(os.path.join(sys.argv[1], name).encode())
    bpf(OBJ_PIN, struct.pack("=QII", ctypes.addressof(path), fd, 0))


pin(load(SOCKET_FILTER, 0), "first")
pin(load(SOCKET_FILTER, 1), "second")
pin(load(XDP, 2), "xdp")
pin(bpf(MAP_CREATE, struct.pack("=IIII", ARRAY, 4, 4, 1)), "map")
print("pinned", flush=True)
