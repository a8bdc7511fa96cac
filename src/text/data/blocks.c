/* blocks.c - a text of any size to the ids of the whole text, in blocks, on all threads.
 *
 * A block begins at a boundary (see cuts.c) and is encoded a little beyond its end, which proves where the next one may
 * begin. That alone would be one block after the other. So the beginnings are guessed: a few kilobytes before the place,
 * taken as if they began a part, nearly always come into step with the whole text and end in one of its boundaries.
 * All blocks are encoded at once, and counted from the first on as long as each one proves the beginning of the next.
 * A block that was begun at the wrong place is thrown away and encoded again from the last proven boundary. A block
 * without one is tried with twice the text, in the end with all that is left. So guesses cost time when they are wrong,
 * and never an id; memory is a few blocks and not the file, except for text that no place can be proven in. */
#include "data/part.h"
#include "data/source.h"
#include "data/store.h"

#include <stdlib.h>
#include <string.h>

enum { WIDE_BYTES = 1 << 16 }; /* where a boundary is looked for in blocks of which the usual end had none */

typedef struct block {
    text_part part;
    int32_t *ids;
    size_t n_ids, capacity;
    error_record *error; /* NULL: it was encoded */
} block;

typedef struct block_run {
    tokenize_job *job;
    block *blocks;
    size_t n, max;
    /* Where the next block begins, and at which level. */
    bool is_first;
    size_t level;
    size_t n_bytes; /* of a block; more than usual when one had no boundary */
} block_run;

static void encode_task(void *context, int64_t task, int thread) {
    block_run *r = context;
    block *b = &r->blocks[task];
    if (tokenizer_encode_part(r->job->tokenizer, &b->part, &b->ids, &b->n_ids, &b->capacity) == OK) return;
    b->error = mem_alloc(sizeof *b->error);
    error_take(b->error);
}

/* A place around `at` where a block probably begins. */
static bool guess_boundary(const tokenize_job *j, span window, size_t at, size_t *place, size_t *level) {
    size_t overlap = j->overlap_bytes, from = at - MIN(overlap, at / 2), to = MIN(at + overlap, window.length);
    while (from < at && ((unsigned char)window.text[from] & 0xc0) == 0x80) from++;
    text_part p = {.text = window.text + from,
                   .n_bytes = to - from,
                   .is_open = true,
                   .level = tokenizer_deepest_level(j->tokenizer),
                   .zone = (at - from) / 2};
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    if (tokenizer_encode_part(j->tokenizer, &p, &ids, &n, &capacity) != OK) error_clear(); /* it was but a guess */
    free(ids);
    *place = from + p.last.place;
    *level = p.last.level;
    return p.last.found;
}

/* Lays blocks over the window. */
static void lay_blocks(block_run *r, span window, bool at_end) {
    size_t at = 0, level = r->level, overlap = r->job->overlap_bytes, size = r->n_bytes;
    bool is_wide = size > r->job->block_bytes;
    r->n = 0;
    while (r->n < r->max && at < window.length) {
        size_t left = window.length - at, next = 0, next_level = 0;
        text_part p = {.text = window.text + at, .is_first = r->is_first && at == 0, .level = level};
        bool is_last = at_end && left <= size + overlap;
        if (!is_last && left < size + overlap) break;
        bool has_next = !is_last && !is_wide && guess_boundary(r->job, (span){p.text, left}, size, &next, &next_level);
        p.n_bytes = is_last ? left : MIN((has_next ? next : size) + overlap, left);
        p.is_open = !(at_end && p.n_bytes == left);
        p.zone = p.n_bytes - MIN(is_wide ? WIDE_BYTES : 2 * overlap, p.n_bytes - 1);
        p.wanted = has_next ? next : 0;
        r->blocks[r->n++].part = p;
        if (!has_next) break;
        at += next;
        level = next_level;
    }
}

static uint64_t count_lines(span text) {
    uint64_t n = 0;
    for (const char *p = text.text, *end = p + text.length; (p = memchr(p, '\n', (size_t)(end - p))); p++) n++;
    return n;
}

