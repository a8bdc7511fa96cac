#!/bin/bash
# cli_ranks_matrix.sh - a rank that is killed, a rank that is stopped and an mpirun that is killed, over every transport and
# several meshes: every rank that is left says why it ends, all name the same and the right one, and nothing stays in /dev/shm.
# RALO names the program. RALO_MATRIX is the number of runs: all cells of the table in turn, and again until there are as many;
# without it a few cells. RALO_MATRIX_ONLY="tcp * stop" picks cells by a pattern.
#
# Transports: shared    ranks of one host read each other's memory
#             messages  comm.shared_memory=false on one host: MPI, through MPI's own shared memory
#             tcp       the same with MPI over TCP
#             hosts     two hosts (network namespaces), half of the ranks on each: shared memory inside, TCP between
. "$(dirname "$0")/../harness/check.sh"
need_ranks
declare -A mesh_of=([dp2]="2 parallel.zero=0" [dp4-zero3]="4 parallel.zero=3" [tp2]="2 parallel.tensor=2"
    [pp2]="2 parallel.pipeline=2" [tp2-pp2-dp2]="8 parallel.tensor=2 parallel.pipeline=2 parallel.data=2"
    [ring2]="2 parallel.sequence=2 parallel.attention=ring")
transports=(shared messages tcp hosts)
meshes=(dp2 dp4-zero3 tp2 pp2 tp2-pp2-dp2 ring2)
acts=(kill stop mpirun)
few=("shared tp2-pp2-dp2 stop" "messages dp2 kill" "tcp pp2 mpirun" "hosts dp2 kill" "hosts pp2 stop")

# ---- two hosts, as in cli_two_hosts.sh
a=ralo-a-$$ b=ralo-b-$$
trap 'end_run; ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
make_hosts() {
    command -v ip >/dev/null && command -v unshare >/dev/null && command -v hostname >/dev/null && [ "$(id -u)" = 0 ] || return 1
    ip netns add $a && ip netns add $b && unshare -u true || return 1
    ip link add ralo0 netns $a type veth peer name ralo0 netns $b || return 1
    ip -n $a addr add 10.213.77.1/24 dev ralo0
    ip -n $b addr add 10.213.77.2/24 dev ralo0
    local host
    for host in $a $b; do ip -n $host link set lo up && ip -n $host link set ralo0 up; done
    cat >on <<END
#!/bin/bash
case \$1 in 10.213.77.1) host=$a ;; *) host=$b ;; esac
shift
exec ip netns exec \$host unshare -u bash -c 'hostname "\$1"; shift; eval "exec \$*"' - \$host "\$@"
END
    chmod +x on
}

# ---- a run
# The ranks of the run, as pid_of[rank]; its mpirun as $launcher; the shared memory that MPI has opened for it.
find_ranks() {
    local p rank
    pid_of=()
    for p in $(pgrep -f "run.dir=$work/$dir\$"); do
        rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
        [ -z "$rank" ] || pid_of[$rank]=$p
    done
    [ ${#pid_of[@]} = "$n" ] || die "$cell: found ${#pid_of[@]} of $n ranks"
    launcher=$(pgrep -f -x "mpirun .*run.dir=$work/$dir" | head -n 1)
    [ -n "$launcher" ] || die "$cell: no mpirun"
    segments=$(cat "/proc/${pid_of[0]}/maps" | sed -n 's|.* \(/dev/shm/[a-z_]*segment[^ ]*\)$|\1|p' | sort -u)
}
end_run() { # of whatever is left of it
    local p
    for p in ${pid:-} ${launcher:-} ${pid_of[@]+"${pid_of[@]}"}; do kill -9 "$p" 2>/dev/null; done
    pid= launcher= pid_of=()
}
# Until the run shows a step; false: on a busy machine a rank took longer than the timeout to get there.
first_step() {
    until grep -q 'step [0-9]*/' log; do
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.02
    done
}
start_run() { # TRANSPORT MESH TIMEOUT
    local words=(${mesh_of[$2]}) set=() s
    n=${words[0]} timeout_s=$3
    for s in "${words[@]:1}"; do set+=(--set "$s"); done
    [ "$1" = shared ] || [ "$1" = hosts ] || set+=(--set comm.shared_memory=false)
    local arguments=(train --preset test-gpt2 --set data.seq_len=16 --set train.micro_batch=1 --set train.accumulation=2
        --set train.eval_rows=0 --set train.problems=0 --set train.log_every=1 --set train.steps=1000000 --set run.threads=1
        --set run.bind=false --set train.save_every=20 --set comm.timeout=$3 "${set[@]}")
    : >log
    rm -rf "$dir"
    case $1 in
    hosts) ./on 10.213.77.1 "${mpirun[@]}" --mca plm_rsh_agent "$work/on" --mca plm_rsh_no_tree_spawn 1 \
        --mca oob_tcp_if_include ralo0 --mca btl_tcp_if_include ralo0 \
        --host 10.213.77.1:$((n / 2)),10.213.77.2:$((n / 2)) -n $n --wdir "$work" \
        "$RALO" "${arguments[@]}" --set run.dir="$work/$dir" >/dev/null 2>log </dev/null & ;;
    tcp) OMPI_MCA_btl=tcp,self "$RALO" "${arguments[@]}" --ranks $n --set run.dir="$work/$dir" >/dev/null 2>log </dev/null & ;;
    *) "$RALO" "${arguments[@]}" --ranks $n --set run.dir="$work/$dir" >/dev/null 2>log </dev/null & ;;
    esac
    pid=$!
    first_step && find_ranks
}
alive() {
    local p
    for p in $pid "${pid_of[@]}"; do ! kill -0 "$p" 2>/dev/null || return 0; done
    return 1
}
bad() { failures=$((failures + 1)) verdict="WRONG: $*"; }

