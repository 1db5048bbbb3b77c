#!/bin/busybox sh
# The init of the guest that qemu.sh boots. It prints each command with its output, a verdict for each check, and a last
# line.
/bin/busybox mkdir -p /bin /sbin
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
for module in failover net_failover virtio_net veth; do
    [ ! -f /modules/$module.ko ] || insmod /modules/$module.ko
done
failed=0
# Runs a command and prints its output and exit status; its output stays in $said.
run() {
    echo "\$ $*"
    said=$("$@" 2>&1); status=$?
    echo "$said"
    [ $status = 0 ] || echo "(exit status $status)"
}
# Prints a verdict: check WHAT COMMAND...
check() {
    what=$1; shift
    if "$@" > /dev/null 2>&1; then echo "pass: $what"; else echo "FAIL: $what"; failed=$((failed + 1)); fi
}
says() { echo "$said" | grep -qe "$1"; }
silent_on() { ! says "$1"; }
is() { [ "$1" = "$2" ]; }
threads() { grep -l '^napi/eth0-' /proc/[0-9]*/comm 2>/dev/null | cut -d / -f 3; }
count() { echo $#; }
# Prints the settings in force, without ids.
settings() { lull show eth0 --json | grep -E '"(defer_hard_irqs|gro_flush_.*|irq_suspend_.*|threaded|queue)"'; }
within() { tries=$1; shift; while ! "$@"; do tries=$((tries - 1)); [ $tries -gt 0 ] || return 1; sleep 1; done; }
log_says() { grep -q "$1" /tmp/log; }

echo "kernel $(uname -r), $(nproc) CPUs"
ip link set lo up; ip link set eth0 up; ip addr add 10.99.0.1/24 dev eth0
before=$(settings)

run lull doctor eth0
check 'doctor shows modes' says '^yes .*suspend20'
check 'doctor allows busy-poll threads' says '^yes .*threaded-busy'
run lull show eth0
check 'the driver links queues' silent_on 'does not say'

run lull apply eth0 --mode threaded-busy
check 'threaded-busy is applied' is $status 0
run lull show eth0
check 'threaded-busy is recognised' says threaded-busy
check 'there is a thread for each queue' is "$(count $(threads))" 4
run lull apply eth0 --mode threaded-busy
check 'twice is once' says already
run lull undo eth0
check 'undo succeeds' is $status 0
check 'the settings are back' is "$(settings)" "$before"
no_threads() { is "$(count $(threads))" 0; }
check 'the threads are gone' within 10 no_threads

run lull apply eth0 --mode threaded --threads-cpus 1-3 --thread-policy fifo:50
check 'threaded is applied' is $status 0
for thread in $(threads); do chrt -p $thread; taskset -pc $thread; done > /tmp/threads
cat /tmp/threads
check 'threads have the policy' is "$(grep -c 'priority: 50' /tmp/threads)" 4
check 'threads have their CPUs' is "$(grep -c 'affinity list: [123]$' /tmp/threads)" 4
run lull show eth0
run lull apply eth0 --mode threaded-busy --threads-cpus 1-3 --thread-policy other:-10
check 'from threaded to threaded-busy' is $status 0
for thread in $(threads); do chrt -p $thread; taskset -pc $thread; done > /tmp/threads
check 'threads have the other policy' is "$(grep -c SCHED_OTHER /tmp/threads)" 4
run lull undo eth0
check 'undo of both' is "$(settings)" "$before"

run lull diff eth0 --mode suspend20
check 'diff changes nothing' is "$(settings)" "$before"
run lull apply eth0 --mode suspend20 --queues 1-2
check 'two queues have it' is "$(settings | grep -c '"irq_suspend_timeout_ns": 20000000')" 2
run lull apply eth0 --mode suspend20
run lull show eth0
check 'four queues have it' is "$(settings | grep -c '"irq_suspend_timeout_ns": 20000000')" 4
# A queue that is removed takes its NAPI along, but not its settings.
ethtool -L eth0 combined 2
run lull undo eth0 --dry-run
check 'undo reaches NAPIs without a queue' silent_on 'no NAPI'
run lull undo eth0
ethtool -L eth0 combined 4
check 'undo with fewer queues' is "$(settings)" "$before"
ethtool -L eth0 combined 2
lull apply eth0 --mode suspend20 > /dev/null
ethtool -L eth0 combined 4
run lull apply eth0 --mode defer50
run lull undo eth0
check 'undo with more queues' is "$(settings)" "$before"
check 'no state is left' is "$(ls /run/lull | wc -l)" 0
lull apply eth0 --mode suspend20 > /dev/null
# virtio-net keeps settings over a link flap since 7.1.
ip link set eth0 down; run lull show eth0; ip link set eth0 up
run lull show eth0
run lull undo eth0
check 'undo after a flap' is "$(settings)" "$before"
run lull undo eth0
check 'undo twice' says 'nothing was applied'

cat > /tmp/profile <<'P'
[device]
combined-queues = 2
rx-ring = 128
tx-ring = 128
adaptive-rx = false
rx-usecs = 0
tx-usecs = 0
rps-cpus = ""
rfs-flows = 0
irq-cpus = "1-2"
[machine]
workqueue-cpus = "0"
timer-migration = 0
rt-runtime-us = -1
smt = "off"
busy-read-us = 0
P
ethtool -l eth0 > /tmp/before; ethtool -g eth0 >> /tmp/before; ethtool -c eth0 >> /tmp/before
cat /proc/irq/*/smp_affinity_list >> /tmp/before
run lull prepare eth0 --profile /tmp/profile --dry-run
run lull prepare eth0 --profile /tmp/profile
check 'prepare is not refused' silent_on '^refused'
check 'interrupts are found and bound' says '^set  *CPU of interrupt [0-9]* (queue 1): .* -> 2'
run ethtool -l eth0
check 'two queues' says 'Combined:.*2'
run lull show eth0
run lull prepare eth0 --profile /tmp/profile
check 'prepare twice changes nothing' silent_on '^set '
run lull prepare eth0 --undo
check 'prepare is undone' is $status 0
ethtool -l eth0 > /tmp/after; ethtool -g eth0 >> /tmp/after; ethtool -c eth0 >> /tmp/after
cat /proc/irq/*/smp_affinity_list >> /tmp/after
run diff /tmp/before /tmp/after
check 'queues, rings, coalescing and interrupts are back' is $status 0

lull apply eth0 --mode threaded-busy --threads-cpus 1-3 --watch > /tmp/log 2>&1 &
watcher=$!
check 'watch applies' within 30 log_says watching
ethtool -L eth0 combined 2; sleep 3; ethtool -L eth0 combined 4
# Threads of queues that had none are started at the latest by the read-back.
busy() { is "$(settings | grep -c '"threaded": "busy-poll"')" 4; }
check 'a change of queues is applied again' within 15 busy
bound() { lull diff eth0 --mode threaded-busy --threads-cpus 1-3 | grep -q already; }
check 'threads are bound again' within 15 bound
ip link set eth0 down; sleep 3; ip link set eth0 up
check 'a flap is applied again' within 15 busy
kill $watcher; wait $watcher
check 'watch ends well' is $? 0
cat /tmp/log
check 'watch has undone' is "$(settings)" "$before"
check 'no state is left' is "$(ls /run/lull | wc -l)" 0

# The flows of a program with one context on several queues are moved to one queue while it runs. The device has an
# indirection table (rss=on).
table() { ethtool -x eth0 | sed -n '2,17s/^ *[0-9]*: *//p' | tr -s ' ' '\n' | sort -u | tr '\n' ' '; }
flows() { is "$(table)" "$1"; }
no_state() { is "$(ls /run/lull/*.json 2>/dev/null | wc -l)" 0; }
all=$(table)
for signal in TERM KILL; do
    : > /tmp/log # The command below empties it in its own time.
    lull run --dev eth0 --mode suspend20 --one-napi steer -- memcached -u root -l 10.99.0.1 -t 1 > /tmp/log 2>&1 &
    runs=$!
    check 'steer puts the flows on one queue' within 120 log_says 'queues with flows of eth0: 4 -> 1'
    check 'the table has one queue' is "$(table)" '0 '
    cat /tmp/log
    kill -$signal $runs; wait $runs
    check "the table is back after SIG$signal" within 30 flows "$all"
    check 'no state is left' within 30 no_state
    killall memcached 2> /dev/null
done
rm -f /run/lull/process-*.lock # It is that of the process that a killed lull had followed.

# A thread busy polls from the first packet on; a command that reads its polls must not read for ever. (busybox's own ip
# knows no peers.)
/usr/bin/ip link add lull0 type veth peer name lull1
ethtool -K lull0 gro on; ethtool -K lull1 tso off
ip link set lull0 up; ip link set lull1 up; ip addr add 10.98.0.1/24 dev lull1
run lull apply lull0 --mode threaded-busy
ping -c 1 -W 1 10.98.0.2 > /dev/null
run timeout 60 lull stat lull0 --count 2
check 'stat ends' is $status 0
check 'stat shows the thread that busy polls' says 'napi-thread napi/lull0-'
run timeout 60 lull undo lull0
check 'undo of a thread that busy polls' is $status 0
no_thread() { ! grep -q '^napi/lull0-' /proc/[0-9]*/comm; }
check 'the thread is gone' within 10 no_thread
ip link del lull0

# The lab measures one mode after the other, with a thread among them that busy polls on the service's own CPU. A run
# without KVM says nothing about speed, but shows who polled and that the mode was in force.
run timeout 120 lull compare --plane kernel --service own --modes base,threaded,threaded-busy,suspend50 --loads 200 \
    --seconds 2 --runs 1 --connections 4 --records 500 --progress off
check 'compare ends' is $status 0
check 'every mode was in force' silent_on '^!'
check 'the NAPI thread polled in threaded-busy' says '^threaded-busy  *200  *0.0  *0.0  *0.0  *0.0  *0.0  *100.0'

# A device that is removed and comes back is another one.
lull apply eth0 --mode suspend20 --watch > /tmp/log 2>&1 &
watcher=$!
within 30 log_says watching
device=$(basename "$(readlink -f /sys/class/net/eth0/device)")
echo "$device" > /sys/bus/virtio/drivers/virtio_net/unbind
wait $watcher
check 'a watcher ends with its device' is $? 2
cat /tmp/log
echo "$device" > /sys/bus/virtio/drivers/virtio_net/bind; sleep 1
ip link set eth0 up
check 'the new device has the settings that it began with' is "$(settings)" "$before"
run ls -A /run/lull
check 'no state is left' is "$said" ''

run sh -c 'dmesg | grep -E "WARNING|BUG:|Oops"'
check 'the kernel has not complained' is "$said" ''
if [ $failed = 0 ]; then echo 'all checks passed'; else echo "$failed checks failed"; fi
poweroff -f
