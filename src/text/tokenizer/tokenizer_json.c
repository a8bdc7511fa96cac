/* tokenizer_json.c - a Hugging Face tokenizer.json as checked tables.
 *
 * These files have up to 11 MB, nearly all of it one object (the vocabulary) and one array (the merges). A tree of the
 * whole takes jansson 0.7 s and a few hundred MB of small objects, so the file is walked once by a scanner of its own:
 * vocabulary and merges go straight into their tables, the small values are handed to jansson as slices.
 * Merges are resolved to ids here, through the same hash table that the encoder looks words up in.
 *
 * Nothing in the file is trusted: UTF-8 is checked before the scan, nesting is bounded, every id is bounded and given
 * once, and an error names the file and the place in it (model.merges[17]). Refused: models other than BPE, dropout,
 * continuing_subword_prefix and end_of_word_suffix (unless empty), duplicate keys, tokens that share an id, ids far
 * beyond the number of tokens. */
#include "tokenizer/tokenizer_json.h"

#include <stdlib.h>
#include <xxhash.h>

#define TOKENIZER_MAX_BYTES ((size_t)256 << 20)
#define TOKENIZER_MAX_ID ((1 << 24) - 1)
#define SCAN_MAX_DEPTH 64
#define SPARSE_ALWAYS (1 << 20) /* ids below this may be as rare as they like: their tables take 40 MB */
#define SPARSE_MOST 16          /* beyond it, how many ids there may be for each token */

/* ---- the vocabulary's hash table ----------------------------------------------------------------------------- */

/* Any number of slots, not a power of two: the table is two thirds full whatever the size of the vocabulary. */
static size_t slot_of(uint32_t hash, size_t n_slots) { return (size_t)(((uint64_t)hash * n_slots) >> 32); }

static uint32_t hash_of(const char *text, size_t length) { return (uint32_t)XXH3_64bits(text, length); }

static size_t slot_find(const tokenizer_file *f, const char *text, size_t length, uint32_t hash) {
    size_t i = slot_of(hash, f->n_slots);
    for (;; i = i + 1 == f->n_slots ? 0 : i + 1) {
        const tokenizer_vocab_slot *s = &f->slots[i];
        if (s->id < 0) return i;
        if (s->hash != hash) continue;
        const span *token = &f->tokens[s->id];
        if (token->length == length && memcmp(token->text, text, length) == 0) return i;
    }
}

int32_t tokenizer_file_find(const tokenizer_file *f, const char *text, size_t length) {
    if (length > f->longest) return -1;
    return f->slots[slot_find(f, text, length, hash_of(text, length))].id;
}

/* ---- the scanner --------------------------------------------------------------------------------------------- */

typedef struct scanner {
    const char *path;
    const char *begin, *at, *end; /* *end is NUL */
    const char *where;            /* the place in the file, for messages */
    strbuf text;                  /* the last string */
} scanner;

static status scan_error(const scanner *s, const char *expected) {
    if (s->at >= s->end)
        return ERR(ERR_INPUT, "%s: %s: the file ends at byte %zu, expected %s", s->path, s->where,
                   (size_t)(s->end - s->begin), expected);
    return ERR(ERR_INPUT, "%s: %s: found '%.*s' at byte %zu, expected %s", s->path, s->where,
               (int)MIN(s->end - s->at, 12), s->at, (size_t)(s->at - s->begin), expected);
}

static void scan_space(scanner *s) {
    while (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t') s->at++;
}

static bool scan_char(scanner *s, char c) {
    scan_space(s);
    if (*s->at != c || s->at >= s->end) return false;
    s->at++;
    return true;
}

static status scan_hex(scanner *s, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = *s->at;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return scan_error(s, "four hexadecimal digits after \\u");
        *out = *out * 16 + digit;
        s->at++;
    }
    return OK;
}

