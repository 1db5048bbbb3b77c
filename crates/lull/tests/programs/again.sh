# A program that is started anew and anew under the same launcher, as a supervisor does, has the NIC each time: memcached is killed,
# and the next one answers. $3: over "tap" or "xdp".
. "$(dirname "$0")/harness.sh"

options=()
[ "$3" = xdp ] && on_veth 1
on_lull sh -c "while [ ! -e stop ]; do unshare --user --map-user=1000 memcached -l $own -p 11211 -t 1; done"
started() { pgrep -x memcached >now && ! cmp -s now before; }
answers() { there "$lull" load "$own:11211" --connections 4 --seconds 0.1 --warm-up 0.1; }
echo none >before
for _ in 1 2 3; do
    until_it started
    until_it answers
    mv now before
    kill -9 $(cat before)
done
until_it started
touch stop
kill $(cat now)
wait "$launcher"
cat said
echo done
