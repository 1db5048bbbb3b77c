# An objective for an unmodified memcached: its timeouts are chosen, the decision is the same in `lull show`, on the
# screen of `lull top` and in the metrics, and a program of another network namespace whose device has the same name is
# left alone. When the launcher is killed, the program returns to the mode that was asked for.
. "$(dirname "$0")/harness.sh"

# Prints a setting in nanoseconds of the only NAPI of a process, from `lull show --json`.
setting() { "$lull" show "$1" --json | jq -e ".[0].napis[0].settings.$2"; }
has() { [ "$(setting "$1" "$2")" = "$3" ]; }
mode_of() { "$lull" show "$1" --json | jq -er '.[0].modes[0].mode'; }
is_in() { [ "$(mode_of "$1")" = "$2" ]; }
metrics() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' "$address"; }
is_long() { [ "$(setting "$program" gro_flush_timeout_ns)" -gt 1000000 ]; }
# The timeout that is in force, the one that was decided, and the exported ones are the same.
agrees() {
    local ns shown exported
    ns=$(setting "$program" gro_flush_timeout_ns)
    shown=$("$lull" show "$program" --json | jq -e '.[0].controller.timeout_ns')
    exported=$(metrics | sed -n 's/^lull_\(napi_gro_flush\|controller\)_timeout_seconds{.*} //p' |
        awk '{ printf "%.0f\n", $1 * 1e9 }' | sort -u)
    [ "$ns" = "$shown" ] && [ "$ns" = "$exported" ]
}
is_uncontrolled() { [ "$("$lull" show "$1" --json | jq '.[0].controller')" = null ]; }

# The other program has the same device, the same address, and no objective.
unshare -n bash -c 'ip link set lo up; exec "$@"' bash "$lull" run "${nic[@]}" --mode "$mode" -- "${memcached[@]}" >other 2>&1 &
# `ip` is a child of the shell, too, before lull takes the shell's place.
until_it pgrep -x -P $! memcached
other=$(pgrep -x -P $! memcached)
until_it "$lull" show "$other"

# This is more than any answer takes on a busy machine, so timeouts become longer.
options=(--slo 'p99<2s' --prometheus 127.0.0.1:0)
on_lull "${memcached[@]}" -t 1
find_program
until_it memcached_answers
until_it grep 'metrics are at' said
address=$(sed -n 's/.*metrics are at //p' said)
"$lull" load "$own:11211" --connections 8 --load 500 --seconds 3600 >load 2>&1 &
load=$!
until_it is_long
until_it agrees
"$lull" show "$program" >shown 2>&1
grep -q "controller: p99<2s from $mode: " shown || fail "what was decided is not shown: $(cat shown)"
metrics >exported
grep -q "^lull_controller_objective{.*pid=\"$program\",objective=\"p99<2s\",mode=\"$mode\"} 1" exported ||
    fail "what was decided is not exported: $(cat exported)"
grep -q "pid=\"$other\"" exported && fail "another program's figures are exported: $(cat exported)"
# A change is reported after it is in force.
until_it grep 'gro_flush_timeout .* (was 20us)' said

is_in "$other" "$mode" || fail "the other program's mode was changed: $("$lull" show "$other")"
is_uncontrolled "$other" || fail "the other program has a controller: $("$lull" show "$other")"

if command -v tmux >/dev/null; then
    drawn() { tmux -L "slo-$$" capture-pane -p | grep "controller: p99<2s from $mode: "; }
    tmux -L "slo-$$" -f /dev/null new-session -d -x 170 -y 20 "$lull top $program"
    until_it drawn
    tmux -L "slo-$$" kill-server
fi

# When a controller is killed, only the program itself restores its mode.
kill -KILL "$launcher"
until_it is_uncontrolled "$program"
until_it is_in "$program" "$mode"
until_it has "$program" gro_flush_timeout_ns 20000
kill -0 "$load" || fail "the load ended: $(cat load)"
memcached_answers || fail "it answers no more: $(cat load)"
cat said
echo done
