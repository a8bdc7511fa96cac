/* load.c - stream parameters from files into the program.
 *
 * First match.c finds the tensor of every part, and reports all problems in one message; then one tensor at a time
 * goes mapped file -> fp32 rows -> parameter dtype -> arena. Packed parameters are filled part by part, and files that
 * hold (in, out) are transposed in small tiles while they are read. Only a block of rows is held, and mapped pages are
 * released after reading, so loading a model takes little more memory than the model. */
#include "weights/load.h"
#include "weights/file_tensor.h"
#include "weights/match.h"
#include "weights/params.h"

#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

#define INDEX_MAX_BYTES (64u << 20)
#define MOST_SHARDS 4096
#define HEADERS_MAX_BYTES 100000000u /* of all shards together: as much as one file may have */
enum {
    BLOCK_MOST = 1 << 20, /* elements converted before they are written to their place */
    BLOCK_LEAST = 1 << 16,
    TASK_ELEMENTS = 16384,
    TILE = 16, /* file rows turned at once: 64 bytes of each parameter row */
};

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Many names may point to one file with a large header, and each costs memory. */
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

/* A download that stopped has the index and not yet every file. */
static status check_there(const char *dir, const char *name, const char *index_path) {
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", dir, name);
    bool there = access(path.text, F_OK) == 0;
    strbuf_fini(&path);
    if (there) return OK;
    return ERR(
        ERR_INPUT,
        "%s: found no file %s in %s, expected every file that weight_map names; finish the download: hf download "
        "NAME --local-dir %s",
        index_path, name, dir, dir);
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
            TRY_GOTO(rc, check_there(dir, name, index_path), done);
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

static bool holds(const char *dir, const char *name, arena *memory) {
    return access(arena_format(memory, "%s/%s", dir, name), F_OK) == 0;
}

/* Meta publishes pickles, which can run any program when they are opened. */
static status refuse_pickle(const char *dir, const char *name) {
    return ERR(ERR_INPUT,
               "%s: %s is a pickle, which is not read; convert it once, where torch is installed: python3 -c \"import "
               "torch; from safetensors.torch import save_file; save_file(torch.load('%s', map_location='cpu', "
               "weights_only=True), 'consolidated.safetensors')\"",
               dir, name, name);
}

/* One file, whichever of these it is; false in *found: none. Meta cuts large models into several, each with a part of every tensor. */
static status open_single(weight_files *w, const char *dir, arena *memory, bool *found) {
    static const char *const names[] = {"model.safetensors", "consolidated.safetensors", "consolidated.00.safetensors"};
    static const char *const pickles[] = {"consolidated.pth", "consolidated.00.pth"};
    size_t capacity = 0;
    *found = true;
    if (holds(dir, "consolidated.01.safetensors", memory))
        return ERR(ERR_INPUT,
                   "%s: consolidated.01.safetensors is one of several parts of each tensor, which are not joined; use "
                   "the model's Hugging Face directory",
                   dir);
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (holds(dir, names[i], memory)) return open_one(w, &capacity, dir, names[i]);
    *found = false;
    for (size_t i = 0; i < ARRAY_LENGTH(pickles) && !holds(dir, "model.safetensors.index.json", memory); i++)
        if (holds(dir, pickles[i], memory)) return refuse_pickle(dir, pickles[i]);
    return OK;
}

static status refuse_without(const char *dir, arena *memory) {
    const char *what = "for random weights set model.init=random";
    glob_t shards;
    if (holds(dir, "pytorch_model.bin", memory) || holds(dir, "pytorch_model.bin.index.json", memory))
        what = "pytorch_model.bin is not read: save the model again with transformers, which writes safetensors";
    else if (glob(arena_format(memory, "%s/model-*-of-*.safetensors", dir), 0, NULL, &shards) == 0) {
        what = "there are shards, which the index joins: finish the download (hf download NAME --local-dir DIR)";
        globfree(&shards);
    }
    return ERR(ERR_INPUT,
               "%s: found no model.safetensors and no model.safetensors.index.json, expected one of them; %s", dir,
               what);
}

bool weights_are_in(const char *dir) {
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));)
        found = strstr(e->d_name, ".safetensors") || str_starts_with(e->d_name, "pytorch_model") ||
                str_ends_with(e->d_name, ".pth");
    if (d) closedir(d);
    return found;
}

