# Unmodified redis, $3 of whose threads read and write its sockets, answers single requests and pipelines.
. "$(dirname "$0")/harness.sh"

on_lull redis-server --bind "$own" --protected-mode no --save "" --dir . --io-threads "$3" --io-threads-do-reads yes
until_it timeout 5 redis-cli -h "$own" ping
for row in 1 16; do
    # redis-benchmark prints -ERR for requests that failed, and ends if a connection does.
    redis-benchmark -h "$own" -n 2000 -c 10 -P "$row" -t set,get --csv >bench 2>&1 || fail "rows of $row: $(cat bench)"
    [ "$(grep -c '^"[SG]ET"' bench)" = 2 ] || fail "rows of $row: $(cat bench)"
done
# The value is several segments long, in both directions.
redis-cli -h "$own" set long "$(seq 20000)" >/dev/null
[ "$(redis-cli -h "$own" get long)" = "$(seq 20000)" ] || fail "a long value came back otherwise"
stop
[ "$status" = 0 ] || fail "it ended with $status"
grep -q 'bye bye' said || fail "SIGTERM did not end it cleanly"
echo done
