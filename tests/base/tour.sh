#!/bin/bash
# tour.sh - docs/tour.md leads to places that are there, in ten files, and to at most 1,000 lines: each function, or the
# whole file where it is a table.
python3 - "${RALO_SOURCE:-$(dirname "$0")/../..}" <<'P'
import pathlib, re, sys
root = pathlib.Path(sys.argv[1])
rows = re.findall(r"^\| \d+ \| `([^`]+)`: `([^`]+)` \|", (root / "docs/tour.md").read_text(), re.M)
lines, wrong = 0, []
for file, name in rows:
    text = (root / file).read_text()
    if not re.search(rf"\b{name}\b", text):
        wrong.append(f"{file} has no {name}")
    body = re.search(rf"^[^\n]*\b{name}\b[^\n;]*\{{\n.*?^\}}", text, re.M | re.S)
    lines += body[0].count("\n") + 1 if body else text.count("\n")
if len({f for f, _ in rows}) != 10:
    wrong.append(f"{len(rows)} rows, expected ten files")
if lines > 1000:
    wrong.append(f"{lines} lines to read, expected at most 1,000")
print("\n".join(wrong) or f"ten places, {lines} lines")
sys.exit(bool(wrong))
P
