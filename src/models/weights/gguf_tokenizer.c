/* gguf_tokenizer.c - a tokenizer as llama.cpp knows it.
 *
 * "gpt2" is BPE over bytes: tokens, merges, and the name of the expression that cuts a text into words, of which llama.cpp has
 * a fixed list. "llama" is BPE over characters with bytes as a fallback, as sentencepiece has it: instead of merges every token
 * has a score, and the pair with the best one is merged first. tokenizer.json holds merges in that order, so the rank of the
 * first merge that makes a token is its score, negated.
 * Whatever llama.cpp would cut otherwise than tokenizer.json says is refused: other tokens are another model. */
#include "weights/gguf_parts.h"

#include <stdlib.h>
#include <strings.h>

enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};                           /* as in the file */
#define LOWEST_SCORE -1e6f   /* of tokens that no merge makes */
#define BLANK "\xe2\x96\x81" /* stands for a space in sentencepiece */

static status refuse(const tokenizer_file *f, const char *what) {
    return ERR(ERR_INPUT,
               "export --gguf: %s: %s; --tokenizer none writes the file without a vocabulary, for programs that give "
               "token ids",
               f->path, what);
}

static bool span_is(span s, const char *text) {
    return s.text && s.length == strlen(text) && memcmp(s.text, text, s.length) == 0;
}

/* ---- how words are cut ------------------------------------------------------------------------------------------- */

#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define REST_SLASH "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *pattern;
    bool ignore_merges; /* of the tokenizer: a word that is a token is not cut */
    const char *name;
} splits[] = {
    {SUFFIXES WORDS "\\p{N}{1,3}" REST, true, "llama-bpe"},
    {SUFFIXES WORDS "\\p{N}{1,3}" REST, false, "dbrx"},
    {SUFFIXES WORDS "\\p{N}" REST, false, "qwen2"},
    {BEFORE UPPER "*" LOWER "+|" BEFORE UPPER "+" LOWER "*|\\p{N}" REST_SLASH, true, "tekken"},
    {BEFORE UPPER "*" LOWER "+" SUFFIXES "?|" BEFORE UPPER "+" LOWER "*" SUFFIXES "?|\\p{N}{1,3}" REST_SLASH, false,
     "gpt-4o"},
};

/* The name of the expression in llama.cpp; NULL: it has none that cuts like this. */
static const char *split_name(const tokenizer_file *f) {
    size_t n = f->n_pretokenizers;
    const tokenizer_pretokenizer *p = f->pretokenizers, *last = p + n - 1;
    if (n == 0 || n > 2 || last->kind != PRETOKENIZE_BYTE_LEVEL || last->add_prefix_space) return NULL;
    if (n == 1) return last->use_regex && !f->ignore_merges ? "gpt-2" : NULL;
    if (p->kind == PRETOKENIZE_DIGITS && p->individual_digits && last->use_regex && !f->ignore_merges) return "smollm";
    if (p->kind != PRETOKENIZE_SPLIT || !p->pattern.is_regex || p->invert || p->behavior != DELIMITER_ISOLATED ||
        last->use_regex)
        return NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(splits); i++)
        if (splits[i].ignore_merges == f->ignore_merges && span_is(p->pattern.text, splits[i].pattern))
            return splits[i].name;
    return NULL;
}

/* llama.cpp does not compose characters; texts in circulation are composed already. */
static bool is_byte_level(const tokenizer_file *f) {
    for (size_t i = 0; i < f->n_normalizers; i++)
        if (f->normalizers[i].kind != NORMALIZE_NFC) return false;
    return !f->byte_fallback;
}

