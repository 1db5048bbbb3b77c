# A server that executes other programs, starts children, closes and duplicates numbers, and calls by number, while it
# serves (calls.c, whose first argument says what it does).
. "$(dirname "$0")/harness.sh"
what=$3

cc -pthread -o calls "$(dirname "$0")/calls.c" || fail "calls.c does not compile"
client() {
    timeout 120 python3 "$(dirname "$0")/calls_client.py" "$own" "$@" || fail "the client: $*"
}
PATH=$PWD:$PATH on_lull calls "$what" "$own"
case $what in
"exec "*)
    # A connection that exec closes gets what was written, and the end; one that it does not close is reset, and named.
    client a:open b:open a:ask b:ask a:bye b:reset c:again
    grep -q 'the connection 10.0.0.2:7777 - 10.0.0.1:[0-9]*, cannot stay open over the exec of .*: it is reset' said ||
        fail "the connection that is lost is not named"
    [ "$(grep -c 'cannot stay' said)" = 1 ] || fail "something else is named"
    ;;
no-program)
    client a:open a:ask a:end b:again b:end
    grep -q './junk could not be executed after 2 of lull.s sockets were closed for it' said || fail "what is lost is not said"
    ;;
children) client a:open a:ask a:ask a:ask a:ask a:ask a:end ;;
daemon) client a:open a:ask a:end ;;
numbers) client a:open b:open a:ask a:ask b:ask a:ask b:end a:ask a:ask a:ask a:end ;;
by-number) client a:open a:ask a:ask a:end ;;
esac
wait "$launcher" || fail "the program failed"
grep -q "not so" said && fail "a call went wrong"
case $what in "exec "* | no-program | daemon) until_it grep -q served said ;; esac
echo done
