# Servers of files and of shells.

names+=(rsync git svnserve dropbear sshd xinetd)

needs[rsync]="rsync:rsync"
case_rsync() {
    site 5000000
    mkdir pushed
    for nth in $(seq 200); do echo "file $nth" >"html/$nth"; done
    cat >rsyncd.conf <<CONF
use chroot = no
uid = root
gid = root
pid file = $PWD/pid
[html]
path = $PWD/html
[pushed]
path = $PWD/pushed
read only = no
CONF
    serve rsync --daemon --no-detach --address="$own" --port=873 --config="$PWD/rsyncd.conf"
    answers rsync "rsync://$own/"
    pulled() {
        there rsync -a "rsync://$own/html/" "pulled.$nth/" && diff -r html "pulled.$nth"
    }
    at_once 4 pulled
    there rsync -a html/ "rsync://$own/pushed/" || fail "no push"
    diff -r html pushed || fail "what was pushed differs"
}

needs[git]="git:git"
case_git() {
    export HOME=$PWD
    git init -q --bare served.git
    git init -q work
    head -c 5000000 /dev/urandom >work/large
    for nth in $(seq 100); do echo "file $nth" >"work/$nth"; done
    (cd work && git add . && git -c user.name=n -c user.email=e commit -qm one && git push -q ../served.git HEAD:main) || fail "no repository"
    git -C served.git symbolic-ref HEAD refs/heads/main
    serve "$(git --exec-path)/git-daemon" --listen="$own" --reuseaddr --export-all --base-path="$PWD" --enable=receive-pack \
        "$PWD/served.git"
    answers git ls-remote "git://$own/served.git"
    cloned() { there git clone -q "git://$own/served.git" "clone.$nth" && diff -r -x .git work "clone.$nth"; }
    at_once 4 cloned
    (cd clone.1 && echo more >more && git add . && git -c user.name=n -c user.email=e commit -qm two) || fail "no commit"
    there git -C clone.1 push -q origin HEAD:main || fail "no push"
    same "$(git -C clone.1 rev-parse HEAD)" git -C served.git rev-parse main
}

needs[svnserve]="subversion:svnserve svnadmin svn"
case_svnserve() {
    export HOME=$PWD
    svnadmin create served
    printf '[general]\nanon-access = write\n' >served/conf/svnserve.conf
    serve svnserve -d --foreground -r "$PWD" --listen-host "$own"
    answers svn ls "svn://$own/served"
    there svn checkout -q "svn://$own/served" work || fail "no checkout"
    head -c 5000000 /dev/urandom >work/large
    echo small >work/small
    (cd work && svn add -q large small && there svn commit -q -m one) || fail "no commit"
    checked_out() { there svn checkout -q "svn://$own/served" "out.$nth" && diff -r -x .svn work "out.$nth"; }
    at_once 4 checked_out
}

# Checks the answers of a shell over a network: a status, 5 MB both ways, eight at once. The arguments are the words
# before a command.
by_shell() {
    head -c 5000000 /dev/urandom >large
    answers "$@" true
    same hello "$@" 'echo hello'
    there "$@" 'exit 7'
    [ $? = 7 ] || fail "the status of a command is lost"
    at_once 8 whole large "$@" "cat $PWD/large"
    whole large sh -c '"$@" cat <large' sh "$@"
}

needs[dropbear]="dropbear-bin:dropbear dbclient dropbearkey"
case_dropbear() {
    mkdir -p -m 700 home/.ssh
    for key in host home/.ssh/id_dropbear; do dropbearkey -t ed25519 -f "$key" >made.key 2>&1 || fail "no key"; done
    grep ^ssh- made.key >home/.ssh/authorized_keys
    chmod 600 home/.ssh/authorized_keys
    home root "$PWD/home"
    serve dropbear -F -E -r "$PWD/host" -p "$own:22"
    HOME=$PWD/home by_shell dbclient -y -i home/.ssh/id_dropbear "root@$own"
}

needs[sshd]="openssh-server openssh-client:sshd ssh"
case_sshd() {
    mkdir -p -m 700 home/.ssh
    for key in host home/.ssh/id; do ssh-keygen -q -t ed25519 -N '' -f "$key" || fail "no key"; done
    cp home/.ssh/id.pub home/.ssh/authorized_keys
    home root "$PWD/home"
    mount -t tmpfs none /run && mkdir -m 755 /run/sshd
    cat >sshd.conf <<CONF
ListenAddress $own
HostKey $PWD/host
PidFile none
UsePAM no
StrictModes no
MaxStartups 100
CONF
    serve /usr/sbin/sshd -D -e -f "$PWD/sshd.conf"
    by_shell ssh -i "$PWD/home/.ssh/id" -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -o LogLevel=ERROR "root@$own"
}

