# A server in the event loop of another language, $3: python, node or java. There are many connections at once, then a
# client of that language on lull, and a clean end.
. "$(dirname "$0")/harness.sh"

here=$(dirname "$0")
case $3 in
python) server() { "$@" python3 "$here/http_server.py" "$address" 8080; } ;;
node) server() { "$@" node "$here/http_server.js" "$address" 8080; } ;;
java)
    javac -d . "$here/HttpServer.java" || fail "javac"
    server() { "$@" java -Xint -Xmx64m -cp . HttpServer "$address" 8080; }
    ;;
esac
address=$own
server on_lull
until_it python3 "$here/load_http.py" "$own" 8080 1 1
python3 "$here/load_http.py" "$own" 8080 100 16 || fail "the client"
stop
grep -q 'ended by SIGTERM' said || fail "SIGTERM did not end it cleanly"

# The roles are exchanged: the server is the kernel's, and the client is on lull.
address=10.0.0.1
python3 "$here/http_server.py" 0.0.0.0 8080 >/dev/null &
peer=$!
until_it python3 "$here/load_http.py" 127.0.0.1 8080 1 1
"$lull" run "${nic[@]}" --mode "$mode" -- python3 "$here/load_http.py" 10.0.0.1 8080 50 8 || fail "a client on lull"
kill "$peer"
echo done
