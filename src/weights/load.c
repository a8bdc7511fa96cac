/* load.c - stream parameters from files to their place.
 *
 * First every name, shape and dtype is checked, and what is wrong is told in one message; then one tensor at a time goes
 * mapped file -> fp32 rows -> parameter dtype -> arena. Packed parameters are filled part by part, and files that hold
 * (in, out) are turned in small tiles while they are read. Nothing larger than a block of rows is held, and the mapped
 * pages behind the reader are given back, so loading a model takes hardly more memory than the model.
 * Views into a file have no alignment, so elements are copied out before they are converted. */
#include "weights/load.h"
#include "weights/params.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define INDEX_MAX_BYTES (64u << 20)
#define MOST_SHARDS 4096
#define HEADERS_MAX_BYTES 100000000u /* of all shards together: as much as one file may have */
#define MOST_NAMED 10                /* problems told by name; the rest is counted */
enum {
    BLOCK_MOST = 1 << 20, /* elements converted before they are written to their place */
    BLOCK_LEAST = 1 << 16,
    TASK_ELEMENTS = 16384,
    PIECE = 1024, /* elements copied to aligned memory at once */
    TILE = 16,    /* file rows turned at once: 64 bytes of each parameter row */
    COMPARE_BYTES = 4 << 20,
};

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Many names may lead to one file with a large header, and each costs memory. */
static status count_header(weight_files *w, const safetensors *st) {
    if ((w->header_bytes += safetensors_header_bytes(st)) <= HEADERS_MAX_BYTES) return OK;
    return ERR(ERR_INPUT, "%s: the headers of %zu weight files take %zu bytes, expected at most %u in all", st->path,
               w->n_files, w->header_bytes, HEADERS_MAX_BYTES);
}

static status open_one(weight_files *w, size_t *capacity, const char *dir, const char *name) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", dir, name);
    w->files = array_grow(w->files, capacity, w->n_files + 1, sizeof *w->files);
    status rc = safetensors_open(&w->files[w->n_files], path.text);
    strbuf_fini(&path);
    if (rc != OK) return error_trail(rc, __FILE__, __LINE__, __func__);
    return count_header(w, &w->files[w->n_files++]);
}

/* weight_map: {tensor: file}. Every shard is opened once, and must hold what the index says it holds. */
static status open_shards(weight_files *w, const char *dir, const char *index_path, const json_t *index) {
    const json_t *map = json_object_get(index, "weight_map");
    json_t *opened = json_object(), *file;
    const char *tensor;
    size_t capacity = 0;
    status rc = OK;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        rc = ERR(ERR_INPUT, "%s: key 'weight_map': found %s, expected an object that maps tensors to files", index_path,
                 map ? "something else" : "nothing");
        goto done;
    }
    json_object_foreach((json_t *)map, tensor, file) {
        const char *name = json_string_value(file);
        if (!name || !*name || strchr(name, '/') || name[0] == '.') {
            rc = ERR(ERR_INPUT,
                     "%s: weight_map: tensor '%.100s': found '%.200s', expected the plain name of a file in %s",
                     index_path, tensor, name ? name : "(no string)", dir);
            goto done;
        }
        const json_t *at = json_object_get(opened, name);
        if (!at) {
            if (w->n_files == MOST_SHARDS) {
                rc = ERR(ERR_INPUT, "%s: found more than %d files, expected fewer", index_path, MOST_SHARDS);
                goto done;
            }
            TRY_GOTO(rc, open_one(w, &capacity, dir, name), done);
            json_object_set_new(opened, name, json_integer((json_int_t)w->n_files - 1));
            at = json_object_get(opened, name);
        }
        const safetensors *st = &w->files[json_integer_value(at)];
        if (!safetensors_find(st, tensor)) {
            rc = ERR(ERR_INPUT, "%s: tensor '%.200s' is missing, %s says it is here", st->path, tensor, index_path);
            goto done;
        }
    }
done:
    json_decref(opened);
    return rc;
}

static status open_any(weight_files *w, const char *dir, arena *memory) {
    const char *single = arena_format(memory, "%s/model.safetensors", dir);
    const char *index_path = arena_format(memory, "%s/model.safetensors.index.json", dir);
    size_t capacity = 0;
    if (access(single, F_OK) == 0) return open_one(w, &capacity, dir, "model.safetensors");
    if (access(index_path, F_OK) != 0) {
        bool pickled = access(arena_format(memory, "%s/pytorch_model.bin", dir), F_OK) == 0 ||
                       access(arena_format(memory, "%s/pytorch_model.bin.index.json", dir), F_OK) == 0;
        return ERR(
            ERR_INPUT, "%s: found no model.safetensors and no model.safetensors.index.json, expected one of them%s",
            dir,
            pickled
                ? "; pytorch_model.bin is not read: save the model again with transformers, which writes safetensors"
                : "; for random weights set model.init=random");
    }
    json_t *index;
    TRY(json_read_file(index_path, INDEX_MAX_BYTES, &index));
    status rc = open_shards(w, dir, index_path, index);
    json_decref(index);
    return rc;
}

