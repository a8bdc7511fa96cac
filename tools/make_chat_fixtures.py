#!/usr/bin/env python3
"""make_chat_fixtures.py [OUT] - what transformers' apply_chat_template gives for small tokenizers and published templates.

Writes tests/fixtures/chat/: two small tokenizers (byte-level with the control tokens of ChatML and Llama 3; byte-fallback
with those of Llama 2) and cases.json: for each template its tokenizer_config.json and conversations with the ids of the
whole, the ids of the prompt for the last answer, and which tokens belong to an answer. tests/test_chat.c compares.
The templates are the published ones of Qwen2.5, Qwen3, Llama 3 and Llama 2 (chat), as far as text turns need them.
Needs Python with `tokenizers` and `transformers`; nothing else of the project does.
"""
import json
import os
import sys

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINING = """The quick brown fox jumps over the lazy dog. What is two plus three? The answer is five. You are a helpful
assistant. You are Qwen, created by Alibaba Cloud. system user assistant How are you today? I am fine, thank you.
Natalia sold clips to 48 of her friends in April. 48 + 24 = 72 clips. It's what they'll say: we've been there.
"""
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in message.content %}
                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

def turn(role, content):
    return {"role": role, "content": content}

CASES = [
    [turn("user", "What is two plus three?"), turn("assistant", "The answer is five.")],
    [turn("system", "You are a quick fox."), turn("user", "How are you today?"), turn("assistant", "I am fine, thank you.")],
    [turn("user", "\n\n  How are you?  \n"), turn("assistant", "Fine. "), turn("user", "Natalia sold 48 clips"),
     turn("assistant", "48 + 24 = 72 clips.\n\nThat's it.")],
    [turn("system", ""), turn("user", "\u00e9t\u00e9 \u6c49\u5b57 \U0001f98a"), turn("assistant", "na\u00efve \u3000")],
    [turn("system", "sys"), turn("user", "one"), turn("assistant", "first"), turn("user", "two"), turn("assistant", "second"),
     turn("user", "three"), turn("assistant", "third, at last")],
]
THINKING = [
    [turn("user", "Two and two?"), turn("assistant", "<think>\nadd them\n</think>\n\nfour"), turn("user", "And one?"),
     turn("assistant", "<think>\nfour and one\n</think>\n\nfive")],
]


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


def trained_tokens(text, offsets, ids, messages, ends):
    """1 for the tokens of each answer and the token that ends it, from the places of the characters."""
    mask, at = [0] * len(ids), 0
    for m in messages:
        content = m["content"].strip()
        if "</think>" in content and content not in text[at:]:
            content = content.split("</think>")[-1].lstrip("\n")
        start = text.index(content, at) if content else at
        at = start + len(content)
        if m["role"] != "assistant":
            continue
        stop = min(text.index(e, at) + len(e) for e in ends if e in text[at:])
        if text[start - 1] == " ":  # Llama 2 writes a space before the answer
            start -= 1
        for i, (begin, end) in enumerate(offsets):
            if begin >= start and end <= stop:
                mask[i] = 1
    return mask


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/fixtures/chat")
    os.makedirs(out, exist_ok=True)
    built = {"bytes": byte_level(), "pieces": byte_fallback()}
    for name, t in built.items():
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(json.loads(t.to_str()), f, ensure_ascii=True, separators=(",", ":"))
    templates = {
        "qwen2.5": ("bytes", QWEN25, {"bos_token": None, "eos_token": "<|im_end|>"}, CASES, ["<|im_end|>"]),
        "qwen3": ("bytes", QWEN3, {"bos_token": None, "eos_token": "<|im_end|>"}, CASES + THINKING, ["<|im_end|>"]),
        "llama3": ("bytes", LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, CASES, ["<|eot_id|>"]),
        "llama2": ("pieces", LLAMA2, {"bos_token": "<s>", "eos_token": "</s>"}, CASES, ["</s>"]),
    }
    result = {"made_by": f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}", "templates": []}
    for name, (base, template, config, cases, ends) in templates.items():
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=built[base], chat_template=template, **config)
        rows = []
        for messages in cases:
            text = fast.apply_chat_template(messages, tokenize=False, enable_thinking=False)
            encoded = fast(text, add_special_tokens=False, return_offsets_mapping=True)
            ids = fast.apply_chat_template(messages, tokenize=True, return_dict=False, enable_thinking=False)
            assert ids == encoded["input_ids"], name
            prompt = fast.apply_chat_template(messages[:-1], tokenize=True, return_dict=False, add_generation_prompt=True,
                                              enable_thinking=False)
            mask = trained_tokens(text, encoded["offset_mapping"], ids, messages, ends)
            rows.append({"messages": messages, "ids": ids, "prompt": prompt, "trained": mask})
        result["templates"].append({"name": name, "tokenizer": base + ".json",
                                    "config": {**config, "chat_template": template}, "cases": rows})
    with open(os.path.join(out, "cases.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(result, ensure_ascii=True))
    print("wrote", out)


main()
