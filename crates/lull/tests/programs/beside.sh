# A program with both ends of its connections says the same on the kernel and on lull: beside.c, whose case is the argument.
. "$(dirname "$0")/harness.sh"

cc -pthread -o beside "$(dirname "$0")/beside.c" || fail "beside.c does not compile"
options=(--quiet)
timeout 120 ./beside "$3" 127.0.0.1 >kernels || fail "on the kernel: $(cat kernels)"
on_lull timeout 120 ./beside "$3" "$own"
wait "$launcher" || fail "on lull, where the kernel says: $(cat kernels)"
[ "$(wc -l <kernels)" -gt 5 ] || fail "nothing was said"
diff kernels said || fail "it is not the same"
echo done
