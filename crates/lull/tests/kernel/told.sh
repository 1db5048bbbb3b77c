# Prints when it is ready, and exits with 7 when it is told to end.
trap 'exit 7' TERM
echo ready >&2
while :; do sleep 0.1; done