static status open_any(weight_files *w, const char *dir, arena *memory) {
    const char *index_path = arena_format(memory, "%s/model.safetensors.index.json", dir);
    bool found;
    TRY(open_single(w, dir, memory, &found));
    if (found) return OK;
    if (access(index_path, F_OK) != 0) return refuse_without(dir, memory);
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

/* ---- moving ------------------------------------------------------------------------------------------------------ */

typedef struct mover {
    exec *e;
    const plan *p;
    size_t param;
    bool master; /* it has one */
    dtype type;  /* of the parameter */
    const safetensor *source;
    const param_part *part;
    bool transposed;       /* the file is (columns, rows) */
    int64_t rows, columns; /* of the part */
    int64_t row, n;        /* the block in progress */
    float *wide;           /* (n, columns) */
    void *narrow;          /* the same in the parameter's dtype; NULL for fp32 */
} mover;

static void narrow_elements(const mover *m, int64_t first, int64_t n) {
    if (!m->narrow) return;
    tensor_convert((char *)m->narrow + (size_t)first * dtype_bytes(m->type), m->type, m->wide + first, DTYPE_F32,
                   (size_t)n);
}

static void plain_task(void *context, int64_t task, int thread) {
    const mover *m = context;
    int64_t first = task * TASK_ELEMENTS, n = MIN((int64_t)TASK_ELEMENTS, m->n * m->columns - first);
    file_part_read(m->source, m->part, m->columns, m->row * m->columns + first, m->wide + first, n);
    narrow_elements(m, first, n);
}

/* TILE file rows of up to 64 elements become 64 runs of TILE elements: both sides move whole cache lines. */
enum { TRANSPOSE_ROWS = 64 };
static void transposed_task(void *context, int64_t task, int thread) {
    const mover *m = context;
    float tile[TILE][TRANSPOSE_ROWS];
    int64_t first = task * TRANSPOSE_ROWS, n = MIN((int64_t)TRANSPOSE_ROWS, m->n - first);
    for (int64_t c = 0; c < m->columns; c += TILE) {
        int64_t w = MIN((int64_t)TILE, m->columns - c);
        for (int64_t k = 0; k < w; k++) file_tensor_read(m->source, (c + k) * m->rows + m->row + first, tile[k], n);
        for (int64_t r = 0; r < n; r++)
            for (int64_t k = 0; k < w; k++) m->wide[(first + r) * m->columns + c + k] = tile[k][r];
    }
    narrow_elements(m, first * m->columns, n * m->columns);
}

static void read_rows(mover *m) {
    if (m->transposed) exec_parallel(m->e, transposed_task, m, divide_up(m->n, TRANSPOSE_ROWS));
    else exec_parallel(m->e, plain_task, m, divide_up(m->n * m->columns, TASK_ELEMENTS));
}

/* Pages of the block that was read; those of a transposed file are needed again by the next one. */
static void release_rows(const mover *m) {
    size_t width = dtype_bytes(m->source->type);
    if (m->transposed) return;
    file_tensor_release(m->source, (size_t)(m->row * m->columns) * width,
                        (size_t)((m->row + m->n) * m->columns) * width);
}

static void move_part(mover *m, int64_t first_row, int64_t block_rows) {
    for (m->row = 0; m->row < m->rows; m->row += block_rows) {
        m->n = MIN(block_rows, m->rows - m->row);
        int64_t n = m->n * m->columns, at = (first_row + m->row) * m->columns;
        if (!param_cut_next(&m->p->net.params[m->param].cut, at, at + n, &(param_run){0})) continue; /* other ranks' */
        read_rows(m);
        params_write_whole(m->e, m->p, m->param, false, at, n, m->narrow ? m->narrow : (void *)m->wide);
        if (m->master) params_write_whole(m->e, m->p, m->param, true, at, n, m->wide);
        release_rows(m);
    }
    file_tensor_release(m->source, 0, m->source->n_bytes);
}

/* Rows of a parameter from the files of its parts. */
typedef struct file_rows {
    mover m;
    const safetensor *const *sources; /* of its parts */
} file_rows;

static void quantize_rows(void *context, int64_t first, int64_t n, float *out) {
    file_rows *r = context;
    mover *m = &r->m;
    const net_param *q = &m->p->net.params[m->param];
    int k = 0;
    while (first >= q->parts[k].first_row + q->parts[k].n_rows) k++; /* never rows of two */
    m->source = r->sources[k];
    m->part = &q->parts[k];
    m->rows = q->parts[k].n_rows;
    m->row = first - q->parts[k].first_row;
    m->n = n;
    m->wide = out;
    read_rows(m);
    release_rows(m);
    if (m->row + n == m->rows) file_tensor_release(m->source, 0, m->source->n_bytes);
}

/* A block is a small part of the largest tensor, so that its buffers stay small beside it, and at least one row. */
static int64_t block_elements(const plan *p) {
    int64_t largest = 0, widest = 0;
    for (size_t i = 0; i < p->net.n_params; i++) {
        const shape *s = &p->net.params[i].cut.whole;
        largest = MAX(largest, shape_count(s));
        widest = MAX(widest, s->rank == 2 ? s->dim[1] : 1);
    }
    return MAX(widest, MIN((int64_t)BLOCK_MOST, MAX((int64_t)BLOCK_LEAST, largest / 8)));
}

status weights_move(exec *e, const plan *p, const safetensor *const *sources, base_hash *hash) {
    status rc = OK;
    int64_t block = block_elements(p);
    float *wide = mem_alloc((size_t)block * sizeof *wide);
    void *narrow = mem_alloc((size_t)block * 2);
    for (size_t i = 0; i < p->net.n_params && rc == OK; i++) {
        const net_param *q = &p->net.params[i];
        const value *v = program_get(&p->program, q->value);
        mover m = {.e = e,
                   .p = p,
                   .param = i,
                   .master = p->step.masters[i] != NO_VALUE,
                   .type = v->type,
                   .wide = wide,
                   .narrow = v->type == DTYPE_F32 ? NULL : narrow,
                   .columns = q->shape.rank == 2 ? q->cut.whole.dim[1] : 1};
        m.transposed = q->transposed && q->shape.rank == 2;
        if (quantized_is(p, i)) {
            file_rows from = {.m = m, .sources = sources};
            from.m.narrow = NULL;
            if (*sources) rc = quantized_write(e, p, i, quantize_rows, &from, hash);
            sources += q->n_parts;
            continue;
        }
        for (int k = 0; k < q->n_parts; k++) {
            if (!(m.source = *sources++)) continue;
            m.part = &q->parts[k];
            m.rows = q->parts[k].n_rows;
            move_part(&m, q->parts[k].first_row, MAX((int64_t)1, block / m.columns));
        }
    }
    free(wide);
    free(narrow);
    return rc;
}

/* e NULL: only checks. prefix NULL: the parameters of the frozen copy alone. */
static status load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix,
                   base_hash *hash) {
    const safetensor **sources = mem_alloc(match_part_count(&p->net) * sizeof *sources);
    status rc = prefix ? match_weights(&p->net, files, n_files, prefix, sources)
                       : match_reference(&p->net, files, n_files, sources);
    if (rc == OK && e) rc = weights_move(e, p, sources, hash);
    free(sources);
    return rc;
}

