#!/usr/bin/env python3
"""make_chat_fixtures.py [OUT] - what transformers' apply_chat_template gives for small tokenizers and templates of our own.

Writes tests/fixtures/chat/: two small tokenizers (byte-level with the control tokens of ChatML and Llama 3; byte-fallback
with those of Llama 2) and cases.json: for each template its tokenizer_config.json and conversations with the ids of the
whole, the ids of the prompt for the last answer, and which tokens belong to an answer. tests/data/test_chat.c compares.
The templates use what published ones use: default system messages, tools, tool calls, thoughts that are kept or dropped,
macros, roles inside special tokens, turns that are rewritten by later ones.
Needs Python with `tokenizers` and `transformers`; nothing else of the project does.
"""
import json
import os
import re
import sys

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINING = """The quick brown fox jumps over the lazy dog. What is two plus three? The answer is five. You are a helpful
assistant. You are Qwen, created by Alibaba Cloud. system user assistant How are you today? I am fine, thank you.
Natalia sold clips to 48 of her friends in April. 48 + 24 = 72 clips. It's what they'll say: we've been there.
"""
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Templates of our own. {% generation %} stands around what the assistant says: transformers tells from it which tokens are
# trained, and ralo must find the same in the template without these tags.
CHATML = """{%- set default = 'Be brief.\\nPut the result into \\\\boxed{}, not into \\'quotes\\'.' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else default) + '\\n\\nTools:' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\n' + default + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}{{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {%- set f = call.function if call.function is defined else call %}
            {{- ('\\n' if message.content or not loop.first else '') ~ '<tool_call>\\n{"name": "' ~ f.name ~ '", "arguments": ' ~ f.arguments | tojson ~ '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
# The built-in format of that name.
CHATML_PLAIN = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
# Earlier thoughts are dropped: those before the last question that is no answer of a tool.
THINKING = """{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for m in messages[::-1] %}
    {%- if ns.searching and m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}{%- set ns.last = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role != 'assistant' %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
    {%- else %}
        {%- set said = m.content %}{%- set thought = '' %}
        {%- if m.reasoning_content is string %}
            {%- set thought = m.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {%- if not thought and enable_thinking is defined and enable_thinking is false %}
                {{- '<think>\\n\\n</think>\\n\\n' }}{% generation %}{{- said + '<|im_end|>' }}{% endgeneration %}
            {%- else %}
                {% generation %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') + '<|im_end|>' }}{% endgeneration %}
            {%- endif %}
        {%- else %}
            {% generation %}{{- said + '<|im_end|>' }}{% endgeneration %}
        {%- endif %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
# The prompt opens the thoughts: an answer goes on behind "<think>\\n".
THINKING_ONLY = """{%- for m in messages %}
    {%- if m.role == 'assistant' and m.reasoning_content %}
        {{- '<|im_start|>assistant\\n<think>\\n' }}{% generation %}{{- m.reasoning_content + '\\n</think>\\n\\n' + m.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""
HEADERS = """{% for message in messages %}{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

' %}{{ (bos_token + head) if loop.index0 == 0 else head }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""
INST = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must take turns') }}{% endif %}{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{% generation %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""
# System turns are dropped, questions are shouted and prefixed, answers lose their leading spaces; no end-of-turn token but EOS.
LOUD = """{% for m in messages if m.content %}{% if m.role == 'system' %}{{ m.content ~ '\\n' }}{% elif m.role == 'user' %}{{ 'Q: ' + (m.content | upper) + '\\nA:' }}{% else %}{% generation %}{{ ' ' + m.content.lstrip() + eos_token }}{% endgeneration %}{{ '\\n' }}{% endif %}{% endfor %}"""
# The last answer ends otherwise than the earlier ones.
LAST_ENDS = """{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + ('<|end_of_text|>' if loop.last and not add_generation_prompt else '<|eot_id|>') }}{% endgeneration %}{% else %}{{ m.content + '<|eot_id|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}{% endif %}"""
# Tools stand before the last question: every prefix of a conversation has them elsewhere.
LATE_TOOLS = """{{ bos_token }}{% set n = messages | selectattr('role', 'equalto', 'user') | list | length %}{% set ns = namespace(i=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.i = ns.i + 1 %}{% if tools and ns.i == n %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}{{ '[INST] ' + m.content + '[/INST]' }}{% elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"""
# Content as text or as parts, a macro, and roles that form the special token.
PARTS = """{%- macro text(content) -%}{%- if content is string -%}{{- content -}}{%- else -%}{%- for part in content -%}{%- if part.type == 'text' -%}{{- part.text -}}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}
{%- for m in messages -%}
{{- '<|' + m.role.replace('user', 'im_start').replace('assistant', 'begin_of_text').replace('system', 'start_header_id') + '|>' -}}
{%- if m.role == 'assistant' -%}{% generation %}{{- text(m.content) + '<|im_end|>' -}}{% endgeneration %}{%- else -%}{{- text(m.content) + '<|im_end|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|begin_of_text|>' -}}{%- endif -%}"""

def turn(role, content):
    return {"role": role, "content": content}

def tool_call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CASES = [
    {"messages": [turn("user", "What is two plus three?"), turn("assistant", "The answer is five.")]},
    {"messages": [turn("system", "You are a quick fox."), turn("user", "How are you today?"), turn("assistant", "I am fine, thank you.")]},
    {"messages": [turn("user", "\n\n  How are you?  \n"), turn("assistant", "Fine. "), turn("user", "Natalia sold 48 clips"),
                  turn("assistant", "48 + 24 = 72 clips.\n\nThat's it.")]},
    {"messages": [turn("system", ""), turn("user", "\u00e9t\u00e9 \u6c49\u5b57 \U0001f98a"), turn("assistant", "na\u00efve \u3000")]},
    {"messages": [turn("system", "sys"), turn("user", "one"), turn("assistant", "first"), turn("user", "two"), turn("assistant", "second"),
                  turn("user", "three"), turn("assistant", "third, at last")]},
]
MIDDLE = [{"messages": [turn("user", "one"), turn("assistant", "first"), turn("system", "Now be loud."), turn("user", "two"),
                        turn("assistant", "SECOND")]}]
THOUGHTS = [
    {"messages": [turn("user", "Two and two?"), turn("assistant", "<think>\nadd them\n</think>\n\nfour"), turn("user", "And one?"),
                  turn("assistant", "<think>\nfour and one\n</think>\n\nfive")]},
    {"messages": [turn("user", "Two and two?"), {**turn("assistant", "four"), "reasoning_content": "add them"}, turn("user", "And one?"),
                  {**turn("assistant", "five"), "thinking": "four and one"}]},
    {"messages": [turn("user", "Look it up."), {**turn("assistant", "I ask."), "reasoning_content": "a tool may know"},
                  turn("user", "<tool_response>\n7\n</tool_response>"), {**turn("assistant", "seven"), "reasoning_content": "it is 7"}]},
    {"messages": [turn("user", "Two and two?"), turn("assistant", "four")], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [turn("user", "Two and two?"), turn("assistant", "four")], "chat_template_kwargs": {"enable_thinking": True}},
]
TOOLS = [
    {"messages": [turn("user", "Add 2 and 3."), {"role": "assistant", "content": None, "tool_calls": [tool_call("add", {"a": 2, "b": 3.5})]},
                  {"role": "tool", "name": "add", "content": "5.5"}, turn("assistant", "It is 5.5.")],
     "tools": [{"type": "function", "function": {"name": "add", "description": "Adds \u00e9 <two> & more", "parameters": {
         "type": "object", "properties": {"a": {"type": "number", "maximum": 10}, "b": {"type": "number"}}, "required": ["a", "b"]}}}]},
    {"messages": [turn("system", "Use tools."), turn("user", "Add twice."),
                  {"role": "assistant", "content": "Twice:", "tool_calls": [tool_call("add", {"a": 1}), tool_call("add", {"a": -1e-7})]},
                  {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}, turn("assistant", "done")],
     "tools": [{"type": "function", "function": {"name": "add"}}]},
]
TOOLS_ALONE = [{"messages": c["messages"], "tools": TOOLS[1]["tools"]} for c in (CASES[0], CASES[2])]
PART_CASES = [{"messages": [turn("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "two?"}]),
                            turn("assistant", [{"type": "text", "text": "A number."}])]}]


def specials(t, names, plain=()):
    t.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    t.add_tokens([AddedToken(n, special=False, normalized=False) for n in plain])
    return t


def byte_level():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TRAINING], trainers.BpeTrainer(vocab_size=340, show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    # "\n\n" is one token in the published ones: what stands at a boundary must not be what stands alone.
    model = json.loads(t.to_str())
    vocab, merges = model["model"]["vocab"], model["model"]["merges"]
    vocab["\u010a\u010a"] = len(vocab)
    merges.append(["\u010a", "\u010a"])
    t = Tokenizer.from_str(json.dumps(model))
    return specials(t, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>",
                        "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], ["<think>", "</think>"])


def byte_fallback():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator([TRAINING], trainers.BpeTrainer(
        vocab_size=420, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]))
    model = json.loads(t.to_str())
    model["added_tokens"] = model["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(model))
    t = Tokenizer.from_str(json.dumps({**json.loads(t.to_str()), "pre_tokenizer": None}))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def plain(template):
    return re.sub(r"\{% (end)?generation %\}", "", template)


def apply(fast, template, case, messages, **more):
    return fast.apply_chat_template(messages, tools=case.get("tools"), chat_template=template, **case.get("chat_template_kwargs", {}),
                                    **more)


def rows_of(fast, template, cases, name):
    rows = []
    for case in cases:
        marked = apply(fast, template, case, case["messages"], return_dict=True, return_assistant_tokens_mask=True)
        ids = apply(fast, plain(template), case, case["messages"], return_dict=False)
        assert ids == list(marked["input_ids"]), name
        prompt = apply(fast, plain(template), case, case["messages"][:-1], add_generation_prompt=True, return_dict=False)
        rows.append({**case, "ids": ids, "prompt": prompt, "trained": list(marked["assistant_masks"])})
    return rows


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/fixtures/chat")
    os.makedirs(out, exist_ok=True)
    built = {"bytes": byte_level(), "pieces": byte_fallback()}
    for name, t in built.items():
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(json.loads(t.to_str()), f, ensure_ascii=True, separators=(",", ":"))
    im_end = {"bos_token": None, "eos_token": "<|im_end|>"}
    text_ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    pieces = {"bos_token": "<s>", "eos_token": "</s>"}
    templates = {
        "chatml": ("bytes", CHATML, im_end, CASES + MIDDLE + TOOLS),
        "chatml_plain": ("bytes", CHATML_PLAIN, im_end, CASES + MIDDLE),
        "thinking": ("bytes", THINKING, im_end, CASES + MIDDLE + THOUGHTS),
        "thinking_only": ("bytes", THINKING_ONLY, im_end, CASES[:2] + THOUGHTS[1:3]),
        "headers": ("bytes", HEADERS, text_ends, CASES + MIDDLE),
        "inst": ("pieces", INST, pieces, CASES),
        "loud": ("pieces", LOUD, pieces, CASES + MIDDLE),
        "last_ends": ("bytes", LAST_ENDS, text_ends, CASES),
        "late_tools": ("pieces", LATE_TOOLS, pieces, CASES + TOOLS_ALONE),
        "parts": ("bytes", PARTS, im_end, CASES + PART_CASES),
    }
    builtin = {"chatml_plain": "chatml", "headers": "llama3", "inst": "llama2"}
    result = {"made_by": f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}", "templates": []}
    for name, (base, template, config, cases) in templates.items():
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=built[base], **config)
        result["templates"].append({"name": name, "tokenizer": base + ".json", "marked": template,
                                    "builtin": builtin.get(name),
                                    "config": {**config, "chat_template": plain(template)},
                                    "cases": rows_of(fast, template, cases, name)})
    with open(os.path.join(out, "cases.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(result, ensure_ascii=True))
    print("wrote", out)


main()
