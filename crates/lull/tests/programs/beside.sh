# A program with both ends of its connections says the same on the kernel and on lull: which one, and its case, is the argument.
. "$(dirname "$0")/harness.sh"
read -r program case <<<"$3"

cc -pthread -o "$program" "$(dirname "$0")/$program.c" || fail "$program.c does not compile"
options=(--quiet)
timeout 120 "./$program" "$case" 127.0.0.1 >kernels || fail "on the kernel: $(cat kernels)"
on_lull timeout 120 "./$program" "$case" "$own"
wait "$launcher" || fail "on lull, where the kernel says: $(cat kernels)"
[ "$(wc -l <kernels)" -gt 5 ] || fail "nothing was said"
diff kernels said || fail "it is not the same"
echo done