static void add_code_point(strbuf *b, uint32_t c) {
    char u[4];
    size_t n;
    if (c < 0x80) {
        u[0] = (char)c, n = 1;
    } else if (c < 0x800) {
        u[0] = (char)(0xc0 | c >> 6), u[1] = (char)(0x80 | (c & 63)), n = 2;
    } else if (c < 0x10000) {
        u[0] = (char)(0xe0 | c >> 12), u[1] = (char)(0x80 | (c >> 6 & 63)), u[2] = (char)(0x80 | (c & 63)), n = 3;
    } else {
        u[0] = (char)(0xf0 | c >> 18), u[1] = (char)(0x80 | (c >> 12 & 63));
        u[2] = (char)(0x80 | (c >> 6 & 63)), u[3] = (char)(0x80 | (c & 63)), n = 4;
    }
    strbuf_add_bytes(b, u, n);
}

static status scan_escape(scanner *s) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = *s->at ? strchr(from, *s->at) : NULL;
    if (known) {
        strbuf_add_bytes(&s->text, &to[known - from], 1);
        s->at++;
        return OK;
    }
    if (*s->at != 'u') return scan_error(s, "an escape that JSON knows");
    s->at++;
    uint32_t c, low;
    TRY(scan_hex(s, &c));
    if (c >= 0xdc00 && c < 0xe000) return scan_error(s, "no second half of a surrogate pair before it");
    if (c >= 0xd800 && c < 0xdc00) {
        if (s->at[0] != '\\' || s->at[1] != 'u') return scan_error(s, "the second half of a surrogate pair");
        s->at += 2;
        TRY(scan_hex(s, &low));
        if (low < 0xdc00 || low >= 0xe000) return scan_error(s, "the second half of a surrogate pair before it");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    add_code_point(&s->text, c);
    return OK;
}

/* The string under the scanner: a view of the file where it has no escapes, else of s->text. */
static status scan_string(scanner *s, span *out) {
    scan_space(s);
    if (*s->at != '"') return scan_error(s, "a string");
    const char *from = ++s->at;
    while (*s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20) s->at++;
    if (*s->at == '"') {
        *out = (span){from, (size_t)(s->at++ - from)};
        return OK;
    }
    s->text.length = 0;
    for (;; from = s->at) {
        while (*s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20) s->at++;
        strbuf_add_bytes(&s->text, from, (size_t)(s->at - from));
        if (*s->at == '"') break;
        if (*s->at != '\\') return scan_error(s, "the end of the string, or an escaped control character");
        s->at++;
        TRY(scan_escape(s));
    }
    s->at++;
    *out = (span){s->text.text, s->text.length};
    return OK;
}

static status scan_id(scanner *s, int32_t *out) {
    scan_space(s);
    const char *from = s->at;
    int64_t n = 0;
    while (*s->at >= '0' && *s->at <= '9' && n <= TOKENIZER_MAX_ID) n = n * 10 + (*s->at++ - '0');
    bool ends = *s->at == ',' || *s->at == '}' || *s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t';
    if (s->at == from || n > TOKENIZER_MAX_ID || !ends || (*from == '0' && s->at - from > 1)) {
        s->at = from;
        return scan_error(s, "an id from 0 to 16777215");
    }
    *out = (int32_t)n;
    return OK;
}

/* Passes over any value. Literals and numbers are looked at only as far as their end: what matters is parsed later. */
static status scan_skip(scanner *s, int depth) {
    span text;
    scan_space(s);
    char open = *s->at;
    if (open == '"') return scan_string(s, &text);
    if (open == '{' || open == '[') {
        if (depth >= SCAN_MAX_DEPTH) return scan_error(s, "nesting of at most 64 levels");
        char close = open == '{' ? '}' : ']';
        s->at++;
        if (scan_char(s, close)) return OK;
        do {
            if (open == '{') {
                TRY(scan_string(s, &text));
                if (!scan_char(s, ':')) return scan_error(s, "':'");
            }
            TRY(scan_skip(s, depth + 1));
        } while (scan_char(s, ','));
        return scan_char(s, close) ? OK : scan_error(s, open == '{' ? "',' or '}'" : "',' or ']'");
    }
    const char *from = s->at;
    while ((*s->at >= 'a' && *s->at <= 'z') || (*s->at >= '0' && *s->at <= '9') || *s->at == '-' || *s->at == '+' ||
           *s->at == '.' || *s->at == 'E')
        s->at++;
    return s->at > from ? OK : scan_error(s, "a value");
}

