# The common parts of the suites of unmodified programs. The suites are called with the command, a directory in which
# they build and keep results, and arguments of their own.

# suite NAME LULL DIRECTORY PROGRAM...: sets $lull and $directory and goes there; skips if it does not run as root or a
# program is missing.
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

# list_sources SUITE: reads the list of Debian's source packages of a release into apt/, from where the other functions
# take it. The machine's own lists, which seldom have sources, are left alone.
list_sources() {
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    command -v apt-get >/dev/null && [ -e "$keys" ] || return 1
    mkdir -p apt/lists/partial apt/cache/archives/partial
    echo "deb-src [signed-by=$keys] http://deb.debian.org/debian $1 main" >apt/sources.list
    sources=(-o "Dir::Etc::SourceList=$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=root)
    apt-get "${sources[@]}" -qq update >fetched 2>&1
}

# debian_source PACKAGE: unpacks the source package of Debian's release in source/. A package that was fetched before is
# used again, so that no network is needed.
debian_source() {
    local archive=("$1"_*.orig.tar.*)
    if [ ! -e "${archive[0]}" ]; then
        list_sources bookworm && apt-get "${sources[@]}" source -qq --download-only "$1" >fetched 2>&1 ||
            skip "no source package of $1: $(tail -n 1 fetched 2>/dev/null || echo "there is no apt-get, or none of Debian's keys")"
        archive=("$1"_*.orig.tar.*)
    fi
    rm -rf source && mkdir source
    # An incomplete archive fails here, and the next run fetches it again.
    tar xf "${archive[0]}" -C source --strip-components=1 || { rm -rf source "${archive[0]}"; skip "${archive[0]} does not unpack"; }
}

# Skips because a build failed, whose output is in the file "built". The reason that is given is the first error and not
# the last line.
does_not_build() { skip "it does not build: $(grep -m 1 -i 'error' built || tail -n 1 built)"; }

# below WAY [NTH]: prints the words before a program that runs in this way: on the kernel, on the kernel with the
# preload library loaded, or on lull, on the NIC and the address 10.0.NTH.2; lull-base is in base, every other way of
# lull's in suspend20.
below() {
    local nth=${2:-0} mode=suspend20
    [ "$1" = lull-base ] && mode=base
    case $1 in
    library) echo "env LD_PRELOAD=$(dirname "$lull")/liblull_preload.so" ;;
    lull*)
        echo "$lull run --nic tap:lull$nth --addr 10.0.$nth.2/24 --peer-addr 10.0.$nth.1/24 --mode $mode --"
        ;;
    esac
}

# compare_passed WAY: compares the names of passed tests in $directory/WAY.passed with the kernel's. It fails if one is
# missing, or if the kernel has none, because then there was nothing to compare.
compare_passed() {
    local missing
    [ -s "$directory/kernel.passed" ] || { echo "no test passes on the kernel: see $directory"; return 1; }
    missing=$(comm -23 "$directory/kernel.passed" "$directory/$1.passed")
    [ -z "$missing" ] && return
    echo "these pass on the kernel and not so: $(tr '\n' ' ' <<<"$missing")"
    return 1
}
