# Unmodified haproxy with a master process is told to reload (USR2) again and again: SCRIPT LULL MODE. The new worker asks the old one
# for its listeners over a Unix socket, is refused, and makes its own.
. "$(dirname "$0")/harness.sh"
haproxy_cfg http <<END
frontend web
    bind $own:8080
    http-request return status 200 content-type text/plain string "hello"
END
options=(--queues 2)
on_lull haproxy -W -f haproxy.cfg
answers() { [ "$(curl -sf -m 30 "http://$own:8080/")" = hello ]; }
until_it answers
master() { pgrep -o -x haproxy; }
# The master has one worker, another than before.
is_another() {
    now=$(pgrep -P "$(master)" -x haproxy) && [ "$(wc -l <<<"$now")" = 1 ] && [ "$now" != "$worker" ]
}
worker=none
until_it is_another
for _ in 1 2 3; do
    worker=$now
    kill -USR2 "$(master)"
    until_it is_another
    until_it answers
    # Nothing of the one that has ended is in the way of later ones.
    for _ in 1 2 3 4 5; do answers || fail "no answer after a reload"; done
done
stop
echo done
