#!/bin/bash
# storeys.sh - the compiler holds the order of the storeys: with the flags that the build gives to a storey, the face of
# a room compiles if the storey stands on that room's, and else is not found. RALO_SOURCE, RALO_BUILD name the tree and
# the build.
command -v python3 >/dev/null || { echo "no python3: skipped"; exit 77; }
exec python3 - <<'P'
import json, os, pathlib, shlex, subprocess, sys
source, build = pathlib.Path(os.environ["RALO_SOURCE"]), pathlib.Path(os.environ["RALO_BUILD"])
below = {"base": set(), "text": {"base"}, "engine": {"base"}}
below["models"] = {"base", "text", "engine"}
below["training"] = below["models"] | {"models"}
below["app"] = below["training"] | {"training"}
commands = {}
for c in json.loads((build / "compile_commands.json").read_text()):
    file = pathlib.Path(c["file"])
    if file.suffix == ".c" and source / "src" in file.parents and file.name != "main.c":
        commands.setdefault(file.relative_to(source / "src").parts[0], c)
assert set(commands) == set(below) == {p.name for p in (source / "src").iterdir()}, (set(commands), os.listdir(source / "src"))
wrong = n = 0
for storey, c in sorted(commands.items()):
    words = shlex.split(c["command"])
    words = words[:words.index("-o")] + ["-fsyntax-only", "-x", "c", "-"]
    for other in below:
        for room in sorted((source / "src" / other).iterdir()):
            face = f"{room.name}/{room.name}.h"
            if not (room / f"{room.name}.h").is_file():
                continue
            done = subprocess.run(words, input=f'#include "{face}"\n', text=True, capture_output=True, cwd=build)
            compiles, may = done.returncode == 0, other == storey or other in below[storey]
            n += 1
            if compiles != may:
                wrong += 1
                print(f'FAILED: in {storey}/ "{face}" {"compiles" if compiles else "does not compile"}:', done.stderr[:300])
if n < 100:
    sys.exit(f"only {n} includes were tried")
print(f"{n} includes tried, {wrong} wrong")
sys.exit(wrong != 0)
P
