#!/usr/bin/env python3
"""compare_tokenizers.py [--texts N] [--seed S] [--variants] [--classes] [TOKENIZER...] [-- FILE...]

Random texts through ralo and through the `tokenizers` library: ids (plain, with specials, specials as text) and decoded
texts (at once and as a stream) must be equal. TOKENIZER is a directory with a tokenizer.json; --variants takes the
small ones of make_tokenizer_fixtures.py. FILEs are encoded whole and line by line, must be equal too, and are timed on
one thread. --classes asks both for the classes of every character (expressions, Digits, Punctuation, Whitespace). Needs Python with `tokenizers`, and build/bench/bench_tokenizer (or BENCH=its path). Exit status 1: a
difference was found; each is cut down to its shortest text.

Classes of characters are those of Unicode 16.0 in both (see src/text/data/unicode_table.h).
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402  the settings above are read when it is loaded

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.environ.get("BENCH", os.path.join(HERE, "..", "build", "bench", "bench_tokenizer"))
SPACES = [" ", "  ", "   ", "\n", "\n\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x00", "\u0085", "\u00a0", "\u180e", "\u2003",
          "\u200b", "\u2028", "\u202f", "\u3000", "\ufeff"]
WORDS = ["the", "Hello", "don't", "I'LL", "it's", "'ſ", "123", "1234567", "3.14", "x=y", "foo_bar", "naïve", "cafe\u0301",
         "Straße", "İstanbul", "ΣΑΣ", "漢字かな", "한국어", "\u1112\u1161\u11ab", "हिन्दी", "العربية", "עברית", "ไทย", "👩‍👩‍👧‍👦", "🏳️‍🌈",
         "é́", "ậ", "ﬁ", "①", "Ⅷ", "²", "½", "٣", "𝔘𝔫𝔦", "…", "—", "“q”", "\u0345\u0300\u0315\u0301", "<s>", "</s>", "<unk>",
         "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<think>", "<mask>", "<word>",
         "<Norm>", "<norm>é", "shells", "she sells", "▁", "▁▁x", "<0x41>", "\ufffd", "a" * 30, "Z" * 45, "!!!???", "\u0301",
         "_", "ß", "K", "Å", "\u0f73\u0f71", "\u1e9b\u0323"]


class Ralo:
    def __init__(self, path):
        self.process = subprocess.Popen([BENCH, "--answer", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdout.read(4)

    def ask(self, what, count, payload, item):
        self.process.stdin.write(struct.pack("<II", what, count) + payload)
        self.process.stdin.flush()
        n, = struct.unpack("<I", self.process.stdout.read(4))
        return None if n == 0xFFFFFFFF else self.process.stdout.read(n * item)

    def encode(self, text, flags=0):
        raw = text.encode()
        ids = self.ask(flags, len(raw), raw, 4)
        return None if ids is None else list(struct.unpack(f"<{len(ids) // 4}i", ids))

    def decode(self, ids, flags, stream):
        raw = self.ask((0x200 if stream else 0x100) | flags, len(ids), struct.pack(f"<{len(ids)}i", *ids), 1)
        return None if raw is None else raw.decode()


def random_char(r):
    low, high = r.choices([(0x20, 0x7F), (0xA0, 0x600), (0x600, 0x3100), (0x3100, 0xD800), (0xE000, 0x10000),
                           (0x10000, 0x20000), (0x20000, 0x110000)], [30, 20, 20, 10, 5, 12, 3])[0]
    return chr(r.randrange(low, high))


def random_text(r):
    share, out = r.choice([0, 0, .1, .4]), []
    for _ in range(r.choice([1, 2, 3, 5, 10, 30])):
        if r.random() < share:
            out.append("".join(random_char(r) for _ in range(r.choice([1, 1, 2, 4]))))
        else:
            out.append(r.choice(SPACES if r.random() < .35 else WORDS))
    return "".join(out)


def encode_reference(t, text, flags):
    t.encode_special_tokens = flags == 2
    ids = t.encode(text, add_special_tokens=flags == 1).ids
    t.encode_special_tokens = False
    return ids


def shorten(text, differs):
    k = 0
    while k < len(text):
        shorter = text[:k] + text[k + 1:]
        if shorter and differs(shorter):
            text, k = shorter, 0
        else:
            k += 1
    return text


def compare_random(name, t, ralo, n_texts, seed):
    r, n_bad, shown = random.Random(seed), 0, set()
    for _ in range(n_texts):
        text = random_text(r)
        for flags in (0, 1, 2):
            differs = lambda s: ralo.encode(s, flags) != encode_reference(t, s, flags)
            if differs(text):
                n_bad += 1
                shown.add(("encode", flags, shorten(text, differs)))
        ids = encode_reference(t, text, 1)
        if ids and r.random() < .5:
            ids = [r.choice(ids) for _ in ids]
        elif r.random() < .3:
            ids = [i for i in (r.randrange(t.get_vocab_size()) for _ in range(12)) if t.id_to_token(i) is not None]
        for flags in (0, 1):
            expected = t.decode(ids, skip_special_tokens=flags == 0)
            for stream in (False, True):
                if ralo.decode(ids, flags, stream) != expected:
                    n_bad += 1
                    shown.add(("decode", flags, tuple(ids)))
    print(f"{name}: {n_texts} random texts, {n_bad} differences")
    for what in list(shown)[:10]:
        print("   ", ascii(what))
    return n_bad


CLASSES = [r"\p{L}", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\p{Nd}", r"\p{P}", r"\p{S}", r"\p{Z}",
           r"\s", r"\d", r"\w", r"[^\s\p{L}\p{N}]", r"[\p{P}\p{S}]", r"\p{Han}", r"\p{Greek}", r"[^\w]"]


def compare_classes():
    """Every character through one class at a time, a hundred in a text, each behind an x."""
    import make_tokenizer_fixtures as fixtures
    bases, _ = fixtures.base_models()
    only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = {c: fixtures.split(c, "Removed") for c in CLASSES}
    steps["Digits"] = {"type": "Digits", "individual_digits": True}
    steps["Punctuation"] = {"type": "Punctuation", "behavior": "Removed"}
    steps["Whitespace"] = {"type": "Whitespace"}
    chars = [chr(c) for c in range(1, 0x40000) if not 0xD800 <= c < 0xE000] + [chr(c) for c in range(0xE0000, 0xE1000)]
    n_bad = 0
    for name, step in steps.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(fixtures.compose(bases, "bytes", {"pre_tokenizer": fixtures.sequence(step, only)}, {}), f)
            f.flush()
            t, ralo, bad = Tokenizer.from_file(f.name), Ralo(f.name), []
            differs = lambda s: ralo.encode(s) != t.encode(s, add_special_tokens=False).ids
            for i in range(0, len(chars), 100):
                part = chars[i:i + 100]
                if differs("x" + "x".join(part)):
                    bad += [c for c in part if differs("x" + c + "x")]
            n_bad += len(bad)
            print(f"class {name}: {len(chars)} characters, {len(bad)} differences", ascii(bad[:10]))
    return n_bad


def best_of(n, call):
    times = []
    for _ in range(n):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return result, min(times)


def compare_file(name, t, ralo, path):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    lines = text.split("\n")
    ours, our_time = best_of(3, lambda: ralo.encode(text)) # with the transfer through the pipe
    reference, reference_time = best_of(3, lambda: t.encode(text, add_special_tokens=False).ids)
    n_bad = int(ours != reference)
    n_bad += sum(ralo.encode(line, 1) != t.encode(line).ids for line in lines)
    mb = len(text.encode()) / 1e6
    print(f"{name}: {os.path.basename(path)}: {mb:.2f} MB, {len(reference)} ids, {len(lines)} lines, {n_bad} differences; "
          f"ralo {mb / our_time:.1f} MB/s, reference {mb / reference_time:.2f} MB/s, ratio {reference_time / our_time:.1f}")
    return n_bad


def main():
    arguments, files = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, files = arguments[:at], arguments[at + 1:]
    n_texts, seed, names, n_bad = 1000, 1, [], 0
    while arguments:
        a = arguments.pop(0)
        if a == "--texts":
            n_texts = int(arguments.pop(0))
        elif a == "--seed":
            seed = int(arguments.pop(0))
        else:
            names.append(a)
    for name in names:
        if name == "--classes":
            n_bad += compare_classes()
            continue
        if name == "--variants":
            import make_tokenizer_fixtures as fixtures
            bases, _ = fixtures.base_models()
            for variant, base, patch, model in fixtures.variants():
                with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                    json.dump(fixtures.compose(bases, base, patch, model), f)
                    f.flush()
                    n_bad += compare_random(variant, Tokenizer.from_file(f.name), Ralo(f.name), n_texts, seed)
            continue
        t, ralo = Tokenizer.from_file(os.path.join(name, "tokenizer.json")), Ralo(name)
        n_bad += compare_random(name, t, ralo, n_texts, seed)
        for path in files:
            n_bad += compare_file(name, t, ralo, path)
    return n_bad > 0


if __name__ == "__main__":
    sys.exit(main())