status weight_files_open(weight_files *w, const char *dir) {
    arena memory;
    *w = (weight_files){0};
    arena_init(&memory);
    status rc = open_any(w, dir, &memory);
    arena_fini(&memory);
    if (rc == OK) return OK;
    weight_files_close(w);
    return error_trail(rc, __FILE__, __LINE__, __func__);
}

void weight_files_close(weight_files *w) {
    for (size_t i = 0; i < w->n_files; i++) safetensors_close(&w->files[i]);
    free(w->files);
    *w = (weight_files){0};
}

/* ---- mapped pages ------------------------------------------------------------------------------------------------ */

/* Gives the mapped pages of these bytes back. Whole pages only at the end; at the start a neighbour's page may go too,
 * which costs reading it again and no more. */
static void forget(const safetensor *t, size_t from, size_t to) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)t->data;
    uintptr_t start = (base + from) & ~(page - 1), end = (base + to) & ~(page - 1);
    if (end > start) madvise((void *)start, end - start, MADV_DONTNEED); /* advice: refusal costs memory only */
}

/* ---- which tensor is which --------------------------------------------------------------------------------------- */

typedef struct matcher {
    const plan *p;
    const safetensors *files;
    size_t n_files;
    const char *prefix;
    bool **used; /* per file, per tensor */
    strbuf problems;
    size_t n_problems;
} matcher;

static void complain(matcher *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void complain(matcher *m, const char *fmt, ...) {
    if (m->n_problems++ >= MOST_NAMED) return;
    char line[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    strbuf_printf(&m->problems, "\n  %.160s", line);
}

/* "model." of model.layers.0...; files of the bare decoder, the published GPT-2 among them, leave it out. */
static const char *family_prefix(const matcher *m) {
    return model_family_traits(m->p->model.config.family)->names->prefix;
}

static const safetensor *find_exact(const matcher *m, const char *name) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", m->prefix, name);
    for (size_t i = 0; i < m->n_files; i++) {
        const safetensor *t = safetensors_find(&m->files[i], full);
        if (!t) continue;
        m->used[i][t - m->files[i].tensors] = true;
        return t;
    }
    return NULL;
}

static const safetensor *find(const matcher *m, const char *name) {
    const safetensor *t = find_exact(m, name);
    if (!t && str_starts_with(name, family_prefix(m))) t = find_exact(m, name + strlen(family_prefix(m)));
    return t;
}

static shape part_shape(const model_param *q, const param_part *part) {
    const shape *s = &q->cut.whole;
    if (s->rank == 1) return SHAPE(part->n_rows);
    return q->transposed ? SHAPE(s->dim[1], part->n_rows) : SHAPE(part->n_rows, s->dim[1]);
}

static const safetensor *match_part(matcher *m, const model_param *q, const param_part *part) {
    char a[64], b[64];
    const safetensor *t = find(m, part->file_name);
    /* A tied model has one matrix under two names: a file may hold either. */
    if (!t && q->number == 0 && m->p->model.config.tied) t = find_exact(m, "lm_head.weight");
    shape want = part_shape(q, part);
    if (!t) complain(m, "%s is missing", part->file_name);
    else if (!shape_equal(&t->shape, &want))
        complain(m, "%s has shape %s, expected %s", part->file_name, shape_format(a, &t->shape),
                 shape_format(b, &want));
    else if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        complain(m, "%s is %s, expected fp32, bf16 or fp16", part->file_name, dtype_name(t->type));
    else return t;
    return NULL;
}

static bool is_buffer(const char *name) {
    return str_ends_with(name, ".attn.bias") || str_ends_with(name, ".attn.masked_bias") ||
           str_ends_with(name, "rotary_emb.inv_freq");
}

static bool same_bytes(const safetensor *a, const safetensor *b) {
    bool same = true;
    for (size_t at = 0; at < a->n_bytes && same; at += COMPARE_BYTES) {
        size_t end = MIN(a->n_bytes, at + COMPARE_BYTES);
        same = memcmp((const char *)a->data + at, (const char *)b->data + at, end - at) == 0;
        forget(a, at, end);
        forget(b, at, end);
    }
    return same;
}

/* A tied model's file may hold its embedding a second time, as lm_head.weight. Another matrix under that name would be
 * lost silently: transformers would use it. */
static void match_head(matcher *m, const safetensor *embedding) {
    const safetensor *head = m->p->model.config.tied ? find_exact(m, "lm_head.weight") : NULL;
    if (!head || !embedding || head == embedding) return;
    if (!shape_equal(&head->shape, &embedding->shape) || head->type != embedding->type || !same_bytes(head, embedding))
        complain(m, "lm_head.weight is not the embedding, though tie_word_embeddings is true");
}

static void match_rest(matcher *m) {
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t k = 0; k < m->files[i].n_tensors; k++) {
            const char *name = m->files[i].tensors[k].name;
            if (m->used[i][k] || !str_starts_with(name, m->prefix) || is_buffer(name)) continue;
            complain(m, "%.120s is not part of this model", name);
        }
}

