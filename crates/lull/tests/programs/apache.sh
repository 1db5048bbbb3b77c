# Apache restarts gracefully (SIGUSR1) again and again while a client keeps it busy: SCRIPT LULL MODE "MPM QUEUES". New processes
# serve while the old ones finish what they have, and no request fails. LULL_TEST_REQUESTS sets how many there are at least.
. "$(dirname "$0")/harness.sh"
read -r mpm queues <<<"$3"

site
cp html/index.html html/who
case $mpm in
prefork) processes="StartServers 3
MinSpareServers 3
MaxSpareServers 3
MaxRequestWorkers 12" ;;
*) processes="StartServers 2
ServerLimit 8
ThreadsPerChild 8
MinSpareThreads 8
MaxSpareThreads 16
MaxRequestWorkers 32" ;;
esac
modules=/usr/lib/apache2/modules
cat >apache.conf <<END
ServerRoot $PWD
ServerName test
PidFile $PWD/pid
ErrorLog $PWD/errors
LoadModule mpm_${mpm}_module $modules/mod_mpm_$mpm.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule dir_module $modules/mod_dir.so
Mutex file:$PWD
Listen $own:80
KeepAliveTimeout 60
MaxKeepAliveRequests 0
DocumentRoot $PWD/html
$processes
END
options=(--queues "$queues")
# It refuses to serve as root.
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
on_lull "${unprivileged[@]}" apache2 -DFOREGROUND -f "$PWD/apache.conf"
until_it curl -s "http://$own/"

python3 "$(dirname "$0")/keep_alive.py" "$own" >client 2>&1 &
client=$!
restarts() { grep -c 'resuming normal operations' errors; }
restarted() { [ "$(restarts)" -gt "$1" ]; }
for nth in $(seq 5); do
    kill -0 "$client" 2>/dev/null || fail "the client: $(cat client errors)"
    before=$(cat done 2>/dev/null || echo 0)
    kill -USR1 "$(cat pid)"
    until_it restarted "$nth"
    until_it eval "[ \$(cat done) -gt \$(($before + ${LULL_TEST_REQUESTS:-1000} / 5)) ]"
done
touch stop
wait "$client" || fail "the client: $(cat client errors)"
cat client
stop
[ "$status" = 0 ] || fail "it ended with $status"
echo done
