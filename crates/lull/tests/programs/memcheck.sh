# redis and nginx run under valgrind's memcheck, whose report is in the file "memcheck": neither the programs nor the
# library read uninitialised or foreign memory. $3: over "tap" or "xdp".
. "$(dirname "$0")/harness.sh"

# By default valgrind gives one thread of a program the CPU until it blocks.
memcheck=(valgrind --error-exitcode=99 --fair-sched=yes --log-file="$PWD/memcheck")
checked() {
    stop
    # If a signal ends the program, valgrind ends by the same signal; its own exit code appears only for programs that
    # end by themselves.
    grep -q 'ERROR SUMMARY: 0 errors' memcheck || fail "$1: $(cat memcheck)"
    echo "$1: $(grep -o 'ERROR SUMMARY: .*contexts' memcheck)"
}

on_nic "$3" 1
on_lull "${unprivileged[@]}" "${memcheck[@]}" redis-server --bind "$own" --protected-mode no --save "" --dir "$PWD"
until_it there timeout 5 redis-cli -h "$own" ping
there redis-benchmark -h "$own" -c 8 -n 400 -d 3000 -t set,get --csv >bench 2>&1 || fail "redis: $(cat bench)"
there redis-benchmark -h "$own" -c 8 -n 800 -P 16 -t set,get,lrange_100 --csv >bench 2>&1 || fail "redis: $(cat bench)"
checked redis

site 300000
nginx_conf "master_process off" <<END
    sendfile on;
    server { listen $own:80; root $PWD/html; }
END
on_lull "${memcheck[@]}" nginx -c "$PWD/nginx.conf" -p "$PWD"
until_it there curl -sf --max-time 5 "http://$own/"
run_ab -n 40 -c 4 "http://$own/large"
run_ab -k -n 200 -c 4 "http://$own/"
there curl -sf "http://$own/large" | cmp - html/large || fail "the file is another"
checked nginx
echo done
