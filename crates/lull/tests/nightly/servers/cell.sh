# Runs one cell of the table of servers: SCRIPT LULL MODE SERVER, where the mode "kernel" means the kernel's own
# sockets. The last line is "passed" if every answer was the expected one; the server's exit status goes to the file
# "ended".
cases=$(realpath "$(dirname "$0")")
. "$cases/../../programs/harness.sh"
PATH=$PATH:/usr/sbin
declare -A needs
names=()
for file in "$cases"/*.bash; do . "$file"; done

# Starts the tested server in the background.
serve() {
    if [ "$mode" != kernel ]; then
        on_lull "$@"
    else
        "$@" >said 2>&1 &
        launcher=$!
    fi
}
if [ "$mode" = kernel ]; then
    ip addr add "$own/24" dev lo
    ip addr add 10.0.0.1/24 dev lo
fi

# Waits until a command succeeds, or the server has ended.
ended() { ! kill -0 "$launcher"; }
succeeds_or_ended() { "$@" || ended; }
answers() {
    until_it succeeds_or_ended there "$@"
    ! ended 2>/dev/null || fail "the server has ended before it answered"
}
# same EXPECTED COMMAND...: the command succeeds, and its standard output is exactly this.
same() {
    local expected=$1 is
    shift
    is=$(there "$@" 2>refused) || fail "$* failed with status $?: $(cat refused)"
    [ "$is" = "$expected" ] || fail "$* says '${is:0:200}' and not '${expected:0:200}'"
}
# whole FILE COMMAND...: the command's output is the same as the file, byte by byte.
whole() {
    local file=$1 out=out.$BASHPID refused=refused.$BASHPID
    shift
    there "$@" >"$out" 2>"$refused" || fail "$* failed with status $?: $(cat "$refused")"
    cmp "$file" "$out" || fail "what $* says differs from $file"
    rm "$out"
}
# at_once COUNT COMMAND...: runs this many of the command at once, each of which has to succeed; $nth is the number of
# each.
at_once() {
    local count=$1 clients=() nth client
    shift
    for nth in $(seq "$count"); do
        nth=$nth "$@" &
        clients+=($!)
    done
    for client in "${clients[@]}"; do
        wait "$client" || fail "one of $count at once failed: $*"
    done
}
# A server of html/ on the kernel's loopback, port 8081, for servers that pass requests on.
behind() {
    site 5000000
    (cd html && exec python3 -m http.server --bind 127.0.0.1 8081 >/dev/null 2>&1) &
    until_it curl -sf -o /dev/null http://127.0.0.1:8081/index.html
}
# Makes a certificate for the server's address, cert.pem with its key key.pem.
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 \
        -subj "/CN=$own" -addext "subjectAltName=IP:$own" >made 2>&1 || fail "no certificate: $(cat made)"
    cat key.pem cert.pem >both.pem
}
# Gives a user of the machine another home, in this mount namespace only; a user who does not exist gets the number $3.
home() {
    local user=$1 id=${3:-0}
    { grep -v "^$user:" /etc/passwd; echo "$user:x:$id:$id::$2:/bin/sh"; } >passwd.of."$user"
    mount --bind "passwd.of.$user" /etc/passwd || fail "no passwd"
}
# Checks the answers of an HTTP server: a file, eight large ones at once, a part of one, many requests on one
# connection, and a missing one.
by_http() {
    local url=$1
    shift
    answers curl -sf "$@" -o /dev/null "$url/index.html"
    same hello curl -sf "$@" "$url/index.html"
    at_once 8 whole html/large curl -sf --max-time 120 "$@" "$url/large"
    same 404 curl -s "$@" -o /dev/null -w '%{http_code}' "$url/missing"
    same "$(yes hello | head -n 200)" curl -sf "$@" "$url/index.html?[1-200]"
}

"case_$3"
stop
echo "$status" >ended
! grep -q 'panicked at' said || fail "a thread panicked"
echo passed