static status load_dir(exec *e, const plan *p, const char *dir, const char *prefix, base_hash *hash) {
    weight_files w;
    TRY(weight_files_open(&w, dir));
    status rc = load(e, p, w.files, w.n_files, prefix, hash);
    weight_files_close(&w);
    return rc;
}

status weights_load(exec *e, const plan *p, const safetensors *files, size_t n_files, const char *prefix) {
    TRY(load(e, p, files, n_files, prefix, NULL));
    return OK;
}

status weights_load_dir(exec *e, const plan *p, const char *dir) {
    TRY(load_dir(e, p, dir, "", NULL));
    return OK;
}

status weights_load_base(exec *e, const plan *p, const char *dir, base_hash *hash) {
    TRY(load_dir(e, p, dir, "", hash));
    return OK;
}

status weights_check_dir(const plan *p, const char *dir) {
    TRY(load_dir(NULL, p, dir, "", NULL));
    return OK;
}

/* The error of a directory that is no model says which setting named it. */
static status read_reference_config(model_config *c, const char *dir) {
    error_record e;
    if (model_config_read(c, dir) == OK) return OK;
    error_take(&e);
    return ERR(e.code, "rho1.reference: %s", e.message);
}

status weights_check_reference(const model_config *m, const char *dir) {
    model_config c;
    TRY(read_reference_config(&c, dir));
    if (c.vocab != m->vocab)
        return ERR(
            ERR_INPUT,
            "rho1.reference: %s has a vocabulary of %lld, the model one of %lld; both must read the same tokens: "
            "give a model with the same tokenizer",
            dir, (long long)c.vocab, (long long)m->vocab);
    if (c.meta_files != m->meta_files)
        return ERR(ERR_INPUT,
                   "rho1.reference: %s is laid out as %s has it, the model as %s: expected both alike; export the "
                   "reference once more",
                   dir, c.meta_files ? "Meta" : "Hugging Face", m->meta_files ? "Meta" : "Hugging Face");
    if (c.family != m->family || model_main_layers(&c) != model_main_layers(m) || c.hidden != m->hidden ||
        c.ffn != m->ffn)
        return ERR(
            ERR_INPUT,
            "rho1.reference: %s is %s of %lld layers, hidden %lld, ffn %lld; expected %s of %lld layers, hidden %lld, "
            "ffn %lld, as the model",
            dir, model_family_traits(c.family)->name, (long long)model_main_layers(&c), (long long)c.hidden,
            (long long)c.ffn, model_family_traits(m->family)->name, (long long)model_main_layers(m),
            (long long)m->hidden, (long long)m->ffn);
    return OK;
}

/* Sizes first: a list of misshapen tensors would not say that it is another model. */
status weights_load_reference(exec *e, const plan *p, const char *dir) {
    TRY(weights_check_reference(model_of(&p->request.source), dir));
    TRY(load_dir(e, p, dir, NULL, NULL));
    return OK;
}
