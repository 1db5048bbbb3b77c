# The parts that the suites of unmodified programs have in common. They are called with the command, a directory where to build and
# to keep results, and more of their own.

# suite NAME LULL DIRECTORY PROGRAM...: sets $lull and $directory and goes there; skips without root or a program.
suite() {
    name=$1
    lull=$(realpath "$2")
    directory=$3
    shift 3
    [ "$(id -u)" = 0 ] || skip "this is not root, which network namespaces and AF_XDP take"
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "$program is missing"
    done
    mkdir -p "$directory"
    directory=$(realpath "$directory")
    cd "$directory" || exit 1
}

skip() {
    echo "SKIP: $name: $1"
    exit 0
}

# debian_source PACKAGE: unpacks Debian's source package in source/.
debian_source() {
    apt-get source -qq --download-only "$1" >fetched 2>&1 || skip "no source package: $(tail -1 fetched)"
    rm -rf source && mkdir source
    tar xf "$1"_*.orig.tar.* -C source --strip-components=1 || exit 1
}

# Skips since a build failed that said the file "built": what it said first of an error is the reason, and not its last line.
does_not_build() { skip "it does not build: $(grep -m 1 -i 'error' built || tail -n 1 built)"; }

# below WAY [NTH]: the words before a program that runs in this way: on the kernel, there with the preload library loaded, or on
# lull, on the NIC and the address 10.0.NTH.2.
below() {
    local nth=${2:-0}
    case $1 in
    library) echo "env LD_PRELOAD=$(dirname "$lull")/liblull_preload.so" ;;
    lull*)
        echo "$lull run --nic tap:lull$nth --addr 10.0.$nth.2/24 --peer-addr 10.0.$nth.1/24 --mode suspend20 --"
        ;;
    esac
}

# compare_passed WAY: compares the names of passed tests in $directory/WAY.passed with the kernel's, and fails if one is missing, or
# if the kernel has none: then there was nothing to compare.
compare_passed() {
    local missing
    [ -s "$directory/kernel.passed" ] || { echo "no test passes on the kernel: see $directory"; return 1; }
    missing=$(comm -23 "$directory/kernel.passed" "$directory/$1.passed")
    [ -z "$missing" ] && return
    echo "these pass on the kernel and not so: $(tr '\n' ' ' <<<"$missing")"
    return 1
}
