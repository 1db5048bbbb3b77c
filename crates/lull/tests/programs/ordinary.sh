# Programs that use none of lull's addresses do not notice the library: they run beside the same program without it, and say the
# same.
. "$(dirname "$0")/harness.sh"

compare() {
    "$@" >without 2>&1
    expected=$?
    "$lull" run --quiet --nic tap:lull0 --addr "$own/24" --mode "$mode" -- "$@" >with 2>&1
    [ $? = "$expected" ] || fail "it ends otherwise: $* : $(cat with)"
    cmp without with >/dev/null || fail "it says something else: $* : $(diff without with)"
}

echo >said
compare bash -c 'for i in $(seq 50); do echo "$i" | sed s/1/one/; done; exec 7<"$0"; read -r line <&7; echo "$line"' "$0"
compare python3 -c '
import asyncio, os, select, signal, socket, subprocess, sys, tempfile
async def main():
    async def answer(reader, writer):
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello")
    print(await reader.read())
asyncio.run(main())
a, b = socket.socketpair()
a.sendmsg([b"ab", b"c"])
print(b.recv(9), select.select([a, b], [a], [], 0)[1] == [a])
print(subprocess.run(["echo", "child"], capture_output=True).stdout, os.fork() and os.wait()[1])
with tempfile.TemporaryFile() as file:
    file.write(b"x" * 100000)
    file.seek(0)
    print(len(file.read()), os.sendfile(a.fileno(), file.fileno(), 0, 1000))
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
'
compare git -C "$(dirname "$0")" log --oneline -3
compare sh -c 'ls / | sort | head -5; dd if=/dev/zero bs=1000 count=100 2>/dev/null | wc -c'
echo done
