#!/bin/bash
# cli_long_run.sh - a run ends with the memory, the open files and the threads that it had after its first hundred steps, with
# evaluations, completions and checkpoints in between. RALO names the program, RALO_LONG_STEPS the number of steps (600; `make
# soak` makes 10,000).
. "$(dirname "$0")/../harness/check.sh"
need python3 "it reads /proc while the run goes on"
[ -r /proc/self/status ] || { echo "no /proc here"; exit 77; }
case "$(nm -D "$RALO" 2>/dev/null)" in *__asan_init* | *__tsan_init*) echo "a sanitizer keeps freed memory"; exit 77 ;; esac
python3 "$project/tests/soak/memory.py" --ralo "$RALO" --steps "${RALO_LONG_STEPS:-600}" --variants plain,fp16 --show 4 ||
    die "something grew"

# A program that leaks is seen: one of this name that only pretends to train. It waits for what never comes instead of calling
# sleep: a child would count twice what it has, for a moment.
mkdir leaking && mkfifo leaking/nothing && cat >leaking/ralo <<'END'
#!/bin/bash
exec 3<>"${0%/*}/nothing"
for ((i = 1; i <= 600; i++)); do
    printf -v piece '%016000d' $i && kept+=$piece
    echo "step $i/600" >&2
    [ $((i % 50)) != 0 ] || read -r -t 0.03 -u 3 || :
done
END
chmod +x leaking/ralo
python3 "$project/tests/soak/memory.py" --ralo leaking/ralo --steps 600 --variants plain --show 2 >out &&
    die "a program that grows passed: $(cat out)"
grep -q 'KB of memory grew' out || die "a program that grows failed for another reason: $(cat out)"
finish "memory, open files and threads stay as they were"
