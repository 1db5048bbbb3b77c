# Runs Linux's selftest busy_poller ($4) with the cases of busy_poll_test.sh, and ynl ($5, with the family's description
# in $6), on "tap" or "xdp" ($3).
. "$(dirname "$0")/harness.sh"

poller=$4
ynl=(python3 "$5" --spec "$6" --output-json)
# The selftest takes the interface's number.
if [ "$3" = xdp ]; then
    on_veth 1
    device=x0
else
    ip tuntap add lull0 mode tap
    ip addr add 10.0.0.1/24 dev lull0
    ip link set lull0 up
    device=lull0
fi
ifindex=$(ip -o link show "$device" | cut -d: -f1)

head -c 1000000 /dev/urandom >sent
# The counters are read when half of the file has arrived.
cat >send.py <<'END'
import os, socket, sys, time
data = open("sent", "rb").read()
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 48675), 60)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
connection.sendall(data[:500_000])
open("half", "w").close()
while not os.path.exists("counted"):
    time.sleep(0.01)
connection.sendall(data[500_000:])
connection.close()
END
sum_of() { python3 -c "
import json, sys
shown = json.load(open('shown'))
print(sum(napi['stats']['$1'] for entry in shown if 'napis' in entry and 'pid' in entry for napi in entry['napis']))"; }

# Each line has the NAME, irq_suspend_timeout, threaded, prefer_busy_poll, and the counter that has to move.
while read -r name suspend threaded prefer counter; do
    rm -f half counted received
    on_lull "$poller" -p48675 "-b$own" -m8 -u0 "-P$prefer" -g16 "-i$ifindex" "-s$suspend" "-t$threaded" -oreceived
    there python3 send.py "$own" &
    sender=$!
    until_it test -e half -o ! -d "/proc/$launcher"
    until_it eval '"$lull" show --json >shown && [ "$(sum_of $counter)" -gt 0 ]'
    echo "$3: $name: $(for each in polls softirq_polls busy_polls thread_polls suspends; do printf '%s %s, ' "$(sum_of $each)" "$each"; done)"
    touch counted
    wait "$sender" || fail "$name: the sender failed"
    wait "$launcher" || fail "$name: the selftest ended with $?"
    cmp sent received || fail "$name: it received something else"
done <<END
test_busypoll 0 0 1 busy_polls
test_busypoll_with_suspend 20000000 0 1 suspends
test_busypoll_with_napi_threaded 0 2 0 thread_polls
END

# ynl runs beside the server under the same launcher: it reads and sets values, reads them back, and deferrals are
# counted.
cat >beside.sh <<'END'
$server & server=$!
while [ ! -e load ]; do sleep 0.1; done
"$@" --dump napi-get --json "{\"ifindex\": $ifindex}" >before || exit 3
id=$(python3 -c 'import json; print(json.load(open("before"))[0]["id"])')
"$@" --do napi-set --json "{\"id\": $id, \"defer-hard-irqs\": 100, \"gro-flush-timeout\": 20000}" || exit 4
"$@" --do napi-get --json "{\"id\": $id}" >after || exit 5
"$@" --dump queue-get --json "{\"ifindex\": $ifindex}" >queues || exit 6
touch set
wait "$server"
END
export ifindex
server="${memcached[*]} -t 1" on_lull bash beside.sh "${ynl[@]}"
until_it memcached_answers 4
"$lull" show --json >shown
[ "$(sum_of deferrals)" = 0 ] || fail "there were deferrals before"
touch load
until_it test -e set -o ! -d "/proc/$launcher"
[ -e set ] || fail "ynl failed: $(cat before after)"
python3 -c '
import json
before, after = json.load(open("before"))[0], json.load(open("after"))
assert before["defer-hard-irqs"] == 0 and before["id"] >= 1 << 30, before
assert (after["defer-hard-irqs"], after["gro-flush-timeout"]) == (100, 20000), after
assert after["ifindex"] == before["ifindex"] and after["id"] == before["id"], after
queues = json.load(open("queues"))
assert [queue["napi-id"] for queue in queues] == [after["id"]] * 2, queues' || fail "ynl read something else"
memcached_answers 4 || fail "it does not answer after ynl"
"$lull" show --json >shown
deferrals=$(sum_of deferrals)
[ "$deferrals" -gt 0 ] || fail "what ynl set did not change what is counted"
echo "$3: ynl read and set: $deferrals deferrals after it, none before"
kill $(pgrep -x memcached)
wait "$launcher"
echo done
