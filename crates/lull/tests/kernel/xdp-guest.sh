#!/bin/busybox sh
# The init of the guest that qemu-xdp.sh boots. It prints each command with its output, a verdict for each check, and a
# last line.
/bin/busybox mkdir -p /bin /sbin
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in failover net_failover virtio_net veth; do
    [ ! -f /modules/$module.ko ] || insmod /modules/$module.ko
done
failed=0
check() {
    what=$1; shift
    if "$@" > /dev/null 2>&1; then echo "pass: $what"; else echo "FAIL: $what"; failed=$((failed + 1)); fi
}
is() { [ "$1" = "$2" ]; }
log_says() { grep -qe "$1" /tmp/log; }
within() { tries=$1; shift; while ! "$@"; do tries=$((tries - 1)); [ $tries -gt 0 ] || return 1; sleep 1; done; }
detached() { ! /usr/bin/ip link show eth0 | grep -q xdp; }
host_hears() { ping -c 1 -W 2 10.99.0.2; }
# With this much work every step between driver and socket has been taken.
answered() { [ "$(lull show "$1" --json 2> /dev/null | sed -n 's/.*"work": *\([0-9]*\).*/\1/p' | sort -n | tail -n 1)" -ge 200 ]; }

echo "kernel $(uname -r), $(nproc) CPUs"
ip link set lo up; ip link set eth0 up; ip addr add 10.99.0.1/24 dev eth0
check 'the host outside is heard' within 30 host_hears

lull doctor xdp:eth0 > /tmp/log 2>&1
cat /tmp/log

for mode in base suspend20 fullbusy; do
    echo "\$ lull serve --nic xdp:eth0 --addr 10.99.0.7/24 --mode $mode -t 2"
    lull serve --nic xdp:eth0 --addr 10.99.0.7/24 --mode $mode -t 2 > /tmp/log 2>&1 &
    service=$!
    check "$mode serves" within 120 answered $service
    lull stat $service --count 1
    check "the guest's own address is the guest's beside $mode" host_hears
    kill -TERM $service; wait $service; status=$?
    cat /tmp/log
    echo "(exit status $status)"
    check "$mode ends well" is $status 0
    check "$mode is native" log_says native
    check "$mode has zero-copy" log_says zero-copy
    check "$mode could busy poll the driver" log_says 'could busy poll the driver, by its NAPI ids'
    check 'the program is gone' detached
done

# A program has one port of the guest's own address, and others have the rest; when it is killed, the guest gets all
# frames again.
echo '$ lull run --nic xdp:eth0 --addr 10.99.0.1/24 --ports 11311 --mode suspend20 -- memcached ...'
lull run --nic xdp:eth0 --addr 10.99.0.1/24 --ports 11311 --mode suspend20 -- \
    memcached -u root -l 10.99.0.1 -p 11311 -U 0 -t 1 > /tmp/log 2>&1 &
launcher=$!
check 'memcached starts' within 60 pidof memcached
check 'memcached serves' within 120 answered "$(pidof memcached)"
check "the guest's own address is the guest's beside memcached" host_hears
lull show "$(pidof memcached)"
kill -KILL "$(pidof memcached)"; wait $launcher; status=$?
cat /tmp/log
check "the launcher ends as its program did" is $status 137
check 'the program is gone' detached
check 'the host outside is heard at the end' host_hears

dmesg | grep -E 'WARNING|BUG:|Oops' > /tmp/log
cat /tmp/log
check 'the kernel has not complained' is "$(wc -l < /tmp/log)" 0
if [ $failed = 0 ]; then echo 'all checks passed'; else echo "$failed checks failed"; fi
poweroff -f
