/* record_text.c - records as the model reads them, with what is trained on between marks.
 *
 * The example of a run is taken from the rows that are trained on and not from its files: so it shows what packing, cutting and
 * the chat format made of them, and exists for every source. */
#include "cli/record_text.h"
#include "data/prompts.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 8000 }; /* of a long document */

status record_text_write(const tokenizer *t, const chat_tokens *tokens, bool marks, strbuf *out) {
    status rc = OK;
    decode_stream *s = tokenizer_decode_stream(t, DECODE_KEEP_SPECIALS);
    for (size_t i = 0; i < tokens->n; i++) {
        bool is = tokens->trained[i], was = i > 0 && tokens->trained[i - 1];
        if (marks && is != was) strbuf_add(out, is ? ">>>" : "<<<");
        TRY_GOTO(rc, decode_stream_push(s, tokens->ids[i], out), done);
    }
    rc = decode_stream_end(s, out);
    if (marks && tokens->n > 0 && tokens->trained[tokens->n - 1]) strbuf_add(out, "<<<");
done:
    decode_stream_close(s);
    return rc;
}

size_t record_text_trained(const chat_tokens *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->trained[i];
    return n;
}

/* ---- the first example of a run --------------------------------------------------------------------------------------- */

static void print_text(const char *text, size_t n) {
    size_t shown = MIN(n, (size_t)SHOWN_BYTES);
    while (shown > 0 && shown < n && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--; /* whole characters */
    fwrite(text, 1, shown, stderr);
    if (shown < n) fprintf(stderr, " ... (%zu more bytes)", n - shown);
    fputc('\n', stderr);
}

/* Positions first to end of a row are one document. Its last token is only a target: no row holds it as an input. */
static void tokens_of_document(const data_row *row, int64_t first, int64_t end, chat_tokens *out) {
    out->n = 0;
    for (int64_t i = first; i < end; i++) {
        out->ids[out->n] = row->tokens[i];
        out->trained[out->n++] = i > first && row->targets[i - 1] >= 0;
    }
    if (row->targets[end - 1] < 0) return;
    out->ids[out->n] = row->targets[end - 1];
    out->trained[out->n++] = 1;
}

static int segment_of(const data_row *row, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++)
        if (row->segments[i] >= 0) return row->segments[i];
    return -1;
}

static status print_document(const tokenizer *t, const chat_tokens *tokens, const char *part) {
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "");
    status rc = record_text_write(t, tokens, true, &text);
    if (rc == OK) {
        fprintf(stderr, "example   %s%s%zu tokens, %zu trained on, between >>> and <<<\n", part ? part : "",
                part ? ": " : "", tokens->n, record_text_trained(tokens));
        print_text(text.text, text.length);
    }
    strbuf_fini(&text);
    return rc;
}

/* The first document; of preferences all parts of the first example, which follow each other. */
static status print_row(const dataset *d, const data_row *row, int64_t n, chat_tokens *tokens) {
    int example = -1;
    for (int64_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && row->doc_start[end] == row->doc_start[first];) end++;
        int segment = segment_of(row, first, end);
        if (first > 0 && (segment < 0 || segment / PART_STRIDE != example)) break;
        example = segment < 0 ? -1 : segment / PART_STRIDE;
        tokens_of_document(row, first, end, tokens);
        TRY(print_document(dataset_tokenizer(d), tokens,
                           segment < 0 ? NULL : data_part_name(dataset_kind(d), (data_part)(segment % PART_STRIDE))));
    }
    return OK;
}

static void print_prompt(const dataset *d) {
    prompt_record p = prompts_get(dataset_prompts(d), SPLIT_TRAIN, 0);
    fprintf(stderr, "example   prompt of %zu tokens; the model's completions of it are trained on\n", p.n_tokens);
    print_text(p.text.text, p.text.length);
}

status record_text_print_first(const dataset *d, const train_request *r) {
    if (dataset_kind(d) == DATA_PROMPTS) {
        print_prompt(d);
        return OK;
    }
    int64_t n = r->data.seq_len;
    arena memory;
    arena_init(&memory);
    size_t bytes = (size_t)n * sizeof(int32_t);
    data_row row = {.tokens = arena_alloc(&memory, bytes),
                    .targets = arena_alloc(&memory, bytes),
                    .doc_start = arena_alloc(&memory, bytes),
                    .segments = arena_alloc(&memory, bytes),
                    .examples = arena_alloc(&memory, ((size_t)data_example_slots(n) + 1) * sizeof(int32_t))};
    chat_tokens tokens = {.ids = arena_alloc(&memory, bytes + sizeof(int32_t)),
                          .trained = arena_alloc(&memory, (size_t)n + 1)};
    dataset_row_get(d, SPLIT_TRAIN, 0, &row);
    status rc = print_row(d, &row, n, &tokens);
    arena_fini(&memory);
    return rc;
}
