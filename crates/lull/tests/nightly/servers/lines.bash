# Servers that pass lines on: chats, logs, and routes.

names+=(ngircd rsyslog bird)

needs[ngircd]="ngircd:ngircd"
case_ngircd() {
    cat >ngircd.conf <<CONF
[Global]
Name = irc.test
Info = here
Listen = $own
Ports = 6667
ServerUID = 65534
ServerGID = 65534
[Limits]
MaxConnections = 0
MaxConnectionsIP = 0
MaxPenaltyTime = 0
[Options]
DNS = no
Ident = no
PAM = no
CONF
    cat >irc.py <<'PYTHON'
import socket, sys, threading

address, clients, messages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
together, done = threading.Barrier(clients, timeout=100), []

# Each client says this many things in a channel, and hears all others in order.
def client(nth):
    it = socket.create_connection((address, 6667), 100)
    stream = it.makefile("rb")

    def until(word):
        while True:
            line = stream.readline()
            assert line, "the end"
            if line.startswith(b"PING"):
                it.sendall(b"PONG" + line[4:])
            elif line.split()[1] == word:
                return line

    it.sendall(b"NICK n%d\r\nUSER u 0 * :r\r\n" % nth)
    until(b"001")
    it.sendall(b"JOIN #c\r\n")
    until(b"366")
    together.wait()
    said = b"".join(b"PRIVMSG #c :%d of %d\r\n" % (message, nth) for message in range(messages))
    talker = threading.Thread(target=it.sendall, args=(said,))
    talker.start()
    heard = dict.fromkeys(set(range(clients)) - {nth}, 0)
    for _ in range((clients - 1) * messages):
        message, who = until(b"PRIVMSG").rsplit(b":", 1)[1].split(b" of ")
        assert heard[int(who)] == int(message)
        heard[int(who)] += 1
    talker.join()
    together.wait()
    done.append(nth)
    it.sendall(b"QUIT\r\n")
    while stream.readline(): pass

threads = [threading.Thread(target=client, args=(nth,)) for nth in range(clients)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done))
PYTHON
    serve ngircd -n -f "$PWD/ngircd.conf"
    answers python3 -c "import socket; socket.create_connection(('$own', 6667), 5)"
    same 20 python3 irc.py "$own" 20 100
    kill -HUP "$(pgrep -o -x ngircd)"
    same 10 python3 irc.py "$own" 10 100
}

needs[rsyslog]="rsyslog:rsyslogd"
# It is tested with both of its ways to take lines over TCP, and with datagrams.
case_rsyslog() {
    cat >lines.py <<'PYTHON'
import socket, sys, threading, time

address, port, way, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def line(nth, number):
    return b"<13>Nov 28 12:00:00 host %s%d: line %d %s\n" % (way.encode(), nth, number, b"x" * (number % 900))

# The lines are sent by many writes, by one, and by some that end anywhere; every second client half-closes and waits
# for the end.
def tcp(nth):
    it = socket.create_connection((address, port), 60)
    lines = [line(nth, number) for number in range(count)]
    whole = b"".join(lines)
    size = 1461 if nth % 3 == 2 else len(whole)
    for part in lines if nth % 3 == 0 else [whole[at:at + size] for at in range(0, len(whole), size)]:
        it.sendall(part)
    if nth % 2:
        it.shutdown(socket.SHUT_WR)
        it.recv(1)
    it.close()

def udp(nth):
    it = socket.socket(type=socket.SOCK_DGRAM)
    it.connect((address, port))
    for number in range(count):
        it.send(line(nth, number)[:-1])
        if number % 10 == 0:
            time.sleep(0.01)

threads = [threading.Thread(target=udp if way == "udp" else tcp, args=(nth,)) for nth in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
PYTHON
    cat >rsyslog.conf <<CONF
global(workDirectory="$PWD")
module(load="imtcp" MaxSessions="500")
module(load="imptcp")
module(load="imudp")
template(name="raw" type="string" string="%syslogtag%%msg%\n")
ruleset(name="tcp") { action(type="omfile" file="$PWD/tcp" template="raw") }
ruleset(name="ptcp") { action(type="omfile" file="$PWD/ptcp" template="raw") }
ruleset(name="udp") { action(type="omfile" file="$PWD/udp" template="raw") }
input(type="imtcp" address="$own" port="514" ruleset="tcp")
input(type="imptcp" address="$own" port="515" ruleset="ptcp")
input(type="imudp" address="$own" port="514" ruleset="udp" rcvbufSize="4m")
CONF
    complete() {
        awk -v way="$1" -v count="$2" 'BEGIN {
            for (nth = 0; nth < 10; nth++)
                for (number = 0; number < count; number++) {
                    printf "%s%d: line %d ", way, nth, number
                    for (x = 0; x < number % 900; x++) printf "x"
                    print ""
                }
        }' | LC_ALL=C sort >expected
        LC_ALL=C sort "$1" | cmp - expected
    }
    serve rsyslogd -n -f "$PWD/rsyslog.conf" -i "$PWD/pid"
    answers python3 -c "import socket; socket.create_connection(('$own', 515), 5)"
    for what in 514:tcp:2000 515:ptcp:2000 514:udp:300; do
        IFS=: read -r port way count <<<"$what"
        there python3 lines.py "$own" "$port" "$way" "$count" || fail "no $way"
        until_it complete "$way" "$count"
    done
    rm tcp
    kill -HUP "$(cat pid)"
    there python3 lines.py "$own" 514 tcp 1000 || fail "no tcp after HUP"
    until_it complete tcp 1000
}

needs[bird]="bird2:bird birdc"
# It exchanges 20,000 routes each way by BGP with a peer on the kernel's sockets, which restarts its session, ends and
# comes back.
case_bird() {
    # as BYTE OWN NUMBER PEER NUMBER MORE: prints a configuration with routes below BYTE.0.0.0.
    as() {
        echo "log stderr all; router id $2; protocol device {}"
        echo "protocol static { ipv4;"
        for one in $(seq 0 199); do
            for two in $(seq 0 99); do echo "route $1.$one.$two.0/24 blackhole;"; done
        done
        echo "}"
        echo "protocol bgp p { local $2 as $3; neighbor $4 as $5; multihop; strict bind yes; hold time 30; $6"
        echo "ipv4 { import all; export all; }; }"
    }
    as 20 "$own" 65002 10.0.0.1 65001 "passive;" >bird.conf
    as 30 10.0.0.1 65001 "$own" 65002 "connect retry time 2; connect delay time 1; error wait time 1, 2;" >peer.conf
    serve bird -f -c "$PWD/bird.conf" -s "$PWD/ctl"
    until_it birdc -s ctl show status
    have() { for ctl in "${@:2}"; do birdc -s "$ctl" show route count | grep -q "^$1 of $1 routes" || return 1; done; }
    begin_peer() {
        bird -f -c "$PWD/peer.conf" -s "$PWD/peer.ctl" >peer 2>&1 &
        peer=$!
        until_it have 40000 ctl peer.ctl
    }
    begin_peer
    birdc -s peer.ctl restart p >restarted
    sleep 2
    until_it have 40000 ctl peer.ctl
    kill "$peer"
    wait "$peer"
    until_it have 20000 ctl
    begin_peer
    kill "$peer"
}
