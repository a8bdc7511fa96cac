#!/bin/bash
# cli_reference.sh - the pages under docs/reference are those that the program and include/ralo.h give today, they name all
# that the parser and the header know, and a run writes exactly the metrics that they list. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
pages=$project/docs/reference

# ---- the committed pages are not stale
"$RALO" help --reference printed >out 2>err || die "ralo help --reference: $(cat err)"
"$project/tools/c-api-page" "$project/include/ralo.h" >printed/c-api.md || die "tools/c-api-page"
for page in printed/*.md; do
    cmp -s "$page" "$pages/${page##*/}" || fail "docs/reference/${page##*/} is stale: make reference writes it again"
done
for page in "$pages"/*.md; do
    [ -f "printed/${page##*/}" ] || fail "docs/reference/${page##*/} is not printed by anything"
done

# ---- every command and flag, every setting, every function of the API
for command in $("$RALO" --help | sed -n 's/^  ralo \([a-z]*\).*/\1/p'); do
    grep -qx "## ralo $command" printed/cli.md || fail "cli.md does not describe $command"
    sed -n "/^## ralo $command\$/,/^## /p" printed/cli.md >page
    for flag in $("$RALO" "$command" --help | sed -n 's/^  \(--\{0,1\}[a-z][a-z-]*\) .*/\1/p'); do
        grep -q "^| \`$flag[ \`]" page || fail "cli.md does not name $flag of $command"
    done
done
for key in $("$RALO" help settings | sed -n 's/^  \([a-z][a-z0-9_.]*\) .*/\1/p'); do
    grep -q "^| \`$key\` |" printed/settings.md || fail "settings.md does not name $key"
done
# a table has as many cells in every row: a bar inside of one must be escaped
awk -F '(^|[^\\\\])[|]' '/^\|/ { if (n && NF != n) { print FILENAME ":" FNR; bad = 1 } n = NF } !/^\|/ { n = 0 } END { exit bad }' \
    printed/settings.md || fail "a row of settings.md has another number of cells"
for name in $(grep -o '^RALO_API .*' "$project/include/ralo.h" | grep -o 'ralo_[a-z_]*(' | tr -d '('); do
    grep -q "$name(" printed/c-api.md || fail "c-api.md does not name $name"
done

# ---- what a run writes is what metrics.md lists
run 0 train --preset test-gpt2 --set precision=fp16 --set train.steps=3 --set train.micro_batch=2 --set data.seq_len=32 \
    --set train.problems=2 --set train.eval_rows=2 --set run.dir=metrics --set run.save_last=false
run 0 train --preset test-gpt2 --set train.task=preference --set data.source=builtin:preferences --set train.steps=2 \
    --set train.micro_batch=2 --set train.eval_rows=2 --set run.dir=preference --set run.save_last=false
run 0 train --preset test-gpt2 --set train.task=mtp --set model.layers=9 --set model.mtp.heads=8 --set train.weighting=rho1 --set train.steps=2 \
    --set train.micro_batch=2 --set data.seq_len=32 --set train.eval_rows=2 --set run.dir=mtp --set run.save_last=false
run 0 train --preset test-gpt2 --set train.task=critic --set data.source=builtin:solutions --set data.difficulty=1 --set data.seq_len=96 \
    --set train.steps=2 --set train.micro_batch=2 --set train.eval_rows=2 --set run.dir=critic
run 0 train --preset test-gpt2 --set train.weighting=verifiable --set verifiable.critic=critic --set train.steps=2 --set train.micro_batch=2 \
    --set data.seq_len=32 --set run.dir=weighted --set run.save_last=false
run 0 train --preset test-gpt2 --set train.task=rloo --set train.steps=2 --set train.micro_batch=2 --set data.seq_len=32 \
    --set rl.max_completion=8 --set rl.eval_k=2 --set train.eval_rows=2 --set run.dir=rloo --set run.save_last=false \
    --set reward.list=exact,numeric,regex,format,length,program --set reward.pattern=1 --set reward.length=4 \
    --set reward.program='while read -r line; do echo 1; done'
cat metrics/metrics.jsonl preference/metrics.jsonl mtp/metrics.jsonl critic/metrics.jsonl weighted/metrics.jsonl rloo/metrics.jsonl >all.jsonl
grep -o '"[a-z0-9_/]*":' all.jsonl | tr -d '":' | sort -u >written
sed -n 's/^| `\([a-z0-9_/]*\)` .*/\1/p' printed/metrics.md | sort -u >listed
[ -z "$(comm -23 written listed)" ] || fail "metrics.md does not list $(comm -23 written listed | paste -sd ' ')"
left_out=$(comm -13 written listed | grep -v '^rewards/http/\|^system/gpu_' | paste -sd ' ') # a server is not started here, nor a GPU used
[ "$left_out" = train/skipped ] || [ -z "$left_out" ] || fail "metrics.md lists what no line has: $left_out"

# ---- refusals
check 2 "file" -- help --reference "$project/README.md"
check 2 "--reference" -- help train --reference other
finish "the reference pages are those of this program"
