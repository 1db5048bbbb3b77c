"""A service that knows nothing of lull but the socket that it reports its latencies to: reporting.py ADDRESS SOCKET

Each byte that it gets is a request, which it sends back, and which it says to have taken a millisecond for.
"""
import socket, statistics, sys

report = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def tell(seconds):
    cuts = statistics.quantiles(seconds, n=100)
    text = f"answers={len(seconds)} p50={cuts[49] * 1e6:.0f}us p99={cuts[98] * 1e6:.0f}us"
    try:
        report.sendto(text.encode(), sys.argv[2])
    except OSError:
        pass  # Nobody listens at the moment.


listener = socket.create_server((sys.argv[1], 7000))
while True:
    connection, _ = listener.accept()
    took = []
    while request := connection.recv(1):
        connection.sendall(request)
        took.append(0.001)
        if len(took) == 200:
            tell(took)
            took.clear()