/* Is it sentencepiece's kind? *prefix: a space is put before a text. */
static bool is_sentencepiece(const tokenizer_file *f, bool *prefix) {
    *prefix = false;
    for (size_t i = 0; i < f->n_normalizers; i++) {
        const tokenizer_normalizer *n = &f->normalizers[i];
        bool replaces = n->kind == NORMALIZE_REPLACE && !n->pattern.is_regex && span_is(n->pattern.text, " ");
        if (!(replaces || n->kind == NORMALIZE_PREPEND) || !span_is(n->content, BLANK)) return false;
        *prefix |= n->kind == NORMALIZE_PREPEND;
    }
    for (size_t i = 0; i < f->n_pretokenizers; i++) {
        const tokenizer_pretokenizer *p = &f->pretokenizers[i];
        bool blanks = p->kind == PRETOKENIZE_METASPACE && span_is(p->replacement, BLANK);
        bool nothing = p->kind == PRETOKENIZE_SPLIT && !p->pattern.is_regex && span_is(p->pattern.text, " ") &&
                       f->n_normalizers > 0; /* which left no space */
        if (!blanks && !nothing) return false;
        *prefix |= blanks && p->prepend != PREPEND_NEVER;
    }
    return f->byte_fallback && f->n_normalizers + f->n_pretokenizers > 0;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

typedef struct vocabulary {
    int64_t n;
    const tokenizer_file *f;
    const tokenizer_added **added; /* (n) NULL: not an added token */
    arena *memory;
} vocabulary;

static void find_added(vocabulary *v) {
    v->added = arena_array(v->memory, const tokenizer_added *, v->n);
    for (size_t i = 0; i < v->f->n_added; i++) v->added[v->f->added[i].id] = &v->f->added[i];
}

static bool is_byte_token(span s) {
    return s.length == 6 && memcmp(s.text, "<0x", 3) == 0 && s.text[5] == '>' &&
           strspn(s.text + 3, "0123456789ABCDEFabcdef") >= 2;
}

static int gguf_type_of(const vocabulary *v, int64_t id) {
    const tokenizer_file *f = v->f;
    if (id == f->unk && f->byte_fallback) return TOKEN_UNKNOWN;
    if (v->added[id]) return v->added[id]->special ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    if (id >= f->n_ids || !f->tokens[id].text) return TOKEN_UNUSED;
    return f->byte_fallback && is_byte_token(f->tokens[id]) ? TOKEN_BYTE : TOKEN_NORMAL;
}

/* Added tokens are looked for in the text as it is, where a space is a space. */
static span plain_text(const vocabulary *v, span s) {
    strbuf b;
    strbuf_init(&b);
    for (size_t i = 0; i < s.length;) {
        bool blank = s.length - i >= strlen(BLANK) && memcmp(s.text + i, BLANK, strlen(BLANK)) == 0;
        strbuf_add_bytes(&b, blank ? " " : s.text + i, 1);
        i += blank ? strlen(BLANK) : 1;
    }
    span out = {arena_copy(v->memory, b.text, b.length), b.length};
    strbuf_fini(&b);
    return out;
}

static span token_text(const vocabulary *v, int64_t id) {
    int type = gguf_type_of(v, id);
    if (type == TOKEN_UNUSED) {
        const char *text = arena_format(v->memory, "[PAD%lld]", (long long)id);
        return (span){text, strlen(text)};
    }
    if (!v->added[id]) return v->f->tokens[id];
    return type == TOKEN_USER_DEFINED ? plain_text(v, v->added[id]->content) : v->added[id]->content;
}

static void add_tokens(gguf_header *h, const vocabulary *v) {
    gguf_add_array(h, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        span s = token_text(v, i);
        gguf_put_text(h, s.text, s.length);
    }
    gguf_add_array(h, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) gguf_put_i32(h, gguf_type_of(v, i));
}

static void add_merges(gguf_header *h, const vocabulary *v) {
    const tokenizer_file *f = v->f;
    strbuf b;
    strbuf_init(&b);
    gguf_add_array(h, "tokenizer.ggml.merges", GGUF_TEXT, f->n_merges);
    for (size_t i = 0; i < f->n_merges; i++) {
        const tokenizer_merge *m = &f->merges[i];
        b.length = 0;
        strbuf_add_bytes(&b, f->tokens[m->left].text, f->tokens[m->left].length);
        strbuf_add(&b, " ");
        strbuf_add_bytes(&b, f->tokens[m->right].text, f->tokens[m->right].length);
        gguf_put_text(h, b.text, b.length);
    }
    strbuf_fini(&b);
}

static void add_scores(gguf_header *h, const vocabulary *v) {
    float *scores = arena_array(v->memory, float, v->n);
    for (int64_t i = 0; i < v->n; i++) scores[i] = LOWEST_SCORE;
    for (size_t i = v->f->n_merges; i-- > 0;) scores[v->f->merges[i].result] = -(float)i;
    gguf_add_array(h, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) gguf_put_f32(h, scores[i]);
}

static status describe_file(gguf_header *h, vocabulary *v) {
    bool prefix;
    const char *split = is_byte_level(v->f) ? split_name(v->f) : NULL;
    find_added(v);
    if (split) {
        gguf_add_text(h, "tokenizer.ggml.model", "gpt2");
        gguf_add_text(h, "tokenizer.ggml.pre", split);
        add_tokens(h, v);
        add_merges(h, v);
        return OK;
    }
    if (!is_sentencepiece(v->f, &prefix))
        return refuse(v->f, "llama.cpp cuts no text as its normalizer and pre_tokenizer do");
    gguf_add_text(h, "tokenizer.ggml.model", "llama");
    gguf_add_text(h, "tokenizer.ggml.pre", "default");
    add_tokens(h, v);
    add_scores(h, v);
    gguf_add_bool(h, "tokenizer.ggml.add_space_prefix", prefix);
    if (v->f->unk >= 0) gguf_add_u32(h, "tokenizer.ggml.unknown_token_id", (uint32_t)v->f->unk);
    return OK;
}

/* GPT-2's letters for bytes: printable ones are themselves, the others follow from U+0100 on. */
static size_t byte_letter(int byte, char out[4]) {
    int code = byte, n = 0;
    for (int b = 0; b <= byte; b++)
        if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)) {
            if (b == byte) code = 256 + n;
            n++;
        }
    if (code < 128) return out[0] = (char)code, 1;
    out[0] = (char)(0xc0 | code >> 6), out[1] = (char)(0x80 | (code & 63));
    return 2;
}

