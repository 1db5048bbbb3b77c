# Apache's children end when they have served their share of connections, and others take their places: SCRIPT LULL MODE
# QUEUES.
. "$(dirname "$0")/harness.sh"
options=(--queues "$3")

site
modules=/usr/lib/apache2/modules
cat >apache.conf <<END
ServerRoot $PWD
ServerName $own
Listen $own:80
PidFile $PWD/pid
ErrorLog $PWD/errors
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
DocumentRoot $PWD/html
StartServers 2
ServerLimit 12
ThreadsPerChild 8
MinSpareThreads 8
MaxSpareThreads 16
MaxRequestWorkers 32
MaxConnectionsPerChild 100
END
on_lull apache2 -f "$PWD/apache.conf" -DFOREGROUND
until_it there curl -sf -o index "http://$own/index.html"
run_ab -n 1500 -c 8 "http://$own/index.html"
grep 'Complete requests: *1500' bench || fail "not all were answered: $(cat bench)"
# Without a load Apache keeps two idle children; if there are more, some of them never end.
find_program
spent_have_ended() { [ "$(pgrep -P "$program" | wc -l)" -le 2 ]; }
until_it spent_have_ended
stop
[ "$status" = 0 ] || fail "status $status"
echo done
