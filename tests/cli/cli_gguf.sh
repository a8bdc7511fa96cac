#!/usr/bin/env bash
# cli_gguf.sh - GGUF files read by a reader of their own: header, keys, tokens, tensors equal to those of the Hugging Face directory,
# quantised blocks by formula; what is refused. Shards and the model card of directories. tools/check_gguf.py compares with llama.cpp itself. RALO names the program.
. "$(dirname "$0")/../harness/check.sh"
need python3

cat >reader.py <<'P'
import json, math, struct, sys
from array import array
from pathlib import Path
KINDS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34), 6: (32, 22), 12: (256, 144), 14: (256, 210)}
class Gguf:
    def __init__(self, path):
        self.b, self.at = Path(path).read_bytes(), 0
        magic, version, n_tensors, n_keys = self.take('4sIQQ')
        assert magic == b'GGUF' and version == 3, (magic, version)
        self.keys = {}
        for _ in range(n_keys):
            key = self.text()
            assert key not in self.keys, key
            self.keys[key] = self.value(self.take('I')[0])
        infos = []
        for _ in range(n_tensors):
            name, n = self.text(), self.take('I')[0]
            infos.append((name, self.take(f'{n}Q'), *self.take('I'), *self.take('Q')))
        start = -(-self.at // 32) * 32
        self.tensors, end = {}, 0
        for name, dims, kind, offset in infos:
            block, size = BLOCKS[kind]
            assert name not in self.tensors and dims[0] % block == 0 and offset == -(-end // 32) * 32, name
            end = offset + math.prod(dims) // block * size
            self.tensors[name] = (dims, kind, self.b[start + offset:start + end])
        assert len(self.b) == start + -(-end // 32) * 32
    def take(self, format):
        got = struct.unpack_from('<' + format, self.b, self.at)
        self.at += struct.calcsize('<' + format)
        return got
    def text(self):
        n = self.take('Q')[0]
        self.at += n
        return self.b[self.at - n:self.at].decode()
    def value(self, kind):
        if kind == 8: return self.text()
        if kind != 9: return self.take(KINDS[kind])[0]
        of, n = self.take('IQ')
        return [self.value(of) for _ in range(n)]
def safetensors(dir):
    found = {}
    for path in Path(dir).glob('*.safetensors'):
        if path.name == 'reference.safetensors': continue
        b = path.read_bytes()
        n = struct.unpack_from('<Q', b)[0]
        for k, v in json.loads(b[8:8 + n]).items():
            if k != '__metadata__': found[k] = (v['shape'], wide(v['dtype'], b[8 + n:][slice(*v['data_offsets'])]))
    return found
def wide(kind, b): # to fp32
    if kind in ('F32', 0): return array('f', b)
    if kind in ('F16', 1): return array('f', struct.unpack(f'<{len(b) // 2}e', b))
    return array('f', b''.join(b'\0\0' + b[i:i + 2] for i in range(0, len(b), 2)))
NAMES = {'embed_tokens': 'token_embd', 'wte': 'token_embd', 'wpe': 'position_embd', 'norm': 'output_norm', 'ln_f': 'output_norm',
         'lm_head': 'output', 'input_layernorm': 'attn_norm', 'ln_1': 'attn_norm', 'ln_2': 'ffn_norm', 'attn.c_attn': 'attn_qkv',
         'attn.c_proj': 'attn_output', 'mlp.c_fc': 'ffn_up', 'mlp.c_proj': 'ffn_down', 'post_attention_layernorm': 'ffn_norm'}
def expected(dir):
    """{name: (dims, fp32)} of a GPT-2, Llama or Qwen directory."""
    config = json.load(open(f'{dir}/config.json'))
    kind, out = config['model_type'], {}
    for name, (shape, w) in safetensors(dir).items():
        body, suffix = name.rsplit('.', 1)
        parts = body.removeprefix('model.').removeprefix('transformer.').split('.')
        rest, layer = '.'.join(parts[2:]), f'blk.{parts[1]}.' if len(parts) > 2 else ''
        if not layer: rest = parts[-1]
        if name == 'lm_head.weight' and config.get('tie_word_embeddings', kind == 'gpt2'): continue
        if rest.endswith(('attn.bias', 'attn.masked_bias')) or (kind == 'gpt2' and body.endswith('.attn')): continue
        short = NAMES.get(rest) or rest.replace('self_attn.', 'attn_').replace('mlp.', 'ffn_').replace('_proj', '').replace('attn_o', 'attn_output')
        if kind == 'gpt2' and suffix == 'weight' and '.c_' in body:
            rows, columns = shape
            w, shape = array('f', (w[r * columns + c] for c in range(columns) for r in range(rows))), [columns, rows]
        if kind == 'llama' and rest.endswith(('q_proj', 'k_proj')):
            heads = config['num_attention_heads' if 'q_' in rest else 'num_key_value_heads']
            columns, half = shape[1], shape[0] // heads // 2
            order = [h * 2 * half + side * half + i for h in range(heads) for i in range(half) for side in (0, 1)]
            w = array('f', b''.join(w[r * columns:(r + 1) * columns].tobytes() for r in order))
        out[f'{layer}{short}.{suffix}'] = (tuple(reversed(shape)), w)
    return out
def same(path, dir, kind, extra=()):
    g, want = Gguf(path), expected(dir)
    assert sorted(g.tensors) == sorted([*want, *extra]), set(g.tensors) ^ set(want)
    for name, (dims, w) in want.items():
        d, k, b = g.tensors[name]
        assert d == dims and k == (0 if len(dims) == 1 or name.startswith('position') else kind), (name, d, dims, k)
        right = w.tobytes() if k == 0 else struct.pack(f'<{len(w)}e', *w)
        if k == 30: # to nearest even
            bits = array('I', w.tobytes())
            right = array('H', ((x + 0x7fff + (x >> 16 & 1)) >> 16 for x in bits)).tobytes()
        assert b == right, name
    return g
P

# Directories of transformers, old and new, in shards, of fp16 and bf16: every tensor to the bit.
for name in gpt2_tied gpt2_untied gpt2_published llama_old_fp16 llama_sharded qwen2_bf16 qwen2_old qwen3_bf16_sharded qwen3_tied_with_head; do
    check 0 "in f32" "1 file" -- export "$TEST_FIXTURES/hf/$name" $name.gguf --gguf f32 --tokenizer none
done
check 0 "in f16" -- export "$TEST_FIXTURES/hf/llama_sharded" half.gguf --tokenizer none
check 0 "in bf16" -- export --gguf=bf16 "$TEST_FIXTURES/hf/llama_sharded" brain.gguf --tokenizer none
python3 - "$TEST_FIXTURES/hf" <<'P' || fail "a tensor or a key is not that of the directory"
import sys; sys.path.insert(0, '.')
from reader import *
hf = sys.argv[1]
for path in Path('.').glob('*.gguf'):
    if path.stem in ('half', 'brain'): continue
    config = json.load(open(f'{hf}/{path.stem}/config.json'))
    scaled = (config.get('rope_scaling') or config.get('rope_parameters') or {}).get('rope_type') == 'llama3'
    g = same(path, f'{hf}/{path.stem}', 0, ['rope_freqs.weight'] if scaled else [])
    k, arch = g.keys, config['model_type']
    size = lambda *names: next(config[n] for n in names if config.get(n))
    assert k['general.architecture'] == arch and k['general.file_type'] == 0 and k['tokenizer.ggml.model'] == 'none'
    assert k[f'{arch}.block_count'] == size('num_hidden_layers', 'n_layer')
    assert k[f'{arch}.embedding_length'] == size('hidden_size', 'n_embd') and k[f'{arch}.vocab_size'] == config['vocab_size']
    assert k[f'{arch}.attention.head_count'] == size('num_attention_heads', 'n_head')
    assert k[f'{arch}.context_length'] == size('max_position_embeddings', 'n_positions')
    assert (f'{arch}.rope.freq_base' in k) == (arch != 'gpt2')
same('half.gguf', f'{hf}/llama_sharded', 1)
same('brain.gguf', f'{hf}/llama_sharded', 30)
P

# A run on bytes, its LoRA, and blocks of 256 and 32.
common=(--set data.source="$TEST_FIXTURES/lora/text.txt" --set data.seq_len=32 --set data.eval_fraction=0 --set run.device=cpu
        --set run.threads=1 --set train.steps=1 --set train.lr=0.01 --set precision=fp32)
run 0 train "${common[@]}" --preset test-llama --set model.hidden=256 --set model.ffn=320 --set model.vocab=260 --set run.dir=run
run 0 export run hf
check 0 "in f32" -- export run run.gguf --gguf f32
check 0 "in q8_0" "step 1" -- export run q8.gguf --gguf q8_0
check 0 "in q4_k" -- export run q4.gguf --gguf q4_k
check 0 '"dtype": "q4_k"' -- export run again.gguf --gguf Q4_K_M --json
cmp q4.gguf again.gguf || fail "the same run gave two files"
run 0 train "${common[@]}" --set model.path=hf --set model.lora.rank=2 --set model.lora.targets=all-linear --set run.dir=lora \
    --set run.export=end.gguf --set run.gguf=f32
grep -q "exported to end.gguf: .* in f32" err || fail "run.export: $(cat err)"
run 0 export lora merged --merge
check 0 "in f32" -- export lora lora.gguf --gguf f32
cmp lora.gguf end.gguf || fail "run.export and ralo export differ"
run 0 export lora adapter
check 0 "in f32" -- export hf peft.gguf --gguf f32 --adapter adapter --tokenizer none
python3 - <<'P' || fail "the files of a run are not right"
import sys; sys.path.insert(0, '.')
from reader import *
g = same('run.gguf', 'hf', 0)
same('lora.gguf', 'merged', 0)
same('peft.gguf', 'merged', 0)
assert any(g.tensors[n][2] != Gguf('lora.gguf').tensors[n][2] for n in g.tensors)
tokens, types = g.keys['tokenizer.ggml.tokens'], g.keys['tokenizer.ggml.token_type']
assert len(tokens) == len(set(tokens)) == len(types) == 260 and tokens[ord('A')] == 'A' and tokens[32] == '\u0120' and tokens[10] == '\u010a'
assert types == [1] * 256 + [3] * 3 + [5] and g.keys['tokenizer.ggml.eos_token_id'] == 257 and g.keys['tokenizer.ggml.merges'] == []
half = lambda b, at: struct.unpack_from('<e', b, at)[0]
f32 = lambda x: struct.unpack('f', struct.pack('f', x))[0]
want = expected('hf')
kinds = {}
for path in ('q8.gguf', 'q4.gguf'):
    for name, (dims, kind, b) in Gguf(path).tensors.items():
        w = want[name][1]
        kinds.setdefault(path, {})[name] = kind
        if len(dims) == 1: assert kind == 0 and b == w.tobytes()
        block, size = BLOCKS[kind]
        for i in range(0, min(len(w) // block, 40) if block > 1 else 0):
            x, q, at = w[i * block:(i + 1) * block], b[i * size:(i + 1) * size], 0
            if kind == 8: # d = largest / 127, codes to nearest, halves away from 0
                d = f32(max(map(abs, x)) / 127)
                inverse = f32(1 / d) if d else 0
                codes = [int(math.copysign(math.floor(abs(f32(v * inverse)) + 0.5), v)) for v in x]
                assert half(q, 0) == half(struct.pack('<e', d), 0) and list(struct.unpack('<32b', q[2:])) == codes, (name, i)
            elif kind == 6: # w' = d (q - 16): half a step, one where the largest is cut
                d, fifth = half(q, 0), struct.unpack_from('<I', q, 2)[0]
                for j, v in enumerate(x):
                    code = (q[6 + j % 16] >> (4 if j >= 16 else 0) & 15) | (fifth >> j & 1) << 4
                    assert abs(v - d * (code - 16)) <= abs(d) * (0.51 if code < 31 else 1.02) + 1e-7, (name, i, j)
            elif kind == 12: # w' = d s q - m n
                d, m, s, error = half(q, 0), half(q, 2), q[4:16], 0
                for part in range(8):
                    if part < 4: sc, mn = s[part] & 63, s[part + 4] & 63
                    else: sc, mn = s[part + 4] & 15 | s[part - 4] >> 6 << 4, s[part + 4] >> 4 | s[part] >> 6 << 4
                    for j in range(32):
                        code, v = q[16 + part // 2 * 32 + j] >> (4 if part % 2 else 0) & 15, x[part * 32 + j]
                        gap = abs(v - (d * sc * code - m * mn))
                        assert gap <= d * sc * 0.501 or code in (0, 15), (name, i, part, j)
                        error += gap * gap
                assert error <= 256 * ((max(x) - min(x)) / 15) ** 2 / 12 * 1.1, (name, i) # that of one plain scale
            elif kind == 14: # w' = d s (q - 32)
                d, error = half(q, 208), 0
                for j, v in enumerate(x):
                    side, at, run = j // 128, j % 32, j % 128 // 32
                    low = q[side * 64 + run % 2 * 32 + at] >> (4 if run > 1 else 0) & 15
                    code = low | (q[128 + side * 32 + at] >> 2 * run & 3) << 4
                    step = d * struct.unpack_from('b', q, 192 + j // 16)[0]
                    gap = abs(v - step * (code - 32))
                    assert gap <= abs(step) * 0.501 or code in (0, 63), (name, i, j)
                    error += gap * gap
                assert error <= 256 * (max(map(abs, x)) / 31) ** 2 / 12 * 1.1, (name, i)
assert all(k == 8 for n, k in kinds['q8.gguf'].items() if n.startswith('blk') and 'norm' not in n)
q4 = kinds['q4.gguf'] # llama.cpp's Q4_K_M of two layers; rows of 320 and 64 have blocks of 32
assert (q4['output.weight'], q4['token_embd.weight'], q4['blk.0.ffn_gate.weight'], q4['blk.0.attn_v.weight'], q4['blk.1.attn_v.weight']) == (14, 12, 12, 12, 14)
assert (q4['blk.0.ffn_down.weight'], q4['blk.1.ffn_down.weight'], q4['blk.0.attn_output.weight']) == (6, 8, 6)
P

# Tokenizers: byte-level with merges, sentencepiece's kind, and one that llama.cpp cannot follow.
mkdir bpe spm other
python3 - <<'P'
import json
added = lambda id, text, special: dict(id=id, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)
letters = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
n = 0
for b in range(256):
    if letters[b] is None: letters[b], n = chr(256 + n), n + 1
level = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=True)
vocab = {t: i for i, t in enumerate(letters + ['th', '\u0120th'])}
model = dict(type='BPE', vocab=vocab, merges=[['t', 'h'], ['\u0120', 'th']])
root = dict(version='1.0', added_tokens=[added(258, '<end>', True), added(259, '<tool>', False)], normalizer=None, pre_tokenizer=level,
            post_processor=None, decoder=level, model=model)
json.dump(root, open('bpe/tokenizer.json', 'w'))
json.dump(dict(eos_token='<end>', chat_template='{{ messages }}'), open('bpe/tokenizer_config.json', 'w'))
split = dict(type='Split', pattern=dict(Regex='[a-z]+|.'), behavior='Isolated', invert=False)
root['pre_tokenizer'] = dict(type='Sequence', pretokenizers=[split, {**level, 'use_regex': False}])
json.dump(root, open('other/tokenizer.json', 'w'))
pieces = ['<unk>', '<s>', '</s>'] + [f'<0x{b:02X}>' for b in range(256)][:253] + ['\u2581', 'a', 'b', '\u2581a']
blank = [dict(type='Prepend', prepend='\u2581'), dict(type='Replace', pattern=dict(String=' '), content='\u2581')]
item = lambda t: dict(SpecialToken=dict(id=t, type_id=0))
post = dict(type='TemplateProcessing', single=[item('<s>'), dict(Sequence=dict(id='A', type_id=0))], pair=[],
            special_tokens={'<s>': dict(id='<s>', ids=[1], tokens=['<s>'])})
json.dump(dict(version='1.0', added_tokens=[added(i, t, True) for i, t in enumerate(pieces[:3])], normalizer=dict(type='Sequence', normalizers=blank),
               pre_tokenizer=None, post_processor=post, decoder=None,
               model=dict(type='BPE', unk_token='<unk>', byte_fallback=True, vocab={t: i for i, t in enumerate(pieces)}, merges=[['\u2581', 'a']])),
          open('spm/tokenizer.json', 'w'))
json.dump(dict(bos_token='<s>', eos_token='</s>', unk_token='<unk>'), open('spm/tokenizer_config.json', 'w'))
P
run 0 export run bpe.gguf --tokenizer bpe
run 0 export run spm.gguf --tokenizer spm
check 2 "other/tokenizer.json" "llama.cpp cuts no text" "--tokenizer none" -- export run other.gguf --tokenizer other
python3 - <<'P' || fail "a tokenizer is not right"
import sys; sys.path.insert(0, '.')
from reader import *
k = Gguf('bpe.gguf').keys
t = lambda key: k.get('tokenizer.' + key)
assert t('ggml.model') == 'gpt2' and t('ggml.pre') == 'gpt-2' and t('ggml.merges') == ['t h', '\u0120 th'] and t('chat_template') == '{{ messages }}'
assert t('ggml.tokens')[256:] == ['th', '\u0120th', '<end>', '<tool>'] and t('ggml.token_type')[255:] == [1, 1, 1, 3, 4]
assert t('ggml.add_bos_token') is False and t('ggml.bos_token_id') is None
k = Gguf('spm.gguf').keys
assert t('ggml.model') == 'llama' and t('ggml.token_type') == [2, 3, 3] + [6] * 253 + [1] * 4 and t('ggml.merges') is None
assert t('ggml.scores')[259] == 0 and max(t('ggml.scores')[:259]) == -1e6 and t('ggml.add_space_prefix') is True
assert t('ggml.add_bos_token') is True and t('ggml.bos_token_id') == 1 and t('ggml.unknown_token_id') == 0
P

# A name that llama.cpp takes for Phi-3 is written where the vocabulary has what it looks for then, and changed where it has not.
cp -r run my-Phi3-phi-3
mkdir four && sed 's/"b"/"<|endoftext|>"/' spm/tokenizer.json >four/tokenizer.json && cp spm/tokenizer_config.json four
check 0 "general.name is my-Phi_3-phi_3 instead of my-Phi3-phi-3" "</s>" -- export my-Phi3-phi-3 phi-bpe.gguf --tokenizer bpe
check 0 "general.name is my-Phi_3-phi_3" -- export my-Phi3-phi-3 phi-bytes.gguf
check 0 "general.name is" -- export my-Phi3-phi-3 phi-spm.gguf --tokenizer spm
check 0 "!general.name" -- export my-Phi3-phi-3 phi-four.gguf --tokenizer four
check 0 "!general.name" -- export my-Phi3-phi-3 phi-none.gguf --tokenizer none
python3 - <<'P' || fail "the name of a model is not right"
import sys; sys.path.insert(0, '.')
from reader import *
names = {n: Gguf(f'phi-{n}.gguf').keys['general.name'] for n in ('bpe', 'bytes', 'spm', 'four', 'none')}
assert names == dict(bpe='my-Phi_3-phi_3', bytes='my-Phi_3-phi_3', spm='my-Phi_3-phi_3', four='my-Phi3-phi-3', none='my-Phi3-phi-3'), names
P

# What was trained is what every file names: an end token that model and tokenizer do not agree on, and a built-in chat format.
mkdir letters
cp "$TEST_FIXTURES/chat/bytes.json" letters/tokenizer.json
echo '{"add_bos_token": false, "eos_token": {"content": "<|endoftext|>", "lstrip": false}, "chat_template": "{{ messages }}",
 "model_max_length": 1000000000000000019884624838656}' >letters/tokenizer_config.json
for i in $(seq 30); do echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'; done >turns.jsonl
chat=("${common[@]}" --set data.source=turns.jsonl --set data.chat=chatml --set model.path=base)
run 0 train "${common[@]}" --preset test-llama --set model.vocab=352 --set data.tokenizer=letters --set run.dir=letters-run --set run.export=base
set_ends() { # VALUE: what the files of the base name
    python3 - "$1" <<'P'
import json, sys
for name in ('config', 'generation_config'):
    config = json.load(open(f'base/{name}.json'))
    config['eos_token_id'] = json.loads(sys.argv[1])
    json.dump(config, open(f'base/{name}.json', 'w'))
P
}
set_ends 2
check 0 "the export names 341 <|endoftext|> as end token, which was trained, instead of 2" "!chat template" -- \
    train "${common[@]}" --set model.path=base --set run.dir=text-run --set run.export=text
check 0 "the export names 343 <|im_end|> as end token" "the chat template of data.chat=chatml" -- train "${chat[@]}" --set run.dir=chat-run --set run.export=chat
check 0 "343 <|im_end|>" "data.chat=chatml" -- export chat-run chat.gguf
check 0 "343 <|im_end|>" "!data.chat" -- export chat-run given --tokenizer letters
check 0 "343 <|im_end|>" "data.chat=chatml" -- train "${chat[@]}" --set model.lora.rank=2 --set run.dir=chat-lora --set run.export=chat-adapter
check 0 "343 <|im_end|>" -- export chat-lora chat-merged --merge
run 0 export base chat-peft --merge --adapter chat-adapter
run 0 export base chat-peft.gguf --adapter chat-adapter
check 0 "!as end token" "!the chat template" -- export chat chat-again.gguf
set_ends '[2, 343]'
check 0 "!as end token" "data.chat=chatml" -- train "${chat[@]}" --set run.dir=listed-run --set run.export=listed
sed 's/.*/{"prompt": "a", "completion": "b"}/' turns.jsonl >pairs.jsonl
check 0 "the export has the tokenizer's own chat template, but the run was trained without it (data.chat=none)" -- \
    train "${chat[@]}" --set data.source=pairs.jsonl --set data.chat=none --set run.dir=plain-run --set run.export=plain
echo "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}" >base/chat_template.jinja
check 0 "the export names 341 <|endoftext|>" "!the chat template" -- train "${chat[@]}" --set data.chat=auto --set run.dir=own-run --set run.export=own
check 2 "found no token '<|start_header_id|>'" -- train "${common[@]}" --set model.path=hf --set data.source=turns.jsonl --set data.chat=llama3 # bytes
python3 - <<'P' || fail "an end token or a chat template is not what was trained"
import sys; sys.path.insert(0, '.')
from reader import *
read = lambda path: json.load(open(path))
for dir, eos, token in (('text', 341, '<|endoftext|>'), ('chat', 343, '<|im_end|>'), ('chat-merged', 343, '<|im_end|>'), ('chat-peft', 343, '<|im_end|>'),
                        ('listed', [2, 343], '<|im_end|>'), ('given', 343, '<|endoftext|>'), ('own', 341, '<|endoftext|>')):
    assert read(f'{dir}/config.json')['eos_token_id'] == read(f'{dir}/generation_config.json')['eos_token_id'] == eos, dir
    own = read(f'{dir}/tokenizer_config.json')
    assert (own['eos_token']['content'] if isinstance(own['eos_token'], dict) else own['eos_token']) == token, (dir, own)
    assert own['model_max_length'] == 1000000000000000019884624838656 and own['add_bos_token'] is False
    if token == '<|im_end|>': assert own['chat_template'] == open(f'{dir}/chat_template.jinja').read() and '<|im_start|>' in own['chat_template'], dir
    else: assert own['chat_template'] == '{{ messages }}' and Path(f'{dir}/chat_template.jinja').exists() == (dir == 'own'), dir
assert read('chat-adapter/generation_config.json')['eos_token_id'] == 343 and read('chat-adapter/tokenizer_config.json')['eos_token'] == '<|im_end|>'
assert 'model.generation_config.eos_token_id = 343' in open('chat-adapter/README.md').read()
for path in ('chat.gguf', 'chat-peft.gguf', 'chat-again.gguf'):
    k = Gguf(path).keys
    assert k['tokenizer.ggml.eos_token_id'] == 343 and k['tokenizer.chat_template'] == open('chat/chat_template.jinja').read(), path
P

# Longrope of a part of each head: both lists of factors, and the rest as llama.cpp reads it.
mkdir phi
cat >phi/config.json <<'J'
{"model_type": "phi3", "vocab_size": 260, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
 "max_position_embeddings": 64, "original_max_position_embeddings": 16, "partial_rotary_factor": 0.75, "tie_word_embeddings": true,
 "rope_scaling": {"type": "longrope", "short_factor": [1, 1.25, 1.5], "long_factor": [1.1, 2.5, 5.75]}}
J
run 0 train "${common[@]}" --set model.path=phi --set model.init=random --set run.dir=phi-run --set run.export=phi.gguf
python3 - <<'P' || fail "longrope is not right"
import sys; sys.path.insert(0, '.')
from reader import *
g = Gguf('phi.gguf')
assert g.keys['phi3.rope.dimension_count'] == 6 and g.keys['phi3.rope.scaling.original_context_length'] == 16
assert abs(g.keys['phi3.rope.scaling.attn_factor'] - math.sqrt(1.5)) < 1e-7
for name, factors in ('long', [1.1, 2.5, 5.75]), ('short', [1, 1.25, 1.5]):
    assert g.tensors[f'rope_factors_{name}.weight'][2] == struct.pack('<3f', *factors), name
P

# What is refused leaves nothing behind.
touch before after
ls -a >before
check 2 "run.gguf: the file exists" "choose another name" -- export run run.gguf
check 2 "expected a name that ends in .gguf" -- export run somewhere --gguf q8_0
check 2 "expected a name that ends in .gguf" -- export run somewhere --gguf
check 2 "export: found out.safetensors, expected a directory" -- export run out.safetensors
check 2 "'q5'" "f16, bf16, f32, q8_0, q4_k" -- export run x.gguf --gguf q5
check 2 "leave --dtype out" -- export run x.gguf --dtype bf16
check 2 "leave --heads out" -- export run x.gguf --heads all
check 2 "leave --shard-size out" -- export run x.gguf --shard-size 1M
check 2 "run.export: found out.gguf with run.save_last=false" -- train "${common[@]}" --preset test-llama --set run.export=out.gguf --set run.save_last=false
check 2 "run.export: export to run.gguf: the file exists" -- train "${common[@]}" --preset test-llama --set run.export=run.gguf
check 2 "run.export: export to run.gguf/x.gguf: Not a directory" -- train "${common[@]}" --preset test-llama --set run.export=run.gguf/x.gguf
mkdir dir.gguf
check 2 "dir.gguf: it is a directory" -- export run dir.gguf
rmdir dir.gguf
check 2 "nothing/here" -- export nothing/here x.gguf
python3 - "$TEST_FIXTURES/hf/qwen2_old" <<'P'
import json, shutil, sys
shutil.copytree(sys.argv[1], 'dynamic')
config = json.load(open('dynamic/config.json'))
config['rope_scaling'] = dict(type='dynamic', factor=2.0)
json.dump(config, open('dynamic/config.json', 'w'))
P
check 2 'qwen2: llama.cpp has no rope_type "dynamic"' "without --gguf" -- export dynamic x.gguf --gguf f32 --tokenizer none
check 2 'run.export: ' 'llama.cpp has no rope_type "dynamic"' -- train "${common[@]}" --set model.path=dynamic --set data.tokenizer=byte --set run.export=x.gguf
rm -r dynamic
(ulimit -f 8 && trap '' XFSZ && "$RALO" export run full.gguf >out 2>err) && fail "a file larger than the limit was written"
grep -q "full.gguf.*File too large" err || fail "no room is not said: $(cat err)"
ls -a >after
cmp -s before after || fail "a refused export left something: $(diff before after)"

# Shards and dtypes of directories.
check 0 "in 7 files" -- export run shards --shard-size 300K --dtype bf16
[ "$(ls shards/model-0000?-of-00007.safetensors | wc -l)" = 7 ] || fail "shards: $(ls shards)"
run 0 train "${common[@]}" --set model.path=shards --set train.lr=1e-30 --set run.dir=from_shards
run 0 export run whole --dtype bf16
run 0 export from_shards whole2 --dtype bf16
cmp whole/model.safetensors whole2/model.safetensors || fail "shards are another model"
# The model card: what the run was, at the end of it and later; nothing that a user wrote is replaced.
run 0 train "${common[@]}" --preset test-llama --set model.vocab=260 --set data.eval_fraction=0.2 --set train.eval_rows=2 --set precision=bf16 \
    --set run.dir=card --set run.export=card-hf --set track.name=secret --json
tail -n 1 out >result
run 0 export card card-later
mkdir mine && echo "my words" >mine/README.md
check 2 "it holds files already (README.md)" -- export card mine
[ "$(cat mine/README.md)" = "my words" ] || fail "a README was replaced"
python3 - <<'P' || fail "the model card is not right: $(cat card-hf/README.md)"
import json
card, later, r = open('card-hf/README.md').read(), open('card-later/README.md').read(), json.loads(open('result').read())
assert card.replace('card-hf', 'card-later') == later, later
rows = dict(line.strip('| ').split(' | ') for line in card.splitlines() if line.startswith('| ') and line.count('|') == 3 and line != '| | |')
assert rows['param_hash'] == r['param_hash'] and rows['steps'] == '1' and rows['task'] == 'sft' and rows['data'].endswith('text.txt')
assert abs(float(rows['loss of the evaluation']) - r['eval']['loss']) < 1e-5 and float(rows['loss of the last step']) > 1
assert '    train.lr: 0.01\n' in card and 'train.clip' not in card and 'run.dir' not in card and 'secret' not in card
assert 'from_pretrained("card-hf")' in card and rows['ralo']
assert 'tokens are bytes. Ids 0 to 255' in card and '257 ends a text' in card
P
grep -q "PeftModel.from_pretrained" adapter/README.md || fail "an adapter's card does not say how it is loaded"
finish "GGUF files are what the model is"
