#!/usr/bin/env bash
# Makes a table of unmodified programs: program by mode and device, with the requests a second that each answered. No
# request may fail. The client is another process on the same machine, and other load takes its share, so the figures
# only show that the program ran.
#
#   table.sh LULL DIRECTORY [PROGRAM...]
set -uo pipefail
scripts=$(realpath "$(dirname "$0")/../programs")
. "$(dirname "$0")/common.bash"
rm -rf "$2"
suite "the table of programs" "$1" "$2" ip unshare
shift 2

declare -A command=([memcached-t1]=memcached [memcached-t4]=memcached [redis]=redis-server [redis-io]=redis-server
    [nginx-1]=nginx [nginx-2]=nginx [haproxy]=haproxy [python]=python3 [node]=node)
programs=("$@")
[ $# = 0 ] && programs=(memcached-t1 memcached-t4 redis redis-io nginx-1 nginx-2 haproxy python node)
modes=(base suspend20 fullbusy)
failed=0
echo "| program | $(for device in tap xdp; do for mode in "${modes[@]}"; do printf '%s, %s | ' "$device" "$mode"; done; done)"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for program in "${programs[@]}"; do
    row="| $program |"
    for device in tap xdp; do
        for mode in "${modes[@]}"; do
            cell=$directory/$program-$device-$mode
            mkdir "$cell"
            if ! command -v "${command[$program]}" >/dev/null; then
                row+=" not installed |"
            elif (cd "$cell" && timeout -k 10 120 unshare -n --pid --fork --kill-child=KILL --mount-proc bash "$scripts/table.sh" \
                "$lull" "$mode" "$program" "$device") >"$cell/answer" 2>"$cell/errors" && [ -s "$cell/answer" ]; then
                row+=" $(tail -n 1 "$cell/answer") |"
            else
                row+=" FAILED |"
                failed=1
            fi
        done
    done
    echo "$row"
done
[ "$failed" = 0 ] || { echo "cells failed: see $directory"; exit 1; }
