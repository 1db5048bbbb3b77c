# Servers of mail.

names+=(postfix)

needs[postfix]="postfix swaks:postfix swaks"
# Its master executes a process for each service, which inherits the listener and accepts connections itself.
case_postfix() {
    mkdir -p conf spool box
    cp /etc/postfix/dynamicmaps.cf* conf/ 2>/dev/null
    cp -r /etc/postfix/dynamicmaps.cf.d conf/ 2>/dev/null
    cat >conf/main.cf <<CONF
compatibility_level = 3.6
queue_directory = $PWD/spool
data_directory = $PWD/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
shlib_directory = /usr/lib/postfix
myhostname = here.test
mydestination = here.test
mynetworks = 10.0.0.0/24
inet_interfaces = all
inet_protocols = ipv4
alias_maps =
local_recipient_maps =
luser_relay =
virtual_mailbox_domains = box.test
virtual_mailbox_base = $PWD/box
virtual_mailbox_maps = static:all/
virtual_uid_maps = static:1000
virtual_gid_maps = static:1000
virtual_minimum_uid = 1
message_size_limit = 30000000
mailbox_size_limit = 0
virtual_mailbox_limit = 0
smtpd_client_connection_count_limit = 0
smtpd_peername_lookup = no
disable_dns_lookups = yes
maillog_file = $PWD/log
maillog_file_prefixes = $PWD
CONF
    mkdir data && chown postfix data && chmod 777 box
    cat >conf/master.cf <<CONF
$own:25 inet n - n - - smtpd
pickup    unix  n       -       n       60      1       pickup
cleanup   unix  n       -       n       -       0       cleanup
qmgr      unix  n       -       n       300     1       qmgr
tlsmgr    unix  -       -       n       1000?   1       tlsmgr
rewrite   unix  -       -       n       -       -       trivial-rewrite
bounce    unix  -       -       n       -       0       bounce
defer     unix  -       -       n       -       0       bounce
trace     unix  -       -       n       -       0       bounce
verify    unix  -       -       n       -       1       verify
flush     unix  n       -       n       1000?   0       flush
proxymap  unix  -       -       n       -       -       proxymap
smtp      unix  -       -       n       -       -       smtp
relay     unix  -       -       n       -       -       smtp
showq     unix  n       -       n       -       -       showq
error     unix  -       -       n       -       -       error
retry     unix  -       -       n       -       -       error
discard   unix  -       -       n       -       -       discard
local     unix  -       n       n       -       -       local
virtual   unix  -       n       n       -       -       virtual
lmtp      unix  -       -       n       -       -       lmtp
anvil     unix  -       -       n       -       1       anvil
scache    unix  -       -       n       -       1       scache
postlog   unix-dgram n  -       n       -       1       postlogd
CONF
    chmod 755 . conf
    postfix -c "$PWD/conf" check >checked 2>&1 || fail "check: $(cat checked)"
    serve setsid /usr/lib/postfix/sbin/master -c "$PWD/conf" -d
    answers swaks --server "$own" --quit-after EHLO
    base64 -w 70 /dev/urandom | head -c 5000000 >large
    sent() { there swaks --server "$own" --from "a$nth@out.test" --to "$1@box.test" --body "$2" --header "X-Nth: $nth" >"sent.$nth" 2>&1; }
    nth=0 sent u "@$PWD/large" || fail "not sent: $(tail -n 3 sent.0)"
    several() { for again in 1 2 3 4 5; do sent u "$nth-$again" || return 1; done; }
    at_once 10 several
    delivered() { [ "$(ls box/all/new | wc -l)" = "$1" ]; }
    until_it delivered 51
    LC_ALL=C postfix -c "$PWD/conf" reload >reloaded 2>&1 || fail "no reload: $(cat reloaded)"
    at_once 10 several
    until_it delivered 101
    same "$(for nth in $(seq 10); do for again in 1 2 3 4 5; do echo "$nth-$again"; done; done | sort | sed 's/^/2 /')" \
        sh -c 'grep -h -o "^[0-9]*-[1-5]$" box/all/new/* | sort | uniq -c | sed "s/^ *//"'
}

names+=(opensmtpd)

needs[opensmtpd]="opensmtpd:smtpd"
# It listens with a backlog of 5, and sends the first line of a session.
case_opensmtpd() {
    mount -t tmpfs none /var/spool
    mount -t tmpfs none /run
    mkdir box
    chmod 755 .
    chmod 777 box
    home vm "$PWD/box" 1000
    cat >smtpd.conf <<CONF
smtp max-message-size 30M
table v { "@box.test" = "vm" }
listen on $own port 25 hostname here.test
action "m" maildir "$PWD/box/m" virtual <v>
match from any for domain "box.test" action "m"
CONF
    cat >mail.py <<'PYTHON'
import smtplib, sys, threading

address, count, lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
done = []

def client(nth):
    with smtplib.SMTP(address, 25, timeout=60) as it:
        for again in range(5):
            body = f"Subject: x\r\n\r\n{nth}-{again}\r\n" + ("y" * 70 + "\r\n") * lines
            it.sendmail(f"a{nth}@out.test", ["u@box.test"], body)
    done.append(nth)

threads = [threading.Thread(target=client, args=(nth,)) for nth in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done))
PYTHON
    serve smtpd -d -f "$PWD/smtpd.conf"
    answers python3 -c "import smtplib; smtplib.SMTP('$own', 25, timeout=5).quit()"
    for _ in 1 2 3; do same 10 python3 mail.py "$own" 10 10; done
    same 2 python3 mail.py "$own" 2 20000
    delivered() { [ "$(ls box/m/new | wc -l)" = 160 ]; }
    until_it delivered
    same 32 sh -c 'grep -h -x "[0-9]*-4" box/m/new/* | wc -l'
}
