#!/bin/sh
# Runs lull's AF_XDP device on a driver that supports all of it: boots a kernel under QEMU without KVM, with a two-queue
# virtio-net whose memory the device reaches by an IOMMU's addresses (which its zero-copy needs), and runs xdp-guest.sh
# inside. Clients are in a namespace outside. Speed there means nothing; the script checks where the program is
# attached, who copies, and whether calls busy poll the driver.
#
#   LULL=target/debug/lull qemu-xdp.sh KERNEL.deb [MODULES.deb]
#
# It needs what qemu.sh needs, and ping. Exit status 0 only if every check in the guest has passed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/guest.sh"
cp "$here/xdp-guest.sh" "$root/init"
add memcached
add "$(dirname "$lull")/liblull_preload.so"
mkdir -p "$root/etc"; echo root:x:0:0::/:/bin/sh > "$root/etc/passwd" # memcached looks its user up
pack

run="$machine -smp 2 -m 1024 -netdev tap,id=net,ifname=lull,queues=2,script=no,downscript=no
    -device virtio-net-pci,netdev=net,mq=on,rss=on,vectors=6,romfile=,disable-legacy=on,iommu_platform=on"
# Clients of the services in the guest: they use an address of lull's alone, and a port of the guest's own address.
cat > "$work/client" <<'C'
until ip addr add 10.99.0.2/24 dev lull 2> /dev/null && ip link set lull up; do sleep 1; done
while sleep 1; do
    for server in 10.99.0.7:11211 10.99.0.1:11311; do
        timeout 60 "$1" load $server --load 100 --connections 4 --records 20 --seconds 2 > /dev/null 2>&1 || true
    done
done
C
cat > "$work/both" <<'B'
sh "$1/client" "$2" & client=$!
shift 2
"$@" -append 'console=ttyS0 quiet panic=-1' < /dev/null
kill $client
B
unshare --map-root-user --net sh "$work/both" "$work" "$(realpath "$lull")" timeout 900 $run | tee "$work/log"
grep -q '^all checks passed' "$work/log"
