# Unmodified PostgreSQL, which forks a process for each connection: what clients write and read is also what its other
# socket, one of the kernel's, shows; there are many short connections, queries that are cancelled, sessions that are
# ended from elsewhere, a crash of one process, after which it starts again, and a clean end. $3: "tap" or "xdp".
. "$(dirname "$0")/harness.sh"

bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
on_nic "$3" 1
# PostgreSQL refuses to run as root.
"${unprivileged[@]}" "$bin/initdb" -D data -U tester -A trust --no-sync --no-locale -E UTF8 >initialised 2>&1 ||
    fail "no database: $(cat initialised)"
cat >>data/postgresql.conf <<END_OF_CONF
listen_addresses = '$own'
unix_socket_directories = '$PWD'
fsync = off
max_connections = 50
END_OF_CONF
echo "host all all 0.0.0.0/0 trust" >>data/pg_hba.conf
[ "$3" = xdp ] && pings_begin
on_lull "${unprivileged[@]}" "$bin/postgres" -D data
asks() { there psql -h "$own" -U tester postgres -Atqc "$1"; }
until_it asks 'SELECT 1'

asks "CREATE TABLE t AS SELECT g AS i, md5(g::text) AS m FROM generate_series(1, 50000) g" || fail "nothing was written"
asks 'SELECT * FROM t ORDER BY i' >lulls || fail "nothing was read"
psql -h "$PWD" -U tester postgres -Atqc 'SELECT * FROM t ORDER BY i' >kernels || fail "nothing was read over the kernel's socket"
cmp lulls kernels || fail "the two worlds differ"
asks "\\copy t from lulls with delimiter '|'" || fail "nothing was copied"
[ "$(asks 'SELECT count(*) FROM t')" = 100000 ] || fail "something was lost"

there "$bin/pgbench" -h "$own" -U tester -i -q postgres >bench 2>&1 || fail "no tables: $(cat bench)"
there "$bin/pgbench" -h "$own" -U tester -c 4 -t 50 postgres >bench 2>&1 || fail "the load: $(cat bench)"
there "$bin/pgbench" -h "$own" -U tester -c 4 -t 10 -C -S postgres >>bench 2>&1 || fail "short connections: $(cat bench)"
[ "$(grep -c 'failed transactions: 0 ' bench)" = 2 ] || fail "transactions failed: $(cat bench)"

# Asks about the sessions that sleep for this time. A session that has woken is shown with the query until it has ended.
that_sleep() { asks "SELECT $1 FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep($2)'"; }
is_sleeping() { [ "$(that_sleep 'count(*)' "$1")" = 1 ]; }
for how in cancel terminate; do
    asks 'SELECT pg_sleep(1000)' >answer 2>&1 &
    session=$!
    until_it is_sleeping 1000
    that_sleep "pg_${how}_backend(pid)" 1000 >/dev/null
    wait "$session" && fail "it slept on"
    grep -q "due to \(user request\|administrator command\)" answer || fail "after $how: $(cat answer)"
done

# One of its processes dies, so it ends all of them and starts again; the clients get an error.
asks 'SELECT pg_sleep(2000)' >answer 2>&1 &
session=$!
until_it is_sleeping 2000
pid=$(that_sleep pid 2000)
kill -KILL "$pid"
wait "$session" && fail "its process is dead"
# Before the first process notices, another client is served, and ended with the others.
until_it grep 'all server processes terminated; reinitializing' said
until_it asks 'SELECT 1'
[ "$(asks 'SELECT count(*) FROM t')" = 100000 ] || fail "something was lost with the crash"
stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -q 'database system is shut down' said || fail "SIGTERM did not end it cleanly"
[ "$3" = xdp ] && pings_end
echo done
