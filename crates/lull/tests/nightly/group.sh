#!/usr/bin/env bash
# Runs a service whose queues a group of CPUs polls and sends from, under a flood and a thin load, while the group's
# cores and NAPIs come and go. Fails if a request is not answered or a change is refused. Then the service is ended by
# SIGTERM, and by SIGKILL; a service that is started after that has the same device and answers.
#
#   group.sh LULL DIRECTORY [SECONDS]     the command; where to keep the logs; 120 seconds by default
set -uo pipefail
if [ -z "${LULL_GROUP_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "SKIP: groups under load: this is not root, which a TAP takes"; exit 0; }
    command -v jq >/dev/null || { echo "SKIP: groups under load: jq is missing"; exit 0; }
    lull=$(realpath "$1")
    script=$(realpath "$0")
    mkdir -p "$2" && cd "$2" || exit 1
    export LULL_GROUP_INSIDE=1
    exec unshare -n --pid --fork --kill-child=KILL --mount-proc bash "$script" "$lull" . "${3:-120}"
fi
lull=$1 seconds=$3
ip link set lo up
# The poller that stays, and the one that comes and goes.
stays=0 comes=$(($(nproc) > 1 ? 1 : 0))

fail() { echo "groups under load: $1"; tail -n 5 ./*.said; exit 1; }

serve() {
    "$lull" serve --nic tap:lull0 --addr 10.0.0.2/24 --peer-addr 10.0.0.1/24 -t 1 --cores 0 --mode "$1" --qdisc fq \
        --group-cpus "$stays" --oversubscribe >served.said 2>&1 &
    service=$!
    local tries=0
    until load check 0.2 --connections 2 --load 100; do
        kill -0 "$service" 2>/dev/null || fail "the service ended"
        [ $((tries += 1)) -lt 300 ] || fail "the service does not answer"
        sleep 0.2
    done
}

# Each request has to be answered; TCP repeats what is lost.
load() {
    local name=$1 time=$2
    shift 2
    timeout $((${time%.*} + 120)) "$lull" load 10.0.0.2:11211 --warm-up 0.1 --seconds "$time" "$@" >"$name.said" 2>&1 &&
        grep -q ' 0 errors), 0 lost, 0 unanswered' "$name.said"
}

group() {
    local action=$1
    shift
    "$lull" group "$action" "$service" "$@" >group.said 2>&1 || fail "group $action $*: $(cat group.said)"
    changes=$((changes + 1))
}

members() { "$lull" group show "$service" --json | jq -r '.[0].members[].napi_id'; }

# Makes every change of a group: one poller more and one less, one member less and one more, and no poller at all.
turn() {
    local napi
    [ "$comes" = "$stays" ] || group attach "$comes"
    for napi in $all; do
        group remove "$napi"
        group add "$napi" --weight $((1 + (changes % 64)))
    done
    group detach "$stays"
    if [ "$comes" != "$stays" ]; then
        group attach "$stays"
        group detach "$comes"
        group detach "$stays"
    fi
    # When the last poller is detached, all members leave the group.
    [ -z "$(members)" ] || fail "a group without CPUs has members: $(members)"
    group attach "$stays"
    for napi in $all; do group add "$napi"; done
}

for mode in group group50; do
    serve "$mode"
    all=$(members)
    [ "$(wc -w <<<"$all")" = 2 ] || fail "a queue's receiving and transmitting NAPI are not members: $all"
    changes=0 turns=0
    load flood $((seconds / 2)) --connections 16 --depth 16 --load MAX & flood=$!
    load thin $((seconds / 2)) --connections 4 --load 200 & thin=$!
    while kill -0 "$thin" 2>/dev/null; do
        turn
        turns=$((turns + 1))
        [ "$(members | sort)" = "$(sort <<<"$all")" ] || fail "members are missing: $(members)"
    done
    wait "$flood" || fail "the flood lacks answers"
    wait "$thin" || fail "the thin load lacks answers"
    load check 0.2 --connections 2 --load 100 || fail "it does not answer after the changes"
    echo "$mode: $changes changes in $turns turns, 0 lost; flood: $(grep queries flood.said | tr -s ' ')"
    kill -TERM "$service"
    wait "$service"
    ended=$?
    # A shell reports 143 for a program that the signal ended.
    [ "$ended" = 0 ] || [ "$ended" = 143 ] || fail "SIGTERM: exit status $ended"
    ip link show lull0 >/dev/null 2>&1 && fail "the TAP is still there after SIGTERM"

    serve "$mode"
    load flood 5 --connections 16 --depth 16 --load MAX & flood=$!
    sleep 1
    kill -KILL "$service"
    wait "$service" 2>/dev/null
    kill "$flood" 2>/dev/null
    wait "$flood" 2>/dev/null
    serve "$mode"
    kill -TERM "$service"
    wait "$service"
    echo "$mode: a service answers after one that was killed"
done
