# Runs mixed load for $3 seconds: memcached over AF_XDP, and over TAPs redis with I/O threads that saves while it is
# loaded and nginx with two workers that is reloaded, all at once. Nothing fails, memory does not grow, no interrupt
# stays masked, and the host answers pings through memcached's interface all the time.
. "$(dirname "$0")/harness.sh"

seconds=$3
on_veth 1
pings_begin
site 20000
nginx_conf "worker_processes 2" error <<END
    server {
        listen 10.0.3.2:80 reuseport;
        root $PWD/html;
        location /who { return 200 "\$pid\n"; }
    }
END
on_lull "${memcached[@]}" -t 1
cache=$launcher
nic=(--nic tap:lull2 --addr 10.0.2.2/24 --peer-addr 10.0.2.1/24)
on_lull redis-server --bind 10.0.2.2 --protected-mode no --save "" --dir "$PWD" --io-threads 2 --io-threads-do-reads yes
redis=$launcher
nic=(--nic tap:lull3 --addr 10.0.3.2/24 --peer-addr 10.0.3.1/24)
options=(--queues 4)
on_lull nginx -c "$PWD/nginx.conf"
nginx=$launcher
until_it memcached_answers
until_it redis-cli -h 10.0.2.2 ping
until_it curl -s -o got http://10.0.3.2/large

# Runs loads in turn until the file "stop" exists; a failure is written to a file.
rounds() {
    local name=$1 count=0
    shift
    while [ ! -e stop ]; do
        "$@" >"$name.said" 2>&1 || { cp "$name.said" "failed.$name"; return; }
        count=$((count + 1))
        echo "$count" >"$name.rounds"
    done
}
answered() { (load_memcached --connections 16 --load "$1" --seconds 5 --warm-up 0.1 --records 1000); }
ask_memcached() { answered 2K && answered 20K && sleep 1; }
ask_redis() {
    redis-benchmark -h 10.0.2.2 -n 20000 -c 10 -P "$((RANDOM % 16 + 1))" -r 1000 -t set,get,lpush,lrange_100 --csv >redis.bench 2>&1 || return 1
    grep -qi 'error\|refused\|reset' redis.bench && return 1
    redis-cli -h 10.0.2.2 del mylist && [ "$(redis-cli -h 10.0.2.2 ping)" = PONG ]
}
persistence() { redis-cli -h 10.0.2.2 info persistence | tr -d '\r' | sed -n "s/^rdb_$1://p"; }
has_saved() { [ "$(persistence bgsave_in_progress)" = 0 ] && [ "$(persistence last_save_time)" != "$1" ]; }
save_redis() {
    local before
    # redis's times are in seconds, and saves should not follow one another without a pause.
    sleep 5
    before=$(persistence last_save_time)
    redis-cli -h 10.0.2.2 bgsave
    for _ in $(seq 1200); do
        has_saved "$before" && break
        [ "$(persistence last_bgsave_status)" = ok ] || return 1
        sleep 0.1
    done
    has_saved "$before" && [ "$(persistence last_bgsave_status)" = ok ]
}
ask_nginx() { curl -s --retry 3 -o got "http://10.0.3.2/large" && cmp got html/large && sleep 0.2; }
reload_nginx() { kill -HUP "$(cat pid)"; sleep 10; }
python3 "$(dirname "$0")/keep_alive.py" 10.0.3.2 >client 2>&1 &
client=$!
pids=()
for each in ask_memcached ask_redis save_redis ask_nginx reload_nginx; do
    rounds "$each" "$each" &
    pids+=($!)
done

# Writes down the memory of each kind of process, every ten seconds.
sample() {
    for name in memcached redis-server nginx lull; do
        # It takes the largest process of each name, because children that save or end come and go.
        kib=$(for pid in $(pgrep -x "$name"); do sed -n 's/^VmRSS:\s*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null; done | sort -n | tail -1)
        echo "$name ${kib:-0}"
    done
}
begun=$SECONDS
while [ $((SECONDS - begun)) -lt "$seconds" ] && ! ls failed.* >/dev/null 2>&1; do
    sleep 10
    sample >>samples
done
touch stop
wait "${pids[@]}"
wait "$client" || fail "the client of nginx: $(cat client)"
cat client
ls failed.* >/dev/null 2>&1 && fail "$(tail -n 5 failed.*)"
for each in ask_memcached ask_redis save_redis ask_nginx reload_nginx; do echo "$each: $(cat $each.rounds) rounds"; done

# The second half may take at most a tenth more memory than the first half after its first third.
python3 - <<'END' || fail "memory grew: $(tr '\n' ' ' <samples)"
seen = {}
for line in open("samples"):
    name, kib = line.split()
    seen.setdefault(name, []).append(int(kib))
for name, kib in seen.items():
    half, third = len(kib) // 2, len(kib) // 6
    before, after = max(kib[third:half + 1]), max(kib[half:])
    print(f"{name}: largest of the first half {before} KiB, of the second {after} KiB")
    assert after <= before * 1.1 + 2048, name
END
# Every interrupt that was masked is unmasked again: a single request is answered.
sleep 3
for _ in 1 2 3; do
    timeout 60 redis-cli -h 10.0.2.2 ping >/dev/null || fail "redis does not answer"
    timeout 60 curl -s -o got http://10.0.3.2/large || fail "nginx does not answer"
    memcached_answers || fail "memcached does not answer"
    sleep 1
done
kill -TERM $redis $nginx $cache
wait $redis $nginx $cache
pings_end
exists lull2 || exists lull3 && fail "a TAP is left"
echo done
