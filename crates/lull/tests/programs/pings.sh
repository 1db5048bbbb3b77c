# Faults of a program over AF_XDP ($3): it runs under strace, gdb is "attached" to it, it may have little memory
# ("memlock", "address-space"), it is "stopped", its "launcher" is killed. Either it serves, or a line says what stands
# in the way, and the host answers pings through the same interface all the time.
. "$(dirname "$0")/harness.sh"

fault=$3
on_veth 1
pings_begin
answers() { memcached_answers 4; }
memcached+=(-t 1)
case "$fault" in
strace)
    on_lull strace -f -o trace "${memcached[@]}"
    until_it answers
    grep -q 'epoll' trace || fail "strace saw nothing"
    kill -TERM "$(pgrep -x memcached)"
    wait "$launcher"
    ;;
attached)
    on_lull "${memcached[@]}"
    until_it answers
    # gdb is attached and detached while it serves, and each time it goes on.
    for _ in 1 2 3; do
        timeout 120 gdb -q -batch -p "$(pgrep -x memcached)" -ex 'info threads' -ex detach >gdb 2>&1
        grep -q 'Thread\|LWP' gdb || fail "gdb: $(cat gdb)"
        answers || fail "it does not answer after gdb: $(cat load)"
    done
    stop
    ;;
memlock)
    # 1 MiB may be pinned, and the rings need 4.
    on_lull "${unprivileged[@]}" bash -c "ulimit -l 1024; exec memcached -l $own -p 11211 -t 1"
    until_it grep -q 'RLIMIT_MEMLOCK is 1024 KiB' said
    grep -q 'ulimit -l' said || fail "there is no remedy"
    kill -TERM "$launcher" 2>/dev/null
    wait "$launcher"
    ;;
address-space)
    # memcached starts, but there is too little memory for the stack.
    on_lull "${unprivileged[@]}" bash -c "ulimit -v 110000; exec memcached -m 8 -l $own -p 11211 -t 1"
    until_it grep -q "no room for lull's stack" said
    grep -q 'ulimit -v' said || fail "there is no remedy"
    kill -TERM "$launcher" 2>/dev/null
    wait "$launcher"
    ;;
stopped)
    on_lull "${memcached[@]}"
    until_it answers
    kill -STOP "$(pgrep -x memcached)"
    before=$(grep -c icmp_seq pings)
    until_it pinged $((before + 20))
    kill -CONT "$(pgrep -x memcached)"
    answers || fail "it does not answer after it was stopped: $(cat load)"
    stop
    ;;
launcher)
    on_lull "${memcached[@]}"
    until_it answers
    program=$(pgrep -x memcached)
    kill -9 "$launcher"
    wait "$launcher"
    answers || fail "it does not answer without its launcher: $(cat load)"
    kill -TERM "$program"
    until_it eval '! ip link show x0 | grep -q xdp'
    ;;
esac
pings_end
ip link show x0 | grep -q xdp && fail "the XDP program is left"
cat said
echo done
