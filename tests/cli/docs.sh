#!/bin/bash
# docs.sh - the documents point at what is there: links and headings exist, settings that are named are settings, tests that are
# named are tests, the files that CONTRIBUTING.md says to touch are there, pages in Korean show the same output as the English ones, both README
# files are short, and what they show of the program's output is what it prints. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3
"$RALO" help settings >settings || die "ralo help settings"
cat >check.py <<'CHECK'
import glob, os, re, sys
root = sys.argv[1]
os.chdir(root)
pages = ["README.md", "README_KO.md", "CONTRIBUTING.md"] + sorted(glob.glob("docs/**/*.md", recursive=True))
known = set()  # keys and other names
for line in open(sys.argv[2]):
    known.update(re.findall(r"^  ([a-z][a-z0-9_.]*) ", line))
    also = re.search(r"; also (.*)\)$", line)
    known.update(also[1].split(", ") if also else [])
groups = {key.rsplit(".", n)[0] for key in known for n in range(1, key.count(".") + 1)}
first = {key.split(".")[0] for key in known}
tests = {os.path.splitext(os.path.basename(p))[0] for p in glob.glob("tests/*/*.[cs]*")}
wrong = []


def anchor(heading):
    """As the usual renderers of Markdown make it."""
    text = re.sub(r"[`*]", "", heading.strip().lower())
    return "".join(c for c in text if c.isalnum() or c in " -_").replace(" ", "-")


def headings(path):
    return {anchor(h) for h in re.findall(r"(?m)^#+ (.*)$", open(path).read())}


def check_links(page, text):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?m)^    .*$", "", text)):
        path, _, heading = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if "://" in link:
            continue
        if not os.path.exists(target):
            wrong.append(f"{page}: {link} is not there")
        elif heading and target.endswith(".md") and heading not in headings(target):
            wrong.append(f"{page}: {link}: no such heading")


def check_settings(page, text):
    named = set(re.findall(r"--set '?\"?([a-z][a-z0-9_.]*)=", text))
    for word in re.findall(r"`([a-z]+(?:\.[a-z0-9_]+)+)(?:[=:][^`]*)?`", text):
        if word.split(".")[0] in first and not re.search(r"\.(c|h|md|yaml|jsonl?|txt|def|sh|cu|so|svg|safetensors)$", word):
            named.add(word)
    for key in sorted(named - {"key"}):  # --set key=value
        if key not in known and key not in groups:
            wrong.append(f"{page}: {key} is no setting")


def outputs(path):
    """Indented lines that are no command of another language: what a terminal shows."""
    text = re.sub(r"(?ms)^```.*?^```$", "", open(path).read())
    return [" ".join(line.split()) for line in re.findall(r"(?m)^    .*$", text)]


def check_outputs(page):
    """What a program prints is the same in both languages, so a page in Korean shows what the English one does."""
    english = page.replace("docs/guide/ko/", "docs/guide/").replace("README_KO", "README")
    shown = outputs(english)
    for line in outputs(page):
        if not re.search("[가-힣]", line) and not any(other.startswith(line) for other in shown):
            wrong.append(f"{page}: {line[:80]} is not in {english}")


def check_tests(page, text):
    for name in set(re.findall(r"`((?:test|cli|fuzz)_[a-z0-9_*]+)`", text)):
        pattern = re.compile(name.replace("*", ".*") + "$")
        if not any(pattern.match(t) for t in tests):
            wrong.append(f"{page}: {name} is no test")


def check_files(page, text):
    """Of the tree; <name> stands for a new one."""
    for path in set(re.findall(r"(?<![\w/.-])(?:src|tests|tools|cmake|configs|docs|include)/[\w./*<>-]*", text)):
        path = path.rstrip(".")
        if "<" not in path and not glob.glob(path):
            wrong.append(f"{page}: {path} is not there")


check_files("CONTRIBUTING.md", open("CONTRIBUTING.md").read())
for page in pages:
    text = open(page).read()
    check_links(page, text)
    if page.startswith(("README", "docs/guide", "docs/proof", "docs/glossary")):
        check_settings(page, text)
        check_tests(page, text)
    if page == "README_KO.md" or page.startswith("docs/guide/ko/"):
        check_outputs(page)
for page in ("README.md", "README_KO.md"):
    n = open(page).read().count("\n")
    if n > 250:
        wrong.append(f"{page} has {n} lines, at most 250 are wanted; the guides have room")
print("\n".join(wrong))
CHECK
wrong=$(python3 check.py "$project" "$work/settings") || fail "check.py"
[ -z "$wrong" ] || fail "$wrong"

# ---- examples: the plans of README, and how its run ends, numbers aside
wrong=$("$project/tools/examples" "$RALO" --check README.md README_KO.md) || fail "stale examples (make examples prints them again): $wrong"
"$RALO" train --set train.steps=2 --set train.warmup=0 --set train.problems=2 --set run.dir=short >shown 2>&1 </dev/null || fail "train: $(tail -n 2 shown)"
masked() { sed -E 's/as predicted .*|[0-9.]+ times as .*//; s/^( *saved +)[^ ]*/\1/; s/param_hash [0-9a-f]*/param_hash/; s/[0-9][0-9.]*( [KMG]iB|[KMG])?/N/g; s/  +/ /g; s/^ //' "$1"; }
masked shown >printed
sed -n '/^    100 %/,/^$/p' "$project/README.md" | grep -v '^$' >block
[ "$(wc -l <block)" -ge 6 ] || fail "README.md shows no end of a run"
masked block | grep -vE '^(100|N) %' >wanted
while IFS= read -r line; do
    grep -qxF -- "$line" printed || fail "README.md shows a line that no run prints: $line in $(cat printed)"
done <wanted

# The tool itself: a number is replaced, a line that is not printed is named.
plan="build/ralo plan --preset test-gpt2 --hardware cpu-2"
printf '    $ %s\n    ...\n    model     test-gpt2: 1 parameters, ...\n\ntext\n' "$plan" >page.md
"$project/tools/examples" "$RALO" --check "$work/page.md" >said && fail "a stale number was not seen"
"$project/tools/examples" "$RALO" "$work/page.md" >said || fail "tools/examples: $(cat said)"
grep -q '^    model     test-gpt2: [0-9.]*K parameters, \.\.\.$' page.md || fail "the number was not replaced: $(cat page.md)"
"$project/tools/examples" "$RALO" --check "$work/page.md" || fail "what was just printed is stale"
printf '    $ %s\n    a line of an older program\n' "$plan" >page.md
"$project/tools/examples" "$RALO" "$work/page.md" >said && fail "a line that nothing resembles was accepted"
grep -q 'nothing that is printed resembles: a line of an older program' said || fail "the line is not named: $(cat said)"
finish "the documents point at what is there, and show what is printed"