needs[xinetd]="xinetd socat:xinetd socat"
# It has services of its own and programs that it executes, over TCP and over UDP, where the program gets the server's
# own socket.
case_xinetd() {
    cat >answer.py <<'PYTHON'
import socket
server = socket.socket(fileno=0)
server.settimeout(2)
try:
    while True:
        data, peer = server.recvfrom(2000)
        server.sendto(b"told " + data, peer)
except TimeoutError:
    pass
PYTHON
    service() {
        printf 'service %s\n{\n type = UNLISTED %s\n id = %s\n socket_type = %s\n protocol = %s\n wait = %s\n user = root\n port = %s\n bind = %s\n' \
            "$1" "$2" "$1-$4" "$3" "$4" "$5" "$6" "$own"
        printf ' instances = 100\n per_source = 100\n cps = 1000 1\n flags = REUSE\n%s}\n' "$7"
    }
    head -c 3000000 /dev/urandom >large
    {
        service echo INTERNAL stream tcp no 7 ""
        service echo INTERNAL dgram udp yes 7 ""
        service cat "" stream tcp no 1000 $' server = /bin/cat\n'
        service file "" stream tcp no 1001 " server = /bin/cat"$'\n'" server_args = $PWD/large"$'\n'
        service answer "" dgram udp yes 1002 " server = $(command -v python3)"$'\n'" server_args = $PWD/answer.py"$'\n'
    } >xinetd.conf
    serve xinetd -dontfork -f "$PWD/xinetd.conf" -pidfile "$PWD/pid" -filelog "$PWD/log"
    answers socat -u "TCP:$own:1001" /dev/null
    at_once 8 whole large socat -u "TCP:$own:1001" -
    at_once 4 whole large sh -c 'socat -t 60 "$1" - <large' sh "TCP:$own:1000"
    at_once 4 whole large sh -c 'socat -t 60 "$1" - <large' sh "TCP:$own:7"
    for nth in $(seq 20); do
        for port in 7 1002; do
            same "$([ $port = 7 ] || echo 'told ')datagram $nth" python3 -c '
import socket, sys
client = socket.socket(type=socket.SOCK_DGRAM)
client.settimeout(20)
client.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
print(client.recv(2000).decode())' "$own" "$port" "datagram $nth"
        done
    done
}

names+=(pureftpd tinysshd)

needs[pureftpd]="pure-ftpd curl:pure-ftpd curl"
# Its children limit themselves to 70 MB of data, which include the memory of the process that forked them.
case_pureftpd() {
    site 5000000
    chmod -R a+rX html .
    home ftp "$PWD/html" 1000
    export MALLOC_ARENA_MAX=1
    serve pure-ftpd -S "$own,21" -e -M -c 100 -C 100 -A -P "$own" -u 1
    answers curl -sf -o /dev/null "ftp://$own/index.html"
    active=(--interface 10.0.0.1 -P 10.0.0.1)
    for _ in 1 2 3; do at_once 8 whole html/large curl -sf "ftp://$own/large"; done
    same hello curl -sf "${active[@]}" "ftp://$own/index.html"
    at_once 4 whole html/large curl -sf "${active[@]}" "ftp://$own/large"
}

needs[tinysshd]="tinysshd ucspi-tcp openssh-client:tinysshd tinysshd-makekey tcpserver ssh"
# It executes a program for each connection, with the connection as its standard input and output.
case_tinysshd() {
    # tinysshd requires directories that nobody else may write to, up to the root.
    mount -t tmpfs -o mode=755 none /mnt
    mkdir -p -m 700 /mnt/home/.ssh
    ssh-keygen -q -t ed25519 -N '' -f /mnt/home/.ssh/id || fail "no key"
    cp /mnt/home/.ssh/id.pub /mnt/home/.ssh/authorized_keys
    tinysshd-makekey -q keys || fail "no key"
    home root /mnt/home
    serve tcpserver -HRl0 "$own" 22 tinysshd -v "$PWD/keys"
    by_shell ssh -i /mnt/home/.ssh/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -o LogLevel=ERROR "root@$own"
}
