/* export.c - write a trained model as a directory that transformers loads.
 *
 * Everything goes to DIR.tmp.<pid>.<n> beside DIR, is flushed, and is renamed: DIR is complete or does not exist. The
 * next export to the same DIR removes leftovers of a killed one.
 * Weights come from a checkpoint's mapped files or from the running program, a block of rows at a time, always as
 * fp32 and rounded once to the requested dtype. bf16 and fp16 runs have fp32 masters, whose rounding is the
 * parameter itself, so the masters are right for every dtype. A number that fp16 cannot hold is refused by name: it
 * would be written as infinity. */
#include "weights/export.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARD_BYTES 5000000000ull /* what transformers 4 calls 5GB */
enum { BLOCK_ELEMENTS = 1 << 20, TILE = 16 };

/* ---- where the numbers come from --------------------------------------------------------------------------------- */

/* Elements [first, first + n) of parameter i as fp32. begin makes sure that all of it can be read. */
typedef struct source {
    const program *g;
    const model *m;
    exec *e; /* the running program ... */
    const plan *p;
    const checkpoint_reader *r; /* ... or a checkpoint */
    checkpoint_found found;     /* of the parameter in progress */
    void *raw;                  /* BLOCK_ELEMENTS or one row, whichever is more */
} source;

static status source_begin(source *s, size_t i) {
    if (s->e) return OK;
    const model_param *q = &s->m->params[i];
    TRY(checkpoint_param_find(s->r, q->name, &program_get(s->g, q->value)->shape, &s->found));
    return OK;
}

static void source_read(source *s, size_t i, int64_t first, int64_t n, float *out) {
    value_id v = NO_VALUE;
    dtype t = s->found.type;
    if (s->e) {
        v = s->p->step.masters[i] ? s->p->step.masters[i] : s->m->params[i].value;
        t = program_get(s->g, v)->type;
    }
    size_t width = dtype_bytes(t);
    if (s->e) exec_read(s->e, v, (size_t)first * width, s->raw, (size_t)n * width);
    else checkpoint_reader_read(s->r, &s->found, (uint64_t)first * width, s->raw, (size_t)n * width);
    tensor_convert(out, DTYPE_F32, s->raw, t, (size_t)n);
}

