"""A server on a wildcard that sends back every datagram, in a loop of asyncio."""
import asyncio, signal, sys


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        self.transport.sendto(data, peer)


async def main():
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await loop.create_datagram_endpoint(Echo, local_addr=("0.0.0.0", int(sys.argv[1])))
    await stopped.wait()


asyncio.run(main())
