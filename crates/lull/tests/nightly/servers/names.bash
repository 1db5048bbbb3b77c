# Servers of names, and of SNMP.

names+=(unbound nsd knot pdns snmpd kresd)

# Prints the names n0 to n249 below example.test, a line for each, with its number in place of NR.
zone() { for number in $(seq 0 249); do printf "${1//NR/$number}\n"; done; }
# Asks for all names by UDP and by TCP, in four processes at once.
by_dig() {
    zone 'nNR.example.test.' >asked
    zone '10.9.8.NR' >expected
    answers dig +short +time=1 +tries=1 @"$own" n7.example.test
    same 10.9.8.7 dig +short @"$own" n7.example.test
    # Each dig has a port of its own: those that dig chooses may be the same, and then one gets the answer of the other.
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

# Makes the file of a zone, for servers that read it from one.
zone_file() {
    printf '$TTL 60\n@ SOA a b 1 1 1 1 1\n@ NS n1\n'
    zone 'nNR A 10.9.8.NR'
}

needs[nsd]="nsd bind9-dnsutils:nsd dig"
case_nsd() {
    zone_file >zone
    cat >nsd.conf <<CONF
server:
  ip-address: $own
  server-count: 1
  zonesdir: "$PWD"
  chroot: ""
  username: ""
  database: ""
  pidfile: "$PWD/pid"
  zonelistfile: "$PWD/zones"
  xfrdfile: "$PWD/xfrd"
  xfrdir: "$PWD"
remote-control:
  control-enable: no
zone:
  name: example.test
  zonefile: zone
CONF
    serve nsd -d -c "$PWD/nsd.conf"
    by_dig
}

needs[knot]="knot bind9-dnsutils:knotd dig"
case_knot() {
    zone_file >zone
    cat >knot.conf <<CONF
server:
  rundir: $PWD
  listen: $own@53
  udp-workers: 2
  tcp-workers: 2
log:
- target: stderr
  any: info
database:
  storage: $PWD/database
zone:
- domain: example.test
  file: $PWD/zone
CONF
    serve knotd -c "$PWD/knot.conf"
    by_dig
}

needs[pdns]="pdns-server pdns-backend-bind bind9-dnsutils:pdns_server dig"
case_pdns() {
    zone_file >zone
    echo "zone \"example.test\" { type master; file \"$PWD/zone\"; };" >named.conf
    : >pdns.conf
    serve pdns_server --config-dir="$PWD" --launch=bind --bind-config="$PWD/named.conf" --local-address="$own" --daemon=no \
        --guardian=no --socket-dir="$PWD"
    by_dig
}

needs[snmpd]="snmpd snmp:snmpd snmpget snmpbulkwalk"
case_snmpd() {
    printf 'rocommunity public\nsysContact somebody\nsysLocation here\n' >snmpd.conf
    serve snmpd -f -Lo -C -c "$PWD/snmpd.conf" -p "$PWD/pid" "udp:$own:161" "tcp:$own:161"
    # No MIB definitions are read, because some of them may be missing.
    mkdir -p mibs
    export MIBS= MIBDIRS=$PWD/mibs
    with=(-v 2c -c public -O qvn -t 5 -r 0)
    answers snmpget "${with[@]}" -t 1 "udp:$own" 1.3.6.1.2.1.1.4.0
    for way in udp tcp; do
        same $'"somebody"\n"here"' snmpget "${with[@]}" "$way:$own" 1.3.6.1.2.1.1.4.0 1.3.6.1.2.1.1.6.0
    done
    # Over TCP nothing is lost, so the answer over UDP has to be the same table.
    there snmpbulkwalk "${with[@]}" "tcp:$own" 1.3.6.1.2.1.1.9.1.3 >table || fail "no walk"
    [ "$(wc -l <table)" -gt 5 ] || fail "the table is empty"
    at_once 4 whole table snmpbulkwalk "${with[@]}" "udp:$own" 1.3.6.1.2.1.1.9.1.3
}

# Starts an nsd on the kernel's loopback, for servers that pass questions on.
nsd_behind() {
    zone_file >zone
    cat >nsd.conf <<CONF
server:
  ip-address: 127.0.0.1@5300
  server-count: 1
  zonesdir: "$PWD"
  chroot: ""
  username: ""
  database: ""
  pidfile: "$PWD/pid"
  zonelistfile: "$PWD/zones"
  xfrdfile: "$PWD/xfrd"
  xfrdir: "$PWD"
remote-control:
  control-enable: no
zone:
  name: example.test
  zonefile: zone
CONF
    nsd -d -c "$PWD/nsd.conf" >behind 2>&1 &
    until_it dig +short +time=1 +tries=1 -p 5300 @127.0.0.1 n7.example.test
}

needs[kresd]="knot-resolver nsd bind9-dnsutils:kresd nsd dig"
case_kresd() {
    nsd_behind
    mkdir work
    cat >kresd.conf <<CONF
net.listen("$own", 53, { kind = "dns" })
modules = { "policy" }
trust_anchors.remove(".")
policy.add(policy.suffix(policy.STUB("127.0.0.1@5300"), {todname("example.test.")}))
cache.size = 10 * MB
CONF
    serve kresd -n -c "$PWD/kresd.conf" "$PWD/work"
    by_dig
}

names+=(gdnsd)

needs[gdnsd]="gdnsd bind9-dnsutils:gdnsd gdnsdctl dig"
# It is replaced by another process, which takes over its sockets.
case_gdnsd() {
    mkdir -p conf/zones run state
    zone_file | sed 's/1 1 1 1 1/1 900 900 900 60/' >conf/zones/example.test
    cat >conf/config <<CONF
options => {
    listen => [ "$own:53" ]
    run_dir => "$PWD/run"
    state_dir => "$PWD/state"
    udp_threads => 2
    tcp_threads => 2
}
CONF
    serve gdnsd -c "$PWD/conf" start
    by_dig
    there gdnsdctl -c "$PWD/conf" replace || fail "no replacement"
    until_it there dig +short +time=1 +tries=1 @"$own" n7.example.test
    at_once 4 by_udp
    at_once 4 whole expected dig +short +tcp @"$own" -f asked
    there gdnsdctl -c "$PWD/conf" stop || fail "no end"
    until_it ended
}
