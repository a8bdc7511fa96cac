#!/bin/bash
# cli_help.sh - help, man page and completions say what the parser takes: every command, every flag, every setting. RALO
# names the program.
. "$(dirname "$0")/../harness/check.sh"

# ---- the annotated defaults that come with the program are its own
"$RALO" train --show-config | cmp - "$project/configs/default.yaml" || fail "configs/default.yaml is not what train --show-config prints"

# ---- help: on stdout, exit code 0, and each flag it lists is a flag that the parser knows
"$RALO" --help >all 2>err && [ ! -s err ] || fail "ralo --help: $(cat err)"
"$RALO" help | cmp -s all - || fail "ralo help differs from ralo --help"
"$RALO" | cmp -s all - || fail "ralo alone differs from ralo --help"
"$RALO" help man >ralo.1 || fail "ralo help man"
"$RALO" completion bash >ralo.bash || fail "ralo completion bash"
"$RALO" completion zsh >_ralo || fail "ralo completion zsh"
commands=$(sed -n 's/^  ralo \([a-z]*\).*/\1/p' all)
for command in train plan generate eval export devices completion help; do
    grep -qx "$command" <<<"$commands" || fail "$command is not in ralo --help"
done
sed 's/\\//g' ralo.1 >ralo.1.plain
for command in $commands; do
    "$RALO" "$command" --help >help 2>err && [ ! -s err ] || fail "ralo $command --help: $(cat err)"
    "$RALO" help "$command" | cmp -s help - || fail "ralo help $command differs from ralo $command --help"
    "$RALO" "$command" -h | cmp -s help - || fail "ralo $command -h differs from ralo $command --help"
    grep -q "^.SS ralo $command" ralo.1 || fail "the man page does not describe $command"
    sed -n "/^.SS ralo $command/,/^.S[SH] /p" ralo.1.plain >page
    flags=$(sed -n 's/^  \(--\{0,1\}[a-z][a-z-]*\) .*/\1/p' help)
    [ -n "$flags" ] || fail "ralo $command --help lists no flag"
    for flag in $flags; do
        grep -qF -- "fB${flag}fR" page || fail "the man page does not name $flag of $command"
        "$RALO" "$command" "$flag" value --help 2>err | cmp -s help - || fail "ralo $command $flag: $(cat err)"
        grep -qE "^  $flag( [^ ]+)? {1,}[A-Za-z]" help || fail "$flag of $command has no help"
    done
done
"$RALO" help settings | sed -n 's/^  \([a-z][a-z0-9_.]*\) .*/\1/p' >keys
# some of them: one by its key or another name, those of a group
[ "$("$RALO" help train.learning_rate | grep -c '^  [a-z]')" = 1 ] || fail "help of one setting"
"$RALO" help train.learning_rate | grep -q '^  train.lr ' || fail "help train.learning_rate does not show train.lr"
"$RALO" help memory.offload | sed -n 's/^  \([a-z][a-z0-9_.]*\) .*/\1/p' | cmp -s - <(grep '^memory\.offload\.' keys) ||
    fail "help memory.offload does not list those settings"
[ "$(wc -l <keys)" -gt 30 ] || fail "help settings lists only $(wc -l <keys) settings"
while read -r key; do
    grep -qF "fB${key}fR" ralo.1.plain || fail "the man page does not name the setting $key"
done <keys
if command -v groff >/dev/null; then
    groff -man -ww -Tutf8 ralo.1 >page 2>warnings || fail "groff does not take the man page"
    [ ! -s warnings ] || fail "groff: $(head -n 3 warnings)"
fi

# ---- the parser
# refused TEXT... -- ARGUMENTS
refused() {
    local texts=() text
    while [ "$1" != -- ]; do texts+=("$1") && shift; done
    shift
    "$RALO" "$@" >out 2>err </dev/null
    [ $? = 2 ] || fail "ralo $*: exit code not 2"
    for text in "${texts[@]}"; do grep -qF -- "$text" err || fail "ralo $*: '$text' is not in: $(cat err)"; done
}
refused "unknown option '--batch'; give --set train.batch=VALUE" -- train --batch 4
refused "unknown option '--save-every'; give --set train.save_every=VALUE" -- train --save-every 4
refused "unknown option '--beta=1'; give --set verifiable.beta=VALUE or --set preference.beta=VALUE or --set rl.beta=VALUE" -- train --beta=1
refused "unknown option '--presett'" "did you mean '--preset'" "ralo train --help" -- train --presett gpt2
refused "unknown option '--dtpe=bf16'" "did you mean '--dtype'" -- export a b --dtpe=bf16
refused "unknown option '--quite-another-thing'; 'ralo plan" -- plan --quite-another-thing
refused "unknown option '-x'" -- plan -x
refused "--dtype needs a value" "fp32|bf16|fp16" -- export a b --dtype
refused "export: --dtype: found 'fp8', expected one of: fp32, bf16, fp16" -- export a b --dtype fp8
refused "no RUN|CHECKPOINT" "ralo export RUN|CHECKPOINT DIR" -- export
refused "no DIR" -- export a
refused "one argument too many, 'c' after 'b'" -- export a b c
refused "one argument too many, 'c'" -- devices c
refused "--trace" "found ''" -- train --trace=
refused "eval: --model is missing: a Hugging Face" -- eval --data x
refused "eval: --data is missing" -- eval --model x
refused "generate: --top-p: found '0', expected a number in (0, 1]" -- generate --model x --prompt y --top-p 0
refused "generate: -n: found 'two', expected a whole number in [1, 1048576]" -- generate --model x --prompt y -n two
refused "generate: found no prompt" -- generate --model x
refused "found 'y' and --model x, expected one model" -- generate --model x y
refused "found 'fish', expected bash or zsh" -- completion fish
refused "help: found 'tain', expected a command, a setting or a group of settings; did you mean 'train'?" -- help tain
refused "help: found 'memori', expected" "did you mean 'memory'?" -- help memori
refused "help: found 'preset', expected" "did you mean 'presets'?" -- help preset
refused "help: found 'machines', expected a command, a setting or a group of settings (model, data, " "verifiable" -- help machines
refused "help: unknown setting 'train.lrr'" "did you mean 'train.lr'" -- help train.lrr
refused "-config.yaml" "no such file" -- plan -- -config.yaml # after --, a dash is part of a name

