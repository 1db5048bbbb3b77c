# A program that is started again and again under the same launcher, as by a supervisor, has the NIC each time:
# memcached is killed, and the next one answers. $3: over "tap" or "xdp".
. "$(dirname "$0")/harness.sh"

on_nic "$3" 1
on_lull sh -c "while [ ! -e stop ]; do ${memcached[*]} -t 1; done"
started() { pgrep -x memcached >now && ! cmp -s now before; }
echo none >before
for _ in 1 2 3; do
    until_it started
    until_it memcached_answers 4
    mv now before
    kill -9 $(cat before)
done
until_it started
touch stop
kill $(cat now)
wait "$launcher"
cat said
echo done
