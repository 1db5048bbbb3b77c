# The parts that the programs' scripts have in common. They run in user and network namespaces of their own, as root there:
# SCRIPT LULL MODE.

lull=$1
mode=$2
own=10.0.0.2
nic=(--nic tap:lull0 --addr "$own/24" --peer-addr 10.0.0.1/24)
ip link set lo up

# Runs a program on the user plane, in the background: its process is $launcher, what is said is in the file "said".
on_lull() {
    "$lull" run "${nic[@]}" --mode "$mode" "${options[@]}" -- "$@" >said 2>&1 &
    launcher=$!
}

# Writes nginx.conf: how many processes there are is told, what belongs into http { } comes from standard input.
nginx_conf() {
    cat >nginx.conf <<END
user root root;
daemon off;
$1;
pid $PWD/pid;
error_log $PWD/errors info;
events { worker_connections 256; }
http {
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path $PWD/t1;
    proxy_temp_path $PWD/t2;
    fastcgi_temp_path $PWD/t3;
    uwsgi_temp_path $PWD/t4;
    scgi_temp_path $PWD/t5;
$(cat)
}
END
}

# Waits until a command succeeds, for a minute.
until_it() {
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "never: $*"
    cat said
    exit 1
}

fail() {
    echo "$*"
    cat said
    exit 1
}

# Ends the program as an operator does, and waits for it.
stop() {
    kill -TERM "$launcher"
    wait "$launcher"
    status=$?
}
