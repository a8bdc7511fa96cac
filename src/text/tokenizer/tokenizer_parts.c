/* tokenizer_parts.c - the small parts of a tokenizer.json: added tokens and the chains of components.
 *
 * Chains come as trees of "Sequence" and leave as flat tables, which mean the same. Each kind of component is a row in
 * a table here; what is not in it is refused by name, because leaving out one step changes every id.
 * Added tokens get the ids that the reference implementation gives them, whatever the file says: the id of the
 * vocabulary where the text is in it, else the next free number. A file that says otherwise is reported, once. */
#include "tokenizer/tokenizer_json.h"

#include <stdlib.h>

#define PARTS_MAX_DEPTH 8
#define PARTS_MOST 32 /* components of a chain: text goes through them by recursion. Published files have up to 5 */
#define ADDED_MAX_BYTES 1024 /* if a text nearly matches everywhere, each position costs that many steps */

/* ---- members of objects -------------------------------------------------------------------------------------- */

/* A place in the file and what is there. */
typedef struct place {
    tokenizer_file *f;
    const json_t *value;
    const char *where;
} place;

static span copy_span(tokenizer_file *f, const json_t *string) {
    size_t n = json_string_length(string);
    return (span){arena_copy(&f->memory, json_string_value(string), n), n};
}

static status bad(const place *p, const char *key, const char *expected) {
    return ERR(ERR_INPUT, "%s: %s.%s: found %s, expected %s", p->f->path, p->where, key,
               json_object_get(p->value, key) ? "something else" : "nothing", expected);
}

enum { REQUIRED = -1 };
/* fallback: the value where the key is absent, 0 or 1; or REQUIRED. */
static status get_bool(const place *p, const char *key, int fallback, bool *out) {
    const json_t *v = json_object_get(p->value, key);
    if (!v && fallback != REQUIRED) *out = fallback;
    else if (!json_is_boolean(v)) return bad(p, key, "true or false");
    else *out = json_is_true(v);
    return OK;
}

static status get_span(const place *p, const char *key, span *out) {
    const json_t *v = json_object_get(p->value, key);
    if (!json_is_string(v)) return bad(p, key, "a string");
    *out = copy_span(p->f, v);
    return OK;
}

static status get_char(const place *p, const char *key, span *out) {
    TRY(get_span(p, key, out));
    size_t n_chars = 0;
    for (size_t i = 0; i < out->length; i++) n_chars += ((unsigned char)out->text[i] & 0xc0) != 0x80;
    return n_chars == 1 ? OK : bad(p, key, "one character");
}

static status get_count(const place *p, const char *key, uint32_t *out) {
    const json_t *v = json_object_get(p->value, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1 << 20)
        return bad(p, key, "a count from 0 to 1048576");
    *out = (uint32_t)json_integer_value(v);
    return OK;
}

/* One of a list of names, by its number. */
static status get_choice(const place *p, const char *key, const char *const *names, int n, int *out) {
    const char *text = json_string_value(json_object_get(p->value, key));
    strbuf known;
    for (*out = 0; text && *out < n; ++*out)
        if (strcmp(text, names[*out]) == 0) return OK;
    strbuf_init(&known);
    for (int i = 0; i < n; i++) strbuf_printf(&known, "%s%s", i ? ", " : "one of ", names[i]);
    status rc = bad(p, key, known.text);
    strbuf_fini(&known);
    return rc;
}

static status get_pattern(const place *p, tokenizer_pattern *out) {
    const json_t *v = json_object_get(p->value, "pattern");
    const json_t *regex = json_object_get(v, "Regex"), *string = json_object_get(v, "String");
    if (json_object_size(v) != 1 || !json_is_string(regex ? regex : string))
        return bad(p, "pattern", "{\"Regex\": text} or {\"String\": text}");
    out->is_regex = regex != NULL;
    out->text = copy_span(p->f, regex ? regex : string);
    return OK;
}

