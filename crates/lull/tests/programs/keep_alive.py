"""Eight connections to a server of HTTP that is reloaded; it goes on until there is a file `stop`, and says in `done` how far."""
import os, socket, sys, threading
# Each thread keeps a connection for as long as the server does; a server that ends a connection says so in its last
# answer.
failed, done, stop = [], [0] * 8, threading.Event()
def client(nth):
    connection = None
    while not stop.is_set():
        try:
            if connection is None:
                connection = socket.create_connection((sys.argv[1], 80), 60)
                buffer = b""
                fresh = True
            connection.sendall(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"\n"):
                part = connection.recv(4096)
                if not part:
                    break
                answer += part
            if not answer and not fresh:
                # An idle connection was closed while the request was on its way; by HTTP the client asks again.
                connection.close()
                connection = None
                continue
            if not answer.startswith(b"HTTP/1.1 200"):
                raise OSError(f"answer {answer!r}")
            fresh = False
            done[nth] += 1
            if b"Connection: close" in answer:
                connection.close()
                connection = None
        except OSError as error:
            if isinstance(error, (ConnectionResetError, BrokenPipeError)) and not fresh:
                connection.close()
                connection = None
                again.append(nth)
                continue
            failed.append(f"thread {nth} after {done[nth]}: {error!r}")
            return
again = []
threads = [threading.Thread(target=client, args=(nth,)) for nth in range(8)]
[thread.start() for thread in threads]
while not os.path.exists("stop") and not failed:
    open("done.new", "w").write(str(sum(done)))
    os.rename("done.new", "done")
    stop.wait(0.05)
stop.set()
[thread.join() for thread in threads]
print(sum(done), "requests,", len(again), "asked again")
sys.exit("\n".join(failed) or 0)