/* Every byte is a token, and nothing is merged. */
static void describe_bytes(gguf_header *h, int64_t n) {
    static const char *const specials[] = {"<|bos|>", "<|eos|>", "<|pad|>"};
    char text[32];
    gguf_add_text(h, "tokenizer.ggml.model", "gpt2");
    gguf_add_text(h, "tokenizer.ggml.pre", "gpt-2");
    gguf_add_array(h, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)n);
    for (int64_t i = 0; i < n; i++) {
        size_t length = i < TOKEN_BOS ? byte_letter((int)i, text)
                                      : (size_t)snprintf(text, sizeof text, i <= TOKEN_PAD ? "%s" : "[PAD%s%lld]",
                                                         i <= TOKEN_PAD ? specials[i - TOKEN_BOS] : "", (long long)i);
        gguf_put_text(h, text, length);
    }
    gguf_add_array(h, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int64_t i = 0; i < n; i++)
        gguf_put_i32(h, i < TOKEN_BOS ? TOKEN_NORMAL : i <= TOKEN_PAD ? TOKEN_CONTROL : TOKEN_UNUSED);
    gguf_add_array(h, "tokenizer.ggml.merges", GGUF_TEXT, 0);
}

/* ---- special tokens ---------------------------------------------------------------------------------------------- */

/* What stands before and behind every text: llama.cpp adds one token at most at either end. */
static status template_ends(const tokenizer_file *f, int32_t *first, int32_t *last) {
    size_t before = 0, behind = 0, n = f ? f->n_template : 0;
    while (before < n && f->template[before] != TOKENIZER_TEXT) before++;
    while (behind < n && f->template[n - 1 - behind] != TOKENIZER_TEXT) behind++;
    *first = before ? f->template[0] : -1;
    *last = behind ? f->template[n - 1] : -1;
    if (before <= 1 && behind <= 1 && before + behind + 1 >= n) return OK;
    return refuse(f, "its post_processor adds several tokens to a text, llama.cpp one before and one behind it");
}

