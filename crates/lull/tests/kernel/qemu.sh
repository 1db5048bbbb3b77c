#!/bin/sh
# Drives lull's kernel plane on another kernel: boots it under QEMU without KVM, with a four-queue virtio-net, and runs
# qemu-guest.sh inside. Latency there means nothing; what is refused, set, shown and given back does.
#
#   LULL=target/debug/lull qemu.sh KERNEL.deb [MODULES.deb]
#
# for example with Debian's linux-binary-* and linux-modules-* (backports, sid). It takes qemu-system-x86_64, busybox
# (static), dpkg-deb, xz, iproute2, ethtool, util-linux, and the right to make a TAP device in a namespace of its own.
# Exit status 0 only if every check in the guest has passed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/guest.sh"
cp "$here/qemu-guest.sh" "$root/init"
pack

# Several queues take a TAP device; it is in a namespace that ends with QEMU.
run="$machine -smp 4 -m 1024 -netdev tap,id=net,ifname=lull,queues=4,script=no,downscript=no
    -device virtio-net-pci,netdev=net,mq=on,vectors=10,romfile="
unshare --map-root-user --net timeout 600 $run -append 'console=ttyS0 quiet panic=-1' < /dev/null | tee "$work/log"
grep -q '^all checks passed' "$work/log"
