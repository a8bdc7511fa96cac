#!/bin/bash
# make_packed_fixtures.sh - makes tests/fixtures/packed: small files of gzip and zstd, whole and hostile. Needs gzip and zstd (1.5.4 was used).
set -eu
out=$(cd "$(dirname "$0")/.." && pwd)/tests/fixtures/packed
mkdir -p "$out" && cd "$out"
lines() { for i in $(seq "$1" "$2"); do echo "{\"prompt\": \"$i+1=\", \"completion\": \"$((i + 1))\"}"; done; }
lines 1 40 | gzip -9n >whole.jsonl.gz
{ lines 1 20 | gzip -9n && lines 21 40 | gzip -9n; } >members.jsonl.gz
{ cat whole.jsonl.gz && head -c 100 /dev/zero; } >padded.jsonl.gz
{ cat whole.jsonl.gz && printf '\0\0more'; } >garbage.jsonl.gz
head -c 100 whole.jsonl.gz >cut.jsonl.gz
head -c 3 whole.jsonl.gz >head.jsonl.gz
{ head -c 60 whole.jsonl.gz && printf 'XXXX' && tail -c +65 whole.jsonl.gz; } >damaged.jsonl.gz
lines 1 40 | zstd -q -19 --no-check >whole.jsonl.zst
{ lines 1 20 | zstd -q -19 && printf '\x50\x2a\x4d\x18\x04\0\0\0skip' && lines 21 40 | zstd -q -19; } >frames.jsonl.zst
{ cat whole.jsonl.zst && printf 'more'; } >garbage.jsonl.zst
head -c 100 whole.jsonl.zst >cut.jsonl.zst
head -c 300M /dev/zero | zstd -q -19 --no-check >bomb.txt.zst
printf '\xef\xbb\xbfa text with a mark\n' | gzip -9n >mark.txt.gz
: | gzip -9n >nothing.txt.gz
