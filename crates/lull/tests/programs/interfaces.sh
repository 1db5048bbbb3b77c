# A program that lists its interfaces finds lull's addresses on lull's device, each once, beside those of the kernel;
# and a server that listens on each address that it finds is reached on lull and on the kernel.
. "$(dirname "$0")/harness.sh"

cc -o interfaces "$(dirname "$0")/interfaces.c" || fail "interfaces.c does not compile"
on_lull "$PWD/interfaces"
until_it grep -q serves said
for line in "listed lull0 $own" "mask lull0 255.255.255.0" "broadcast lull0 10.0.0.255" "configured lull0 $own" \
    "listed lull0 10.0.0.1" "listed lo 127.0.0.1" "first lo 127.0.0.1"; do
    grep -q "^$line$" said || fail "$line is not so: $(cat said)"
done
[ "$(grep -c " $own$" said)" = 2 ] || fail "lull's address is listed more than once: $(cat said)"
[ "$(sed -n 's/^takes //p' said)" = "$(grep -c ^configured said)" ] || fail "the count is another: $(cat said)"
[ "$(grep -c ^first said)" = 1 ] || fail "it writes past its place: $(cat said)"
for at in "$own" 127.0.0.1; do
    # This is tried again if the process that has the queue has not answered the neighbour request within three seconds.
    answers() { [ "$(timeout 60 python3 -c 'import socket, sys; print(socket.create_connection((sys.argv[1], 7777)).makefile().read(), end="")' "$at")" = here ]; }
    until_it answers
done
find_program
kill "$program"
wait "$launcher"
echo done
