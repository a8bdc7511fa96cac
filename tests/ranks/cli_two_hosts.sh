#!/bin/bash
# cli_two_hosts.sh - ranks on two hosts: two network namespaces joined by a virtual cable, each with a host name of its own,
# and mpirun across them. What is trained has the bits of one host. Skipped where namespaces are not permitted.
# RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need_ranks
need python3
need ip "install iproute2"
need unshare "install util-linux"
need hostname
[ "$(id -u)" = 0 ] || { echo "network namespaces need root"; exit 77; }
a=ralo-a-$$ b=ralo-b-$$
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
ip netns add $a 2>why && ip netns add $b 2>why && unshare -u true 2>why || { echo "no namespaces here: $(cat why)"; exit 77; }
ip link add ralo0 netns $a type veth peer name ralo0 netns $b 2>why || { echo "no virtual cable here: $(cat why)"; exit 77; }
ip -n $a addr add 10.213.77.1/24 dev ralo0
ip -n $b addr add 10.213.77.2/24 dev ralo0
for host in $a $b; do
    ip -n $host link set lo up
    ip -n $host link set ralo0 up
done

# on HOST COMMAND: in its namespace, under its name. What mpirun calls in place of ssh, with an address for a name.
cat >on <<END
#!/bin/bash
case \$1 in 10.213.77.1) host=$a ;; *) host=$b ;; esac
shift
exec ip netns exec \$host unshare -u bash -c 'hostname "\$1"; shift; eval "exec \$*"' - \$host "\$@"
END
chmod +x on
common=(train --preset test-gpt2 --set train.steps=4 --set data.seq_len=16 --set train.micro_batch=1 --set train.eval_rows=2
    --set train.problems=0 --set run.threads=1 --set run.bind=false --json)
result() { python3 -c "import json; r = json.loads(open('out').read().splitlines()[-1]); print(r['param_hash'], r['eval']['loss'])"; }
two_hosts() { # ARGUMENTS: two ranks on each
    timeout 120 ./on 10.213.77.1 "${mpirun[@]}" --mca plm_rsh_agent "$work/on" --mca plm_rsh_no_tree_spawn 1 \
        --mca oob_tcp_if_include ralo0 --mca btl_tcp_if_include ralo0 --host 10.213.77.1:2,10.213.77.2:2 -n 4 \
        --wdir "$work" "$RALO" "${common[@]}" "$@" >out 2>err </dev/null ||
        fail "two hosts, $*: exit code $?: $(tail -n 3 err)"
}

# Data ranks with ZeRO, shared rows by heads and by a ring, shared layers, stages.
n=0
for settings in "parallel.zero=0" "parallel.zero=3" "parallel.sequence=4 parallel.attention=heads" \
    "parallel.sequence=4 parallel.attention=ring" "parallel.tensor=2 parallel.zero=2" "parallel.pipeline=2 parallel.zero=1"; do
    set=()
    for s in $settings; do set+=(--set "$s"); done
    run 0 "${common[@]}" --ranks 4 "${set[@]}" --set run.dir=one-$n
    expected=$(result)
    two_hosts "${set[@]}" --set run.dir=two-$n
    [ "$(result)" = "$expected" ] || fail "$settings: two hosts $(result), one $expected"
    n=$((n + 1))
done
# They were two: all that went between them went through the cable, and a rank that is missing is named with its host.
sent=$(ip netns exec $a cat /sys/class/net/ralo0/statistics/tx_bytes)
[ "$sent" -gt 10000000 ] || fail "only $sent bytes went through the cable"
timeout 60 ./on 10.213.77.1 "${mpirun[@]}" --mca plm_rsh_agent "$work/on" --mca plm_rsh_no_tree_spawn 1 \
    --mca oob_tcp_if_include ralo0 --mca btl_tcp_if_include ralo0 --host 10.213.77.1:2,10.213.77.2:2 --wdir "$work" \
    -n 3 "$RALO" "${common[@]}" --set run.dir=differ : -n 1 "$RALO" "${common[@]}" --set run.dir=differ --set train.lr=1e-9 \
    >out 2>err </dev/null && fail "a rank with other settings was not refused"
grep -q "rank 3 .*$b" err || fail "the rank of the other host is not named with it: $(grep error err | head -n 2)"
finish "two hosts: the bits of one"