# ---- bash, asked as the shell would ask
# offers LINE: candidates for the end of the line, one per line
cat >ask <<'ASK'
source ./ralo.bash
complete -p ralo >/dev/null || exit 1
compopt() { :; } # only allowed while the shell itself completes
COMP_LINE=$1 COMP_POINT=${#1}
_ralo
printf '%s\n' "${COMPREPLY[@]}"
ASK
offers() { bash --norc ask "$1" | sort | paste -sd ' '; }
expect() {
    local got
    got=$(offers "$1")
    [ "$got" = "$2" ] || fail "bash completes '$1' to '$got', expected '$2'"
}
mkdir -p files/runs && touch files/a.yaml 'files/two words.yaml'
expect "ralo " "$(printf '%s\n' $commands --help --version | sort | paste -sd ' ')"
expect "ralo tr" "track train"
expect "ralo train --pre" "--preset"
expect "ralo export --d" "--dtype"
expect "ralo export a b --dtype b" "bf16"
expect "ralo export a b --dtype=fp" "fp16 fp32"
expect "ralo train --set train.sch" "train.schedule= train.schedule_steps= train.schedule_style="
expect "ralo train --set train.schedule=c" "constant cosine"
expect "ralo train --set=train.schedule=w" "wsd"
expect "ralo train --json --set precision=bf" "bf16 bf16_sr"
expect "ralo plan --override data.pack=" "false true"
expect "ralo train --set memory.device=" "auto"
expect "ralo plan --preset gpt2-" "gpt2-large gpt2-medium gpt2-xl"
expect "ralo plan --set model.preset=gpt2-x" "gpt2-xl"
expect "ralo train --resume a" "auto"
expect "ralo train --resume files/r" "files/runs"
expect "ralo train files/a" "files/a.yaml"
expect "ralo train files/t" "files/two words.yaml"
expect "ralo export files/" "files/runs"
expect "ralo train --set model.path=files/r" "files/runs"
expect "ralo train files/a.yaml files/" "" # there is but one CONFIG
expect "ralo completion " "bash zsh"
expect "ralo help pl" "plan"
expect "ralo help prec" "precision"
expect "ralo help pres" "presets"
expect "ralo help train.warmup_" "train.warmup_kind train.warmup_min_lr train.warmup_ratio"
expect "ralo devices --js" "--json"
expect "ralo generate --model files/r" "files/runs"
expect "ralo generate --prompt-file files/a" "files/a.yaml"
expect "ralo eval --precision b" "bf16"
expect "ralo generate --prompt t" ""
expect "ralo plan --hardware h2" "h200"
expect "ralo devices --measure files/a" "files/a.yaml"
expect "ralo train --set memory.recompute=f" "full"
expect "ralo nothing " ""
for command in $commands; do
    got=$(offers "ralo $command -")
    for flag in $("$RALO" "$command" --help | sed -n 's/^  \(--\{0,1\}[a-z][a-z-]*\) .*/\1/p'); do
        [[ " $got " == *" $flag "* ]] || fail "bash does not complete $flag of $command"
    done
done
[ "$(offers "ralo train --set ")" = "$(sed 's/$/=/' keys | sort | paste -sd ' ')" ] || fail "bash does not offer every setting"

# ---- zsh
head -n 1 _ralo | grep -qx '#compdef ralo' || fail "the zsh completion does not begin with #compdef"
if command -v zsh >/dev/null; then
    zsh -n _ralo || fail "zsh does not take its completion"
else
    echo "zsh not found: its completion was not checked"
fi

# ---- on a terminal help is as wide as the terminal, and says the same words
cat >wide.py <<'CHECK'
import fcntl, os, pty, struct, subprocess, sys, termios
ralo, columns, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
plain = subprocess.run([ralo, *words], stdout=subprocess.PIPE, check=True).stdout.decode()
here, there = pty.openpty()
fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
child = subprocess.Popen([ralo, *words], stdout=there)
os.close(there)
shown = b""
while True:
    try:
        part = os.read(here, 65536)
    except OSError:
        break
    if not part:
        break
    shown += part
child.wait()
shown = shown.decode()
if not words[0] == "train" and plain.split() != shown.split():  # the usage of a command breaks inside of brackets
    sys.exit(f"{words}: other words on a terminal")
wide = [line for line in shown.splitlines() if len(line) > columns]
if wide:
    sys.exit(f"{words}: wider than {columns}: {wide[0]}")
CHECK
if command -v python3 >/dev/null; then
    for columns in 60 80 200; do
        for topic in help "help settings" "help memory" "train --help" "help presets"; do
            # shellcheck disable=SC2086
            python3 wide.py "$RALO" $columns $topic || fail "$topic on $columns columns"
        done
    done
fi
finish "help, man page and completions name every command, flag and setting"