/* ---- small values, as trees ---------------------------------------------------------------------------------- */

/* The value under the scanner as a tree of jansson, for the caller to json_decref. */
static status scan_tree(scanner *s, json_t **out) {
    json_error_t error;
    scan_space(s);
    const char *from = s->at;
    *out = NULL;
    TRY(scan_skip(s, 0));
    *out = json_loadb(from, (size_t)(s->at - from), JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!*out)
        return ERR(ERR_INPUT, "%s: %s: %s (line %d, column %d of that value)", s->path, s->where, error.text,
                   MAX(error.line, 1), MAX(error.column, 1));
    return OK;
}

/* ---- vocabulary and merges ----------------------------------------------------------------------------------- */

typedef struct entry {
    size_t at, length; /* in the pool */
    int32_t id;
} entry;

static status index_vocab(tokenizer_file *f, const char *pool, const entry *entries, size_t n) {
    f->n_vocab = (int32_t)n;
    f->tokens = arena_array(&f->memory, span, MAX(f->n_ids, 1));
    f->n_slots = n + n / 2 + 8;
    f->slots = arena_array(&f->memory, tokenizer_vocab_slot, f->n_slots);
    for (size_t i = 0; i < f->n_slots; i++) f->slots[i].id = -1;
    for (size_t i = 0; i < n; i++) {
        span text = {pool + entries[i].at, entries[i].length}, *token = &f->tokens[entries[i].id];
        if (token->text)
            return ERR(ERR_INPUT, "%s: model.vocab: found the id %d for '%.*s' and for '%.*s', expected it once",
                       f->path, entries[i].id, (int)MIN(token->length, 100), token->text, (int)MIN(text.length, 100),
                       text.text);
        uint32_t hash = hash_of(text.text, text.length);
        size_t slot = slot_find(f, text.text, text.length, hash);
        if (f->slots[slot].id >= 0)
            return ERR(ERR_INPUT, "%s: model.vocab: found the token '%.*s' twice, expected it once", f->path,
                       (int)MIN(text.length, 100), text.text);
        *token = text;
        f->slots[slot] = (tokenizer_vocab_slot){hash, entries[i].id};
        f->longest = MAX(f->longest, text.length);
    }
    return OK;
}

/* Tokens lie in one run of memory: an arena rounds every allocation up, and there are a quarter of a million. */
static status read_vocab(scanner *s, tokenizer_file *f) {
    status rc = OK;
    entry *entries = NULL;
    size_t n = 0, capacity = 0;
    strbuf pool;
    s->where = "model.vocab";
    if (f->tokens) return scan_error(s, "the key once");
    if (!scan_char(s, '{')) return scan_error(s, "an object that maps tokens to ids");
    strbuf_init(&pool);
    if (!scan_char(s, '}')) {
        do {
            span text;
            int32_t id = 0;
            TRY_GOTO(rc, scan_string(s, &text), done);
            size_t at = pool.length;
            strbuf_add_bytes(&pool, text.text, text.length);
            if (!scan_char(s, ':')) {
                rc = scan_error(s, "':'");
                goto done;
            }
            TRY_GOTO(rc, scan_id(s, &id), done);
            f->n_ids = MAX(f->n_ids, id + 1);
            entries = array_grow(entries, &capacity, n + 1, sizeof *entries);
            entries[n++] = (entry){at, text.length, id};
        } while (scan_char(s, ','));
        if (!scan_char(s, '}')) {
            rc = scan_error(s, "',' or '}'");
            goto done;
        }
    }
    /* Tables by id follow the largest one, and a line of text must not make hundreds of megabytes. */
    if (f->n_ids > SPARSE_ALWAYS && (size_t)f->n_ids > n * SPARSE_MOST) {
        rc = ERR(ERR_INPUT, "%s: model.vocab: found the id %d among %zu tokens, expected ids below %zu", s->path,
                 f->n_ids - 1, n, MAX(n * SPARSE_MOST, (size_t)SPARSE_ALWAYS));
        goto done;
    }
    TRY_GOTO(rc, index_vocab(f, arena_copy(&f->memory, pool.text, pool.length), entries, n), done);
done:
    strbuf_fini(&pool);
    free(entries);
    return rc;
}

