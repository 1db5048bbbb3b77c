# `--allow`: a client of an allowed source is answered, over IPv4 and IPv6; one of another source gets nothing, which is
# counted under its own reason. ARP and neighbour discovery work for both.
. "$(dirname "$0")/harness.sh"

cat >server.py <<'END'
import selectors, socket, sys
selector = selectors.DefaultSelector()
for own in sys.argv[1:]:
    listener = socket.create_server((own, 7000), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
    selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        connection, _ = key.fileobj.accept()
        connection.sendall(b"hello")
        connection.close()
END
cat >client.py <<'END'
import json, socket, subprocess, sys, time
lull, pid = sys.argv[1:]
def get(own, source, seconds):
    connection = socket.create_connection((own, 7000), timeout=seconds, source_address=(source, 0))
    return connection.recv(100)
def dropped():
    shown = json.loads(subprocess.run([lull, "ss", pid, "--json"], capture_output=True, check=True).stdout)
    return shown[0]["drops"].get("drop_not_allowed", 0)
for own, allowed, other in [("10.0.0.2", "10.0.0.1", "10.0.0.9"), ("fd00::2", "fd00::1", "fd00::9")]:
    for _ in range(600):
        try:
            assert get(own, allowed, 60) == b"hello"
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("an allowed source is refused")
    # The drop is seen by its counter: that nothing comes back for a second says little on a busy machine.
    def is_dropped(refused):
        before = dropped()
        for _ in range(60):
            refused()
            if dropped() > before:
                return
        sys.exit("it is not counted")
    def asked():
        try:
            get(own, other, 1)
            sys.exit(f"{other} was answered")
        except TimeoutError:
            pass
    def pinged():
        assert subprocess.run(["ping", "-c", "1", "-W", "1", "-I", other, own], capture_output=True).returncode == 1
    is_dropped(asked)
    is_dropped(pinged)
    # The host's link address is known, because an allowed source of the same host is answered.
    assert get(own, allowed, 60) == b"hello"
    neighbours = subprocess.run(["ip", "neigh", "show", own], capture_output=True, text=True).stdout
    assert "lladdr" in neighbours, neighbours
END
options=(--addr fd00::2/64 --allow 10.0.0.1/32,fd00::1/128)
on_lull python3 server.py "$own" fd00::2
find_program
until_it "$lull" show "$program"
for address in 10.0.0.9/24 "fd00::1/64 nodad" "fd00::9/64 nodad"; do
    # shellcheck disable=SC2086
    ip address add $address dev lull0 || fail "the interface does not take $address"
done
python3 client.py "$lull" "$program" >client 2>&1 || fail "$(cat client)"
grep -q "takes IP packets from 10.0.0.1/32, fd00::1/128 alone" said || fail "the run does not say who may send"
grep -q "passes nftables and conntrack by" said || fail "the run does not say what is passed by"
stop
"$lull" run --nic tap:lull0 --addr 10.0.0.2/24 --mode base --allow 10.0.0.1 -- true 2>said && fail "a source without a prefix is taken"
grep -q "10.0.0.1" said || fail "the source is not named"
echo done
