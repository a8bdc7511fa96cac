#!/usr/bin/env python3
"""make_tokenizer_fixtures.py [OUT] - what the `tokenizers` library gives for small tokenizers that use each component.

Writes tests/fixtures/tokenizer_cases.json: two small models and, for each variant of them (a patch of a tokenizer.json),
a checksum for each text over the ids and the decoded text of the reference. tests/data/test_tokenizer.c puts the same files
together and compares. And checksums for published tokenizers, which must lie in ../shared to make them.
Needs Python with `tokenizers` (the fixture says which version made it); nothing else of the project does.
tools/compare_tokenizers.py uses the same variants with random texts.
"""
import json
import os
import sys

TRAINING = """The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore; the shells she sells are
sea shells for sure. It's what they'll say: we've been there, haven't we? 12 + 345 = 357, and 2 * 3 = 6. Straße, café,
naïve, über, déjà vu; 汉字 漢字 かな 한국어 привет мир, здравствуй. the the the there then them these those that this
hello hello world    world
\t\tindent  two   spaces    four
"""

# Texts for every variant: spaces, scripts, marks, emoji, tokens inside text, unknown characters, one long word.
TEXTS = [
    "", " ", "a", "Hello world", " the  shells   she sells ", "It's WE'LL don't 'S", "12345 678 9", "x=1;y=22,z=333",
    "line\nline\r\n\r\n  two\t\tthree   \n\n\n", "naïve café cafe\u0301 e\u0301\u0316 \u1e9b\u0323 ﬁ ½ ① Å", "İSTANBUL ΣΑΣ Straße",
    "汉字かな한국어 \u1112\u1161\u11ab привет", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "\u00a0nbsp\u3000wide\u180emvs\u200bzw\u2028ls\u0085nel", "<s>hi</s> <mask>  the", "a  <mask>  b <mask>c x<word>y <word> <Norm> <norm>é <NORM>",
    "▁under ▁▁score _x", "foo_bar-baz!?...(x)[y]{z}", "the<0x41>the", "\u0301\u0345\u0300\u0315", "\x00\x01\x7f", "the" * 40, "s" * 50 + " " * 20 + "\n" * 9,
    "Ⅷ ² ٣ ໑ ⓐ _‿_ \u200d\u200c", "“quotes” — dash… ¿qué?",
]
# Bytes that are not UTF-8, as hexadecimal digits; the reference is given them with errors="replace".
BYTES = ["ff", "61ff62", "e282", "e28261", "f0908d", "c080", "eda080", "f4908080", "e2828ae28281f09f92", "616263e2"]

BYTE_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTE_ONLY = dict(BYTE_SPLIT, use_regex=False)
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
            "\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def normalizers(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def metaspace(scheme, do_split=True, char="▁"):
    return {"type": "Metaspace", "replacement": char, "prepend_scheme": scheme, "split": do_split}


def added(content, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False):
    return {"id": 0, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special}


def template(before, after):
    ids = {"<s>": 1, "</s>": 2}
    piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [piece(t) for t in before] + [text] + [piece(t) for t in after],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()}}


