# The common part of qemu.sh and qemu-systemd.sh, which source it with the Debian packages of a kernel in $@. It leaves
# $kernel, a $root for the guest with that kernel's network modules, and `add`, and removes everything at the end.
[ $# -ge 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lull=${LULL:-target/debug/lull}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
root=$work/root
for directory in bin usr/bin modules proc sys dev run tmp; do mkdir -p "$root/$directory"; done

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

# Adds a program with the libraries that it loads: add PROGRAM [DIRECTORY].
add() {
    program=$(command -v "$1") || { echo "$1 is not installed" >&2; exit 2; }
    mkdir -p "$root/${2:-usr/bin}"
    cp -L "$program" "$root/${2:-usr/bin}/"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}
for program in "$lull" ip ethtool chrt taskset; do add "$program"; done
[ -e "$root/usr/bin/lull" ] || mv "$root/usr/bin/$(basename "$lull")" "$root/usr/bin/lull"
strip "$root/usr/bin/lull" 2>/dev/null || true
cp "$(command -v busybox)" "$root/bin/busybox"

# Packs $root, whose /init is what the kernel starts.
pack() {
    chmod +x "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$work/initramfs"
}
# The options of the guest's machine except its network; it has no KVM, so that it runs anywhere.
machine="qemu-system-x86_64 -accel tcg -cpu max -display none -serial stdio -monitor none -no-reboot -kernel $kernel
    -initrd $work/initramfs"
