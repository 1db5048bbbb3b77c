# A shell that has children replaces itself by `lull`; the launcher does not stay for these children: SCRIPT LULL MODE.
. "$(dirname "$0")/harness.sh"

timeout 300 bash -c 'sleep 1000 & echo $! >sleeper; exec "$@"' - "$lull" run "${nic[@]}" --mode "$mode" -- true >said 2>&1 ||
    fail "it ended with $?"
kill "$(cat sleeper)" || fail "the shell's child has ended"
grep -q 'left in the background' said && fail "it takes the shell's child for the program's"
echo done
