/* token_file.c - files of token ids that another program has written.
 *
 *     .npy                 one dimension of integers (NumPy); the type stands in the file
 *     .bin                 ids one after the other, as nanoGPT writes them: 2 bytes each, or 4 (data.token_type)
 *     .bin of llm.c        a header of 256 numbers before them, which says which
 * Nothing says which tokenizer made them, so every id must be one of data.tokenizer's: a file for another one is mostly found out by that,
 * and so is a wrong type. Where its end token stands, a document ends; a file without any is one text. */
#include "data/store.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 16, LLM_C_HEADER_BYTES = 1024, NPY_HEADER_MOST = 4096, ZEROS_SEEN = 4096 };

typedef struct id_type {
    const char *npy, *name; /* "<u2", "uint16" */
    size_t n_bytes;
    bool is_signed;
} id_type;

static const id_type types[] = {{"<u2", "uint16", 2, false}, {"<u4", "uint32", 4, false}, {"<u8", "uint64", 8, false},
                                {"<i2", "int16", 2, true},   {"<i4", "int32", 4, true},   {"<i8", "int64", 8, true},
                                {"|u1", "uint8", 1, false},  {"|i1", "int8", 1, true}};

typedef struct id_reader {
    tokenize_job *job;
    reader *in;
    store_builder *out;
    const id_type *type;
    bool is_guess;  /* the type follows from the vocabulary */
    uint64_t n_ids; /* that the header promises; UINT64_MAX: to the end */
    uint64_t n_read, n_in_document;
    uint64_t n_zeros; /* among every second id of the first */
    bool has_end;     /* an end token came, and is not stored yet */
    int32_t *ids;
} id_reader;

/* ---- headers --------------------------------------------------------------------------------------------------- */

static const char *skip_spaces(const char *at) {
    while (*at == ' ' || *at == '\n') at++;
    return at;
}

/* What follows 'key': in the dictionary of an .npy header; NULL: it is not there. */
static const char *npy_value(const char *header, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", key);
    const char *at = strstr(header, quoted);
    if (!at) return NULL;
    at = skip_spaces(at + strlen(quoted));
    return *at == ':' ? skip_spaces(at + 1) : NULL;
}

static status read_npy_dictionary(id_reader *r, const char *header) {
    const char *path = r->in->path, *type = npy_value(header, "descr"), *shape = npy_value(header, "shape");
    char *end;
    if (!type || *type != '\'' || !shape || *shape != '(')
        return ERR(ERR_INPUT, "%s: found no type and shape in its header, expected a file of numpy.save", path);
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        if (strncmp(type + 1, types[i].npy, 3) == 0 && type[4] == '\'') r->type = &types[i];
    if (!r->type)
        return ERR(ERR_INPUT,
                   "%s: found the type %.*s, expected integers (<u2, <u4, <i4 or <i8); convert it: "
                   "numpy.save(FILE, numpy.load(FILE).astype('uint32'))",
                   path, (int)strcspn(type + 1, "',}") + 2, type);
    r->n_ids = strtoull(shape + 1, &end, 10);
    end = (char *)(uintptr_t)skip_spaces(end);
    if (*end == ',') end = (char *)(uintptr_t)skip_spaces(end + 1);
    if (shape[1] < '0' || shape[1] > '9' || *end != ')')
        return ERR(ERR_INPUT,
                   "%s: found the shape %.*s, expected one dimension: the ids of all documents one after the other "
                   "(numpy.load(FILE).reshape(-1), if rows are no padded documents)",
                   path, (int)MIN(strcspn(shape, ")") + 1, (size_t)40), shape);
    return OK;
}

