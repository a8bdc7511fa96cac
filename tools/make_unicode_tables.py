#!/usr/bin/env python3
"""make_unicode_tables.py [OUT]

Writes src/text/data/unicode_table.c: general category and script of every character, in the Unicode version that the
`tokenizers` library splits text by (Oniguruma 6.9.10 in tokenizers 0.23: Unicode 16.0; tools/compare_tokenizers.py
--classes compares all characters). Another version is another data package:

    python3 -m venv env && env/bin/pip install unicodedata2==16.0.0 fonttools==4.55.0
    env/bin/python tools/make_unicode_tables.py
"""
import os
import sys

import unicodedata2
from fontTools.unicodedata import Scripts, script_name

CATEGORIES = ["Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc", "Pd", "Pe", "Pf",
              "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"]


def scripts_version():
    with open(Scripts.__file__, encoding="utf-8") as f:
        for line in f:
            if line.startswith("# Scripts-"):
                return line.split("-")[1].split(".txt")[0]
    sys.exit("no version in " + Scripts.__file__)


def find_runs():
    """(first, category, script) wherever one of them changes"""
    runs, at = [], 0
    for c in range(0x110000):
        while at + 1 < len(Scripts.RANGES) and Scripts.RANGES[at + 1] <= c:
            at += 1
        here = (unicodedata2.category(chr(c)), Scripts.VALUES[at])
        if not runs or runs[-1][1:] != here:
            runs.append((c,) + here)
    return runs


def rows(items, width, per_row):
    return "".join("    " + " ".join(f"{x:>{width}}," for x in items[i:i + per_row]).rstrip() + "\n" for i in range(0, len(items), per_row))


def main():
    version = unicodedata2.unidata_version
    if scripts_version() != version:
        sys.exit(f"unicodedata2 has Unicode {version}, fontTools {scripts_version()}: expected the same")
    runs = find_runs()
    names = sorted({s for _, _, s in runs})
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "src", "data", "unicode_table.c")
    with open(out, "w", encoding="utf-8") as f:
        f.write(f"/* unicode_table.c - categories and scripts of Unicode {version}; made by tools/make_unicode_tables.py from the PyPI\n"
                f" * packages unicodedata2 and fonttools. Made anew, not edited. */\n#include \"data/unicode_table.h\"\n\n/* clang-format off */\n")
        f.write(f"const char unicode_version[] = \"{version}\";\n")
        f.write("const char *const unicode_categories[UNICODE_CATEGORIES] = {\n" + rows([f'"{c}"' for c in CATEGORIES], 4, 15) + "};\n")
        f.write("const char *const unicode_scripts[] = {\n" + rows([f'"{script_name(s)}"' for s in names], 0, 6) + "};\n")
        f.write(f"const size_t n_unicode_scripts = {len(names)};\n")
        f.write("/* The first character of each run, and its category above bit 24. */\nconst uint32_t unicode_runs[] = {\n")
        f.write(rows([f"0x{CATEGORIES.index(c) << 24 | first:x}" for first, c, _ in runs], 10, 11) + "};\n")
        f.write("const uint8_t unicode_run_scripts[] = {\n" + rows([str(names.index(s)) for _, _, s in runs], 3, 27) + "};\n")
        f.write(f"const size_t n_unicode_runs = {len(runs)};\n/* clang-format on */\n")
    print(f"{out}: Unicode {version}, {len(runs)} runs, {len(names)} scripts")


main()
