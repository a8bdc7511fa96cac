/* bpe.c - byte pair encoding of one word: start from characters, always merge the pair of lowest rank, leftmost first.
 *
 * Words repeat, so each encoder keeps the ids of short words in a cache: direct mapped, one cache line per entry, no
 * list to follow and nothing to free. Behind it, words of a few symbols are merged by looking at all pairs each time,
 * long ones with a heap over a linked list, O(n log n): a million letters without a space take a second, not a day.
 * Llama 2 has no pre-tokenizer: the whole text is one word. Where no merge reaches from another character over to
 * U+2581 (its space), cutting there changes nothing, and the parts are words again.
 * Unknown characters become bytes (<0x..>), the unknown token, or nothing, as the file says. */
#include "data/encode.h"

#include <stdlib.h>
#include <xxhash.h>

enum { CACHE_BITS = 15, CACHE_KEY = 38, CACHE_IDS = 6, SMALL = 40 };

typedef struct cache_entry {
    uint8_t length, n; /* length 0: free */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
} cache_entry;
_Static_assert(sizeof(cache_entry) == 64, "one cache line");

typedef struct symbol {
    int32_t id;          /* -1: merged into the one before */
    int32_t rank;        /* of the pair with the next one; -1: no merge */
    uint32_t prev, next; /* NONE at the ends */
} symbol;
#define NONE UINT32_MAX

struct bpe_scratch {
    cache_entry *cache;
    symbol *symbols;
    size_t n_symbols, symbol_capacity;
    uint64_t *heap; /* rank << 32 | place: the order of merging */
    size_t n_heap, heap_capacity;
    strbuf mapped; /* a word of bytes as characters */
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

static size_t merge_start(int32_t left, int32_t right, size_t n_slots) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return (size_t)(((h >> 32) * n_slots) >> 32);
}

/* The slot of a pair: its own, or the free one where it belongs. */
static merge_slot *merge_find(const bpe *b, int32_t left, int32_t right) {
    size_t i = merge_start(left, right, b->n_slots);
    for (;; i = i + 1 == b->n_slots ? 0 : i + 1) {
        merge_slot *m = &b->merges[i];
        if (m->left < 0 || (m->left == left && m->right == right)) return m;
    }
}

/* Has the text U+2581 anywhere but at its beginning or after another one? */
static bool has_inner_metaspace(const span *s) {
    for (size_t i = 1; i + 3 <= s->length; i++)
        if (memcmp(s->text + i, "\xe2\x96\x81", 3) == 0 && (i < 3 || memcmp(s->text + i - 3, "\xe2\x96\x81", 3) != 0))
            return true;
    return false;
}

static int32_t fallback_id(const tokenizer_file *f, int byte) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    return tokenizer_file_find(f, name, 6);
}

void bpe_open(bpe *b, const tokenizer_file *f, bool is_bytes) {
    *b = (bpe){.file = f, .is_bytes = is_bytes};
    b->n_slots = f->n_merges + f->n_merges / 2 + 8;
    b->merges = mem_alloc(b->n_slots * sizeof *b->merges);
    for (size_t i = 0; i < b->n_slots; i++) b->merges[i].left = -1;
    b->cuts_at_metaspace = !is_bytes && !f->ignore_merges && tokenizer_file_find(f, "\xe2\x96\x81", 3) >= 0;
    for (size_t i = 0; i < f->n_merges; i++) {
        const tokenizer_merge *m = &f->merges[i];
        *merge_find(b, m->left, m->right) = (merge_slot){m->left, m->right, (int32_t)i, m->result};
        b->cuts_at_metaspace &= !has_inner_metaspace(&f->tokens[m->result]);
    }
    for (int i = 0; i < 256; i++) {
        char u[4];
        b->byte_ids[i] = is_bytes ? tokenizer_file_find(f, u, char_encode(byte_chars[i], u)) : fallback_id(f, i);
    }
}

void bpe_close(bpe *b) { free(b->merges); }

bpe_scratch *bpe_scratch_open(void) {
    bpe_scratch *s = mem_alloc(sizeof *s);
    s->cache = mem_alloc(sizeof *s->cache << CACHE_BITS);
    strbuf_init(&s->mapped);
    return s;
}

void bpe_scratch_close(bpe_scratch *s) {
    if (!s) return;
    free(s->cache);
    free(s->symbols);
    free(s->heap);
    strbuf_fini(&s->mapped);
    free(s);
}

/* ---- the symbols of a word ----------------------------------------------------------------------------------- */

static void add_symbol(bpe_scratch *s, int32_t id) {
    if (s->n_symbols == s->symbol_capacity)
        s->symbols = array_grow(s->symbols, &s->symbol_capacity, s->n_symbols + 1, sizeof *s->symbols);
    s->symbols[s->n_symbols++].id = id;
}

static status unknown(const bpe *b, const char *text, size_t length) {
    return ERR(
        ERR_INPUT,
        "%s: model.unk_token: '%.100s' is not in the vocabulary, and the text has '%.*s', which is not in it either",
        b->file->path, b->file->unk_name, (int)length, text);
}