# Every rank but the victim says that it ends because of the victim, and nobody names another.
check_said() { # VICTIM WORDS
    local rank host=$(uname -n)
    [ "$transport" != hosts ] || host=$([ "$1" -lt $((n / 2)) ] && echo $a || echo $b)
    for ((rank = 0; rank < n; rank++)); do
        [ $rank = "$1" ] || grep -q "^error: rank $rank ends: rank $1 (pid ${pid_of[$1]} on $host), step [0-9]*.*$2" log ||
            bad "rank $rank does not say that rank $1 (pid ${pid_of[$1]}) $2"
    done
    ! grep '^error: ' log | grep -v -q "^error: \(rank [0-9]* ends: \)\?rank $1 (" || bad "another rank is named too"
}
check_launcher_said() {
    local said=$work/$dir/errors.txt
    if [ "$transport" != hosts ]; then
        grep -q "^error: mpirun (pid $launcher) was killed by signal 9" log || bad "the guardian of mpirun says nothing"
    else # its output went with it; the ranks of the other host hear it, or see their own daemon end
        grep -q "^[-0-9]* [0-9:]* error: rank $((n - 1)) ends: \(mpirun (pid $launcher on $a)\|.*orted (pid\).* is gone" "$said" || bad "host $b says nothing"
    fi
    grep -q "^[-0-9]* [0-9:]* error: rank 0 ends: mpirun (pid $launcher on .*), which started the ranks, is gone" "$said" || bad "rank 0 says nothing in errors.txt"
}

run_cell() { # TRANSPORT MESH ACT
    local victim=- code ms
    transport=$1 cell="$1 $2 $3" verdict=right dir=run-$((++n_runs))
    start_run "$1" "$2" 6 || start_run "$1" "$2" 20 || start_run "$1" "$2" 60 || die "$cell: it ended before its first step: $(tail -n 3 log)"
    sleep "$((RANDOM % 2)).$((3 + RANDOM % 7))" # other nodes know where a rank is after some tenths of a second
    if [ "$3" != mpirun ]; then victim=$((RANDOM % n)); fi
    local acted=$(date +%s%N)
    case $3 in
    kill) kill -9 "${pid_of[$victim]}" ;;
    stop) kill -STOP "${pid_of[$victim]}" ;;
    mpirun) kill -9 "$launcher" ;;
    esac
    { # the shell's own word on a process that was killed is not wanted
        local limit=$((SECONDS + timeout_s + 25)) # the timeout, 4 s to judge, 5 s of grace, and mpirun's seconds
        while alive && [ $SECONDS -lt $limit ]; do sleep 0.03; done
        ! alive || bad "still there after $((timeout_s + 25)) s"
        ! alive || kill -9 $pid $launcher "${pid_of[@]}"
        wait $pid
        code=$?
    } 2>/dev/null
    pid=
    ms=$((($(date +%s%N) - acted) / 1000000))
    case $3 in
    kill) check_said "$victim" "died" ;;
    stop) check_said "$victim" "does not respond" ;;
    mpirun) check_launcher_said ;;
    esac
    [ $code != 0 ] || bad "exit code 0"
    local s
    for s in $segments; do [ ! -e "$s" ] || bad "$s is left"; done
    printf '%-4s %-9s %-12s %-7s %-7s %4s  %6d.%01d s  %s\n' $n_runs "$1" "$2" "$3" "$victim" "$code" $((ms / 1000)) $((ms % 1000 / 100)) "$verdict"
    [ "$verdict" = right ] || { grep '^error' log; cat "$dir/errors.txt" 2>/dev/null; }
    end_run
    rm -rf "$dir"
}

have_hosts=true
make_hosts 2>why || { have_hosts=false && echo "no second host here: $(tail -n 1 why)"; }
n_runs=0 launcher= pid_of=() segments=
printf '%-4s %-9s %-12s %-7s %-7s %4s  %10s  %s\n' run transport mesh act rank exit ends verdict
cells=("${few[@]}")
if [ -n "${RALO_MATRIX:-}" ]; then
    cells=()
    for t in "${transports[@]}"; do for m in "${meshes[@]}"; do for x in "${acts[@]}"; do cells+=("$t $m $x"); done; done; done
fi
wanted=${RALO_MATRIX:-${#cells[@]}}
while [ $n_runs -lt "$wanted" ]; do
    before=$n_runs
    for cell in "${cells[@]}"; do
        [ $n_runs -lt "$wanted" ] || break
        [[ $cell == ${RALO_MATRIX_ONLY:-*} ]] || continue
        if [ "${cell%% *}" = hosts ] && ! $have_hosts; then continue; fi
        run_cell $cell
    done
    [ -n "${RALO_MATRIX:-}" ] && [ $n_runs -gt $before ] || break
done
[ $n_runs -gt 0 ] || die "no cell was run"
finish "$n_runs runs: every end is explained, and by the right cause"