/* A merge as one string "a b" or as a pair ["a", "b"]; both parts go into `parts`, the first `split` bytes are a. */
static status scan_merge(scanner *s, strbuf *parts, size_t *split, bool *skip) {
    span text;
    parts->length = 0;
    *skip = false;
    scan_space(s);
    if (*s->at == '[') {
        s->at++;
        TRY(scan_string(s, &text));
        strbuf_add_bytes(parts, text.text, text.length);
        *split = text.length;
        if (!scan_char(s, ',')) return scan_error(s, "',' between the two parts of a merge");
        TRY(scan_string(s, &text));
        strbuf_add_bytes(parts, text.text, text.length);
        return scan_char(s, ']') ? OK : scan_error(s, "']' behind the two parts of a merge");
    }
    const char *from = s->at;
    TRY(scan_string(s, &text));
    if (text.length >= 8 && memcmp(text.text, "#version", 8) == 0) { /* the first line of a merges.txt */
        *skip = true;
        return OK;
    }
    const char *space = memchr(text.text, ' ', text.length);
    if (!space || memchr(space + 1, ' ', text.length - (size_t)(space + 1 - text.text))) {
        s->at = from;
        return scan_error(s, "two tokens with one space between them");
    }
    *split = (size_t)(space - text.text);
    strbuf_add_bytes(parts, text.text, *split);
    strbuf_add_bytes(parts, space + 1, text.length - *split - 1);
    return OK;
}

static status resolve_merge(const tokenizer_file *f, size_t index, const strbuf *parts, size_t split,
                            tokenizer_merge *out) {
    span texts[3] = {{parts->text, split}, {parts->text + split, parts->length - split}, {parts->text, parts->length}};
    int32_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = tokenizer_file_find(f, texts[i].text, texts[i].length);
        if (ids[i] < 0)
            return ERR(ERR_INPUT, "%s: model.merges[%zu]: found %s '%.*s', expected a token of the vocabulary", f->path,
                       index, i < 2 ? "the part" : "the result", (int)MIN(texts[i].length, 100), texts[i].text);
    }
    *out = (tokenizer_merge){ids[0], ids[1], ids[2]};
    return OK;
}

static status read_merges(scanner *s, tokenizer_file *f) {
    status rc = OK;
    tokenizer_merge *merges = NULL;
    size_t n = 0, capacity = 0, index = 0;
    strbuf parts;
    s->where = "model.merges";
    if (f->merges) return scan_error(s, "the key once");
    if (!scan_char(s, '[')) return scan_error(s, "an array of merges");
    strbuf_init(&parts);
    if (!scan_char(s, ']')) {
        do {
            size_t split = 0;
            bool skip = false;
            char place[48];
            rc = scan_merge(s, &parts, &split, &skip);
            if (rc != OK) { /* once more, to name the merge: the name is not made for every one */
                snprintf(place, sizeof place, "model.merges[%zu]", index);
                s->where = place;
                rc = scan_error(s, "two tokens, \"a b\" or [\"a\", \"b\"]");
                goto done;
            }
            if (!skip) {
                merges = array_grow(merges, &capacity, n + 1, sizeof *merges);
                TRY_GOTO(rc, resolve_merge(f, index, &parts, split, &merges[n]), done);
                n++;
            }
            index++;
        } while (scan_char(s, ','));
        if (!scan_char(s, ']')) {
            rc = scan_error(s, "',' or ']'");
            goto done;
        }
    }
    f->merges = arena_copy(&f->memory, merges, n * sizeof *merges);
    f->n_merges = n;
done:
    strbuf_fini(&parts);
    free(merges);
    return rc;
}

/* ---- the model ----------------------------------------------------------------------------------------------- */

typedef struct model_seen {
    bool type, vocab, merges;
    const char *merges_at; /* merges come before the vocabulary: read them after it */
} model_seen;