static status describe_specials(gguf_header *h, const model_source *s, const tokenizer *t) {
    const tokenizer_file *f = tokenizer_read_from(t);
    int32_t first, last, bos = tokenizer_bos(t), *ids;
    size_t n;
    TRY(template_ends(f, &first, &last));
    TRY(model_source_eos(s, t, &ids, &n));
    int32_t eos = n ? ids[0] : -1;
    for (size_t i = 0; i < n; i++) /* of several, the tokenizer's own */
        if (ids[i] == tokenizer_eos(t)) eos = ids[i];
    if (last >= 0) eos = last;
    if (first >= 0) bos = first;
    if (bos >= 0) gguf_add_u32(h, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    if (eos >= 0) gguf_add_u32(h, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    for (size_t i = 0; i < n; i++)
        if (ids[i] != eos) {
            gguf_add_u32(h, "tokenizer.ggml.eot_token_id", (uint32_t)ids[i]);
            break;
        }
    const json_t *pad = json_object_get(s->generation, "pad_token_id");
    if (json_is_integer(pad) && json_integer_value(pad) >= 0 && json_integer_value(pad) < s->config.vocab)
        gguf_add_u32(h, "tokenizer.ggml.padding_token_id", (uint32_t)json_integer_value(pad));
    gguf_add_bool(h, "tokenizer.ggml.add_bos_token", first >= 0);
    gguf_add_bool(h, "tokenizer.ggml.add_eos_token", last >= 0);
    free(ids);
    return OK;
}

/* ---- name ---------------------------------------------------------------------------------------------------------- */

/* Where the name of a model holds "phi3" or "phi-3", llama.cpp sets attributes of four tokens of Phi-3, and does not
 * load a file that lacks one of them (llama-vocab.cpp). Such a file gets "phi_3" there. t: NULL: the file has no
 * vocabulary. */
static bool loads_as_phi3(const tokenizer *t) {
    static const char *const tokens[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < ARRAY_LENGTH(tokens); i++)
        if (tokenizer_special(t, tokens[i]) < 0) return false;
    return true;
}

/* The place of "phi3" or "phi-3" in any case; NULL: it is not there. */
static const char *find_phi3(const char *name, size_t *n) {
    for (; *name; name++) {
        *n = strncasecmp(name, "phi-3", 5) == 0 ? 5 : strncasecmp(name, "phi3", 4) == 0 ? 4 : 0;
        if (*n) return name;
    }
    return NULL;
}

static void add_name(gguf_header *h, const char *name, const tokenizer *t) {
    strbuf out;
    size_t n = name ? strlen(name) : 0, n_match;
    while (n > 0 && name[n - 1] == '/') n--;
    if (n == 0 || utf8_check(name, n).n_valid != n) return;
    strbuf_init(&out);
    strbuf_add_bytes(&out, name, n);
    for (const char *at; t && !loads_as_phi3(t) && (at = find_phi3(out.text, &n_match));) {
        strbuf changed;
        strbuf_init(&changed);
        strbuf_printf(&changed, "%.*s_3%s", (int)(at + 3 - out.text), out.text, at + n_match);
        strbuf_fini(&out);
        out = changed;
    }
    if (out.length != n || memcmp(out.text, name, n) != 0)
        log_warn(
            "general.name is %s instead of %.*s: llama.cpp takes every model of that name for a Phi-3, and does not "
            "load one whose vocabulary lacks </s>, <unk>, <s> or <|endoftext|>",
            out.text, (int)n, name);
    gguf_add_bytes(h, "general.name", out.text, out.length);
    strbuf_fini(&out);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static status describe(gguf_header *h, const model_source *s, const tokenizer *t, arena *memory) {
    char *text = NULL;
    vocabulary v = {.n = s->config.vocab, .f = tokenizer_read_from(t), .memory = memory};
    add_name(h, s->config.name, t);
    if (v.f) TRY(describe_file(h, &v));
    else describe_bytes(h, v.n);
    TRY(describe_specials(h, s, t));
    if (s->template) text = mem_string(s->template);
    else if (v.f) TRY(tokenizer_chat_template(s->tokenizer, &text));
    if (text) gguf_add_text(h, "tokenizer.chat_template", text);
    free(text);
    return OK;
}

status gguf_describe_tokenizer(gguf_header *h, const model_source *s, bool none) {
    tokenizer *t;
    arena memory;
    if (none) {
        add_name(h, s->config.name, NULL);
        gguf_add_text(h, "tokenizer.ggml.model", "none");
        return OK;
    }
    TRY(model_source_tokenizer(s, &t));
    arena_init(&memory);
    status rc = describe(h, s, t, &memory);
    arena_fini(&memory);
    tokenizer_close(t);
    return rc;
}