/* Fills sources: one tensor per part, in the order of parameters and parts. What other stages of a pipeline have is looked for
 * too: a file is the whole model's or it is refused, on every rank. */
static status match(const plan *p, const safetensors *files, size_t n_files, const char *prefix,
                    const safetensor **sources) {
    matcher m = {.p = p, .files = files, .n_files = n_files, .prefix = prefix};
    m.used = mem_alloc(n_files * sizeof *m.used);
    for (size_t i = 0; i < n_files; i++) m.used[i] = mem_alloc(files[i].n_tensors + 1);
    strbuf_init(&m.problems);
    size_t n = 0;
    const safetensor *embedding = NULL;
    for (size_t i = 0; i < p->model.n_all_params; i++) {
        const model_param *q = &p->model.params[i];
        for (int k = 0; k < q->n_parts; k++) sources[n++] = match_part(&m, q, &q->parts[k]);
        if (q->number == 0) embedding = sources[n - 1];
    }
    match_head(&m, embedding);
    match_rest(&m);
    status rc = OK;
    if (m.n_problems) {
        char more[64] = "";
        if (m.n_problems > MOST_NAMED) snprintf(more, sizeof more, "\n  and %zu more", m.n_problems - MOST_NAMED);
        rc = ERR(ERR_INPUT, "%s%s does not hold the weights of %s:%s%s", n_files ? files[0].path : "no file",
                 n_files > 1 ? " and its neighbours" : "", p->model.config.name, m.problems.text, more);
    }
    strbuf_fini(&m.problems);
    for (size_t i = 0; i < n_files; i++) free(m.used[i]);
    free(m.used);
    return rc;
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

typedef struct mover {
    exec *e;
    const plan *p;
    size_t param;
    bool master; /* it has one */
    dtype type;  /* of the parameter */
    const safetensor *source;
    bool turned;           /* the file is (columns, rows) */
    int64_t rows, columns; /* of the part */
    int64_t row, n;        /* the block under way */
    float *wide;           /* (n, columns) */
    void *narrow;          /* the same in the parameter's dtype; NULL for fp32 */
} mover;

/* n elements of the file, from element `first`. */
static void copy_elements(const mover *m, int64_t first, float *out, int64_t n) {
    uint64_t raw[PIECE / 2]; /* aligned, and large enough for PIECE fp32 */
    size_t width = dtype_bytes(m->source->type);
    for (int64_t at = 0; at < n; at += PIECE) {
        size_t k = (size_t)MIN(n - at, (int64_t)PIECE);
        const char *from = (const char *)m->source->data + (size_t)(first + at) * width;
        if (m->source->type == DTYPE_F32) {
            memcpy(out + at, from, k * width);
        } else {
            memcpy(raw, from, k * width);
            tensor_convert(out + at, DTYPE_F32, raw, m->source->type, k);
        }
    }
}

static void narrow_elements(const mover *m, int64_t first, int64_t n) {
    if (!m->narrow) return;
    tensor_convert((char *)m->narrow + (size_t)first * dtype_bytes(m->type), m->type, m->wide + first, DTYPE_F32,
                   (size_t)n);
}

static void straight_task(void *context, int64_t task, int thread) {
    const mover *m = context;
    int64_t first = task * TASK_ELEMENTS, n = MIN((int64_t)TASK_ELEMENTS, m->n * m->columns - first);
    copy_elements(m, m->row * m->columns + first, m->wide + first, n);
    narrow_elements(m, first, n);
}

/* TILE file rows of up to 64 elements become 64 runs of TILE elements: both sides move whole cache lines. */
enum { TURN_ROWS = 64 };
static void turned_task(void *context, int64_t task, int thread) {
    const mover *m = context;
    float tile[TILE][TURN_ROWS];
    int64_t first = task * TURN_ROWS, n = MIN((int64_t)TURN_ROWS, m->n - first);
    for (int64_t c = 0; c < m->columns; c += TILE) {
        int64_t w = MIN((int64_t)TILE, m->columns - c);
        for (int64_t k = 0; k < w; k++) copy_elements(m, (c + k) * m->rows + m->row + first, tile[k], n);
        for (int64_t r = 0; r < n; r++)
            for (int64_t k = 0; k < w; k++) m->wide[(first + r) * m->columns + c + k] = tile[k][r];
    }
    narrow_elements(m, first * m->columns, n * m->columns);
}

static void move_part(mover *m, int64_t first_row, int64_t block_rows) {
    size_t width = dtype_bytes(m->source->type);
    for (m->row = 0; m->row < m->rows; m->row += block_rows) {
        m->n = MIN(block_rows, m->rows - m->row);
        int64_t n = m->n * m->columns, at = (first_row + m->row) * m->columns;
        if (!param_cut_next(&m->p->model.params[m->param].cut, at, at + n, &(param_run){0}))
            continue; /* other ranks' */
        if (m->turned) exec_parallel(m->e, turned_task, m, divide_up(m->n, TURN_ROWS));
        else exec_parallel(m->e, straight_task, m, divide_up(n, TASK_ELEMENTS));
        params_write_whole(m->e, m->p, m->param, false, at, n, m->narrow ? m->narrow : (void *)m->wide);
        if (m->master) params_write_whole(m->e, m->p, m->param, true, at, n, m->wide);
        if (!m->turned)
            forget(m->source, (size_t)(m->row * m->columns) * width, (size_t)((m->row + m->n) * m->columns) * width);
    }
    forget(m->source, 0, m->source->n_bytes);
}

/* A block is a small part of the largest tensor, so that its buffers stay small beside it, and at least one row. */
static int64_t block_elements(const plan *p) {
    int64_t largest = 0, widest = 0;
    for (size_t i = 0; i < p->model.n_params; i++) {
        const shape *s = &p->model.params[i].cut.whole;
        largest = MAX(largest, shape_count(s));
        widest = MAX(widest, s->rank == 2 ? s->dim[1] : 1);
    }
    return MAX(widest, MIN((int64_t)BLOCK_MOST, MAX((int64_t)BLOCK_LEAST, largest / 8)));
}

static void move_all(exec *e, const plan *p, const safetensor *const *sources) {
    int64_t block = block_elements(p);
    float *wide = mem_alloc((size_t)block * sizeof *wide);
    void *narrow = mem_alloc((size_t)block * 2);
    for (size_t i = 0; i < p->model.n_params; i++) {
        const model_param *q = &p->model.params[i];
        const value *v = program_get(&p->program, q->value);
        mover m = {.e = e,
                   .p = p,
                   .param = i,
                   .master = p->step.masters[i] != NO_VALUE,
                   .type = v->type,
                   .wide = wide,
                   .narrow = v->type == DTYPE_F32 ? NULL : narrow,
                   .columns = q->shape.rank == 2 ? q->cut.whole.dim[1] : 1};
        m.turned = q->transposed && q->shape.rank == 2;
        for (int k = 0; k < q->n_parts; k++) {
            m.source = *sources++;
            m.rows = q->parts[k].n_rows;
            move_part(&m, q->parts[k].first_row, MAX((int64_t)1, block / m.columns));
        }
    }
    free(wide);
    free(narrow);
}

/* e NULL: only looks. */
static status load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix) {
    size_t n_parts = 0;
    for (size_t i = 0; i < p->model.n_all_params; i++) n_parts += (size_t)p->model.params[i].n_parts;
    const safetensor **sources = mem_alloc(n_parts * sizeof *sources);
    status rc = match(p, files, n_files, prefix, sources);
    if (rc == OK && e) move_all(e, p, sources);
    free(sources);
    return rc;
}

static status load_dir(exec *e, const plan *p, const char *dir) {
    weight_files w;
    TRY(weight_files_open(&w, dir));
    status rc = load(e, p, w.files, w.n_files, "");
    weight_files_close(&w);
    return rc;
}

status weights_load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix) {
    TRY(load(e, p, files, n_files, prefix));
    return OK;
}

status weights_load_dir(exec *e, const plan *p, const char *dir) {
    TRY(load_dir(e, p, dir));
    return OK;
}

status weights_check_dir(const plan *p, const char *dir) {
    TRY(load_dir(NULL, p, dir));
    return OK;
}