/* True when every byte of the character has a token of its own: they are added. */
static bool add_fallback(const bpe *b, bpe_scratch *s, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (b->byte_ids[(unsigned char)text[i]] < 0) return false;
    for (size_t i = 0; i < length; i++) add_symbol(s, b->byte_ids[(unsigned char)text[i]]);
    return true;
}

/* An unknown character waits until a known one (or the end) follows: the reference orders and fuses them this way. */
static status split_chars(const bpe *b, bpe_scratch *s, const char *text, size_t length) {
    const tokenizer_file *f = b->file;
    bool waiting = false;
    for (size_t i = 0, n; i < length; i += n) {
        n = char_length(text[i]);
        int32_t id = tokenizer_file_find(f, text + i, n);
        if (id >= 0) {
            if (waiting) add_symbol(s, f->unk);
            waiting = false;
            add_symbol(s, id);
        } else if (!(f->byte_fallback && add_fallback(b, s, text + i, n)) && f->unk_name) {
            if (f->unk < 0) return unknown(b, text + i, n);
            if (waiting && !f->fuse_unk) add_symbol(s, f->unk);
            waiting = true;
        }
    }
    if (waiting) add_symbol(s, f->unk);
    return OK;
}

/* A byte whose character is not in the vocabulary is rare, so this slow path is enough. */
static void map_bytes(bpe_scratch *s, const char *text, size_t length) {
    s->mapped.length = 0;
    for (size_t i = 0; i < length; i++) {
        char u[4];
        strbuf_add_bytes(&s->mapped, u, char_encode(byte_chars[(unsigned char)text[i]], u));
    }
}

/* The fallback to <0x..> of a character of ByteLevel is that of its own UTF-8 bytes, not of the byte it stands for. */
static status split_mapped(const bpe *b, bpe_scratch *s, const char *text, size_t length) {
    bpe chars = *b;
    chars.is_bytes = false;
    for (int i = 0; i < 256; i++) chars.byte_ids[i] = fallback_id(b->file, i);
    map_bytes(s, text, length);
    s->n_symbols = 0;
    return split_chars(&chars, s, s->mapped.text, s->mapped.length);
}

static status split_word(const bpe *b, bpe_scratch *s, const char *text, size_t length) {
    s->n_symbols = 0;
    if (!b->is_bytes) return split_chars(b, s, text, length);
    for (size_t i = 0; i < length; i++) {
        int32_t id = b->byte_ids[(unsigned char)text[i]];
        if (id < 0) return split_mapped(b, s, text, length);
        add_symbol(s, id);
    }
    return OK;
}

/* ---- merging ------------------------------------------------------------------------------------------------- */

static int32_t rank_of(const bpe *b, int32_t left, int32_t right) {
    const merge_slot *m = merge_find(b, left, right);
    return m->left < 0 ? -1 : m->rank;
}

static void merge_small(const bpe *b, bpe_scratch *s) {
    symbol *x = s->symbols;
    size_t n = s->n_symbols;
    for (size_t i = 0; i + 1 < n; i++) x[i].rank = rank_of(b, x[i].id, x[i + 1].id);
    for (;;) {
        size_t best = 0;
        uint32_t lowest = UINT32_MAX; /* -1 as unsigned is the highest */
        for (size_t i = 0; i + 1 < n; i++)
            if ((uint32_t)x[i].rank < lowest) lowest = (uint32_t)x[i].rank, best = i;
        if (lowest == UINT32_MAX) break;
        x[best].id = b->file->merges[lowest].result;
        x[best].rank = x[best + 1].rank;
        memmove(&x[best + 1], &x[best + 2], (n - best - 2) * sizeof *x);
        n--;
        if (best + 1 < n) x[best].rank = rank_of(b, x[best].id, x[best + 1].id);
        if (best > 0) x[best - 1].rank = rank_of(b, x[best - 1].id, x[best].id);
    }
    s->n_symbols = n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t key = heap[i];
    for (size_t child; (child = 4 * i + 1) < n; i = child) { /* four children: half the cache misses of two */
        size_t last = MIN(child + 4, n);
        for (size_t k = child + 1; k < last; k++)
            if (heap[k] < heap[child]) child = k;
        if (heap[child] >= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static void heap_push(bpe_scratch *s, uint64_t key) {
    s->heap = array_grow(s->heap, &s->heap_capacity, s->n_heap + 1, sizeof *s->heap);
    size_t i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 4] > key; i = (i - 1) / 4) s->heap[i] = s->heap[(i - 1) / 4];
    s->heap[i] = key;
}

static uint64_t heap_pop(bpe_scratch *s) {
    uint64_t top = s->heap[0];
    s->heap[0] = s->heap[--s->n_heap];
    if (s->n_heap) sift_down(s->heap, s->n_heap, 0);
    return top;
}

static void pair_changed(const bpe *b, bpe_scratch *s, uint32_t i) {
    symbol *x = &s->symbols[i];
    x->rank = x->next == NONE ? -1 : rank_of(b, x->id, s->symbols[x->next].id);
    if (x->rank >= 0) heap_push(s, (uint64_t)(uint32_t)x->rank << 32 | i);
}

static void merge_long(const bpe *b, bpe_scratch *s) {
    symbol *x = s->symbols;
    uint32_t n = (uint32_t)s->n_symbols;
    s->n_heap = 0;
    s->heap = array_grow(s->heap, &s->heap_capacity, n, sizeof *s->heap);
    for (uint32_t i = 0; i < n; i++) {
        x[i].prev = i ? i - 1 : NONE;
        x[i].next = i + 1 < n ? i + 1 : NONE;
        x[i].rank = i + 1 < n ? rank_of(b, x[i].id, x[i + 1].id) : -1;
        if (x[i].rank >= 0) s->heap[s->n_heap++] = (uint64_t)(uint32_t)x[i].rank << 32 | i;
    }
    for (size_t i = s->n_heap / 4 + 1; i-- > 0;)
        if (i < s->n_heap) sift_down(s->heap, s->n_heap, i);
    while (s->n_heap) {
        uint64_t top = heap_pop(s);
        uint32_t i = (uint32_t)top;
        if (x[i].id < 0 || x[i].rank != (int32_t)(top >> 32)) continue; /* the pair is gone */
        uint32_t right = x[i].next;
        x[i].id = b->file->merges[x[i].rank].result;
        x[i].next = x[right].next;
        x[right].id = -1;
        if (x[i].next != NONE) x[x[i].next].prev = i;
        pair_changed(b, s, i);
        if (x[i].prev != NONE) pair_changed(b, s, x[i].prev);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i].id >= 0) x[kept++].id = x[i].id;
    s->n_symbols = kept;
}