static void source_end(source *s) {
    if (!s->e) checkpoint_reader_forget(s->r, &s->found);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

typedef struct item { /* one tensor of the files */
    size_t param;
    int part, shard;
} item;

typedef struct exporter {
    source from;
    dtype type;
    const char *dir;                  /* the temporary one */
    const tokenizer_files *tokenizer; /* NULL: none */
    item *items;
    safetensors_entry *entries;
    size_t n_items;
    int n_shards;
    float *wide, *transposed;
    void *narrow;
    int64_t block;
    export_report *report;
    arena memory;
} exporter;

static void list_items(exporter *x, uint64_t shard_bytes) {
    const model *m = x->from.m;
    size_t n = 0;
    for (size_t i = 0; i < m->n_params; i++) n += (size_t)m->params[i].n_parts;
    x->items = arena_array(&x->memory, item, n);
    x->entries = arena_array(&x->memory, safetensors_entry, n);
    uint64_t in_shard = 0;
    x->block = BLOCK_ELEMENTS;
    for (size_t i = 0; i < m->n_params; i++) {
        const model_param *q = &m->params[i];
        const shape *s = &program_get(x->from.g, q->value)->shape;
        if (s->rank == 2) x->block = MAX(x->block, s->dim[1]);
        for (int k = 0; k < q->n_parts; k++) {
            int64_t rows = q->parts[k].n_rows;
            shape out = s->rank == 1 ? SHAPE(rows) : q->transposed ? SHAPE(s->dim[1], rows) : SHAPE(rows, s->dim[1]);
            uint64_t n_bytes = shape_bytes(&out, x->type);
            if (in_shard > 0 && in_shard + n_bytes > shard_bytes) {
                x->n_shards++;
                in_shard = 0;
            }
            in_shard += n_bytes;
            x->report->n_bytes += n_bytes;
            x->report->n_parameters += (uint64_t)shape_count(&out);
            x->entries[x->n_items] = (safetensors_entry){q->parts[k].file_name, x->type, out};
            x->items[x->n_items++] = (item){i, k, x->n_shards};
        }
    }
    x->report->n_files = ++x->n_shards;
}

static const char *shard_name(exporter *x, int shard) {
    if (x->n_shards == 1) return "model.safetensors";
    return arena_format(&x->memory, "model-%05d-of-%05d.safetensors", shard + 1, x->n_shards);
}

/* Rounds n elements into x->narrow. */
static status narrow_elements(exporter *x, const float *from, int64_t n, const char *name) {
    if (x->type == DTYPE_F16)
        for (int64_t i = 0; i < n; i++)
            if (isfinite(from[i]) && fabsf(from[i]) >= 65520.0f) /* from here on fp16 rounds to infinity */
                return ERR(ERR_RUN, "tensor '%s' holds %g, which fp16 cannot; export it as bf16 or fp32", name,
                           (double)from[i]);
    tensor_convert(x->narrow, x->type, from, DTYPE_F32, (size_t)n);
    return OK;
}

/* (n, columns) -> (columns, n), in tiles so that both sides stay in the cache. */
static void transpose(float *out, const float *in, int64_t n, int64_t columns) {
    for (int64_t r = 0; r < n; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            for (int64_t j = c; j < MIN(c + TILE, columns); j++)
                for (int64_t i = r; i < MIN(r + TILE, n); i++) out[j * n + i] = in[i * columns + j];
}

static status write_item(exporter *x, safetensors_writer *w, size_t entry, const item *it) {
    const model_param *q = &x->from.m->params[it->param];
    const param_part *part = &q->parts[it->part];
    const shape *s = &program_get(x->from.g, q->value)->shape;
    int64_t columns = s->rank == 2 ? s->dim[1] : 1, block = x->block / columns;
    size_t width = dtype_bytes(x->type);
    bool transposed = q->transposed && s->rank == 2;
    for (int64_t row = 0; row < part->n_rows; row += block) {
        int64_t n = MIN(block, part->n_rows - row);
        source_read(&x->from, it->param, (part->first_row + row) * columns, n * columns, x->wide);
        if (x->from.e) TRY(exec_check(x->from.e));
        if (transposed) transpose(x->transposed, x->wide, n, columns);
        TRY(narrow_elements(x, transposed ? x->transposed : x->wide, n * columns, part->file_name));
        if (!transposed) {
            TRY(safetensors_writer_put(w, entry, (uint64_t)(row * columns) * width, x->narrow,
                                       (size_t)(n * columns) * width));
            continue;
        }
        for (int64_t c = 0; c < columns; c++)
            TRY(safetensors_writer_put(w, entry, (uint64_t)(c * part->n_rows + row) * width,
                                       (const char *)x->narrow + (size_t)(c * n) * width, (size_t)n * width));
    }
    return OK;
}

static status write_shard(exporter *x, size_t first, size_t end) {
    static const char *const metadata[] = {"format", "pt", NULL}; /* transformers refuses files without it */
    status rc = OK;
    safetensors_writer w;
    const char *path = arena_format(&x->memory, "%s/%s", x->dir, shard_name(x, x->items[first].shard));
    TRY(safetensors_writer_open(&w, path, x->entries + first, end - first, metadata));
    for (size_t i = first; i < end; i++) {
        const item *it = &x->items[i];
        if (it->part == 0) TRY_GOTO(rc, source_begin(&x->from, it->param), fail);
        TRY_GOTO(rc, write_item(x, &w, i - first, it), fail);
        if (it->part + 1 == x->from.m->params[it->param].n_parts) source_end(&x->from);
    }
    return safetensors_writer_close(&w);
fail:
    safetensors_writer_abort(&w);
    return rc;
}

static status write_index(exporter *x) {
    json_t *map = json_object();
    for (size_t i = 0; i < x->n_items; i++)
        json_object_set_new(map, x->entries[i].name, json_string(shard_name(x, x->items[i].shard)));
    json_t *root = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)x->report->n_parameters,
                             "total_size", (json_int_t)x->report->n_bytes, "weight_map", map);
    status rc = json_write_file(arena_format(&x->memory, "%s/model.safetensors.index.json", x->dir), root);
    json_decref(root);
    return rc;
}

static status write_weights(exporter *x, uint64_t shard_bytes) {
    list_items(x, shard_bytes ? shard_bytes : SHARD_BYTES);
    x->wide = mem_alloc((size_t)x->block * sizeof *x->wide);
    x->transposed = mem_alloc((size_t)x->block * sizeof *x->transposed);
    x->narrow = mem_alloc((size_t)x->block * sizeof(float));
    x->from.raw = mem_alloc((size_t)x->block * sizeof(float));
    status rc = OK;
    for (size_t first = 0, end; first < x->n_items && rc == OK; first = end) {
        for (end = first; end < x->n_items && x->items[end].shard == x->items[first].shard;) end++;
        rc = write_shard(x, first, end);
    }
    if (rc == OK && x->n_shards > 1) rc = write_index(x);
    free(x->wide);
    free(x->transposed);
    free(x->narrow);
    free(x->from.raw);
    return rc;
}

