# A program with both ends of its connections prints the same on the kernel and on lull; the argument says which
# program, and which case of it. If a program had no turn while something lasts that ends by itself (status 75), it is
# started again.
. "$(dirname "$0")/harness.sh"
read -r program case <<<"$3"

cc -pthread -o "$program" "$(dirname "$0")/$program.c" || fail "$program.c does not compile"
options=(--quiet)
for _ in $(seq 100); do
    timeout 120 "./$program" "$case" 127.0.0.1 >kernels
    status=$?
    [ "$status" = 75 ] || break
done
[ "$status" = 0 ] || fail "on the kernel: $(cat kernels)"
for _ in $(seq 100); do
    on_lull timeout 120 "./$program" "$case" "$own"
    wait "$launcher"
    status=$?
    [ "$status" = 75 ] || break
done
[ "$status" = 0 ] || fail "on lull, where the kernel says: $(cat kernels)"
[ "$(wc -l <kernels)" -gt 5 ] || fail "nothing was said"
diff kernels said || fail "it is not the same"
echo done