/* Bytes that are not UTF-8 become U+FFFD, and are counted; or they are an error. */
static status check_utf8(const tokenize_job *j, reader *in, span text, uint64_t *n_replaced) {
    for (size_t at = 0; at < text.length;) {
        utf8_scan u = utf8_check(text.text + at, text.length - at);
        at += u.n_valid;
        if (u.n_bad == 0) break;
        if (j->options->records.on_error == RECORDS_STOP)
            return ERR(ERR_INPUT,
                       "%s:%llu: found the byte 0x%02x at offset %llu, which is not UTF-8; expected text in UTF-8 for "
                       "this tokenizer; convert the file, or put U+FFFD in such places with data.on_error=skip",
                       in->path, (unsigned long long)(in->n_lines + count_lines((span){text.text, at}) + 1),
                       (unsigned char)text.text[at],
                       (unsigned long long)(in->offset + (uint64_t)(text.text - (in->buffer + in->begin)) + at));
        at += u.n_bad;
        ++*n_replaced;
    }
    return OK;
}

/* Does the block prove that the next one began at the right place and level? */
static bool proves_next(const block_run *r, size_t i) {
    const text_part *p = &r->blocks[i].part;
    return i + 1 < r->n && p->at_wanted.found && p->at_wanted.level == r->blocks[i + 1].part.level;
}

/* Takes the ids of the blocks that are proven. *n_bytes: the text that they cover; 0: the first has no boundary. */
static status take_blocks(block_run *r, reader *in, store_builder *out, size_t *n_bytes) {
    *n_bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        block *b = &r->blocks[i];
        const text_part *p = &b->part;
        bool proven = proves_next(r, i), is_last = !p->is_open && p->wanted == 0;
        text_boundary end = proven ? p->at_wanted : p->last;
        if (is_last) end = (text_boundary){true, p->n_bytes, b->n_ids, 0};
        if (b->error) return error_give(b->error);
        if (!end.found) return OK;
        TRY(check_utf8(r->job, in, (span){p->text, end.place}, &out->store->n_replaced));
        TRY(store_add(out, b->ids, NULL, end.n_ids));
        in->n_lines += count_lines((span){p->text, end.place});
        *n_bytes += end.place;
        r->level = end.level;
        r->is_first = false;
        if (!proven) return OK;
    }
    return OK;
}

static void free_blocks(block_run *r) {
    for (size_t i = 0; i < r->n; i++) {
        free(r->blocks[i].ids);
        free(r->blocks[i].error);
        r->blocks[i] = (block){0};
    }
    r->n = 0;
}

static status run_blocks(block_run *r, reader *in, store_builder *out, bool *done) {
    tokenize_job *j = r->job;
    span window;
    size_t n_bytes, n_blocks = r->n_bytes > j->block_bytes ? 1 : r->max;
    TRY(reader_peek(in, n_blocks * (r->n_bytes + j->overlap_bytes) + j->overlap_bytes, &window));
    *done = window.length == 0;
    if (*done) return OK;
    lay_blocks(r, window, in->at_end);
    pool_run(j->threads, encode_task, r, (int64_t)r->n);
    status rc = take_blocks(r, in, out, &n_bytes);
    free_blocks(r);
    reader_consume(in, n_bytes);
    r->n_bytes = n_bytes > 0 ? j->block_bytes : 2 * r->n_bytes;
    return rc;
}

status tokenize_blocks(tokenize_job *j, reader *in, store_builder *out) {
    status rc = OK;
    int32_t bos = chat_document_bos(j->chat);
    if (bos >= 0) TRY(store_add(out, &bos, NULL, 1));
    block_run r = {.job = j, .max = (size_t)pool_threads(j->threads) * 4, .is_first = true, .n_bytes = j->block_bytes};
    r.blocks = mem_alloc(r.max * sizeof *r.blocks);
    for (bool done = false; !done && rc == OK;) {
        rc = run_blocks(&r, in, out, &done);
        if (rc == OK) tokenize_say_how_far(j, in);
    }
    free(r.blocks);
    return rc;
}
