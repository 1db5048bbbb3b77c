"""An HTTP server in asyncio that answers each request with the path that it asks for."""
import asyncio, signal, sys


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(path) + path)
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    await stopped.wait()
    print("ended by SIGTERM")


asyncio.run(main())
