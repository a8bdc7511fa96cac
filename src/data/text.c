/* text.c - text files as rows: each file one document, its tail kept for evaluation.
 *
 * The text is read into memory once: a file that is edited or cut while a run is under way must not change its rows.
 * With the byte tokenizer its bytes are kept as they are; any other tokenizer leaves its ids, four bytes each.
 * Each file is its tokens and an EOS; the last eval_fraction of that is the evaluation part, and training never sees a
 * token of it, not even as a target. Packed, the parts of a split form one stream that is cut into rows; unpacked,
 * every part begins a row of its own. Either way a part longer than a row goes on in the next one, whose first token
 * is still the target of the last token before the cut: every token but the first of each part is trained on exactly
 * once per epoch. An epoch visits the rows in the order of a seeded permutation, another one every epoch. */
#include "data/source.h"

#include <stdlib.h>
#include <sys/stat.h>

#define TEXT_MAX_BYTES ((size_t)64 << 30)

typedef struct part {
    const unsigned char *bytes; /* NULL: ids */
    const int32_t *ids;         /* n_tokens of them */
    uint64_t n_bytes, n_tokens; /* n_tokens is one more where the EOS of the file belongs to the part */
    uint64_t first;             /* packed: its place in the stream; unpacked: its first row */
} part;

typedef struct text_split {
    part *parts;
    size_t n_parts;
    uint64_t n_tokens, n_placed, n_cut, n_dropped, n_rows;
    uint64_t order_key;
} text_split;

typedef struct text_source {
    source base;
    void **files; /* bytes or ids */
    size_t n_files;
    text_split splits[2];
} text_source;

/* ---- rows ---------------------------------------------------------------------------------------------------- */

static int32_t token_at(const part *p, uint64_t i) {
    if (p->ids) return p->ids[i];
    return i < p->n_bytes ? p->bytes[i] : TOKEN_EOS;
}

/* The last part that begins at or before `place`. */
static size_t part_of(const text_split *t, uint64_t place) {
    size_t low = 0, high = t->n_parts;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (t->parts[middle].first <= place) low = middle;
        else high = middle;
    }
    return low;
}

static void text_row(const source *base, split which, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc) {
    const text_split *t = &((const text_source *)base)->splits[which];
    int64_t T = base->seq_len, at = 0;
    if (t->n_rows > 0) {
        uint64_t row = rng_permute(rng_u64(t->order_key, index / t->n_rows), index % t->n_rows, t->n_rows);
        uint64_t place = base->pack ? row * (uint64_t)T : row;
        size_t i = part_of(t, place);
        uint64_t offset = (place - t->parts[i].first) * (base->pack ? 1 : (uint64_t)T);
        do {
            const part *p = &t->parts[i];
            int64_t start = at;
            for (; at < T && offset < p->n_tokens; at++, offset++) {
                tokens[at] = token_at(p, offset);
                targets[at] = offset + 1 < p->n_tokens ? token_at(p, offset + 1) : -1;
                doc[at] = (int32_t)start;
            }
            offset = 0;
        } while (base->pack && ++i < t->n_parts && at < T);
    }
    row_pad(base, at, tokens, targets, doc);
}

static void text_report(const source *base, split which, data_report *out) {
    const text_split *t = &((const text_source *)base)->splits[which];
    out->n_documents = t->n_parts;
    out->n_tokens = t->n_tokens;
    out->n_cut_tokens = t->n_cut;
    out->n_dropped_tokens = t->n_dropped;
    out->rows_per_epoch = t->n_rows;
    if (t->n_rows) out->fill = (double)t->n_placed / ((double)t->n_rows * (double)base->seq_len);
}