/* "\x93NUMPY", two bytes of version, the length of the dictionary in 2 bytes (version 1) or 4, the dictionary. */
static status read_npy_header(id_reader *r) {
    span head;
    TRY(reader_peek(r->in, 12, &head));
    const unsigned char *h = (const unsigned char *)head.text;
    if (head.length < 12 || memcmp(h, "\x93NUMPY", 6) != 0 || h[6] < 1 || h[6] > 3)
        return ERR(ERR_INPUT,
                   "%s: found no NumPy header, expected a file of numpy.save with one dimension of token ids",
                   r->in->path);
    size_t n_before = h[6] == 1 ? 10 : 12, n = (size_t)h[8] | (size_t)h[9] << 8;
    if (h[6] > 1) n |= (size_t)h[10] << 16 | (size_t)h[11] << 24;
    if (n <= NPY_HEADER_MOST) TRY(reader_peek(r->in, n_before + n, &head));
    if (n > NPY_HEADER_MOST || head.length < n_before + n)
        return ERR(ERR_INPUT, "%s: found a header of %zu bytes, expected at most %d, and the file to hold it",
                   r->in->path, n, NPY_HEADER_MOST);
    char header[NPY_HEADER_MOST + 1];
    memcpy(header, head.text + n_before, n);
    header[n] = 0;
    reader_consume(r->in, n_before + n);
    return read_npy_dictionary(r, header);
}

