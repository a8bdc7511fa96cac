#!/bin/bash
# cli_live.sh - ralo train --live and ralo live: both serve the same numbers of the same files, the address is printed, training keeps its
# bits, Ctrl-C ends the page, and what cannot be is refused.
. "$(dirname "$0")/../harness/check.sh"
need python3
unset RALO_LIVE_TOKEN
tiny="--set model.preset=test-llama --set data.source=builtin:grammar --set data.seq_len=32 --set train.micro_batch=4 --set train.warmup=0 \
--set train.problems=0 --set train.eval_rows=0 --set run.threads=1 --set run.save_last=false"

run 2 train $tiny --set train.steps=1 --live 1.2.3.4.5:80 </dev/null
if grep -q 'apt-get install libmicrohttpd' err; then # the one command that installs it is the whole answer
    echo "no libmicrohttpd: $(cat err)"
    exit 77
fi
check 2 "found the address '1.2.3.4.5:80', expected ADDR:PORT" -- train $tiny --live 1.2.3.4.5:80
check 2 '--live-token needs --live' -- train $tiny --live-token 0123456789abcdef
check 2 '--live-token: found 3 characters' -- train $tiny --live --live-token abc
check 2 'found no RUN, expected: ralo live RUN' -- live
check 2 "found no run in '.', expected a directory with run.json" -- live .

# get URL PATH: prints the body. The token of the address goes along.
get() {
    local port=${1##*:}
    exec 3<>"/dev/tcp/127.0.0.1/${port%%/*}" || return
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n' "$2" "${1##*token=}" >&3
    sed '1,/^\r$/d' <&3
    exec 3>&-
}
step_of() { get "$1" /api/run | sed -n 's/.*"step":\([0-9]*\).*/\1/p'; }
# url FILE: waits for the address in it.
url() {
    for _ in $(seq 500); do
        grep -oE 'http://[0-9.:]*/\?token=[0-9a-f]{32}$' "$1" && return
        kill -0 "$pid" 2>/dev/null || die "it ended: $(tail -n 3 "$1")"
        sleep 0.02
    done
    die "no address in $1: $(tail -n 3 "$1")"
}

# While it trains. --live is followed by CONFIG, which is no address.
echo 'train: {steps: 100000}' >config.yaml
"$RALO" train $tiny --live config.yaml --set run.dir=run >out 2>err </dev/null &
pid=$!
page=$(url err) || die "$page"
for _ in $(seq 200); do
    first=$(step_of "$page")
    [ "${first:-0}" -gt 0 ] && break
    sleep 0.05
done
for _ in $(seq 200); do
    later=$(step_of "$page")
    [ "${later:-0}" -gt "$first" ] && break
    sleep 0.05
done
[ "$later" -gt "$first" ] || fail "steps do not move: $first, $later"
get "${page%%token=*}token=another" /api/run | grep -q 'a token is needed' || fail "the page is open without its token"
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "the run with a page did not stop as others do: $(tail -n 3 err)"
pid=
[ -z "$(get "$page" /api/run 2>/dev/null)" ] || fail "the page outlives the run"

# A pipeline: one address, and the page goes from stage to stage.
cat >two.yaml <<'P'
pipeline: {dir: two}
model: {preset: test-llama}
data: {source: "builtin:grammar", seq_len: 32}
run: {threads: 1}
train: {micro_batch: 4, warmup: 0, problems: 0, eval_rows: 0}
stages:
  first: {train: {steps: 60}}
  second: {train: {steps: 100000}}
P
check 2 '--live-token needs --live' -- pipeline two.yaml --live-token 0123456789abcdef
check 2 "found the address '1.2.3.4.5:80', expected ADDR:PORT" -- pipeline two.yaml --live 1.2.3.4.5:80
[ ! -e two ] || fail "a refused pipeline left files"
"$RALO" pipeline --live two.yaml >out 2>err </dev/null &
pid=$!
page=$(url err) || die "$page"
for _ in $(seq 400); do
    get "$page" /api/run >state
    grep -o '"name":"[^"]*"' state | cut -d '"' -f 4 >>names
    grep -q '"name":"two second"' state && [ "$(step_of "$page")" -gt 0 ] && break
    sleep 0.05
done
[ "$(uniq names | tr '\n' ,)" = "two first,two second," ] || fail "the page did not go from stage to stage: $(uniq names | tr '\n' ,)"
[ "$(grep -c 'live page' err)" = 1 ] || fail "the address is printed once: $(grep 'live page' err)"
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "the pipeline with a page did not stop as others do: $(tail -n 3 err)"
pid=

# The same bits with it and without it.
run 0 train $tiny --set train.steps=20 --set run.dir=plain --json && python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['param_hash'])" >a
run 0 train $tiny --set train.steps=20 --set run.dir=with --live --json && python3 -c "import json; print(json.loads(open('out').read().splitlines()[-1])['param_hash'])" >b
cmp -s a b || fail "a page changed the parameters: $(cat a b)"
holds "r['memory']['allocations_in_steps'] == 0"

# Afterwards: every number of metrics.jsonl.
"$RALO" live with >url 2>err &
pid=$!
page=$(url url) || die "$page"
for _ in $(seq 200); do
    get "$page" "/api/metrics?width=2048" >metrics.json
    grep -q train/loss metrics.json && break
    sleep 0.05
done
python3 - <<'CHECK' || fail "numbers of the page: $(head -c 300 metrics.json)"
import json
page = json.load(open("metrics.json"))["metrics"]
lines = [json.loads(x) for x in open("with/metrics.jsonl")]
for key in lines[0]:
    if key != "step":
        assert page[key]["x"] == [x["step"] for x in lines], key
        assert all(abs(a - x[key]) <= 1e-8 * abs(x[key]) for a, x in zip(page[key]["y"], lines)), key
CHECK
kill -INT $pid
wait $pid || fail "ralo live: exit code $? after Ctrl-C: $(cat err)"
pid=
finish "a page shows the files of a run, while it trains and afterwards"