static status get_behavior(const place *p, int fallback, delimiter_behavior *out) {
    static const char *const names[] = {[DELIMITER_REMOVED] = "Removed",
                                        [DELIMITER_ISOLATED] = "Isolated",
                                        [DELIMITER_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [DELIMITER_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [DELIMITER_CONTIGUOUS] = "Contiguous"};
    int choice = fallback;
    if (fallback == REQUIRED || json_object_get(p->value, "behavior"))
        TRY(get_choice(p, "behavior", names, ARRAY_LENGTH(names), &choice));
    *out = (delimiter_behavior)choice;
    return OK;
}

/* Older files say add_prefix_space instead of prepend_scheme. */
static status get_prepend(const place *p, metaspace_prepend *out) {
    static const char *const names[] = {
        [PREPEND_FIRST] = "first", [PREPEND_NEVER] = "never", [PREPEND_ALWAYS] = "always"};
    int choice = PREPEND_ALWAYS;
    if (json_object_get(p->value, "prepend_scheme"))
        TRY(get_choice(p, "prepend_scheme", names, ARRAY_LENGTH(names), &choice));
    const json_t *older = json_object_get(p->value, "add_prefix_space");
    if (older && !json_is_null(older) && !json_is_boolean(older)) return bad(p, "add_prefix_space", "true or false");
    if (json_is_false(older) && choice != PREPEND_NEVER)
        return bad(p, "add_prefix_space", "true, or the prepend_scheme \"never\" beside it");
    *out = (metaspace_prepend)choice;
    return OK;
}

/* ---- chains of components ------------------------------------------------------------------------------------ */

typedef status (*read_fn)(const place *p, void *out);
typedef struct component {
    const char *type;
    int kind;
    read_fn read; /* NULL: it has no settings */
} component;
typedef struct chain {
    const char *key, *children; /* "normalizer", "normalizers" */
    const component *kinds;
    size_t n_kinds, item_bytes;
    /* Every item begins with its kind, an enum, and its place, a string. */
    void *items;
    size_t n, capacity;
} chain;
typedef struct item_head {
    int kind;
    const char *where;
} item_head;
_Static_assert(offsetof(tokenizer_normalizer, where) == offsetof(item_head, where), "items begin with a head");
_Static_assert(offsetof(tokenizer_pretokenizer, where) == offsetof(item_head, where), "items begin with a head");
_Static_assert(offsetof(tokenizer_decoder, where) == offsetof(item_head, where), "items begin with a head");

static status read_component(const place *p, chain *c, int depth);

static status read_sequence(const place *p, chain *c, int depth) {
    const json_t *children = json_object_get(p->value, c->children);
    if (!json_is_array(children)) return bad(p, c->children, "an array");
    if (depth >= PARTS_MAX_DEPTH)
        return ERR(ERR_INPUT, "%s: %s: found sequences nested deeper than %d levels, expected at most that", p->f->path,
                   p->where, PARTS_MAX_DEPTH);
    for (size_t i = 0; i < json_array_size(children); i++) {
        place child = {p->f, json_array_get(children, i),
                       arena_format(&p->f->memory, "%s.%s[%zu]", p->where, c->children, i)};
        TRY(read_component(&child, c, depth + 1));
    }
    return OK;
}

static status read_component(const place *p, chain *c, int depth) {
    const char *type = json_string_value(json_object_get(p->value, "type"));
    if (!type) return bad(p, "type", "the name of a component");
    if (strcmp(type, "Sequence") == 0) return read_sequence(p, c, depth);
    for (size_t i = 0; i < c->n_kinds; i++) {
        if (strcmp(type, c->kinds[i].type) != 0) continue;
        if (c->n == PARTS_MOST)
            return ERR(ERR_INPUT, "%s: %s: found more than %d components in %s, expected at most that", p->f->path,
                       p->where, PARTS_MOST, c->key);
        c->items = array_grow(c->items, &c->capacity, c->n + 1, c->item_bytes);
        char *item = (char *)c->items + c->n++ * c->item_bytes;
        memcpy(item, &c->kinds[i].kind, sizeof(int));
        memcpy(item + offsetof(item_head, where), &p->where, sizeof p->where);
        return c->kinds[i].read ? c->kinds[i].read(p, item) : OK;
    }
    strbuf known;
    strbuf_init(&known);
    for (size_t i = 0; i < c->n_kinds; i++) strbuf_printf(&known, "%s, ", c->kinds[i].type);
    status rc = ERR(ERR_INPUT, "%s: %s.type: found '%.100s', which is not supported, expected one of %sSequence",
                    p->f->path, p->where, type, known.text);
    strbuf_fini(&known);
    return rc;
}

static status read_chain(tokenizer_file *f, const json_t *value, chain *c, void *items, size_t *n) {
    place root = {f, value, c->key};
    status rc = json_is_null(value) ? OK : read_component(&root, c, 0);
    void *copy = arena_copy(&f->memory, c->items, c->n * c->item_bytes);
    memcpy(items, &copy, sizeof copy);
    *n = c->n;
    free(c->items);
    return rc;
}

/* ---- normalizers --------------------------------------------------------------------------------------------- */

static status read_prepend(const place *p, void *out) {
    tokenizer_normalizer *n = out;
    TRY(get_span(p, "prepend", &n->content));
    return n->content.length ? OK : bad(p, "prepend", "some text"); /* the reference writes the first character twice */
}

static status read_replace(const place *p, void *out) {
    tokenizer_normalizer *n = out;
    TRY(get_pattern(p, &n->pattern));
    return get_span(p, "content", &n->content);
}

static status read_strip(const place *p, void *out) {
    tokenizer_normalizer *n = out;
    TRY(get_bool(p, "strip_left", REQUIRED, &n->left));
    return get_bool(p, "strip_right", REQUIRED, &n->right);
}

status tokenizer_read_normalizer(tokenizer_file *f, const json_t *value) {
    static const component kinds[] = {
        {"NFC", NORMALIZE_NFC, NULL},
        {"NFD", NORMALIZE_NFD, NULL},
        {"NFKC", NORMALIZE_NFKC, NULL},
        {"NFKD", NORMALIZE_NFKD, NULL},
        {"Lowercase", NORMALIZE_LOWERCASE, NULL},
        {"Prepend", NORMALIZE_PREPEND, read_prepend},
        {"Replace", NORMALIZE_REPLACE, read_replace},
        {"Strip", NORMALIZE_STRIP, read_strip},
        {"StripAccents", NORMALIZE_STRIP_ACCENTS, NULL},
    };
    chain c = {"normalizer", "normalizers", kinds, ARRAY_LENGTH(kinds), sizeof(tokenizer_normalizer), NULL, 0, 0};
    return read_chain(f, value, &c, &f->normalizers, &f->n_normalizers);
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------------------ */

static status read_split(const place *p, void *out) {
    tokenizer_pretokenizer *t = out;
    TRY(get_pattern(p, &t->pattern));
    TRY(get_behavior(p, REQUIRED, &t->behavior));
    return get_bool(p, "invert", REQUIRED, &t->invert);
}

static status read_byte_level(const place *p, void *out) {
    tokenizer_pretokenizer *t = out;
    TRY(get_bool(p, "add_prefix_space", REQUIRED, &t->add_prefix_space));
    return get_bool(p, "use_regex", true, &t->use_regex);
}

static status read_digits(const place *p, void *out) {
    return get_bool(p, "individual_digits", REQUIRED, &((tokenizer_pretokenizer *)out)->individual_digits);
}

static status read_metaspace(const place *p, void *out) {
    tokenizer_pretokenizer *t = out;
    TRY(get_char(p, "replacement", &t->replacement));
    TRY(get_prepend(p, &t->prepend));
    const json_t *split = json_object_get(p->value, "split");
    t->split = true;
    return split && !json_is_null(split) ? get_bool(p, "split", REQUIRED, &t->split) : OK;
}

static status read_punctuation(const place *p, void *out) {
    return get_behavior(p, DELIMITER_ISOLATED, &((tokenizer_pretokenizer *)out)->behavior);
}

status tokenizer_read_pretokenizer(tokenizer_file *f, const json_t *value) {
    static const component kinds[] = {
        {"Split", PRETOKENIZE_SPLIT, read_split},
        {"ByteLevel", PRETOKENIZE_BYTE_LEVEL, read_byte_level},
        {"Digits", PRETOKENIZE_DIGITS, read_digits},
        {"Metaspace", PRETOKENIZE_METASPACE, read_metaspace},
        {"Whitespace", PRETOKENIZE_WHITESPACE, NULL},
        {"WhitespaceSplit", PRETOKENIZE_WHITESPACE_SPLIT, NULL},
        {"Punctuation", PRETOKENIZE_PUNCTUATION, read_punctuation},
    };
    chain c = {
        "pre_tokenizer", "pretokenizers", kinds, ARRAY_LENGTH(kinds), sizeof(tokenizer_pretokenizer), NULL, 0, 0};
    return read_chain(f, value, &c, &f->pretokenizers, &f->n_pretokenizers);
}

/* ---- decoders ------------------------------------------------------------------------------------------------ */

static status read_decoder_metaspace(const place *p, void *out) {
    tokenizer_decoder *d = out;
    TRY(get_char(p, "replacement", &d->content));
    return get_prepend(p, &d->prepend);
}

static status read_decoder_replace(const place *p, void *out) {
    tokenizer_decoder *d = out;
    TRY(get_pattern(p, &d->pattern));
    return get_span(p, "content", &d->content);
}

static status read_decoder_strip(const place *p, void *out) {
    tokenizer_decoder *d = out;
    TRY(get_char(p, "content", &d->content));
    TRY(get_count(p, "start", &d->start));
    return get_count(p, "stop", &d->stop);
}

status tokenizer_read_decoder(tokenizer_file *f, const json_t *value) {
    static const component kinds[] = {
        {"ByteLevel", DECODE_BYTE_LEVEL, NULL},
        {"Metaspace", DECODE_METASPACE, read_decoder_metaspace},
        {"ByteFallback", DECODE_BYTE_FALLBACK, NULL},
        {"Fuse", DECODE_FUSE, NULL},
        {"Replace", DECODE_REPLACE, read_decoder_replace},
        {"Strip", DECODE_STRIP, read_decoder_strip},
    };
    chain c = {"decoder", "decoders", kinds, ARRAY_LENGTH(kinds), sizeof(tokenizer_decoder), NULL, 0, 0};
    f->has_decoder = !json_is_null(value);
    return read_chain(f, value, &c, &f->decoders, &f->n_decoders);
}

/* ---- post-processor: what stands around a text --------------------------------------------------------------- */

typedef struct template_item { /* begins as every item */
    int kind;
    const char *where;
    const json_t *single, *specials; /* NULL for ByteLevel, which only moves offsets */
} template_item;

static status read_template(const place *p, void *out) {
    template_item *t = out;
    t->single = json_object_get(p->value, "single");
    t->specials = json_object_get(p->value, "special_tokens");
    if (!json_is_array(t->single)) return bad(p, "single", "an array");
    if (!json_is_object(t->specials)) return bad(p, "special_tokens", "an object");
    return OK;
}

static void template_add(tokenizer_file *f, int32_t id, size_t *capacity) {
    f->template = array_grow(f->template, capacity, f->n_template + 1, sizeof *f->template);
    f->template[f->n_template++] = id;
}

static status read_template_piece(tokenizer_file *f, const template_item *t, size_t i, size_t *capacity) {
    const json_t *piece = json_array_get(t->single, i), *special = json_object_get(piece, "SpecialToken");
    const json_t *sequence = json_object_get(piece, "Sequence");
    const char *name = json_string_value(json_object_get(special ? special : sequence, "id"));
    if (!name)
        return ERR(ERR_INPUT,
                   "%s: %s.single[%zu]: found something else, expected a SpecialToken or a Sequence with an id",
                   f->path, t->where, i);
    if (!special) {
        if (strcmp(name, "A") != 0)
            return ERR(ERR_INPUT, "%s: %s.single[%zu]: found the sequence '%.20s', expected 'A'", f->path, t->where, i,
                       name);
        template_add(f, TOKENIZER_TEXT, capacity);
        return OK;
    }
    const json_t *ids = json_object_get(json_object_get(t->specials, name), "ids");
    if (!json_is_array(ids))
        return ERR(ERR_INPUT, "%s: %s.special_tokens: found no ids for '%.100s', expected an array of them", f->path,
                   t->where, name);
    for (size_t k = 0; k < json_array_size(ids); k++) {
        const json_t *id = json_array_get(ids, k);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= f->n_ids)
            return ERR(ERR_INPUT,
                       "%s: %s.special_tokens: '%.100s': found an id that is not in 0 to %d, expected one of a "
                       "token",
                       f->path, t->where, name, f->n_ids - 1);
        template_add(f, (int32_t)json_integer_value(id), capacity);
    }
    return OK;
}

static status fill_template(tokenizer_file *f, const template_item *items, size_t n_items, size_t *capacity) {
    const template_item *t = NULL;
    bool has_text = false;
    for (size_t i = 0; i < n_items; i++) {
        if (!items[i].single) continue;
        /* The reference gives the second one the pieces of the first, which ends in an error or in a pair. */
        if (t)
            return ERR(ERR_INPUT, "%s: %s: found a second TemplateProcessing, expected one", f->path, items[i].where);
        t = &items[i];
    }
    if (!t) {
        template_add(f, TOKENIZER_TEXT, capacity);
        return OK;
    }
    for (size_t i = 0; i < json_array_size(t->single); i++) TRY(read_template_piece(f, t, i, capacity));
    for (size_t i = 0; i < f->n_template; i++) has_text |= f->template[i] == TOKENIZER_TEXT;
    if (!has_text) return ERR(ERR_INPUT, "%s: %s.single: found no sequence, expected 'A' in it", f->path, t->where);
    return OK;
}

status tokenizer_read_postprocessor(tokenizer_file *f, const json_t *value) {
    static const component kinds[] = {{"TemplateProcessing", 0, read_template}, {"ByteLevel", 1, NULL}};
    chain c = {"post_processor", "processors", kinds, ARRAY_LENGTH(kinds), sizeof(template_item), NULL, 0, 0};
    template_item *items;
    size_t n_items, capacity = 0;
    TRY(read_chain(f, value, &c, &items, &n_items));
    status rc = fill_template(f, items, n_items, &capacity);
    int32_t *grown = f->template;
    f->template = arena_copy(&f->memory, grown, f->n_template * sizeof *grown);
    free(grown);
    return rc;
}

/* ---- added tokens -------------------------------------------------------------------------------------------- */

static int by_content(const void *a, const void *b) {
    const tokenizer_added *x = *(tokenizer_added *const *)a, *y = *(tokenizer_added *const *)b;
    size_t n = MIN(x->content.length, y->content.length);
    int order = n ? memcmp(x->content.text, y->content.text, n) : 0;
    if (order == 0) order = (x->content.length > y->content.length) - (x->content.length < y->content.length);
    return order ? order : (x > y) - (x < y);
}

/* The same text twice is the same token, and the later entry says how it behaves. Returns how many are left. */
static size_t drop_repeated(tokenizer_added *added, size_t n) {
    tokenizer_added **sorted = mem_alloc(n * sizeof *sorted);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) sorted[i] = &added[i];
    qsort(sorted, n, sizeof *sorted, by_content);
    for (size_t i = 0; i + 1 < n; i++) {
        tokenizer_added *x = sorted[i], *y = sorted[i + 1];
        if (x->content.length != y->content.length || memcmp(x->content.text, y->content.text, x->content.length) != 0)
            continue;
        tokenizer_added later = *y; /* moved to where it was first: its number is given there */
        later.id = x->id;
        later.special |= x->special; /* once special, its text stays in the set of specials */
        *x = later;
        y->content.length = 0;
        sorted[i + 1] = x;
    }
    for (size_t i = 0; i < n; i++)
        if (added[i].content.length) added[kept++] = added[i];
    free(sorted);
    return kept;
}

static status read_added(const place *p, tokenizer_added *out) {
    const json_t *id = json_object_get(p->value, "id");
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return bad(p, "id", "an id, 0 or more");
    out->id = (int32_t)json_integer_value(id);
    TRY(get_span(p, "content", &out->content));
    if (out->content.length > ADDED_MAX_BYTES) return bad(p, "content", "a text of at most 1024 bytes");
    TRY(get_bool(p, "single_word", REQUIRED, &out->single_word));
    TRY(get_bool(p, "lstrip", REQUIRED, &out->lstrip));
    TRY(get_bool(p, "rstrip", REQUIRED, &out->rstrip));
    TRY(get_bool(p, "normalized", REQUIRED, &out->normalized));
    return get_bool(p, "special", REQUIRED, &out->special);
}

status tokenizer_read_added(tokenizer_file *f, const json_t *value) {
    if (json_is_null(value)) return OK;
    if (!json_is_array(value)) return ERR(ERR_INPUT, "%s: added_tokens: found no array, expected one", f->path);
    size_t n = json_array_size(value);
    int n_moved = 0;
    f->added = arena_array(&f->memory, tokenizer_added, n);
    for (size_t i = 0; i < n; i++) {
        place p = {f, json_array_get(value, i), arena_format(&f->memory, "added_tokens[%zu]", i)};
        if (!json_is_object(p.value)) return ERR(ERR_INPUT, "%s: %s: found no object, expected one", f->path, p.where);
        TRY(read_added(&p, &f->added[i]));
    }
    f->n_added = drop_repeated(f->added, n);
    int32_t next = f->n_vocab, n_before = f->n_ids;
    for (size_t i = 0; i < f->n_added; i++) {
        tokenizer_added *a = &f->added[i];
        int32_t id = tokenizer_file_find(f, a->content.text, a->content.length);
        if (id < 0) id = next++;
        if (id != a->id && n_moved++ == 0)
            log_warn(
                "%s: added_tokens: '%.*s' has the id %d, not %d as the file says: the vocabulary has %d tokens, and "
                "the others follow it",
                f->path, (int)MIN(a->content.length, 100), a->content.text, id, a->id, f->n_vocab);
        a->id = id;
        f->n_ids = MAX(f->n_ids, id + 1);
    }
    if (f->n_ids > n_before) { /* the table by id covers the added ones too */
        span *tokens = arena_array(&f->memory, span, f->n_ids);
        memcpy(tokens, f->tokens, (size_t)n_before * sizeof *tokens);
        f->tokens = tokens;
    }
    return OK;
}