LLAMA2_NORMALIZER = normalizers({"type": "Prepend", "prepend": "▁"},
                                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
LLAMA2_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
SPECIALS = [added("<unk>"), added("<s>"), added("</s>")]
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def variants():
    """name, base model, patch of the file, patch of its model"""
    v = []
    byte = lambda name, patch, model=None: v.append((name, "bytes", dict({"decoder": BYTE_DECODER}, **patch), model or {}))
    char = lambda name, patch, model=None: v.append((name, "chars", patch, model or {}))
    for name, pre in {
        "gpt2": BYTE_SPLIT, "prefix_space": dict(BYTE_SPLIT, add_prefix_space=True), "no_regex": BYTE_ONLY,
        "qwen": sequence(split(QWEN), BYTE_ONLY), "llama3": sequence(split(LLAMA3), BYTE_ONLY),
        "o200k": sequence(split(O200K), BYTE_ONLY), "deepseek": sequence(*[split(p) for p in DEEPSEEK], BYTE_ONLY),
        "digits": sequence({"type": "Digits", "individual_digits": False}, BYTE_SPLIT),
        "each_digit": sequence({"type": "Digits", "individual_digits": True}, BYTE_SPLIT),
        "words": sequence({"type": "Whitespace"}, BYTE_ONLY), "space_split": sequence({"type": "WhitespaceSplit"}, BYTE_ONLY),
        "punctuation": sequence({"type": "Punctuation"}, BYTE_ONLY),
        "punctuation_removed": sequence({"type": "Punctuation", "behavior": "Removed"}, BYTE_ONLY),
        "punctuation_contiguous": sequence({"type": "Punctuation", "behavior": "Contiguous"}, BYTE_SPLIT),
        "bytes_then_split": sequence(BYTE_ONLY, split("Ġ", "MergedWithNext", kind="String")),
        "bytes_in_the_middle": sequence(BYTE_SPLIT, {"type": "Digits", "individual_digits": True}),
        "nested": sequence(sequence(sequence({"type": "Digits", "individual_digits": True})), BYTE_SPLIT),
        "empty_sequence": sequence(BYTE_SPLIT, sequence()),
        "regex_empty_matches": sequence(split("x*", "Isolated"), BYTE_ONLY),
        "regex_word_class": sequence(split(r"\w+|[^\w\s]+", "Removed", True), BYTE_ONLY),
        "regex_not_word": sequence(split(r"\W+", "Isolated"), BYTE_ONLY),
        "regex_not_word_removed": sequence(split(r"\W+", "Removed"), BYTE_ONLY), "regex_not_in_class": sequence(split(r"[^\w]+", "Removed"), BYTE_ONLY),
        "regex_script": sequence(split(r"\p{Greek}+", "Removed"), BYTE_ONLY), "regex_no_script": sequence(split(r"\p{^Greek}+", "Removed"), BYTE_ONLY),
        "regex_lines": sequence(split(r"^[a-z]+$|^\t", "Isolated"), BYTE_ONLY),
        "regex_intervals": sequence(split(r"[a-z]{2,3}+|\d{,2}|(?<=x)=", "Isolated"), BYTE_ONLY),
        "regex_possessive": sequence(split(r"\p{L}++|\s?+\p{N}*+", "Isolated"), BYTE_ONLY),
        "string_empty": sequence(split("", "Isolated", kind="String"), BYTE_ONLY),
    }.items():
        byte(name, {"pre_tokenizer": pre})
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            byte(f"split_{behavior}_{invert}", {"pre_tokenizer": sequence(split(r"\s|the", behavior, invert), BYTE_ONLY)})
        byte(f"split_string_{behavior}", {"pre_tokenizer": sequence(split(" ", behavior, kind="String"), BYTE_ONLY)})
    byte("ignore_merges", {"pre_tokenizer": sequence(split(LLAMA3), BYTE_ONLY)}, {"ignore_merges": True})
    byte("legacy_merges", {"pre_tokenizer": BYTE_SPLIT}, {"legacy": True})
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]:
        byte(form.lower(), {"pre_tokenizer": BYTE_SPLIT, "normalizer": {"type": form}})
    for left, right in [(True, False), (False, True), (True, True)]:
        byte(f"strip_{left}_{right}", {"pre_tokenizer": BYTE_SPLIT,
                                       "normalizer": {"type": "Strip", "strip_left": left, "strip_right": right}})
    byte("normalizers", {"pre_tokenizer": BYTE_SPLIT, "normalizer": normalizers(
        {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Prepend", "prepend": ">> "})})
    byte("replace_regex", {"pre_tokenizer": BYTE_SPLIT, "normalizer": {
        "type": "Replace", "pattern": {"Regex": r"\d+|é"}, "content": "#"}})
    tokens = [added("<s>"), added("</s>"), added("<mask>", lstrip=True), added("<word>", single_word=True),
              added("<Norm>", special=False, normalized=True), added("<norm>é", special=False, normalized=True)]
    byte("added", {"pre_tokenizer": BYTE_SPLIT, "added_tokens": tokens, "normalizer": {"type": "NFC"},
                   "post_processor": template(["<s>"], ["</s>"])})
    byte("added_lower", {"pre_tokenizer": BYTE_SPLIT, "added_tokens": tokens, "normalizer": {"type": "Lowercase"}})
    byte("added_rstrip", {"pre_tokenizer": BYTE_SPLIT, "added_tokens": [
        added("<mask>", lstrip=True, rstrip=True), added("the", special=False, single_word=True), added("  ", special=False),
        added("she", special=False), added("shells", special=False), added("<s", special=True), added("<s>hi", special=True)]})
    byte("added_spaces", {"pre_tokenizer": BYTE_SPLIT, "added_tokens": [
        added(" ", special=False, lstrip=True, rstrip=True), added("\n", lstrip=True, rstrip=True)]})
    byte("processors", {"pre_tokenizer": BYTE_SPLIT, "added_tokens": SPECIALS, "post_processor": {
        "type": "Sequence", "processors": [BYTE_DECODER, template(["<s>", "<s>"], [])]}})
    llama2 = {"normalizer": LLAMA2_NORMALIZER, "decoder": LLAMA2_DECODER, "added_tokens": SPECIALS,
              "post_processor": template(["<s>"], [])}
    char("llama2", llama2)
    char("llama2_unfused", llama2, {"fuse_unk": False})
    char("no_fallback", llama2, {"byte_fallback": False})
    char("no_fallback_unfused", llama2, {"byte_fallback": False, "fuse_unk": False})
    char("no_unk", llama2, {"byte_fallback": False, "unk_token": None})
    char("chars_ignore_merges", llama2, {"ignore_merges": True})
    for scheme in ["always", "first", "never"]:
        for do_split in [True, False]:
            char(f"metaspace_{scheme}_{do_split}", {"pre_tokenizer": metaspace(scheme, do_split), "added_tokens": SPECIALS,
                                                    "decoder": metaspace(scheme, do_split)})
    char("metaspace_first_normalized", {"pre_tokenizer": metaspace("first"), "added_tokens": SPECIALS, "normalizer": normalizers(
        {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFKC"})})
    char("metaspace_first_recomposed", {"pre_tokenizer": metaspace("first"), "normalizer": normalizers({"type": "NFD"}, {"type": "NFC"}),
                                        "added_tokens": SPECIALS + [added("İ", special=False, normalized=True)]})
    char("metaspace_first_split", {"pre_tokenizer": sequence(split("e", "Isolated", kind="String"), metaspace("first")),
                                   "normalizer": {"type": "Prepend", "prepend": "the"}})
    char("no_decoder", {"pre_tokenizer": {"type": "Whitespace"}, "added_tokens": SPECIALS})
    char("decoders", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "[aeiou]"}, "content": "<>"}, {"type": "Strip", "content": "s", "start": 1, "stop": 0},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "<>l"}, "content": "▁"},
        metaspace("never")]}, "added_tokens": SPECIALS})
    return v


def base_models():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    import tokenizers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator([TRAINING], trainers.BpeTrainer(vocab_size=256 + 3 + 90, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    byte = json.loads(t.to_str())["model"]
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator([TRAINING], trainers.BpeTrainer(vocab_size=256 + 3 + 150, show_progress=False,
                                                          special_tokens=["<unk>", "<s>", "</s>"] + fallback))
    char = json.loads(t.to_str())["model"]
    char["fuse_unk"] = True
    return {"bytes": byte, "chars": char}, tokenizers.__version__


def compose(bases, base, patch, model_patch):
    """The tokenizer.json of a variant; test_tokenizer.c does the same."""
    model = dict(bases[base], **{k: x for k, x in model_patch.items() if k != "legacy"})
    if model_patch.get("legacy"):
        model["merges"] = [" ".join(m) for m in model["merges"]]
    next_id = len(model["vocab"])
    for token in patch.get("added_tokens", []):
        token["id"] = model["vocab"].get(token["content"], next_id)
        next_id += token["id"] == next_id
    return dict({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": None, "post_processor": None, "decoder": None}, **patch, model=model)


def fnv(numbers):
    h = 0x811C9DC5
    for n in numbers:
        h = ((h ^ n) * 0x01000193) & 0xFFFFFFFF
    return h


def torture():
    """Everything at once, and words without a space; test_tokenizer.c makes the same."""
    return "\n".join(TEXTS) + "abc" * 33334 + " " * 5000 + "\n" * 3000 + "汉" * 20000 + "e\u0301\u0316" * 3000


def published(shared):
    """Checksums of the ids that published tokenizers give for the data sets in a directory beside the project."""
    from tokenizers import Tokenizer
    rows = []
    for name in ["gpt2", "qwen3", "llama3", "llama2"]:
        path = os.path.join(shared, "tokenizers", name, "tokenizer.json")
        if not os.path.exists(path):
            sys.exit(f"{path} is needed to make this fixture")
        t = Tokenizer.from_file(path)
        with open(os.path.join(shared, "data", "tinyshakespeare.txt"), encoding="utf-8", newline="") as f:
            ids = t.encode(f.read(), add_special_tokens=False).ids
        lines = []
        for part in ["test", "train"]:
            with open(os.path.join(shared, "data", "gsm8k", part + ".jsonl"), encoding="utf-8", newline="") as f:
                lines += [line for line in f.read().split("\n") if line]
        of_lines = [i for line in t.encode_batch(lines) for i in line.ids + [0xFFFFFFFF]]
        rows.append({"name": name, "shakespeare": fnv(ids), "gsm8k": fnv(of_lines), "torture": fnv(t.encode(torture()).ids)})
    return rows


def main():
    from tokenizers import Tokenizer
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "fixtures", "tokenizer_cases.json")
    bases, version = base_models()
    texts = TEXTS + [bytes.fromhex(h).decode("utf-8", "replace") for h in BYTES]
    result = []
    for name, base, patch, model_patch in variants():
        t = Tokenizer.from_str(json.dumps(compose(bases, base, patch, model_patch)))
        sums = []
        for text in texts:
            ids = t.encode(text, add_special_tokens=False).ids
            with_specials = t.encode(text, add_special_tokens=True).ids
            t.encode_special_tokens = True
            as_text = t.encode(text, add_special_tokens=False).ids
            t.encode_special_tokens = False
            # One number for all of it: written out, the fixture would have 400 KB.
            end = [0xFFFFFFFF]
            sums.append(fnv(ids + end + with_specials + end + as_text + end +
                            list(t.decode(ids, skip_special_tokens=True).encode()) + end +
                            list(t.decode(with_specials, skip_special_tokens=False).encode())))
        result.append({"name": name, "base": base, "patch": patch, "model": model_patch, "sums": sums})
    with open(out, "w") as f:
        f.write('{"made_by": "tools/make_tokenizer_fixtures.py, tokenizers %s",\n' % version)
        dump = lambda x: json.dumps(x, ensure_ascii=False, separators=(",", ":"))
        f.write('"bases": %s,\n"texts": %s,\n"bytes": %s,\n"published": %s,\n"variants": [\n'
                % (dump(bases), dump(TEXTS), dump(BYTES), dump(published(os.path.join(here, "..", "..", "shared")))))
        f.write(",\n".join(dump(r) for r in result))
        f.write("\n]}\n")
    print(len(result), "variants,", os.path.getsize(out), "bytes")


if __name__ == "__main__":
    main()
