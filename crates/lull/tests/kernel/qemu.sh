#!/bin/sh
# Runs lull's kernel plane on another kernel: boots it under QEMU without KVM, with a four-queue virtio-net, and runs
# qemu-guest.sh inside. Latency there means nothing; the script checks what is refused, set, shown and restored.
#
#   LULL=target/debug/lull qemu.sh KERNEL.deb [MODULES.deb]
#
# for example with Debian's linux-binary-* and linux-modules-* (backports, sid). It needs qemu-system-x86_64, busybox
# (static), dpkg-deb, xz, iproute2, ethtool, util-linux, memcached, python3, and the right to make a TAP device in a
# namespace of its own. Exit status 0 only if every check in the guest has passed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/guest.sh"
cp "$here/qemu-guest.sh" "$root/init"
add memcached
add "$(dirname "$lull")/liblull_preload.so"
mkdir -p "$root/etc"; echo root:x:0:0::/:/bin/sh > "$root/etc/passwd" # memcached looks its user up
pack

# A device with several queues takes a TAP; it is in a namespace that ends with QEMU.
run="$machine -smp 4 -m 1024 -netdev tap,id=net,ifname=lull,queues=4,script=no,downscript=no
    -device virtio-net-pci,netdev=net,mq=on,rss=on,vectors=10,romfile="
# Sixteen connections to the guest's memcached, whenever it runs.
cat > "$work/client" <<'C'
until ip addr add 10.99.0.2/24 dev lull 2> /dev/null && ip link set lull up; do sleep 1; done
mkfifo "$1/open"; exec 3<> "$1/open"
# Clients do not notice that a server has ended, so they are replaced every half a minute.
while sleep 1; do timeout 30 python3 "$2/connections.py" 10.99.0.1 11211 16 <&3 > /dev/null 2>&1 || true; done
C
cat > "$work/both" <<'B'
sh "$1/client" "$1" "$2" & client=$!
shift 2
"$@" -append 'console=ttyS0 quiet panic=-1' < /dev/null
kill $client
B
unshare --map-root-user --net sh "$work/both" "$work" "$here" timeout 600 $run | tee "$work/log"
grep -q '^all checks passed' "$work/log"