static uint32_t read_u32(const char *at) {
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Megatron's documents stand in a second file, and may have no end token in the first. */
static status refuse_megatron(const id_reader *r) {
    const char *path = r->in->path;
    size_t n = strlen(path) - strlen(".bin");
    if (r->job->options->records.format != FORMAT_AUTO || !str_ends_with(path, ".bin")) return OK;
    strbuf index;
    strbuf_init(&index);
    strbuf_printf(&index, "%.*s.idx", (int)n, path);
    bool found = access(index.text, F_OK) == 0;
    strbuf_fini(&index);
    if (!found) return OK;
    return ERR(ERR_INPUT,
               "%s: found %.*s.idx beside it, as Megatron writes it, which is not read, expected ids alone; "
               "data.format=tokens "
               "reads the ids, if every document ends with the end token of the tokenizer",
               path, (int)n, path);
}

/* Ids as they are, or with the header of llm.c. */
static status read_bin_header(id_reader *r) {
    static const struct {
        uint32_t magic, version;
        const id_type *type;
    } known[] = {{20240520, 1, &types[0]}, {20240801, 7, &types[1]}};
    span head;
    TRY(reader_peek(r->in, LLM_C_HEADER_BYTES, &head));
    for (size_t i = 0; i < ARRAY_LENGTH(known) && head.length >= LLM_C_HEADER_BYTES; i++) {
        if (read_u32(head.text) != known[i].magic || read_u32(head.text + 4) != known[i].version) continue;
        r->type = known[i].type;
        r->n_ids = read_u32(head.text + 8);
        reader_consume(r->in, LLM_C_HEADER_BYTES);
        return OK;
    }
    TRY(refuse_megatron(r));
    token_type given = r->job->options->token_type;
    r->is_guess = given == TOKEN_TYPE_AUTO;
    bool is_small = tokenizer_vocab(r->job->tokenizer) <= 1 << 16;
    r->type = &types[given == TOKEN_TYPE_UINT32 || (r->is_guess && !is_small)];
    return OK;
}

/* ---- ids ------------------------------------------------------------------------------------------------------- */

static uint64_t read_id(const char *at, const id_type *t) {
    uint64_t v = 0;
    for (size_t i = t->n_bytes; i-- > 0;) v = v << 8 | (unsigned char)at[i];
    bool is_negative = t->is_signed && v >> (8 * t->n_bytes - 1) & 1;
    return is_negative ? UINT64_MAX : v;
}

static status wrong_id(const id_reader *r, uint64_t id) {
    const data_options *o = r->job->options;
    char number[32] = "a negative id";
    if (id != UINT64_MAX) snprintf(number, sizeof number, "the id %llu", (unsigned long long)id);
    return ERR(
        ERR_INPUT,
        "%s: token %llu: found %s, expected one below %lld, the vocabulary of data.tokenizer (%s); name the tokenizer "
        "that made the file%s%s",
        r->in->path, (unsigned long long)r->n_read, number, (long long)tokenizer_vocab(r->job->tokenizer),
        o->tokenizer ? o->tokenizer : "byte", r->is_guess ? "; it was read as " : "",
        !r->is_guess            ? ""
        : r->type->n_bytes == 2 ? "uint16, data.token_type=uint32 is the other"
                                : "uint32, data.token_type=uint16 is the other");
}

static status store_document_end(id_reader *r) {
    int32_t eos = tokenizer_eos(r->job->tokenizer);
    TRY(store_add(r->out, &eos, NULL, 1));
    store_end_document(r->out);
    r->has_end = false;
    r->n_in_document = 0;
    return OK;
}

/* An end token is stored when something follows: a text that is one document has none in its store. An empty document is none. */
static status add_ids(id_reader *r, const char *bytes, size_t n) {
    int32_t eos = tokenizer_eos(r->job->tokenizer);
    uint64_t vocab = (uint64_t)tokenizer_vocab(r->job->tokenizer);
    size_t n_waiting = 0;
    for (size_t i = 0; i < n; i++, r->n_read++) {
        uint64_t id = read_id(bytes + i * r->type->n_bytes, r->type);
        if (id >= vocab) return wrong_id(r, id);
        r->n_zeros += r->n_read < ZEROS_SEEN && r->n_read % 2 && id == 0;
        if ((int32_t)id == eos) {
            TRY(store_add(r->out, r->ids, NULL, n_waiting));
            r->n_in_document += n_waiting;
            n_waiting = 0;
            r->has_end = r->n_in_document > 0;
            continue;
        }
        if (r->has_end) TRY(store_document_end(r));
        r->ids[n_waiting++] = (int32_t)id;
    }
    r->n_in_document += n_waiting;
    return store_add(r->out, r->ids, NULL, n_waiting);
}

/* Half of the bytes of small ids are zero: as uint16 every second one is then. */
static status check_type(const id_reader *r) {
    uint64_t n_seen = MIN(r->n_read, (uint64_t)ZEROS_SEEN) / 2;
    if (!r->is_guess || r->type->n_bytes != 2 || n_seen < 16 || r->n_zeros < n_seen) return OK;
    return ERR(ERR_INPUT,
               "%s: found 0 as every second id, as if it had 4 bytes for each, expected 2 (uint16); set "
               "data.token_type=uint32, or uint16 if it is right",
               r->in->path);
}

static status read_ids(id_reader *r) {
    size_t width = r->type->n_bytes;
    for (uint64_t left = r->n_ids; left > 0;) {
        span bytes;
        TRY(reader_peek(r->in, PIECE_BYTES, &bytes));
        size_t n = (size_t)MIN(left, (uint64_t)(MIN(bytes.length, (size_t)PIECE_BYTES) / width));
        if (n == 0) break;
        TRY(add_ids(r, bytes.text, n));
        reader_consume(r->in, n * width);
        left -= n;
        tokenize_say_how_far(r->job, r->in);
    }
    TRY(check_type(r));
    span rest;
    TRY(reader_peek(r->in, 1, &rest));
    if (r->n_ids != UINT64_MAX && (r->n_read < r->n_ids || rest.length > 0))
        return ERR(ERR_INPUT,
                   "%s: found %s than the %llu ids of its header, expected exactly those; copy or download it again",
                   r->in->path, r->n_read < r->n_ids ? "less" : "more", (unsigned long long)r->n_ids);
    if (rest.length > 0)
        return ERR(ERR_INPUT, "%s: found %zu bytes behind the last id, expected a multiple of %zu (%s)", r->in->path,
                   rest.length, width, r->type->name);
    return OK;
}

status tokenize_ids(tokenize_job *j, reader *in, store_builder *out) {
    id_reader r = {.job = j, .in = in, .out = out, .n_ids = UINT64_MAX};
    span head;
    TRY(reader_peek(in, 6, &head));
    bool is_npy = head.length >= 6 && memcmp(head.text, "\x93NUMPY", 6) == 0;
    TRY(is_npy || str_ends_with(in->path, ".npy") ? read_npy_header(&r) : read_bin_header(&r));
    r.ids = mem_alloc(PIECE_BYTES * sizeof *r.ids);
    status rc = read_ids(&r);
    free(r.ids);
    TRY(rc);
    if (r.n_in_document == 0 && out->store->n_documents == 0)
        return ERR(ERR_INPUT, "%s: found no token, expected ids to train on", in->path);
    if (out->store->n_documents == 0) {
        out->store->is_text = true;
        store_end_document(out);
        return OK;
    }
    if (r.has_end) return store_document_end(&r);
    store_end_document(out);
    return OK;
}
