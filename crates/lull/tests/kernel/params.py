"""Prints `FD USECS BUDGET PREFER` for every epoll context of a process: params.py PID.

Reads through duplicates of its own making: pidfd_open, pidfd_getfd, EPIOCGPARAMS."""
import ctypes
import fcntl
import os
import struct
import sys

PIDFD_OPEN, PIDFD_GETFD, EPIOCGPARAMS = 434, 438, 0x80088A02
syscall = ctypes.CDLL(None, use_errno=True).syscall
pid = int(sys.argv[1])
pidfd = syscall(PIDFD_OPEN, pid, 0)
if pidfd < 0:
    sys.exit("pidfd_open: " + os.strerror(ctypes.get_errno()))
for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
    try:
        if os.readlink(f"/proc/{pid}/fd/{fd}") != "anon_inode:[eventpoll]":
            continue
    # The file was closed meanwhile, or its path is too long for an answer.
    except OSError:
        continue
    duplicate = syscall(PIDFD_GETFD, pidfd, fd, 0)
    if duplicate >= 0:
        usecs, budget, prefer, _ = struct.unpack("IHBB", fcntl.ioctl(duplicate, EPIOCGPARAMS, bytes(8)))
        print(fd, usecs, budget, prefer)
        os.close(duplicate)