static status read_flag(const scanner *s, const char *key, const json_t *value, bool *out) {
    if (!json_is_boolean(value) && !json_is_null(value))
        return ERR(ERR_INPUT, "%s: model.%s: found no boolean, expected true, false or null", s->path, key);
    *out = json_is_true(value);
    return OK;
}

static status read_model_setting(scanner *s, tokenizer_file *f, const char *key, const json_t *value,
                                 model_seen *seen) {
    const char *text = json_string_value(value);
    if (strcmp(key, "type") == 0) {
        if (!text || strcmp(text, "BPE") != 0)
            return ERR(ERR_INPUT, "%s: model.type: found '%.100s', expected 'BPE' (the only model type supported)",
                       s->path, text ? text : "no string");
        seen->type = true;
    } else if (strcmp(key, "dropout") == 0) {
        if (!json_is_null(value) && !(json_is_number(value) && json_number_value(value) == 0))
            return ERR(ERR_INPUT,
                       "%s: model.dropout: found a value, expected null or 0: encoding must be deterministic", s->path);
    } else if (strcmp(key, "unk_token") == 0) {
        if (!text && !json_is_null(value))
            return ERR(ERR_INPUT, "%s: model.unk_token: found no string, expected one or null", s->path);
        if (text) f->unk_name = arena_string(&f->memory, text);
    } else if (strcmp(key, "continuing_subword_prefix") == 0 || strcmp(key, "end_of_word_suffix") == 0) {
        if (!json_is_null(value) && !(text && text[0] == 0))
            return ERR(ERR_INPUT, "%s: model.%s: found a value, expected null or \"\" (others are not supported)",
                       s->path, key);
    } else if (strcmp(key, "fuse_unk") == 0) {
        TRY(read_flag(s, key, value, &f->fuse_unk));
    } else if (strcmp(key, "byte_fallback") == 0) {
        TRY(read_flag(s, key, value, &f->byte_fallback));
    } else if (strcmp(key, "ignore_merges") == 0) {
        TRY(read_flag(s, key, value, &f->ignore_merges));
    }
    return OK;
}

static status read_model_key(scanner *s, tokenizer_file *f, const char *key, model_seen *seen) {
    status rc = OK;
    if (strcmp(key, "vocab") == 0) {
        TRY(read_vocab(s, f));
        seen->vocab = true;
    } else if (strcmp(key, "merges") == 0) {
        if (seen->merges) return scan_error(s, "the key 'merges' once");
        seen->merges = true;
        if (seen->vocab) return read_merges(s, f);
        seen->merges_at = s->at;
        TRY(scan_skip(s, 0));
    } else {
        json_t *value;
        char place[64];
        snprintf(place, sizeof place, "model.%.40s", key);
        s->where = place;
        TRY(scan_tree(s, &value));
        rc = read_model_setting(s, f, key, value, seen);
        json_decref(value);
        s->where = "model";
    }
    return rc;
}

