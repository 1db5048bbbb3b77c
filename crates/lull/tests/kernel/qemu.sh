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
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
lull=${LULL:-target/debug/lull}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/usr/bin" "$root/modules" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp"

for package in "$@"; do dpkg-deb -x "$package" "$work/debs"; done
kernel=$(find "$work/debs" -name 'vmlinuz*' | head -n 1)
[ -n "$kernel" ] || { echo "no vmlinuz in $*: name the package that has it (linux-binary-*)" >&2; exit 2; }
for module in failover net_failover virtio_net veth; do
    found=$(find "$work/debs" -name "$module.ko*" | head -n 1)
    case $found in
        *.xz) xz -dc "$found" > "$root/modules/$module.ko" ;;
        '') echo "no module $module in $*: taken for built in" >&2 ;;
        *) cp "$found" "$root/modules/$module.ko" ;;
    esac
done

# A program with the libraries that it loads.
add() {
    program=$(command -v "$1") || { echo "$1 is not installed" >&2; exit 2; }
    cp "$program" "$root/usr/bin/"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}
for program in "$lull" ip ethtool chrt taskset; do add "$program"; done
[ -e "$root/usr/bin/lull" ] || mv "$root/usr/bin/$(basename "$lull")" "$root/usr/bin/lull"
strip "$root/usr/bin/lull" 2>/dev/null || true
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$here/qemu-guest.sh" "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$work/initramfs"

# Several queues take a TAP device; it is in a namespace that ends with QEMU.
run="qemu-system-x86_64 -accel tcg -cpu max -smp 4 -m 1024 -display none -serial stdio -monitor none -no-reboot
    -kernel $kernel -initrd $work/initramfs -netdev tap,id=net,ifname=lull,queues=4,script=no,downscript=no
    -device virtio-net-pci,netdev=net,mq=on,vectors=10,romfile="
unshare --map-root-user --net timeout 600 $run -append 'console=ttyS0 quiet panic=-1' < /dev/null | tee "$work/log"
grep -q '^all checks passed' "$work/log"