static void text_close(source *base) {
    text_source *s = (text_source *)base;
    for (size_t i = 0; i < s->n_files; i++) free(s->files[i]);
    for (int i = 0; i < 2; i++) free(s->splits[i].parts);
    free(s->files);
    free(s);
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void add_part(text_split *t, part p) {
    if (p.n_tokens == 0) return;
    t->parts[t->n_parts++] = p;
    t->n_tokens += p.n_tokens;
}

/* A stretch of n tokens needs rows for the n - 1 that have a target; the last one may be a target only. So no row is
 * left with nothing to learn from. */
static uint64_t rows_for(uint64_t n_tokens, uint64_t T) { return (n_tokens - 1 + T - 1) / T; }

static void lay_out(text_split *t, uint64_t T, bool pack) {
    if (pack && t->n_tokens > 0) t->n_rows = rows_for(t->n_tokens, T);
    uint64_t stream = 0;
    for (size_t i = 0; i < t->n_parts; i++) {
        part *p = &t->parts[i];
        /* Places are counted from the start of the stretch: the whole stream, or the part alone. */
        uint64_t begin = pack ? stream : 0, rows = pack ? t->n_rows : rows_for(p->n_tokens, T);
        uint64_t end = MIN(begin + p->n_tokens, rows * T), first_row_end = (begin / T + 1) * T;
        t->n_placed += end - begin;
        if (end > first_row_end) t->n_cut += end - first_row_end;
        if (end == begin) t->n_dropped++; /* a part of one token: no target, and nothing before it */
        p->first = pack ? begin : t->n_rows;
        if (!pack) t->n_rows += rows;
        stream += p->n_tokens;
    }
}

static void add_bytes(text_source *s, unsigned char *bytes, uint64_t n_bytes, double eval_fraction) {
    uint64_t n_tokens = n_bytes + 1, n_eval = (uint64_t)((double)n_tokens * eval_fraction), n_train = n_tokens - n_eval;
    s->files[s->n_files++] = bytes;
    s->base.n_bytes += n_bytes;
    part train = {.bytes = bytes, .n_bytes = MIN(n_train, n_bytes), .n_tokens = n_train};
    add_part(&s->splits[SPLIT_TRAIN], train);
    if (n_eval)
        add_part(&s->splits[SPLIT_EVAL], (part){.bytes = bytes + n_train, .n_bytes = n_eval - 1, .n_tokens = n_eval});
}

static status add_ids(text_source *s, const tokenizer *t, char *text, size_t n_bytes, double eval_fraction) {
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    status rc = tokenizer_encode(t, text, n_bytes, &ids, &n, &capacity);
    free(text);
    if (rc == OK && tokenizer_eos(t) >= 0) {
        ids = array_grow(ids, &capacity, n + 1, sizeof *ids);
        ids[n++] = tokenizer_eos(t);
    }
    s->files[s->n_files++] = ids;
    s->base.n_bytes += capacity * sizeof *ids;
    TRY(rc);
    uint64_t n_eval = (uint64_t)((double)n * eval_fraction), n_train = n - n_eval;
    add_part(&s->splits[SPLIT_TRAIN], (part){.ids = ids, .n_tokens = n_train});
    add_part(&s->splits[SPLIT_EVAL], (part){.ids = ids + n_train, .n_tokens = n_eval});
    return OK;
}

static status read_file(text_source *s, const char *path, const tokenizer *t, double eval_fraction) {
    size_t n_bytes;
    char *text;
    TRY(file_read_all(path, TEXT_MAX_BYTES, &text, &n_bytes));
    if (n_bytes == 0) {
        free(text);
        return ERR(ERR_INPUT, "%s: found an empty file, expected text to train on", path);
    }
    if (tokenizer_is_byte(t)) add_bytes(s, (unsigned char *)text, n_bytes, eval_fraction);
    else TRY(add_ids(s, t, text, n_bytes, eval_fraction));
    return OK;
}

uint64_t text_file_bytes(const data_options *o) {
    uint64_t total = 0;
    char name[4096];
    for (const char *at = o->source; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        struct stat info;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        if (stat(name, &info) == 0) total += (uint64_t)info.st_size;
    }
    return total;
}

static status read_files(text_source *s, const data_options *o, const tokenizer *t) {
    status rc = OK;
    size_t n_names = 1;
    for (const char *c = o->source; *c; c++) n_names += *c == ',';
    s->files = mem_alloc(n_names * sizeof *s->files);
    for (int i = 0; i < 2; i++) s->splits[i].parts = mem_alloc(n_names * sizeof(part));
    strbuf name;
    strbuf_init(&name);
    for (const char *at = o->source; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        name.length = 0;
        strbuf_add_bytes(&name, at, strcspn(at, ","));
        if (name.length == 0) {
            rc = ERR(ERR_INPUT, "data source '%.500s': found an empty name, expected files separated by single commas",
                     o->source);
            break;
        }
        TRY_GOTO(rc, read_file(s, name.text, t, o->eval_fraction), done);
    }
done:
    strbuf_fini(&name);
    return rc;
}

static status check_sizes(const text_source *s, const data_options *o) {
    const text_split *train = &s->splits[SPLIT_TRAIN], *eval = &s->splits[SPLIT_EVAL];
    unsigned long long n_train = train->n_tokens, n_eval = eval->n_tokens;
    if ((o->pack && n_train < (uint64_t)o->seq_len) || train->n_rows == 0)
        return ERR(ERR_INPUT,
                   "%.500s: found %llu tokens for training (and %llu for evaluation), expected at least %lld, one row; "
                   "give more text or a smaller seq_len",
                   o->source, n_train, n_eval, (long long)(o->pack ? o->seq_len : 2));
    if (o->eval_fraction > 0 && eval->n_rows == 0)
        return ERR(
            ERR_INPUT,
            "%.500s: found %llu tokens for evaluation (eval_fraction %g of %llu), expected at least 2; give more "
            "text, a larger eval_fraction, or 0 for none",
            o->source, n_eval, o->eval_fraction, n_train + n_eval);
    return OK;
}

status text_open(source **out, const data_options *o, const tokenizer *t) {
    static const source_kind kind = {text_row, text_report, NULL, text_close};
    status rc = OK;
    text_source *s = mem_alloc(sizeof *s);
    /* Padding is never trained on and never seen by a document: any id of the vocabulary serves. */
    int32_t pad = tokenizer_is_byte(t) ? TOKEN_PAD : MAX(tokenizer_eos(t), 0);
    s->base = (source){.kind = &kind, .seq_len = o->seq_len, .pack = o->pack, .pad = pad};
    TRY_GOTO(rc, read_files(s, o, t), fail);
    for (int i = 0; i < 2; i++) {
        lay_out(&s->splits[i], (uint64_t)o->seq_len, o->pack);
        s->splits[i].order_key = rng_key(o->seed, i == SPLIT_TRAIN ? "data.text.train" : "data.text.eval");
    }
    TRY_GOTO(rc, check_sizes(s, o), fail);
    *out = &s->base;
    return OK;
fail:
    text_close(&s->base);
    return rc;
}
