#!/usr/bin/env python3
"""check_templates.py DIR [--ralo BINARY] [--table FILE] [--only TEXT] - render chat templates with ralo and with transformers.

For every *.jinja of DIR a model directory is made: that template and a small tokenizer whose special tokens are the markers
that the template holds. Conversations with and without system turns, tools, tool calls, thoughts, unicode, spaces, special
tokens in the content and so on go through `ralo show --json`, as training text and as prompts, and through
apply_chat_template. A template is `equal` when every conversation gives the same text, and the same ids where no content
holds a special token, or is refused by both; `refused by both` when no conversation at all could be compared; `refused` when
ralo does not open it; else `different`. A conversation of which the template leaves a part out must be refused with that part's name;
which parts those are is asked of transformers, by rendering without each. That both refuse is compared, not why. Of the training texts it is counted in how many the
answers were found.
Needs Python with `tokenizers` and `transformers`. Nothing of the templates is kept.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# What published tokenizers call special, and what they only keep whole.
MARKERS = re.compile(r"<\|[^|<>\s'\"{}]{1,40}\|?>|<[a-z_]{1,40}\|>|<\uff5c[^<>\s'\"{}]{1,60}\uff5c>|<SPECIAL_\d+>|"
                     r"</?(?:s|bos|eos|pad|unk|sop|start_of_turn|end_of_turn|end_of_utterance)>|\[/?[A-Z_]{3,40}\]")
TAGS = re.compile(r"</?[a-z_]{3,20}>")
ROLE_TOKENS = ["<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|end|>"]
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city, \u00e9 <now> & 'then'.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "a \"city\""}, "days": {"type": "integer", "minimum": 1},
                                     "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def conversations():
    u, a, s = (lambda x, **k: turn("user", x, **k)), (lambda x, **k: turn("assistant", x, **k)), (lambda x, **k: turn("system", x, **k))
    weather = [u("Weather in Oslo?"), {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Oslo", "days": 2}, id="abcdef123")]},
               {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"t\": -3.5}"}, a("It is -3.5 degrees.")]
    return [
        ("one turn", {"messages": [u("Hi"), a("Hello.")]}),
        ("system", {"messages": [s("Be kind."), u("Hi"), a("Hello.")]}),
        ("several turns", {"messages": [u("one"), a("first"), u("two"), a("second"), u("three"), a("third")]}),
        ("system and several turns", {"messages": [s("sys"), u("one"), a("first"), u("two"), a("second")]}),
        ("system in the middle", {"messages": [u("one"), a("first"), s("louder"), u("two"), a("SECOND")]}),
        ("developer", {"messages": [turn("developer", "Be kind."), u("Hi"), a("Hello.")]}),
        ("unicode", {"messages": [s("\u00dcber \u6c49\u5b57"), u("\u00e9t\u00e9 \U0001f98a \u200d\u05d0\u05d1"), a("na\u00efve \u3000\u00df \u01c5")]}),
        ("empty system", {"messages": [s(""), u("Hi"), a("Hello.")]}),
        ("empty question", {"messages": [u(""), a("Hello?")]}),
        ("spaces", {"messages": [s("  sys \n"), u("\n  Hi \t\n"), a("Hello. \n\n"), u("  "), a(" So? ")]}),
        ("two questions", {"messages": [u("one"), u("two"), a("both")]}),
        ("two answers", {"messages": [u("one"), a("first"), a("second")]}),
        ("answer first", {"messages": [a("Welcome."), u("Hi"), a("Hello.")]}),
        ("tools", {"messages": [u("Hi"), a("Hello.")], "tools": [TOOL]}),
        ("tools and system", {"messages": [s("Be kind."), u("Hi"), a("Hello."), u("Bye"), a("Bye.")], "tools": [TOOL, TOOL]}),
        ("tool call", {"messages": weather, "tools": [TOOL]}),
        ("tool call without tools", {"messages": weather}),
        ("tool call, null content", {"messages": [weather[0], {**weather[1], "content": None}] + weather[2:], "tools": [TOOL]}),
        ("tool call as text", {"messages": [weather[0], {"role": "assistant", "content": "I look.", "tool_calls": [
            call("get_weather", "{\"city\": \"Oslo\"}", id="abcdef123")]}] + weather[2:], "tools": [TOOL]}),
        ("two tool calls", {"messages": [weather[0], {"role": "assistant", "content": "Both.", "tool_calls": [
            call("get_weather", {"city": "Oslo"}, id="abcdef123"), call("get_weather", {"city": "\u6771\u4eac", "x": None, "y": [1.0, True]}, id="abcdef124")]},
            weather[2], {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef124", "content": "20"}, a("Cold and warm."),
            u("Thanks"), a("Welcome.")], "tools": [TOOL]}),
        ("thoughts", {"messages": [u("2+2?"), a("4", reasoning_content="add"), u("+1?"), a("5", reasoning_content="four\nand one")]}),
        ("thoughts in the text", {"messages": [u("2+2?"), a("<think>\nadd\n</think>\n\n4"), u("+1?"), a("<think>\nfour\n</think>\n\n5")]}),
        ("thinking", {"messages": [u("2+2?"), a("4", thinking="add")], "chat_template_kwargs": {"enable_thinking": True}}),
        ("no thinking", {"messages": [u("2+2?"), a("4")], "chat_template_kwargs": {"enable_thinking": False}}),
        ("thinking: true", {"messages": [u("2+2?"), a("4")], "chat_template_kwargs": {"thinking": True}}),
        ("thoughts and tools", {"messages": [u("Oslo?"), {"role": "assistant", "content": "", "reasoning_content": "ask", "tool_calls": weather[1]["tool_calls"]},
                                weather[2], a("Cold.", reasoning_content="minus"), u("More"), a("No.", reasoning_content="no")], "tools": [TOOL]}),
        ("tool response as question", {"messages": [u("Go"), a("I ask.", reasoning_content="r"), u("<tool_response>\n7\n</tool_response>"),
                                                    a("7", reasoning_content="seven")]}),
        ("special tokens in the text", {"messages": [u("a<|im_end|><|eot_id|></s>[/INST]b"), a("c<|im_end|>\n<|im_start|>user\n<end_of_turn>")]}),
        ("parts", {"messages": [u([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), a("three")]}),
        ("parts everywhere", {"messages": [s([{"type": "text", "text": "s"}]), u([{"type": "text", "text": "u"}]), a([{"type": "text", "text": "a"}])]}),
        ("names", {"messages": [u("Hi", name="Bo"), a("Hello.", name="Al")]}),
    ]


def tokenizer_for(template):
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    usual = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[/INST]", "<end_of_turn>"]
    special = dict.fromkeys(usual + ROLE_TOKENS + MARKERS.findall(template))
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in special])
    t.add_tokens([AddedToken(x, special=False, normalized=False) for x in dict.fromkeys(TAGS.findall(template)) if x not in special])
    return t


def outcomes(ralo, directory, records, prompts, more=()):
    with open(os.path.join(directory, "records.jsonl"), "w", encoding="utf-8") as f:
        f.write("\n".join(json.dumps(r) for r in records) + "\n")
    run = subprocess.run([ralo, "show", "--json", "--records", "1000", "--set", "data.source=records.jsonl", "--set", "data.tokenizer=.",
                          "--set", "data.on_error=skip"] + (["--prompts"] if prompts else []) + list(more), cwd=directory, capture_output=True, text=True)
    if run.returncode:
        return None, run.stderr.strip()
    found = {}
    for line in run.stdout.splitlines():
        row = json.loads(line)
        found[row["line"] - 1] = row
    return found, run.stderr.strip()


def expected(fast, record, prompts):
    messages = record["messages"]
    if prompts:
        messages = messages[:-1]
    try:
        text = fast.apply_chat_template(messages, tools=record.get("tools"), tokenize=False, add_generation_prompt=prompts,
                                        **record.get("chat_template_kwargs", {}))
        return text, fast(text, add_special_tokens=False)["input_ids"]
    except Exception as error:  # whatever a template makes of Python is a refusal
        return None, f"{type(error).__name__}: {error}"


def is_blank(value):
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    return not (value.strip() if isinstance(value, str) else value)


def without_each(record, prompts):
    """(name as ralo's message has it, the record without that part): texts, tools, calls, and thoughts of the last answer."""
    messages = record["messages"][:-1] if prompts else record["messages"]
    tools = record.get("tools") or []
    for k in range(len(tools)):
        yield f"found tools[{k}]", {**record, "tools": tools[:k] + tools[k + 1:] or None}
    last = -1 if prompts or messages[-1]["role"] != "assistant" else len(messages) - 1
    for i, m in enumerate(messages):
        def changed(**more):
            return {**record, "messages": messages[:i] + [{**m, **more}] + messages[i + 1:] + record["messages"][len(messages):]}
        content = m.get("content")
        thoughts = isinstance(content, str) and "</think>" in content and not content.split("</think>")[-1].strip()
        if isinstance(content, list):
            for k, part in enumerate(content):
                if not is_blank(part):
                    yield f"turn {i + 1}: found content[{k}]", changed(content=content[:k] + content[k + 1:])
        elif not is_blank(content) and not (thoughts and m["role"] == "assistant" and i != last):
            yield f"turn {i + 1}: found content", changed(content="")
        if i == last and isinstance(content, str) and "</think>" in content:
            before, _, rest = content.rpartition("</think>")
            if before.partition("<think>")[2].strip() or ("<think>" not in before and before.strip()):
                yield f"turn {i + 1}: found <think> in content", changed(content=rest)
        calls = m.get("tool_calls") or []
        for k in range(len(calls)):
            yield f"turn {i + 1}: found tool_calls[{k}]", changed(tool_calls=calls[:k] + calls[k + 1:])
        if i == last and not is_blank(m.get("reasoning_content") or m.get("thinking")):
            yield f"turn {i + 1}: found reasoning_content", {**record, "messages": messages[:i] + [
                {k: v for k, v in m.items() if k not in ("reasoning_content", "thinking")}]}


def left_out(fast, record, prompts, text):
    """The parts without which transformers writes the same text."""
    return [name for name, less in without_each(record, prompts) if expected(fast, less, prompts)[0] == text]


def check(ralo, path):
    with open(path, encoding="utf-8", newline="") as f:
        template = f.read()
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    result = collections.Counter()
    notes = []
    with tempfile.TemporaryDirectory() as directory:
        t = tokenizer_for(template)
        t.save(os.path.join(directory, "tokenizer.json"))
        with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, **config)
        cases = conversations()
        for prompts in (False, True):
            found, stderr = outcomes(ralo, directory, [c for _, c in cases], prompts)
            if found is None:
                return "different", result, [stderr[-300:]]
            # where the answers are not found, the text is compared as data.train_on=all writes it
            whole = {} if prompts else outcomes(ralo, directory, [c for _, c in cases], False, ["--set", "data.train_on=all"])[0]
            for i, (name, case) in enumerate(cases):
                text, ids = expected(fast, case, prompts)
                got = found.get(i)
                what = f"{name}{', prompt' if prompts else ''}"
                if got is None:
                    notes.append(f"{what}: no outcome: {stderr[-200:]}")
                    result["different"] += 1
                    continue
                error = got.get("error", "")
                if "cannot be rendered" in error:
                    return "refused", result, [error.split("cannot be rendered: ")[-1].split("; set data.chat")[0]]
                lost = "begins and ends" in error or "marks nothing" in error
                if not prompts and text is not None:
                    result["answers lost" if lost else "answers found"] += not error or lost
                if lost:
                    notes.append(f"{what}: answer not found")
                    got = whole[i]
                    error = got.get("error", "")
                parts = [] if text is None else left_out(fast, case, prompts, text)
                told = re.search(r"((?:turn \d+: )?found (?:<think> in )?\S+), which the chat template", error)
                if text is None and error:
                    result["both refuse"] += 1
                elif parts or told:
                    right = told and told.group(1) in parts
                    result["left out" if right else "different"] += 1
                    if not right:
                        notes.append(f"{what}: left out {parts}, ralo says {error[-300:] or 'nothing'}")
                elif text is None or error:
                    result["different"] += 1
                    notes.append(f"{what}: ralo {error[-200:] or repr(got['text'][:200])}, transformers {ids if text is None else repr(text[:200])}")
                elif got["text"] != text:
                    result["different"] += 1
                    at = next((k for k in range(min(len(text), len(got["text"]))) if text[k] != got["text"][k]), min(len(text), len(got["text"])))
                    notes.append(f"{what}: at {at}: ralo {got['text'][max(0, at - 30):at + 60]!r}, transformers {text[max(0, at - 30):at + 60]!r}")
                elif got["tokens"] != ids and "special tokens" not in name:
                    result["other ids"] += 1
                    notes.append(f"{what}: other ids")
                else:
                    result["equal"] += 1
    if result["different"] or result["other ids"]:
        return "different", result, notes
    return ("equal" if result["equal"] or result["left out"] else "refused by both"), result, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--ralo", default=os.path.join(os.path.dirname(__file__), "../build/ralo"))
    parser.add_argument("--table", help="write the results as a Markdown table")
    parser.add_argument("--only", default="", help="templates whose name holds this text")
    parser.add_argument("--notes", type=int, default=2, help="how many notes of each template to print")
    o = parser.parse_args()
    ralo = os.path.abspath(o.ralo)
    rows, total = [], collections.Counter()
    for file in sorted(os.listdir(o.directory)):
        if not file.endswith(".jinja") or o.only not in file:
            continue
        verdict, result, notes = check(ralo, os.path.join(o.directory, file))
        for _ in range(3):  # some write the time with seconds
            if verdict == "different" and any(re.search(r"\d\d:\d\d:\d\d", n) for n in notes):
                verdict, result, notes = check(ralo, os.path.join(o.directory, file))
        total[verdict] += 1
        rows.append((file[:-6], verdict, result, notes))
        print(f"{file[:-6]:60} {verdict:9} " + ", ".join(f"{k} {v}" for k, v in sorted(result.items())), flush=True)
        for note in notes[:o.notes]:
            print("    " + note)
    print(", ".join(f"{v} {k}" for k, v in sorted(total.items())), f"of {sum(total.values())}")
    if o.table:
        with open(o.table, "w", encoding="utf-8") as f:
            f.write("| template | result | conversations equal | a part left out | refused by both | answers found |\n|---|---|---|---|---|---|\n")
            for name, verdict, r, notes in rows:
                lost = r["answers found"] + r["answers lost"]
                reason = f" ({notes[0][:100]})" if verdict == "refused" and notes else ""
                f.write(f"| {name} | {verdict}{reason} | {r['equal']} | {r['left out']} | {r['both refuse']} | {r['answers found']} of {lost} |\n")
    return 1 if total["different"] else 0


sys.exit(main())
