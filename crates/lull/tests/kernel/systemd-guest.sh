#!/bin/busybox sh
# The tests in the guest of qemu-systemd.sh, which systemd starts: dist/lull@.service is started, stopped, killed and
# refused, and its device goes down and up and is removed. It prints each command with its output, a verdict for each
# check, and a last line.
exec > /dev/ttyS0 2>&1
export PATH=/usr/bin:/usr/sbin:/bin
failed=0
run() {
    echo "\$ $*"
    said=$("$@" 2>&1); status=$?
    echo "$said"
    [ $status = 0 ] || echo "(exit status $status)"
}
check() {
    what=$1; shift
    if "$@" > /dev/null 2>&1; then echo "pass: $what"; else echo "FAIL: $what"; failed=$((failed + 1)); fi
}
is() { [ "$1" = "$2" ]; }
says() { echo "$said" | grep -qe "$1"; }
within() { tries=$1; shift; while ! "$@"; do tries=$((tries - 1)); [ $tries -gt 0 ] || return 1; sleep 1; done; }
settings() { lull show va --json | grep -E '"(defer_hard_irqs|gro_flush_.*|irq_suspend_.*|threaded|queue)"'; }
suspended() {
    is "$(settings | grep -c '"irq_suspend_timeout_ns": 20000000')" 2 && lull diff va --mode suspend20 | grep -q already
}
plain() { is "$(settings)" "$before" && is "$(ls -A /run/lull)" ''; }
property() { systemctl show -P "$1" "${2:-lull@va}"; }
# busybox's own ip knows no peers.
make() {
    /usr/bin/ip link add va numrxqueues 2 numtxqueues 2 type veth peer name vb numrxqueues 2 numtxqueues 2
    ethtool -K va gro on
    ip link set va up; ip link set vb up
}
threads() { grep -l '^napi/va-' /proc/[0-9]*/comm | cut -d / -f 3; }

make
echo "kernel $(uname -r), $(systemctl --version | head -n 1), $(nproc) CPUs"
before=$(settings)
device() { is "$(property ActiveState sys-subsystem-net-devices-va.device)" active; }
check 'the device is a unit' within 20 device

run systemctl start lull@va
check 'start' is $status 0
run systemctl status --no-pager -l lull@va
check 'it has started when the mode is applied' suspended
run lull show va
run lull undo va
check 'undo by hand is refused' is $status 2
ip link set va down; sleep 1; ip link set va up
check 'applied again after a flap' within 10 suspended
run systemctl stop lull@va
check 'stop' is $status 0
check 'the settings are back, and no state is left' plain
run journalctl --no-pager -o cat -u lull@va

run systemctl start lull@va
pid=$(property MainPID)
kill -9 "$pid"
again() { is "$(property ActiveState)" active && ! is "$(property MainPID)" "$pid" && suspended; }
check 'a killed one comes back' within 20 again
run systemctl stop lull@va
check 'the settings are back' plain
systemctl start lull@va
systemctl kill -s KILL lull@va; systemctl stop lull@va
check 'killed and stopped, the settings are back' plain

mkdir -p /etc/lull
echo 'LULL_MODE=nonsense' > /etc/lull/va.conf
lull apply va --mode suspend20
run systemctl start lull@va
check 'an unknown mode fails the start' is $status 1
run journalctl --no-pager -o cat -n 6 -u lull@va
check 'the journal has the reason' says "no delivery mode is named 'nonsense'"
systemctl stop lull@va
check 'and a mode that was applied by hand stays' suspended
lull undo va
check 'until it is undone' plain

printf 'LULL_MODE=suspend20\nLULL_OPTIONS=--prometheus 127.0.0.1:9200\n' > /etc/lull/va.conf
run systemctl start lull@va
check 'it may serve metrics' is $status 0
served() { wget -q -O - http://127.0.0.1:9200/metrics | grep -q lull_napi; }
check 'and serves them' served
sees() { [ "$1" "/proc/$(property MainPID)/root$2" ]; }
check 'it may set sysctls' sees -w /proc/sys/net/core/busy_read
check 'and interrupts' sees -w /proc/irq/default_smp_affinity
check 'and what is below /sys' sees -w /sys/class/net/va/queues/rx-0/rps_cpus
check 'and hold the wake-up latency of CPUs' sees -c /dev/cpu_dma_latency
run systemctl stop lull@va
check 'the settings are back' plain

printf 'LULL_MODE=threaded\nLULL_OPTIONS=--thread-policy fifo:50 --threads-cpus 1\n' > /etc/lull/va.conf
run systemctl start lull@va
check 'options are passed on' is $status 0
for thread in $(threads); do chrt -p "$thread"; taskset -pc "$thread"; done > /tmp/threads
cat /tmp/threads
check 'threads have their policy' is "$(grep -c 'priority: 50' /tmp/threads)" 2
check 'threads have their CPU' is "$(grep -c 'affinity list: 1$' /tmp/threads)" 2
run systemctl stop lull@va
check 'the settings are back' plain

echo 'LULL_MODE=suspend20' > /etc/lull/va.conf
run systemctl enable --now lull@va
check 'enabled' suspended
ip link del va
# The service has to be stopped completely: systemd drops the start that a device asks for while its service is still
# stopping.
gone() { case $(property ActiveState) in inactive | failed) ;; *) false ;; esac; }
check 'it goes with its device' within 20 gone
run systemctl status --no-pager -l -n 5 lull@va
make
check 'a device that comes back gets it again' within 30 suspended
run systemctl disable --now lull@va
check 'the settings are back' plain
if [ $failed = 0 ]; then echo 'all checks passed'; else echo "$failed checks failed"; fi
poweroff -f
