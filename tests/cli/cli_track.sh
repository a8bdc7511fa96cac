#!/bin/bash
# cli_track.sh - a run with all sinks, resumed and synced; aliases of other trainers; refusals before anything is written; logins in no file and
# no message; sinks change no bit. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
unset MLFLOW_TRACKING_URI MLFLOW_URI MLFLOW_EXPERIMENT_NAME TRACKIO_PROJECT
export TRACKIO_DIR=$work/trackio MLFLOW_TRACKING_TOKEN=very-secret
common=(--preset test-gpt2 --set train.micro_batch=2 --set data.seq_len=32 --set train.problems=0 --set train.eval_rows=2 --set run.threads=1
    --set train.schedule=constant --set train.warmup=0)
sinks=(--set report_to=mlflow,tensorboard,trackio --set track.mlflow=file:mlruns --set run.dir=mine)
hash_of() { grep -o 'param_hash [0-9a-f]*' "$1"; }

run 0 train "${common[@]}" --set train.steps=6 --set run.dir=plain
hash_of err >plain.hash
run 0 train "${common[@]}" "${sinks[@]}" --set train.steps=4
grep -q 'MLFLOW_ALLOW_FILE_STORE=true' err || fail "nobody says that a file store needs MLFLOW_ALLOW_FILE_STORE"
run 0 train "${common[@]}" "${sinks[@]}" --set train.steps=6 --resume auto
hash_of err | cmp -s - plain.hash || fail "a run with sinks ends with other bits"

# all steps are in every place, in one run each
runs=(mlruns/*/*/metrics/train/loss)
[ ${#runs[@]} = 1 ] || fail "MLflow has ${#runs[@]} runs"
[ "$(awk '{ print $3 }' "${runs[0]}" | paste -sd ' ')" = "1 2 3 4 5 6" ] || fail "MLflow lacks steps: $(cat "${runs[0]}")"
[ "$(cat mlruns/*/*/tags/resumed/train.steps)" = 6 ] || fail "the changed setting is no tag"
cmp -s mlruns/*/*/artifacts/config.yaml mine/config.yaml || fail "MLflow has another config.yaml"
grep -q '^status: 3' mlruns/*/*/meta.yaml || fail "the run is not FINISHED"
[ "$(cat trackio/inbox/*/*.jsonl | grep -c '"train/loss"')" = 6 ] || fail "trackio lacks steps"
[ "$(cat trackio/inbox/*/*.jsonl | grep -o '"run_id":"[^"]*"' | sort -u | wc -l)" = 1 ] || fail "trackio has two runs"
[ -z "$(find trackio -name '*.tmp')" ] || fail "trackio has unfinished files"
[ "$(find mine/tensorboard -name 'events.out.tfevents.*' | wc -l)" = 2 ] || fail "there are not two event files"
[ -z "$(find mine/track -name '*.pending')" ] || fail "something was not sent"
# a resume that is refused leaves the run as it was
check 2 -- train "${common[@]}" "${sinks[@]}" --set data.seq_len=48 --set train.steps=8 --resume auto
grep -q '^status: 3' mlruns/*/*/meta.yaml || fail "a refused resume changed the run in MLflow"
run 0 track sync mine
grep -q 'nothing is left to send' err || fail "track sync: $(cat err)"
! grep -rq very-secret mine mlruns trackio out err || fail "the token is in a file"

# refused at once, without the secret
check 2 "found wandb" -- train "${common[@]}" --set report_to=wandb --set run.dir=no
check 2 "found a database (sqlite)" -- train "${common[@]}" --set track.mlflow=sqlite:///very-secret.db --set run.dir=no
check 2 "a user name or password" -- train "${common[@]}" --set track.mlflow=http://me:very-secret@host --set run.dir=no
! grep -q very-secret err || fail "a refusal shows the password"
check 2 "expected the directory of a run" -- track sync nowhere
mkdir empty
check 2 "found no run in 'empty'" "run.json" -- track sync empty
check 2 "expected sync" -- track send mine
# a run that does not say where it was sent: what to write, and where
cp -r mine lost && echo '{' >lost/track/mlflow.json && echo '{"step": 1}' >lost/track/mlflow.pending
check 2 "lost/track/mlflow.json" '{"uri": "http://HOST:PORT"' "mlflow.pending" -- track sync lost
[ -s lost/track/mlflow.pending ] || fail "what was not sent is gone"
[ ! -e no ] || fail "a refused run made its directory"
finish "runs are tracked by MLflow, TensorBoard and trackio"
