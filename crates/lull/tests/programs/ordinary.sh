# Programs that use none of lull's addresses do not notice the library: they are run with it and without it, and print
# the same.
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
signal.signal(signal.SIGALRM, lambda *_: None)
# The timer repeats, because the first signal may come before the pause.
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
print("alarm")
'
compare git -C "$(dirname "$0")" log --oneline -3
compare sh -c 'ls / | sort | head -5; dd if=/dev/zero bs=1000 count=100 2>/dev/null | wc -c'

# Runs a program only if the machine has it.
if_there() {
    command -v "$1" >/dev/null || { echo "SKIP: $1 is not installed"; return; }
    compare "$@"
}

mkdir -p files/deep
seq 2000 >files/numbers
seq 500 >files/deep/others
cat >answer.c <<'C'
#include <stdio.h>
int main(void) { printf("%d\n", 6 * 7); return 7; }
C
if_there perl -MIO::Socket::INET -e '
    my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
    my $client = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $server->sockport) or die;
    my $accepted = $server->accept;
    print $client "hello\n"; $client->flush;
    print scalar <$accepted>; exit 3'
if_there tar -C files --sort=name --mtime=@0 -cf - .
if_there find files -type f
if_there xargs -a files/deep/others -n 100 -P 1 echo
if_there awk '{ sum += $1 } END { print sum }' files/numbers
if_there sort -rn --parallel=2 files/numbers
if_there xz -kc files/numbers
if_there gzip -nc files/numbers
if_there sqlite3 :memory: 'create table t(n); insert into t values (1), (2); select sum(n) from t; select nonsense;'
if_there openssl sha256 files/numbers
ssh-keygen -q -t ed25519 -N '' -C test -f key 2>/dev/null
if_there ssh-keygen -lf key.pub
if_there gcc -O1 -Wall -c -o - -x c answer.c -S
gcc -o answer answer.c 2>/dev/null && compare ./answer
if_there make -s -f - --eval='all: ; @echo made; exit 2'
if_there node -e '
    const net = require("net");
    const server = net.createServer(socket => socket.pipe(socket)).listen(0, "127.0.0.1", () => {
        const client = net.connect(server.address().port, "127.0.0.1", () => client.end("hello"));
        client.on("data", data => console.log(String(data))).on("close", () => server.close());
    });'
if_there java -version
if_there curl -s --max-time 5 http://127.0.0.1:1/
if_there apt-get -s --version
echo done
