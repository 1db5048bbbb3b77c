# Two programs in PID namespaces of their own, as in two containers that share /run: they have the same process ids, and
# each is shown.
. "$(dirname "$0")/harness.sh"

serve() {
    unshare --pid --fork --kill-child --mount-proc "$lull" run --nic "tap:lull$1" --addr "10.0.$1.2/24" \
        --peer-addr "10.0.$1.1/24" --mode "$mode" -- "${unprivileged[@]}" memcached -l "10.0.$1.2" -t 1 >"said$1" 2>&1 &
    until_it "$lull" load "10.0.$1.2:11211" --connections 1 --seconds 0.1 --warm-up 0.1
}
touch said
serve 1
serve 2
"$lull" show >shown 2>&1
[ "$(grep -c "memcached on lull's user plane" shown)" = 2 ] || fail "not both are shown: $(cat shown said1 said2)"
echo done
