#!/usr/bin/env bash
# Makes a table of further programs that were written by others: server by mode, with what each answered. No request may
# fail. The client is another process on the same machine, whose other load takes its share, so the figures only show
# that the program ran.
#
#   further.sh LULL DIRECTORY [PROGRAM...]     the command; where to keep the logs; all programs if absent
#
# LULL_TEST_SECONDS is the time for which each is loaded (5). It needs root, curl and the servers; a server that is
# missing is named in its row.
set -uo pipefail
scripts=$(realpath "$(dirname "$0")/../programs")
. "$(dirname "$0")/common.bash"
rm -rf "$2"
suite "the table of further programs" "$1" "$2" ip unshare curl python3
shift 2
PATH=$PATH:/usr/sbin

declare -A needs=([apache]=apache2 [squid]="squid ab" [unbound]="unbound dig" [named]="named dig"
    [pgbench]=psql [vsftpd]=vsftpd [varnish]="varnishd wrk")
programs=("$@")
[ $# = 0 ] && programs=(apache squid unbound named pgbench vsftpd varnish)
modes=(base suspend20 fullbusy)
# Prints the first of a program's commands that is missing.
missing() {
    local command
    for command in ${needs[$1]}; do
        command -v "$command" >/dev/null || { echo "$command"; return; }
    done
}
failed=0
echo "| program | base | suspend20 | fullbusy |"
echo "| --- | --- | --- | --- |"
for program in "${programs[@]}"; do
    row="| $program |"
    for mode in "${modes[@]}"; do
        cell=$directory/$program-$mode
        mkdir "$cell"
        lacks=$(missing "$program")
        if [ -n "$lacks" ]; then
            row+=" $lacks is not installed |"
        elif (cd "$cell" && timeout -k 10 480 unshare -n --pid --fork --kill-child=KILL --mount-proc bash "$scripts/further.sh" \
            "$lull" "$mode" "$program") >"$cell/answer" 2>"$cell/errors" && [ -s "$cell/answer" ]; then
            row+=" $(tail -n 1 "$cell/answer") |"
        else
            row+=" FAILED |"
            failed=1
        fi
    done
    echo "$row"
done
[ "$failed" = 0 ] || { echo "cells failed: see $directory"; exit 1; }