/* ---- the other files --------------------------------------------------------------------------------------------- */

static status write_config(const exporter *x, const json_t *description, arena *memory) {
    static const char *const names[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    json_t *config = json_copy(json_object_get(description, "config")); /* shallow: only its own members change */
    json_object_set_new(config, "dtype", json_string(names[x->type]));
    json_object_set_new(config, "torch_dtype", json_string(names[x->type])); /* transformers 4 */
    status rc = json_write_file(arena_format(memory, "%s/config.json", x->dir), config);
    json_decref(config);
    TRY(rc);
    const json_t *generation = json_object_get(description, "generation");
    if (json_is_object(generation))
        TRY(json_write_file(arena_format(memory, "%s/generation_config.json", x->dir), generation));
    return OK;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Can `dir`, which does not exist, be made? Only making one tells: root passes every permission check, and some file
 * systems refuse anyway. A test directory is made in the nearest existing directory above and removed at once. */
static status check_place(const char *dir) {
    status rc;
    int fd = -1;
    strbuf place, probe;
    strbuf_init(&place);
    strbuf_init(&probe);
    dir_nearest(dir, &place);
    strbuf_add(&place, "/.ralo");
    if (temporary_make(place.text, true, &probe, &fd) == OK) {
        rc = OK;
        rmdir(probe.text);
        close(fd);
    } else {
        error_record why;
        error_take(&why);
        rc = ERR(ERR_IO, "export to %s: cannot create the directory: %s", dir, why.message);
    }
    strbuf_fini(&place);
    strbuf_fini(&probe);
    return rc;
}

status export_check_dir(const char *setting, const char *dir) {
    if (!*dir) return ERR(ERR_INPUT, "export: the directory's name is empty");
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return check_place(dir);
    if (!d) return ERR(ERR_IO, "export to %s: %s", dir, strerror(errno));
    status rc = OK;
    for (struct dirent *entry; rc == OK && (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = setting
                     ? ERR(ERR_INPUT, "%s: %s holds files already (%s); remove it, choose another %s, or set %s=none",
                           setting, dir, entry->d_name, setting, setting)
                     : ERR(ERR_INPUT, "export to %s: it holds files already (%s), expected a new or an empty directory",
                           dir, entry->d_name);
    closedir(d);
    return rc;
}

static status fill(exporter *x, const json_t *description, uint64_t shard_bytes) {
    TRY(write_config(x, description, &x->memory));
    if (x->tokenizer) TRY(tokenizer_files_write(x->tokenizer, x->dir));
    TRY(write_weights(x, shard_bytes));
    TRY(dir_sync(x->dir));
    return OK;
}

static status publish(const char *from, const char *to, const char *parent) {
    if (rename(from, to) != 0) return ERR(ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    TRY(dir_sync(parent));
    return OK;
}

static status write_dir(exporter *x, const json_t *description, const export_options *o) {
    status rc = OK;
    error_record why;
    arena_init(&x->memory);
    size_t length = strlen(o->dir);
    while (length > 1 && o->dir[length - 1] == '/') length--;
    const char *dir = arena_format(&x->memory, "%.*s", (int)length, o->dir), *slash = strrchr(dir, '/');
    const char *parent = !slash ? "." : slash == dir ? "/" : arena_format(&x->memory, "%.*s", (int)(slash - dir), dir);
    int lock = -1;
    strbuf temporary;
    strbuf_init(&temporary);
    TRY_GOTO(rc, export_check_dir(NULL, dir), done);
    TRY_GOTO(rc, dir_make(parent), done);
    TRY_GOTO(rc, temporary_make(dir, true, &temporary, &lock), done);
    x->dir = temporary.text;
    TRY_GOTO(rc, fill(x, description, o->shard_bytes), fail);
    TRY_GOTO(rc, publish(x->dir, dir, parent), fail);
    goto done;
fail:
    error_take(&why);
    if (dir_remove_all(x->dir) != OK) log_warn("%s", error_message());
    rc = error_give(&why);
done:
    if (lock >= 0) close(lock);
    strbuf_fini(&temporary);
    arena_fini(&x->memory);
    return rc;
}

/* The files that the user named, or those that the run keeps. *read owns what was read; the caller frees it. */
static status choose_tokenizer(const export_options *o, const tokenizer_files *kept, tokenizer_files *read,
                               const tokenizer_files **out) {
    *out = kept;
    if (!o->tokenizer) return OK;
    *out = strcmp(o->tokenizer, "none") == 0 ? NULL : read;
    if (!*out) return OK;
    if (access(o->tokenizer, R_OK) != 0)
        return ERR(ERR_INPUT, "--tokenizer %s: %s, expected a directory with tokenizer.json, or none", o->tokenizer,
                   strerror(errno));
    return tokenizer_files_read(read, o->tokenizer);
}

status export_running(exec *e, const plan *p, const char *description, const tokenizer_files *tokenizer,
                      const export_options *o, export_report *out) {
    *out = (export_report){.type = o->type == DTYPE_COUNT ? precision_compute(p->request.choice.precision) : o->type};
    json_t *root = json_loads(description, JSON_REJECT_DUPLICATES, NULL);
    ASSERT(root);
    exporter x = {.from = {.g = &p->program, .m = &p->model, .e = e, .p = p}, .type = out->type, .report = out};
    tokenizer_files read = {0};
    status rc = choose_tokenizer(o, tokenizer, &read, &x.tokenizer);
    if (rc == OK) rc = write_dir(&x, root, o);
    tokenizer_files_fini(&read);
    json_decref(root);
    return rc;
}

/* ---- from a checkpoint ------------------------------------------------------------------------------------------- */

/* The model's parameters and their names; nothing of this program runs, so its sizes are the smallest. */
static status build_names(const json_t *description, const char *path, model *m, program *g) {
    model_config c;
    TRY(model_config_from_json(&c, json_object_get(description, "config"), "of the checkpoint", path));
    TRY(model_build(m, g, &c, &(model_build_options){.batch = 1, .seq_len = 1, .compute = DTYPE_F32}));
    return OK;
}

/* The copy in the checkpoint. A checkpoint of an older ralo has none: the path that it names may be any file of the
 * user. */
static status kept_tokenizer(const checkpoint_reader *r, const char *dir, const json_t *description,
                             const export_options *o, tokenizer_files *out) {
    const json_t *files = checkpoint_reader_tokenizer(r);
    const char *path = json_string_value(json_object_get(description, "tokenizer"));
    if (o->tokenizer) return OK;
    if (files) return tokenizer_files_load(out, dir, files, true);
    if (!path) return OK;
    return ERR(ERR_INPUT,
               "%s keeps no copy of its tokenizer, an older ralo wrote it, and says that it was trained with %s; files "
               "are never copied from a path that a checkpoint names: give the directory with --tokenizer DIR, or "
               "--tokenizer none to "
               "export without it",
               dir, path);
}

status export_checkpoint(const char *from, const export_options *o, export_report *out) {
    status rc = OK;
    checkpoint_reader *r = NULL;
    model m = {0};
    program g;
    checkpoint_found first;
    tokenizer_files kept = {0}, read = {0};
    char name[256];
    *out = (export_report){.type = o->type};
    program_init(&g);
    TRY_GOTO(rc, export_check_dir(NULL, o->dir), done);
    TRY_GOTO(rc, checkpoint_locate("export", from, "a run or a checkpoint directory", out->from, sizeof out->from),
             done);
    TRY_GOTO(rc, checkpoint_reader_open(&r, out->from), done);
    const json_t *description;
    TRY_GOTO(rc, checkpoint_description(r, out->from, &description), done);
    out->step = checkpoint_reader_step(r);
    TRY_GOTO(rc, build_names(description, out->from, &m, &g), done);
    snprintf(name, sizeof name, "param/%s", m.params[0].name);
    if (out->type == DTYPE_COUNT) {
        bool half = checkpoint_reader_find(r, name, &first) && (first.type == DTYPE_BF16 || first.type == DTYPE_F16);
        out->type = half ? first.type : DTYPE_F32;
    }
    exporter x = {.from = {.g = &g, .m = &m, .r = r}, .type = out->type, .report = out};
    TRY_GOTO(rc, kept_tokenizer(r, out->from, description, o, &kept), done);
    TRY_GOTO(rc, choose_tokenizer(o, &kept, &read, &x.tokenizer), done);
    rc = write_dir(&x, description, o);
done:
    tokenizer_files_fini(&kept);
    tokenizer_files_fini(&read);
    checkpoint_reader_close(r);
    model_fini(&m);
    program_fini(&g);
    return rc;
}