static status read_model(scanner *s, tokenizer_file *f) {
    model_seen seen = {0};
    s->where = "model";
    if (!scan_char(s, '{')) return scan_error(s, "an object");
    if (!scan_char(s, '}')) {
        do {
            span text;
            char key[64] = "";
            TRY(scan_string(s, &text));
            if (text.length < sizeof key) memcpy(key, text.text, text.length); /* a longer one is none of ours */
            if (!scan_char(s, ':')) return scan_error(s, "':'");
            TRY(read_model_key(s, f, key, &seen));
            s->where = "model";
        } while (scan_char(s, ','));
        if (!scan_char(s, '}')) return scan_error(s, "',' or '}'");
    }
    if (!seen.type) return ERR(ERR_INPUT, "%s: model: the key 'type' is missing, expected 'BPE'", s->path);
    if (!seen.vocab || !seen.merges)
        return ERR(ERR_INPUT, "%s: model: the key '%s' is missing", s->path, seen.vocab ? "merges" : "vocab");
    if (seen.merges_at) {
        const char *behind = s->at;
        s->at = seen.merges_at;
        TRY(read_merges(s, f));
        s->at = behind;
    }
    f->unk = f->unk_name ? tokenizer_file_find(f, f->unk_name, strlen(f->unk_name)) : -1;
    return OK;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* In the order they are read in: the added tokens need the vocabulary, the post-processor the ids of both. */
enum { PART_ADDED, PART_NORMALIZER, PART_PRETOKENIZER, PART_POSTPROCESSOR, PART_DECODER, PARTS };
static const struct {
    const char *key;
    status (*read)(tokenizer_file *f, const json_t *value);
} parts_table[PARTS] = {
    [PART_ADDED] = {"added_tokens", tokenizer_read_added},
    [PART_NORMALIZER] = {"normalizer", tokenizer_read_normalizer},
    [PART_PRETOKENIZER] = {"pre_tokenizer", tokenizer_read_pretokenizer},
    [PART_POSTPROCESSOR] = {"post_processor", tokenizer_read_postprocessor},
    [PART_DECODER] = {"decoder", tokenizer_read_decoder},
};

static status read_key(scanner *s, tokenizer_file *f, const span *key, json_t *parts[PARTS]) {
    for (int i = 0; i < PARTS; i++) {
        const char *name = parts_table[i].key;
        if (key->length != strlen(name) || memcmp(key->text, name, key->length) != 0) continue;
        s->where = name;
        if (parts[i]) return scan_error(s, "the key once");
        return scan_tree(s, &parts[i]);
    }
    if (key->length == 5 && memcmp(key->text, "model", 5) == 0) {
        if (f->tokens) return scan_error(s, "the key 'model' once");
        return read_model(s, f);
    }
    s->where = "(an unknown key)";
    return scan_skip(s, 0);
}

static status read_root(scanner *s, tokenizer_file *f) {
    status rc = OK;
    json_t *parts[PARTS] = {NULL};
    if (!scan_char(s, '{')) return scan_error(s, "an object");
    if (!scan_char(s, '}')) {
        do {
            span key;
            TRY_GOTO(rc, scan_string(s, &key), done);
            if (!scan_char(s, ':')) {
                rc = scan_error(s, "':'");
                goto done;
            }
            TRY_GOTO(rc, read_key(s, f, &key, parts), done);
            s->where = "the top level";
        } while (scan_char(s, ','));
        if (!scan_char(s, '}')) {
            rc = scan_error(s, "',' or '}'");
            goto done;
        }
    }
    scan_space(s);
    if (s->at != s->end) {
        rc = scan_error(s, "the end of the file");
        goto done;
    }
    if (!f->tokens) {
        rc = ERR(ERR_INPUT, "%s: the key 'model' is missing, expected a tokenizer.json", s->path);
        goto done;
    }
    for (int i = 0; i < PARTS; i++) TRY_GOTO(rc, parts_table[i].read(f, parts[i] ? parts[i] : json_null()), done);
done:
    for (int i = 0; i < PARTS; i++) json_decref(parts[i]);
    return rc;
}

status tokenizer_file_open(tokenizer_file *f, const char *path) {
    status rc = OK;
    char *text = NULL;
    size_t n_bytes;
    *f = (tokenizer_file){0};
    TRY(file_read_all(path, TOKENIZER_MAX_BYTES, &text, &n_bytes));
    arena_init(&f->memory);
    f->path = arena_string(&f->memory, path);
    scanner s = {.path = f->path, .begin = text, .at = text, .end = text + n_bytes, .where = "the top level"};
    strbuf_init(&s.text);
    utf8_scan utf8 = utf8_check(text, n_bytes);
    if (format_is_lfs_pointer(text, n_bytes))
        rc = ERR(ERR_INPUT, "%s: found a Git LFS pointer, expected JSON; fetch the file itself: git lfs pull", path);
    else if (utf8.n_bad) rc = ERR(ERR_INPUT, "%s: found bytes that are not UTF-8 at byte %zu", path, utf8.n_valid);
    else rc = read_root(&s, f);
    if (rc != OK) {
        error_trail(rc, __FILE__, __LINE__, __func__);
        tokenizer_file_close(f);
    }
    strbuf_fini(&s.text);
    free(text);
    return rc;
}

void tokenizer_file_close(tokenizer_file *f) {
    arena_fini(&f->memory);
    *f = (tokenizer_file){0};
}
