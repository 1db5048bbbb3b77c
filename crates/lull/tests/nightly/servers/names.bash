# Servers of names.

names+=(unbound)

# Names n0 to n249 below example.test; a line for each, with its number for NR.
zone() { for number in $(seq 0 249); do printf "${1//NR/$number}\n"; done; }
# Asks for all of them by UDP and by TCP, by four at once.
by_dig() {
    zone 'nNR.example.test.' >asked
    zone '10.9.8.NR' >expected
    answers dig +short +time=1 +tries=1 @"$own" n7.example.test
    same 10.9.8.7 dig +short @"$own" n7.example.test
    # By ports of their own: the ones that dig takes can be the same, and then the answer of one comes to another.
    by_udp() { whole expected dig +short -b "10.0.0.1#$((5000 + nth))" @"$own" -f asked; }
    at_once 4 by_udp
    at_once 4 whole expected dig +short +tcp @"$own" -f asked
}

needs[unbound]="unbound bind9-dnsutils:unbound dig"
case_unbound() {
    { cat <<CONF
server:
  interface: $own
  access-control: 0.0.0.0/0 allow
  chroot: ""
  username: ""
  directory: "$PWD"
  pidfile: "$PWD/pid"
  use-syslog: no
  so-sndbuf: 0
  do-ip6: no
  module-config: "iterator"
  local-zone: "example.test." static
CONF
        zone '  local-data: "nNR.example.test. A 10.9.8.NR"'; } >unbound.conf
    serve unbound -d -c "$PWD/unbound.conf"
    by_dig
}
