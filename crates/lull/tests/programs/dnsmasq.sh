# Unmodified dnsmasq is asked over UDP and TCP; over TCP it forks a child for every connection: SCRIPT LULL MODE
# [--keep-in-foreground]. Without this option it puts itself into the background once it has bound its sockets.
. "$(dirname "$0")/harness.sh"

on_lull "${unprivileged[@]}" dnsmasq ${3:+"$3"} --conf-file=/dev/null --pid-file="$PWD/pid" --port=5353 \
    --no-resolv --no-hosts --bind-interfaces --except-interface=lo --listen-address="$own" --address=/lull.test/192.0.2.77 --log-facility=-
# Datagrams are lost that the former process has received and nobody has read when it ends.
[ "$3" ] || until_it grep -q 'is left in the background' said
until_it python3 "$(dirname "$0")/dns_client.py" "$own" 1
python3 "$(dirname "$0")/dns_client.py" "$own" 1000 || fail "the client"
stop
echo done
