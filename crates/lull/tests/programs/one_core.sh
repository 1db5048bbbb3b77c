# memcached on two queues has an interrupt thread for each, and one for both if it is confined to one core: SCRIPT LULL
# MODE
. "$(dirname "$0")/harness.sh"
options+=(--queues 2)

# Prints how many interrupt threads of the program serve on this core, or on all.
serve() {
    "$@" "$lull" run "${nic[@]}" --mode "$mode" "${options[@]}" -- "${memcached[@]}" >said 2>&1 &
    launcher=$!
    find_program
    until_it memcached_answers 8
    grep -l '^irq/' "/proc/$program"/task/*/comm | wc -l >threads
    load_memcached --connections 8 --seconds 0.2 --warm-up 0.1
    stop
}
serve env
[ "$(cat threads)" = 2 ] || fail "$(cat threads) interrupt threads on several cores"
serve taskset -c "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')"
[ "$(cat threads)" = 1 ] || fail "$(cat threads) interrupt threads on one core"
echo done