/* ---- words --------------------------------------------------------------------------------------------------- */

static void add_ids(id_list *out, const int32_t *ids, size_t n) {
    if (*out->n + n > *out->capacity) *out->ids = array_grow(*out->ids, out->capacity, *out->n + n, sizeof **out->ids);
    if (n) memcpy(*out->ids + *out->n, ids, n * sizeof *ids);
    *out->n += n;
}

static int32_t whole_word(const bpe *b, bpe_scratch *s, const char *text, size_t length) {
    if (!b->is_bytes) return tokenizer_file_find(b->file, text, length);
    map_bytes(s, text, length);
    return tokenizer_file_find(b->file, s->mapped.text, s->mapped.length);
}

static status encode_new(const bpe *b, bpe_scratch *s, const char *text, size_t length, id_list *out) {
    if (b->file->ignore_merges) {
        int32_t id = whole_word(b, s, text, length);
        if (id >= 0) {
            add_ids(out, &id, 1);
            return OK;
        }
    }
    TRY(split_word(b, s, text, length));
    if (s->n_symbols >= INT32_MAX)
        return ERR(ERR_INPUT, "%s: a word of %zu bytes: found more than 2^31 symbols, expected fewer", b->file->path,
                   length);
    if (s->n_symbols <= SMALL) merge_small(b, s);
    else merge_long(b, s);
    if (*out->n + s->n_symbols > *out->capacity)
        *out->ids = array_grow(*out->ids, out->capacity, *out->n + s->n_symbols, sizeof **out->ids);
    for (size_t i = 0; i < s->n_symbols; i++) (*out->ids)[(*out->n)++] = s->symbols[i].id;
    return OK;
}

static status encode_word(const bpe *b, bpe_scratch *s, const char *text, size_t length, id_list *out) {
    if (length > CACHE_KEY) return encode_new(b, s, text, length, out);
    cache_entry *e = &s->cache[XXH3_64bits(text, length) >> (64 - CACHE_BITS)];
    if (e->length == length && memcmp(e->key, text, length) == 0) {
        add_ids(out, e->ids, e->n);
        return OK;
    }
    size_t before = *out->n;
    TRY(encode_new(b, s, text, length, out));
    size_t n = *out->n - before;
    if (n > CACHE_IDS) return OK;
    e->length = (uint8_t)length;
    e->n = (uint8_t)n;
    memcpy(e->key, text, length);
    if (n) memcpy(e->ids, *out->ids + before, n * sizeof *e->ids);
    return OK;
}

/* Where U+2581 follows another character: `from` or after it. */
size_t bpe_word_end(const char *text, size_t from, size_t length) {
    size_t at = from;
    while (length - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0) at += 3;
    for (const char *p; at < length; at++) {
        if (!(p = memchr(text + at, 0xe2, length - at))) return length;
        at = (size_t)(p - text);
        if (length - at >= 3 && memcmp(p, "\xe2\x96\x81", 3) == 0) return at;
    }
    return length;
}

status bpe_encode(const bpe *b, bpe_scratch *s, const char *text, size_t length, id_list *out) {
    if (length == 0) return OK;
    if (!b->cuts_at_metaspace) return encode_word(b, s, text, length, out);
    for (size_t from = 0, to; from < length; from = to) {
        to = bpe_word_end(text, from, length);
        TRY(encode_word(b, s, text + from, to - from, out));
    }
    return OK;
}
