#!/bin/sh
# Drives dist/lull@.service: boots a kernel under QEMU with this machine's systemd and udev as its first process, and
# runs systemd-guest.sh inside, on a two-queue veth.
#
#   LULL=target/debug/lull qemu-systemd.sh KERNEL.deb [MODULES.deb]
#
# It takes what qemu.sh takes, but for the TAP device, and systemd and udev as Debian installs them.
# Exit status 0 only if every check in the guest has passed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/guest.sh"
for program in systemctl journalctl; do add $program; done
add udevadm bin
for program in systemd systemd-executor systemd-journald systemd-shutdown; do
    # Not every version has each of these.
    [ ! -e /lib/systemd/$program ] || add /lib/systemd/$program lib/systemd
done
ln -s /bin/udevadm "$root/lib/systemd/systemd-udevd"
mkdir -p "$root/usr/lib/udev/rules.d" "$root/lib/udev" "$root/etc/systemd/system" "$root/newroot"
cp -a /lib/systemd/system "$root/lib/systemd/"
cp /usr/lib/udev/rules.d/99-systemd.rules "$root/usr/lib/udev/rules.d/"
ln -s /usr/lib/udev/rules.d "$root/lib/udev/rules.d"
units=$root/etc/systemd/system
cp "$here/../../../../dist/lull@.service" "$units/"
cp "$here/systemd-guest.sh" "$root/check.sh"
echo 'root:x:0:0:root:/root:/bin/sh' > "$root/etc/passwd"
echo 'root:x:0:' > "$root/etc/group"
echo 'ID=lull' > "$root/etc/os-release"
echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
printf '[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nExecStart=/bin/busybox sh /check.sh\n' \
    > "$units/check.service"
printf '[Unit]\nRequires=basic.target check.service\nAfter=basic.target\n' > "$units/default.target"
# The units of an ordinary boot have no purpose here.
for unit in systemd-tmpfiles-setup systemd-tmpfiles-setup-dev systemd-sysusers systemd-random-seed systemd-update-utmp \
    systemd-modules-load systemd-sysctl systemd-binfmt systemd-journal-flush kmod-static-nodes systemd-pstore; do
    ln -s /dev/null "$units/$unit.service"
done
# pivot_root cannot leave the first root, and the mounts of services use it.
cat > "$root/init" <<'I'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin
mount -t devtmpfs dev /dev
for module in failover net_failover virtio_net veth; do
    [ ! -f /modules/$module.ko ] || insmod /modules/$module.ko
done
mount -t tmpfs -o mode=755 root /newroot
for directory in /*; do
    case $directory in
        /newroot | /dev | /proc | /sys) mkdir -p /newroot$directory ;;
        *) cp -a $directory /newroot/ ;;
    esac
done
mount --move /dev /newroot/dev
exec switch_root /newroot /lib/systemd/systemd
I
pack

append='console=ttyS0 quiet panic=-1 systemd.show_status=no systemd.unified_cgroup_hierarchy=1'
timeout 600 $machine -smp 2 -m 2048 -nic none -append "$append" < /dev/null | tee "$work/log"
grep -q '^all checks passed' "$work/log"
