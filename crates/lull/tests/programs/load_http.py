"""A client of an HTTP server on HOST and PORT, in asyncio: COUNT requests over each of CONNECTIONS kept-alive connections
at once, each answered with the path that it asked for."""
import asyncio, sys

host, port, count, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


async def client(nth):
    reader, writer = await asyncio.open_connection(host, port)
    for number in range(count):
        path = f"/{nth}/{number}/" + "x" * (number % 3000)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: lull\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        assert await reader.readexactly(length) == path.encode()
    writer.close()
    await writer.wait_closed()


async def main():
    await asyncio.wait_for(asyncio.gather(*(client(nth) for nth in range(connections))), 300)


asyncio.run(main())
print(count * connections, "requests answered")
