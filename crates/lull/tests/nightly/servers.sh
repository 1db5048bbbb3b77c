#!/usr/bin/env bash
# Runs unmodified servers that were written by others, by a table of cases: a client asks each server on the kernel's
# sockets first, and then on lull's user plane over a TAP in each mode. In all of them the answers are compared with the
# expected ones, and so is the status with which the server ends, which shows that SIGTERM ends it.
#
#   servers.sh LULL DIRECTORY [SERVER...]     the command; where to keep the logs; all servers if absent
#
# The cases are in servers/*.bash. LULL_TEST_MODES has the modes ("suspend20 fullbusy"). It needs root; it installs
# missing packages if there is apt-get, unless LULL_TEST_INSTALL is "no". A server that is missing is skipped with the
# reason, and so is one that fails on the kernel, because then the case is wrong. It prints how many cells passed,
# failed and were skipped, and exits with status 1 if any failed.
set -uo pipefail
cases=$(realpath "$(dirname "$0")/servers")
. "$(dirname "$0")/common.bash"
PATH=$PATH:/usr/sbin
declare -A needs
names=()
for file in "$cases"/*.bash; do . "$file"; done
suite "the table of servers" "$1" "$2" ip unshare python3 cmp
shift 2
[ $# = 0 ] || names=("$@")
read -ra modes <<<"${LULL_TEST_MODES:-suspend20 fullbusy}"

# Prints the first of a server's commands that is missing: needs[] has its packages, a colon, and its commands.
missing() {
    local command
    for command in ${needs[$1]#*:}; do
        command -v "$command" >/dev/null || { echo "$command"; return; }
    done
}
# Installs packages in a PID namespace of their own: what they start ends with it, and the machine's services are not
# started. No package is removed for them (two FTP servers exclude each other).
install() {
    DEBIAN_FRONTEND=noninteractive unshare --pid --fork --kill-child=KILL --mount-proc sh -c '
        [ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd
        exec apt-get install -y -qq --no-remove --no-install-recommends "$@"' install "$@" >>"$directory/installed" 2>&1
}
# Runs one cell, in namespaces of its own: cell SERVER MODE.
cell() {
    local at=$directory/$1-$2
    rm -rf "$at" && mkdir "$at"
    (cd "$at" && timeout -k 10 "${LULL_TEST_CELL_SECONDS:-240}" unshare -n --pid --fork --kill-child=KILL --mount-proc \
        bash "$cases/cell.sh" "$lull" "$2" "$1") >"$at/answer" 2>"$at/errors" && [ "$(tail -n 1 "$at/answer")" = passed ]
}
# Prints the last line that a cell has printed.
why() { cat "$1/errors" "$1/answer" | grep . | tail -n 1 | cut -c1-300; }

lacking=()
for name in "${names[@]}"; do
    [ -n "${needs[$name]:-}" ] || { echo "there is no case $name in $cases"; exit 1; }
    [ -z "$(missing "$name")" ] || lacking+=("$name")
done
if [ ${#lacking[@]} -gt 0 ] && command -v apt-get >/dev/null && [ "${LULL_TEST_INSTALL:-yes}" != no ]; then
    apt-get update -qq >"$directory/installed" 2>&1
    for name in "${lacking[@]}"; do
        # The value is a list of packages, so it is split into words.
        install ${needs[$name]%%:*} || true
    done
fi

passed=0 failed=0 skipped=0
skipping() {
    echo "SKIP: $1: $2"
    skipped=$((skipped + 1))
}
for name in "${names[@]}"; do
    lacks=$(missing "$name")
    if [ -n "$lacks" ]; then
        skipping "$name" "$lacks is not installed"
    elif ! cell "$name" kernel; then
        skipping "$name" "the case fails on the kernel's sockets: $(why "$directory/$name-kernel")"
    else
        line="$name:"
        for mode in "${modes[@]}"; do
            if ! cell "$name" "$mode"; then
                reason=$(why "$directory/$name-$mode")
            elif ! cmp -s "$directory/$name-kernel/ended" "$directory/$name-$mode/ended"; then
                reason="it ends with status $(cat "$directory/$name-$mode/ended"), and on the kernel's sockets with $(cat "$directory/$name-kernel/ended")"
            else
                line+=" $mode passed"
                passed=$((passed + 1))
                continue
            fi
            line+=" $mode FAILED ($reason)"
            failed=$((failed + 1))
        done
        echo "$line"
    fi
done
echo "servers: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || { echo "what they said is in $directory"; exit 1; }
